//! Anti-entropy: a replica compares its digest sums with a peer's, finds the keys that differ and
//! repairs exactly these (docs/protocol/replication.md#anti-entropy).
//!
//! The asker keeps the state of the comparison; the answerer keeps none, so that a lost message
//! leaves nothing behind there. The questions descend: root → 256 tops → the 256 leaves under each
//! top that differs → keys with contexts → repairs of what the asker lacks. The asker also sends
//! repairs of what the answerer lacks, unless it syncs. Voters of the next configuration sync by
//! the same steps against a sealed snapshot, later ones against a synced replica ([`At`]).

use std::collections::{BTreeMap, VecDeque};

use super::sums::{FANOUT, Sums, differing};
use super::wire::{At, KeyContext, Query};
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// Maximum number of tops per question; the answer has 2 KB of sums for each.
const TOPS_PER_QUERY: usize = 16;

/// Maximum number of ranges of buckets per question.
const RANGES_PER_QUERY: usize = 64;

/// At this number of open comparisons no further live one is begun. Syncs are begun regardless.
pub(super) const OPEN_MAX: usize = 64;

/// Number of resends of one question after which a live comparison is given up when the next resend
/// is due. The next round starts another.
const LIVE_TRIES: u32 = 4;

/// Number of questions after which a live comparison ends, so that a peer whose answers never end
/// cannot keep this replica busy. Repairs made so far remain.
const LIVE_QUESTIONS: u32 = 1_000;

/// The asker's state of one comparison.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) at: At,
    questions: u32,               // asked after the root
    tops: VecDeque<u8>,           // to be asked for; ≤ 256
    ranges: VecDeque<(u16, u16)>, // of buckets to be asked for; ≤ 65,536
    wants: VecDeque<KeyName>,     // not answered yet; ≤ keys of one answer
    asked: Query,                 // the open question
    /// When the first question was sent. The peer is compared with the state of that time or later.
    pub(super) began: Instant,
    pub(super) resend: Instant, // when the open question is sent again
    pub(super) tries: u32,      // resends of the open question
    found: bool,                // one side lacked something; never reset
}

/// The next step after an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SyncStep {
    /// Sends this question next.
    Ask(Query),
    /// Ends the comparison. `found`: one of the two sides lacked something.
    Done { found: bool },
    /// Ignores the answer, because it does not fit the open question, which is sent again when due.
    Mismatch,
}

/// Methods that return a [`SyncStep`] choose the next question. `held` tells the context that this
/// replica holds of a key. An answer that does not fit the open question schedules nothing and
/// gives [`SyncStep::Mismatch`]. The caller sends a question under the number that
/// [`AntiEntropy::next_question`] gives it, and ends the comparison at [`SyncStep::Done`].
impl Comparison {
    /// Starts with the root question, which the caller sends.
    pub(super) fn new(at: At, root: Query, began: Instant, resend: Instant) -> Self {
        Self {
            at,
            questions: 0,
            tops: VecDeque::new(),
            ranges: VecDeque::new(),
            wants: VecDeque::new(),
            asked: root,
            began,
            resend,
            tries: 0,
            found: false,
        }
    }

    /// Returns the open question: the root, or the last one that [`next`](Self::next) chose.
    pub(super) const fn asked(&self) -> &Query {
        &self.asked
    }

    /// Whether [`LIVE_TRIES`] resends of the open question were not answered. Syncs (not
    /// [`At::Live`]) are never given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.at == At::Live && self.tries >= LIVE_TRIES
    }

    /// Handles the peer's 256 tops, the answer to the root: schedules those that differ, and goes
    /// on to the [`next`](Self::next) question. If one side holds nothing under a top (its sum is
    /// 0), the whole range of its buckets is scheduled without asking for its leaves.
    pub(super) fn tops(
        &mut self,
        mine: &Sums,
        theirs: &[u64],
        held: impl Fn(&KeyName) -> KeyContext,
    ) -> SyncStep {
        if !matches!(self.asked, Query::Root { .. }) || theirs.len() != FANOUT {
            return SyncStep::Mismatch;
        }
        for (top, own, other) in differing(mine.tops(), theirs) {
            if own == 0 || other == 0 {
                self.range(u16::from(top) << 8, u16::from(top) << 8 | 0xff);
            } else {
                self.tops.push_back(top);
            }
        }
        self.next(held)
    }

    /// Handles the peer's leaves under the tops that were asked for, all of them and in the same
    /// order: schedules the buckets that differ, and goes on to the [`next`](Self::next) question.
    pub(super) fn leaves(
        &mut self,
        mine: &Sums,
        theirs: &[(u8, Vec<u64>)],
        held: impl Fn(&KeyName) -> KeyContext,
    ) -> SyncStep {
        let Query::Leaves(asked) = &self.asked else { return SyncStep::Mismatch };
        let named = theirs.iter().map(|(top, _)| top);
        if !asked.iter().eq(named) || theirs.iter().any(|(_, leaves)| leaves.len() != FANOUT) {
            return SyncStep::Mismatch;
        }
        for (top, leaves) in theirs {
            for (leaf, ..) in differing(mine.leaves(*top), leaves) {
                let bucket = u16::from(*top) << 8 | u16::from(leaf);
                self.range(bucket, bucket);
            }
        }
        self.next(held)
    }

    /// Schedules a range of buckets, joined with the last one if they are adjacent.
    fn range(&mut self, first: u16, last: u16) {
        match self.ranges.back_mut() {
            Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
            _ => self.ranges.push_back((first, last)),
        }
    }

    /// The parts of the ranges asked for that an answer covers which is complete up to `upto`;
    /// `None`, with nothing scheduled, if it covers none, or the open question is no
    /// [`Query::Keys`]. Otherwise the rest of the ranges is scheduled again, before all others.
    /// Call it once per answer, because the open question stays.
    pub(super) fn covered(&mut self, upto: u16) -> Option<Vec<(u16, u16)>> {
        let Query::Keys(asked) = &self.asked else { return None };
        let covered: Vec<_> = asked
            .iter()
            .filter(|(first, _)| *first <= upto)
            .map(|(first, last)| (*first, (*last).min(upto)))
            .collect();
        if covered.is_empty() {
            return None;
        }
        let left = asked.iter().filter(|(_, last)| *last > upto);
        let left: Vec<_> = left.map(|(first, last)| ((*first).max(upto + 1), *last)).collect();
        for range in left.into_iter().rev() {
            self.ranges.push_front(range);
        }
        Some(covered)
    }

    /// Schedules the covered buckets from `from` on, `from` included, again before all others,
    /// because the step's share of repairs is used up.
    pub(super) fn defer(&mut self, covered: &[(u16, u16)], from: u16) {
        let later = covered.iter().filter(|(_, last)| *last >= from);
        for (first, last) in later.rev() {
            self.ranges.push_front(((*first).max(from), *last));
        }
    }

    /// Schedules keys of which this replica lacks something, after those already wanted, and
    /// records that something was found. An empty list does nothing.
    pub(super) fn want(&mut self, keys: Vec<KeyName>) {
        self.found |= !keys.is_empty();
        self.wants.extend(keys);
    }

    /// Records that the peer lacked something.
    pub(super) const fn gave(&mut self) {
        self.found = true;
    }

    /// Removes the first `done` keys from the wanted ones, because they were answered. Returns
    /// `false`, and removes none, if the open question is no [`Query::Want`], or `done` is 0 or
    /// more than were asked for. Call it once per answer, because the open question stays.
    pub(super) fn wanted(&mut self, done: u32) -> bool {
        let Query::Want(asked) = &self.asked else { return false };
        let done = done as usize;
        if done == 0 || done > asked.len() {
            return false;
        }
        self.wants.drain(..done.min(self.wants.len()));
        true
    }

    /// Chooses the next question: wanted keys first, then tops, then ranges of buckets. Tops and
    /// ranges are then no longer scheduled; wanted keys stay until they are answered.
    ///
    /// The chosen question becomes the open one, without any resend so far. Wanted keys carry what
    /// this replica holds of them now. Returns [`SyncStep::Done`] if nothing is scheduled, and
    /// after [`LIVE_QUESTIONS`] questions of a live comparison, whatever is still scheduled; the
    /// open question then stays.
    pub(super) fn next(&mut self, held: impl Fn(&KeyName) -> KeyContext) -> SyncStep {
        self.questions += 1;
        if self.at == At::Live && self.questions > LIVE_QUESTIONS {
            return SyncStep::Done { found: self.found };
        }
        let query = if !self.wants.is_empty() {
            Query::Want(
                self.wants.iter().take(super::anti_entropy::WANTS_PER_QUERY).map(held).collect(),
            )
        } else if !self.tops.is_empty() {
            let count = self.tops.len().min(TOPS_PER_QUERY);
            Query::Leaves(self.tops.drain(..count).collect())
        } else if !self.ranges.is_empty() {
            // `upto` in the answer is meaningful only if the ranges are in order.
            self.ranges.make_contiguous().sort_unstable();
            let count = self.ranges.len().min(RANGES_PER_QUERY);
            Query::Keys(self.ranges.drain(..count).collect())
        } else {
            return SyncStep::Done { found: self.found };
        };
        self.asked = query.clone();
        self.tries = 0;
        SyncStep::Ask(query)
    }
}

/// Maximum number of wanted keys per question.
pub(super) const WANTS_PER_QUERY: usize = 500;

/// The open comparisons that this replica asks, by the number of their open question.
#[derive(Clone, Debug, Default)]
pub(super) struct AntiEntropy {
    next: u64,
    open: BTreeMap<u64, (ReplicaId, Comparison)>, // ≤ OPEN_MAX live ones, + one for each pull
}

impl AntiEntropy {
    /// Whether a comparison with this state of this peer is open.
    pub(super) fn is_open(&self, peer: ReplicaId, at: At) -> bool {
        self.open.values().any(|(other, comparison)| *other == peer && comparison.at == at)
    }

    /// Whether a live comparison may be begun: fewer than [`OPEN_MAX`] are open, syncs included.
    pub(super) fn has_room(&self) -> bool {
        self.open.len() < OPEN_MAX
    }

    /// Opens a comparison with a peer and returns the number of its open question, which is never
    /// used again. Checks nothing: the caller has checked [`has_room`](Self::has_room) for a live
    /// one, and [`is_open`](Self::is_open).
    pub(super) fn begin(&mut self, peer: ReplicaId, comparison: Comparison) -> u64 {
        self.next += 1;
        self.open.insert(self.next, (peer, comparison));
        self.next
    }

    /// The comparison whose open question has this number, if it was put to this peer and state.
    pub(super) fn get_mut(
        &mut self,
        session: u64,
        peer: ReplicaId,
        at: At,
    ) -> Option<&mut Comparison> {
        let (of, comparison) = self.open.get_mut(&session)?;
        (*of == peer && comparison.at == at).then_some(comparison)
    }

    /// Numbers the next question of a comparison. Each question has a number of its own, so that a
    /// late or duplicate answer to an earlier one is not taken for its answer. `session` is the
    /// number of the answered question, which becomes invalid. `None` if the comparison has ended.
    pub(super) fn next_question(&mut self, session: u64, resend: Instant) -> Option<u64> {
        let (peer, mut comparison) = self.open.remove(&session)?;
        comparison.resend = resend;
        Some(self.begin(peer, comparison))
    }

    /// Ends the comparison whose open question has this number; does nothing if there is none.
    pub(super) fn end(&mut self, session: u64) {
        self.open.remove(&session);
    }

    /// Ends every comparison for which `which` returns true, without a report.
    pub(super) fn end_all(&mut self, which: impl Fn(ReplicaId, At) -> bool) {
        self.open.retain(|_, (peer, comparison)| !which(*peer, comparison.at));
    }

    /// The earliest resend of an open question; `None` without open comparisons.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.open.is_empty() {
            return None;
        }
        self.open.values().map(|(_, comparison)| comparison.resend).min()
    }

    /// Returns the questions that must be resent now, under their old numbers, counts the resend,
    /// and schedules the next one `patience(tries)` later, this resend included in `tries`. Due
    /// live comparisons whose open question was resent [`LIVE_TRIES`] times end without a report
    /// instead.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        patience: impl Fn(u32) -> std::time::Duration,
    ) -> Vec<(u64, ReplicaId, At, Query)> {
        if self.due().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.open.retain(|_, (_, comparison)| comparison.resend > now || !comparison.is_given_up());
        let mut due = Vec::new();
        for (session, (peer, comparison)) in &mut self.open {
            if comparison.resend <= now {
                comparison.tries += 1;
                comparison.resend = now + patience(comparison.tries);
                due.push((*session, *peer, comparison.at, comparison.asked.clone()));
            }
        }
        due
    }
}
