//! Fault injections of membership: each [`MembershipFault`] disables one rule at run time, and the
//! test suites must detect it.
//!
//! As in [`ostraca_ddata::fault_injection`]: without the feature `canaries` every check is a
//! constant `false`, and the compiler removes the branch.

/// A rule that is disabled. Each variant describes the faulty behaviour (docs/protocol/leases.md,
/// docs/protocol/membership.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MembershipFault {
    /// A lease counts from the arrival of the grant, not from the sending of the heartbeat.
    LeaseFromAck,
    /// The holder uses the grantor's duration without a drift margin: T_p = T_q.
    NoDriftMargin,
    /// A grantor continues to grant leases to members whose removal it has consented to.
    AckAfterConsent,
    /// A sealed grantor continues to grant leases.
    SealedGrants,
    /// A grantor consents to a removal while its promise still runs.
    NoRefusal,
    /// A node counts its grant to itself even if its own grantor refuses.
    OwnAckAlways,
    /// A holder counts grants of two configurations together.
    LeaseOverTwoEpochs,
    /// A grantor consents to the removal of carried-over members right after an install.
    ConsentAfterInstall,
    /// A grantor consents to removals right after a restart.
    ConsentAfterRestart,
    /// A node consents to its own removal while its promise to itself runs, and continues to serve.
    OwnRemovalGoesOn,
    /// A node consents to its own removal at once, and serves until the Accept. The second part is
    /// in the simulated nodes of the tests.
    StopsAtAccept,
    /// A holder releases its lease and continues to serve.
    ReleaseGoesOn,
    /// A timer's flag decides whether the lease is valid, instead of the clock.
    FlagNotClock,
    /// A singleton starts when the next older candidate reports Done, without waiting for older
    /// ones.
    OnlyTheNextOlder,
    /// A candidate reports Done before its instance has stopped.
    DoneBeforeStopped,
    /// A Done counts even if it answers another request.
    AnyDone,
    /// An instance continues although its node's lease has lapsed for good. Only the simulated
    /// nodes of the tests check it.
    OutlivesLease,
    /// The leader marks members Up before a configuration contains them.
    UpWithoutConfiguration,
    /// The decision of the downing strategy removes members without a decision of the voters.
    RemovedByVerdict,
    /// A seed accepts a foundation whose ballot is lower than the promised one.
    FoundingBelowPromise,
    /// A proposer proposes its own foundation although a promise reports an accepted one.
    FoundingIgnoresAccepted,
}

/// The injected fault of a test run, if any.
pub type MembershipFaultInjection = ostraca_ddata::fault_injection::FaultInjection<MembershipFault>;
