//! The steps of a write that waits for other replicas: the questions of a write-back, and the check
//! whether its result is known. The state of an open write is in `write`.

use std::collections::BTreeSet;

use smallvec::smallvec;

use super::push::name;
use super::request::{RequestError, RequestId};
use super::wire::{Body, Entries};
use super::write::{Write, WritePurpose};
use super::{Replicator, ReplicatorOutbox};
use crate::causal::CausalContext;
use crate::clock::Now;
use crate::id::ReplicaId;
use crate::key::Group;

impl Replicator {
    /// Ends those of these requests whose result is known, oldest first. Duplicates, and requests
    /// that have ended, have no effect.
    pub(super) fn check_writes(
        &mut self,
        mut requests: Vec<RequestId>,
        out: &mut ReplicatorOutbox,
    ) {
        requests.sort_unstable();
        requests.dedup();
        for request in requests {
            self.check_write(request, out);
        }
    }

    /// Ends a request if its result is known: takes it out of its pushes and replies. Does nothing
    /// if it has ended. The deadline is not looked at, and no statistic changes.
    ///
    /// The first of these that holds decides: a group guards the key of an unguarded change
    /// (`GuardedMeanwhile`), this replica has promised a higher term (`Fenced`, never `nowhere`),
    /// enough replicas hold it (the reply), a replica refused it for a higher term (`Fenced`), so
    /// many stores failed that its level cannot be reached (`StoreFailure`).
    pub(super) fn check_write(&mut self, id: RequestId, out: &mut ReplicatorOutbox) {
        let electors = self.electors();
        let Some(write) = self.writes.get(id) else { return };
        let guard = write.guard.as_ref();
        let superseded = guard.and_then(|guard| {
            self.promises.refuses(&guard.group, guard.term, self.fault_injection)
        });
        let fate = if let Some(group) = self.guarded_meanwhile(write) {
            Err(RequestError::GuardedMeanwhile { group })
        } else if let Some(current) = superseded {
            // This replica counts itself, so its own promise must still allow the write.
            Err(RequestError::Fenced { current, nowhere: false })
        } else if write.is_met(&electors) {
            Ok(())
        } else if let Some((current, nowhere)) = write.fenced(&electors) {
            Err(RequestError::Fenced { current, nowhere })
        } else if let Some(failed) = write.store_failed(&electors) {
            Err(RequestError::StoreFailure { failed })
        } else {
            return;
        };
        let Some(write) = self.writes.remove(id) else { return };
        for place in &write.pushes {
            self.pushes.done_waiting(*place, id);
        }
        let (WritePurpose::Change(reply)
        | WritePurpose::ReadRepair(reply)
        | WritePurpose::Recovery(reply)) = write.purpose;
        Self::reply(id, fate.map(|()| reply), out);
    }

    /// The group that guards the key of an unguarded change, if this replica learned of it after
    /// the request began, from a refusal or otherwise. `None` for guarded changes, write-backs and
    /// recovery writes. A request that is in no push, before the end of its batch, is looked up
    /// by its refusals only.
    fn guarded_meanwhile(&self, write: &Write) -> Option<Group> {
        let unguarded = write.guard.is_none() && matches!(write.purpose, WritePurpose::Change(_));
        if !unguarded || !self.store.has_groups() {
            return None;
        }
        if let Some(group) = &write.guarded {
            return Some(group.clone());
        }
        let (push, index) = write.pushes.first()?;
        let key = &self.pushes.get(*push)?.entries.get(*index as usize)?.key;
        self.store.group_of(key, self.store.get(key).map(|held| &**held)).cloned()
    }

    /// Pushes questions for a request to some replicas: `probes`, whose indices must count from 0.
    /// A replica whose context is known is sent at once what it lacks instead, under the same
    /// indices. The push waits for the request and is resent until it is acknowledged; without
    /// replicas it is sent to nobody before the next install. Does nothing without probes.
    pub(super) fn push_to(
        &mut self,
        now: Now,
        probes: &Entries,
        id: RequestId,
        peers: &BTreeSet<ReplicaId>,
        known: impl Fn(&ReplicaId) -> Option<CausalContext>,
        out: &mut ReplicatorOutbox,
    ) {
        if probes.is_empty() {
            return;
        }
        let waiting = vec![smallvec![id]; probes.len()];
        let push = self.pushes.open(now.mono, probes.clone(), waiting.into(), peers);
        if let Some(write) = self.writes.get_mut(id) {
            write.pushes.extend(probes.iter().map(|entry| (push, entry.index)));
        }
        for &to in peers {
            match known(&to) {
                Some(context) => {
                    let repairs = probes.iter();
                    let repairs = repairs
                        .filter_map(|entry| self.repair_for(entry, entry.index, Some(&context)));
                    let repairs = repairs.collect();
                    self.send_repairs(to, name(push, 0), repairs, out);
                }
                None => {
                    let entries = probes.clone();
                    let body = Body::Write { push: name(push, 0), whole: true, entries };
                    self.send(to, body, out);
                }
            }
        }
    }

    /// This replica's own store of a request's entries is durable, and counts while this replica is
    /// eligible. [Checks](Self::check_write) the request. Does nothing if it has ended.
    pub(super) fn here(&mut self, id: RequestId, out: &mut ReplicatorOutbox) {
        if let Some(write) = self.writes.get_mut(id) {
            write.here = true;
        }
        self.check_write(id, out);
    }
}
