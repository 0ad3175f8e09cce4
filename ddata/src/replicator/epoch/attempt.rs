//! One ballot of this node: the question of each phase, the answers, and the step that follows.
//!
//! Pure counting: answers go in, an [`AttemptStep`] comes out; [`propose`](super::propose) turns
//! steps into messages. Source: Lamport, *Paxos Made Simple* (2001), phases 1a and 2a; sealing and
//! syncing between them are described in docs/protocol/configurations.md#the-proposer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::configuration::{Ballot, Epoch, MembershipChange, SharedEpoch};
use super::message::{AcceptedProposal, EpochMessage, Remaining};
use crate::clock::Instant;
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;

/// Phase of a ballot. The order is that in which the phases follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BallotPhase {
    /// Asks voters how long their lease promises to the removed members run.
    Withholding,
    /// Waits until these leases have expired. A late answer may still allow a smaller batch.
    Waiting,
    /// Collects the promises of voters.
    Sealing,
    /// A quorum of `base` is sealed; the voters of the chosen proposal sync.
    Syncing,
    /// A quorum of the chosen proposal is synced; collects acceptances.
    Accepting,
}

/// The reason for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptReason {
    /// The parent proposed a change and expects a [`ProposalOutcome`](super::ProposalOutcome).
    Asked,
    /// A seal seemed abandoned.
    Abandoned,
}

/// The next action after an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptStep {
    /// Wait for more answers. Also the step after an answer that is ignored: of a replica that is
    /// no voter, or in a phase that does not need it.
    Wait,
    /// No lease of a removed member runs: send `Seal`.
    Seal,
    /// Leases of these members run, the longest for this time: wait for them, or begin a ballot
    /// without these removals.
    Leased(BTreeSet<ReplicaId>, Duration),
    /// A quorum is sealed and the proposal is chosen: send `Sync`.
    Sync,
    /// A quorum of the chosen proposal is synced: send `Accept`.
    Accept,
    /// A quorum of `base` has accepted.
    Decided(SharedEpoch),
}

/// A running ballot of this node, with the answers to it. The caller passes on only answers to this
/// ballot; confirmed syncs may belong to any ballot of `base`. Answers outlive their phase.
#[derive(Clone, Debug)]
pub(super) struct BallotAttempt {
    pub(super) ballot: Ballot,
    pub(super) origin: AttemptReason,
    pub(super) base: SharedEpoch,
    pub(super) change: MembershipChange,
    /// Removals that the parent proposed and that this batch leaves out, no longer in `change`; ≤
    /// members.
    pub(super) deferred: BTreeSet<ReplicaId>,
    /// `base` with `change` applied.
    pub(super) own_proposal: SharedEpoch,
    pub(super) phase: BallotPhase,
    /// The proposal of this ballot: chosen when a quorum is sealed, then fixed
    /// (docs/protocol/configurations.md#one-proposal-per-ballot).
    pub(super) chosen: Option<SharedEpoch>,
    /// `chosen` was accepted in an earlier ballot, so that it may be decided already.
    pub(super) adopted: bool,
    /// A voter has promised a higher ballot. The answers to this one still count.
    pub(super) overtaken: bool,
    /// A voter confirmed its sync since the last `Seal` was sent again; see
    /// [`BallotAttempt::seal_again`].
    pub(super) progressed: bool,
    /// Members removed as lost that have not answered the probe; ≤ members.
    pub(super) probing: BTreeSet<ReplicaId>,
    /// No answer to a probe is waited for; true before the first probe, too.
    pub(super) probe_ended: bool,
    /// Time until the question of this phase is sent again.
    pub(super) resend: Duration,
    /// When the withholding phase began; `None` in the phases from sealing on.
    pub(super) withholding_since: Option<Instant>,
    /// The last `Withheld` of each voter: running leases of removed members. Empty if none runs.
    withheld: BTreeMap<ReplicaId, BTreeMap<ReplicaId, Duration>>, // ≤ voters of base × removed
    /// Voters that refused `Seal` and have not sealed since, with the leases that still ran.
    leased: BTreeMap<ReplicaId, BTreeMap<ReplicaId, Duration>>, // ≤ voters of base × removed
    /// The first `Sealed` of each voter: the proposal that it had accepted.
    sealed: BTreeMap<ReplicaId, Option<AcceptedProposal>>, // ≤ voters of base
    confirmed: BTreeSet<ReplicaId>, // ≤ voters of base, own proposal and chosen
    accepted: BTreeSet<ReplicaId>,  // ≤ voters of base
    fault_injection: FaultInjection,
}

impl BallotAttempt {
    /// Starts a ballot without answers, but with the confirmed syncs of earlier ones. It begins
    /// with the withholding phase if `own_proposal` removes members of `base`, otherwise with
    /// sealing.
    pub(super) fn new(
        ballot: Ballot,
        base: SharedEpoch,
        own_proposal: SharedEpoch,
        goal: Goal,
        resend: Duration,
        fault_injection: FaultInjection,
    ) -> Self {
        let Goal { origin, change, deferred, confirmed } = goal;
        let removes = !base.removed_by(&own_proposal).is_empty();
        Self {
            ballot,
            origin,
            base,
            change,
            deferred,
            own_proposal,
            phase: if removes { BallotPhase::Withholding } else { BallotPhase::Sealing },
            chosen: None,
            adopted: false,
            overtaken: false,
            progressed: false,
            probing: BTreeSet::new(),
            probe_ended: true,
            resend,
            withholding_since: None,
            withheld: BTreeMap::new(),
            leased: BTreeMap::new(),
            sealed: BTreeMap::new(),
            confirmed,
            accepted: BTreeSet::new(),
            fault_injection,
        }
    }

    /// The part of this attempt that the next ballot keeps.
    pub(super) fn into_goal(self) -> Goal {
        let Self { origin, change, deferred, confirmed, .. } = self;
        Goal { origin, change, deferred, confirmed }
    }

    /// Whether this ballot is in the syncing phase with this node's own proposal. It has sent no
    /// `Accept`, so no voter can have accepted the proposal.
    pub(super) fn is_syncing_own(&self) -> bool {
        self.phase == BallotPhase::Syncing && !self.adopted
    }

    /// Counts a voter's `Withheld`, which replaces an earlier one of the voter. Ignored from the
    /// sealing phase on.
    ///
    /// Waits until a quorum of `base` has answered. Then any running lease gives
    /// [`AttemptStep::Leased`]. Without one the step is [`AttemptStep::Seal`], or
    /// [`AttemptStep::Wait`] if the own proposal could not be synced by the voters that have
    /// answered and those that are asked nothing. The phase does not change; the caller changes it.
    pub(super) fn withheld(&mut self, from: ReplicaId, remaining: Vec<Remaining>) -> AttemptStep {
        if self.phase > BallotPhase::Waiting || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.withheld.insert(from, self.removed_leases(remaining));
        if !self.has_withheld() {
            return AttemptStep::Wait;
        }
        match Self::running_leases(&self.withheld) {
            Some((members, longest)) => AttemptStep::Leased(members, longest),
            // A batch whose voters are no live quorum never syncs: it would end as an abandoned
            // seal.
            None if !self.would_go_on(&self.own_proposal) => AttemptStep::Wait,
            None => AttemptStep::Seal,
        }
    }

    /// Whether a quorum of `base` has reported how long the leases run, in any phase.
    pub(super) fn has_withheld(&self) -> bool {
        self.base.is_quorum(&self.withheld.keys().copied().collect(), self.fault_injection)
    }

    /// Starts the withholding phase again: drops the `Withheld` answers, so that every voter is
    /// asked anew.
    pub(super) fn withhold_again(&mut self) {
        self.withheld.clear();
        self.phase = BallotPhase::Withholding;
    }

    /// Counts a voter's refusal of `Seal`, until the voter seals. Ignored outside of the sealing
    /// phase, and if the voter has sealed: the refusal was sent before. The step is
    /// [`AttemptStep::Leased`] once the voters that have not refused are no quorum of `base`.
    pub(super) fn leased(&mut self, from: ReplicaId, remaining: Vec<Remaining>) -> AttemptStep {
        if self.phase != BallotPhase::Sealing
            || !self.base.is_voter(from)
            || self.sealed.contains_key(&from)
        {
            return AttemptStep::Wait;
        }
        self.leased.insert(from, self.removed_leases(remaining));
        let others = self.base.voters().iter().copied().filter(|id| !self.leased.contains_key(id));
        if self.base.is_quorum(&others.collect(), self.fault_injection) {
            return AttemptStep::Wait;
        }
        self.leases_in_refusals()
            .map_or(AttemptStep::Wait, |(members, longest)| AttemptStep::Leased(members, longest))
    }

    /// The removals to defer while the leases of `leased` run: these, or all wanted removals if the
    /// remaining batch is impossible or would have too few voters known to live.
    ///
    /// A batch with too few never syncs. Its abandoned seal would end with the same members, all
    /// lease waits would start anew, the next batch would be the same, and so on for ever
    /// (docs/protocol/configurations.md#removals-that-wait).
    pub(super) fn removals_to_defer(&self, leased: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
        let rest = self.base.next(&self.change.clone().keeping(leased));
        if rest.is_ok_and(|rest| self.would_go_on(&rest)) {
            leased.clone()
        } else {
            self.wanted_removals()
        }
    }

    /// The fewest removals to defer so that the rest of the batch can be synced, at least one: of
    /// members that have answered, the youngest first. `None` if that does not help.
    pub(super) fn fewest_to_defer(&self) -> Option<BTreeSet<ReplicaId>> {
        let removed: BTreeSet<ReplicaId> = self.change.removed().collect();
        let mut kept = BTreeSet::new();
        for id in self.base.members().iter().rev().filter(|id| removed.contains(id)) {
            if self.has_answered(*id) {
                kept.insert(*id);
                let rest = self.base.next(&self.change.clone().keeping(&kept));
                if rest.is_ok_and(|rest| self.would_go_on(&rest)) {
                    return Some(kept);
                }
            }
        }
        None
    }

    /// Whether the batch without the removal of `kept` changes the members. Also true if that batch
    /// is impossible, and false if it only bars incarnations.
    pub(super) fn would_change(&self, kept: &BTreeSet<ReplicaId>) -> bool {
        let rest = self.base.next(&self.change.clone().keeping(kept));
        !rest.is_ok_and(|rest| rest.members() == self.base.members())
    }

    /// Whether a voter of `base` has not answered in this ballot.
    pub(super) fn lacks_answers(&self) -> bool {
        !self.base.voters().iter().all(|id| self.has_answered(*id))
    }

    /// The removed members whose leases ran according to `Withheld` answers, and the longest time;
    /// `None` if none ran. The times are those at the answers and do not run down here.
    pub(super) fn leases_in_withheld(&self) -> Option<(BTreeSet<ReplicaId>, Duration)> {
        Self::running_leases(&self.withheld)
    }

    /// Members of `base` whose removal is wanted, in this batch or later (`deferred`).
    pub(super) fn wanted_removals(&self) -> BTreeSet<ReplicaId> {
        let going = self.change.removed().chain(self.deferred.iter().copied());
        going.filter(|id| self.base.is_member(*id)).collect()
    }

    /// Whether the voters of `next` that live are a quorum of it: those that answered in this
    /// ballot. A node that is asked nothing (a joiner, or a member without a vote) counts as alive
    /// unless its removal is wanted. The failure detector is not asked: its view may be older than
    /// the silence of the voters.
    fn would_go_on(&self, next: &Epoch) -> bool {
        let going = self.wanted_removals();
        let lives = |id: &ReplicaId| {
            self.has_answered(*id) || !self.base.is_voter(*id) && !going.contains(id)
        };
        let living = next.voters().iter().copied().filter(lives);
        next.is_quorum(&living.collect(), self.fault_injection)
    }

    /// Whether a voter has answered `Withhold` or `Seal` in this ballot. A refusal because of a
    /// lease counts; one because of a higher ballot does not.
    fn has_answered(&self, id: ReplicaId) -> bool {
        let refused = self.withheld.contains_key(&id) || self.leased.contains_key(&id);
        refused || self.sealed.contains_key(&id)
    }

    /// The removed members whose leases made voters refuse `Seal`, and the longest time; `None` if
    /// there are none.
    pub(super) fn leases_in_refusals(&self) -> Option<(BTreeSet<ReplicaId>, Duration)> {
        Self::running_leases(&self.leased)
    }

    /// Counts a voter's promise, and drops its refusal. Ignored before the sealing phase. The first
    /// answer of each voter stays. Later ones count after the sealing phase, too: `Sync` then names
    /// further sealed voters, but the choice does not change.
    ///
    /// Once a quorum of `base` is sealed, it chooses the proposal of this ballot (one that a voter
    /// had accepted, otherwise the own), begins the syncing phase and returns
    /// [`AttemptStep::Sync`], once. Confirmed syncs of replicas that are no voters of the chosen
    /// proposal are dropped.
    pub(super) fn sealed(
        &mut self,
        from: ReplicaId,
        accepted: Option<AcceptedProposal>,
    ) -> AttemptStep {
        if self.phase < BallotPhase::Sealing || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.leased.remove(&from);
        self.sealed.entry(from).or_insert(accepted);
        if self.phase != BallotPhase::Sealing
            || !self.base.is_quorum(&self.sealed_set(), self.fault_injection)
        {
            return AttemptStep::Wait;
        }
        let accepted = self.accepted_before();
        self.adopted = accepted.is_some();
        let chosen = accepted.unwrap_or_else(|| self.own_proposal.clone());
        self.confirmed.retain(|id| chosen.is_voter(*id));
        self.chosen = Some(chosen);
        self.phase = BallotPhase::Syncing;
        AttemptStep::Sync
    }

    /// The accepted proposal of the highest ballot among the answers; `None` if no voter had
    /// accepted one. Called once per ballot, because a second choice would be a second proposal
    /// under one ballot.
    fn accepted_before(&self) -> Option<SharedEpoch> {
        let accepted = self.sealed.values().flatten();
        let best = if self.fault_injection.has(ReplicatorFault::AdoptLowestBallot) {
            accepted.min_by_key(|(ballot, _)| *ballot)
        } else {
            accepted.max_by_key(|(ballot, _)| *ballot)
        };
        best.filter(|_| !self.fault_injection.has(ReplicatorFault::IgnoreAccepted))
            .map(|(_, proposal)| proposal.clone())
    }

    /// A voter confirms that it is ready for the next configuration. Counted in every phase, and as
    /// progress. `None` if that was known, or if it is no voter of the chosen proposal; before the
    /// choice, of the own proposal or `base`. Otherwise the step of
    /// [`may_accept`](Self::may_accept), which this call also carries out.
    pub(super) fn confirmed(&mut self, from: ReplicaId) -> Option<AttemptStep> {
        let chosen = self.chosen.as_ref().unwrap_or(&self.own_proposal);
        if !(chosen.is_voter(from) || self.chosen.is_none() && self.base.is_voter(from))
            || !self.confirmed.insert(from)
        {
            return None;
        }
        self.progressed = true;
        Some(self.may_accept())
    }

    /// Moves from the syncing to the accepting phase if a quorum of the chosen proposal is synced
    /// and probes have ended, and returns [`AttemptStep::Accept`], once. Otherwise, and in any
    /// other phase, returns [`AttemptStep::Wait`].
    pub(super) fn may_accept(&mut self) -> AttemptStep {
        let Some(chosen) = self.chosen.as_ref().filter(|_| self.phase == BallotPhase::Syncing)
        else {
            return AttemptStep::Wait;
        };
        let synced = chosen.is_quorum(&self.confirmed, self.fault_injection)
            || self.fault_injection.has(ReplicatorFault::AcceptBeforeSync);
        if !synced || !self.probe_ended {
            return AttemptStep::Wait;
        }
        self.phase = BallotPhase::Accepting;
        AttemptStep::Accept
    }

    /// Counts an acceptance; with a quorum of `base` the proposal is decided. Each further
    /// acceptance then returns [`AttemptStep::Decided`] again. Ignored before the accepting phase.
    pub(super) fn accepted(&mut self, from: ReplicaId) -> AttemptStep {
        if self.phase != BallotPhase::Accepting || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.accepted.insert(from);
        match &self.chosen {
            Some(chosen) if self.base.is_quorum(&self.accepted, self.fault_injection) => {
                AttemptStep::Decided(chosen.clone())
            }
            _ => AttemptStep::Wait,
        }
    }

    /// Voters of `base` that are known to be sealed.
    pub(super) fn sealed_set(&self) -> BTreeSet<ReplicaId> {
        self.sealed.keys().copied().collect()
    }

    /// The voters that have not answered the question of this phase: of the chosen proposal while
    /// it syncs, otherwise of `base`. May include this node. A refusal is no answer here.
    pub(super) fn silent(&self) -> Vec<ReplicaId> {
        let voters = self.base.voters().iter().copied();
        match self.phase {
            BallotPhase::Withholding | BallotPhase::Waiting => {
                voters.filter(|id| !self.withheld.contains_key(id)).collect()
            }
            BallotPhase::Sealing => voters.filter(|id| !self.sealed.contains_key(id)).collect(),
            BallotPhase::Syncing => self.unsynced(),
            BallotPhase::Accepting => voters.filter(|id| !self.accepted.contains(id)).collect(),
        }
    }

    /// The question of this phase. `None` if it needs a chosen proposal and there is none.
    pub(super) fn question(&self) -> Option<EpochMessage> {
        let (epoch, ballot) = (self.base.id(), self.ballot);
        match (self.phase, &self.chosen) {
            (BallotPhase::Withholding | BallotPhase::Waiting, _) => {
                let removed = self.base.removed_by(&self.own_proposal);
                Some(EpochMessage::Withhold { epoch, ballot, removed })
            }
            (BallotPhase::Sealing, _) => Some(self.seal()),
            (BallotPhase::Syncing, Some(chosen)) => Some(EpochMessage::Sync {
                base: self.base.clone(),
                ballot,
                proposal: chosen.clone(),
                sealed: self.sealed.keys().copied().collect(),
            }),
            (BallotPhase::Accepting, Some(chosen)) => {
                Some(EpochMessage::Accept { epoch, ballot, proposal: chosen.clone() })
            }
            (BallotPhase::Syncing | BallotPhase::Accepting, _) => None,
        }
    }

    /// The `Seal` of this ballot, which names the own proposal even if another was chosen.
    pub(super) fn seal(&self) -> EpochMessage {
        let (epoch, ballot) = (self.base.id(), self.ballot);
        EpochMessage::Seal { epoch, ballot, proposal: self.own_proposal.clone() }
    }

    /// Receivers of a repeated `Seal`: the voters of `base` without a `Sealed`. If the sync has
    /// progressed since the last call, all voters, so that none takes the seal for abandoned.
    /// Resets `progressed`, so the caller must send to all of them.
    pub(super) fn seal_again(&mut self) -> Vec<ReplicaId> {
        let to_all = std::mem::take(&mut self.progressed);
        let voters = self.base.voters().iter().copied();
        voters.filter(|id| to_all || !self.sealed.contains_key(id)).collect()
    }

    /// Voters of the chosen proposal without a confirmed sync; none before the choice.
    fn unsynced(&self) -> Vec<ReplicaId> {
        let voters = self.chosen.iter().flat_map(|chosen| chosen.voters()).copied();
        voters.filter(|id| !self.confirmed.contains(id)).collect()
    }

    /// Keeps the running leases (above zero) of removed members, each no longer than a lease of
    /// `base` lasts. A peer may list any node with any time; of repeated ones the last counts.
    fn removed_leases(&self, remaining: Vec<Remaining>) -> BTreeMap<ReplicaId, Duration> {
        let removed = self.base.removed_by(&self.own_proposal);
        let running = remaining.into_iter().filter(|(_, left)| !left.is_zero());
        let longest = self.base.lease().duration;
        let running = running.map(|(id, left)| (id, left.min(longest)));
        running.filter(|(id, _)| removed.contains(id)).collect()
    }

    /// The members with a running lease in these answers, and the longest time; `None` if there are
    /// none.
    fn running_leases(
        answers: &BTreeMap<ReplicaId, BTreeMap<ReplicaId, Duration>>,
    ) -> Option<(BTreeSet<ReplicaId>, Duration)> {
        let longest = answers.values().flat_map(|leases| leases.values()).max()?;
        let members = answers.values().flat_map(|leases| leases.keys()).copied().collect();
        Some((members, *longest))
    }
}

/// The purpose of an attempt, which passes from one ballot to the next.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) origin: AttemptReason,
    pub(super) change: MembershipChange,
    pub(super) deferred: BTreeSet<ReplicaId>, // ≤ members
    /// Voters that confirmed their sync in earlier ballots. A confirmation stays valid, because
    /// snapshots of `base` never change; ≤ voters of base and own proposal.
    pub(super) confirmed: BTreeSet<ReplicaId>,
}

impl Goal {
    /// A change of the parent, with nothing deferred and no sync confirmed.
    pub(super) fn asked(change: MembershipChange) -> Self {
        Self {
            origin: AttemptReason::Asked,
            change,
            deferred: BTreeSet::new(),
            confirmed: BTreeSet::new(),
        }
    }

    /// Replaces the deferred removals by those of an earlier ballot (`deferred`), except those that
    /// this change proposes again. The former ones of this goal are lost.
    pub(super) fn with_deferred(self, mut deferred: BTreeSet<ReplicaId>) -> Self {
        deferred.retain(|id| !self.change.removed().any(|removed| removed == *id));
        Self { deferred, ..self }
    }

    /// Proposes unchanged members, to end an abandoned seal.
    pub(super) fn abandoned() -> Self {
        Self { origin: AttemptReason::Abandoned, ..Self::asked(MembershipChange::default()) }
    }

    /// Defers the removal of `kept`, besides those deferred before: takes them out of the change.
    /// Incarnations that the change does not remove are ignored.
    pub(super) fn deferring(self, kept: &BTreeSet<ReplicaId>) -> Self {
        let mut deferred = self.deferred;
        deferred.extend(self.change.removed().filter(|id| kept.contains(id)));
        Self { change: self.change.keeping(kept), deferred, ..self }
    }
}
