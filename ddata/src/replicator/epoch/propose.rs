//! The proposer: one attempt at a time, from the proposed change to the decision
//! (docs/protocol/configurations.md#the-proposer).
//!
//! [`Attempt`] counts the answers of one ballot and returns the next step. This file carries the
//! step out: it sends the question of each phase, repeats it to silent voters, and begins a new
//! ballot when leases run, a probe is answered or patience ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attempt::{Attempt, AttemptStep, Goal, Origin, Phase};
use super::configuration::{Ballot, Change, SharedEpoch};
use super::message::{AcceptedProposal, EpochMessage, Refusal, Remaining};
use super::{Deadline, EpochOutput, Epochs, Out, Outcome, WhyRefused};
use crate::bug::Bug;
use crate::clock::Now;
use crate::id::ReplicaId;

impl Epochs {
    /// Proposes a change of the parent. Before this node's own `Seal` a second change joins the
    /// batch (docs/protocol/configurations.md#one-batch); after it the change is refused.
    pub(super) fn propose(&mut self, now: Now, change: Change, out: &mut Out) {
        if !self.is_member() {
            return refuse(WhyRefused::NotAMember, out);
        }
        let before_seal = |a: &Attempt| a.phase < Phase::Sealing && a.origin == Origin::Asked;
        match &self.attempt {
            None => self.begin(now, Goal::asked(change), out),
            Some(attempt) if before_seal(attempt) => {
                let both = attempt.change.clone().and(&change);
                match self.current().next(&both) {
                    Ok(_) => {
                        let deferred = attempt.deferred.clone();
                        self.begin(now, Goal::asked(both).leaving_out(deferred), out);
                    }
                    Err(why) => refuse(WhyRefused::Change(why), out),
                }
            }
            Some(_) => refuse(WhyRefused::Busy, out),
        }
    }

    /// Begins a ballot above all that this node has used or heard of
    /// (docs/protocol/configurations.md#unique-ballots).
    fn begin(&mut self, now: Now, goal: Goal, out: &mut Out) {
        let base = self.current();
        let own_proposal = match base.next(&goal.change) {
            Ok(own_proposal) => SharedEpoch::new(own_proposal),
            Err(why) => {
                self.restart_patience(now); // this node may be sealed
                return refuse(WhyRefused::Change(why), out);
            }
        };
        let anonymous = self.canary.has(Bug::BallotWithoutNode);
        let node = if anonymous { ReplicaId::default() } else { self.me };
        let ballot = Ballot { number: self.state.number + 1, node };
        self.state.hear(ballot);
        self.persist(out); // a number reused after a restart would give one ballot two proposals
        self.stats.attempts += 1;
        self.stats.abandoned += u64::from(goal.origin == Origin::Abandoned);
        let first = self.config.resend_first;
        self.attempt = Some(Attempt::new(ballot, base, own_proposal, goal, first, self.canary));
        self.deadlines.clear(Deadline::Leases);
        self.deadlines.clear(Deadline::RemovalProbe);
        self.restart_patience(now);
        self.enter(now, out);
    }

    /// Asks the question of the phase that was just entered, and starts its resend timer.
    fn enter(&mut self, now: Now, out: &mut Out) {
        if let Some(attempt) = &mut self.attempt {
            let asks = attempt.phase == Phase::Withholding;
            attempt.withholding_since = asks.then_some(now.mono);
            self.attempts =
                self.attempts.saturating_add(u32::from(attempt.phase == Phase::Sealing));
            attempt.resend = self.config.resend_first;
            self.deadlines.set(Deadline::Resend, now.mono + attempt.resend);
            self.ask_the_silent(out);
        }
    }

    fn ask_the_silent(&mut self, out: &mut Out) {
        let Some(attempt) = &self.attempt else { return };
        let (silent, probing) = (attempt.silent(), attempt.probing.clone());
        let Some(question) = attempt.question() else { return };
        let (epoch, ballot) = (attempt.base.id(), attempt.ballot);
        self.send_all(silent, &question, out);
        self.send_all(probing, &EpochMessage::Ping { epoch, ballot }, out);
    }

    pub(super) fn resend(&mut self, now: Now, out: &mut Out) {
        let most = self.config.resend_most;
        let Some(attempt) = &mut self.attempt else { return };
        attempt.resend = attempt.resend.saturating_mul(2).min(most);
        self.deadlines.set(Deadline::Resend, now.mono + attempt.resend);
        if attempt.phase == Phase::Syncing {
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
        out: &mut Out,
    ) {
        let step = self.attempt.as_mut().map(|attempt| attempt.withheld(from, remaining));
        self.follow(now, step, out);
    }

    pub(super) fn on_sealed(
        &mut self,
        now: Now,
        from: ReplicaId,
        accepted: Option<AcceptedProposal>,
        out: &mut Out,
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

    pub(super) fn on_synced(&mut self, now: Now, from: ReplicaId, out: &mut Out) {
        if let Some(step) = self.attempt.as_mut().and_then(|attempt| attempt.confirmed(from)) {
            self.restart_patience(now);
            self.follow(now, Some(step), out);
        }
    }

    pub(super) fn on_accepted(&mut self, now: Now, from: ReplicaId, out: &mut Out) {
        let step = self.attempt.as_mut().map(|attempt| attempt.accepted(from));
        self.follow(now, step, out);
    }

    pub(super) fn on_refused(&mut self, now: Now, from: ReplicaId, why: Refusal, out: &mut Out) {
        let is_near = |promise| self.is_near(promise);
        let absurd = matches!(why, Refusal::Promised(promise) if !is_near(promise));
        let Some(attempt) = &mut self.attempt else { return };
        if absurd || !attempt.base.is_voter(from) {
            self.stats.nonsense += 1;
            return;
        }
        match why {
            Refusal::Promised(promise) => {
                attempt.overtaken |= promise > attempt.ballot;
                self.state.hear(promise);
            }
            Refusal::Leased(remaining) => {
                let step = attempt.leased(from, remaining);
                self.follow(now, Some(step), out);
            }
        }
    }

    /// A member removed as lost has answered its probe: a new ballot keeps it
    /// (docs/protocol/configurations.md#probe-before-accept).
    pub(super) fn on_pong(&mut self, now: Now, from: ReplicaId, out: &mut Out) {
        if self.attempt.as_ref().is_some_and(|a| a.chose_own() && a.probing.contains(&from)) {
            self.again_keeping(now, &BTreeSet::from([from]), out);
        }
    }

    fn follow(&mut self, now: Now, step: Option<AttemptStep>, out: &mut Out) {
        match step {
            None | Some(AttemptStep::Wait) => {}
            Some(AttemptStep::Seal) => self.go_on_to(now, Phase::Sealing, out),
            Some(AttemptStep::Leased(members, longest)) => {
                self.leases_run(now, &members, longest, Patience::Left, out);
            }
            Some(AttemptStep::Sync) => {
                self.probe_lost_members(now);
                self.enter(now, out);
                let step = self.attempt.as_mut().map(Attempt::may_accept);
                self.follow(now, step, out);
            }
            Some(AttemptStep::Accept) => self.enter(now, out),
            Some(AttemptStep::Decided(chosen)) => self.decided(now, &chosen, out),
        }
    }

    fn go_on_to(&mut self, now: Now, phase: Phase, out: &mut Out) {
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
        patience: Patience,
        out: &mut Out,
    ) {
        let Some(attempt) = &mut self.attempt else { return };
        let kept = attempt.to_keep(members);
        let is_needed = kept != *members && attempt.lacks_answers();
        if attempt.phase == Phase::Withholding && is_needed && patience == Patience::Left {
            return; // a voter that is asked again may allow a smaller batch
        }
        let changes_nobody = !attempt.would_change(&kept);
        match attempt.phase {
            Phase::Withholding if changes_nobody => {
                attempt.phase = Phase::Waiting;
                if !is_needed {
                    self.deadlines.clear(Deadline::Resend);
                }
                self.deadlines.set(Deadline::Leases, now.mono + longest);
            }
            Phase::Waiting if changes_nobody => {} // a late answer: all are asked again later
            _ => self.again_keeping(now, &kept, out),
        }
    }

    pub(super) fn leases_expired(&mut self, now: Now, out: &mut Out) {
        if let Some(attempt) = self.attempt.as_mut().filter(|a| a.phase == Phase::Waiting) {
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

    pub(super) fn removal_probe_ended(&mut self, now: Now, out: &mut Out) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.probe_over = true;
        let step = attempt.may_accept();
        self.follow(now, Some(step), out);
    }

    fn decided(&mut self, now: Now, chosen: &SharedEpoch, out: &mut Out) {
        self.stats.decided += 1;
        let base = self.current();
        let members: BTreeSet<_> = base.members().iter().chain(chosen.members()).collect();
        self.learn(now, None, chosen.clone(), out);
        let install = EpochMessage::Install { epoch: chosen.clone() };
        let others = members.into_iter().copied().filter(|id| *id != self.me);
        self.send_all(others.collect::<Vec<_>>(), &install, out);
    }

    /// Begins a new ballot for the same change, with the removal of `kept` deferred.
    fn again_keeping(&mut self, now: Now, kept: &BTreeSet<ReplicaId>, out: &mut Out) {
        if let Some(attempt) = self.attempt.take() {
            self.begin(now, attempt.into_goal().keeping(kept), out);
        }
    }

    /// The patience with a seal or with this node's own attempt has ended.
    pub(super) fn lose_patience(&mut self, now: Now, out: &mut Out) {
        if !self.is_member() {
            return;
        }
        let Some(attempt) = self.attempt.take() else {
            return self.begin(now, Goal::abandoned(), out);
        };
        let unsynced = attempt.chose_own() && self.attempts >= self.config.sync_attempts;
        match (attempt.phase, attempt.still_leased()) {
            // Sealed by another node's attempt: joins must not wait for leases.
            (Phase::Withholding | Phase::Waiting, _) if self.state.is_sealed() => {
                let kept = attempt.change.removed().collect();
                self.begin(now, attempt.into_goal().keeping(&kept), out);
            }
            (Phase::Withholding, _) => self.lose_patience_unsealed(now, attempt, out),
            (Phase::Sealing, Some((leased, _))) => {
                let kept = attempt.to_keep(&leased);
                self.begin(now, attempt.into_goal().keeping(&kept), out);
            }
            (Phase::Syncing, _) if unsynced => {
                if attempt.origin == Origin::Asked {
                    refuse(WhyRefused::NotSynced, out);
                }
                self.begin(now, Goal::abandoned(), out);
            }
            (Phase::Syncing, _) => self.begin(now, attempt.into_goal(), out),
            _ if attempt.overtaken => self.begin(now, attempt.into_goal(), out),
            // Only resending can help.
            _ => {
                self.attempt = Some(attempt);
                self.restart_patience(now);
            }
        }
    }

    /// The patience with unanswered questions has ended, and this node is not sealed.
    fn lose_patience_unsealed(&mut self, now: Now, attempt: Attempt, out: &mut Out) {
        if !attempt.has_withheld() {
            return self.give_back(out);
        }
        if let Some((members, longest)) = attempt.still_held() {
            let since = attempt.withholding_since.unwrap_or(now.mono);
            self.attempt = Some(attempt);
            self.restart_patience(now);
            let left = longest.saturating_sub(now.mono - since); // then all are asked again
            return self.leases_run(now, &members, left, Patience::Lost, out);
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
    fn give_back(&mut self, out: &mut Out) {
        self.given_back = self.given_back.saturating_add(1);
        self.deadlines.clear(Deadline::Resend);
        refuse(WhyRefused::TooFewAnswered, out);
    }
}

/// Whether voters that have not answered still have time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Left,
    Lost,
}

fn refuse(why: WhyRefused, out: &mut Out) {
    out.push(EpochOutput::Outcome(Outcome::Refused { why }));
}
