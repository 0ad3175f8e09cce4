//! Fencing reads: taking a term, from the question to the recovery write, and promising terms to
//! other owners.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::durability::WriteCompletion;
use super::epoch::EpochId;
use super::fence::{Fencing, GROUPS_MAX, PromiseRefusal, is_promise};
use super::port::{LaneClass, ReplicatorOutput};
use super::quorum::{Level, quorum_size};
use super::read_protocol::merge_into;
use super::request::{Guard, ReplicatorReply, RequestError, RequestId};
use super::requests::ResolvedLevel;
use super::wire::{Body, Entry, KeyContext, ReplicatorMessage, WireGuard};
use super::write::{Write, WritePurpose};
use super::{Replicator, ReplicatorOutbox};
use crate::causal::CausalContext;
use crate::clock::Now;
use crate::data::Value;
use crate::durable::DurableRecord;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;
use crate::key::{Group, KEY_BYTES_MAX, KeyName};
use crate::types::Term;
use crate::types::delta::KeyState;

/// A plain majority, which a recovery write needs: unlike the promises, it has no tie rule.
const MAJORITY: Level = Level::Majority { additional: 0, min_cap: 0 };

impl Replicator {
    /// Handles a `Fence` request: checks it and starts the fencing read, which replies later or, if
    /// this replica alone is a quorum, at once (with durable keys once its promise is on disk). A
    /// term that is promised here already may be taken again. The owner is not checked.
    ///
    /// # Errors
    /// `NotJoined`, `Overloaded`, `UnfitGroup` for an empty group, `TooLarge` for a long one,
    /// `UnfitTerm`, `TermJumps`, `TooManyGroups`, and `Fenced` if a higher term is promised here.
    /// Nothing was promised or sent.
    pub(super) fn fence(
        &mut self,
        now: Now,
        id: RequestId,
        group: Group,
        term: Term,
        within: Duration,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), RequestError> {
        let ResolvedLevel { epoch, within, .. } = self.wanted(MAJORITY, within)?;
        if group.as_str().is_empty() {
            return Err(RequestError::UnfitGroup);
        }
        if !term.is_valid() {
            return Err(RequestError::UnfitTerm { term });
        }
        let (bytes, limit) = (group.as_str().len(), KEY_BYTES_MAX);
        if bytes > limit {
            return Err(RequestError::TooLarge { bytes, limit });
        }
        let highest = self.promises.highest_near(&group, epoch.generation);
        if term.number > highest {
            return Err(RequestError::TermJumps { term, highest });
        }
        if !self.promises.has_room(&group) {
            return Err(RequestError::TooManyGroups { limit: GROUPS_MAX });
        }
        let current = self.promises.get(&group);
        if term <= current && self.promises.refuses(&group, term, self.fault_injection).is_some() {
            return Err(RequestError::Fenced { current, nowhere: true });
        }
        let fencing = Fencing {
            group,
            term,
            epoch,
            deadline: now.mono + within,
            resend: now.mono,
            resends: 0,
            merged: BTreeMap::new(),
            answers: BTreeMap::new(),
            asked: BTreeMap::new(),
        };
        self.begin_fence(now, id, fencing, out);
        Ok(())
    }

    /// Starts a fencing read, or starts it anew in another configuration: drops the answers, keeps
    /// the merged data, promises the term here and asks the other voters, even before the own
    /// promise is on disk. Replies with an error and ends the read if this replica must not promise
    /// the term; that is not counted in `fenced`.
    fn begin_fence(
        &mut self,
        now: Now,
        id: RequestId,
        mut fencing: Fencing,
        out: &mut ReplicatorOutbox,
    ) {
        fencing.answers.clear();
        fencing.resends = 0;
        fencing.asked = self.include_group(&mut fencing);
        if let Err(refusal) = self.promise_own(id, &mut fencing, out) {
            return Self::reply(id, Err(refusal.into()), out);
        }
        fencing.resend = now.mono + self.trips.patience(0);
        self.ask_promises(id, &fencing, out);
        self.fencings.insert(id, fencing);
        self.check_fence(now, id, out);
    }

    /// Promises the term if this replica is an eligible voter; otherwise does nothing and returns
    /// `Ok`. The group becomes known, which guards its keys. The promise counts at once or, with
    /// durable keys, once it is on disk; each call orders a write.
    ///
    /// # Errors
    /// [`PromiseRefusal`]: a higher term is promised here, or there is no room; then the read
    /// cannot succeed.
    fn promise_own(
        &mut self,
        id: RequestId,
        fencing: &mut Fencing,
        out: &mut ReplicatorOutbox,
    ) -> Result<(), PromiseRefusal> {
        if !(self.eligible() && self.epochs.is_voter()) {
            return Ok(());
        }
        let (group, term) = (fencing.group.clone(), fencing.term);
        self.promises.promise(&group, term, self.fault_injection)?;
        self.store.know_group(&group);
        if self.is_durable() {
            let after = WriteCompletion::Promised(id, fencing.epoch);
            self.persist_records(vec![DurableRecord::Promise { group, term }], vec![after], out);
        } else {
            fencing.answers.insert(self.me, self.vouched_of(&group));
        }
        Ok(())
    }

    /// The contexts of the group's keys that this replica vouches for, see
    /// [`vouched`](Self::vouched).
    fn vouched_of(&self, group: &Group) -> BTreeMap<KeyName, CausalContext> {
        let keys = self.store.of_group(group);
        keys.map(|held| (held.key.clone(), self.vouched(held))).collect()
    }

    /// This replica's own promise is durable and counts now, with the contexts that it vouches for
    /// by now, which may complete the read. Ignored if the read has ended or counts in another
    /// configuration than `epoch`, or if this replica is no eligible voter any longer. A higher
    /// promise since then does not matter here: it ends a recovery write.
    pub(super) fn promised_here(
        &mut self,
        now: Now,
        id: RequestId,
        epoch: EpochId,
        out: &mut ReplicatorOutbox,
    ) {
        let serves = self.eligible() && self.epochs.is_voter();
        let Some(group) = self.fencings.get_mut(id).map(|fencing| fencing.group.clone()) else {
            return;
        };
        let answer = self.vouched_of(&group);
        if let Some(fencing) = self.fencings.get_mut(id)
            && fencing.epoch == epoch
            && serves
        {
            fencing.answers.insert(self.me, answer);
            self.check_fence(now, id, out);
        }
    }

    /// Merges this replica's data of the group into the read; returns its contexts. That includes
    /// durable data that is not on disk yet.
    fn include_group(&self, fencing: &mut Fencing) -> BTreeMap<KeyName, CausalContext> {
        let mut contexts = BTreeMap::new();
        for held in self.store.of_group(&fencing.group) {
            let state = held.state.snapshot();
            contexts.insert(held.key.clone(), state.context().clone());
            if let Some(merged) = fencing.merged.get_mut(&held.key) {
                merged.merge(&state);
            } else {
                fencing.merged.insert(held.key.clone(), state);
            }
        }
        contexts
    }

    /// Adds this replica's own promise and data to every fencing read that lacks them, when it has
    /// become eligible. Ends reads that are then complete, and fails those whose term it must not
    /// promise. If it is no eligible voter, the data is merged all the same.
    pub(super) fn promise_here(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        for id in self.fencings.ids() {
            let Some(mut fencing) = self.fencings.remove(id) else { continue };
            if !fencing.answers.contains_key(&self.me) {
                self.include_group(&mut fencing);
                if let Err(refusal) = self.promise_own(id, &mut fencing, out) {
                    Self::reply(id, Err(refusal.into()), out);
                    continue;
                }
            }
            self.fencings.insert(id, fencing);
            self.check_fence(now, id, out);
        }
    }

    /// Sends the question to the other voters that have not promised, with the contexts as they
    /// were when the read was started (anew).
    fn ask_promises(&mut self, id: RequestId, fencing: &Fencing, out: &mut ReplicatorOutbox) {
        let held: Vec<KeyContext> =
            fencing.asked.iter().map(|(key, context)| KeyContext::new(key, context)).collect();
        let voters = self.electors().voters.to_vec();
        for to in voters {
            if to == self.me || fencing.answers.contains_key(&to) {
                continue;
            }
            let (group, term) = (fencing.group.clone(), fencing.term);
            self.send(to, Body::Fence { request: id.0, group, term, held: held.clone() }, out);
        }
    }

    /// A peer asks for the promise of a term. This replica promises it, which refuses all lower
    /// terms from now on, makes the group known, and answers `Promised` with what the asker lacks,
    /// once the promise is on disk if keys are durable. A repeated question is answered again. If a
    /// higher term is promised, it answers `NotPromised`.
    ///
    /// No answer and no promise, in this order: this replica has another configuration or is no
    /// eligible voter; the asker is no member (counted as a stranger); the group or term cannot be,
    /// or the term jumps (an alarm); a context in the question does not decode (an alarm); there is
    /// no room for a promise. If the promise cannot be written, it stays without an answer.
    #[expect(clippy::too_many_arguments, reason = "a message's fields")]
    pub(super) fn on_fence(
        &mut self,
        now: Now,
        from: ReplicaId,
        same_epoch: bool,
        request: u64,
        group: &Group,
        term: Term,
        held: &[KeyContext],
        out: &mut ReplicatorOutbox,
    ) {
        let serves = self.eligible() && self.epochs.is_voter();
        let answers = serves
            || (self.fault_injection.has(ReplicatorFault::FenceWhileSealed)
                && self.epochs.sealed());
        if !same_epoch || !answers {
            return; // it asks again, once it has heard of the newer configuration
        }
        let installed = self.epochs.installed().filter(|epoch| epoch.is_member(from));
        let Some(generation) = installed.map(|epoch| epoch.id().generation) else {
            self.stats.strangers += 1; // it may join or have left: it asks again
            return;
        };
        if !is_promise(group, term) || term.number > self.promises.highest_near(group, generation) {
            let (bytes, number) = (group.as_str().len(), term.number);
            let why = format!(
                "a fence for term {number} of a group with a name of {bytes} bytes: the name is \
                 empty or too long, or the term is 0 or jumps"
            );
            return self.refused(now, from, why, out);
        }
        // Decoded before the promise, because a promise must be answered and, with durable keys,
        // written.
        let theirs: Result<BTreeMap<_, _>, _> = held
            .iter()
            .map(|held| held.context.decode().map(|context| (&held.key, context)))
            .collect();
        let Ok(theirs) = theirs else { return self.undecodable(now, from, "a context", out) };
        match self.promises.promise(group, term, self.fault_injection) {
            Ok(_) => {
                self.store.know_group(group);
                let body = self.promised(request, group, theirs);
                if self.is_durable() {
                    let message = ReplicatorMessage { epoch: self.epochs.id(), body };
                    let send = ReplicatorOutput::Send { to: from, class: LaneClass::Data, message };
                    let record = DurableRecord::Promise { group: group.clone(), term };
                    self.persist_records(
                        vec![record],
                        vec![WriteCompletion::Send(vec![send])],
                        out,
                    );
                } else {
                    self.send(from, body, out);
                }
            }
            Err(PromiseRefusal::Higher(current)) => {
                self.send(from, Body::NotPromised { request, current }, out);
            }
            Err(PromiseRefusal::NoRoom) => {} // docs/protocol/leases.md#promised-terms-never-fall
        }
    }

    /// The answer with a promise: what this replica holds of the group and the asker lacks, and the
    /// contexts that differ from the asked ones (an empty one for a key that is not held here).
    fn promised(
        &self,
        request: u64,
        group: &Group,
        mut theirs: BTreeMap<&KeyName, CausalContext>,
    ) -> Body {
        let nothing = CausalContext::new();
        let (mut differing, mut entries) = (Vec::new(), Vec::new());
        for mine in self.store.of_group(group) {
            let asked = theirs.remove(&mine.key).unwrap_or_default();
            let vouched = self.vouched(mine);
            if asked != vouched {
                differing.push(KeyContext::new(&mine.key, &vouched));
            }
            entries.extend(mine.repair(&asked));
        }
        let unknown = theirs.iter().filter(|(_, context)| !context.is_empty());
        differing.extend(unknown.map(|(key, _)| KeyContext::new(key, &nothing)));
        Body::Promised { request, counts: true, differing, entries }
    }

    /// Handles a promise. Merges each entry into the store in any case, and into the read if that
    /// is still open and the key belongs to its group. Counts the promise only as a whole: if every
    /// entry of the group was merged, the answer counts in the configuration of the read, and it
    /// has brought all data that its contexts claim. A promise that claims more, or has a context
    /// that does not decode, raises an alarm.
    ///
    /// Replaces an earlier answer of the sender, of which [`check_fence`](Self::check_fence) counts
    /// voters only. Completes the read if that makes a quorum.
    #[expect(clippy::too_many_arguments, reason = "a message's fields")]
    pub(super) fn on_promised(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: Option<EpochId>,
        id: RequestId,
        counts: bool,
        differing: &[KeyContext],
        entries: &[Entry],
        out: &mut ReplicatorOutbox,
    ) {
        // Each entry that this replica takes is merged, but the answer counts only as a whole. What
        // it refuses must not be returned either: the recovery write could not write it back.
        let mut whole = true;
        for entry in entries {
            let taken = self.take_entry(now, from, entry, out);
            let fencing = self.fencings.get_mut(id);
            let Some(fencing) = fencing.filter(|f| f.group.contains(&entry.key)) else { continue };
            if !taken {
                whole = false;
                continue;
            }
            let mut merged = fencing.merged.remove(&entry.key);
            whole &= merge_into(&mut merged, entry);
            fencing.merged.extend(merged.map(|state| (entry.key.clone(), state)));
        }
        if self.fencings.get_mut(id).is_none() {
            return;
        }
        let decoded: Result<Vec<_>, _> = differing
            .iter()
            .map(|held| held.context.decode().map(|context| (held.key.clone(), context)))
            .collect();
        let Ok(decoded) = decoded else { return self.undecodable(now, from, "a context", out) };
        let Some(fencing) = self.fencings.get_mut(id) else { return };
        if !whole || !counts || epoch != Some(fencing.epoch) {
            return;
        }
        let nothing = CausalContext::new();
        let is_brought = |(key, vouched): &(KeyName, CausalContext)| {
            fencing.merged.get(key).map_or(&nothing, KeyState::context).includes(vouched)
        };
        if !decoded.iter().all(is_brought) {
            // As in a read: the returned values would lack what this replica vouches for.
            let why = format!("a promise for group `{}` claims data that it lacks", fencing.group);
            return self.refused(now, from, why, out);
        }
        let mut answer = fencing.asked.clone();
        answer.extend(decoded);
        fencing.answers.insert(from, answer);
        self.check_fence(now, id, out);
    }

    /// A voter has promised a higher term: counts it and ends the read with `Fenced`, even if
    /// others have promised, and in whatever configuration it answered. The answer of a node that
    /// is no voter is counted as a stranger's (checked first), and an impossible term raises an
    /// alarm. Ignored if the read has ended or the named term is not higher.
    pub(super) fn on_not_promised(
        &mut self,
        now: Now,
        from: ReplicaId,
        id: RequestId,
        current: Term,
        out: &mut ReplicatorOutbox,
    ) {
        if !self.epochs.installed().is_some_and(|epoch| epoch.is_voter(from)) {
            self.stats.strangers += 1;
            return;
        }
        if !current.is_valid() && current != Term::default() {
            let why = format!("a refused fence names the impossible term {}", current.number);
            return self.refused(now, from, why, out);
        }
        if self.fencings.get_mut(id).is_some_and(|fencing| current > fencing.term) {
            self.fencings.remove(id);
            self.stats.fenced += 1;
            let error = RequestError::Fenced { current, nowhere: false };
            Self::reply(id, Err(error), out);
        }
    }

    /// Completes a fencing read that has a quorum of promises, by the tie rule. If all replicas
    /// that promised hold the same, it replies at once, with the values of all keys that are not
    /// deleted. Otherwise the read becomes a recovery write of the keys that differ, deleted ones
    /// included: under the term, at a majority, until the read's deadline; its end sends the reply,
    /// with the values of now. Does nothing without a quorum.
    fn check_fence(&mut self, now: Now, id: RequestId, out: &mut ReplicatorOutbox) {
        let Some(fencing) = self.fencings.get_mut(id) else { return };
        if !self.epochs.is_quorum(&fencing.answered()) {
            return;
        }
        let Some(fencing) = self.fencings.remove(id) else { return };
        let values = fencing.merged.iter().filter(|(_, state)| !state.is_bottom());
        let values = values.map(|(key, state)| (key.clone(), Value::new(state.clone()))).collect();
        let reply = ReplicatorReply::Fenced { term: fencing.term, values };
        let differing = fencing.differing();
        let need = self.need(MAJORITY);
        let (Ok(need), false) = (
            need,
            differing.is_empty() || self.fault_injection.has(ReplicatorFault::NoRecoveryWrite),
        ) else {
            return Self::reply(id, Ok(reply), out);
        };
        cov_mark::hit!(recovery_write);
        let guard = WireGuard { group: fencing.group.clone(), term: Some(fencing.term) };
        let mut entries: Vec<Entry> = Vec::new();
        for key in &differing {
            let Some(held) = self.store.get(key) else { continue };
            let index = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            entries.push(Entry { index, guard: Some(guard.clone()), ..held.probe() });
        }
        let purpose = WritePurpose::Recovery(reply);
        let (epoch, deadline) = (fencing.epoch, fencing.deadline);
        let mut write = Write::new(purpose, MAJORITY, need, epoch, deadline, entries.len());
        write.guard = Some(Guard { group: fencing.group, term: fencing.term });
        let mut stored = Vec::new();
        for key in &differing {
            if self.config.is_durable(key) && self.persist_key(now, key) {
                stored.push(key.clone());
            }
        }
        write.here = stored.is_empty();
        self.writes.insert(id, write);
        if !stored.is_empty() {
            self.persist(vec![WriteCompletion::Here(id)], &stored, out);
        }
        let voters: BTreeSet<ReplicaId> = self.electors().voters.iter().copied().collect();
        let peers = voters.into_iter().filter(|voter| *voter != self.me).collect();
        self.push_to(now, &entries.into(), id, &peers, |_| None, out);
        self.check_write(id, out);
    }

    /// Fails fencing reads whose deadline has passed with `Timeout`, and asks the voters again that
    /// have not promised, with growing intervals, which also lengthen the patience of other
    /// questions of this replica.
    pub(super) fn tick_fences(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        for (id, mut fencing) in self.fencings.take_due(now.mono) {
            if fencing.deadline <= now.mono {
                let answered = fencing.answered();
                let needed = self.epochs.installed().map_or(1, |epoch| {
                    quorum_size(epoch.voters().len(), answered.contains(&epoch.tiebreaker()))
                });
                self.timed_out(id, &answered, needed, out);
                continue;
            }
            fencing.resends += 1;
            fencing.resend = now.mono + self.trips.asked_again(fencing.resends);
            self.ask_promises(id, &fencing, out);
            self.fencings.insert(id, fencing);
        }
    }

    /// Starts every fencing read anew in the installed configuration, with its old deadline. Reads
    /// that this replica must not promise for end with an error.
    pub(super) fn restart_fences(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        for (id, mut fencing) in self.fencings.take_all() {
            let Some(epoch) = self.epochs.id() else { continue };
            fencing.epoch = epoch;
            self.begin_fence(now, id, fencing, out);
        }
    }
}
