//! Syncing for the next configuration: merging the snapshots of a sealed quorum
//! (docs/protocol/configurations.md#sync-from-a-sealed-quorum).
//!
//! A sync belongs to the configuration, not to a ballot: the snapshots of any sealed quorum will
//! do, and a confirmation stays valid in every later ballot.

use std::collections::BTreeSet;

use super::configuration::{Ballot, EpochId, SharedEpoch};
use super::{ConfigurationRole, Deadline, EpochMessage, EpochOutbox, EpochOutput, Epochs};
use crate::clock::Now;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;

/// The fields of an [`EpochMessage::Sync`].
pub(super) struct SyncRequest {
    pub(super) base: SharedEpoch,
    pub(super) ballot: Ballot,
    pub(super) proposal: SharedEpoch,
    pub(super) sealed: Vec<ReplicaId>,
}

/// The snapshots of one sealed configuration, `base`, that this node merges: that is the installed
/// one or, if the node was not ready in time, the one before. Stays after the node is ready,
/// until a newer configuration is installed, because the node then asks for the decision. `merged`
/// may hold this node itself; `ordered` keeps the voters whose snapshot is merged by now.
#[derive(Clone, Debug)]
pub(super) struct Syncing {
    base: SharedEpoch,
    merged: BTreeSet<ReplicaId>,  // ≤ voters of base
    ordered: BTreeSet<ReplicaId>, // ≤ voters of base
    tell: BTreeSet<ReplicaId>,    // proposers that expect a confirmation; ≤ members of base
    peers: BTreeSet<ReplicaId>,   // may know the decision; ≤ voters of base and last proposal
}

impl Syncing {
    fn new(base: SharedEpoch) -> Self {
        Self {
            base,
            merged: BTreeSet::new(),
            ordered: BTreeSet::new(),
            tell: BTreeSet::new(),
            peers: BTreeSet::new(),
        }
    }
}

impl Epochs {
    /// Handles `Sync`: learns its base as a configuration, orders a pull of each named snapshot
    /// that is not merged (again if repeated), and answers `Synced` to the sender when ready, or at
    /// once if it is. The proposal becomes the last one proposed and is reported as pending; not
    /// reported, but served all the same, if a higher ballot is promised.
    ///
    /// Counted as nonsense and dropped if the sender is no member of the base, the ballot is not
    /// its own or jumps, the named voters are no quorum of the base, or the proposal lacks this
    /// node as a voter; then as `unfit` if it cannot follow. Ignored if the base is not installed
    /// here afterwards (this node has a newer one or does not believe the sender), or if this node
    /// is excluded.
    pub(super) fn on_sync(
        &mut self,
        now: Now,
        from: ReplicaId,
        order: SyncRequest,
        out: &mut EpochOutbox,
    ) {
        let SyncRequest { base, ballot, proposal, sealed } = order;
        let fits = base.is_member(from) && self.is_ballot_of(ballot, from);
        let voters: BTreeSet<_> = sealed.iter().copied().filter(|id| base.is_voter(*id)).collect();
        if !fits || !base.is_quorum(&voters, self.fault_injection) || !proposal.is_voter(self.me) {
            self.stats.nonsense += 1;
            return;
        }
        if base.admits(&proposal).is_err() {
            self.stats.unfit += 1;
            return;
        }
        self.learn(now, Some(from), base.clone(), out);
        if self.state.installed.as_ref() != Some(&base) || self.role == ConfigurationRole::Excluded
        {
            return;
        }
        self.proposed = Some(proposal.clone());
        if self.state.promise.is_none_or(|promise| ballot >= promise) {
            out.push(EpochOutput::Pending(proposal.clone()));
        }
        if self.state.ready {
            return self.send(from, EpochMessage::Synced { epoch: base.id() }, out);
        }
        let me = self.me;
        let syncing = self.syncing_for(&base);
        syncing.tell.insert(from);
        syncing.peers = base.voters().iter().chain(proposal.voters()).copied().collect();
        let missing = voters.difference(&syncing.merged).filter(|of| **of != me);
        let missing: BTreeSet<_> = missing.copied().collect();
        syncing.ordered.extend(&missing);
        out.extend(
            missing.into_iter().map(|of| EpochOutput::PullSnapshot { epoch: base.id(), of }),
        );
        self.deadlines.set(Deadline::Ask, now.mono + self.config.resend_most);
        self.own_snapshot_counts();
        self.may_be_ready(out);
    }

    /// The parent has merged the whole snapshot of one voter, ordered or not. Restarts the
    /// patience, and makes this node ready if it completes a quorum. Ignored if it was merged
    /// before, `of` is no voter of `epoch`, or this node does not sync from `epoch`.
    pub(super) fn snapshot_merged(
        &mut self,
        now: Now,
        epoch: EpochId,
        of: ReplicaId,
        out: &mut EpochOutbox,
    ) {
        let Some(syncing) = self.syncing.as_mut().filter(|s| s.base.id() == epoch) else { return };
        if syncing.base.is_voter(of) && syncing.merged.insert(of) {
            self.restart_patience(now);
            self.may_be_ready(out);
        }
    }

    /// Counts the own snapshot as merged: the state of a sealed voter contains it. Does nothing
    /// while this node is not sealed, or syncs from another configuration than the installed one.
    pub(super) fn own_snapshot_counts(&mut self) {
        let (me, sealed) = (self.me, self.state.is_sealed());
        let Some(syncing) = self.syncing.as_mut() else { return };
        if sealed && self.state.id() == Some(syncing.base.id()) && syncing.base.is_voter(me) {
            syncing.merged.insert(me);
        }
    }

    /// Makes this node ready for the next configuration if the snapshots of a quorum are merged:
    /// ends the snapshot pulls (one of a state goes on), persists, and sends `Synced` to all
    /// proposers that asked. If the next configuration is installed already, this node is now
    /// synced for it instead and sends nothing. Does nothing without a sync, without a quorum, or
    /// if this node is ready.
    pub(super) fn may_be_ready(&mut self, out: &mut EpochOutbox) {
        let Some(syncing) = &self.syncing else { return };
        let few =
            self.fault_injection.has(ReplicatorFault::SyncFromFewer) && !syncing.merged.is_empty();
        if self.state.ready
            || !(syncing.base.is_quorum(&syncing.merged, self.fault_injection) || few)
        {
            return;
        }
        if self.id() != Some(syncing.base.id()) {
            return self.now_synced(out); // its successor is installed already
        }
        let epoch = syncing.base.id();
        let (tell, pulled) = (syncing.tell.clone(), !syncing.ordered.is_empty());
        self.state.ready = true;
        if pulled {
            self.reorder_pulls(out);
        }
        self.persist(out);
        self.send_all(tell, &EpochMessage::Synced { epoch }, out);
    }

    /// Called after the install of `id`: a sync for it continues if this node is a member and not
    /// synced; any other sync ends, as does the state pull. Orders `StopPulls` only if a pull may
    /// be under way and no sync continues.
    pub(super) fn keep_syncing_only_for(&mut self, id: EpochId, out: &mut EpochOutbox) {
        // A ready replica has stopped its snapshot pulls before.
        let unready = !self.state.synced;
        let pulling = self.source.take().is_some()
            || self.syncing.as_ref().is_some_and(|s| unready && !s.ordered.is_empty());
        let still = self.is_member() && !self.state.synced;
        self.syncing = self.syncing.take().filter(|s| still && s.base.id().next() == id);
        self.deadlines.clear(Deadline::Source);
        self.deadlines.clear(Deadline::Ask);
        if pulling && self.syncing.is_none() {
            out.push(EpochOutput::StopPulls);
        }
    }

    /// Asks a random voter of the base or the proposal for a decision, and sets the time of the
    /// next question, `resend_most` later, without end. A voter that has synced may miss `Install`,
    /// and no other node knows that it waits. Does nothing without a sync.
    pub(super) fn ask_random_peer(&mut self, now: Now, out: &mut EpochOutbox) {
        let Some(syncing) = &self.syncing else { return };
        let peers: Vec<_> = syncing.peers.iter().copied().filter(|id| *id != self.me).collect();
        if !peers.is_empty() {
            let (to, installed) = (peers[self.pick(peers.len())], self.id());
            self.send(to, EpochMessage::Ask { installed }, out);
        }
        self.deadlines.set(Deadline::Ask, now.mono + self.config.resend_most);
    }

    /// Drops the sync for the installed configuration, which is synced now; one from its snapshots,
    /// for the next configuration, continues. The caller reorders the pulls.
    pub(super) fn keep_syncing_after_sync(&mut self) {
        let id = self.id();
        self.syncing = self.syncing.take().filter(|syncing| Some(syncing.base.id()) == id);
    }

    /// Ends all pulls, also if there are none, and orders those again that are still needed:
    /// ordered snapshots that are not merged, unless this node is ready, and the state of the
    /// current source.
    pub(super) fn reorder_pulls(&self, out: &mut EpochOutbox) {
        out.push(EpochOutput::StopPulls);
        if let Some(syncing) = self.syncing.as_ref().filter(|_| !self.state.ready) {
            let (epoch, missing) = (syncing.base.id(), syncing.ordered.difference(&syncing.merged));
            out.extend(missing.map(|of| EpochOutput::PullSnapshot { epoch, of: *of }));
        }
        if let (Some(from), Some(epoch)) = (self.source, self.id()) {
            out.push(EpochOutput::PullState { epoch, from });
        }
    }

    /// The sync from the snapshots of `base`. Begins an empty one if there is none, and drops one
    /// from another configuration; pulls that were ordered for that one are not ended here.
    fn syncing_for(&mut self, base: &SharedEpoch) -> &mut Syncing {
        self.syncing.take_if(|syncing| syncing.base.id() != base.id());
        self.syncing.get_or_insert_with(|| Syncing::new(base.clone()))
    }
}
