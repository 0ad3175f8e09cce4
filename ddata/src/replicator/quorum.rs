//! The number of answers that completes an operation.
//!
//! There are two counts, which must not be mixed
//! (docs/protocol/replication.md#majority-and-quorum-are-different-counts). Client operations need
//! a *majority* of the voters, so that an acknowledged write has two copies even in a cluster of
//! two. Configuration changes, fences and leases need a *quorum* by the tie rule
//! (docs/protocol/configurations.md#quorum-by-the-tie-rule), so that one of two nodes can go on.
//! Any two quorums intersect, and every majority is a quorum. Pure arithmetic on numbers and ids.

use std::collections::BTreeSet;

use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;

/// There are no voters to count, because this node has no configuration yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no configuration has a voter yet; nothing was changed, retry after this node has joined")]
pub struct NoMembers;

/// Why no set of answers can reach a consistency level. A new request fails with it before anything
/// is sent; an open read may fail with it later, when a smaller configuration is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NeedError {
    /// There is no configuration. Retry after this node has joined.
    #[error(transparent)]
    NoMembers(#[from] NoMembers),
    /// The level names more replicas than the configuration has: lower it, or add nodes.
    #[error(
        "the level needs {needed} replicas, the configuration has {existing}; nothing was changed"
    )]
    NotEnoughReplicas {
        /// Replicas that the level asks for.
        needed: usize,
        /// Members that count in the configuration.
        existing: usize,
    },
}

/// Replicas, this one included, whose answers complete a majority operation.
///
/// `min(voters, max(voters / 2 + 1 + additional, min_cap))`, in replicas; at least 1.
/// # Errors
/// [`NoMembers`] if `voters` is 0: this node has not joined yet. Retry after it has.
/// # Example
/// ```
/// use ostraca_ddata::replicator::quorum::needed;
/// assert_eq!(needed(5, 0, 0), Ok(3));
/// assert_eq!(needed(3, 3, 5), Ok(3)); // never more than there are
/// ```
/// Source: Pekko, `ReadWriteAggregator.calculateMajority`, except for the empty case.
pub fn needed(voters: usize, additional: usize, min_cap: usize) -> Result<usize, NoMembers> {
    if voters == 0 {
        return Err(NoMembers);
    }
    let wanted = (voters / 2 + 1).saturating_add(additional).max(min_cap);
    Ok(wanted.min(voters))
}

/// The number of replicas that a request asks for, of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// This many members, voters or not, this one included: `To(n)` and `From(n)`. 0 needs no
    /// answer at all.
    Count(usize),
    /// A majority of the voters, with Akka's floor and addition (both 0 by default).
    Majority {
        /// Voters on top of the plain majority.
        additional: usize,
        /// Lower bound of the majority; at most all voters.
        min_cap: usize,
    },
    /// All members that count, and a majority of the voters, whether they count as members or not.
    All,
}

/// The number of members and voters of one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Electorate {
    /// Members that count for `All`, `To` and `From`. The caller leaves out members that have
    /// announced their stop.
    pub members: usize,
    /// All voters of the configuration, reachable or not.
    pub voters: usize,
}

/// The number of replicas that have answered, this replica included. A voter that has announced its
/// stop counts as a voter, but not as a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Members that count and have answered, whether they vote or not.
    pub members: usize,
    /// Voters that have answered, whether they count as members or not.
    pub voters: usize,
}

/// The number of answers that completes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    members: usize,
    voters: usize,
}

impl Level {
    /// The answers that complete a request of this level in a configuration of that size. `Count`
    /// needs no voters, `Majority` no members and never more than all voters, `All` both.
    ///
    /// # Errors
    /// [`NeedError::NoMembers`] without voters, at any level, even `Count(0)`; otherwise
    /// [`NeedError::NotEnoughReplicas`] if `Count` asks for more members than count.
    pub fn need(self, electorate: Electorate) -> Result<Need, NeedError> {
        let Electorate { members, voters } = electorate;
        let majority = needed(voters, 0, 0)?;
        match self {
            Self::Count(needed) if needed > members => {
                Err(NeedError::NotEnoughReplicas { needed, existing: members })
            }
            Self::Count(members) => Ok(Need { members, voters: 0 }),
            Self::Majority { additional, min_cap } => {
                Ok(Need { members: 0, voters: needed(voters, additional, min_cap)? })
            }
            Self::All => Ok(Need { members, voters: majority }),
        }
    }
}

impl Need {
    /// Whether these answers complete the request.
    #[must_use]
    pub const fn is_met(self, answers: Answers) -> bool {
        answers.members >= self.members && answers.voters >= self.voters
    }

    /// The number of answers reported to the user as needed: of members or of voters, whichever is
    /// higher.
    #[must_use]
    pub const fn answers(self) -> usize {
        if self.members > self.voters { self.members } else { self.voters }
    }
}

/// Whether `answered` holds a quorum of `voters`: more than half, or half with the tiebreaker.
///
/// Ids of other replicas are not counted, but `tiebreaker` must be one of the voters: whether it
/// is, is not checked. Never true without voters. `fault_injection` is [`FaultInjection::none`]
/// except in tests.
///
/// # Example
/// ```
/// use ostraca_ddata::fault_injection::FaultInjection;
/// use ostraca_ddata::{id::ReplicaId, replicator::quorum::is_quorum};
/// let [a, b] = [ReplicaId::new(1), ReplicaId::new(2)];
/// // Half of the voters, with and without the tiebreaker:
/// assert!(is_quorum(&[a, b], a, &[a].into(), FaultInjection::none()));
/// assert!(!is_quorum(&[a, b], a, &[b].into(), FaultInjection::none()));
/// ```
#[must_use]
pub fn is_quorum(
    voters: &[ReplicaId],
    tiebreaker: ReplicaId,
    answered: &BTreeSet<ReplicaId>,
    fault_injection: FaultInjection,
) -> bool {
    let count = voters.iter().filter(|voter| answered.contains(voter)).count();
    let tie = answered.contains(&tiebreaker)
        || fault_injection.has(ReplicatorFault::HalfWithoutTiebreaker);
    !voters.is_empty() && (2 * count > voters.len() || (2 * count == voters.len() && tie))
}

/// The number of answers that make a quorum: half of the voters, rounded up, if the tiebreaker is
/// among the answers, otherwise more than half. For reports only; [`is_quorum`] decides.
pub(super) const fn quorum_size(voters: usize, has_tiebreaker: bool) -> usize {
    if has_tiebreaker { voters.div_ceil(2) } else { voters / 2 + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bits: u16) -> BTreeSet<ReplicaId> {
        (0..16).filter(|bit| bits & (1 << bit) != 0).map(ReplicaId::new).collect()
    }

    #[test]
    fn pekkos_table_of_floors_holds() {
        let table = [(3, 3), (4, 4), (5, 5), (6, 5), (7, 5), (8, 5), (9, 5), (10, 6), (11, 6)];
        for (voters, expected) in table.into_iter().chain([(12, 7)]) {
            assert_eq!(needed(voters, 0, 5), Ok(expected), "{voters} voters, floor 5");
        }
    }

    #[test]
    fn pekkos_table_of_additions_holds() {
        let table = [
            (3, 1, 3),
            (4, 1, 4),
            (5, 1, 4),
            (5, 2, 5),
            (6, 1, 5),
            (7, 1, 5),
            (8, 1, 6),
            (8, 2, 7),
            (9, 1, 6),
            (10, 1, 7),
            (11, 1, 7),
            (11, 3, 9),
        ];
        for (voters, additional, expected) in table {
            assert_eq!(needed(voters, additional, 0), Ok(expected), "{voters} + {additional}");
        }
    }

    #[test]
    fn pekkos_table_of_both_holds() {
        for (floor, expected) in [(5, 6), (7, 7), (10, 9)] {
            assert_eq!(needed(9, 1, floor), Ok(expected), "9 voters, +1, floor {floor}");
        }
    }

    #[test]
    fn a_plain_majority_is_more_than_half() {
        for voters in 1..200 {
            let needed = needed(voters, 0, 0).unwrap();
            assert!(2 * needed > voters && 2 * (needed - 1) <= voters);
        }
    }

    #[test]
    fn empty_configuration_has_no_majority() {
        assert_eq!(needed(0, 0, 0), Err(NoMembers));
        let nobody = Electorate { members: 0, voters: 0 };
        for level in [Level::Count(1), Level::All, Level::Majority { additional: 0, min_cap: 0 }] {
            assert_eq!(level.need(nobody), Err(NeedError::NoMembers(NoMembers)));
        }
    }

    #[test]
    fn huge_additions_ask_for_all_voters() {
        assert_eq!(needed(3, usize::MAX, 0), Ok(3));
        assert_eq!(needed(3, 0, usize::MAX), Ok(3));
    }

    #[test]
    fn count_above_the_members_is_refused() {
        let electorate = Electorate { members: 3, voters: 3 };
        assert_eq!(
            Level::Count(4).need(electorate),
            Err(NeedError::NotEnoughReplicas { needed: 4, existing: 3 })
        );
        assert_eq!(Level::Count(3).need(electorate).map(Need::answers), Ok(3));
    }

    #[test]
    fn a_count_is_met_by_members_that_do_not_vote() {
        let need = Level::Count(2).need(Electorate { members: 101, voters: 9 }).unwrap();
        assert!(need.is_met(Answers { members: 2, voters: 0 }));
        assert!(!need.is_met(Answers { members: 1, voters: 1 }));
    }

    #[test]
    fn a_majority_counts_voters_only() {
        let level = Level::Majority { additional: 0, min_cap: 0 };
        let need = level.need(Electorate { members: 101, voters: 9 }).unwrap();
        assert!(!need.is_met(Answers { members: 100, voters: 4 }));
        assert!(need.is_met(Answers { members: 5, voters: 5 }));
    }

    #[test]
    fn all_without_a_majority_of_voters_is_incomplete() {
        // Three of five voters have announced their stop. The two others are "all" members, but no
        // majority of the voters.
        let need = Level::All.need(Electorate { members: 2, voters: 5 }).unwrap();
        assert!(!need.is_met(Answers { members: 2, voters: 2 }));
        assert!(need.is_met(Answers { members: 3, voters: 3 }));
        assert_eq!(need.answers(), 3);
    }

    /// Compares with the definition, for every pair of subsets of up to 8 voters.
    #[test]
    fn any_two_quorums_meet_and_every_majority_is_one() {
        for voters in 1..=8_u16 {
            let all: Vec<_> = (0..u64::from(voters)).map(ReplicaId::new).collect();
            let is = |bits| is_quorum(&all, all[0], &ids(bits), FaultInjection::none());
            let majority = needed(all.len(), 0, 0).unwrap();
            let quorums: Vec<u16> = (0..1 << voters).filter(|&bits| is(bits)).collect();
            for &left in &quorums {
                assert!(quorums.iter().all(|right| left & right != 0), "{left:b} of {voters}");
                assert!(!is(!left & ((1 << voters) - 1)), "a quorum and its complement");
            }
            for bits in 0_u16..1 << voters {
                let twin = 2 * bits.count_ones() > u32::from(voters)
                    || (2 * bits.count_ones() == u32::from(voters) && bits & 1 == 1);
                assert_eq!(is(bits), twin);
                let size = quorum_size(all.len(), bits & 1 == 1);
                assert_eq!(is(bits), bits.count_ones() as usize >= size);
                assert!(is(bits) || (bits.count_ones() as usize) < majority);
            }
        }
    }

    #[test]
    fn non_voters_do_not_count() {
        let voters = [1, 2, 3].map(ReplicaId::new);
        assert!(!is_quorum(
            &voters,
            voters[0],
            &[1, 7, 8, 9].map(ReplicaId::new).into(),
            FaultInjection::none()
        ));
        assert!(!is_quorum(&[], voters[0], &voters.into(), FaultInjection::none()));
    }

    #[cfg(feature = "canaries")]
    #[test]
    fn fault_without_tiebreaker_takes_any_half() {
        let voters = [1, 2].map(ReplicaId::new);
        let fault_injection = FaultInjection::with(ReplicatorFault::HalfWithoutTiebreaker);
        assert!(is_quorum(&voters, voters[0], &[voters[1]].into(), fault_injection));
    }
}
