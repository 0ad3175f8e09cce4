//! Anti-entropy: two replicas find what differs between them by comparing sums, and mend exactly
//! that (known failure 40: one missing key made a peer send its whole chunk in full, twice).
//!
//! The asker keeps the books: root → 256 tops → 256 leaves below each that differs → keys with
//! contexts → what it lacks of them, and it gives what the other lacks. The answerer keeps
//! nothing. The same steps against a frozen snapshot are how the next configuration's voters
//! sync, and against a synced replica how later ones do ([`At`]).

use std::collections::{BTreeMap, VecDeque};

use super::sums::{FANOUT, Sums, differing};
use super::wire::{At, Held, Query};
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// Tops asked for in one message: 16 × 2 KB of sums.
const TOPS_PER_QUERY: usize = 16;

/// Ranges of buckets asked for in one message.
const RANGES_PER_QUERY: usize = 64;

/// Comparisons under way.
pub(super) const OPEN_MAX: usize = 64;

/// Resends after which a live comparison is given up; the next round begins another.
const LIVE_TRIES: u32 = 4;

/// Questions after which a live comparison ends: what it mended is mended, and a peer whose
/// answers never bring it to an end is not asked for ever.
const LIVE_QUESTIONS: u32 = 1_000;

/// One comparison, as its asker sees it.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) at: At,
    questions: u32,
    tops: VecDeque<u8>,           // ≤ 256
    ranges: VecDeque<(u16, u16)>, // ≤ 65,536
    wants: VecDeque<KeyName>,     // ≤ keys of one answer
    asked: Query,
    /// When the first question was put: what the other side is compared with dates from then.
    pub(super) began: Instant,
    pub(super) resend: Instant,
    pub(super) tries: u32,
    found: bool,
}

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Ask this next.
    Ask(Query),
    /// Everything is compared and mended. `found`: something was lacking on either side.
    Done { found: bool },
    /// The answer makes no sense.
    Nonsense,
}

impl Comparison {
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

    /// The question that waits for its answer.
    pub(super) const fn asked(&self) -> &Query {
        &self.asked
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.at == At::Live && self.tries >= LIVE_TRIES
    }

    /// The other side's 256 sums.
    pub(super) fn tops(
        &mut self,
        mine: &Sums,
        theirs: &[u64],
        held: impl Fn(&KeyName) -> Held,
    ) -> Step {
        if !matches!(self.asked, Query::Root { .. }) || theirs.len() != FANOUT {
            return Step::Nonsense;
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

    /// The sums below some tops.
    pub(super) fn leaves(
        &mut self,
        mine: &Sums,
        theirs: &[(u8, Vec<u64>)],
        held: impl Fn(&KeyName) -> Held,
    ) -> Step {
        let Query::Leaves(asked) = &self.asked else { return Step::Nonsense };
        let named = theirs.iter().map(|(top, _)| top);
        if !asked.iter().eq(named) || theirs.iter().any(|(_, leaves)| leaves.len() != FANOUT) {
            return Step::Nonsense;
        }
        for (top, leaves) in theirs {
            for (leaf, ..) in differing(mine.leaves(*top), leaves) {
                let bucket = u16::from(*top) << 8 | u16::from(leaf);
                self.range(bucket, bucket);
            }
        }
        self.next(held)
    }

    fn range(&mut self, first: u16, last: u16) {
        match self.ranges.back_mut() {
            Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
            _ => self.ranges.push_back((first, last)),
        }
    }

    /// Which of the buckets asked for an answer that is complete up to `upto` speaks of; `None`
    /// if it speaks of none.
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

    /// Everything from this bucket on is asked for again, when what was given before has arrived.
    pub(super) fn defer(&mut self, covered: &[(u16, u16)], from: u16) {
        let later = covered.iter().filter(|(_, last)| *last >= from);
        for (first, last) in later.rev() {
            self.ranges.push_front(((*first).max(from), *last));
        }
    }

    /// Something of these keys is lacking here.
    pub(super) fn want(&mut self, keys: Vec<KeyName>) {
        self.found |= !keys.is_empty();
        self.wants.extend(keys);
    }

    /// Something is lacking there.
    pub(super) const fn gave(&mut self) {
        self.found = true;
    }

    /// So many of the wanted keys were answered, from the first on.
    pub(super) fn wanted(&mut self, done: u32) -> bool {
        let Query::Want(asked) = &self.asked else { return false };
        let done = done as usize;
        if done == 0 || done > asked.len() {
            return false;
        }
        self.wants.drain(..done.min(self.wants.len()));
        true
    }

    /// The next question, wants first.
    pub(super) fn next(&mut self, held: impl Fn(&KeyName) -> Held) -> Step {
        self.questions += 1;
        if self.at == At::Live && self.questions > LIVE_QUESTIONS {
            return Step::Done { found: self.found };
        }
        let query = if !self.wants.is_empty() {
            Query::Want(
                self.wants.iter().take(super::anti_entropy::WANTS_PER_QUERY).map(held).collect(),
            )
        } else if !self.tops.is_empty() {
            let count = self.tops.len().min(TOPS_PER_QUERY);
            Query::Leaves(self.tops.drain(..count).collect())
        } else if !self.ranges.is_empty() {
            // What an answer is complete up to means something only in order.
            self.ranges.make_contiguous().sort_unstable();
            let count = self.ranges.len().min(RANGES_PER_QUERY);
            Query::Keys(self.ranges.drain(..count).collect())
        } else {
            return Step::Done { found: self.found };
        };
        self.asked = query.clone();
        self.tries = 0;
        Step::Ask(query)
    }
}

/// Keys wanted in one message.
pub(super) const WANTS_PER_QUERY: usize = 500;

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct AntiEntropy {
    next: u64,
    open: BTreeMap<u64, (ReplicaId, Comparison)>, // ≤ OPEN_MAX
}

impl AntiEntropy {
    /// Whether a comparison of this kind with this peer is under way.
    pub(super) fn is_open(&self, peer: ReplicaId, at: At) -> bool {
        self.open.values().any(|(other, comparison)| *other == peer && comparison.at == at)
    }

    pub(super) fn has_room(&self) -> bool {
        self.open.len() < OPEN_MAX
    }

    pub(super) fn begin(&mut self, peer: ReplicaId, comparison: Comparison) -> u64 {
        self.next += 1;
        self.open.insert(self.next, (peer, comparison));
        self.next
    }

    pub(super) fn get_mut(
        &mut self,
        session: u64,
        peer: ReplicaId,
        at: At,
    ) -> Option<&mut Comparison> {
        let (of, comparison) = self.open.get_mut(&session)?;
        (*of == peer && comparison.at == at).then_some(comparison)
    }

    /// A question follows an answer: it gets a name of its own, so that a late or doubled answer
    /// to an earlier one is not taken for its own.
    pub(super) fn next_question(&mut self, session: u64, resend: Instant) -> Option<u64> {
        let (peer, mut comparison) = self.open.remove(&session)?;
        comparison.resend = resend;
        Some(self.begin(peer, comparison))
    }

    pub(super) fn end(&mut self, session: u64) {
        self.open.remove(&session);
    }

    /// Ends every comparison that `which` names.
    pub(super) fn end_all(&mut self, which: impl Fn(ReplicaId, At) -> bool) {
        self.open.retain(|_, (peer, comparison)| !which(*peer, comparison.at));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        if self.open.is_empty() {
            return None;
        }
        self.open.values().map(|(_, comparison)| comparison.resend).min()
    }

    /// Comparisons whose question is to be asked again; live ones that nobody answers are ended.
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
