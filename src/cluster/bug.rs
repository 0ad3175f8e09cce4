//! Canaries of this room: rules that the code under test leaves out on purpose, chosen at run
//! time, which the suites must catch.
//!
//! The same idea as [`ostraca_ddata::bug`]: without the feature `canaries` every question is a
//! constant `false` and the branches vanish.

/// A rule that is left out. The names follow spec/safety.md §4 and spec/reference/epochs.md §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Bug {
    /// A lease counts from the arrival of the ack, not from the sending of the heartbeat.
    LeaseFromAck,
    /// The holder's time is the grantor's: T_p = T_q.
    NoDriftMargin,
    /// A grantor goes on acking whoever it has consented to remove.
    AckAfterConsent,
    /// A sealed grantor goes on granting.
    SealedGrants,
    /// Consents while its promise runs.
    NoRefusal,
    /// A node's ack to itself counts whatever its grantor says.
    OwnAckAlways,
    /// Acks of two configurations are counted together.
    LeaseOverTwoEpochs,
    /// Consents to the removal of carried-over members right after an install.
    ConsentAfterInstall,
    /// Consents right after a restart.
    ConsentAfterRestart,
    /// Consents to its own removal while its promise to itself runs, and goes on.
    OwnRemovalGoesOn,
    /// Consents to its own removal at once, and goes on until the Accept.
    StopsAtAccept,
    /// Releases its lease and goes on.
    ReleaseGoesOn,
    /// A flag that a timer sets says whether the lease runs, not the clock.
    FlagNotClock,
    /// A singleton starts when the next older candidate says Done, whoever is older still.
    OnlyTheNextOlder,
    /// Done is said before the instance has stopped.
    DoneBeforeStopped,
    /// A Done counts whatever request it answers.
    AnyDone,
    /// An instance goes on although its node's lease lapsed for good.
    OutlivesLease,
    /// The leader takes members up without waiting for a configuration with them.
    UpWithoutConfiguration,
    /// What the downing strategy says removes members, whatever the voters say.
    RemovedByVerdict,
    /// A seed accepts a foundation below the ballot that it promised.
    FoundingBelowPromise,
    /// A founder proposes its own cluster although an answer names an accepted one.
    FoundingIgnoresAccepted,
}

/// The bug to run with, if any.
pub type Canary = ostraca_ddata::bug::Canary<Bug>;
