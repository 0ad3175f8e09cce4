//! One ballot of this node's: what was asked, who has answered, what follows.
//!
//! Pure counting: answers go in, a [`AttemptStep`] comes out; [`propose`](super::propose) turns steps
//! into messages. Source: Lamport, *Paxos Made Simple* (2001), phases 1a and 2a; sealing and
//! syncing between them as in spec/reference/epochs.md §1.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::configuration::{Ballot, Change, Epoch, SharedEpoch};
use super::message::{AcceptedProposal, EpochMessage, Remaining};
use crate::bug::{Bug, Canary};
use crate::clock::Instant;
use crate::id::ReplicaId;

/// How far the ballot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Asking how long the leases of those to be removed still run.
    Withholding,
    /// Until those leases are over; an answer that lets the others go on is still welcome.
    Waiting,
    /// Collecting promises.
    Sealing,
    /// A quorum is sealed; the voters of what is to come sync.
    Syncing,
    /// A quorum of them has synced; collecting acceptances.
    Accepting,
}

/// Who wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The parent, who gets an outcome.
    Asked,
    /// Nobody: a seal seemed abandoned.
    Abandoned,
}

/// What a new answer leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptStep {
    /// More answers are needed.
    Wait,
    /// No lease of anybody to be removed runs any more.
    Seal,
    /// These leases still run, for so long at most.
    Leased(BTreeSet<ReplicaId>, Duration),
    /// A quorum is sealed, the proposal is chosen.
    Sync,
    /// A quorum of the chosen configuration has synced.
    Accept,
    /// Decided.
    Decided(SharedEpoch),
}

#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) ballot: Ballot,
    pub(super) origin: Origin,
    pub(super) base: SharedEpoch,
    pub(super) change: Change,
    /// Removals that the parent wanted and that this batch leaves out; ≤ members.
    pub(super) deferred: BTreeSet<ReplicaId>,
    /// What `change` makes of `base`.
    pub(super) own_proposal: SharedEpoch,
    pub(super) phase: Phase,
    /// What this ballot proposes: fixed once a quorum is sealed, never changed after.
    pub(super) chosen: Option<SharedEpoch>,
    /// What this ballot proposes was accepted in an earlier one, and may be decided.
    pub(super) adopted: bool,
    /// Somebody has promised a higher ballot; the answers still count.
    pub(super) overtaken: bool,
    /// Somebody confirmed since the voters were last told that this attempt lives.
    pub(super) progressed: bool,
    /// Believed dead and not heard of; ≤ members.
    pub(super) probing: BTreeSet<ReplicaId>,
    pub(super) probe_over: bool,
    pub(super) resend: Duration,
    /// Since when it has been asking how long leases run.
    pub(super) withholding_since: Option<Instant>,
    withheld: BTreeMap<ReplicaId, BTreeMap<ReplicaId, Duration>>, // ≤ voters of base × removed
    leased: BTreeMap<ReplicaId, BTreeMap<ReplicaId, Duration>>,   // ≤ voters of base × removed
    sealed: BTreeMap<ReplicaId, Option<AcceptedProposal>>,        // ≤ voters of base
    confirmed: BTreeSet<ReplicaId>, // ≤ voters of base, own_proposal and chosen
    accepted: BTreeSet<ReplicaId>,  // ≤ voters of base
    canary: Canary,
}

impl Attempt {
    pub(super) fn new(
        ballot: Ballot,
        base: SharedEpoch,
        own_proposal: SharedEpoch,
        goal: Goal,
        resend: Duration,
        canary: Canary,
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
            phase: if removes { Phase::Withholding } else { Phase::Sealing },
            chosen: None,
            adopted: false,
            overtaken: false,
            progressed: false,
            probing: BTreeSet::new(),
            probe_over: true,
            resend,
            withholding_since: None,
            withheld: BTreeMap::new(),
            leased: BTreeMap::new(),
            sealed: BTreeMap::new(),
            confirmed,
            accepted: BTreeSet::new(),
            canary,
        }
    }

    /// What the next ballot goes on with.
    pub(super) fn into_goal(self) -> Goal {
        let Self { origin, change, deferred, confirmed, .. } = self;
        Goal { origin, change, deferred, confirmed }
    }

    /// Whether the chosen proposal is this node's own, which no voter can have accepted yet.
    pub(super) fn chose_own(&self) -> bool {
        self.phase == Phase::Syncing && !self.adopted
    }

    pub(super) fn withheld(&mut self, from: ReplicaId, remaining: Vec<Remaining>) -> AttemptStep {
        if self.phase > Phase::Waiting || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.withheld.insert(from, self.removed_leases(remaining));
        if !self.has_withheld() {
            return AttemptStep::Wait;
        }
        match Self::running_leases(&self.withheld) {
            Some((members, longest)) => AttemptStep::Leased(members, longest),
            // Once sealed it would never sync, and end as an abandoned seal.
            None if !self.would_go_on(&self.own_proposal) => AttemptStep::Wait,
            None => AttemptStep::Seal,
        }
    }

    /// Whether a quorum has said how long the leases of those to be removed run.
    pub(super) fn has_withheld(&self) -> bool {
        self.base.is_quorum(&self.withheld.keys().copied().collect(), self.canary)
    }

    /// Goes on without those whose leases still run, or asks them all again later.
    pub(super) fn withhold_again(&mut self) {
        self.withheld.clear();
        self.phase = Phase::Withholding;
    }

    pub(super) fn leased(&mut self, from: ReplicaId, remaining: Vec<Remaining>) -> AttemptStep {
        if self.phase != Phase::Sealing || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.leased.insert(from, self.removed_leases(remaining));
        let others = self.base.voters().iter().copied().filter(|id| !self.leased.contains_key(id));
        if self.base.is_quorum(&others.collect(), self.canary) {
            return AttemptStep::Wait;
        }
        self.still_leased()
            .map_or(AttemptStep::Wait, |(members, longest)| AttemptStep::Leased(members, longest))
    }

    /// Whose removal is left to a later batch while the leases of `leased` run: theirs; but all
    /// removals, if of those that stay otherwise too few are known to live.
    ///
    /// (Such a batch never syncs. The abandoned seal would end with the same members, every lease
    /// would count anew from there, the next batch would be the same, and so on for ever.)
    pub(super) fn to_keep(&self, leased: &BTreeSet<ReplicaId>) -> BTreeSet<ReplicaId> {
        let rest = self.base.next(&self.change.clone().keeping(leased));
        if rest.is_ok_and(|rest| self.would_go_on(&rest)) { leased.clone() } else { self.going() }
    }

    /// Removals without which the others would go on, as few as there must be: of members that have
    /// answered, the youngest first. `None`: leaving out these does not help.
    pub(super) fn fewest_to_keep(&self) -> Option<BTreeSet<ReplicaId>> {
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

    /// Whether the batch without the removal of `kept` has other members than there are.
    pub(super) fn would_change(&self, kept: &BTreeSet<ReplicaId>) -> bool {
        let rest = self.base.next(&self.change.clone().keeping(kept));
        !rest.is_ok_and(|rest| rest.members() == self.base.members())
    }

    /// Whether a voter has not answered yet.
    pub(super) fn lacks_answers(&self) -> bool {
        !self.base.voters().iter().all(|id| self.has_answered(*id))
    }

    /// Members to be removed whose leases ran when their grantors were asked, and the longest.
    pub(super) fn still_held(&self) -> Option<(BTreeSet<ReplicaId>, Duration)> {
        Self::running_leases(&self.withheld)
    }

    /// Members whose removal is wanted, in this batch or later.
    pub(super) fn going(&self) -> BTreeSet<ReplicaId> {
        let going = self.change.removed().chain(self.deferred.iter().copied());
        going.filter(|id| self.base.is_member(*id)).collect()
    }

    /// Whether a quorum of `next` lives, as far as this ballot knows: voters that have answered.
    /// Who is asked nothing (a joiner, or no voter yet) lives unless its removal is wanted: this
    /// node's view of who is reachable may be older than the voters' silence.
    fn would_go_on(&self, next: &Epoch) -> bool {
        let going = self.going();
        let lives = |id: &ReplicaId| {
            self.has_answered(*id) || !self.base.is_voter(*id) && !going.contains(id)
        };
        let living = next.voters().iter().copied().filter(lives);
        next.is_quorum(&living.collect(), self.canary)
    }

    fn has_answered(&self, id: ReplicaId) -> bool {
        let refused = self.withheld.contains_key(&id) || self.leased.contains_key(&id);
        refused || self.sealed.contains_key(&id)
    }

    /// Members to be removed whose leases made a voter refuse the Seal.
    pub(super) fn still_leased(&self) -> Option<(BTreeSet<ReplicaId>, Duration)> {
        Self::running_leases(&self.leased)
    }

    pub(super) fn sealed(
        &mut self,
        from: ReplicaId,
        accepted: Option<AcceptedProposal>,
    ) -> AttemptStep {
        if self.phase < Phase::Sealing || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.leased.remove(&from);
        self.sealed.entry(from).or_insert(accepted);
        if self.phase != Phase::Sealing || !self.base.is_quorum(&self.sealed_set(), self.canary) {
            return AttemptStep::Wait;
        }
        let accepted = self.accepted_before();
        self.adopted = accepted.is_some();
        let chosen = accepted.unwrap_or_else(|| self.own_proposal.clone());
        self.confirmed.retain(|id| chosen.is_voter(*id));
        self.chosen = Some(chosen);
        self.phase = Phase::Syncing;
        AttemptStep::Sync
    }

    /// The accepted proposal of the highest ballot among the answers. Asked once per ballot: a
    /// second choice would be a second proposal of one ballot.
    fn accepted_before(&self) -> Option<SharedEpoch> {
        let accepted = self.sealed.values().flatten();
        let best = if self.canary.has(Bug::AdoptLowestBallot) {
            accepted.min_by_key(|(ballot, _)| *ballot)
        } else {
            accepted.max_by_key(|(ballot, _)| *ballot)
        };
        best.filter(|_| !self.canary.has(Bug::IgnoreAccepted)).map(|(_, proposal)| proposal.clone())
    }

    /// A voter confirms that it is synced for the epoch to come. `None`: no news.
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

    /// Whether it is time for Accept; moves on if it is.
    pub(super) fn may_accept(&mut self) -> AttemptStep {
        let Some(chosen) = self.chosen.as_ref().filter(|_| self.phase == Phase::Syncing) else {
            return AttemptStep::Wait;
        };
        let synced = chosen.is_quorum(&self.confirmed, self.canary)
            || self.canary.has(Bug::AcceptBeforeSync);
        if !synced || !self.probe_over {
            return AttemptStep::Wait;
        }
        self.phase = Phase::Accepting;
        AttemptStep::Accept
    }

    pub(super) fn accepted(&mut self, from: ReplicaId) -> AttemptStep {
        if self.phase != Phase::Accepting || !self.base.is_voter(from) {
            return AttemptStep::Wait;
        }
        self.accepted.insert(from);
        match &self.chosen {
            Some(chosen) if self.base.is_quorum(&self.accepted, self.canary) => {
                AttemptStep::Decided(chosen.clone())
            }
            _ => AttemptStep::Wait,
        }
    }

    /// Voters of `base` known to be sealed.
    pub(super) fn sealed_set(&self) -> BTreeSet<ReplicaId> {
        self.sealed.keys().copied().collect()
    }

    /// Who has not answered the phase's own question yet.
    pub(super) fn silent(&self) -> Vec<ReplicaId> {
        let voters = self.base.voters().iter().copied();
        match self.phase {
            Phase::Withholding | Phase::Waiting => {
                voters.filter(|id| !self.withheld.contains_key(id)).collect()
            }
            Phase::Sealing => voters.filter(|id| !self.sealed.contains_key(id)).collect(),
            Phase::Syncing => self.unsynced(),
            Phase::Accepting => voters.filter(|id| !self.accepted.contains(id)).collect(),
        }
    }

    /// What the phase asks.
    pub(super) fn question(&self) -> Option<EpochMessage> {
        let (epoch, ballot) = (self.base.id(), self.ballot);
        match (self.phase, &self.chosen) {
            (Phase::Withholding | Phase::Waiting, _) => {
                let removed = self.base.removed_by(&self.own_proposal);
                Some(EpochMessage::Withhold { epoch, ballot, removed })
            }
            (Phase::Sealing, _) => Some(self.seal()),
            (Phase::Syncing, Some(chosen)) => Some(EpochMessage::Sync {
                base: self.base.clone(),
                ballot,
                proposal: chosen.clone(),
                sealed: self.sealed.keys().copied().collect(),
            }),
            (Phase::Accepting, Some(chosen)) => {
                Some(EpochMessage::Accept { epoch, ballot, proposal: chosen.clone() })
            }
            (Phase::Syncing | Phase::Accepting, _) => None,
        }
    }

    pub(super) fn seal(&self) -> EpochMessage {
        let (epoch, ballot) = (self.base.id(), self.ballot);
        EpochMessage::Seal { epoch, ballot, proposal: self.own_proposal.clone() }
    }

    /// Voters that should be told of the Seal (again): all that have not answered, and everybody
    /// if the sync has progressed, so that nobody takes the seal for abandoned.
    pub(super) fn seal_again(&mut self) -> Vec<ReplicaId> {
        let everybody = std::mem::take(&mut self.progressed);
        let voters = self.base.voters().iter().copied();
        voters.filter(|id| everybody || !self.sealed.contains_key(id)).collect()
    }

    fn unsynced(&self) -> Vec<ReplicaId> {
        let voters = self.chosen.iter().flat_map(|chosen| chosen.voters()).copied();
        voters.filter(|id| !self.confirmed.contains(id)).collect()
    }

    /// What was asked for: a peer may list anybody, any number of times, and no lease runs for
    /// longer than it was granted for.
    fn removed_leases(&self, remaining: Vec<Remaining>) -> BTreeMap<ReplicaId, Duration> {
        let removed = self.base.removed_by(&self.own_proposal);
        let running = remaining.into_iter().filter(|(_, left)| !left.is_zero());
        let longest = self.base.lease().duration;
        let running = running.map(|(id, left)| (id, left.min(longest)));
        running.filter(|(id, _)| removed.contains(id)).collect()
    }

    /// Of the members to be removed, those with a running lease in these answers, and the longest.
    fn running_leases(
        answers: &BTreeMap<ReplicaId, BTreeMap<ReplicaId, Duration>>,
    ) -> Option<(BTreeSet<ReplicaId>, Duration)> {
        let longest = answers.values().flat_map(|leases| leases.values()).max()?;
        let members = answers.values().flat_map(|leases| leases.keys()).copied().collect();
        Some((members, *longest))
    }
}

/// What an attempt is for; outlives a ballot.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub(super) origin: Origin,
    pub(super) change: Change,
    pub(super) deferred: BTreeSet<ReplicaId>, // ≤ members
    /// Who has confirmed its sync in earlier ballots: stays good; ≤ voters of base and own_proposal.
    pub(super) confirmed: BTreeSet<ReplicaId>,
}

impl Goal {
    pub(super) fn asked(change: Change) -> Self {
        Self {
            origin: Origin::Asked,
            change,
            deferred: BTreeSet::new(),
            confirmed: BTreeSet::new(),
        }
    }

    /// The same, where an earlier ballot left out these removals; what is asked for anew is not left
    /// out.
    pub(super) fn leaving_out(self, mut deferred: BTreeSet<ReplicaId>) -> Self {
        deferred.retain(|id| !self.change.removed().any(|removed| removed == *id));
        Self { deferred, ..self }
    }

    /// The same members: ends an abandoned seal.
    pub(super) fn abandoned() -> Self {
        Self { origin: Origin::Abandoned, ..Self::asked(Change::default()) }
    }

    /// The same without the removal of `kept`, which a later batch may bring again.
    pub(super) fn keeping(self, kept: &BTreeSet<ReplicaId>) -> Self {
        let mut deferred = self.deferred;
        deferred.extend(self.change.removed().filter(|id| kept.contains(id)));
        Self { change: self.change.keeping(kept), deferred, ..self }
    }
}
