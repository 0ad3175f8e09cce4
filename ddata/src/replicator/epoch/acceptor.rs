//! Paxos acceptor of one configuration: the promise and the accepted proposal, and their form on
//! disk.
//!
//! Pure state without timers, peers or leases. Source: Lamport, *Paxos Made Simple* (2001), phases
//! 1b and 2b. A promise also seals the replica
//! (docs/protocol/configurations.md#seal-ends-acknowledgement).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::configuration::{Ballot, Epoch, EpochId};
use super::message::AcceptedProposal;
use crate::fault_injection::{FaultInjection, ReplicatorFault};

/// State that must be durable before an answer that depends on it leaves the node
/// (docs/protocol/configurations.md#durable-votes).
///
/// Promise and proposal belong to the installed configuration and are empty in the next one.
/// `synced` and `ready` hold only as long as the merged data does, so the parent must clear them
/// when it restarts without its data. It must clear the promise, too. That breaks no promise: the
/// restarted process is a new incarnation, which is no voter of this configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AcceptorState {
    /// The installed configuration; `None` before the first.
    #[serde(rename = "i")]
    pub installed: Option<Arc<Epoch>>,
    /// The highest ballot number used or heard of in this configuration; 0 at its start.
    #[serde(rename = "n")]
    pub number: u64,
    /// The highest promised ballot. `Some` means that the replica is sealed.
    #[serde(rename = "p")]
    pub promise: Option<Ballot>,
    /// The proposal accepted last, with its ballot.
    #[serde(rename = "a")]
    pub accepted: Option<AcceptedProposal>,
    /// The state here holds everything acknowledged before the installed configuration.
    #[serde(rename = "s")]
    pub synced: bool,
    /// The state here also holds everything acknowledged in the installed configuration, because
    /// the snapshots of a sealed quorum of it were merged. Then the next configuration, whichever
    /// it will be, is synced from its start.
    #[serde(rename = "r")]
    pub ready: bool,
}

/// How a ballot compares with the promise as it was before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BallotOrder {
    /// No ballot was promised in this configuration: promising it seals the replica.
    First,
    /// It is above the promise, which it may replace.
    Raised,
    /// It is the promised ballot.
    Again,
    /// It is below the promise, which is named.
    Not(Ballot),
}

impl AcceptorState {
    /// The id of the installed configuration.
    pub(super) fn id(&self) -> Option<EpochId> {
        self.installed.as_ref().map(|epoch| epoch.id())
    }

    /// Whether this replica has stopped acknowledging requests of the installed configuration.
    pub(super) const fn is_sealed(&self) -> bool {
        self.promise.is_some()
    }

    /// Compares `ballot` with the promise; changes nothing.
    pub(super) fn weigh(&self, ballot: Ballot) -> BallotOrder {
        match self.promise {
            None => BallotOrder::First,
            Some(promise) if promise < ballot => BallotOrder::Raised,
            Some(promise) if promise == ballot => BallotOrder::Again,
            Some(promise) => BallotOrder::Not(promise),
        }
    }

    /// Promises `ballot`, which may be promised already, and raises `number` to it. Seals the
    /// replica. Keeps the accepted proposal. Panics if `weigh` returns [`BallotOrder::Not`].
    pub(super) fn promise(&mut self, ballot: Ballot) {
        assert!(!matches!(self.weigh(ballot), BallotOrder::Not(_)), "a promise never falls");
        self.promise = Some(ballot);
        self.hear(ballot);
    }

    /// Accepts `proposal` and promises `ballot`, unless a higher ballot is promised. Returns how
    /// the ballot compared with the promise before the call; after [`BallotOrder::Not`] nothing has
    /// changed. Otherwise it replaces an earlier accepted proposal, also one of the same ballot,
    /// and raises `number`. The caller has checked that the proposal may follow the installed
    /// configuration, and persists the state.
    pub(super) fn accept(
        &mut self,
        ballot: Ballot,
        proposal: Arc<Epoch>,
        fault_injection: FaultInjection,
    ) -> BallotOrder {
        let promised = self.weigh(ballot);
        match promised {
            BallotOrder::Not(_) if !fault_injection.has(ReplicatorFault::AcceptBelowPromise) => {
                return promised;
            }
            BallotOrder::Not(_) => {}
            BallotOrder::First | BallotOrder::Raised | BallotOrder::Again => self.promise(ballot),
        }
        self.accepted = Some((ballot, proposal));
        // With the fault, the caller must take an acceptance below the promise for an ordinary one.
        if matches!(promised, BallotOrder::Not(_)) { BallotOrder::Again } else { promised }
    }

    /// Raises `number` to the number of a ballot of any node; never lowers it. Promises nothing.
    pub(super) fn hear(&mut self, ballot: Ballot) {
        self.number = self.number.max(ballot.number);
    }

    /// Installs a configuration with an empty voting state, and does not check that it is newer. It
    /// is synced only if this replica was ready and the configuration directly follows: the merged
    /// snapshots contain nothing that was acknowledged in a configuration between. After the first
    /// one it is not synced; the caller sets that for a founding configuration.
    pub(super) fn install(&mut self, epoch: Arc<Epoch>) {
        let follows = self.id().is_some_and(|id| id.next() == epoch.id());
        *self = Self {
            synced: self.ready && follows,
            installed: Some(epoch),
            number: 0,
            promise: None,
            accepted: None,
            ready: false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ReplicaId;
    use crate::replicator::epoch::EpochSettings;

    fn ballot(number: u64, node: u64) -> Ballot {
        Ballot { number, node: ReplicaId::new(node) }
    }

    fn epoch(number: u64) -> Arc<Epoch> {
        let id = EpochId { generation: 1, number };
        Arc::new(Epoch::founding(id, vec![ReplicaId::new(1)], EpochSettings::default()).unwrap())
    }

    #[test]
    fn promise_only_rises() {
        let mut state = AcceptorState { installed: Some(epoch(1)), ..AcceptorState::default() };
        assert_eq!(state.weigh(ballot(2, 1)), BallotOrder::First);
        state.promise(ballot(2, 1));
        assert_eq!(state.weigh(ballot(2, 1)), BallotOrder::Again);
        assert_eq!(state.weigh(ballot(2, 2)), BallotOrder::Raised);
        assert_eq!(state.weigh(ballot(1, 9)), BallotOrder::Not(ballot(2, 1)));
        assert!(state.is_sealed());
    }

    #[test]
    fn accept_promises_and_seals() {
        let mut state = AcceptorState { installed: Some(epoch(1)), ..AcceptorState::default() };
        let first = state.accept(ballot(3, 1), epoch(2), FaultInjection::none());
        assert_eq!((first, state.promise), (BallotOrder::First, Some(ballot(3, 1))));
        let below = state.accept(ballot(2, 1), epoch(2), FaultInjection::none());
        assert_eq!(below, BallotOrder::Not(ballot(3, 1)));
        assert_eq!(state.accepted, Some((ballot(3, 1), epoch(2))));
    }

    #[test]
    fn install_resets_votes_and_keeps_sync_of_direct_successor() {
        let mut state = AcceptorState { installed: Some(epoch(1)), ..AcceptorState::default() };
        state.promise(ballot(1, 1));
        state.ready = true;
        let mut skipped = state.clone();
        state.install(epoch(2));
        let next = AcceptorState { installed: Some(epoch(2)), synced: true, ..Default::default() };
        assert_eq!(state, next);
        skipped.install(epoch(3));
        assert!(!skipped.synced);
    }
}
