//! The configuration machine's orders carried out: freezing, pulling, installing; and comparisons,
//! which anti-entropy and those pulls share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::anti_entropy::{Comparison, Difference, Step};
use super::durability::After;
use super::epoch::{Epoch, EpochId, EpochInput, EpochOutput};
use super::port::{Class, Output, Peer};
use super::store::Snapshot;
use super::wire::{Answer, At, Body, Entry, Held, Query};
use super::{Out, Replicator};
use crate::bug::Bug;
use crate::clock::Now;
use crate::durable::Record;
use crate::id::ReplicaId;
use crate::key::{Group, KeyName};
use crate::machine::{Machine, Outbox};
use crate::types::Term;

impl Replicator {
    /// Feeds the configuration machine and does what it orders, until it orders nothing more.
    pub(super) fn drive(&mut self, now: Now, input: EpochInput, out: &mut Out) {
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

    fn obey(&mut self, now: Now, order: EpochOutput, out: &mut Out) -> Option<EpochInput> {
        match order {
            EpochOutput::Send { to, message } => self.send(to, Body::Epoch(message), out),
            EpochOutput::Persist(state) => {
                if self.is_durable() {
                    self.persist_records(vec![Record::Acceptor(state)], vec![], out);
                    self.durability.order_gate();
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
                out.push(Output::Synced(epoch));
                self.recount(now, out);
            }
            EpochOutput::AskConsent { query, removed, why } => {
                out.push(Output::AskConsent { query, removed, why });
            }
            EpochOutput::Outcome(outcome) => out.push(Output::Outcome(outcome)),
            EpochOutput::Excluded(epoch) => out.push(Output::Excluded(epoch)),
            EpochOutput::StopServing => out.push(Output::StopServing),
        }
        None
    }

    fn freeze(&mut self, epoch: EpochId) {
        self.store.settle_all();
        let mut snapshot = self.store.live().clone();
        if self.canary.has(Bug::SnapshotBeforeLastAck)
            && let Some(before) = self.before_last_ack.take()
        {
            snapshot = before;
        }
        self.frozen = Some((epoch, snapshot, self.promises.all()));
    }

    fn installed(&mut self, now: Now, epoch: Arc<Epoch>, out: &mut Out) {
        self.frozen = None;
        if let Some(before) = self.former_members() {
            self.former = before;
        }
        self.store.reseed(epoch.digest_seed());
        self.anti_entropy.end_all(|_, at| at == At::Live);
        self.know_peers(out);
        let id = epoch.id();
        out.push(Output::Installed(epoch));
        let mut writes = std::mem::take(&mut self.writes);
        writes.restart(id, |level| self.need(level).ok(), self.canary);
        self.writes = writes;
        let voters_and_peers = self.push_targets();
        self.pushes.restart(now.mono, &voters_and_peers);
        self.recount(now, out);
        self.gossip_at = Some(now.mono + self.config.busy_gossip_interval);
        if self.expire_at.is_none() {
            self.expire_at = self.expiry_interval().map(|interval| now.mono + interval);
        }
    }

    /// This replica's own answers count anew.
    fn recount(&mut self, now: Now, out: &mut Out) {
        self.restart_reads(now, out);
        self.restart_fences(now, out);
        for id in self.writes.ids() {
            self.check_write(id, out);
        }
    }

    fn former_members(&self) -> Option<Vec<ReplicaId>> {
        (!self.electorate.is_empty()).then(|| self.electorate.iter().copied().collect())
    }

    pub(super) fn members(&mut self, now: Now, peers: Vec<Peer>, out: &mut Out) {
        self.membership = peers.into_iter().map(|peer| (peer.id, peer)).collect();
        let before = self.peers.clone();
        self.know_peers(out);
        let new: Vec<ReplicaId> = self.peers.difference(&before).copied().collect();
        if self.epochs.is_member() && !new.is_empty() {
            let soon = now.mono + self.config.busy_gossip_interval;
            self.gossip_at = Some(self.gossip_at.map_or(soon, |at| at.min(soon)));
        }
        for id in self.writes.ids() {
            self.check_write(id, out);
        }
    }

    /// Works out anew who gets changes and who counts for `All`.
    fn know_peers(&mut self, out: &mut Out) {
        let (members, left) = match self.epochs.installed() {
            Some(epoch) => (epoch.members().to_vec(), epoch.left().to_vec()),
            None => (Vec::new(), Vec::new()),
        };
        let mut peers: BTreeSet<ReplicaId> = members.iter().copied().collect();
        peers.extend(self.membership.keys().filter(|id| !left.contains(id)));
        peers.remove(&self.me);
        let gone: Vec<ReplicaId> = self.peers.difference(&peers).copied().collect();
        self.peers = peers;
        let stopping = |id: &ReplicaId| self.membership.get(id).is_some_and(|peer| peer.stopping);
        self.electorate = members.into_iter().filter(|id| !stopping(id)).collect();
        self.contacted.retain(|id, _| self.peers.contains(id));
        for id in gone {
            self.parts.forget(id);
            self.anti_entropy.end_all(|peer, at| peer == id && at == At::Live);
            self.pushes.forget(id);
        }
        self.check_flushes(out);
    }

    // ── comparisons ──

    pub(super) fn anti_entropy_room(&self) -> usize {
        if self.anti_entropy.has_room() { 0 } else { super::anti_entropy::OPEN_MAX }
    }

    /// Begins to compare with a peer, unless that is under way.
    pub(super) fn compare_with(&mut self, now: Now, peer: ReplicaId, at: At, out: &mut Out) {
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
        let root = self.store.live().sums().root();
        let comparison = Comparison::new(at, root, now.mono + self.trips.patience(1));
        let query = comparison.asked().clone();
        let session = self.anti_entropy.begin(peer, comparison);
        self.send(peer, Body::Compare { session, at, query }, out);
    }

    pub(super) fn on_compare(
        &mut self,
        now: Now,
        from: ReplicaId,
        session: u64,
        at: At,
        query: &Query,
        out: &mut Out,
    ) {
        self.contacted.insert(from, now.mono);
        self.store.settle_due(now.mono);
        let answer = match at {
            At::Live => self.answer_from(self.store.live(), query, at),
            At::Sealed(epoch) => match &self.frozen {
                Some((frozen, snapshot, _)) if *frozen == epoch => {
                    self.answer_from(snapshot, query, at)
                }
                _ => Some(Answer::Gone),
            },
            At::Synced(epoch) if self.epochs.synced() && self.epochs.id() == Some(epoch) => {
                self.store.settle_all();
                self.answer_from(self.store.live(), query, at)
            }
            At::Synced(_) => Some(Answer::Gone),
        };
        let Some(answer) = answer else {
            return self.undecodable(now, from, "a context", out);
        };
        if let Query::Root(_) = query {
            match answer {
                Answer::Same => self.stats.gossip_equal += 1,
                _ => self.stats.gossip_differed += 1,
            }
        }
        let promises = self.promises_for(at, query);
        self.send_as(from, Class::Data, Body::Compared { session, at, answer, promises }, out);
    }

    /// The terms that go with the first answer about a sealed or synced state.
    fn promises_for(&self, at: At, query: &Query) -> Vec<(Group, Term)> {
        match (at, query, &self.frozen) {
            (At::Sealed(_), Query::Root(_), Some((_, _, promises))) => promises.clone(),
            (At::Synced(_), Query::Root(_), _) => self.promises.all(),
            _ => Vec::new(),
        }
    }

    /// `None`: the question does not decode.
    fn answer_from(&self, snapshot: &Snapshot, query: &Query, at: At) -> Option<Answer> {
        Some(match query {
            Query::Root(root) if *root == snapshot.sums().root() => Answer::Same,
            Query::Root(_) => Answer::Tops(snapshot.sums().tops()),
            Query::Leaves(tops) => {
                let tops = tops.iter().take(64);
                Answer::Leaves(tops.map(|t| (*t, snapshot.sums().leaves(*t).to_vec())).collect())
            }
            Query::Keys(ranges) => self.keys_in(snapshot, ranges),
            Query::Want(wants) => {
                let (mut done, mut bytes, mut entries) = (0, 0, Vec::new());
                for want in wants.iter().take(self.config.max_delta_elements) {
                    let theirs = want.context.decode().ok()?;
                    let held = snapshot.get(&want.key);
                    let hidden =
                        matches!(at, At::Sealed(_)) && self.canary.has(Bug::CellsNotSynced);
                    let held = held.filter(|held| !(hidden && held.group.is_some()));
                    let entry = held.and_then(|held| held.repair(&theirs));
                    bytes += entry.as_ref().map_or(0, Entry::len);
                    if bytes + 256 > self.config.frame_bytes_max && done > 0 {
                        break;
                    }
                    entries.extend(entry);
                    done += 1;
                }
                Answer::Entries { done, entries }
            }
        })
    }

    /// Keys and contexts of some buckets, as many as fit a frame, whole buckets only.
    fn keys_in(&self, snapshot: &Snapshot, ranges: &[(u16, u16)]) -> Answer {
        let (mut held, mut bytes) = (Vec::new(), 0);
        let mut upto = ranges.last().map_or(0, |(_, last)| *last);
        'ranges: for (first, last) in ranges.iter().take(256) {
            let mut bucket_start = (held.len(), *first);
            for (bucket, mine) in snapshot.in_buckets(*first..=*last) {
                if bucket != bucket_start.1 {
                    bucket_start = (held.len(), bucket);
                }
                let item = Held::new(&mine.key, mine.state.context());
                bytes += item.len();
                if bytes + 256 > self.config.frame_bytes_max && bucket_start.0 > 0 {
                    held.truncate(bucket_start.0);
                    upto = bucket - 1; // an earlier bucket is in the answer
                    break 'ranges;
                }
                held.push(item);
            }
        }
        Answer::Keys { held, upto }
    }

    #[expect(clippy::too_many_arguments, reason = "a message's fields")]
    pub(super) fn on_compared(
        &mut self,
        now: Now,
        from: ReplicaId,
        session: u64,
        at: At,
        answer: Answer,
        promises: &[(Group, Term)],
        out: &mut Out,
    ) {
        self.contacted.insert(from, now.mono);
        if self.anti_entropy.get_mut(session, from, at).is_none() {
            return;
        }
        if at != At::Live {
            self.take_promises(promises, out);
            self.store.settle_all();
        }
        let step = match answer {
            Answer::Same => Step::Done { found: false },
            Answer::Gone => {
                self.anti_entropy.end(session);
                if let At::Synced(epoch) = at {
                    self.drive(now, EpochInput::SourceFailed { epoch, from }, out);
                }
                return;
            }
            Answer::Tops(tops) => {
                self.with_comparison(session, from, at, |mine, c, held| c.tops(mine, &tops, held))
            }
            Answer::Leaves(leaves) => self
                .with_comparison(session, from, at, |mine, c, held| c.leaves(mine, &leaves, held)),
            Answer::Keys { held, upto } => self.compare_keys(session, from, at, held, upto, out),
            Answer::Entries { done, entries } => {
                for entry in &entries {
                    self.take_entry(now, from, entry, out);
                    if self.config.is_durable(&entry.key) {
                        self.persist_key(now, &entry.key, false);
                        self.persist(vec![], [&entry.key], out);
                    }
                }
                self.with_comparison(session, from, at, |_, c, held| {
                    if c.wanted(done) { c.next(held) } else { Step::Nonsense }
                })
            }
        };
        self.step(now, from, session, at, step, out);
    }

    fn with_comparison(
        &mut self,
        session: u64,
        from: ReplicaId,
        at: At,
        f: impl FnOnce(&super::sums::Sums, &mut Comparison, &dyn Fn(&KeyName) -> Held) -> Step,
    ) -> Step {
        let live = self.store.live();
        let held = |key: &KeyName| Held::new(key, &live.context(key));
        match self.anti_entropy.get_mut(session, from, at) {
            Some(comparison) => f(live.sums(), comparison, &held),
            None => Step::Nonsense,
        }
    }

    fn step(&mut self, now: Now, from: ReplicaId, session: u64, at: At, step: Step, out: &mut Out) {
        match step {
            Step::Ask(query) => {
                let resend = now.mono + self.trips.patience(1);
                if let Some(comparison) = self.anti_entropy.get_mut(session, from, at) {
                    comparison.resend = resend;
                }
                self.send(from, Body::Compare { session, at, query }, out);
            }
            Step::Done { .. } => {
                self.anti_entropy.end(session);
                match at {
                    At::Live => {}
                    At::Sealed(epoch) => {
                        self.drive(now, EpochInput::SnapshotMerged { epoch, of: from }, out);
                    }
                    At::Synced(epoch) => {
                        self.drive(now, EpochInput::StateMerged { epoch, from }, out);
                    }
                }
            }
            Step::Nonsense => self.stats.false_digests += 1, // late or false: the question is asked again
        }
    }

    /// Compares contexts key by key: what is lacking here is wanted, what is lacking there given.
    fn compare_keys(
        &mut self,
        session: u64,
        from: ReplicaId,
        at: At,
        held: Vec<Held>,
        upto: u16,
        out: &mut Out,
    ) -> Step {
        let Some(comparison) = self.anti_entropy.get_mut(session, from, at) else {
            return Step::Nonsense;
        };
        let Some(covered) = comparison.covered(upto) else { return Step::Nonsense };
        let mut theirs = BTreeMap::new();
        for held in held {
            let Ok(context) = held.context.decode() else { return Step::Nonsense };
            theirs.insert(held.key, context);
        }
        let live = self.store.live();
        let (mut wants, mut gives) = (Vec::new(), Vec::new());
        if at == At::Live {
            for (first, last) in covered {
                for (_, mine) in live.in_buckets(first..=last) {
                    let context = theirs.get(&mine.key).cloned().unwrap_or_default();
                    if Difference::between(mine.state.context(), &context).there {
                        gives.extend(mine.repair(&context));
                    }
                }
            }
        }
        for (key, context) in &theirs {
            if Difference::between(&live.context(key), context).here {
                wants.push(key.clone());
            }
        }
        let gave = !gives.is_empty();
        self.send_repairs(from, 0, gives, out);
        self.with_comparison(session, from, at, |_, comparison, held| {
            comparison.want(wants);
            if gave {
                comparison.gave();
            }
            comparison.next(held)
        })
    }

    fn take_promises(&mut self, promises: &[(Group, Term)], out: &mut Out) {
        if self.canary.has(Bug::PromisesNotSynced) || promises.is_empty() {
            return;
        }
        let raised = self.promises.merge(promises);
        for (group, _) in &raised {
            self.store.know_group(group);
        }
        if self.is_durable() && !raised.is_empty() {
            let record = |(group, term)| Record::Promise { group, term };
            self.persist_records(raised.into_iter().map(record).collect(), vec![], out);
        }
    }

    pub(super) fn expiry_interval(&self) -> Option<Duration> {
        let shortest =
            self.config.expire_keys_after_inactivity.iter().map(|(_, after)| *after).min();
        shortest.map(|after| (after / 4).clamp(Duration::from_millis(10), Duration::from_secs(60)))
    }

    pub(super) fn is_durable(&self) -> bool {
        !self.config.durable_keys.is_empty()
    }

    pub(super) fn persist_records(
        &mut self,
        records: Vec<Record>,
        after: Vec<After>,
        out: &mut Out,
    ) {
        let id = self.durability.order(after);
        out.push(Output::Persist { id, records });
    }
}
