//! The simulation tested: with one deliberate fault planted in the core it must fail within the seeds that every check runs, and say
//! the right thing about it.

use crate::script::Script;
use crate::{fixed_seeds, say, shrink};
use corelane::fault::{self, Fault};
use std::collections::BTreeSet;

/// What the oracle may say about a fault.
fn properties(fault: Fault) -> &'static [&'static str] {
    match fault {
        // The client waits for it for ever.
        Fault::ForgetPubrelOnResume => &["liveness"],
        Fault::ForgetMore => &["liveness", "shutdown", "nothing left"],
        Fault::SubackBeforeInterest | Fault::DropOnFullRing | Fault::DropUncounted => &["nothing lost", "shared"],
        Fault::RouteRepeatedQos2 => &["exactly once", "shared"],
        // The next message goes out while the client still counts this one.
        Fault::FreePacketIdOnPubrec => &["receive maximum"],
        Fault::UsePacketIdTwice => &["packet id"],
        Fault::ExceedReceiveMaximum => &["receive maximum"],
        Fault::IgnoreMaximumPacketSize => &["maximum packet size"],
        Fault::KeepWillOnDisconnect | Fault::IgnoreWillDelay | Fault::PublishWillOnResume => &["will"],
        Fault::ForgetWill => &["nothing lost"],
        Fault::ForgetSessionExpiry | Fault::ResumeOnCleanStart => &["session"],
        Fault::KeepOlderConnection => &["one owner"],
        Fault::GiveToTwoMembers | Fault::ForgetRedispatch => &["shared"],
        Fault::IgnoreNoLocal => &["no match"],
        Fault::DeliverAtLastQos => &["qos"],
        Fault::SendOneIdentifier => &["subscription identifier"],
        Fault::KeepClearedRetained | Fault::KeepOlderRetained | Fault::ReplayStaleRetained => &["retained"],
        Fault::SendExpired => &["message expiry"],
        Fault::OvertakeParked | Fault::OvertakeFanout => &["order"],
        Fault::AcknowledgeBeforeSink => &["delivered"],
        Fault::LeakSessionCharge => &["nothing left"],
    }
}

#[test]
fn every_deliberate_fault_is_caught_by_the_check_it_breaks() {
    shrink::quiet_panics();
    let mut missed = Vec::new();
    say(&format!("{:<24} {:>5}  what the oracle said", "fault", "seeds"));
    for fault in Fault::ALL {
        fault::plant(Some(fault));
        let failures = fixed_seeds()
            .zip(1..)
            .filter_map(|(seed, runs)| Some((shrink::run_caught(&Script::random(seed), false).failure?, runs)));
        // A fault may show in other ways before it does in its own.
        let mut others = BTreeSet::new();
        let caught = failures
            .inspect(|(failure, _)| _ = others.insert(failure.property))
            .find(|(failure, _)| properties(fault).contains(&failure.property));
        fault::plant(None);
        let name = format!("{fault:?}");
        match caught {
            Some((failure, runs)) => say(&format!("{name:<24} {runs:>5}  {}: {:.90}", failure.property, failure.detail)),
            None => {
                say(&format!("{name:<24} {:>5}  not it, only {others:?}", fixed_seeds().count()));
                missed.push(fault);
            }
        }
    }
    say(&format!("sim: faults caught {}/{}", Fault::ALL.len() - missed.len(), Fault::ALL.len()));
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
