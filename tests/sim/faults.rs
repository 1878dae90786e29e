//! The simulation tested: with one deliberate fault planted in the core it must fail within the seeds that every check runs, and say
//! the right thing about it.

use crate::script::Script;
use crate::{fixed_seeds, say, shrink};
use corelane::fault::{self, Fault};

/// What the oracle may say about a fault.
fn properties(fault: Fault) -> &'static [&'static str] {
    match fault {
        // The client waits for it for ever.
        Fault::ForgetPubrelOnResume | Fault::ForgetMore => &["liveness"],
        Fault::SubackBeforeInterest | Fault::DropOnFullRing | Fault::DropUncounted => &["nothing lost", "shared"],
        Fault::RouteRepeatedQos2 => &["exactly once", "shared"],
        // It sends one more than the client takes, or gives the id out again while the client still has it.
        Fault::FreePacketIdOnPubrec => &["receive maximum", "packet id", "liveness"],
        Fault::UsePacketIdTwice => &["packet id"],
        Fault::ExceedReceiveMaximum => &["receive maximum"],
        Fault::IgnoreMaximumPacketSize => &["maximum packet size"],
        Fault::KeepWillOnDisconnect | Fault::IgnoreWillDelay | Fault::PublishWillOnResume => &["will"],
        Fault::ForgetWill => &["nothing lost"],
        Fault::ForgetSessionExpiry | Fault::ResumeOnCleanStart => &["session"],
        Fault::KeepOlderConnection => &["one owner"],
        Fault::GiveToTwoMembers | Fault::ForgetRedispatch => &["shared"],
        Fault::IgnoreNoLocal => &["no match"],
        Fault::KeepClearedRetained | Fault::KeepOlderRetained | Fault::ReplayStaleRetained => &["retained"],
        Fault::SendExpired => &["message expiry"],
        Fault::OvertakeParked | Fault::OvertakeFanout => &["order"],
        Fault::LeakSessionCharge => &["nothing left"],
    }
}

#[test]
fn every_deliberate_fault_is_caught_by_the_check_it_breaks() {
    shrink::quiet_panics();
    let mut wrong = Vec::new();
    say(&format!("{:<24} {:>5}  what the oracle said", "fault", "seeds"));
    for fault in Fault::ALL {
        fault::plant(Some(fault));
        let failures = fixed_seeds().zip(1..).map(|(seed, runs)| (shrink::run_caught(&Script::random(seed), false), runs));
        let caught = failures.filter_map(|(report, runs)| Some((report.failure?, runs))).next();
        fault::plant(None);
        let Some((failure, runs)) = caught else {
            say(&format!("{:<24} {:>5}  nothing", format!("{fault:?}"), fixed_seeds().count()));
            wrong.push(fault);
            continue;
        };
        say(&format!("{:<24} {runs:>5}  {}: {:.90}", format!("{fault:?}"), failure.property, failure.detail));
        if !properties(fault).contains(&failure.property) {
            wrong.push(fault);
        }
    }
    say(&format!("sim: faults caught {}/{}", Fault::ALL.len() - wrong.len(), Fault::ALL.len()));
    assert!(wrong.is_empty(), "not caught, or by another check: {wrong:?}");
}
