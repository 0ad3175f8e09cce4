//! Pushes: every change is sent to the peers at the end of its batch and resent until they
//! acknowledge it, or until no request waits for it and it is left to anti-entropy.
//! [`super::retransmitter`] decides when to resend.
//!
//! The updates of one batch are joined per key and cut into messages once, for all peers. An
//! acknowledgement means that the peer's context contains the dots
//! (docs/protocol/replication.md#acknowledge-what-the-context-contains). A peer that lacks
//! something that a delta builds on gets a repair at once. A change that relies on more than its
//! own dots is pushed with a probe for everything held here. Consistency levels are handled in
//! [`super::write`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smallvec::SmallVec;

use super::batch::{BatchedChange, ChangeBatch, PushWaiters};
use super::pace::RoundTrips;
use super::request::RequestId;
use super::retransmitter::SENDINGS;
use super::retransmitters::Retransmitters;
use super::store::SETTLES_AFTER;
use super::wire::{AckScope, Entries, Entry, WireGuard};
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::types::Term;
use crate::types::delta::Delta;

/// Maximum number of open pushes while some of them are unawaited. Beyond, the oldest unawaited one
/// is left to anti-entropy
/// (docs/protocol/replication.md#unawaited-pushes-are-left-to-anti-entropy). The bound is applied
/// only when a push is opened, not when a push becomes unawaited.
const IDLE_MAX: usize = 4_096;

/// Total bytes of open pushes above which the oldest unawaited ones are left to anti-entropy, when
/// a push is opened.
const IDLE_BYTES_MAX: usize = 64 << 20;

/// Number of resends of an unawaited push to a peer after which this push is left to anti-entropy
/// for that peer instead of a further resend. Also the number of unanswered questions to a silent
/// peer after which all unawaited pushes that it lacks are.
const IDLE_TRIES: u32 = 3;

/// Delay before a peer whose answer did not count is asked again, if nothing was ever sent to it.
const ASK_FIRST: Duration = Duration::from_millis(100);

/// The content that other replicas must hold before a waiting request counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckRequirement {
    /// The delta of the change.
    Delta,
    /// Everything that this replica holds of the key. Removals need this, because they may rest on
    /// earlier changes that the delta does not contain
    /// (docs/protocol/replication.md#leaning-changes-await-everything).
    All,
}

/// The entries of a push that a peer has not acknowledged.
#[derive(Clone, Debug, PartialEq)]
enum MissingEntries {
    All,
    Some(BTreeSet<u32>),
}

/// An open push: some peer lacks an entry of it, or a request waits for one. It is *awaited* while
/// a request waits, *kept* while a flush waits for it, and *unawaited* if neither is so. A peer
/// *holds* an entry once it has acknowledged it, also by an answer that does not count.
///
/// A push ends in one of two ways. It is *closed* when all peers hold it and no request waits, even
/// if it is kept. Or it is *left to anti-entropy*, which may happen at any time to an unawaited
/// push only, for one peer or for all that lack it.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) entries: Entries,
    pub(super) waiting: PushWaiters,
    missing: SmallVec<[(ReplicaId, MissingEntries); 4]>, // ≤ peers, each once
    /// Entries that a peer holds but acknowledged without counting (it was sealed, or in another
    /// configuration). The peer is asked again while a request waits for them.
    uncounted: BTreeMap<ReplicaId, BTreeSet<u32>>, // ≤ peers
    ask: Option<Instant>, // when these peers are asked again, all at one time
    asked: u32,           // how often they were; stays when an epoch is installed
    kept: bool,           // a flush waits for it: not left to anti-entropy
    bytes: usize,         // of its entries
}

/// Entries of a push that must be sent to a peer again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resend {
    pub(super) push: u64,
    pub(super) to: ReplicaId,
    pub(super) indices: Vec<u32>,
    /// The push and sending number for the message, see [`name`].
    pub(super) name: u64,
}

/// Combines the numbers of a push and of its sending, which must be below [`SENDINGS`]. The message
/// carries the result, and the acknowledgement returns it.
pub(super) const fn name(push: u64, sending: u64) -> u64 {
    push.wrapping_mul(SENDINGS) + sending
}

/// The push number in a [`name`]; 0, which is no push, in the name 0.
pub(super) const fn push_of(name: u64) -> u64 {
    name / SENDINGS
}

/// Whether a [`name`] means the first sending of a push.
pub(super) const fn is_first(name: u64) -> bool {
    name.is_multiple_of(SENDINGS)
}

/// The [`name`] of a sending of the same push that measures no round trip, for answers that were
/// delayed on purpose.
pub(super) const fn later_than_measured(name: u64) -> u64 {
    self::name(push_of(name), SENDINGS - 1)
}

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckContent<'a> {
    /// Entries that the answer is about; it tells nothing of the others.
    pub(super) scope: &'a AckScope,
    /// Entries that were refused, for whatever reason.
    pub(super) refused: &'a BTreeSet<u32>,
    /// The refused entries for which a repair is in flight. They stay missing at the peer.
    pub(super) lacking: &'a BTreeSet<u32>,
    /// Whether the peer was eligible when it answered, and its configuration is the one installed
    /// here.
    pub(super) counts: bool,
}

/// The result of processing an acknowledgement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AckResult {
    /// Awaited entries that the peer holds by this answer, with each request that waits for them;
    /// also if the answer does not count, and again for a repeated answer.
    pub(super) held: Vec<(u32, RequestId)>,
    /// The round-trip time, if the answer identifies its sending.
    pub(super) took: Option<Duration>,
}

/// The open pushes, and the changes of the present batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Pushes {
    next: u64,
    fresh: ChangeBatch,
    fresh_since: Option<Instant>,
    /// By number, oldest first. After each opening ≤ `IDLE_MAX` and `IDLE_BYTES_MAX`, or only
    /// awaited and kept ones.
    open: BTreeMap<u64, Push>,
    idle: BTreeSet<u64>, // the unawaited ones of `open`
    retransmitters: Retransmitters,
    asks: BTreeSet<(Instant, u64)>, // when pushes with uncounted entries are asked again
    /// Peers that may lack something that was left to anti-entropy, and when the latest of it was.
    left_behind: BTreeMap<ReplicaId, Instant>, // ≤ peers
    bytes: usize,                   // of the entries of open pushes
}

impl Pushes {
    /// Adds a change to the present batch, with the request that waits for it, if any. Without a
    /// delta only the request is added. It makes the batch due at once, also a deferred one. The
    /// caller must have checked that it [can be joined](Self::has_other) with the batch.
    pub(super) fn add(
        &mut self,
        now: Instant,
        key: &KeyName,
        delta: Option<&Delta>,
        guard: Option<Term>,
        waiting: Option<(RequestId, AckRequirement)>,
    ) {
        self.fresh_since.get_or_insert(now);
        self.fresh.add(key, delta, guard, waiting);
    }

    /// Whether the batch holds a change of this key, or a request about it, under another term
    /// (`None` counts as a term). The two cannot be joined.
    pub(super) fn has_other(&self, key: &KeyName, term: Option<Term>) -> bool {
        self.fresh.has_other(key, term)
    }

    /// When the first change of the present batch was added; `None` if there is none, or the batch
    /// was deferred after it.
    pub(super) const fn fresh_since(&self) -> Option<Instant> {
        self.fresh_since
    }

    /// Defers the batch, because this node is not a member yet: the changes are kept until
    /// [`take_up`](Self::take_up) or the next [`add`](Self::add), after which the caller defers all
    /// of them again if it must.
    pub(super) const fn put_off(&mut self) {
        self.fresh_since = None;
    }

    /// Resumes deferred changes: they are pushed at the end of the present batch. Does nothing
    /// without any.
    pub(super) fn take_up(&mut self, now: Instant) {
        if !self.fresh.is_empty() {
            self.fresh_since.get_or_insert(now);
        }
    }

    /// Takes all changes of the batch, also deferred ones, in the store's order of keys.
    pub(super) fn take_fresh(&mut self) -> Vec<(KeyName, BatchedChange)> {
        self.fresh_since = None;
        self.fresh.take()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a push to `peers` and returns its number, which is above 0. Without peers a request
    /// must wait for it, or it is never closed. Records that it is sent, but sends nothing. Above
    /// the bounds the oldest unawaited pushes are left to anti-entropy, even this one.
    pub(super) fn open(
        &mut self,
        now: Instant,
        entries: Entries,
        waiting: PushWaiters,
        peers: &BTreeSet<ReplicaId>,
    ) -> u64 {
        self.next += 1;
        for peer in peers {
            self.retransmitters.to(*peer).sent(self.next, now);
        }
        let missing = peers.iter().map(|&peer| (peer, MissingEntries::All)).collect();
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

    /// Leaves the oldest unawaited pushes to anti-entropy until the bounds are met, or none is
    /// left: pushes that a request or a flush waits for are not bounded.
    fn shed(&mut self, now: Instant) {
        while self.open.len() > IDLE_MAX || self.bytes > IDLE_BYTES_MAX {
            let Some(oldest) = self.idle.first().copied() else { return };
            self.give_up(now, oldest);
        }
    }

    /// Removes a push with all its timers and retransmission state, awaited or not; does nothing if
    /// it is not open. The peers that lack it are not recorded as left behind.
    fn drop(&mut self, id: u64) {
        self.idle.remove(&id);
        if let Some(push) = self.open.remove(&id) {
            self.bytes -= push.bytes;
            for (peer, _) in &push.missing {
                if let Some(retransmitter) = self.retransmitters.get_mut(*peer) {
                    retransmitter.done(id);
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

    /// Processes an acknowledgement of a sending: `from` holds all entries in its scope except for
    /// the refused ones. Refused entries are not sent again by themselves; only those in `lacking`
    /// stay missing. A push with a waiting request stays open even if all peers hold it, because
    /// counting starts anew if an epoch is installed; any other is closed once all peers hold it.
    ///
    /// If the answer does not count, the peer is asked again later for the awaited entries; an
    /// answer that counts ends that for its scope. If the push is not open, the result is empty,
    /// but the peer still counts as one that answers. The caller counts the peer for the requests,
    /// and removes those that end with [`done_waiting`](Self::done_waiting).
    pub(super) fn acked(
        &mut self,
        now: Instant,
        sending: u64,
        from: ReplicaId,
        told: AckContent<'_>,
    ) -> AckResult {
        let AckContent { scope, refused, lacking, counts } = told;
        let (id, mut retransmitter) = (push_of(sending), self.retransmitters.get_mut(from));
        let took = retransmitter
            .as_mut()
            .and_then(|retransmitter| retransmitter.answered(id, sending % SENDINGS, now));
        let Some(push) = self.open.get_mut(&id) else { return AckResult::default() };
        let all = 0..u32::try_from(push.entries.len()).unwrap_or(u32::MAX);
        let some: Option<BTreeSet<u32>> = match scope {
            AckScope::All => None,
            AckScope::Only(some) => Some(some.iter().copied().collect()),
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
                let at = now
                    + retransmitter
                        .as_ref()
                        .map_or(ASK_FIRST, |retransmitter| retransmitter.patience(push.asked));
                push.ask = Some(at);
                self.asks.insert((at, id));
            }
            push.uncounted.entry(from).or_default().extend(waited);
        }
        if let Some(at) = push.missing.iter().position(|(peer, _)| *peer == from) {
            let missing = &mut push.missing[at].1;
            let still = |i: &u32| !looked(i) || lacking.contains(i);
            let left: BTreeSet<u32> = match missing {
                MissingEntries::All if some.is_none() => {
                    lacking.iter().copied().filter(|i| all.contains(i)).collect()
                }
                MissingEntries::All => all.filter(still).collect(),
                MissingEntries::Some(some) => some.iter().copied().filter(still).collect(),
            };
            if left.is_empty() {
                push.missing.swap_remove(at);
                retransmitter.into_iter().for_each(|retransmitter| retransmitter.done(id));
            } else {
                *missing = MissingEntries::Some(left);
            }
            if push.missing.is_empty() {
                self.drop_if_done(id);
            }
        }
        AckResult { held, took }
    }

    /// Records that a request no longer waits for an entry. Without any waiting request the push is
    /// closed if all peers hold it; otherwise it is unawaited unless a flush keeps it. Does nothing
    /// if the push is not open. The bounds are not applied here.
    pub(super) fn done_waiting(&mut self, (id, index): (u64, u32), request: RequestId) {
        let Some(push) = self.open.get_mut(&id) else { return };
        push.waiting.remove(index, request);
        if push.waiting.is_empty() && !push.kept {
            self.idle.insert(id);
        }
        self.drop_if_done(id);
    }

    /// Closes a push that no peer lacks and no request waits for, even if a flush keeps it.
    fn drop_if_done(&mut self, id: u64) {
        let done = |push: &Push| push.missing.is_empty() && push.waiting.is_empty();
        if self.open.get(&id).is_some_and(done) {
            self.drop(id);
        }
    }

    /// When [`take_due`](Self::take_due) has something to do; `None` if no peer lacks anything and
    /// none must be asked again.
    pub(super) fn due(&self) -> Option<Instant> {
        let asks = self.asks.first().map(|(at, _)| *at);
        self.retransmitters.due().into_iter().chain(asks).min()
    }

    /// Returns the entries that must be resent now, and sets the next deadlines; the caller sends
    /// them. Unawaited pushes are left to anti-entropy: one that a peer has not acknowledged after
    /// [`IDLE_TRIES`] resends, and all that it lacks after as many unanswered questions. Awaited
    /// and kept ones are resent without a limit. `trips` is only for peers that are asked again.
    pub(super) fn take_due(&mut self, now: Instant, trips: &RoundTrips) -> Vec<Resend> {
        let mut resends = Vec::new();
        if self.due().is_none_or(|at| at > now) {
            return resends;
        }
        for to in self.retransmitters.late(now) {
            let Some(retransmitter) = self.retransmitters.get_mut(to) else { continue };
            let due = retransmitter.take_due(now);
            let mut again = due.pushes;
            if due.unanswered > IDLE_TRIES {
                let owed = retransmitter.owed();
                owed.iter().for_each(|id| self.give_up_if_idle(now, *id, to));
                // The question that is due uses the oldest push that remains, if any.
                let lacks = |id: &u64| self.open.get(id).is_some_and(|push| push.is_owed(to));
                let first = owed.into_iter().find(lacks);
                again = first.filter(|_| !again.is_empty()).into_iter().collect();
            }
            for id in again {
                let sent = self
                    .retransmitters
                    .get_mut(to)
                    .map(|retransmitter| retransmitter.sent_again(id, now));
                if sent.is_some_and(|number| number > u64::from(IDLE_TRIES)) {
                    self.give_up_if_idle(now, id, to);
                }
                let lacks = |push: &Push| push.unacked(to);
                if let (Some(number), Some(indices)) = (sent, self.open.get(&id).and_then(lacks)) {
                    resends.push(Resend { push: id, to, indices, name: name(id, number) });
                } else if let Some(retransmitter) = self.retransmitters.get_mut(to) {
                    retransmitter.done(id);
                }
            }
        }
        self.ask_again(now, trips, &mut resends);
        resends
    }

    /// Adds to `resends` the awaited entries of peers whose answers did not count, with growing
    /// intervals per push. These sendings measure no round trip. If no request waits for such an
    /// entry now, the push is not asked about again until another answer does not count.
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

    /// Resends everything that a peer has not acknowledged, or acknowledged without counting while
    /// a request waits for it, because a new link came up and messages may have been lost. Leaves
    /// nothing to anti-entropy, whatever the number of resends. Returns nothing for a peer to which
    /// nothing was ever sent.
    pub(super) fn renew(&mut self, now: Instant, peer: ReplicaId) -> Vec<Resend> {
        let Some(retransmitter) = self.retransmitters.get_mut(peer) else { return Vec::new() };
        retransmitter.renewed();
        let mut resends = Vec::new();
        for (id, push) in &self.open {
            let Some(indices) = push.unacked(peer) else { continue };
            let number =
                if push.is_owed(peer) { retransmitter.sent_again(*id, now) } else { SENDINGS - 1 };
            resends.push(Resend { push: *id, to: peer, indices, name: name(*id, number) });
        }
        resends
    }

    /// Records that part of a push is sent to a peer again, and returns the [`name`] of that
    /// sending. If the peer lacks nothing of it, or it is not open, the sending is not recorded and
    /// measures no round trip.
    pub(super) fn sent_again(&mut self, now: Instant, id: u64, to: ReplicaId) -> u64 {
        let owed = self.open.get(&id).is_some_and(|push| push.is_owed(to));
        let retransmitter = self.retransmitters.get_mut(to).filter(|_| owed);
        name(
            id,
            retransmitter.map_or(SENDINGS - 1, |retransmitter| retransmitter.sent_again(id, now)),
        )
    }

    /// Resends every awaited push to `peers`, or to `everyone` if one of its requests waits for
    /// all, also to those that have acknowledged it. Called when an epoch was installed, because
    /// counting starts anew (docs/protocol/replication.md#acknowledgements-count-in-one-epoch).
    /// Every receiver then counts as lacking all of it. For peers that lack the push and are no
    /// receivers now it is left to anti-entropy, although it is awaited. Other pushes are
    /// untouched.
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
                self.retransmitters.to(peer).done(*id);
                self.left_behind.insert(peer, now);
            }
            push.uncounted.clear();
            for &to in peers {
                push.missing.push((to, MissingEntries::All));
                let number = self.retransmitters.to(to).sent_again(*id, now);
                let indices = push.all();
                resends.push(Resend { push: *id, to, indices, name: name(*id, number) });
            }
        }
        resends
    }

    /// Drops the state of a removed peer, which is then not left behind either. Pushes that only
    /// this peer lacked are closed if no request waits for them. The caller checks the flushes.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.left_behind.remove(&peer);
        self.retransmitters.remove(peer);
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

    /// Marks the pushes that some peer lacks as kept, for a flush: they are not left to
    /// anti-entropy. Returns their numbers, with those that an earlier flush keeps. Later pushes
    /// are not marked.
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

    /// Clears the marks of [`keep_all`](Self::keep_all) on all pushes; the caller has checked that
    /// no flush is open. Those that no request waits for are unawaited then. The bounds are not
    /// applied here.
    pub(super) fn release(&mut self) {
        for (id, push) in self.open.iter_mut().filter(|(_, push)| push.kept) {
            push.kept = false;
            if push.waiting.is_empty() {
                self.idle.insert(*id);
            }
        }
    }

    /// The peers that may lack something that was left to anti-entropy.
    pub(super) fn left_behind(&self) -> BTreeSet<ReplicaId> {
        self.left_behind.keys().copied().collect()
    }

    /// Records that a peer was found equal to the state of this replica at `then`, apart from
    /// changes that were not in the sums yet. Returns whether the peer has everything that was left
    /// to anti-entropy, also if nothing was; it is then no longer left behind. `false`, and it
    /// stays left behind, if something was left later than [`SETTLES_AFTER`] before `then`.
    pub(super) fn caught_up(&mut self, peer: ReplicaId, then: Instant) -> bool {
        let since = self.left_behind.get(&peer);
        if since.is_some_and(|since| *since + SETTLES_AFTER > then) {
            return false;
        }
        self.left_behind.remove(&peer);
        true
    }

    /// Leaves a push to anti-entropy, for all peers that lack it. The caller has checked that it is
    /// unawaited.
    fn give_up(&mut self, now: Instant, id: u64) {
        if let Some(push) = self.open.get(&id) {
            self.left_behind.extend(push.missing.iter().map(|(peer, _)| (*peer, now)));
        }
        self.drop(id);
    }

    /// Leaves to anti-entropy the part of a push that one peer lacks, if the push is open and
    /// unawaited; otherwise does nothing. Closes it if no other peer lacks it.
    fn give_up_if_idle(&mut self, now: Instant, id: u64, peer: ReplicaId) {
        let idle = |push: &&mut Push| push.waiting.is_empty() && !push.kept;
        let Some(push) = self.open.get_mut(&id).filter(idle) else { return };
        push.missing.retain(|(other, _)| *other != peer);
        self.left_behind.insert(peer, now);
        if let Some(retransmitter) = self.retransmitters.get_mut(peer) {
            retransmitter.done(id);
        }
        self.drop_if_done(id);
    }

    /// The peers that do not hold all entries of these pushes. Pushes that are not open count as
    /// held.
    pub(super) fn lacking(&self, ids: &BTreeSet<u64>) -> BTreeSet<ReplicaId> {
        let open = ids.iter().filter_map(|id| self.open.get(id));
        open.flat_map(|push| push.missing.iter().map(|(peer, _)| *peer)).collect()
    }

    /// Whether a push is open and some peer does not hold all its entries.
    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.open.get(&id).is_some_and(|push| !push.missing.is_empty())
    }
}

impl Push {
    fn all(&self) -> Vec<u32> {
        (0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)).collect()
    }

    /// Whether a peer does not hold all entries.
    fn is_owed(&self, peer: ReplicaId) -> bool {
        self.missing.iter().any(|(other, _)| *other == peer)
    }

    /// The awaited entries that a peer holds but did not count; `None` if there are none.
    fn waited_of(&self, peer: ReplicaId) -> Option<Vec<u32>> {
        let held = self.uncounted.get(&peer)?.iter().copied();
        let waited: Vec<u32> = held.filter(|index| !self.waiting.of(*index).is_empty()).collect();
        (!waited.is_empty()).then_some(waited)
    }

    /// The entries to resend to a peer: those not acknowledged, and those not counted while a
    /// request waits for them. `None` if there are none.
    fn unacked(&self, peer: ReplicaId) -> Option<Vec<u32>> {
        let waited = self.waited_of(peer);
        match self.missing.iter().find(|(other, _)| *other == peer) {
            None => waited,
            Some((_, MissingEntries::All)) => Some(self.all()),
            Some((_, MissingEntries::Some(some))) => {
                let mut all = some.clone();
                all.extend(waited.into_iter().flatten());
                Some(all.into_iter().collect())
            }
        }
    }
}

/// The guard of a pushed entry: the group of the key with the term of the change. Without a group
/// the term is dropped.
pub(super) fn guard_of(group: Option<WireGuard>, term: Option<Term>) -> Option<WireGuard> {
    group.map(|guard| WireGuard { term, ..guard })
}
