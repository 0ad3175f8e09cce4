//! Short names for consistency levels, for example `WriteMajority::within(secs(3))` or `ReadLocal`.
//! All but `ReadLocal` and `WriteLocal` need this node to be a member of the configuration, and
//! have a timeout.

use std::time::Duration;

pub use ostraca_ddata::replicator::request::ReadConsistency::Local as ReadLocal;
pub use ostraca_ddata::replicator::request::WriteConsistency::Local as WriteLocal;
use ostraca_ddata::replicator::request::{MinCap, ReadConsistency, WriteConsistency};

/// A duration of `seconds` seconds.
#[must_use]
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A write that completes when a majority of the voters holds it. Every later [`ReadMajority`] sees
/// it, whatever fails in between.
#[derive(Clone, Copy, Debug)]
pub struct WriteMajority;

impl WriteMajority {
    /// Waits at most `span`. After that the write fails with a timeout, but stays applied on this
    /// node and will spread.
    #[must_use]
    pub const fn within(span: Duration) -> WriteConsistency {
        WriteConsistency::majority(span)
    }
}

/// A write that completes when a majority of the voters and some further ones hold it. A plain
/// majority is safe here, because configurations define the voters; this level exists for parity
/// with Akka.
#[derive(Clone, Copy, Debug)]
pub struct WriteMajorityPlus;

impl WriteMajorityPlus {
    /// `additional` voters beyond the majority, as far as there are any. Waits at most `span`.
    #[must_use]
    pub const fn within(additional: usize, span: Duration) -> WriteConsistency {
        WriteConsistency::MajorityPlus(additional, MinCap(0), span)
    }
}

/// A write that completes when a given number of replicas hold it. With fewer than a majority,
/// later reads need not see it.
#[derive(Clone, Copy, Debug)]
pub struct WriteTo;

impl WriteTo {
    /// `replicas` counts this node; 0 and 1 wait for no other. Waits at most `span`, and fails at
    /// once if the configuration has fewer members, without those that have announced their stop.
    #[must_use]
    pub const fn within(replicas: usize, span: Duration) -> WriteConsistency {
        WriteConsistency::To(replicas, span)
    }
}

/// A write that completes when every member holds it, except members that have announced their
/// stop, but in any case a majority of the voters.
#[derive(Clone, Copy, Debug)]
pub struct WriteAll;

impl WriteAll {
    /// Waits at most `span`.
    #[must_use]
    pub const fn within(span: Duration) -> WriteConsistency {
        WriteConsistency::All(span)
    }
}

/// A read that sees every write that a majority acknowledged, and everything that an earlier
/// majority read returned.
#[derive(Clone, Copy, Debug)]
pub struct ReadMajority;

impl ReadMajority {
    /// Waits at most `span`.
    #[must_use]
    pub const fn within(span: Duration) -> ReadConsistency {
        ReadConsistency::majority(span)
    }
}

/// A read from a majority of the voters and some more; see [`WriteMajorityPlus`].
#[derive(Clone, Copy, Debug)]
pub struct ReadMajorityPlus;

impl ReadMajorityPlus {
    /// `additional` voters beyond the majority, as far as there are any. Waits at most `span`.
    #[must_use]
    pub const fn within(additional: usize, span: Duration) -> ReadConsistency {
        ReadConsistency::MajorityPlus(additional, MinCap(0), span)
    }
}

/// A read from a given number of replicas.
#[derive(Clone, Copy, Debug)]
pub struct ReadFrom;

impl ReadFrom {
    /// `replicas` counts this node; 0 and 1 wait for no other. Waits at most `span`, and fails at
    /// once if the configuration has fewer members, without those that have announced their stop.
    #[must_use]
    pub const fn within(replicas: usize, span: Duration) -> ReadConsistency {
        ReadConsistency::From(replicas, span)
    }
}

/// A read from every member, except members that have announced their stop, but in any case from a
/// majority of the voters.
#[derive(Clone, Copy, Debug)]
pub struct ReadAll;

impl ReadAll {
    /// Waits at most `span`.
    #[must_use]
    pub const fn within(span: Duration) -> ReadConsistency {
        ReadConsistency::All(span)
    }
}

/// Timeout of a level for writes; `None`, without a limit, only for `Local`.
pub(super) const fn patience_of_write(consistency: WriteConsistency) -> Option<Duration> {
    match consistency {
        WriteConsistency::Local => None,
        WriteConsistency::To(_, span)
        | WriteConsistency::Majority(_, span)
        | WriteConsistency::MajorityPlus(_, _, span)
        | WriteConsistency::All(span) => Some(span),
    }
}

/// Timeout of a level for reads; `None`, without a limit, only for `Local`.
pub(super) const fn patience_of_read(consistency: ReadConsistency) -> Option<Duration> {
    match consistency {
        ReadConsistency::Local => None,
        ReadConsistency::From(_, span)
        | ReadConsistency::Majority(_, span)
        | ReadConsistency::MajorityPlus(_, _, span)
        | ReadConsistency::All(span) => Some(span),
    }
}
