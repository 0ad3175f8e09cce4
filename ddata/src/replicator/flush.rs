//! The end of a batch: its changes leave for the other replicas.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::batch::{Awaited, Fresh, Waiting};
use super::push::{guard_of, name};
use super::request::RequestId;
use super::store::Held;
use super::wire::{Body, Content, Entries, Entry};
use super::{Out, Replicator};
use crate::clock::Now;
use crate::id::ReplicaId;

impl Replicator {
    /// Sends the changes of this batch to every replica.
    pub(super) fn flush(&mut self, now: Now, out: &mut Out) {
        if self.pushes.fresh_since().is_none() {
            return;
        }
        if !self.epochs.is_member() && !self.epochs.is_excluded() {
            return self.pushes.put_off(); // until it is a member
        }
        let fresh = self.pushes.take_fresh();
        if self.epochs.is_excluded() {
            return; // it never is one again
        }
        let mut entries = Vec::with_capacity(fresh.len());
        let mut waiting = Vec::with_capacity(fresh.len()); // for each of the entries
        for (key, mut fresh) in fresh {
            let Some(held) = self.store.get(&key) else { continue };
            // A request answered within the batch would wait for ever.
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
            let waits: Vec<Waiting> = waiting.by_ref().take(entries.len()).collect();
            let waits = Awaited::from(waits);
            let all = waits.iter().any(|(_, id)| self.writes.wait_for_all(id));
            let peers = if all { &self.peers.clone() } else { &everybody };
            self.open_push(now, &entries.into(), waits, peers, out);
        }
    }

    /// The contents that peers get of a key that a batch has changed, each with the requests that wait
    /// for it: the change first, then the question for the whole value, which finds the change there.
    fn told(held: &Held, fresh: Fresh, deltas: bool) -> SmallVec<[(Content, Waiting); 2]> {
        let Fresh { delta, mut waiting, mut asking, .. } = fresh;
        let mut told = SmallVec::new();
        if let Some(delta) = delta {
            let content = if deltas {
                Content::Delta(delta.encode().into())
            } else {
                waiting.append(&mut asking);
                Content::Full(held.state.encode().into())
            };
            told.push((content, waiting));
        }
        if !asking.is_empty() {
            told.push((held.probe().content, asking));
        }
        told
    }

    fn open_push(
        &mut self,
        now: Now,
        entries: &Entries,
        waiting: Awaited,
        peers: &BTreeSet<ReplicaId>,
        out: &mut Out,
    ) {
        let places: Vec<(u32, RequestId)> = waiting.iter().collect();
        if !peers.is_empty() {
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
