//! The proposer: one attempt at a time, from the proposed change to the decision
//! (docs/protocol/configurations.md#the-proposer).
//!
//! [`BallotAttempt`] counts the answers of one ballot and returns the next step. This file carries the
//! step out: it sends the question of each phase, repeats it to silent voters, and begins a new
//! ballot when leases run, a probe is answered or patience ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attempt::{AttemptReason, AttemptStep, BallotAttempt, BallotPhase, Goal};
use super::configuration::{Ballot, MembershipChange, SharedEpoch};
use super::message::{AcceptedProposal, BallotRefusal, EpochMessage, Remaining};
use super::{Deadline, EpochOutbox, EpochOutput, Epochs, ProposalOutcome, ProposalRefusal};
use crate::clock::Now;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;

impl Epochs {
    /// Proposes a change of the parent. Before this node's own `Seal` a second change joins the
    /// batch (docs/protocol/configurations.md#one-batch); after it the change is refused.
    pub(super) fn propose(&mut self, now: Now, change: MembershipChange, out: &mut EpochOutbox) {
        if !self.is_member() {
            return refuse(ProposalRefusal::NotAMember, out);
        }
        let before_seal =
            |a: &BallotAttempt| a.phase < BallotPhase::Sealing && a.origin == AttemptReason::Asked;
        match &self.attempt {
            None => self.begin(now, Goal::asked(change), out),
            Some(attempt) if before_seal(attempt) => {
                let both = attempt.change.clone().and(&change);
                match self.current().next(&both) {
                    Ok(_) => {
                        let deferred = attempt.deferred.clone();
                        self.begin(now, Goal::asked(both).leaving_out(deferred), out);
                    }
                    Err(why) => refuse(ProposalRefusal::Change(why), out),
                }
            }
            Some(_) => refuse(ProposalRefusal::Busy, out),
        }
    }

    /// Begins a ballot above all that this node has used or heard of
    /// (docs/protocol/configurations.md#unique-ballots).
    fn begin(&mut self, now: Now, goal: Goal, out: &mut EpochOutbox) {
        let base = self.current();
        let own_proposal = match base.next(&goal.change) {
            Ok(own_proposal) => SharedEpoch::new(own_proposal),
            Err(why) => {
                self.restart_patience(now); // this node may be sealed
                return refuse(ProposalRefusal::Change(why), out);
            }
        };
        let anonymous = self.fault_injection.has(ReplicatorFault::BallotWithoutNode);
        let node = if anonymous { ReplicaId::default() } else { self.me };
        let ballot = Ballot { number: self.state.number + 1, node };
        self.state.hear(ballot);
        self.persist(out); // a number reused after a restart would give one ballot two proposals
        self.stats.attempts += 1;
        self.stats.abandoned += u64::from(goal.origin == AttemptReason::Abandoned);
        let first = self.config.resend_first;
        self.attempt =
            Some(BallotAttempt::new(ballot, base, own_proposal, goal, first, self.fault_injection));
        self.deadlines.clear(Deadline::Leases);
        self.deadlines.clear(Deadline::RemovalProbe);
        self.restart_patience(now);
        self.enter(now, out);
    }

    /// Asks the question of the phase that was just entered, and starts its resend timer.
    fn enter(&mut self, now: Now, out: &mut EpochOutbox) {
        if let Some(attempt) = &mut self.attempt {
            let asks = attempt.phase == BallotPhase::Withholding;
            attempt.withholding_since = asks.then_some(now.mono);
            self.attempts =
                self.attempts.saturating_add(u32::from(attempt.phase == BallotPhase::Sealing));
            attempt.resend = self.config.resend_first;
            self.deadlines.set(Deadline::Resend, now.mono + attempt.resend);
            self.ask_the_silent(out);
        }
    }

    fn ask_the_silent(&mut self, out: &mut EpochOutbox) {
        let Some(attempt) = &self.attempt else { return };
        let (silent, probing) = (attempt.silent(), attempt.probing.clone());
        let Some(question) = attempt.question() else { return };
        let (epoch, ballot) = (attempt.base.id(), attempt.ballot);
        self.send_all(silent, &question, out);
        self.send_all(probing, &EpochMessage::Ping { epoch, ballot }, out);
    }

    pub(super) fn resend(&mut self, now: Now, out: &mut EpochOutbox) {
        let most = self.config.resend_most;
        let Some(attempt) = &mut self.attempt else { return };
        attempt.resend = attempt.resend.saturating_mul(2).min(most);
        self.deadlines.set(Deadline::Resend, now.mono + attempt.resend);
        if attempt.phase == BallotPhase::Syncing {
            let (seal, to) = (attempt.seal(), attempt.seal_again());
            self.send_all(to, &seal, out);
        }
        self.ask_the_silent(out);
    }

    pub(super) fn on_withheld(
        &mut self,
        now: Now,
        from: ReplicaId,
        remaining: Vec<Remaining>,
        out: &mut EpochOutbox,
    ) {
        let step = self.attempt.as_mut().map(|attempt| attempt.withheld(from, remaining));
        self.follow(now, step, out);
    }

    pub(super) fn on_sealed(
        &mut self,
        now: Now,
        from: ReplicaId,
        accepted: Option<AcceptedProposal>,
        out: &mut EpochOutbox,
    ) {
        let admits = |(_, proposal): &AcceptedProposal| self.current().admits(proposal).is_ok();
        let absurd = accepted.as_ref().is_some_and(|(ballot, _)| !self.is_near(*ballot));
        if absurd || !accepted.as_ref().is_none_or(admits) {
            self.stats.unfit += 1;
            return;
        }
        let step = self.attempt.as_mut().map(|attempt| attempt.sealed(from, accepted));
        self.follow(now, step, out);
    }

    pub(super) fn on_synced(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
        if let Some(step) = self.attempt.as_mut().and_then(|attempt| attempt.confirmed(from)) {
            self.restart_patience(now);
            self.follow(now, Some(step), out);
        }
    }

    pub(super) fn on_accepted(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
        let step = self.attempt.as_mut().map(|attempt| attempt.accepted(from));
        self.follow(now, step, out);
    }

    pub(super) fn on_refused(
        &mut self,
        now: Now,
        from: ReplicaId,
        why: BallotRefusal,
        out: &mut EpochOutbox,
    ) {
        let is_near = |promise| self.is_near(promise);
        let absurd = matches!(why, BallotRefusal::Promised(promise) if !is_near(promise));
        let Some(attempt) = &mut self.attempt else { return };
        if absurd || !attempt.base.is_voter(from) {
            self.stats.nonsense += 1;
            return;
        }
        match why {
            BallotRefusal::Promised(promise) => {
                attempt.overtaken |= promise > attempt.ballot;
                self.state.hear(promise);
            }
            BallotRefusal::Leased(remaining) => {
                let step = attempt.leased(from, remaining);
                self.follow(now, Some(step), out);
            }
        }
    }

    /// A member removed as lost has answered its probe: a new ballot keeps it
    /// (docs/protocol/configurations.md#probe-before-accept).
    pub(super) fn on_pong(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
        if self.attempt.as_ref().is_some_and(|a| a.chose_own() && a.probing.contains(&from)) {
            self.again_keeping(now, &BTreeSet::from([from]), out);
        }
    }

    fn follow(&mut self, now: Now, step: Option<AttemptStep>, out: &mut EpochOutbox) {
        match step {
            None | Some(AttemptStep::Wait) => {}
            Some(AttemptStep::Seal) => self.go_on_to(now, BallotPhase::Sealing, out),
            Some(AttemptStep::Leased(members, longest)) => {
                self.leases_run(now, &members, longest, VoterDeadline::Left, out);
            }
            Some(AttemptStep::Sync) => {
                self.probe_lost_members(now);
                self.enter(now, out);
                let step = self.attempt.as_mut().map(BallotAttempt::may_accept);
                self.follow(now, step, out);
            }
            Some(AttemptStep::Accept) => self.enter(now, out),
            Some(AttemptStep::Decided(chosen)) => self.decided(now, &chosen, out),
        }
    }

    fn go_on_to(&mut self, now: Now, phase: BallotPhase, out: &mut EpochOutbox) {
        if let Some(attempt) = &mut self.attempt {
            attempt.phase = phase;
            self.enter(now, out);
        }
    }

    /// Handles removals whose leases still run
    /// (docs/protocol/configurations.md#removals-that-wait). The batch goes on without them if it
    /// still changes the members. Otherwise it waits until they have expired, because every install
    /// starts all lease waits anew. It waits even if this node is sealed by another attempt, which
    /// may be about to remove the same members: that one is taken for abandoned only after the
    /// usual patience.
    fn leases_run(
        &mut self,
        now: Now,
        members: &BTreeSet<ReplicaId>,
        longest: Duration,
        patience: VoterDeadline,
        out: &mut EpochOutbox,
    ) {
        let Some(attempt) = &mut self.attempt else { return };
        let kept = attempt.to_keep(members);
        let is_needed = kept != *members && attempt.lacks_answers();
        if attempt.phase == BallotPhase::Withholding && is_needed && patience == VoterDeadline::Left
        {
            return; // a voter that is asked again may allow a smaller batch
        }
        let changes_nobody = !attempt.would_change(&kept);
        match attempt.phase {
            BallotPhase::Withholding if changes_nobody => {
                attempt.phase = BallotPhase::Waiting;
                if !is_needed {
                    self.deadlines.clear(Deadline::Resend);
                }
                self.deadlines.set(Deadline::Leases, now.mono + longest);
            }
            BallotPhase::Waiting if changes_nobody => {} // a late answer: all are asked again later
            _ => self.again_keeping(now, &kept, out),
        }
    }

    pub(super) fn leases_expired(&mut self, now: Now, out: &mut EpochOutbox) {
        if let Some(attempt) = self.attempt.as_mut().filter(|a| a.phase == BallotPhase::Waiting) {
            attempt.withhold_again();
            self.restart_patience(now);
            self.enter(now, out);
        }
    }

    /// Probes the members removed as lost, before the first `Accept` makes their removal final. An
    /// adopted proposal may be decided already, so its removals are not probed.
    fn probe_lost_members(&mut self, now: Now) {
        let Some(attempt) = self.attempt.as_mut().filter(|a| a.chose_own()) else { return };
        let lost = attempt.change.lost.iter().copied();
        attempt.probing = lost.filter(|id| attempt.base.is_member(*id)).collect();
        if !attempt.probing.is_empty() {
            attempt.probe_over = false;
            self.deadlines.set(Deadline::RemovalProbe, now.mono + self.config.probe_wait);
        }
    }

    pub(super) fn removal_probe_ended(&mut self, now: Now, out: &mut EpochOutbox) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.probe_over = true;
        let step = attempt.may_accept();
        self.follow(now, Some(step), out);
    }

    fn decided(&mut self, now: Now, chosen: &SharedEpoch, out: &mut EpochOutbox) {
        self.stats.decided += 1;
        let base = self.current();
        let members: BTreeSet<_> = base.members().iter().chain(chosen.members()).collect();
        self.learn(now, None, chosen.clone(), out);
        let install = EpochMessage::Install { epoch: chosen.clone() };
        let others = members.into_iter().copied().filter(|id| *id != self.me);
        self.send_all(others.collect::<Vec<_>>(), &install, out);
    }

    /// Begins a new ballot for the same change, with the removal of `kept` deferred.
    fn again_keeping(&mut self, now: Now, kept: &BTreeSet<ReplicaId>, out: &mut EpochOutbox) {
        if let Some(attempt) = self.attempt.take() {
            self.begin(now, attempt.into_goal().keeping(kept), out);
        }
    }

    /// The patience with a seal or with this node's own attempt has ended.
    pub(super) fn lose_patience(&mut self, now: Now, out: &mut EpochOutbox) {
        if !self.is_member() {
            return;
        }
        let Some(attempt) = self.attempt.take() else {
            return self.begin(now, Goal::abandoned(), out);
        };
        let unsynced = attempt.chose_own() && self.attempts >= self.config.sync_attempts;
        match (attempt.phase, attempt.still_leased()) {
            // Sealed by another node's attempt: joins must not wait for leases.
            (BallotPhase::Withholding | BallotPhase::Waiting, _) if self.state.is_sealed() => {
                let kept = attempt.change.removed().collect();
                self.begin(now, attempt.into_goal().keeping(&kept), out);
            }
            (BallotPhase::Withholding, _) => self.lose_patience_unsealed(now, attempt, out),
            (BallotPhase::Sealing, Some((leased, _))) => {
                let kept = attempt.to_keep(&leased);
                self.begin(now, attempt.into_goal().keeping(&kept), out);
            }
            (BallotPhase::Syncing, _) if unsynced => {
                if attempt.origin == AttemptReason::Asked {
                    refuse(ProposalRefusal::NotSynced, out);
                }
                self.begin(now, Goal::abandoned(), out);
            }
            (BallotPhase::Syncing, _) => self.begin(now, attempt.into_goal(), out),
            _ if attempt.overtaken => self.begin(now, attempt.into_goal(), out),
            // Only resending can help.
            _ => {
                self.attempt = Some(attempt);
                self.restart_patience(now);
            }
        }
    }

    /// The patience with unanswered questions has ended, and this node is not sealed.
    fn lose_patience_unsealed(&mut self, now: Now, attempt: BallotAttempt, out: &mut EpochOutbox) {
        if !attempt.has_withheld() {
            return self.give_back(out);
        }
        if let Some((members, longest)) = attempt.still_held() {
            let since = attempt.withholding_since.unwrap_or(now.mono);
            self.attempt = Some(attempt);
            self.restart_patience(now);
            let left = longest.saturating_sub(now.mono - since); // then all are asked again
            return self.leases_run(now, &members, left, VoterDeadline::Lost, out);
        }
        let kept = attempt.fewest_to_keep().unwrap_or_else(|| attempt.going());
        if attempt.would_change(&kept) {
            return self.begin(now, attempt.into_goal().keeping(&kept), out);
        }
        self.give_back(out);
    }

    /// Refuses the change with `TooFewAnswered`. The parent may know better by now which members
    /// are gone, and proposes again. Members that the next proposal no longer removes are granted
    /// leases again.
    fn give_back(&mut self, out: &mut EpochOutbox) {
        self.given_back = self.given_back.saturating_add(1);
        self.deadlines.clear(Deadline::Resend);
        refuse(ProposalRefusal::TooFewAnswered, out);
    }
}

/// Whether voters that have not answered still have time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VoterDeadline {
    Left,
    Lost,
}

fn refuse(why: ProposalRefusal, out: &mut EpochOutbox) {
    out.push(EpochOutput::Outcome(ProposalOutcome::Refused { why }));
}
