//! What a voter has promised and accepted, and must remember: the acceptor of one epoch's
//! decision, and its disk form.
//!
//! Pure: knows ballots, never a timer, a peer or a lease. Source: Lamport, *Paxos Made Simple*
//! (2001), phases 1b and 2b, with the sealed state as the promise's second meaning.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::configuration::{Ballot, Epoch, EpochId};
use super::message::AcceptedProposal;
use crate::bug::{Bug, Canary};

/// What must be durable before an answer that depends on it leaves the node.
///
/// Promise and proposal belong to the installed epoch and start empty in the next. `synced` and
/// `ready` hold only as long as the merged data does: whoever restarts without its data clears
/// them (and its promise with them: it is a new incarnation).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AcceptorState {
    /// The installed configuration.
    #[serde(rename = "i")]
    pub installed: Option<Arc<Epoch>>,
    /// The highest ballot number used or heard of in this epoch.
    #[serde(rename = "n")]
    pub number: u64,
    /// The promise; `Some` means sealed.
    #[serde(rename = "p")]
    pub promise: Option<Ballot>,
    /// The proposal accepted last.
    #[serde(rename = "a")]
    pub accepted: Option<AcceptedProposal>,
    /// Synced for the installed configuration.
    #[serde(rename = "s")]
    pub synced: bool,
    /// Synced for the one after it, whatever it will be.
    #[serde(rename = "r")]
    pub ready: bool,
}

/// What came of asking for a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promised {
    /// The first in this epoch: the replica is sealed from now on.
    First,
    /// A higher one than before.
    Raised,
    /// This very ballot was promised before.
    Again,
    /// A higher one stands.
    Not(Ballot),
}

impl AcceptorState {
    /// The installed epoch's id.
    pub(super) fn id(&self) -> Option<EpochId> {
        self.installed.as_ref().map(|epoch| epoch.id())
    }

    /// Whether this replica acks requests of the installed epoch no more.
    pub(super) const fn is_sealed(&self) -> bool {
        self.promise.is_some()
    }

    /// What promising `ballot` would come to; changes nothing.
    pub(super) fn weigh(&self, ballot: Ballot) -> Promised {
        match self.promise {
            None => Promised::First,
            Some(promise) if promise < ballot => Promised::Raised,
            Some(promise) if promise == ballot => Promised::Again,
            Some(promise) => Promised::Not(promise),
        }
    }

    /// Promises `ballot`, which `weigh` has not refused.
    pub(super) fn promise(&mut self, ballot: Ballot) {
        assert!(!matches!(self.weigh(ballot), Promised::Not(_)), "a promise never falls");
        self.promise = Some(ballot);
        self.hear(ballot);
    }

    /// Accepts `proposal` in `ballot` and promises it, or names the promise against it.
    pub(super) fn accept(
        &mut self,
        ballot: Ballot,
        proposal: Arc<Epoch>,
        canary: Canary,
    ) -> Promised {
        let promised = self.weigh(ballot);
        match promised {
            Promised::Not(_) if !canary.has(Bug::AcceptBelowPromise) => return promised,
            Promised::Not(_) => {}
            Promised::First | Promised::Raised | Promised::Again => self.promise(ballot),
        }
        self.accepted = Some((ballot, proposal));
        if matches!(promised, Promised::Not(_)) { Promised::Again } else { promised }
    }

    /// Remembers the number of a ballot that somebody used.
    pub(super) fn hear(&mut self, ballot: Ballot) {
        self.number = self.number.max(ballot.number);
    }

    /// Starts the next epoch: nothing promised, nothing accepted.
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
    fn a_promise_rises_and_never_falls() {
        let mut state = AcceptorState { installed: Some(epoch(1)), ..AcceptorState::default() };
        assert_eq!(state.weigh(ballot(2, 1)), Promised::First);
        state.promise(ballot(2, 1));
        assert_eq!(state.weigh(ballot(2, 1)), Promised::Again);
        assert_eq!(state.weigh(ballot(2, 2)), Promised::Raised);
        assert_eq!(state.weigh(ballot(1, 9)), Promised::Not(ballot(2, 1)));
        assert!(state.is_sealed());
    }

    #[test]
    fn accepting_promises_and_so_seals() {
        let mut state = AcceptorState { installed: Some(epoch(1)), ..AcceptorState::default() };
        let first = state.accept(ballot(3, 1), epoch(2), Canary::none());
        assert_eq!((first, state.promise), (Promised::First, Some(ballot(3, 1))));
        let below = state.accept(ballot(2, 1), epoch(2), Canary::none());
        assert_eq!(below, Promised::Not(ballot(3, 1)));
        assert_eq!(state.accepted, Some((ballot(3, 1), epoch(2))));
    }

    #[test]
    fn the_next_epoch_starts_empty_and_synced_only_if_it_was_the_one_synced_for() {
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
