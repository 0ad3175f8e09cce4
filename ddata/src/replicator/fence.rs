//! Terms of guarded groups: the promises that this replica has given, and its fencing reads under
//! way (docs/protocol/leases.md#fencing-read).
//!
//! A fencing read asks the voters to promise a term; each answers with the data that it holds of
//! the group. Data in which the answers differ is written back under the term before the owner gets
//! its reply.

use std::collections::{BTreeMap, BTreeSet};

use super::epoch::EpochId;
use super::request::RequestId;
use crate::causal::CausalContext;
use crate::clock::Instant;
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;
use crate::key::{Group, KEY_BYTES_MAX, KeyName};
use crate::types::Term;
use crate::types::delta::KeyState;

/// Most groups that this replica accepts fencing reads for.
pub(super) const GROUPS_MAX: usize = 10_000;

/// How far a peer's term may lie above the highest one that an owner can have reached: 2^48, more
/// than a clock in milliseconds shows, since an owner may take its terms from one.
///
/// Without this bound one corrupt or hostile term near the highest could be promised by all voters,
/// and no later owner could ever take a higher one.
pub(super) const TERM_JUMP_MAX: u64 = 1 << 48;

/// Terms for each millisecond of the configuration's generation. After a forced recovery owners
/// begin above all terms of the generation before, with this many times its value.
const TERMS_PER_GENERATION: u64 = 1 << 20;

/// Promised terms: the lowest term that may still write, per group. They only rise.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Promises {
    terms: BTreeMap<Group, Term>, // ≤ GROUPS_MAX fenced here, + what a sync brings
}

/// Whether a name can name a group. An empty one would guard every key.
pub(super) fn is_group(group: &Group) -> bool {
    (1..=KEY_BYTES_MAX).contains(&group.as_str().len())
}

/// Whether a promise of this term for this group can exist.
pub(super) fn is_promise(group: &Group, term: Term) -> bool {
    is_group(group) && term.is_valid()
}

/// Whether a term is below a promise.
fn below(term: Term, promised: Term, fault_injection: FaultInjection) -> bool {
    if fault_injection.has(ReplicatorFault::TermWithoutCoordinator) {
        return term.number < promised.number;
    }
    term < promised
}

impl Promises {
    pub(super) fn get(&self, group: &Group) -> Term {
        self.terms.get(group).copied().unwrap_or_default()
    }

    /// The promise that refuses a write under `term`, if any.
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

    /// Whether a peer's term is at most [`TERM_JUMP_MAX`] above the promise here, or above the
    /// terms that an owner begins with in a configuration of this generation.
    pub(super) fn is_near(&self, group: &Group, term: Term, generation: u64) -> bool {
        let begins = generation.saturating_add(1).saturating_mul(TERMS_PER_GENERATION);
        let held = self.get(group).number.max(begins);
        term.number <= held.saturating_add(TERM_JUMP_MAX)
    }

    /// Whether there is room for a promise for this group.
    pub(super) fn has_room(&self, group: &Group) -> bool {
        self.terms.contains_key(group) || self.terms.len() < GROUPS_MAX
    }

    /// Promises a term. Returns whether it is higher than the promise before.
    ///
    /// # Errors
    /// The promise, if it is higher, or if there is no room for another group.
    pub(super) fn promise(
        &mut self,
        group: &Group,
        term: Term,
        fault_injection: FaultInjection,
    ) -> Result<bool, Term> {
        let promised = self.get(group);
        if below(term, promised, fault_injection) {
            return Err(promised);
        }
        if !self.has_room(group) {
            return Err(promised);
        }
        let new = term > promised;
        self.terms.insert(group.clone(), term.max(promised));
        Ok(new)
    }

    /// Merges the promises of another replica by maximum, and returns those that rose.
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

    pub(super) fn all(&self) -> Vec<(Group, Term)> {
        self.terms.iter().map(|(group, term)| (group.clone(), *term)).collect()
    }
}

/// A fencing read that waits for promises.
#[derive(Clone, Debug)]
pub(super) struct Fencing {
    pub(super) group: Group,
    pub(super) term: Term,
    pub(super) epoch: EpochId,
    pub(super) deadline: Instant,
    pub(super) resend: Instant,
    pub(super) tries: u32,
    /// All answers so far, merged.
    pub(super) merged: BTreeMap<KeyName, KeyState>, // ≤ keys of the group
    /// Contexts of the group's keys at each replica that promised.
    pub(super) answers: BTreeMap<ReplicaId, BTreeMap<KeyName, CausalContext>>, // ≤ voters
    /// Contexts of the group's keys at this replica, as the question stated them.
    pub(super) asked: BTreeMap<KeyName, CausalContext>,
}

impl Fencing {
    pub(super) fn answered(&self) -> BTreeSet<ReplicaId> {
        self.answers.keys().copied().collect()
    }

    /// Keys of which some replica that answered holds less than all answers together.
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

    /// A scan is cheap: there is at most one per group and node.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.values().map(|fencing| fencing.deadline.min(fencing.resend)).min()
    }

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
        assert_eq!(promises.promise(&group, term(1, 9), NONE), Err(term(2, 1)));
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
}
