//! The changes of one batch, joined per key ([`ChangeBatch`]), and the requests that wait for each
//! entry of a push ([`PushWaiters`]).
//!
//! Every write uses both, so each costs a look-up in a tree and a slot in a list. A hash table
//! would need a keyed hash, because peers and users choose the names of keys, and a sort at the
//! end.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::push::AckRequirement;
use super::request::RequestId;
use super::store::{StorePlace, place};
use crate::key::KeyName;
use crate::types::Term;
use crate::types::delta::Delta;

/// Requests that wait for one entry; nearly always one.
pub(super) type EntryWaiters = SmallVec<[RequestId; 1]>;

/// The joined change of one key in a batch, and the requests that wait until other replicas hold
/// it.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchedChange {
    /// `None` if the batch did not change the key.
    pub(super) delta: Option<Delta>,
    /// The term of a guarded change, the same for all joined ones; `None` without a guard.
    pub(super) term: Option<Term>,
    /// Requests that wait until others hold the delta. Empty without a delta.
    pub(super) waiting: EntryWaiters,
    /// Requests that wait until others hold everything that this replica holds of the key, with or
    /// without a delta.
    pub(super) asking: EntryWaiters,
}

impl BatchedChange {
    /// Joins a further change of the key, and adds the request that waits for it. A request that
    /// waits for a delta, but comes without one, waits for everything held here, even if the batch
    /// has a delta of the key. Of unequal terms the higher one stays.
    fn add(
        &mut self,
        delta: Option<&Delta>,
        term: Option<Term>,
        waiting: Option<(RequestId, AckRequirement)>,
    ) {
        match (&mut self.delta, delta) {
            (Some(joined), Some(delta)) => joined.join(delta),
            (empty @ None, Some(delta)) => *empty = Some(delta.clone()),
            (_, None) => {}
        }
        self.term = self.term.max(term);
        match waiting {
            Some((id, AckRequirement::Delta)) if delta.is_some() => self.waiting.push(id),
            Some((id, _)) => self.asking.push(id),
            None => {}
        }
    }
}

/// The changes of one batch, joined per key.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeBatch {
    at: BTreeMap<StorePlace, usize>, // in `all`, which has as many
    all: Vec<BatchedChange>,         // ≤ keys changed in one batch, or before this is a member
}

impl ChangeBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Joins a change with the earlier changes of its key. The caller has checked that
    /// [`has_other`](Self::has_other) is false. Without a delta it only adds the waiting request.
    /// The key gets an entry in any case, even without a delta and a request.
    pub(super) fn add(
        &mut self,
        key: &KeyName,
        delta: Option<&Delta>,
        term: Option<Term>,
        waiting: Option<(RequestId, AckRequirement)>,
    ) {
        let at = *self.at.entry(place(key)).or_insert_with(|| {
            self.all.push(BatchedChange::default());
            self.all.len() - 1
        });
        self.all[at].add(delta, term, waiting);
    }

    /// Whether the batch has an entry of this key, also one without a delta, under another term.
    /// `None` counts as a term. If so, the caller must [`take`](Self::take) and send the batch
    /// before it adds the change.
    pub(super) fn has_other(&self, key: &KeyName, term: Option<Term>) -> bool {
        !self.is_empty() && self.at.get(&place(key)).is_some_and(|at| self.all[*at].term != term)
    }

    /// Takes all entries, also those without a delta, in the store's order of keys (by hash). The
    /// batch is empty afterwards.
    pub(super) fn take(&mut self) -> Vec<(KeyName, BatchedChange)> {
        let (order, mut all) = (std::mem::take(&mut self.at), std::mem::take(&mut self.all));
        order.into_iter().map(|((_, key), at)| (key, std::mem::take(&mut all[at]))).collect()
    }
}

/// The requests that wait for each entry of a push.
#[derive(Clone, Debug, Default)]
pub(super) struct PushWaiters {
    of: Vec<EntryWaiters>, // by entry; empty if no request waits for any
    entries: usize,        // entries of `of` that a request waits for
}

/// From the waiting requests of each entry, in the order of the entries.
impl From<Vec<EntryWaiters>> for PushWaiters {
    fn from(of: Vec<EntryWaiters>) -> Self {
        match of.iter().filter(|waiting| !waiting.is_empty()).count() {
            0 => Self::default(), // as for most pushes of local writes
            entries => Self { of, entries },
        }
    }
}

impl PushWaiters {
    /// Whether no request waits for any entry.
    pub(super) const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of entries that at least one request waits for.
    pub(super) const fn len(&self) -> usize {
        self.entries
    }

    /// Requests that wait for an entry; none for an index out of range.
    pub(super) fn of(&self, index: u32) -> &[RequestId] {
        let at = usize::try_from(index).ok();
        at.and_then(|at| self.of.get(at)).map_or(&[], |waiting| waiting)
    }

    /// All waiting requests with the index of the entry, in the order of the entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, RequestId)> + '_ {
        let entries = (0_u32..).zip(&self.of);
        entries.flat_map(|(index, waiting)| waiting.iter().map(move |id| (index, *id)))
    }

    /// Records that a request no longer waits for an entry; it may still wait for others. Does
    /// nothing if it did not wait, or the index is out of range.
    pub(super) fn remove(&mut self, index: u32, request: RequestId) {
        let at = usize::try_from(index).ok();
        let Some(waiting) = at.and_then(|at| self.of.get_mut(at)) else { return };
        let before = waiting.len();
        waiting.retain(|other| *other != request);
        if waiting.is_empty() && before > 0 {
            self.entries -= 1;
            if self.entries == 0 {
                self.of = Vec::new();
            }
        }
    }
}
