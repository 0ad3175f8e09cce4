//! Carries out the orders of the configuration machine (freeze, pull, install), and compares
//! replicas for anti-entropy and for the pulls of a sync.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::anti_entropy::{Comparison, SyncStep};
use super::durability::{PendingSync, WriteCompletion};
use super::epoch::{Epoch, EpochId, EpochInput, EpochOutput, MembershipChange, ProposalOutcome};
use super::fence::is_promise;
use super::port::{LaneClass, Peer, ReplicatorAlarm, ReplicatorOutput};
use super::request::{RequestError, RequestId};
use super::store::{self, EntryMergeResult, Snapshot};
use super::sums::bucket_of;
use super::wire::{At, Body, ENTRIES_MAX, Entry, KeyContext, Query, QueryAnswer};
use super::{Replicator, ReplicatorOutbox, SealedSnapshot};
use crate::causal::CausalContext;
use crate::clock::Now;
use crate::durable::DurableRecord;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;
use crate::key::{Group, KeyName};
use crate::machine::{Machine, Outbox};
use crate::types::Term;

/// Most frames of repairs that one step of a comparison sends, except for those of one bucket.
const FRAMES_PER_STEP: usize = 4;

/// Most ranges of buckets that one answer covers. This release asks for fewer at a time.
const RANGES_MAX: usize = 256;

impl Replicator {
    /// Feeds the configuration machine and carries out its orders until it gives none.
    pub(super) fn drive(&mut self, now: Now, input: EpochInput, out: &mut ReplicatorOutbox) {
        let mut inputs = VecDeque::from([input]);
        let mut orders = Outbox::new();
        while let Some(input) = inputs.pop_front() {
            self.epochs.handle(now, input, &mut orders);
            let batch: Vec<EpochOutput> = orders.drain().collect();
            for order in batch {
                inputs.extend(self.obey(now, order, out));
            }
        }
    }

    /// Proposes a change if `base` is still installed; otherwise reports `Superseded`. Before the
    /// first configuration it is passed on, and the machine refuses it.
    pub(super) fn propose_after(
        &mut self,
        now: Now,
        base: EpochId,
        change: MembershipChange,
        out: &mut ReplicatorOutbox,
    ) {
        match self.epochs.id() {
            Some(by) if by != base => {
                out.push(ReplicatorOutput::Outcome(ProposalOutcome::Superseded { by }));
            }
            _ => self.drive(now, EpochInput::Propose(change), out),
        }
    }

    /// Carries out an order. Returns the input that the machine gets next, if any: the own snapshot
    /// counts as merged without a pull. Votes are persisted only if some keys are durable. A pull
    /// of a synced state ends those from other sources first. `Excluded` is only reported;
    /// [`installed`](Self::installed) ends the requests.
    fn obey(
        &mut self,
        now: Now,
        order: EpochOutput,
        out: &mut ReplicatorOutbox,
    ) -> Option<EpochInput> {
        match order {
            EpochOutput::Send { to, message } => self.send(to, Body::Epoch(message), out),
            EpochOutput::Persist(state) => {
                if self.is_durable() {
                    self.persist_votes(state, out);
                }
            }
            EpochOutput::Freeze(epoch) => self.freeze(epoch),
            EpochOutput::PullSnapshot { epoch, of } if of == self.me => {
                return Some(EpochInput::SnapshotMerged { epoch, of });
            }
            EpochOutput::PullSnapshot { epoch, of } => {
                self.compare_with(now, of, At::Sealed(epoch), out);
            }
            EpochOutput::PullState { epoch, from } => {
                self.anti_entropy.end_all(|_, at| matches!(at, At::Synced(_)));
                self.compare_with(now, from, At::Synced(epoch), out);
            }
            EpochOutput::StopPulls => self.anti_entropy.end_all(|_, at| at != At::Live),
            EpochOutput::Installed(epoch) => self.installed(now, epoch, out),
            EpochOutput::Synced(epoch) => {
                out.push(ReplicatorOutput::Synced(epoch));
                self.count_here(now, out);
            }
            EpochOutput::AskConsent { query, removed, why } => {
                out.push(ReplicatorOutput::AskConsent { query, removed, why });
            }
            EpochOutput::Outcome(outcome) => out.push(ReplicatorOutput::Outcome(outcome)),
            EpochOutput::Excluded(epoch) => out.push(ReplicatorOutput::Excluded(epoch)),
            EpochOutput::StopServing => out.push(ReplicatorOutput::StopServing),
            EpochOutput::Pending(epoch) => out.push(ReplicatorOutput::Pending(epoch)),
            EpochOutput::Declined { from, epoch, why } => {
                self.alarm(now, ReplicatorAlarm::Declined { from, epoch, why }, out);
            }
        }
        None
    }

    /// Takes the snapshot that this replica serves while it is sealed: all data, with all changes
    /// in the sums, and the promised terms. Replaces an older one.
    fn freeze(&mut self, epoch: EpochId) {
        self.store.settle_all();
        let mut snapshot = self.store.live().clone();
        if self.fault_injection.has(ReplicatorFault::SnapshotBeforeLastAck)
            && let Some(before) = self.before_last_ack.take()
        {
            snapshot = before;
        }
        self.sealed_snapshot =
            Some(SealedSnapshot { epoch, snapshot, promises: self.promises.all() });
    }

    /// Adapts to a configuration that the machine has installed. Drops the sealed snapshot,
    /// remembers the members so far as the former ones (unless there were none), adopts the seed of
    /// the sums, ends live comparisons, but not syncs, derives the peers, and reports it.
    ///
    /// An excluded replica then ends its requests with an error, and nothing else follows. Any
    /// other starts the counts of all open requests anew, forgets questions and repairs under way,
    /// and sends the pushes that requests wait for again; a member also pushes the changes that it
    /// made as a joiner. Gossip follows after the busy interval. No key expires during the next two
    /// expiry intervals.
    fn installed(&mut self, now: Now, epoch: Arc<Epoch>, out: &mut ReplicatorOutbox) {
        self.sealed_snapshot = None;
        if !self.roster.is_empty() {
            self.former = std::mem::take(&mut self.roster);
        }
        self.store.reseed(epoch.digest_seed());
        self.anti_entropy.end_all(|_, at| at == At::Live);
        self.know_peers(out);
        let id = epoch.id();
        out.push(ReplicatorOutput::Installed(epoch));
        if self.epochs.is_excluded() {
            return self.end_requests(id, out);
        }
        self.questions.clear();
        self.repairs.clear();
        let mut writes = std::mem::take(&mut self.writes);
        writes.restart(id, |level| self.need(level).ok(), self.fault_injection);
        self.writes = writes;
        if self.epochs.is_member() {
            self.pushes.take_up(now.mono);
        }
        let voters_and_peers = self.push_targets();
        let everyone = (&self.peers, |id| self.writes.wait_for_all(id));
        for resend in self.pushes.restart(now.mono, &voters_and_peers, everyone) {
            self.resend(resend, out);
        }
        self.recount(now, out);
        self.gossip_at = Some(now.mono + self.config.busy_gossip_interval);
        if let Some(interval) = self.expiry_interval() {
            self.expire_at.get_or_insert(now.mono + interval);
            self.own_from = now.mono + 2 * interval;
            self.report_all = true;
        }
    }

    /// Ends all requests with an error: this replica is excluded, so that no answer will count.
    /// Also ends all comparisons, syncs included, and gossip. Subscriptions stay open.
    fn end_requests(&mut self, epoch: EpochId, out: &mut ReplicatorOutbox) {
        let mut ended: Vec<RequestId> = std::mem::take(&mut self.flushes).into_keys().collect();
        for id in self.writes.ids() {
            for place in self.writes.remove(id).into_iter().flat_map(|write| write.pushes) {
                self.pushes.done_waiting(place, id);
            }
            ended.push(id);
        }
        ended.extend(self.reads.take_all().into_iter().map(|(id, _)| id));
        ended.extend(self.fencings.take_all().into_iter().map(|(id, _)| id));
        self.pushes.release();
        self.anti_entropy.end_all(|_, _| true);
        self.gossip_at = None;
        for id in ended {
            Self::reply(id, Err(RequestError::Excluded { epoch }), out);
        }
    }

    /// Starts reads and fencing reads anew, then ends the writes that are complete; the caller has
    /// restarted the counts of the writes.
    fn recount(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        self.restart_reads(now, out);
        self.restart_fences(now, out);
        for id in self.writes.ids() {
            self.check_write(id, out);
        }
    }

    /// This replica may have become eligible: if so, adds its own answers to all open requests, and
    /// ends those that are then complete. Questions that were sent are not repeated, because each
    /// answer is read against its question.
    pub(super) fn count_here(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        self.read_here(now, out);
        self.promise_here(now, out);
        for id in self.writes.ids() {
            self.check_write(id, out);
        }
    }

    /// Replaces the list of nodes that membership knows, and tells it to the configuration machine.
    /// If a peer is new or reachable again, a member of the configuration gossips within the busy
    /// interval; a peer that is reachable again comes first. Then derives the peers, and the
    /// answers that open requests need.
    pub(super) fn members(&mut self, now: Now, peers: Vec<Peer>, out: &mut ReplicatorOutbox) {
        let before = std::mem::take(&mut self.membership);
        self.membership = peers.into_iter().map(|peer| (peer.id, peer)).collect();
        let known = self.membership.values().map(|peer| (peer.id, peer.reachable)).collect();
        self.drive(now, EpochInput::Known(known), out);
        let back =
            |peer: &&Peer| peer.reachable && before.get(&peer.id).is_some_and(|p| !p.reachable);
        let back: Vec<ReplicaId> = self.membership.values().filter(back).map(|p| p.id).collect();
        for id in &back {
            self.contacted.remove(id); // the next round goes to it
        }
        let former_peers = self.peers.clone();
        self.know_peers(out);
        let new: Vec<ReplicaId> = self.peers.difference(&former_peers).copied().collect();
        if self.epochs.is_member() && !(new.is_empty() && back.is_empty()) {
            let soon = now.mono + self.config.busy_gossip_interval;
            self.gossip_at = Some(self.gossip_at.map_or(soon, |at| at.min(soon)));
        }
        self.recompute_needs(now, out);
    }

    /// The members that count for `All` may have changed: recomputes the answers that writes and
    /// reads (not fencing reads) need, and ends those that are complete. A level that can no longer
    /// be met keeps its need.
    fn recompute_needs(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        let mut writes = std::mem::take(&mut self.writes);
        writes.recompute_need(|level| self.need(level).ok());
        self.writes = writes;
        let mut reads = std::mem::take(&mut self.reads);
        reads.recompute_need(|level| self.need(level).ok());
        self.reads = reads;
        for id in self.writes.ids() {
            self.check_write(id, out);
        }
        for id in self.reads.ids() {
            self.check_read(now, id, out);
        }
    }

    /// Derives the peers that get changes, and the members that count for `All`, which include this
    /// replica. Before the first configuration the peers are the nodes of membership. Nodes of
    /// membership that have left the configuration are no peers. Of peers that are gone,
    /// incomplete messages, live comparisons (not syncs), pushes and repairs are dropped; flushes
    /// that waited for them may end.
    fn know_peers(&mut self, out: &mut ReplicatorOutbox) {
        let (members, left) = match self.epochs.installed() {
            Some(epoch) => (epoch.members().to_vec(), epoch.left().iter().copied().collect()),
            None => (Vec::new(), BTreeSet::new()),
        };
        let mut peers: BTreeSet<ReplicaId> = members.iter().copied().collect();
        peers.extend(self.membership.keys().filter(|id| !left.contains(id)));
        peers.remove(&self.me);
        let gone: Vec<ReplicaId> = self.peers.difference(&peers).copied().collect();
        self.peers = peers;
        let stopping = |id: &ReplicaId| self.membership.get(id).is_some_and(|peer| peer.stopping);
        self.electorate = members.iter().copied().filter(|id| !stopping(id)).collect();
        self.roster = members;
        self.contacted.retain(|id, _| self.peers.contains(id));
        for id in gone {
            self.parts.forget(id);
            self.anti_entropy.end_all(|peer, at| peer == id && at == At::Live);
            self.pushes.forget(id);
            self.repairs.forget(id);
        }
        self.check_flushes(out);
    }

    // ── comparisons ──

    /// Begins to compare with a peer: sends the root question. Does nothing if a comparison with
    /// this state of it is under way, or too many are open for a live one. A sync compares with all
    /// changes in the sums, a live comparison without the latest ones.
    pub(super) fn compare_with(
        &mut self,
        now: Now,
        peer: ReplicaId,
        at: At,
        out: &mut ReplicatorOutbox,
    ) {
        if self.anti_entropy.is_open(peer, at) {
            return;
        }
        if at == At::Live && !self.anti_entropy.has_room() {
            return;
        }
        match at {
            At::Live => self.store.settle_due(now.mono),
            _ => self.store.settle_all(),
        }
        let root = Query::Root { sum: self.store.live().sums().root(), seed: self.store.seed() };
        let comparison = Comparison::new(at, root, now.mono, now.mono + self.trips.patience(1));
        let query = comparison.asked().clone();
        let session = self.anti_entropy.begin(peer, comparison);
        self.send(peer, Body::Compare { session, at, query }, out);
    }

    /// Answers a question of a comparison from the state that it asks for; `Gone` if this replica
    /// does not have that state. A root question makes a replica without a configuration adopt its
    /// seed. An answered one counts as equal or different gossip, `Gone` and syncs included.
    ///
    /// A question that [`answer_from`](Self::answer_from) refuses counts as undecodable, raises an
    /// alarm and gets no answer.
    pub(super) fn on_compare(
        &mut self,
        now: Now,
        from: ReplicaId,
        session: u64,
        at: At,
        query: &Query,
        out: &mut ReplicatorOutbox,
    ) {
        self.heard_of(now, from);
        if let Query::Root { seed, .. } = query
            && self.epochs.installed().is_none()
        {
            self.store.reseed(*seed); // a joiner has no configuration with a seed
        }
        self.store.settle_due(now.mono);
        let answer = match at {
            At::Live => self.answer_from(self.store.live(), query, at),
            At::Sealed(epoch) => match &self.sealed_snapshot {
                Some(sealed_snapshot) if sealed_snapshot.epoch == epoch => {
                    self.answer_from(&sealed_snapshot.snapshot, query, at)
                }
                _ => Some(QueryAnswer::Gone),
            },
            At::Synced(epoch) if self.epochs.synced() && self.epochs.id() == Some(epoch) => {
                self.store.settle_all();
                self.answer_from(self.store.live(), query, at)
            }
            At::Synced(_) => Some(QueryAnswer::Gone),
        };
        let Some(answer) = answer else {
            return self.undecodable(now, from, "a context", out);
        };
        if let Query::Root { .. } = query {
            match answer {
                QueryAnswer::Same => self.stats.gossip_equal += 1,
                _ => self.stats.gossip_differed += 1,
            }
        }
        let promises = self.promises_for(at, query);
        let answer = Box::new(answer);
        self.send_as(from, LaneClass::Data, Body::Compared { session, at, answer, promises }, out);
    }

    /// The promised terms, which the first answer about a sealed or synced state carries
    /// (docs/protocol/configurations.md#terms-travel-with-the-snapshot).
    ///
    /// Beside [`QueryAnswer::Gone`] they may belong to another configuration than the question.
    /// That does no harm: this replica has made each of them, a promise holds in every later
    /// configuration, and the receiver only raises its own.
    fn promises_for(&self, at: At, query: &Query) -> Vec<(Group, Term)> {
        match (at, query, &self.sealed_snapshot) {
            (At::Sealed(_), Query::Root { .. }, Some(sealed_snapshot)) => {
                sealed_snapshot.promises.clone()
            }
            (At::Synced(_), Query::Root { .. }, _) => self.promises.all(),
            _ => Vec::new(),
        }
    }

    /// Answers a question from a snapshot. `None` if a context of a wanted key does not decode, or
    /// ranges of buckets overlap or are out of order. Contexts beyond a full answer are not looked
    /// at.
    ///
    /// Sums under another seed count as different. At most 64 tops are answered. Wanted keys are
    /// answered until a frame is full or `max_delta_elements` (at most [`ENTRIES_MAX`]) is reached,
    /// but at least one; a key that gives no repair counts as answered.
    fn answer_from(&self, snapshot: &Snapshot, query: &Query, at: At) -> Option<QueryAnswer> {
        Some(match query {
            Query::Root { sum, seed }
                if (*sum, *seed) == (snapshot.sums().root(), self.store.seed()) =>
            {
                QueryAnswer::Same
            }
            Query::Root { .. } => QueryAnswer::Tops(snapshot.sums().tops().to_vec()),
            Query::Leaves(tops) => {
                let tops = tops.iter().take(64);
                QueryAnswer::Leaves(
                    tops.map(|t| (*t, snapshot.sums().leaves(*t).to_vec())).collect(),
                )
            }
            Query::Keys(ranges) if ranges.is_sorted_by(|a, b| a.1 < b.0) => {
                self.keys_in(snapshot, ranges)
            }
            Query::Keys(_) => return None,
            Query::Want(wants) => {
                let (mut done, mut bytes, mut entries) = (0, 0, Vec::new());
                let count_max = self.config.max_delta_elements.min(ENTRIES_MAX);
                for want in wants.iter().take(count_max) {
                    let theirs = want.context.decode().ok()?;
                    let held = snapshot.get(&want.key);
                    let hidden = matches!(at, At::Sealed(_))
                        && self.fault_injection.has(ReplicatorFault::CellsNotSynced);
                    let held = held.filter(|held| !(hidden && held.group.is_some()));
                    let entry = held.and_then(|held| held.repair(&theirs));
                    bytes += entry.as_ref().map_or(0, Entry::len);
                    if bytes + 256 > self.config.frame_bytes_max && done > 0 {
                        break;
                    }
                    entries.extend(entry);
                    done += 1;
                }
                QueryAnswer::Entries { done, entries }
            }
        })
    }

    /// Keys and contexts of the buckets that fit a frame; only whole buckets, and the first bucket
    /// with keys whatever its size. Ranges beyond [`RANGES_MAX`] are left out like buckets that do
    /// not fit: the asker asks for them again. Without ranges the answer is empty, up to bucket 0.
    fn keys_in(&self, snapshot: &Snapshot, ranges: &[(u16, u16)]) -> QueryAnswer {
        let ranges = &ranges[..ranges.len().min(RANGES_MAX)];
        let (mut held, mut bytes) = (Vec::new(), 0);
        let mut upto = ranges.last().map_or(0, |(_, last)| *last);
        'ranges: for (first, last) in ranges {
            let mut bucket_start = (held.len(), *first);
            for (bucket, mine) in snapshot.in_buckets(*first..=*last) {
                if bucket != bucket_start.1 {
                    bucket_start = (held.len(), bucket);
                }
                let item = KeyContext::new(&mine.key, mine.state.context());
                bytes += item.len();
                if bytes + 256 > self.config.frame_bytes_max && bucket_start.0 > 0 {
                    held.truncate(bucket_start.0);
                    upto = bucket - 1; // an earlier bucket is in the answer
                    break 'ranges;
                }
                held.push(item);
            }
        }
        QueryAnswer::Keys { held, upto }
    }

    /// Handles the answer to an open question of a comparison, and asks the next one or ends it.
    /// Any other answer (late, duplicate, of another peer) is ignored. Promised terms are merged in
    /// a sync only, and repairs always, even if the answer does not fit the open question.
    ///
    /// `Same` answers only the root question; from the live state it may end flushes that wait for
    /// the peer. `Gone` ends the comparison; only a failed pull of a synced state is reported to
    /// the machine. If a sync still lacks one of the repairs, the question stays open and is sent
    /// again.
    #[expect(clippy::too_many_arguments, reason = "a message's fields")]
    pub(super) fn on_compared(
        &mut self,
        now: Now,
        from: ReplicaId,
        session: u64,
        at: At,
        answer: QueryAnswer,
        promises: &[(Group, Term)],
        out: &mut ReplicatorOutbox,
    ) {
        let Some(comparison) = self.anti_entropy.get_mut(session, from, at) else { return };
        let (began, is_root) = (comparison.began, matches!(comparison.asked(), Query::Root { .. }));
        self.heard_of(now, from);
        if at != At::Live {
            self.take_promises(promises, out);
            self.store.settle_all();
        }
        let step = match answer {
            // It would end a sync that has not merged everything.
            QueryAnswer::Same if !is_root => SyncStep::Mismatch,
            QueryAnswer::Same if at == At::Live => {
                if !self.pushes.caught_up(from, began) {
                    self.contacted.remove(&from); // the next round goes to it again
                }
                self.check_flushes(out);
                SyncStep::Done { found: false }
            }
            QueryAnswer::Same => SyncStep::Done { found: false },
            QueryAnswer::Gone => {
                self.anti_entropy.end(session);
                // A sealed snapshot is gone only once its replica has installed a newer
                // configuration, for which a syncing replica asks the voters from time to time.
                if let At::Synced(epoch) = at {
                    self.drive(now, EpochInput::SourceFailed { epoch, from }, out);
                }
                return;
            }
            QueryAnswer::Tops(tops) => {
                self.with_comparison(session, from, at, |mine, c, held| c.tops(mine, &tops, held))
            }
            QueryAnswer::Leaves(leaves) => {
                self.with_comparison(session, from, at, |mine, c, held| {
                    c.leaves(mine, &leaves, held)
                })
            }
            QueryAnswer::Keys { held, upto } => {
                self.compare_keys(session, from, at, held, upto, out)
            }
            QueryAnswer::Entries { done, entries } => {
                if !self.take_repairs(now, from, at, &entries, out) {
                    return; // the question is asked again
                }
                self.with_comparison(session, from, at, |_, c, held| {
                    if c.wanted(done) { c.next(held) } else { SyncStep::Mismatch }
                })
            }
        };
        self.step(now, from, session, at, step, out);
    }

    /// Calls `f` with the live sums, the open comparison, and a function that tells the context
    /// that this replica holds of a key. Returns [`SyncStep::Mismatch`] if no such comparison is
    /// open.
    fn with_comparison(
        &mut self,
        session: u64,
        from: ReplicaId,
        at: At,
        f: impl FnOnce(&super::sums::Sums, &mut Comparison, &dyn Fn(&KeyName) -> KeyContext) -> SyncStep,
    ) -> SyncStep {
        let live = self.store.live();
        let held = |key: &KeyName| KeyContext::new(key, &live.context(key));
        match self.anti_entropy.get_mut(session, from, at) {
            Some(comparison) => f(live.sums(), comparison, &held),
            None => SyncStep::Mismatch,
        }
    }

    /// Carries out the step after an answer: sends the next question under a new number, or ends
    /// the comparison and, if it was a sync, goes on with [`merged`](Self::merged). A mismatch is
    /// counted and changes nothing: the open question is sent again when due.
    fn step(
        &mut self,
        now: Now,
        from: ReplicaId,
        session: u64,
        at: At,
        step: SyncStep,
        out: &mut ReplicatorOutbox,
    ) {
        match step {
            SyncStep::Ask(query) => {
                let resend = now.mono + self.trips.patience(1);
                if let Some(session) = self.anti_entropy.next_question(session, resend) {
                    self.send(from, Body::Compare { session, at, query }, out);
                }
            }
            SyncStep::Done { .. } => {
                self.anti_entropy.end(session);
                match at {
                    At::Live => {}
                    At::Sealed(epoch) => {
                        self.merged(now, EpochInput::SnapshotMerged { epoch, of: from }, out);
                    }
                    At::Synced(epoch) => {
                        self.merged(now, EpochInput::StateMerged { epoch, from }, out);
                    }
                }
            }
            SyncStep::Mismatch => self.stats.false_digests += 1, // late or false: asked again
        }
    }

    /// Merges the repairs of a comparison and orders durable ones to disk. `false` if a sync still
    /// lacks one of them; the others are merged all the same. A live comparison goes on without it,
    /// because the next round finds it again.
    fn take_repairs(
        &mut self,
        now: Now,
        from: ReplicaId,
        at: At,
        entries: &[Entry],
        out: &mut ReplicatorOutbox,
    ) -> bool {
        let (mut all, mut unsafe_keys) = (true, Vec::new());
        for entry in entries {
            all &= self.takes(now, from, at, entry, out);
            if self.config.is_durable(&entry.key) && self.persist_key(now, &entry.key) {
                unsafe_keys.push(entry.key.clone());
            }
        }
        self.persist(vec![], &unsafe_keys, out);
        all || at == At::Live
    }

    /// The whole state or snapshot of another replica is merged. Gives the machine the input `said`
    /// once all durable keys and promised terms are on disk, too: what this replica then vouches
    /// for must survive its restart. Without durable keys, and with write-behind, gives it within
    /// this call.
    fn merged(&mut self, now: Now, said: EpochInput, out: &mut ReplicatorOutbox) {
        if !self.is_durable() || self.config.write_behind_interval.is_some() {
            return self.drive(now, said, out);
        }
        let owed = |held: &&Arc<store::StoredKey>| {
            self.config.is_durable(&held.key) && !held.synced.includes(held.state.context())
        };
        let owed = self.store.iter().filter(owed);
        let owed = owed.map(|held| (held.key.clone(), held.state.context().clone())).collect();
        self.order_sync_end(PendingSync { said, owed }, out);
    }

    /// Orders the last write of a sync, with all promised terms;
    /// [`sync_end_written`](Self::sync_end_written) follows when it is done. Its keys were ordered
    /// before, and so are written before.
    pub(super) fn order_sync_end(&mut self, owed: PendingSync, out: &mut ReplicatorOutbox) {
        let promise = |(group, term)| DurableRecord::Promise { group, term };
        let promises = self.promises.all().into_iter().map(promise).collect();
        self.persist_records(promises, vec![WriteCompletion::Merged(owed)], out);
    }

    /// The store has written the promised terms, and has tried to write everything that was ordered
    /// before the end of a sync: reports its end to the machine. If keys are still missing on disk,
    /// because their writes failed, schedules these keys and then the end again.
    pub(super) fn sync_end_written(
        &mut self,
        now: Now,
        mut owed: PendingSync,
        out: &mut ReplicatorOutbox,
    ) {
        let store = &self.store;
        owed.owed.retain(|(key, context)| {
            !store.get(key).is_some_and(|held| held.synced.includes(context))
        });
        if owed.owed.is_empty() {
            self.drive(now, owed.said, out);
        } else {
            for (key, _) in &owed.owed {
                self.durability.write_again(now.mono, key, None);
            }
            self.durability.owe_later(now.mono, owed);
        }
    }

    /// Compares contexts key by key: wants the entries that are missing here and, in a live
    /// comparison, sends those that are missing there. Buckets beyond the budget of
    /// [`gives`](Self::gives) are compared again later. Keys outside of the covered buckets are
    /// ignored. If a context does not decode, the answer is a mismatch, and nothing is scheduled.
    fn compare_keys(
        &mut self,
        session: u64,
        from: ReplicaId,
        at: At,
        held: Vec<KeyContext>,
        upto: u16,
        out: &mut ReplicatorOutbox,
    ) -> SyncStep {
        // Decoded before the rest of the ranges is scheduled: a question that stays open after an
        // undecodable context would otherwise schedule the rest twice.
        let decoded: Result<Vec<_>, _> = held
            .into_iter()
            .map(|held| held.context.decode().map(|context| (held.key, context)))
            .collect();
        let Ok(decoded) = decoded else { return SyncStep::Mismatch };
        let Some(comparison) = self.anti_entropy.get_mut(session, from, at) else {
            return SyncStep::Mismatch;
        };
        let Some(covered) = comparison.covered(upto) else { return SyncStep::Mismatch };
        let mut theirs = BTreeMap::new();
        for (key, context) in decoded {
            let bucket = bucket_of(&key);
            if covered.iter().any(|(first, last)| (*first..=*last).contains(&bucket)) {
                theirs.insert(key, context);
            }
        }
        let (gives, deferred) = match at {
            At::Live => self.gives(&covered, &theirs),
            At::Sealed(_) | At::Synced(_) => (Vec::new(), None),
        };
        let live = self.store.live();
        let mut wants = Vec::new();
        for (key, context) in &theirs {
            let later = deferred.is_some_and(|from| bucket_of(key) >= from);
            let known = live.get(key).is_some_and(|held| held.state.context().includes(context));
            if !later && !known && !context.is_empty() {
                wants.push(key.clone());
            }
        }
        let gave = !gives.is_empty();
        self.send_repairs(from, 0, gives, out);
        self.with_comparison(session, from, at, |_, comparison, held| {
            if let Some(from) = deferred {
                comparison.defer(&covered, from);
            }
            comparison.want(wants);
            if gave {
                comparison.gave();
            }
            comparison.next(held)
        })
    }

    /// Merges an entry of a comparison. `false` if it builds on a missing change, in a live
    /// comparison too, or, in a sync, if it was refused (another data type, or a type of a later
    /// release): a sync that leaves out an entry must never be reported as done
    /// (docs/protocol/replication.md#a-sync-leaves-nothing-out).
    fn takes(
        &mut self,
        now: Now,
        from: ReplicaId,
        at: At,
        entry: &Entry,
        out: &mut ReplicatorOutbox,
    ) -> bool {
        match self.merge(now, from, entry, out) {
            Ok(EntryMergeResult::Merged { .. }) => true,
            Ok(EntryMergeResult::Lack(_)) => false,
            Err(_) => at == At::Live,
        }
    }

    /// Entries of the covered buckets that the other side lacks, up to a budget in bytes, and the
    /// bucket to go on with; `None` if none is left. The last bucket is given whole, whatever its
    /// size. The next answer of the other side shows that it has kept up.
    fn gives(
        &self,
        covered: &[(u16, u16)],
        theirs: &BTreeMap<KeyName, CausalContext>,
    ) -> (Vec<Entry>, Option<u16>) {
        let budget = FRAMES_PER_STEP * self.config.frame_bytes_max;
        let (mut gives, mut bytes, mut last_given) = (Vec::new(), 0, None);
        let nothing = CausalContext::new();
        for (first, last) in covered {
            for (bucket, mine) in self.store.live().in_buckets(*first..=*last) {
                let context = theirs.get(&mine.key).unwrap_or(&nothing);
                if context.includes(mine.state.context()) {
                    continue;
                }
                if bytes >= budget && last_given != Some(bucket) {
                    return (gives, Some(bucket));
                }
                let entry = mine.repair(context);
                bytes += entry.as_ref().map_or(0, Entry::len);
                gives.extend(entry);
                last_given = Some(bucket);
            }
        }
        (gives, None)
    }

    /// Merges the promised terms of a sync. A promise is only raised, never lowered; makes the
    /// groups of the raised ones known and, with durable keys, orders these to disk. Impossible
    /// ones are counted as undecodable and left out.
    fn take_promises(&mut self, promises: &[(Group, Term)], out: &mut ReplicatorOutbox) {
        if self.fault_injection.has(ReplicatorFault::PromisesNotSynced) || promises.is_empty() {
            return;
        }
        let (possible, false_ones): (Vec<_>, Vec<_>) =
            promises.iter().cloned().partition(|(group, term)| is_promise(group, *term));
        self.stats.undecodable += false_ones.len() as u64;
        let raised = self.promises.merge(&possible);
        for (group, _) in &raised {
            self.store.know_group(group);
        }
        if self.is_durable() && !raised.is_empty() {
            let record = |(group, term)| DurableRecord::Promise { group, term };
            self.persist_records(raised.into_iter().map(record).collect(), vec![], out);
        }
    }

    /// The time between two rounds of expiry: a quarter of the shortest setting, from 10 ms to a
    /// minute. `None` if no key expires.
    pub(super) fn expiry_interval(&self) -> Option<Duration> {
        let shortest =
            self.config.expire_keys_after_inactivity.iter().map(|(_, after)| *after).min();
        shortest.map(|after| (after / 4).clamp(Duration::from_millis(10), Duration::from_secs(60)))
    }

    /// Whether the settings name durable keys; only then anything is written to disk.
    pub(super) fn is_durable(&self) -> bool {
        !self.config.durable_keys.is_empty()
    }

    /// Orders records to be written, and the actions that follow when they are on disk or failed.
    /// Also without any record, so that the actions follow all earlier orders.
    pub(super) fn persist_records(
        &mut self,
        records: Vec<DurableRecord>,
        after: Vec<WriteCompletion>,
        out: &mut ReplicatorOutbox,
    ) {
        let id = self.durability.order(after);
        out.push(ReplicatorOutput::Persist { id, records });
    }
}
