//! Consistency levels as one says them: `WriteMajority::within(secs(3))`, `ReadLocal`.

use std::time::Duration;

pub use ostraca_ddata::replicator::request::ReadConsistency::Local as ReadLocal;
pub use ostraca_ddata::replicator::request::WriteConsistency::Local as WriteLocal;
use ostraca_ddata::replicator::request::{MinCap, ReadConsistency, WriteConsistency};

/// So many seconds.
#[must_use]
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A write that is answered when a majority of the voters holds it: every later
/// [`ReadMajority`] sees it, whatever fails in between.
#[derive(Clone, Copy, Debug)]
pub struct WriteMajority;

impl WriteMajority {
    /// Waits so long; then the write stays applied, will spread, and is answered by a timeout.
    #[must_use]
    pub const fn within(span: Duration) -> WriteConsistency {
        WriteConsistency::majority(span)
    }
}

/// A majority of the voters and some more. With configurations a plain majority is safe; this is
/// for those who want Akka's arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct WriteMajorityPlus;

impl WriteMajorityPlus {
    /// `additional` voters beyond the majority, if there are as many.
    #[must_use]
    pub const fn within(additional: usize, span: Duration) -> WriteConsistency {
        WriteConsistency::MajorityPlus(additional, MinCap(0), span)
    }
}

/// A write that is answered when so many replicas hold it. Fewer than a majority promise nothing
/// to later reads.
#[derive(Clone, Copy, Debug)]
pub struct WriteTo;

impl WriteTo {
    /// `replicas`, this one included.
    #[must_use]
    pub const fn within(replicas: usize, span: Duration) -> WriteConsistency {
        WriteConsistency::To(replicas, span)
    }
}

/// A write that is answered when every member holds it that has not announced its stop.
#[derive(Clone, Copy, Debug)]
pub struct WriteAll;

impl WriteAll {
    /// Waits so long.
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
    /// Waits so long.
    #[must_use]
    pub const fn within(span: Duration) -> ReadConsistency {
        ReadConsistency::majority(span)
    }
}

/// A majority of the voters and some more.
#[derive(Clone, Copy, Debug)]
pub struct ReadMajorityPlus;

impl ReadMajorityPlus {
    /// `additional` voters beyond the majority, if there are as many.
    #[must_use]
    pub const fn within(additional: usize, span: Duration) -> ReadConsistency {
        ReadConsistency::MajorityPlus(additional, MinCap(0), span)
    }
}

/// A read from so many replicas.
#[derive(Clone, Copy, Debug)]
pub struct ReadFrom;

impl ReadFrom {
    /// `replicas`, this one included.
    #[must_use]
    pub const fn within(replicas: usize, span: Duration) -> ReadConsistency {
        ReadConsistency::From(replicas, span)
    }
}

/// A read from every member that has not announced its stop.
#[derive(Clone, Copy, Debug)]
pub struct ReadAll;

impl ReadAll {
    /// Waits so long.
    #[must_use]
    pub const fn within(span: Duration) -> ReadConsistency {
        ReadConsistency::All(span)
    }
}

/// How long a caller is ready to wait; `None`: as long as it takes.
pub(super) const fn patience_of_write(consistency: WriteConsistency) -> Option<Duration> {
    match consistency {
        WriteConsistency::Local => None,
        WriteConsistency::To(_, span)
        | WriteConsistency::Majority(_, span)
        | WriteConsistency::MajorityPlus(_, _, span)
        | WriteConsistency::All(span) => Some(span),
    }
}

/// As [`patience_of_write`].
pub(super) const fn patience_of_read(consistency: ReadConsistency) -> Option<Duration> {
    match consistency {
        ReadConsistency::Local => None,
        ReadConsistency::From(_, span)
        | ReadConsistency::Majority(_, span)
        | ReadConsistency::MajorityPlus(_, _, span)
        | ReadConsistency::All(span) => Some(span),
    }
}
