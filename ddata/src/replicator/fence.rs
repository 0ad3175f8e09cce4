//! Terms of guarded groups: the promises that this replica has given, and its fencing reads under
//! way (docs/protocol/leases.md#fencing-read).
//!
//! A guarded group is all keys with a common prefix. One replica at a time, the owner of the
//! highest term (a number and the owner's id), writes them. Terms compare by the number first.
//!
//! A fencing read asks the voters to promise a term; each answers with the data that it holds of
//! the group. Data in which the answers differ is written back under the term before the owner gets
//! its reply.

use std::collections::{BTreeMap, BTreeSet};

use super::epoch::EpochId;
use super::request::{RequestError, RequestId};
use crate::causal::CausalContext;
use crate::clock::Instant;
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;
use crate::key::{Group, KEY_BYTES_MAX, KeyName};
use crate::types::Term;
use crate::types::delta::KeyState;

/// Most groups that this replica accepts fencing reads for.
pub(super) const GROUPS_MAX: usize = 10_000;

/// How far a term may lie above the base that [`Promises::highest_near`] computes: 2^48. That is
/// more than a clock in milliseconds shows, because an owner may use such a clock for its terms,
/// also in a cluster with a low generation, such as 1, and hence a low base.
///
/// Without this bound one corrupt or hostile term near the highest could be promised by all voters,
/// and no later owner could ever take a higher one.
pub(super) const TERM_JUMP_MAX: u64 = 1 << 48;

/// Terms for each millisecond of the cluster generation, which is a wall clock in milliseconds.
/// After a forced recovery to generation g an owner begins at about g times this number, above all
/// terms of earlier generations.
const TERMS_PER_GENERATION: u64 = 1 << 20;

/// Promised terms: the lowest term that may still write, per group. They only rise, and no group is
/// ever removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Promises {
    terms: BTreeMap<Group, Term>, // ≤ GROUPS_MAX fenced here, + those merged from other voters
}

/// Why a replica does not promise a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromiseRefusal {
    /// This higher term is promised.
    Higher(Term),
    /// The replica holds promises for [`GROUPS_MAX`] other groups or more, and none for this one.
    NoRoom,
}

impl From<PromiseRefusal> for RequestError {
    /// `Higher` becomes `Fenced` with `nowhere: false`, `NoRoom` becomes `TooManyGroups`.
    fn from(refusal: PromiseRefusal) -> Self {
        match refusal {
            PromiseRefusal::Higher(current) => Self::Fenced { current, nowhere: false },
            PromiseRefusal::NoRoom => Self::TooManyGroups { limit: GROUPS_MAX },
        }
    }
}

/// Whether a name can name a group: it is neither empty, which would guard every key, nor longer
/// than [`KEY_BYTES_MAX`].
pub(super) fn is_group(group: &Group) -> bool {
    (1..=KEY_BYTES_MAX).contains(&group.as_str().len())
}

/// Whether a promise of this term for this group can exist: the group and the term are valid. The
/// height of the term is not checked.
pub(super) fn is_promise(group: &Group, term: Term) -> bool {
    is_group(group) && term.is_valid()
}

/// Whether a term is below a promise; an equal one is not. Under `TermWithoutCoordinator` the
/// owner's id, here called the coordinator, is not compared.
fn below(term: Term, promised: Term, fault_injection: FaultInjection) -> bool {
    if fault_injection.has(ReplicatorFault::TermWithoutCoordinator) {
        return term.number < promised.number;
    }
    term < promised
}

impl Promises {
    /// The promised term of a group; the default term, below every valid one, if none was promised.
    pub(super) fn get(&self, group: &Group) -> Term {
        self.terms.get(group).copied().unwrap_or_default()
    }

    /// The promise that refuses a write under `term`, if any. The promised term itself is not
    /// refused, nor any term while nothing is promised for the group.
    pub(super) fn refuses(
        &self,
        group: &Group,
        term: Term,
        fault_injection: FaultInjection,
    ) -> Option<Term> {
        let promised = self.get(group);
        (below(term, promised, fault_injection)
            && !fault_injection.has(ReplicatorFault::NoTermCheck))
        .then_some(promised)
    }

    /// Whether the key belongs to a group for which a term was promised.
    pub(super) fn covers(&self, key: &KeyName) -> bool {
        self.terms.keys().any(|group| group.contains(key))
    }

    /// The highest number of a term that does not jump: [`TERM_JUMP_MAX`] above a base that honest
    /// owners can have reached. That is the promise held here or, if higher, the end of the terms
    /// of this cluster generation.
    pub(super) fn highest_near(&self, group: &Group, generation: u64) -> u64 {
        let generation_end = generation.saturating_add(1).saturating_mul(TERMS_PER_GENERATION);
        let base = self.get(group).number.max(generation_end);
        base.saturating_add(TERM_JUMP_MAX)
    }

    /// Whether there is room for a promise for this group. A group with a promise needs no room.
    pub(super) fn has_room(&self, group: &Group) -> bool {
        self.terms.contains_key(group) || self.terms.len() < GROUPS_MAX
    }

    /// Promises a term. Returns whether it is higher than the promise before; the same term may be
    /// promised again. The caller has checked the term and the group, makes the group known to the
    /// store and, with durable keys, writes the promise to disk.
    ///
    /// # Errors
    /// [`PromiseRefusal`]: a higher term is promised (checked first), or there is no room for
    /// another group. Nothing has changed then.
    pub(super) fn promise(
        &mut self,
        group: &Group,
        term: Term,
        fault_injection: FaultInjection,
    ) -> Result<bool, PromiseRefusal> {
        let promised = self.get(group);
        if below(term, promised, fault_injection) {
            return Err(PromiseRefusal::Higher(promised));
        }
        if !self.has_room(group) {
            return Err(PromiseRefusal::NoRoom);
        }
        let new = term > promised;
        // `max` only matters under `TermWithoutCoordinator`: not even then may a promise fall.
        self.terms.insert(group.clone(), term.max(promised));
        Ok(new)
    }

    /// Merges the promises of another replica, which came with a sealed or synced state or from the
    /// disk, by maximum, and returns those that rose. The caller has checked them with
    /// [`is_promise`]. Neither the distance nor the number of groups is limited, because to leave
    /// one out would let a promise fall (docs/protocol/leases.md#promised-terms-never-fall).
    pub(super) fn merge(&mut self, others: &[(Group, Term)]) -> Vec<(Group, Term)> {
        let mut raised = Vec::new();
        for (group, term) in others {
            if *term > self.get(group) {
                self.terms.insert(group.clone(), *term);
                raised.push((group.clone(), *term));
            }
        }
        raised
    }

    /// All promises, in the order of the groups.
    pub(super) fn all(&self) -> Vec<(Group, Term)> {
        self.terms.iter().map(|(group, term)| (group.clone(), *term)).collect()
    }
}

/// A fencing read that waits for promises.
#[derive(Clone, Debug)]
pub(super) struct Fencing {
    pub(super) group: Group,
    pub(super) term: Term,
    /// The configuration whose answers count: that of its start, or the one installed since.
    pub(super) epoch: EpochId,
    /// When the read fails; also the deadline of its recovery write.
    pub(super) deadline: Instant,
    /// When the voters that have not promised are asked again.
    pub(super) resend: Instant,
    pub(super) resends: u32,
    /// All answers so far, merged, with the data held here. Stays when the read starts anew.
    pub(super) merged: BTreeMap<KeyName, KeyState>, // ≤ keys of the group
    /// Contexts of the group's keys at each replica that promised. A peer answers only with the
    /// contexts that differ from `asked`, an empty one for a key that it lacks; on arrival those of
    /// `asked` are inserted for its other keys.
    pub(super) answers: BTreeMap<ReplicaId, BTreeMap<KeyName, CausalContext>>, // ≤ voters
    /// Contexts of the group's keys at this replica when the read was started (anew), as each
    /// question states them; data that was not on disk is included.
    pub(super) asked: BTreeMap<KeyName, CausalContext>,
}

impl Fencing {
    pub(super) fn answered(&self) -> BTreeSet<ReplicaId> {
        self.answers.keys().copied().collect()
    }

    /// Keys of which some replica that answered holds less than all answers together, to be written
    /// back. A key that an answer does not list counts as held there up to the context in the
    /// question.
    pub(super) fn differing(&self) -> Vec<KeyName> {
        let nothing = CausalContext::new();
        let lacks = |key: &KeyName, state: &KeyState| {
            self.answers.values().any(|answer| {
                let held = answer.get(key).or_else(|| self.asked.get(key)).unwrap_or(&nothing);
                !held.includes(state.context())
            })
        };
        let keys = self.merged.iter().filter(|(key, state)| lacks(key, state));
        keys.map(|(key, _)| key.clone()).collect()
    }
}

/// Fencing reads under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Fencings {
    open: BTreeMap<RequestId, Fencing>, // ≤ max_pending_requests, with reads and writes
}

impl Fencings {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a read, or puts back one that was taken; replaces one of the same id.
    pub(super) fn insert(&mut self, id: RequestId, fencing: Fencing) {
        self.open.insert(id, fencing);
    }

    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.open.keys().copied().collect()
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Fencing> {
        self.open.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Fencing> {
        self.open.remove(&id)
    }

    /// The next resend or deadline; `None` if no read is open. This scans all open reads: a node
    /// opens one for each group that it takes over, so there are few.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.values().map(|fencing| fencing.deadline.min(fencing.resend)).min()
    }

    /// Removes the reads whose deadline or resend time is at or before `now`, in the order of ids.
    /// The caller fails those whose deadline has passed, resends the questions of the others and
    /// inserts them again.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(RequestId, Fencing)> {
        let due = |fencing: &Fencing| fencing.deadline.min(fencing.resend) <= now;
        let ids: Vec<_> = self.open.iter().filter(|(_, f)| due(f)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.open.remove(&id).map(|f| (id, f))).collect()
    }

    pub(super) fn take_all(&mut self) -> Vec<(RequestId, Fencing)> {
        std::mem::take(&mut self.open).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: FaultInjection = FaultInjection::none();

    const fn term(number: u64, owner: u64) -> Term {
        Term { number, owner: ReplicaId::new(owner) }
    }

    #[test]
    fn promised_term_refuses_lower_terms_and_only_rises() {
        let mut promises = Promises::default();
        let group = Group::new("shard-");
        assert_eq!(promises.promise(&group, term(2, 1), NONE), Ok(true));
        assert_eq!(promises.promise(&group, term(2, 1), NONE), Ok(false));
        let refused = promises.promise(&group, term(1, 9), NONE);
        assert_eq!(refused, Err(PromiseRefusal::Higher(term(2, 1))));
        assert_eq!(promises.refuses(&group, term(2, 0), NONE), Some(term(2, 1)));
        assert_eq!(promises.refuses(&group, term(2, 1), NONE), None);
        assert_eq!(promises.merge(&[(group.clone(), term(1, 1))]), vec![]);
        assert_eq!(promises.merge(&[(group.clone(), term(3, 0))]).len(), 1);
        assert_eq!(promises.get(&group), term(3, 0));
    }

    #[test]
    fn number_of_groups_is_bounded() {
        let mut promises = Promises::default();
        for n in 0..GROUPS_MAX + 10 {
            let _ = promises.promise(&Group::new(&n.to_string()), term(1, 1), NONE);
        }
        assert_eq!(promises.all().len(), GROUPS_MAX);
    }

    #[test]
    fn full_table_of_promises_is_no_higher_term() {
        let mut promises = Promises::default();
        let groups: Vec<_> =
            (0..GROUPS_MAX).map(|n| (Group::new(&n.to_string()), term(1, 1))).collect();
        assert_eq!(promises.merge(&groups).len(), GROUPS_MAX);
        let refused = promises.promise(&Group::new("shard-"), term(1, 1), NONE);
        assert_eq!(refused, Err(PromiseRefusal::NoRoom));
        let error = refused.map_err(RequestError::from);
        assert_eq!(error, Err(RequestError::TooManyGroups { limit: GROUPS_MAX }));
        assert_eq!(promises.promise(&groups[0].0, term(2, 1), NONE), Ok(true));
    }
}
