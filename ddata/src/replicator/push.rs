//! Pushes: every change goes to every replica at once, is resent until it is acknowledged, and is
//! left to anti-entropy when nobody waits for it any more. When it is resent, [`super::line`] says.
//!
//! The updates of one batch are joined per key and cut into messages once, for all peers. An
//! acknowledgement says "my context contains these dots"; who lacks what a delta builds on gets
//! a repair at once. With a change that leans on more than its dots goes a question for all that is
//! here. Knows no consistency level: [`super::write`] does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smallvec::SmallVec;

use super::batch::{Awaited, Batch, Fresh};
use super::line::SENDINGS;
use super::lines::Lines;
use super::pace::RoundTrips;
use super::request::RequestId;
use super::store::SETTLES_AFTER;
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

/// Resends of a push that nobody waits for, and questions to a silent peer before what it lacks
/// is left to anti-entropy.
const IDLE_TRIES: u32 = 3;

/// When a peer is asked again that could not count, before any round trip was measured.
const ASK_FIRST: Duration = Duration::from_millis(100);

/// What others must hold before who waits is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// The change that was made.
    Delta,
    /// All that is here of the key: who holds the change need not hold what was before it.
    All,
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
    pub(super) waiting: Awaited,
    missing: SmallVec<[(ReplicaId, Missing); 4]>, // ≤ peers, each once
    /// Who holds an entry and could not count it (sealed, or in another configuration): asked
    /// again while somebody waits for it.
    uncounted: BTreeMap<ReplicaId, BTreeSet<u32>>, // ≤ peers
    ask: Option<Instant>,                         // when
    asked: u32,
    kept: bool, // somebody flushes: not left to anti-entropy
    bytes: usize,
}

/// Something that goes to a peer again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resend {
    pub(super) push: u64,
    pub(super) to: ReplicaId,
    pub(super) indices: Vec<u32>,
    /// What this sending is called in its message.
    pub(super) name: u64,
}

/// What a sending of a push is called in its message and comes back in the acknowledgement.
pub(super) const fn name(push: u64, sending: u64) -> u64 {
    push.wrapping_mul(SENDINGS) + sending
}

/// The push of such a name.
pub(super) const fn push_of(name: u64) -> u64 {
    name / SENDINGS
}

/// Whether this names the first sending of a push.
pub(super) const fn is_first(name: u64) -> bool {
    name.is_multiple_of(SENDINGS)
}

/// The same push by the name of a sending that measures no round trip: the answer was put off.
pub(super) const fn later_than_measured(name: u64) -> u64 {
    self::name(push_of(name), SENDINGS - 1)
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
    /// How long the answer took, if it says which sending it answers.
    pub(super) took: Option<Duration>,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Pushes {
    next: u64,
    fresh: Batch,
    fresh_since: Option<Instant>,
    open: BTreeMap<u64, Push>, // ≤ IDLE_MAX and IDLE_BYTES_MAX, + what requests wait for
    idle: BTreeSet<u64>,       // those that nobody waits for or flushes ≤ IDLE_MAX
    lines: Lines,
    asks: BTreeSet<(Instant, u64)>, // of pushes that somebody could not count
    /// Who may lack something that was left to anti-entropy, and since when.
    left_behind: BTreeMap<ReplicaId, Instant>, // ≤ peers
    bytes: usize,                   // of the entries of open pushes
}

impl Pushes {
    /// Gathers a change of this batch, and who waits for others to hold it, or all that is here.
    /// The caller has asked whether it [can be joined](Self::has_other) with what waits.
    pub(super) fn add(
        &mut self,
        now: Instant,
        key: &KeyName,
        delta: Option<&Delta>,
        guard: Option<Term>,
        waiting: Option<(RequestId, Awaits)>,
    ) {
        self.fresh_since.get_or_insert(now);
        self.fresh.add(key, delta, guard, waiting);
    }

    /// Whether something of this key waits for the end of its batch under another term: that
    /// can't be joined with this.
    pub(super) fn has_other(&self, key: &KeyName, term: Option<Term>) -> bool {
        self.fresh.has_other(key, term)
    }

    /// Since when changes wait for the end of their batch.
    pub(super) const fn fresh_since(&self) -> Option<Instant> {
        self.fresh_since
    }

    /// There is nobody to push to yet: what was gathered stays until [`take_up`](Self::take_up).
    pub(super) const fn put_off(&mut self) {
        self.fresh_since = None;
    }

    /// What was put off goes with the end of this batch.
    pub(super) fn take_up(&mut self, now: Instant) {
        if !self.fresh.is_empty() {
            self.fresh_since.get_or_insert(now);
        }
    }

    pub(super) fn take_fresh(&mut self) -> Vec<(KeyName, Fresh)> {
        self.fresh_since = None;
        self.fresh.take()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a push to `peers`; its number.
    pub(super) fn open(
        &mut self,
        now: Instant,
        entries: Entries,
        waiting: Awaited,
        peers: &BTreeSet<ReplicaId>,
    ) -> u64 {
        self.next += 1;
        for peer in peers {
            self.lines.to(*peer).sent(self.next, now);
        }
        let missing = peers.iter().map(|&peer| (peer, Missing::All)).collect();
        let bytes = entries.iter().map(Entry::len).sum();
        let (uncounted, ask, asked, kept) = (BTreeMap::new(), None, 0, false);
        let push = Push { entries, waiting, missing, uncounted, ask, asked, kept, bytes };
        self.bytes += bytes;
        if push.waiting.is_empty() {
            self.idle.insert(self.next);
        }
        self.open.insert(self.next, push);
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
            self.bytes -= push.bytes;
            for (peer, _) in &push.missing {
                if let Some(line) = self.lines.get_mut(*peer) {
                    line.done(id);
                }
            }
            if let Some(ask) = push.ask {
                self.asks.remove(&(ask, id));
            }
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Push> {
        self.open.get(&id)
    }

    /// Takes an acknowledgement of a sending: everything in its scope but what was refused is held
    /// by `from`, what is lacking still has to be. A push that somebody waits for stays open though
    /// all hold it: an epoch may be installed, and counting starts anew.
    pub(super) fn acked(
        &mut self,
        now: Instant,
        sending: u64,
        from: ReplicaId,
        told: Told<'_>,
    ) -> Acked {
        let Told { scope, refused, lacking, counts } = told;
        let (id, mut line) = (push_of(sending), self.lines.get_mut(from));
        let took = line.as_mut().and_then(|line| line.answered(id, sending % SENDINGS, now));
        let Some(push) = self.open.get_mut(&id) else { return Acked::default() };
        let all = 0..u32::try_from(push.entries.len()).unwrap_or(u32::MAX);
        let some: Option<BTreeSet<u32>> = match scope {
            Scope::All => None,
            Scope::Only(some) => Some(some.iter().copied().collect()),
        };
        let looked = |i: &u32| some.as_ref().is_none_or(|some| some.contains(i));
        let mut held = Vec::with_capacity(push.waiting.len());
        if !push.waiting.is_empty() {
            let is_held = |index: &u32| looked(index) && !refused.contains(index);
            held.extend(push.waiting.iter().filter(|(index, _)| is_held(index)));
        }
        if counts {
            push.uncounted.retain(|peer, indices| {
                if *peer == from {
                    indices.retain(|index| !looked(index));
                }
                !indices.is_empty()
            });
        } else {
            let waited: BTreeSet<u32> = held.iter().map(|(index, _)| *index).collect();
            if push.ask.is_none() && !waited.is_empty() {
                let at = now + line.as_ref().map_or(ASK_FIRST, |line| line.patience(push.asked));
                push.ask = Some(at);
                self.asks.insert((at, id));
            }
            push.uncounted.entry(from).or_default().extend(waited);
        }
        if let Some(at) = push.missing.iter().position(|(peer, _)| *peer == from) {
            let missing = &mut push.missing[at].1;
            let still = |i: &u32| !looked(i) || lacking.contains(i);
            let left: BTreeSet<u32> = match missing {
                Missing::All if some.is_none() => {
                    lacking.iter().copied().filter(|i| all.contains(i)).collect()
                }
                Missing::All => all.filter(still).collect(),
                Missing::Some(some) => some.iter().copied().filter(still).collect(),
            };
            if left.is_empty() {
                push.missing.swap_remove(at);
                line.into_iter().for_each(|line| line.done(id));
            } else {
                *missing = Missing::Some(left);
            }
            if push.missing.is_empty() {
                self.drop_if_done(id);
            }
        }
        Acked { held, took }
    }

    /// A request needs no more answers about an entry.
    pub(super) fn done_waiting(&mut self, (id, index): (u64, u32), request: RequestId) {
        let Some(push) = self.open.get_mut(&id) else { return };
        push.waiting.remove(index, request);
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

    /// When something goes again.
    pub(super) fn due(&self) -> Option<Instant> {
        let asks = self.asks.first().map(|(at, _)| *at);
        self.lines.due().into_iter().chain(asks).min()
    }

    /// What goes again now. What nobody waits for and a silent peer lacks is left to anti-entropy.
    pub(super) fn take_due(&mut self, now: Instant, trips: &RoundTrips) -> Vec<Resend> {
        let mut resends = Vec::new();
        if self.due().is_none_or(|at| at > now) {
            return resends;
        }
        for to in self.lines.late(now) {
            let Some(line) = self.lines.get_mut(to) else { continue };
            let due = line.take_due(now);
            let mut again = due.pushes;
            if due.unanswered > IDLE_TRIES {
                let owed = line.owed();
                owed.iter().for_each(|id| self.give_up_if_idle(now, *id, to));
                // The question that is due goes with what somebody waits for, if with anything.
                let lacks = |id: &u64| self.open.get(id).is_some_and(|push| push.is_owed(to));
                let first = owed.into_iter().find(lacks);
                again = first.filter(|_| !again.is_empty()).into_iter().collect();
            }
            for id in again {
                let sent = self.lines.get_mut(to).map(|line| line.sent_again(id, now));
                if sent.is_some_and(|number| number > u64::from(IDLE_TRIES)) {
                    self.give_up_if_idle(now, id, to);
                }
                let lacks = |push: &Push| push.unacked(to);
                if let (Some(number), Some(indices)) = (sent, self.open.get(&id).and_then(lacks)) {
                    resends.push(Resend { push: id, to, indices, name: name(id, number) });
                } else if let Some(line) = self.lines.get_mut(to) {
                    line.done(id);
                }
            }
        }
        self.ask_again(now, trips, &mut resends);
        resends
    }

    /// Asks those again who could not count what they hold.
    fn ask_again(&mut self, now: Instant, trips: &RoundTrips, resends: &mut Vec<Resend>) {
        while let Some(&(at, id)) = self.asks.first() {
            if at > now {
                break;
            }
            self.asks.remove(&(at, id));
            let Some(push) = self.open.get_mut(&id) else { continue };
            push.ask = None;
            let uncounted = push.uncounted.keys();
            let asked = uncounted.filter_map(|to| Some((*to, push.waited_of(*to)?)));
            let asked: Vec<_> = asked.collect();
            if asked.is_empty() {
                continue;
            }
            push.asked += 1;
            let next = now + trips.patience(push.asked);
            push.ask = Some(next);
            self.asks.insert((next, id));
            let name = name(id, SENDINGS - 1);
            let resend = |(to, indices)| Resend { push: id, to, indices, name };
            resends.extend(asked.into_iter().map(resend));
        }
    }

    /// A peer may have lost everything: all that it has not acknowledged.
    pub(super) fn renew(&mut self, now: Instant, peer: ReplicaId) -> Vec<Resend> {
        let Some(line) = self.lines.get_mut(peer) else { return Vec::new() };
        line.renewed();
        let mut resends = Vec::new();
        for (id, push) in &self.open {
            let Some(indices) = push.unacked(peer) else { continue };
            let number = if push.is_owed(peer) { line.sent_again(*id, now) } else { SENDINGS - 1 };
            resends.push(Resend { push: *id, to: peer, indices, name: name(*id, number) });
        }
        resends
    }

    /// Something of a push goes to a peer again; what that sending is called.
    pub(super) fn sent_again(&mut self, now: Instant, id: u64, to: ReplicaId) -> u64 {
        let owed = self.open.get(&id).is_some_and(|push| push.is_owed(to));
        let line = self.lines.get_mut(to).filter(|_| owed);
        name(id, line.map_or(SENDINGS - 1, |line| line.sent_again(id, now)))
    }

    /// Everything that somebody waits for goes to all of `peers` again, or to `everyone` if one of
    /// them waits for all: an epoch was installed and counting starts anew.
    pub(super) fn restart(
        &mut self,
        now: Instant,
        peers: &BTreeSet<ReplicaId>,
        (everyone, waits_for_all): (&BTreeSet<ReplicaId>, impl Fn(RequestId) -> bool),
    ) -> Vec<Resend> {
        let mut resends = Vec::new();
        for (id, push) in self.open.iter_mut().filter(|(_, push)| !push.waiting.is_empty()) {
            let all = push.waiting.iter().any(|(_, id)| waits_for_all(id));
            let peers = if all { everyone } else { peers };
            for (peer, _) in push.missing.drain(..).filter(|(peer, _)| !peers.contains(peer)) {
                self.lines.to(peer).done(*id);
                self.left_behind.insert(peer, now);
            }
            push.uncounted.clear();
            for &to in peers {
                push.missing.push((to, Missing::All));
                let number = self.lines.to(to).sent_again(*id, now);
                let indices = push.all();
                resends.push(Resend { push: *id, to, indices, name: name(*id, number) });
            }
        }
        resends
    }

    /// Forgets a peer that was removed.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.left_behind.remove(&peer);
        self.lines.remove(peer);
        let ids: Vec<u64> = self.open.keys().copied().collect();
        for id in ids {
            let Some(push) = self.open.get_mut(&id) else { continue };
            push.uncounted.remove(&peer);
            let before = push.missing.len();
            push.missing.retain(|(other, _)| *other != peer);
            if push.missing.len() < before {
                self.drop_if_done(id);
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

    /// A peer was found equal to what this replica held at `then`, but for the changes that were
    /// not in its sums yet.
    /// Says whether it lacks nothing now.
    pub(super) fn caught_up(&mut self, peer: ReplicaId, then: Instant) -> bool {
        let since = self.left_behind.get(&peer);
        if since.is_some_and(|since| *since + SETTLES_AFTER > then) {
            return false;
        }
        self.left_behind.remove(&peer);
        true
    }

    /// Leaves a push to anti-entropy.
    fn give_up(&mut self, now: Instant, id: u64) {
        if let Some(push) = self.open.get(&id) {
            self.left_behind.extend(push.missing.iter().map(|(peer, _)| (*peer, now)));
        }
        self.drop(id);
    }

    /// Leaves to anti-entropy what one peer lacks of a push, if nobody waits for it.
    fn give_up_if_idle(&mut self, now: Instant, id: u64, peer: ReplicaId) {
        let idle = |push: &&mut Push| push.waiting.is_empty() && !push.kept;
        let Some(push) = self.open.get_mut(&id).filter(idle) else { return };
        push.missing.retain(|(other, _)| *other != peer);
        self.left_behind.insert(peer, now);
        if let Some(line) = self.lines.get_mut(peer) {
            line.done(id);
        }
        self.drop_if_done(id);
    }

    /// Whether somebody does not hold all of a push yet.
    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|push| !push.missing.is_empty())
    }
}

impl Push {
    fn all(&self) -> Vec<u32> {
        (0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)).collect()
    }

    fn is_owed(&self, peer: ReplicaId) -> bool {
        self.missing.iter().any(|(other, _)| *other == peer)
    }

    /// What a peer holds that somebody waits for, and could not count.
    fn waited_of(&self, peer: ReplicaId) -> Option<Vec<u32>> {
        let held = self.uncounted.get(&peer)?.iter().copied();
        let waited: Vec<u32> = held.filter(|index| !self.waiting.of(*index).is_empty()).collect();
        (!waited.is_empty()).then_some(waited)
    }

    /// What is to be sent to a peer again.
    fn unacked(&self, peer: ReplicaId) -> Option<Vec<u32>> {
        let waited = self.waited_of(peer);
        match self.missing.iter().find(|(other, _)| *other == peer) {
            None => waited,
            Some((_, Missing::All)) => Some(self.all()),
            Some((_, Missing::Some(some))) => {
                let mut all = some.clone();
                all.extend(waited.into_iter().flatten());
                Some(all.into_iter().collect())
            }
        }
    }
}

/// The guard of an entry that a push carries.
pub(super) fn guard_of(group: Option<WireGuard>, term: Option<Term>) -> Option<WireGuard> {
    group.map(|guard| WireGuard { term, ..guard })
}
