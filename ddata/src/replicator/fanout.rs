//! Fan-out of changes: the peers that a change is pushed to, and the forwarding of a peer's changes
//! in large clusters.

use std::collections::BTreeSet;

use super::wire::{Body, Entries, Entry, EntryContent, WireGuard};
use super::{Replicator, ReplicatorOutbox};
use crate::id::ReplicaId;
use crate::types::delta::Delta;

impl Replicator {
    /// The receivers of a change: all peers or, above `direct_push_limit` peers, the voters and `ln
    /// n + 6` random peers (docs/protocol/replication.md#push-to-all-at-the-end-of-the-batch).
    /// Never this replica; empty without peers. The random ones differ in each call.
    pub(super) fn push_targets(&mut self) -> BTreeSet<ReplicaId> {
        if self.peers.len() <= self.config.direct_push_limit {
            return self.peers.clone();
        }
        let mut targets = self.eager_targets();
        targets.extend(self.electors().voters.iter().copied().filter(|voter| *voter != self.me));
        targets
    }

    /// `ln n + 6` random peers, rounded up; all of them if there are fewer.
    fn eager_targets(&mut self) -> BTreeSet<ReplicaId> {
        use rand::seq::SliceRandom;
        let count = f64::from(u32::try_from(self.peers.len()).unwrap_or(u32::MAX));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "ln n is small"
        )]
        let fanout = count.ln().ceil() as usize + 6;
        let mut all: Vec<ReplicaId> = self.peers.iter().copied().collect();
        let (some, _) = all.partial_shuffle(&mut self.rng, fanout);
        some.iter().copied().collect()
    }

    /// Passes changes of a peer that were new here on to random peers, except to `from` and to the
    /// replica that made them. They are sent as push 0, which asks for no answer, and without their
    /// terms, so that no promise refuses them; a lost one is left to anti-entropy. Does nothing
    /// without news, and on a node that is no member. The caller has checked that the cluster is
    /// large.
    pub(super) fn forward(&mut self, from: ReplicaId, news: &[Entry], out: &mut ReplicatorOutbox) {
        if news.is_empty() || !self.epochs.is_member() {
            return;
        }
        let news: Vec<_> = news.iter().map(|e| (origin(e), unguarded(e.clone()))).collect();
        let targets = self.eager_targets();
        for to in targets.into_iter().filter(|to| *to != from) {
            let others = news.iter().filter(|(origin, _)| *origin != Some(to));
            let entries: Entries = others.map(|(_, entry)| entry.clone()).collect();
            if !entries.is_empty() {
                self.send(to, Body::Write { push: 0, whole: true, entries }, out);
            }
        }
    }
}

/// The replica that made a change: it needs no copy of it. `None` if several or none made it, if
/// the entry is no delta, or if it does not decode.
fn origin(entry: &Entry) -> Option<ReplicaId> {
    let EntryContent::Delta(bytes) = &entry.content else { return None };
    let delta = Delta::decode(bytes.as_slice(), &entry.shape.parse().ok()?).ok()?;
    match delta.dots().runs() {
        [run] => Some(run.replica),
        _ => None,
    }
}

/// Removes the term of an entry that only spreads data, so that no promise refuses it. The group
/// stays.
fn unguarded(entry: Entry) -> Entry {
    let guard = entry.guard.map(|guard| WireGuard { term: None, ..guard });
    Entry { guard, ..entry }
}
