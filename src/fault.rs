//! Deliberate faults, to test the tests: with one of them planted the simulation must fail, and by the right check. Only builds with
//! debug assertions can plant one; in all others [`Fault::is_planted`] is a constant that the compiler removes with what hangs on it.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// A mistake that a broker might make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A resumed session's PUBREL is not sent again.
    ForgetPubrelOnResume,
    /// SUBACK does not wait until the other cores know of the subscription.
    SubackBeforeInterest,
    /// A repeated QoS 2 PUBLISH is routed again.
    RouteRepeatedQos2,
    /// A QoS 2 packet id is free on PUBREC, before PUBCOMP.
    FreePacketIdOnPubrec,
    /// A new message gets the packet id of the oldest one in flight.
    UsePacketIdTwice,
    /// One message more is in flight than the client's Receive Maximum.
    ExceedReceiveMaximum,
    /// The client's Maximum Packet Size does not count.
    IgnoreMaximumPacketSize,
    /// DISCONNECT does not discard the will.
    KeepWillOnDisconnect,
    /// A will is published at once, whatever its delay.
    IgnoreWillDelay,
    /// A will whose session is resumed within its delay is published all the same.
    PublishWillOnResume,
    /// A will is forgotten when its connection breaks.
    ForgetWill,
    /// An offline session outlives its expiry interval.
    ForgetSessionExpiry,
    /// A clean start finds the old session.
    ResumeOnCleanStart,
    /// A takeover leaves the older connection open.
    KeepOlderConnection,
    /// A message of a shared subscription goes to two members.
    GiveToTwoMembers,
    /// What the session of a group's member leaves undelivered is not given to another member.
    ForgetRedispatch,
    /// No Local does not count.
    IgnoreNoLocal,
    /// Of several matching subscriptions the last one's QoS counts, not the highest.
    DeliverAtLastQos,
    /// Of several matching subscriptions only the first one's identifier is sent.
    SendOneIdentifier,
    /// A retained message without payload leaves the one that is there.
    KeepClearedRetained,
    /// A retained message does not replace the one that is there.
    KeepOlderRetained,
    /// A live retained message does not cancel its topic's entry in an open replay.
    ReplayStaleRetained,
    /// A message whose expiry interval passed in the queue is sent.
    SendExpired,
    /// A packet that has waited goes behind those that came after it.
    OvertakeParked,
    /// A message passes the fan-outs of its topic that go on in later turns.
    OvertakeFanout,
    /// A message that a ring has no room for is dropped instead of parked.
    DropOnFullRing,
    /// Drops are not counted.
    DropUncounted,
    /// A turn that leaves work does not say so.
    ForgetMore,
    /// A publisher is acknowledged before the sink has its message.
    AcknowledgeBeforeSink,
    /// A session that ends stays on the memory account.
    LeakSessionCharge,
}

impl Fault {
    pub const ALL: [Fault; 30] = [
        Fault::ForgetPubrelOnResume,
        Fault::SubackBeforeInterest,
        Fault::RouteRepeatedQos2,
        Fault::FreePacketIdOnPubrec,
        Fault::UsePacketIdTwice,
        Fault::ExceedReceiveMaximum,
        Fault::IgnoreMaximumPacketSize,
        Fault::KeepWillOnDisconnect,
        Fault::IgnoreWillDelay,
        Fault::PublishWillOnResume,
        Fault::ForgetWill,
        Fault::ForgetSessionExpiry,
        Fault::ResumeOnCleanStart,
        Fault::KeepOlderConnection,
        Fault::GiveToTwoMembers,
        Fault::ForgetRedispatch,
        Fault::IgnoreNoLocal,
        Fault::DeliverAtLastQos,
        Fault::SendOneIdentifier,
        Fault::KeepClearedRetained,
        Fault::KeepOlderRetained,
        Fault::ReplayStaleRetained,
        Fault::SendExpired,
        Fault::OvertakeParked,
        Fault::OvertakeFanout,
        Fault::DropOnFullRing,
        Fault::DropUncounted,
        Fault::ForgetMore,
        Fault::AcknowledgeBeforeSink,
        Fault::LeakSessionCharge,
    ];

    #[cfg(debug_assertions)]
    pub fn is_planted(self) -> bool {
        PLANTED.get() == Some(self)
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub const fn is_planted(self) -> bool {
        false
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Has this thread's shards make the mistake, or with `None` none.
#[cfg(debug_assertions)]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}
