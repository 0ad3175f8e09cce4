//! Timers (resends, gossip, expiry, notices to subscribers) and results of the durable store
//! (records loaded at the start, completed or failed writes).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use super::durability::WriteCompletion;
use super::epoch::{AcceptorState, EpochInput, EpochMessage};
use super::expiry::owner;
use super::fence::is_promise;
use super::port::{ReplicatorAlarm, ReplicatorOutput, StateLoadError};
use super::request::{MISSING_MAX, RequestError, RequestId, SubscriptionNotice, Tally};
use super::store::{EntryMergeResult, EntryRefusal, StoredKey};
use super::wire::{At, Body, Entry, EntryContent, Nack, WireGuard};
use super::{Replicator, ReplicatorOutbox};
use crate::clock::{Instant, Now};
use crate::durable::{DurableRecord, StoreError};
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::machine::Machine;

/// How long after a change anti-entropy uses `busy_gossip_interval`.
const BUSY_FOR: Duration = Duration::from_secs(1);

impl Replicator {
    /// Handles the end of a batch or an expired deadline: does everything that is due now. In this
    /// order: the push of the batch, the alarm of a message that was too long to send, notices to
    /// subscribers, timeouts of writes and flushes, timeouts and repeated questions of reads, then
    /// of fences, resends of pushes, comparisons, the configuration machine, sums, gossip, expiry,
    /// a vote whose write failed, write-behind, the end of a sync of which a write failed.
    ///
    /// Changes that this tick makes (expiry) are pushed, and their notices sent, by the next one.
    pub(super) fn tick(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        self.flush(now, out);
        if let Some((peer, bytes)) = self.unsent.take() {
            let limit = self.config.assembly_bytes_max;
            self.alarm(now, ReplicatorAlarm::TooLarge { peer, bytes, limit }, out);
        }
        self.tell(now, out);
        self.tick_writes(now, out);
        self.tick_reads(now, out);
        self.tick_fences(now, out);
        self.tick_pushes(now, out);
        self.tick_comparisons(now, out);
        if self.epochs.next_deadline().is_some_and(|at| at <= now.mono) {
            self.drive(now, EpochInput::Tick, out);
        }
        self.store.settle_due(now.mono);
        if self.gossip_at.is_some_and(|at| at <= now.mono) {
            self.gossip(now, out);
        }
        if self.expire_at.is_some_and(|at| at <= now.mono) {
            self.expire(now, out);
        }
        if self.durability.is_retry_due(now.mono) {
            self.persist_votes(self.epochs.state().clone(), out);
        }
        if self.durability.is_behind_due(now.mono) {
            let keys = self.durability.take_behind();
            self.persist(vec![], &keys, out);
        }
        // After the keys, because a sync ends only when its keys are on disk.
        while let Some(owed) = self.durability.take_owed(now.mono) {
            self.order_sync_end(owed, out);
        }
    }

    /// Notifies subscribers of the gathered changes, if the interval since the first of them has
    /// passed.
    fn tell(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        if self.subscriptions.due().is_none_or(|at| at > now.mono) {
            return;
        }
        self.tell_now(out);
    }

    /// Notifies subscribers of the gathered changes now, even before the interval has passed. A key
    /// that has no value now is reported as deleted. A key that reads as before is left out, also
    /// if it had no value then. The subscriptions that match a key now are notified, which may be
    /// others than at the change, or none. Nothing is gathered afterwards.
    pub(super) fn tell_now(&mut self, out: &mut ReplicatorOutbox) {
        for (key, before) in self.subscriptions.take() {
            let value = self.value(&key);
            let notice = match (&value, &before) {
                (None, None) => continue,
                (None, Some(_)) => SubscriptionNotice::Deleted { key: key.clone() },
                (Some(value), Some(before)) if value.reads_like(before) => continue,
                (Some(value), _) => {
                    let (key, value) = (key.clone(), value.clone());
                    SubscriptionNotice::Changed { key, value, before: before.clone() }
                }
            };
            for subscription in self.subscriptions.of(&key) {
                out.push(ReplicatorOutput::Notify { subscription, notice: notice.clone() });
            }
        }
    }

    /// Fails writes and flushes whose deadline has passed with `Timeout` and the replicas that are
    /// missing; each is counted. Whether one is complete is not checked again. A failed write stays
    /// applied; its pushes go on without it. When the last flush has failed, the pushes that
    /// flushes have kept may be left to anti-entropy again.
    fn tick_writes(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now.mono);
        if !is_due(self.writes.due()) && !is_due(self.flushes_due()) {
            return;
        }
        for (id, write) in self.writes.take_due(now.mono) {
            for place in &write.pushes {
                self.pushes.done_waiting(*place, id);
            }
            self.stats.timeouts += 1;
            let tally = write.tally(&self.electors());
            Self::reply(id, Err(RequestError::Timeout(tally)), out);
        }
        let late = self.flushes.iter().filter(|(_, flush)| flush.deadline <= now.mono);
        let late: Vec<_> = late.map(|(id, _)| *id).collect();
        for id in late {
            let Some(flush) = self.flushes.remove(&id) else { continue };
            self.stats.timeouts += 1;
            let mut missing = flush.behind;
            missing.extend(self.pushes.lacking(&flush.open));
            let needed = self.peers.len() + 1;
            let answered = needed.saturating_sub(missing.len());
            let missing = missing.into_iter().take(MISSING_MAX).collect();
            let tally = Tally { answered, needed, missing };
            Self::reply(id, Err(RequestError::Timeout(tally)), out);
            if self.flushes.is_empty() {
                self.pushes.release();
            }
        }
    }

    /// Fails a read or a fence whose deadline has passed with too few answers: counts it and
    /// replies with `Timeout`. Named as missing are members and voters that have not answered,
    /// perhaps this replica, too. The caller has removed the request from its list.
    pub(super) fn timed_out(
        &mut self,
        id: RequestId,
        answered: &BTreeSet<ReplicaId>,
        needed: usize,
        out: &mut ReplicatorOutbox,
    ) {
        self.stats.timeouts += 1;
        let missing = self.electors().missing(answered);
        let tally = Tally { answered: answered.len(), needed, missing };
        Self::reply(id, Err(RequestError::Timeout(tally)), out);
    }

    /// Resends pushes that count as lost, and ends flushes whose pushes are delivered.
    fn tick_pushes(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        for resend in self.pushes.take_due(now.mono, &self.trips) {
            self.resend(resend, out);
        }
        self.check_flushes(out);
    }

    /// Repeats the unanswered questions of comparisons, under their old numbers. Live comparisons
    /// that were repeated too often end instead; syncs never do.
    fn tick_comparisons(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        let trips = &self.trips;
        for (session, peer, at, query) in
            self.anti_entropy.take_due(now.mono, |tries| trips.patience(tries + 1))
        {
            self.send(peer, Body::Compare { session, at, query }, out);
        }
    }

    /// Starts one round of anti-entropy with the peer that was contacted least recently; reachable
    /// peers come first, and ties are broken at random. A peer that membership does not know counts
    /// as reachable. Schedules the next round, within 20 % of the interval, which is the busy one
    /// until [`BUSY_FOR`] after a change.
    ///
    /// A replica that is no member sends its installed configuration instead, and nothing if it has
    /// none. Nothing is sent without peers, if the peer is being compared with already, or if too
    /// many comparisons are open; the chosen peer counts as contacted all the same.
    fn gossip(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        let busy = self.changed_at.is_some_and(|at| now.mono - at < BUSY_FOR);
        let interval =
            if busy { self.config.busy_gossip_interval } else { self.config.gossip_interval };
        let jitter: f64 = self.rng.random_range(0.8..1.2);
        let jittered = Duration::try_from_secs_f64(interval.as_secs_f64() * jitter);
        self.gossip_at = Some(now.mono + jittered.unwrap_or(Duration::MAX));
        let mut best: Option<(bool, Instant, u64, ReplicaId)> = None;
        for &peer in &self.peers {
            let unreachable = self.membership.get(&peer).is_some_and(|peer| !peer.reachable);
            let heard = self.contacted.get(&peer).copied().unwrap_or_default();
            let candidate = (unreachable, heard, self.rng.random(), peer);
            best = Some(best.map_or(candidate, |best| best.min(candidate)));
        }
        let Some((.., peer)) = best else { return };
        self.contacted.insert(peer, now.mono);
        if self.epochs.is_member() {
            self.compare_with(now, peer, At::Live, out);
        } else if let Some(epoch) = self.epochs.installed().cloned() {
            // A joiner may be the only live node that knows this configuration. Its members must
            // learn it, or all of them stay silent for ever.
            self.send(peer, Body::Epoch(EpochMessage::Install { epoch }), out);
        }
    }

    // ── expiry ──

    /// One round of expiry: deletes the unused keys that this member owns, and reports to the
    /// owners of other keys the uses that they do not know. Guarded keys and keys without a setting
    /// never expire; deleted ones are skipped. Schedules the next round (none if no key can
    /// expire). Does nothing else on a replica that is no member.
    ///
    /// No key is deleted before `own_from`, because the members must report their uses to a new
    /// owner first; uses are reported before it, too. A deletion is a normal change: it notifies
    /// subscribers, is pushed without a waiting request, and is ordered to disk, but counts in
    /// `expired`, not in `updates`. A use is reported in each round until the owner has answered.
    fn expire(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        self.expire_at = self.expiry_interval().map(|interval| now.mono + interval);
        let Some(epoch) = self.epochs.installed().filter(|_| self.epochs.is_member()) else {
            return;
        };
        let members = epoch.members().to_vec();
        if std::mem::take(&mut self.report_all) {
            self.store.forget_reports();
        }
        let (mut gone, mut used) = (Vec::new(), BTreeMap::<ReplicaId, Vec<(KeyName, u64)>>::new());
        let guarded = |held: &StoredKey| self.store.group_of(&held.key, Some(held)).is_some();
        let live = |held: &&Arc<StoredKey>| !held.state.is_bottom();
        for held in self.store.iter().filter(live) {
            let Some(after) = self.config.expiry_of(&held.key) else { continue };
            if guarded(held) {
                continue;
            }
            let Some(owner) = owner(&held.key, &members) else { continue };
            if owner == self.me {
                if held.used + after <= now.mono && now.mono >= self.own_from {
                    gone.push((held.key.clone(), held.state.shape().clone()));
                }
            } else if held.used > held.reported {
                used.entry(owner).or_default().push((held.key.clone(), age(now, held.used)));
            }
        }
        for (key, shape) in gone {
            cov_mark::hit!(key_expired);
            self.stats.expired += 1;
            let before = self.before(&key);
            let delta = self.delete_seen(now, &key, &shape);
            self.tell_later(now, &key, before);
            self.noted_change(now);
            self.pushes.add(now.mono, &key, Some(&delta), None, None);
            if self.config.is_durable(&key) && self.persist_key(now, &key) {
                self.persist(vec![], [&key], out);
            }
        }
        for (owner, keys) in used {
            for keys in keys.chunks(1_000) {
                self.send(owner, Body::Used(keys.to_vec()), out);
            }
        }
    }

    /// Handles a report of how many milliseconds ago a peer used some keys. It can only make a key
    /// younger, also if this replica does not own it; keys that are not held here are ignored. The
    /// owner answers with `Known`, and the latest use that it knows of, for the keys that it owns
    /// and holds (also deleted ones), if it is a member. A report that is lost is repeated, because
    /// its sender gets no answer.
    pub(super) fn on_used(
        &mut self,
        now: Now,
        from: ReplicaId,
        keys: &[(KeyName, u64)],
        out: &mut ReplicatorOutbox,
    ) {
        for (key, age) in keys {
            self.store.touch(key, ago(now, *age));
        }
        let Some(epoch) = self.epochs.installed().filter(|_| self.epochs.is_member()) else {
            return;
        };
        let mine = keys.iter().filter(|(key, _)| owner(key, epoch.members()) == Some(self.me));
        let known = mine.filter_map(|(key, _)| self.store.get(key));
        let known: Vec<_> = known.map(|held| (held.key.clone(), age(now, held.used))).collect();
        if !known.is_empty() {
            self.send(from, Body::Known(known), out);
        }
    }

    /// Handles the owner's answer: how long ago some keys were used, as far as the owner knows.
    /// Uses up to that time are not reported again; the time of the last use stays as it is here.
    /// Ignores keys that `from` does not own by this replica's configuration, and keys that are not
    /// held here.
    pub(super) fn on_known(&mut self, now: Now, from: ReplicaId, keys: &[(KeyName, u64)]) {
        let Some(epoch) = self.epochs.installed() else { return };
        for (key, age) in keys.iter().filter(|(key, _)| owner(key, epoch.members()) == Some(from)) {
            let known = ago(now, *age);
            self.store.note(key, |held| held.reported = held.reported.max(known));
        }
    }

    // ── disk ──

    /// Whether a durable key must be written to disk before its change is acknowledged
    /// (docs/protocol/replication.md#durable-before-acknowledged). The caller has checked that the
    /// key is durable, and orders the write with [`persist`](Self::persist). `false` if the key is
    /// absent or all of it is on disk; `true` also while an earlier order of it is being written.
    /// With write-behind the key is scheduled for a later write here, and nothing waits: `false`.
    pub(super) fn persist_key(&mut self, now: Now, key: &KeyName) -> bool {
        let Some(held) = self.store.get(key) else { return false };
        if held.synced.includes(held.state.context()) {
            return false;
        }
        match self.config.write_behind_interval {
            Some(interval) => {
                self.durability.write_behind(key, now.mono + interval);
                false
            }
            None => true,
        }
    }

    /// Orders the present states of keys to be written, and the actions that follow when that has
    /// succeeded or failed, after the keys are noted as on disk. Absent keys are left out; whether
    /// a key is durable, or on disk already, is not checked. Without any key an empty order is
    /// made, so that the actions still follow; without keys and actions nothing is ordered.
    pub(super) fn persist<'k>(
        &mut self,
        mut after: Vec<WriteCompletion>,
        keys: impl IntoIterator<Item = &'k KeyName>,
        out: &mut ReplicatorOutbox,
    ) {
        let (mut records, mut synced) = (Vec::new(), Vec::new());
        for key in keys {
            let Some(held) = self.store.get(key) else { continue };
            records.push(DurableRecord::Data {
                key: key.clone(),
                shape: held.shape.to_string(),
                group: held.group.clone(),
                state: held.state.encode(),
            });
            synced.push((key.clone(), held.state.context().clone()));
        }
        if records.is_empty() && after.is_empty() {
            return;
        }
        after.insert(0, WriteCompletion::Synced(synced));
        self.persist_records(records, after, out);
    }

    /// Orders this replica's votes to be written. All messages to peers are held back until the
    /// write has ended, because a vote must be on disk before a message that depends on it leaves;
    /// replies and notices to the program are not. If it fails, only messages that depend on a vote
    /// are dropped, this replica is not eligible, and a tick a second later writes again. The
    /// caller has checked that this replica has a durable store.
    pub(super) fn persist_votes(&mut self, state: AcceptorState, out: &mut ReplicatorOutbox) {
        self.persist_records(vec![DurableRecord::Acceptor(state)], vec![], out);
        self.durability.order_gate();
    }

    /// Handles the result of a write to the durable store: carries out the actions that waited for
    /// it, in their order. A failure is counted and raises an alarm first. If a vote is on disk at
    /// last, after a failure, this replica finally counts itself again in open requests. The result
    /// of an unknown or ended order has no action, but a failure is counted all the same.
    pub(super) fn persisted(
        &mut self,
        now: Now,
        id: u64,
        result: Result<(), StoreError>,
        out: &mut ReplicatorOutbox,
    ) {
        let stored = result.is_ok();
        let counted = !self.durability.is_shut();
        let after = self.durability.done(now.mono, id, stored);
        if let Err(error) = result {
            self.stats.store_failures += 1;
            self.alarm(now, ReplicatorAlarm::Store(error), out);
        }
        for after in after {
            if stored {
                self.stored(now, after, out);
            } else {
                self.not_stored(now, after, out);
            }
        }
        if !counted && !self.durability.is_shut() {
            self.count_here(now, out);
        }
    }

    /// Carries out an action whose records are on disk. An acknowledgement is always sent, but
    /// counts only if this replica is eligible now and its configuration is still that of the
    /// merge.
    fn stored(&mut self, now: Now, after: WriteCompletion, out: &mut ReplicatorOutbox) {
        match after {
            WriteCompletion::Synced(keys) => {
                for (key, context) in keys {
                    self.store.note(&key, |held| held.synced.merge(&context));
                }
            }
            WriteCompletion::Ack { to, push, scope, nacks, epoch, .. } => {
                let counts = self.eligible() && epoch == self.epochs.id();
                self.send(to, Body::Ack { push, scope, counts, nacks }, out);
            }
            WriteCompletion::Here(id) => self.here(id, out),
            WriteCompletion::Merged(owed) => self.sync_end_written(now, owed, out),
            WriteCompletion::Promised(id, epoch) => self.promised_here(now, id, epoch, out),
            WriteCompletion::Reply(id, reply) => Self::reply(id, Ok(*reply), out),
            WriteCompletion::Send(outputs) | WriteCompletion::Held(outputs) => {
                self.send_orders(outputs, out);
            }
        }
    }

    /// Sends messages that waited for the disk. Each passes the gate again, so it may be held back
    /// behind a later vote or dropped.
    fn send_orders(&mut self, outputs: Vec<ReplicatorOutput>, out: &mut ReplicatorOutbox) {
        for output in outputs {
            self.emit(output, out);
        }
    }

    /// Carries out an action whose records could not be written: keys are scheduled for another
    /// write, an acknowledgement refuses the entries that it would have stored, a request fails or
    /// counts this replica as one whose store failed, and a sync is tried again later. Messages
    /// that waited for the records of a promise are dropped; messages that were held back behind a
    /// vote pass the gate again.
    fn not_stored(&mut self, now: Now, after: WriteCompletion, out: &mut ReplicatorOutbox) {
        match after {
            WriteCompletion::Synced(keys) => {
                let interval = self.config.write_behind_interval;
                for (key, _) in keys {
                    self.durability.write_again(now.mono, &key, interval);
                }
            }
            WriteCompletion::Send(_) | WriteCompletion::Promised(..) => {}
            WriteCompletion::Held(outputs) => self.send_orders(outputs, out),
            WriteCompletion::Merged(owed) => self.durability.owe_later(now.mono, owed),
            WriteCompletion::Ack { to, push, scope, mut nacks, stored, epoch } => {
                let failed = stored.into_iter().map(|index| (index, Nack::StoreFailed));
                nacks.extend(failed);
                let counts = self.eligible() && epoch == self.epochs.id();
                self.send(to, Body::Ack { push, scope, counts, nacks }, out);
            }
            WriteCompletion::Here(id) => {
                self.writes.store_failed(id, self.me);
                self.check_write(id, out);
            }
            WriteCompletion::Reply(id, _) => {
                Self::reply(id, Err(RequestError::StoreFailure { failed: 1 }), out);
            }
        }
    }

    /// Loads the records that an earlier process of this data directory wrote: data, and promised
    /// terms, whose groups become known. Votes are ignored, because they belong to an earlier
    /// incarnation. Several records of a key are merged. A key counts as used now. The values are
    /// gathered for subscribers; the caller notifies them.
    ///
    /// # Errors
    /// The number of records (data and promises) that cannot be read, and the first of them. All
    /// records are tried: readable data stays merged, but no promise is loaded. The caller must
    /// serve nothing.
    pub(super) fn restore(
        &mut self,
        now: Now,
        records: Vec<DurableRecord>,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), StateLoadError> {
        let (mut promises, mut failed) = (Vec::new(), Vec::new());
        for record in records {
            match record {
                DurableRecord::Data { key, shape, group, state } => {
                    let guard = group.map(|group| WireGuard { group, term: None });
                    let content = EntryContent::Full(state.into());
                    let shape = shape.into();
                    let entry = Entry { index: 0, key: key.clone(), shape, guard, content };
                    if let Err(why) = self.restore_key(now, &entry, out) {
                        failed.push((format!("key `{key}`"), why));
                    }
                }
                DurableRecord::Promise { group, term } if is_promise(&group, term) => {
                    promises.push((group, term));
                }
                DurableRecord::Promise { group, .. } => {
                    let why = "its group name or its term is invalid".to_owned();
                    failed.push((format!("the promise for group `{group}`"), why));
                }
                DurableRecord::Acceptor(_) => {} // of an incarnation that never votes again
            }
        }
        if let Some((what, why)) = failed.first().cloned() {
            return Err(StateLoadError { failed: failed.len(), what, why });
        }
        for (group, _) in &promises {
            self.store.know_group(group);
        }
        self.promises.merge(&promises);
        Ok(())
    }

    /// Merges one loaded record, marks the key as on disk, advances the clock to its latest stamp
    /// (which may raise the alarms of a peer's stamp, about this node) and gathers the value for
    /// subscribers. The error states why the record cannot be used; then it changes nothing.
    fn restore_key(
        &mut self,
        now: Now,
        entry: &Entry,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), String> {
        let before = self.before(&entry.key);
        match self.store.take(entry, Self::change(now), self.me, self.fault_injection) {
            Ok(EntryMergeResult::Merged { latest, .. }) => {
                if let Some(latest) = latest {
                    self.observe(now, self.me, latest, out);
                }
            }
            Ok(EntryMergeResult::Lack(_)) => {
                return Err("it builds on changes that are missing".to_owned());
            }
            Err(EntryRefusal::WrongType) => {
                return Err("the key has records of two types".to_owned());
            }
            Err(EntryRefusal::Decode(why)) => return Err(why.to_string()),
        }
        let context = self.store.context(&entry.key);
        self.store.note(&entry.key, |held| held.synced = context);
        self.tell_later(now, &entry.key, before);
        Ok(())
    }
}

/// The time since `then`, in whole milliseconds; 0 if `then` is in the future.
fn age(now: Now, then: Instant) -> u64 {
    u64::try_from((now.mono - then).as_millis()).unwrap_or(u64::MAX)
}

/// The time `age` milliseconds ago, by this host's clock; the clock's zero if that is earlier.
fn ago(now: Now, age: u64) -> Instant {
    let nanos = age.saturating_mul(1_000_000);
    Instant::from_nanos(now.mono.as_nanos().saturating_sub(nanos))
}
