//! The handling of local requests. All checks come before the change, so that a refused request has
//! changed nothing.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::durability::WriteCompletion;
use super::epoch::EpochId;
use super::port::{ReplicatorAlarm, ReplicatorOutput};
use super::push::AckRequirement;
use super::quorum::{Level, Need, NeedError};
use super::request::{
    Guard, ModifyError, ReplicatorReply, ReplicatorRequest, RequestError, RequestId,
    SubscriptionId, SubscriptionNotice, Update, UpdateParts, WriteConsistency,
};
use super::store::StoredKey;
use super::write::{Write, WritePurpose};
use super::{Flush, Replicator, ReplicatorOutbox};
use crate::causal::DotSet;
use crate::clock::Now;
use crate::data::Value;
use crate::fault_injection::ReplicatorFault;
use crate::key::{KEY_BYTES_MAX, KeyName, Pattern};
use crate::types::Term;
use crate::types::delta::{Delta, KeyState};
use crate::types::edit::{Author, EditError, Prepared};
use crate::types::shape::Shape;

/// A consistency level above `Local`, resolved in the installed configuration (`epoch`). `within`
/// is the timeout from now.
pub(super) struct ResolvedLevel {
    pub(super) level: Level,
    pub(super) need: Need,
    pub(super) epoch: EpochId,
    pub(super) within: Duration,
}

impl Replicator {
    /// Handles a request, or queues it while durable data is loading. Each request except for
    /// `Subscribe` and `Unsubscribe` gets exactly one reply, now or later. These two are never
    /// queued: because they get no reply, a full queue would drop them unnoticed. While data is
    /// loading, `ReplicaCount` replies 0 at once, and above `max_pending_requests` queued requests
    /// further ones fail with `Overloaded`.
    ///
    /// After the data could not be read, all fail with `NotLoaded`; `Subscribe` and `Unsubscribe`
    /// are ignored.
    pub(super) fn request(
        &mut self,
        now: Now,
        id: RequestId,
        request: ReplicatorRequest,
        out: &mut ReplicatorOutbox,
    ) {
        if self.unreadable {
            return match request {
                ReplicatorRequest::Subscribe { .. } | ReplicatorRequest::Unsubscribe(_) => {}
                _ => Self::reply(id, Err(RequestError::NotLoaded), out),
            };
        }
        if let (Some(_), ReplicatorRequest::ReplicaCount) = (&self.loading, &request) {
            return Self::reply(id, Ok(ReplicatorReply::ReplicaCount(0)), out);
        }
        let is_subscription = matches!(
            request,
            ReplicatorRequest::Subscribe { .. } | ReplicatorRequest::Unsubscribe(_)
        );
        if !is_subscription && let Some(waiting) = &mut self.loading {
            if waiting.len() < self.config.max_pending_requests {
                waiting.push_back((id, request));
            } else {
                let limit = self.config.max_pending_requests;
                Self::reply(id, Err(RequestError::Overloaded { limit }), out);
            }
            return;
        }
        let refused = match request {
            ReplicatorRequest::Get { key, shape, consistency } => {
                self.get(now, id, key, shape, consistency, out)
            }
            ReplicatorRequest::Update(update) => self.update(now, id, update, out),
            ReplicatorRequest::Delete { key, consistency } => {
                self.delete(now, id, &key, consistency, out)
            }
            ReplicatorRequest::Subscribe { subscription, pattern } => {
                self.subscribe(subscription, pattern, out);
                Ok(())
            }
            ReplicatorRequest::Unsubscribe(subscription) => {
                self.subscriptions.remove(subscription);
                Ok(())
            }
            ReplicatorRequest::Keys { prefix, after, limit } => {
                let keys = self.keys(&prefix, after.as_ref(), limit);
                Self::reply(id, Ok(ReplicatorReply::Keys(keys)), out);
                Ok(())
            }
            ReplicatorRequest::ReplicaCount => {
                let members = self.epochs.installed().filter(|_| self.epochs.is_member());
                let count = members.map_or(0, |epoch| epoch.members().len());
                Self::reply(id, Ok(ReplicatorReply::ReplicaCount(count)), out);
                Ok(())
            }
            ReplicatorRequest::FlushChanges { within } => self.flush_changes(now, id, within, out),
            ReplicatorRequest::Fence { group, term, within } => {
                self.fence(now, id, group, term, within, out)
            }
        };
        if let Err(refused) = refused {
            Self::reply(id, Err(refused), out);
        }
    }

    /// Refuses a further open request with `Overloaded` if `max_pending_requests` are open: writes,
    /// reads, fencing reads, flushes, queued requests and those at `Local` that wait for the disk
    /// together.
    pub(super) fn has_room(&self) -> Result<(), RequestError> {
        let limit = self.config.max_pending_requests;
        if self.pending() >= limit { Err(RequestError::Overloaded { limit }) } else { Ok(()) }
    }

    /// Resolves the level of a change of this key; `None` for `Local`.
    ///
    /// # Errors
    /// Those of [`wanted`](Self::wanted), and `Overloaded` at `Local` if the reply must wait for
    /// the disk.
    fn wanted_by_change(
        &self,
        key: &KeyName,
        consistency: WriteConsistency,
    ) -> Result<Option<ResolvedLevel>, RequestError> {
        if let Some((level, within)) = consistency.level() {
            return self.wanted(self.floored(level), within).map(Some);
        }
        if self.config.is_durable(key) && self.config.write_behind_interval.is_none() {
            self.has_room()?;
        }
        Ok(None)
    }

    /// Resolves a level in the installed configuration. The caller has applied the floor with
    /// [`floored`](Self::floored).
    ///
    /// # Errors
    /// In this order: `Overloaded`, `NotJoined` if this replica is no member of the installed
    /// configuration, and those of [`need`](Self::need); nothing was changed.
    pub(super) fn wanted(
        &self,
        level: Level,
        within: Duration,
    ) -> Result<ResolvedLevel, RequestError> {
        self.has_room()?;
        let member = self.epochs.installed().filter(|_| self.epochs.is_member());
        let epoch = member.ok_or(RequestError::NotJoined)?;
        let need = self.need(level)?;
        Ok(ResolvedLevel { level, need, epoch: epoch.id(), within })
    }

    /// Raises the floor (`min_cap`) of a majority to the configured `majority_min_cap`, unless its
    /// own is higher. Other levels stay as they are.
    pub(super) fn floored(&self, level: Level) -> Level {
        match level {
            Level::Majority { additional, min_cap } => {
                let min_cap = min_cap.max(self.config.majority_min_cap);
                Level::Majority { additional, min_cap }
            }
            Level::Count(_) | Level::All => level,
        }
    }

    /// The answers that complete a request of this level in the installed configuration. `All`
    /// needs all members and also a majority of the voters. Members that have announced their stop
    /// are not counted as members, but as voters if they vote.
    ///
    /// # Errors
    /// `NotJoined` without a configuration or without voters, and `NotEnoughReplicas` for a `Count`
    /// above the number of members. A majority never lacks replicas, because its floor is cut to
    /// the number of voters. Whether this replica is a member, and whether there is room, is not
    /// checked.
    pub(super) fn need(&self, level: Level) -> Result<Need, RequestError> {
        let epoch = self.epochs.installed().ok_or(RequestError::NotJoined)?;
        let members = self.electorate.len();
        let need = level.need(super::quorum::Electorate { members, ..epoch.electorate() });
        need.map_err(|error| match error {
            NeedError::NotEnoughReplicas { needed, existing } => {
                RequestError::NotEnoughReplicas { needed, existing }
            }
            NeedError::NoMembers(_) => RequestError::NotJoined,
        })
    }

    /// Refuses a key name that is empty (`EmptyKey`) or longer than [`KEY_BYTES_MAX`] (`TooLarge`).
    fn check_key(key: &KeyName) -> Result<(), RequestError> {
        let bytes = key.as_str().len();
        if bytes == 0 {
            return Err(RequestError::EmptyKey);
        }
        if bytes > KEY_BYTES_MAX {
            return Err(RequestError::TooLarge { bytes, limit: KEY_BYTES_MAX });
        }
        Ok(())
    }

    /// Refuses a shape whose name does not parse (`UnfitType`), because it is sent by name and no
    /// peer could read the key. That is only the empty name of a user type, or a name beyond
    /// [`NAME_MAX`](crate::types::shape::NAME_MAX) bytes or
    /// [`DEPTH_MAX`](crate::types::shape::DEPTH_MAX) levels: a user type's name may contain any
    /// characters.
    fn check_name(shape: &Shape) -> Result<(), RequestError> {
        if shape.to_string().parse::<Shape>().is_err() {
            return Err(RequestError::UnfitType { shape: shape.clone() });
        }
        Ok(())
    }

    /// Refuses a request for another type than the key holds (`WrongType`). An absent key has no
    /// type and passes; a deleted key keeps its type.
    pub(super) fn check_shape(
        held: Option<&StoredKey>,
        expected: &Shape,
    ) -> Result<(), RequestError> {
        match held.map(|held| held.state.shape()) {
            Some(found) if found != expected => {
                Err(RequestError::WrongType { expected: expected.clone(), found: found.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Checks whether a change of this key may be made under this guard. Unguarded changes of
    /// guarded keys are refused with `Guarded`, because they would bypass the fence
    /// (docs/protocol/replication.md#unguarded-writes-are-refused).
    ///
    /// Of a guard is checked, in this order: its group is not empty (`UnfitGroup`), its term is
    /// valid (`UnfitTerm`), its group contains the key (`NotInGroup`), no other group guards the
    /// key (`Guarded` with that group), and this replica has promised no higher term (`Fenced` with
    /// `nowhere`, not counted in the statistics). A guard for a key that no group guards yet
    /// passes, also under a term that was never promised. `held` is the stored key, `None` if it is
    /// absent.
    fn check_guard(
        &self,
        key: &KeyName,
        held: Option<&StoredKey>,
        guard: Option<&Guard>,
    ) -> Result<(), RequestError> {
        let group_of = self.store.group_of(key, held);
        let Some(guard) = guard else {
            return match group_of {
                Some(group) => Err(RequestError::Guarded { group: group.clone() }),
                None => Ok(()),
            };
        };
        if guard.group.as_str().is_empty() {
            return Err(RequestError::UnfitGroup);
        }
        if !guard.term.is_valid() {
            return Err(RequestError::UnfitTerm { term: guard.term });
        }
        if !guard.group.contains(key) {
            return Err(RequestError::NotInGroup { group: guard.group.clone() });
        }
        if let Some(other) = group_of.filter(|group| **group != guard.group) {
            return Err(RequestError::Guarded { group: other.clone() });
        }
        match self.promises.refuses(&guard.group, guard.term, self.fault_injection) {
            Some(current) => Err(RequestError::Fenced { current, nowhere: true }),
            None => Ok(()),
        }
    }

    /// Handles an update: calls the caller's function once all checks but that of the size have
    /// passed, makes the change and adds it to the batch. The group of the guard becomes known and
    /// is recorded with the key, also if the update changes nothing. `Local` needs no
    /// configuration.
    ///
    /// A change that leans ([`Prepared::leans`]) waits until enough replicas hold all that this
    /// replica holds of the key, any other one only its delta.
    ///
    /// An update that changes nothing is answered with the present value and no dots, and is no use
    /// of the key: at once if the key is absent, which creates no key and records no group, and
    /// otherwise once its level is met, like a change, because the result may rest on changes that
    /// others do not hold yet. The size of an existing key is checked in this case as well, which
    /// may correct its estimate or raise the warning.
    ///
    /// # Errors
    /// The reason of the refusal, to be sent as the reply, in this order: `EmptyKey` or `TooLarge`
    /// (name), `NotRegistered`, `UnfitType` (new keys only), `WrongType`, those of
    /// [`check_guard`](Self::check_guard), `TooWeak` for a guard with any level other than a
    /// majority or `All`, those of [`wanted_by_change`](Self::wanted_by_change), those of
    /// [`refusal`], `TooLarge` (value). Nothing was changed but, from the function's call on, the
    /// clock.
    fn update(
        &mut self,
        now: Now,
        id: RequestId,
        update: Update,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), RequestError> {
        let UpdateParts { key, shape, consistency, guard, told, modify } = *update.0;
        Self::check_key(&key)?;
        self.registry.check(&shape)?;
        let held = self.store.get(&key).cloned();
        if held.is_none() {
            Self::check_name(&shape)?;
        }
        Self::check_shape(held.as_deref(), &shape)?;
        self.check_guard(&key, held.as_deref(), guard.as_ref())?;
        let level = consistency.level().map(|(level, _)| level);
        if guard.is_some() && !matches!(level, Some(Level::Majority { .. } | Level::All)) {
            return Err(RequestError::TooWeak);
        }
        let wanted = self.wanted_by_change(&key, consistency)?;
        let time = self.clock.tick(now.wall);
        let term = guard.as_ref().map(|guard| guard.term);
        let author = Author { replica: self.me, time, term, fault_injection: self.fault_injection };
        let fresh;
        let state = if let Some(held) = &held {
            &held.state
        } else {
            fresh = KeyState::new(shape.clone());
            &fresh
        };
        let prepared = modify(state, author).map_err(|error| refusal(error, term))?;
        if prepared.delta().is_empty() && held.is_none() {
            let (value, dots) = (told.then(|| Value::new(KeyState::new(shape))), DotSet::new());
            Self::reply(id, Ok(ReplicatorReply::Updated { value, dots }), out);
            return Ok(()); // nothing changed and no key was created, so there is nothing to push
        }
        let size = held.as_ref().map_or(0, |held| held.size);
        let bytes = self.check_size(now, &key, size, &prepared, out)?;
        let before = self.before(&key);
        drop(held); // a second reference would make the change copy the state
        let at = Self::change(now).sized(bytes);
        let awaits = if prepared.leans() { AckRequirement::All } else { AckRequirement::Delta };
        let (delta, value) = if prepared.delta().is_empty() {
            (prepared.delta().clone(), if told { self.value(&key) } else { None })
        } else {
            self.store.change(&key, &shape, at, |state| {
                let delta = state.make(prepared);
                (delta, (told && !state.is_bottom()).then(|| Value::new(state.snapshot())))
            })
        };
        if let Some(guard) = &guard {
            self.store.know_group(&guard.group);
            self.store.set_group(&key, &guard.group); // every entry of the key carries its group
        }
        let value = told.then(|| value.unwrap_or_else(|| Value::new(KeyState::new(shape))));
        let reply = ReplicatorReply::Updated { value, dots: delta.dots().clone() };
        let change = (&delta, awaits);
        self.changed(now, id, &key, change, guard, before, wanted.as_ref(), reply, out);
        Ok(())
    }

    /// Handles a delete request, whatever the type of the key. Deleting an absent key succeeds at
    /// once, at any level. The value of a key that is deleted already does not change (only the
    /// clock and its last use do), but the reply waits until its level holds all that this replica
    /// holds of the key.
    ///
    /// # Errors
    /// The reason of the refusal, to be sent as the reply, also for an absent key, in this order: a
    /// bad name (`EmptyKey`, `TooLarge`), `Guarded` (there is no guarded delete), and those of
    /// [`wanted_by_change`](Self::wanted_by_change). Nothing was changed.
    fn delete(
        &mut self,
        now: Now,
        id: RequestId,
        key: &KeyName,
        consistency: WriteConsistency,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), RequestError> {
        Self::check_key(key)?;
        let held = self.store.get(key);
        self.check_guard(key, held.map(Arc::as_ref), None)?;
        let wanted = self.wanted_by_change(key, consistency)?;
        let Some(shape) = held.map(|held| held.state.shape().clone()) else {
            Self::reply(id, Ok(ReplicatorReply::Deleted { dots: DotSet::new() }), out);
            return Ok(());
        };
        let before = self.before(key);
        let delta = self.delete_seen(now, key, &shape);
        let reply = ReplicatorReply::Deleted { dots: delta.dots().clone() };
        let change = (&delta, AckRequirement::All); // the delta does not contain earlier removals
        self.changed(now, id, key, change, None, before, wanted.as_ref(), reply, out);
        Ok(())
    }

    /// Deletes the dots of a key that this replica has seen. A concurrent update survives
    /// (docs/protocol/replication.md#delete-removes-only-what-was-seen). The key keeps its causal
    /// context and type. Returns the delta, empty if nothing was live; the caller pushes it,
    /// notifies subscribers and orders it to disk. Advances the clock and counts as a use of the
    /// key, also if nothing was live. The key must exist: an absent one would be created empty.
    pub(super) fn delete_seen(&mut self, now: Now, key: &KeyName, shape: &Shape) -> Delta {
        let author = Author::new(self.me, self.clock.tick(now.wall));
        let (change, unseen) =
            (Self::change(now), self.fault_injection.has(ReplicatorFault::DeleteErasesUnseen));
        self.store.change(key, shape, change, |state| {
            if unseen { state.delete_unseen(author) } else { state.delete(author) }
        })
    }

    /// The value of a key before a change, for the notice to subscribers. `None` if no subscription
    /// matches the key, or if it is absent or deleted.
    pub(super) fn before(&self, key: &KeyName) -> Option<Value> {
        if self.subscriptions.has(key) { self.value(key) } else { None }
    }

    /// The value of a key; `None` if it is absent or deleted.
    pub(super) fn value(&self, key: &KeyName) -> Option<Value> {
        let held = self.store.get(key).filter(|held| !held.state.is_bottom())?;
        Some(Value::new(held.state.snapshot()))
    }

    /// Completes a local change that the store has made: gathers it for the subscribers, adds it to
    /// the batch and orders it to disk. Then it replies at `Local` (`wanted` is `None`; after the
    /// disk, if durable without write-behind), or opens a request that waits until enough replicas
    /// hold the change. Whether this replica alone is enough is not checked here, but at the end of
    /// the batch.
    ///
    /// An empty delta notifies nobody and is not counted; a request at a higher level still waits,
    /// by a question to the others, and a durable key of which a part is not on disk is still
    /// ordered. If the batch holds a change of the key under another term, the batch is pushed
    /// before. This replica counts as a holder at once, or once the key is on disk.
    #[expect(clippy::too_many_arguments, reason = "a change and its consequences")]
    fn changed(
        &mut self,
        now: Now,
        id: RequestId,
        key: &KeyName,
        (delta, awaits): (&Delta, AckRequirement),
        guard: Option<Guard>,
        before: Option<Value>,
        wanted: Option<&ResolvedLevel>,
        reply: ReplicatorReply,
        out: &mut ReplicatorOutbox,
    ) {
        let made = (!delta.is_empty()).then_some(delta);
        if made.is_some() {
            self.stats.updates += 1;
            self.tell_later(now, key, before);
            self.noted_change(now);
        }
        let durable = self.config.is_durable(key);
        let waits = durable && self.persist_key(now, key);
        let stands_for_all = self.fault_injection.has(ReplicatorFault::DeltaStandsForAll);
        let awaits = if stands_for_all { AckRequirement::Delta } else { awaits };
        let waiting = wanted.is_some().then_some((id, awaits));
        if made.is_some() || waiting.is_some() {
            let term = guard.as_ref().map(|guard| guard.term);
            if self.pushes.has_other(key, term) {
                self.flush(now, out);
            }
            self.pushes.add(now.mono, key, made, term, waiting);
        }
        let Some(&ResolvedLevel { level, need, epoch, within }) = wanted else {
            if waits {
                self.persist(vec![WriteCompletion::Reply(id, Box::new(reply))], [key], out);
            } else {
                Self::reply(id, Ok(reply), out);
            }
            return;
        };
        let mut write =
            Write::new(WritePurpose::Change(reply), level, need, epoch, now.mono + within, 1);
        write.here = !waits;
        write.guard = guard;
        self.writes.insert(id, write);
        if waits {
            self.persist(vec![WriteCompletion::Here(id)], [key], out);
        }
    }

    /// Adds a change to the next notice to subscribers, which a later tick sends; `before` is the
    /// value before it. Does nothing if no subscription matches the key, or the key is gathered for
    /// that notice already.
    pub(super) fn tell_later(&mut self, now: Now, key: &KeyName, before: Option<Value>) {
        let interval = self.config.notify_subscribers_interval;
        self.subscriptions.changed(now.mono, interval, key, || before);
    }

    /// Refuses a local change that would make a value larger than `max_value_size` (`TooLarge`),
    /// and warns of one above `log_data_size_exceeding`. Returns an estimate of its growth in
    /// bytes. `size` is the estimate for the value so far.
    ///
    /// A change that adds nothing is never refused, so that a value that merges made too large can
    /// shrink. The value is measured only if the estimate exceeds `max_value_size`, or exceeds the
    /// other bound and a warning may be raised; only the measured size refuses or warns. Unless it
    /// is refused, it replaces the stored estimate of an existing key. The warning comes at most
    /// once a minute over all keys, and never for keys of a group for which a term is promised
    /// here.
    fn check_size(
        &mut self,
        now: Now,
        key: &KeyName,
        size: usize,
        prepared: &Prepared,
        out: &mut ReplicatorOutbox,
    ) -> Result<usize, RequestError> {
        let (warn, limit) = (self.config.log_data_size_exceeding, self.config.max_value_size);
        let grows = prepared.delta().size();
        let estimate = size + grows;
        if estimate <= warn {
            return Ok(grows);
        }
        // Guarded keys belong to the library, so the user could not act on the warning.
        let alarms = self.large_value_alarm_is_due(now) && !self.promises.covers(key);
        if estimate <= limit && !alarms {
            return Ok(grows);
        }
        // The estimate never shrinks: it still counts overwritten and removed content. Measure.
        let bytes = prepared.size();
        if bytes > limit && prepared.delta().adds() {
            return Err(RequestError::TooLarge { bytes, limit });
        }
        self.store.note(key, |held| held.size = bytes.saturating_sub(grows));
        if bytes > warn && alarms {
            self.alarm(now, ReplicatorAlarm::LargeValue { key: key.clone(), bytes }, out);
        }
        Ok(grows)
    }

    /// Opens a subscription and notifies it of all present values, in the order of names, each with
    /// `before: None`. Absent and deleted keys give no notice. Replaces an open subscription with
    /// the same id. Gathered changes are first reported to the subscriptions open before (the
    /// replaced one included), without waiting for the interval.
    fn subscribe(
        &mut self,
        subscription: SubscriptionId,
        pattern: Pattern,
        out: &mut ReplicatorOutbox,
    ) {
        self.tell_now(out); // gathered changes go out first: the newcomer must not see them twice
        let current: Vec<(KeyName, Value)> = match &pattern {
            Pattern::Exact(key) => {
                self.value(key).map(|value| (key.clone(), value)).into_iter().collect()
            }
            Pattern::Prefix(prefix) => {
                let matching = self.store.by_name(prefix, Bound::Unbounded);
                let live = matching.filter(|held| !held.state.is_bottom());
                live.map(|h| (h.key.clone(), Value::new(h.state.snapshot()))).collect()
            }
        };
        self.subscriptions.add(subscription, pattern);
        for (key, value) in current {
            let notice = SubscriptionNotice::Changed { key, value, before: None };
            out.push(ReplicatorOutput::Notify { subscription, notice });
        }
    }

    /// Lists at most `limit` live keys with a prefix, in the order of names. `after` itself is left
    /// out; it need not exist or have the prefix. Deleted keys are not listed.
    fn keys(&self, prefix: &str, after: Option<&KeyName>, limit: usize) -> Vec<KeyName> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let live = self.store.by_name(prefix, from).filter(|held| !held.state.is_bottom());
        live.take(limit).map(|held| held.key.clone()).collect()
    }

    /// Handles a flush: pushes the batch, and waits until all open pushes are delivered to the
    /// peers that lack them and all peers that were left behind have been found equal. Replies at
    /// once if there are none. Later changes are not waited for. Until no flush is open, these
    /// pushes are not left to anti-entropy. No comparison is started for the peers that were left
    /// behind.
    ///
    /// # Errors
    /// First `Overloaded`, then `NotJoined` if this replica is no member. Nothing was pushed.
    fn flush_changes(
        &mut self,
        now: Now,
        id: RequestId,
        within: Duration,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), RequestError> {
        self.has_room()?;
        if !self.epochs.is_member() {
            return Err(RequestError::NotJoined);
        }
        self.flush(now, out);
        let (open, behind) = (self.pushes.keep_all(), self.pushes.left_behind());
        self.flushes.insert(id, Flush { open, behind, deadline: now.mono + within });
        self.check_flushes(out);
        Ok(())
    }
}

/// The error for an edit that failed: `Stale` if a register holds a higher stamp, but `Fenced` if
/// that stamp has a higher term than this guarded edit; `ModifyFailure` for all other reasons.
fn refusal(error: EditError, term: Option<Term>) -> RequestError {
    match error {
        EditError::Stale { live, .. } if term.is_some_and(|term| live.term > term) => {
            RequestError::Fenced { current: live.term, nowhere: true }
        }
        EditError::Stale { .. } => RequestError::Stale(ModifyError(Arc::new(error))),
        _ => RequestError::ModifyFailure(ModifyError(Arc::new(error))),
    }
}
