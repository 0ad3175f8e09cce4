//! The state of open reads above `Local`: ask, merge, write back differences, then reply.
//!
//! A read merges its answers into a state of its own, so that it returns exactly the value that
//! enough replicas hold in the end, whatever else this replica merges meanwhile
//! (docs/protocol/replication.md#read-repair-before-the-reply). The write-back is a
//! [`super::write`] request in which the replicas that hold everything are counted from the start.

use std::collections::{BTreeMap, BTreeSet};

use super::epoch::EpochId;
use super::quorum::{Level, Need};
use super::request::RequestId;
use super::write::Electors;
use crate::causal::CausalContext;
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::types::delta::KeyState;
use crate::types::shape::Shape;

/// An open read and its answers so far. When a configuration is installed, all but key, shape,
/// level, deadline and merged data starts anew.
#[derive(Clone, Debug)]
pub(super) struct OpenRead {
    pub(super) key: KeyName,
    pub(super) shape: Option<Shape>,
    pub(super) need: Need,
    pub(super) level: Level,
    /// The configuration in which answers count.
    pub(super) epoch: EpochId,
    pub(super) deadline: Instant,
    /// When the replicas that have not answered are asked again.
    pub(super) resend: Instant,
    /// Number of repetitions of the question.
    pub(super) tries: u32,
    /// When the question was first sent.
    pub(super) sent: Instant,
    /// The join of this replica's data and of all answers so far, also of those that do not count;
    /// `None` while no replica holds anything.
    pub(super) merged: Option<KeyState>,
    /// The context that this replica held when the read started, as every question states it, with
    /// data that is not on disk yet. Data that arrives later is not added.
    pub(super) own: CausalContext,
    /// The context that each counted replica vouches for; perhaps this replica's, too.
    pub(super) answers: BTreeMap<ReplicaId, CausalContext>, // ≤ members
}

impl OpenRead {
    pub(super) fn answered(&self) -> BTreeSet<ReplicaId> {
        self.answers.keys().copied().collect()
    }

    /// Merges the state that this replica holds into the merged answers, without counting it as an
    /// answer; `None` changes nothing. A state of another type is ignored.
    pub(super) fn include(&mut self, held: Option<KeyState>) {
        match (&mut self.merged, held) {
            (Some(merged), Some(held)) if merged.shape() == held.shape() => {
                merged.merge(&held);
            }
            (merged @ None, held) => *merged = held,
            (Some(_), _) => {}
        }
    }

    /// Whether enough replicas have answered, by the members and voters that count now. Whether the
    /// answers agree does not matter.
    pub(super) fn is_met(&self, electors: &Electors<'_>) -> bool {
        self.answers.len() >= self.need.answers()
            && self.need.is_met(electors.count(self.answers.keys()))
    }

    /// The counted replicas (this one only if it counts) that vouch for everything in the merged
    /// answers; all of them if no replica holds anything.
    pub(super) fn holders(&self) -> BTreeSet<ReplicaId> {
        let Some(merged) = &self.merged else { return self.answered() };
        let holds = |(id, context): (&ReplicaId, &CausalContext)| {
            context.includes(merged.context()).then_some(*id)
        };
        self.answers.iter().filter_map(holds).collect()
    }

    /// Whether every counted replica holds everything in the merged answers, so that no write-back
    /// is needed.
    pub(super) fn is_unanimous(&self) -> bool {
        self.holders().len() == self.answers.len()
    }
}

/// All open reads, with a timer for each.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    /// Boxed, because reads are large and a map moves its neighbours when one is removed.
    open: BTreeMap<RequestId, Box<OpenRead>>, // ≤ max_pending_requests, with writes and fences
    timers: BTreeSet<(Instant, RequestId)>,
}

impl Reads {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// The time of the next action: a repeated question or the timeout.
    fn timer(read: &OpenRead) -> Instant {
        read.deadline.min(read.resend)
    }

    pub(super) fn insert(&mut self, id: RequestId, read: OpenRead) {
        self.timers.insert((Self::timer(&read), id));
        self.open.insert(id, Box::new(read));
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.open.keys().copied().collect()
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&OpenRead> {
        self.open.get(&id).map(|read| &**read)
    }

    /// An open read to change. Its `deadline` and `resend` must stay, because its timer is found by
    /// them.
    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut OpenRead> {
        self.open.get_mut(&id).map(|read| &mut **read)
    }

    /// Takes out a read and its timer, without a reply; `None` if it is not open.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<OpenRead> {
        let read = *self.open.remove(&id)?;
        self.timers.remove(&(Self::timer(&read), id));
        Some(read)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes out every read whose resend time or deadline has been reached, earliest first. The
    /// caller replies, or inserts it again with a later resend time.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(RequestId, OpenRead)> {
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, id));
            due.extend(self.open.remove(&id).map(|read| (id, *read)));
        }
        due
    }

    /// Recomputes the need of every read: the members that count have changed within the epoch. A
    /// read whose level can no longer be met (`need` returns `None`) keeps its need. Answers stay
    /// counted, and nothing is sent. The caller checks the reads afterwards.
    pub(super) fn recompute_need(&mut self, need: impl Fn(Level) -> Option<Need>) {
        for read in self.open.values_mut() {
            read.need = need(read.level).unwrap_or(read.need);
        }
    }

    /// Takes out every read and its timer, so that it can be restarted in another epoch or failed.
    pub(super) fn take_all(&mut self) -> Vec<(RequestId, OpenRead)> {
        self.timers.clear();
        std::mem::take(&mut self.open).into_iter().map(|(id, read)| (id, *read)).collect()
    }
}
