//! The end of a batch: its changes are joined per key, cut into frames and pushed to the other
//! replicas (docs/protocol/replication.md#push-to-all-at-the-end-of-the-batch).

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::batch::{BatchedChange, EntryWaiters, PushWaiters};
use super::push::{guard_of, name};
use super::request::RequestId;
use super::store::StoredKey;
use super::wire::{Body, Entries, Entry, EntryContent};
use super::{Replicator, ReplicatorOutbox};
use crate::clock::Now;
use crate::id::ReplicaId;

impl Replicator {
    /// Pushes the changes of this batch, and leaves the requests that wait for them to the
    /// acknowledgements. A replica that is not a member yet keeps the changes until it is; an
    /// excluded one drops them. Changes of a sealed member are pushed like any other.
    ///
    /// The entries are cut into frames, each a push of its own. A push that a request of level
    /// `Count` or `All` waits for goes to all peers, any other to the [targets](Self::push_targets)
    /// of this batch. Does nothing without changes.
    pub(super) fn flush(&mut self, now: Now, out: &mut ReplicatorOutbox) {
        if self.pushes.fresh_since().is_none() {
            return;
        }
        if !self.epochs.is_member() && !self.epochs.is_excluded() {
            // Joiners push nothing (docs/protocol/replication.md#joiners-push-nothing): a node with
            // an old data directory would spread deleted data before it has seen the deletions.
            return self.pushes.put_off();
        }
        let fresh = self.pushes.take_fresh();
        if self.epochs.is_excluded() {
            return; // an excluded replica never becomes a member again
        }
        let mut entries = Vec::with_capacity(fresh.len());
        let mut waiting = Vec::with_capacity(fresh.len()); // one for each of `entries`
        for (key, mut fresh) in fresh {
            let Some(held) = self.store.get(&key) else { continue };
            // Requests that were answered within the batch would never be removed from the push.
            fresh.waiting.retain(|id| self.writes.get(*id).is_some());
            fresh.asking.retain(|id| self.writes.get(*id).is_some());
            let term = fresh.term;
            for (content, waits) in Self::told(held, fresh, self.config.delta_enabled) {
                let guard = guard_of(held.guard(), term);
                waiting.push(waits);
                entries.push(Entry { guard, ..held.entry(content) });
            }
        }
        let everybody = self.push_targets();
        let mut waiting = waiting.into_iter();
        for mut entries in self.in_frames(entries) {
            for (index, entry) in (0_u32..).zip(&mut entries) {
                entry.index = index;
            }
            let waits: Vec<EntryWaiters> = waiting.by_ref().take(entries.len()).collect();
            let waits = PushWaiters::from(waits);
            let all = waits.iter().any(|(_, id)| self.writes.wait_for_all(id));
            let peers = if all { &self.peers.clone() } else { &everybody };
            self.open_push(now, &entries.into(), waits, peers, out);
        }
    }

    /// The contents to push for a changed key, each with the requests that wait for it: the change
    /// first, then a probe for everything held here, so that the probe finds the change applied.
    /// Without `deltas` the full state is sent instead of the change, and needs no probe. Without a
    /// change there is a probe only; without any waiting request too, nothing.
    fn told(
        held: &StoredKey,
        fresh: BatchedChange,
        deltas: bool,
    ) -> SmallVec<[(EntryContent, EntryWaiters); 2]> {
        let BatchedChange { delta, mut waiting, mut asking, .. } = fresh;
        let mut told = SmallVec::new();
        if let Some(delta) = delta {
            let content = if deltas {
                EntryContent::Delta(delta.encode().into())
            } else {
                waiting.append(&mut asking);
                EntryContent::Full(held.state.encode().into())
            };
            told.push((content, waiting));
        }
        if !asking.is_empty() {
            told.push((held.probe().content, asking));
        }
        told
    }

    /// Opens a push and sends it to `peers`. Without peers it is opened only if a request waits for
    /// it, so that an install sends it to the new members. The waiting requests learn where their
    /// entries are; those that are complete without any peer are answered.
    fn open_push(
        &mut self,
        now: Now,
        entries: &Entries,
        waiting: PushWaiters,
        peers: &BTreeSet<ReplicaId>,
        out: &mut ReplicatorOutbox,
    ) {
        let places: Vec<(u32, RequestId)> = waiting.iter().collect();
        if !(peers.is_empty() && places.is_empty()) {
            let push = self.pushes.open(now.mono, entries.clone(), waiting, peers);
            for &to in peers {
                let entries = entries.clone();
                let body = Body::Write { push: name(push, 0), whole: true, entries };
                self.send(to, body, out);
            }
            for (index, request) in &places {
                if let Some(write) = self.writes.get_mut(*request) {
                    write.pushes.push((push, *index));
                }
            }
        }
        self.check_writes(places.into_iter().map(|(_, request)| request).collect(), out);
    }
}
