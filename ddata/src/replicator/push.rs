//! Pushes: every change goes to every replica at once, is resent until it is acknowledged, and is
//! left to anti-entropy when nobody waits for it any more.
//!
//! The updates of one batch are joined per key and cut into messages once, for all peers. An
//! acknowledgement says "my context contains these dots"; who lacks what a delta builds on gets
//! a repair at once. Knows no consistency level: [`super::write`] does.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::{SmallVec, smallvec};

use super::request::RequestId;
use super::store::{Place, place};
use super::wire::{Entries, Entry, Scope, WireGuard};
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::types::Term;
use crate::types::delta::Delta;

/// Pushes that nobody waits for; the oldest are left to anti-entropy.
const IDLE_MAX: usize = 4_096;

/// Bytes of pushes above which those that nobody waits for are left to anti-entropy.
const IDLE_BYTES_MAX: usize = 64 << 20;

/// Resends of a push that nobody waits for.
const IDLE_TRIES: u32 = 3;

/// Who waits for one entry: nearly always one.
pub(super) type Waiting = SmallVec<[RequestId; 1]>;

/// What one batch has changed of a key.
#[derive(Clone, Debug)]
pub(super) struct Fresh {
    /// `None`: nothing changed here, but somebody waits for others to hold it.
    pub(super) delta: Option<Delta>,
    pub(super) term: Option<Term>,
    pub(super) waiting: Waiting,
}

/// What a peer has not acknowledged of a push.
#[derive(Clone, Debug, PartialEq)]
enum Missing {
    All,
    Some(BTreeSet<u32>),
}

/// Changes on their way.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) entries: Entries,
    pub(super) waiting: BTreeMap<u32, Waiting>,
    missing: BTreeMap<ReplicaId, Missing>, // ≤ peers
    /// Who holds an entry and could not count it (sealed, or in another configuration): asked
    /// again while somebody waits for it.
    uncounted: BTreeMap<ReplicaId, BTreeSet<u32>>, // ≤ peers
    sent: Instant,
    resend: Instant,
    tries: u32,
    kept: bool, // somebody flushes: not left to anti-entropy
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) scope: &'a Scope,
    /// Entries that were not taken.
    pub(super) refused: &'a BTreeSet<u32>,
    /// Those of them that a repair is under way for.
    pub(super) lacking: &'a BTreeSet<u32>,
    /// Whether it counts in the sender's configuration.
    pub(super) counts: bool,
}

/// What came of an acknowledgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Acked {
    /// Entries now held there that somebody waits for, and who.
    pub(super) held: Vec<(u32, RequestId)>,
    /// When the push was first sent, if this is the answer to its first sending.
    pub(super) sent: Option<Instant>,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Pushes {
    next: u64,
    fresh: BTreeMap<Place, Fresh>, // ≤ keys changed in one batch
    fresh_since: Option<Instant>,
    open: BTreeMap<u64, Push>, // ≤ IDLE_MAX and IDLE_BYTES_MAX, + what requests wait for
    idle: BTreeSet<u64>,       // those that nobody waits for or flushes ≤ IDLE_MAX
    resends: BTreeSet<(Instant, u64)>,
    /// Who may lack something that was left to anti-entropy, and since when.
    left_behind: BTreeMap<ReplicaId, Instant>, // ≤ peers
    bytes: usize, // of the entries of open pushes
}

impl Pushes {
    /// Gathers a change of this batch.
    pub(super) fn add(
        &mut self,
        now: Instant,
        key: &KeyName,
        delta: Option<&Delta>,
        guard: Option<Term>,
        waiting: Option<RequestId>,
    ) {
        self.fresh_since.get_or_insert(now);
        let none = Fresh { delta: None, term: None, waiting: smallvec![] };
        let fresh = self.fresh.entry(place(key)).or_insert(none);
        match (&mut fresh.delta, delta) {
            (Some(joined), Some(delta)) => joined.join(delta),
            (empty @ None, Some(delta)) => *empty = Some(delta.clone()),
            (_, None) => {}
        }
        fresh.term = fresh.term.max(guard);
        fresh.waiting.extend(waiting);
    }

    /// Whether a change of this key waits for the end of its batch under another term.
    pub(super) fn has_other_term(&self, key: &KeyName, term: Option<Term>) -> bool {
        self.fresh.get(&place(key)).is_some_and(|fresh| fresh.term != term)
    }

    /// Since when changes wait for the end of their batch.
    pub(super) const fn fresh_since(&self) -> Option<Instant> {
        self.fresh_since
    }

    pub(super) fn take_fresh(&mut self) -> BTreeMap<Place, Fresh> {
        self.fresh_since = None;
        std::mem::take(&mut self.fresh)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a push to `peers`; its number.
    pub(super) fn open(
        &mut self,
        now: Instant,
        resend: Instant,
        entries: Entries,
        waiting: BTreeMap<u32, Waiting>,
        peers: &BTreeSet<ReplicaId>,
    ) -> u64 {
        self.next += 1;
        let missing = peers.iter().map(|&peer| (peer, Missing::All)).collect();
        let (tries, kept, uncounted) = (0, false, BTreeMap::new());
        let push = Push { entries, waiting, missing, uncounted, sent: now, resend, tries, kept };
        self.bytes += push.len();
        if push.waiting.is_empty() {
            self.idle.insert(self.next);
        }
        self.open.insert(self.next, push);
        self.resends.insert((resend, self.next));
        self.shed(now);
        self.next
    }

    /// Leaves the oldest pushes that nobody waits for to anti-entropy.
    fn shed(&mut self, now: Instant) {
        while self.open.len() > IDLE_MAX || self.bytes > IDLE_BYTES_MAX {
            let Some(oldest) = self.idle.first().copied() else { return };
            self.give_up(now, oldest);
        }
    }

    fn drop(&mut self, id: u64) {
        self.idle.remove(&id);
        if let Some(push) = self.open.remove(&id) {
            self.bytes -= push.len();
            self.resends.remove(&(push.resend, id));
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Push> {
        self.open.get(&id)
    }

    /// Takes an acknowledgement: everything in its scope but what was refused is held by `from`,
    /// what is lacking still has to be. A push that somebody waits for stays open though all hold
    /// it: an epoch may be installed, and counting starts anew.
    pub(super) fn acked(&mut self, id: u64, from: ReplicaId, told: Told<'_>) -> Acked {
        let Told { scope, refused, lacking, counts } = told;
        let Some(push) = self.open.get_mut(&id) else { return Acked::default() };
        let all = 0..u32::try_from(push.entries.len()).unwrap_or(u32::MAX);
        let some: Option<BTreeSet<u32>> = match scope {
            Scope::All => None,
            Scope::Only(some) => Some(some.iter().copied().collect()),
        };
        let looked = |i: &u32| some.as_ref().is_none_or(|some| some.contains(i));
        let waits = push.waiting.iter().filter(|(i, _)| looked(i) && !refused.contains(i));
        let each = |(i, requests): (&u32, &Waiting)| {
            let index = *i;
            requests.clone().into_iter().map(move |request| (index, request))
        };
        let held: Vec<_> = waits.flat_map(each).collect();
        if counts {
            push.uncounted.remove(&from);
        } else {
            let waited = held.iter().map(|(index, _)| *index);
            push.uncounted.entry(from).or_default().extend(waited);
        }
        let sent = (push.tries == 0 && *scope == Scope::All).then_some(push.sent);
        if let Some(missing) = push.missing.get_mut(&from) {
            let still = |i: &u32| !looked(i) || lacking.contains(i);
            let left: BTreeSet<u32> = match missing {
                Missing::All if some.is_none() => {
                    lacking.iter().copied().filter(|i| all.contains(i)).collect()
                }
                Missing::All => all.filter(still).collect(),
                Missing::Some(some) => some.iter().copied().filter(still).collect(),
            };
            if left.is_empty() {
                push.missing.remove(&from);
            } else {
                *missing = Missing::Some(left);
            }
            if push.missing.is_empty() {
                self.drop_if_done(id);
            }
        }
        Acked { held, sent }
    }

    /// A request needs no more answers about an entry.
    pub(super) fn done_waiting(&mut self, (id, index): (u64, u32), request: RequestId) {
        let Some(push) = self.open.get_mut(&id) else { return };
        let Some(waiting) = push.waiting.get_mut(&index) else { return };
        waiting.retain(|other| *other != request);
        if waiting.is_empty() {
            push.waiting.remove(&index);
        }
        if push.waiting.is_empty() && !push.kept {
            self.idle.insert(id);
        }
        self.drop_if_done(id);
    }

    fn drop_if_done(&mut self, id: u64) {
        let done = |push: &Push| push.missing.is_empty() && push.waiting.is_empty();
        if self.open.get(&id).is_some_and(done) {
            self.drop(id);
        }
    }

    /// The next resend.
    pub(super) fn due(&self) -> Option<Instant> {
        self.resends.first().map(|(at, _)| *at)
    }

    /// Pushes whose time has come, each with who has not acknowledged what. Those that nobody
    /// waits for and that were resent often enough are dropped.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        patience: impl Fn(u32) -> std::time::Duration,
    ) -> Vec<(u64, BTreeMap<ReplicaId, Vec<u32>>)> {
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.resends.first() {
            if at > now {
                break;
            }
            self.resends.remove(&(at, id));
            let Some(push) = self.open.get_mut(&id) else { continue };
            if push.waiting.is_empty() && !push.kept && push.tries >= IDLE_TRIES {
                self.give_up(now, id);
                continue;
            }
            push.tries += 1;
            push.resend = now + patience(push.tries);
            self.resends.insert((push.resend, id));
            due.push((id, push.unacked()));
        }
        due
    }

    /// Everything that a peer has not acknowledged.
    pub(super) fn unacked_by(&self, peer: ReplicaId) -> Vec<(u64, Vec<u32>)> {
        let of =
            |(id, push): (&u64, &Push)| push.unacked().remove(&peer).map(|entries| (*id, entries));
        self.open.iter().filter_map(of).collect()
    }

    /// Everything that somebody waits for goes to all of `peers` again: an epoch was installed
    /// and counting starts anew.
    pub(super) fn restart(&mut self, now: Instant, peers: &BTreeSet<ReplicaId>) {
        for (id, push) in self.open.iter_mut().filter(|(_, push)| !push.waiting.is_empty()) {
            self.resends.remove(&(push.resend, *id));
            push.missing = peers.iter().map(|&peer| (peer, Missing::All)).collect();
            push.uncounted.clear();
            push.resend = now;
            push.tries = 1;
            self.resends.insert((now, *id));
        }
    }

    /// Forgets a peer that was removed.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.left_behind.remove(&peer);
        let ids: Vec<u64> = self.open.keys().copied().collect();
        for id in ids {
            let Some(push) = self.open.get_mut(&id) else { continue };
            push.uncounted.remove(&peer);
            if push.missing.remove(&peer).is_some()
                && push.missing.is_empty()
                && push.waiting.is_empty()
            {
                self.drop(id);
            }
        }
    }

    /// The pushes that are under way now, kept until they are delivered: for a flush.
    pub(super) fn keep_all(&mut self) -> BTreeSet<u64> {
        let under_way = self.open.iter_mut().filter(|(_, push)| !push.missing.is_empty());
        let keep = |(id, push): (&u64, &mut Push)| {
            push.kept = true;
            *id
        };
        let kept = under_way.map(keep).collect();
        self.idle.retain(|id| !BTreeSet::contains(&kept, id));
        kept
    }

    /// Nobody flushes any more: what was kept for that may be left to anti-entropy again.
    pub(super) fn release(&mut self) {
        for (id, push) in self.open.iter_mut().filter(|(_, push)| push.kept) {
            push.kept = false;
            if push.waiting.is_empty() {
                self.idle.insert(*id);
            }
        }
    }

    /// Peers that may lack something which was left to anti-entropy.
    pub(super) fn left_behind(&self) -> BTreeSet<ReplicaId> {
        self.left_behind.keys().copied().collect()
    }

    /// A peer was found equal to what this replica held at `then`.
    pub(super) fn caught_up(&mut self, peer: ReplicaId, then: Instant) {
        if self.left_behind.get(&peer).is_some_and(|since| *since <= then) {
            self.left_behind.remove(&peer);
        }
    }

    /// Leaves a push to anti-entropy.
    fn give_up(&mut self, now: Instant, id: u64) {
        if let Some(push) = self.open.get(&id) {
            self.left_behind.extend(push.missing.keys().map(|peer| (*peer, now)));
        }
        self.drop(id);
    }

    /// Whether somebody does not hold all of a push yet.
    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|push| !push.missing.is_empty())
    }
}

impl Push {
    /// About its size, in bytes.
    fn len(&self) -> usize {
        self.entries.iter().map(Entry::len).sum()
    }

    /// What is to be sent again, and to whom.
    fn unacked(&self) -> BTreeMap<ReplicaId, Vec<u32>> {
        let all = || (0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)).collect();
        let of = |missing: &Missing| match missing {
            Missing::All => all(),
            Missing::Some(some) => some.clone(),
        };
        let mut unacked: BTreeMap<ReplicaId, BTreeSet<u32>> =
            self.missing.iter().map(|(peer, missing)| (*peer, of(missing))).collect();
        for (peer, held) in &self.uncounted {
            let waited: Vec<u32> =
                held.iter().copied().filter(|index| self.waiting.contains_key(index)).collect();
            if !waited.is_empty() {
                unacked.entry(*peer).or_default().extend(waited);
            }
        }
        let listed = |(peer, some): (_, BTreeSet<u32>)| (peer, some.into_iter().collect());
        unacked.into_iter().map(listed).collect()
    }
}

/// The guard of an entry that a push carries.
pub(super) fn guard_of(group: Option<WireGuard>, term: Option<Term>) -> Option<WireGuard> {
    group.map(|guard| WireGuard { term, ..guard })
}
