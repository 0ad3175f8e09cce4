//! The proposer: one attempt at a time, from the proposed change to the decision
//! (docs/protocol/configurations.md#the-proposer). In the code a configuration is an `Epoch`; the
//! *base* is the installed one, which the proposal follows.
//!
//! [`BallotAttempt`] sets the phase of one ballot, counts its answers and returns the next step.
//! This file carries the step out: it sends the question of each phase, repeats it to silent
//! voters, and begins a new ballot when unexpired leases prevent removals, a probe is answered or
//! patience ends.
//!
//! A voter that answers `Withhold` grants no lease to the members that the batch removes from then
//! on, and tells how long its promises to them still run. A removal whose lease runs too long is
//! *deferred*: left out of this batch, for the parent to propose again.

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
    /// Proposes a change of the parent. While the running ballot is withholding or waiting, a
    /// second change joins the batch (docs/protocol/configurations.md#one-batch): a new ballot
    /// begins, and its deferred removals stay deferred unless the second change names them again.
    /// If both together are impossible, only the second is refused and the ballot goes on. Once the
    /// ballot has sent `Seal`, and while this node only ends an abandoned seal, the change is
    /// refused as `Busy`; on a node that is no member as `NotAMember` (checked first). A change
    /// without effect is proposed like any other.
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
                        self.begin(now, Goal::asked(both).with_deferred(deferred), out);
                    }
                    Err(why) => refuse(ProposalRefusal::Change(why), out),
                }
            }
            Some(_) => refuse(ProposalRefusal::Busy, out),
        }
    }

    /// Begins a ballot above all that this node has used or heard of
    /// (docs/protocol/configurations.md#unique-ballots), and asks the question of its first phase:
    /// withholding if it removes members, otherwise sealing. The number is persisted first.
    /// Restarts the patience and the resend timer, and clears those for leases and probes.
    ///
    /// If the change is impossible, it is refused and no attempt runs. The caller has taken an
    /// earlier attempt away or lets this one replace it.
    fn begin(&mut self, now: Now, goal: Goal, out: &mut EpochOutbox) {
        let base = self.current();
        let own_proposal = match base.next(&goal.change) {
            Ok(own_proposal) => SharedEpoch::new(own_proposal),
            Err(why) => {
                // Only a change of the parent can be impossible; unchanged members are always
                // valid. No attempt is left, but if this node is sealed, a timer must end the seal.
                self.restart_patience(now);
                return refuse(ProposalRefusal::Change(why), out);
            }
        };
        let anonymous = self.fault_injection.has(ReplicatorFault::BallotWithoutNode);
        let node = if anonymous { ReplicaId::default() } else { self.me };
        let ballot = Ballot { number: self.state.number + 1, node };
        self.state.hear(ballot);
        // A number reused after a restart would give one ballot two proposals. The parent sends
        // nothing that follows in `out` before this state is durable.
        self.persist(out);
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

    /// Asks the question of the phase that was just entered, and starts its resend timer from the
    /// shortest time. The patience goes on. Counts a ballot that enters the sealing phase. Does
    /// nothing without an attempt.
    fn enter(&mut self, now: Now, out: &mut EpochOutbox) {
        if let Some(attempt) = &mut self.attempt {
            let is_withholding = attempt.phase == BallotPhase::Withholding;
            attempt.withholding_since = is_withholding.then_some(now.mono);
            let is_sealing = attempt.phase == BallotPhase::Sealing;
            self.sealing_ballots = self.sealing_ballots.saturating_add(u32::from(is_sealing));
            attempt.resend = self.config.resend_first;
            self.deadlines.set(Deadline::Resend, now.mono + attempt.resend);
            self.ask_the_silent(out);
        }
    }

    /// Sends the question of the phase to each voter that has not answered it, this node included:
    /// voters of the chosen proposal while it syncs, otherwise of the base. Sends a `Ping` to each
    /// removed member that has not answered the probe, also after the probe has ended.
    fn ask_the_silent(&mut self, out: &mut EpochOutbox) {
        let Some(attempt) = &self.attempt else { return };
        let (silent, probing) = (attempt.silent(), attempt.probing.clone());
        let Some(question) = attempt.question() else { return };
        let (epoch, ballot) = (attempt.base.id(), attempt.ballot);
        self.send_all(silent, &question, out);
        self.send_all(probing, &EpochMessage::Ping { epoch, ballot }, out);
    }

    /// Repeats the question of the phase, and doubles the time to the next repetition up to
    /// `resend_most`. While syncing, `Seal` goes on as well: to voters that may not have got it,
    /// and after progress to all, so that none takes the seal for abandoned. Does nothing without
    /// an attempt.
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

    // The caller passes answers to the present ballot only, and `Synced` of any ballot of the base.
    // The attempt ignores those that are not from its voters; `on_refused`, which also learns a
    // number, checks that itself.

    /// Counts a voter's running leases, in place of its earlier answer, and takes the step that
    /// follows. Ignored from the sealing phase on.
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

    /// Counts a voter's promise and takes the step that follows. The whole answer is dropped and
    /// counted as `unfit` if the accepted proposal in it cannot follow the base, or its ballot
    /// number jumps. Only the first answer of each voter counts.
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
            self.stats.unfit += 1; // as every proposal that cannot follow the base
            return;
        }
        let step = self.attempt.as_mut().map(|attempt| attempt.sealed(from, accepted));
        self.follow(now, step, out);
    }

    /// Counts a voter's sync, restarts the patience and takes the step that follows. Ignores a sync
    /// that was confirmed before or that the proposal does not need.
    pub(super) fn on_synced(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
        if let Some(step) = self.attempt.as_mut().and_then(|attempt| attempt.confirmed(from)) {
            self.restart_patience(now); // a sync may take longer than patience; it has progressed
            self.follow(now, Some(step), out);
        }
    }

    /// Counts an acceptance; with a quorum of them the proposal is decided and installed here.
    pub(super) fn on_accepted(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
        let step = self.attempt.as_mut().map(|attempt| attempt.accepted(from));
        self.follow(now, step, out);
    }

    /// Handles a voter's refusal. A higher promise is only remembered: its number (not persisted
    /// before the next ballot), and that the ballot is overtaken. The new ballot begins when
    /// patience ends. Running leases count in the sealing phase only: removals are deferred at once
    /// when the voters that have not refused are no quorum. A refusal of a node that is no voter,
    /// or with a number that jumps, is counted as nonsense.
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
                // A new ballot waits for the end of patience: two proposers that each answered at
                // once with a higher number would never let each other finish.
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
    /// (docs/protocol/configurations.md#probe-before-accept), even if the time of the probe has
    /// ended. Ignored after the first `Accept`, when it comes too late, and from a node that is not
    /// probed.
    pub(super) fn on_pong(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
        if self.attempt.as_ref().is_some_and(|a| a.is_syncing_own() && a.probing.contains(&from)) {
            self.begin_deferring(now, &BTreeSet::from([from]), out);
        }
    }

    /// Carries out a step of the attempt; `None` and `Wait` do nothing. `Sync` starts the probes as
    /// well, and goes on to `Accept` at once if a quorum is synced and there is no probe.
    fn follow(&mut self, now: Now, step: Option<AttemptStep>, out: &mut EpochOutbox) {
        match step {
            None | Some(AttemptStep::Wait) => {}
            Some(AttemptStep::Seal) => self.go_on_to(now, BallotPhase::Sealing, out),
            Some(AttemptStep::Leased(members, longest)) => {
                self.leases_run(now, &members, longest, VoterPatience::Running, out);
            }
            // The attempt has set the phase of this step and of `Accept` itself.
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

    /// Enters a phase of the running attempt; does nothing without one.
    fn go_on_to(&mut self, now: Now, phase: BallotPhase, out: &mut EpochOutbox) {
        if let Some(attempt) = &mut self.attempt {
            attempt.phase = phase;
            self.enter(now, out);
        }
    }

    /// Handles removals (`members`) whose leases still run, the longest for `longest`
    /// (docs/protocol/configurations.md#removals-that-wait). A new ballot goes on without them if
    /// it still changes the members. While patience runs, the withholding phase waits for further
    /// answers first, if otherwise more removals than `members` would be deferred.
    ///
    /// If the rest changes no member and this ballot has sent no `Seal`, it waits until the leases
    /// have expired, and repeats its question only if further answers may help: a batch without
    /// effect must not be installed, because every install starts all lease waits anew. It waits
    /// even if this node is sealed by another node's attempt, which may be about to remove the same
    /// members; only when patience ends is the other attempt taken for abandoned. After the own
    /// `Seal`, voters may be sealed, and only a new ballot ends that, even one without effect.
    fn leases_run(
        &mut self,
        now: Now,
        members: &BTreeSet<ReplicaId>,
        longest: Duration,
        patience: VoterPatience,
        out: &mut EpochOutbox,
    ) {
        let Some(attempt) = &mut self.attempt else { return };
        let deferred = attempt.removals_to_defer(members);
        // More than `members` are deferred only if the rest would have too few living voters. The
        // answer of another voter shows that it lives, so that fewer may have to be deferred.
        let answer_may_help = deferred != *members && attempt.lacks_answers();
        if attempt.phase == BallotPhase::Withholding
            && answer_may_help
            && patience == VoterPatience::Running
        {
            return;
        }
        let changes_nobody = !attempt.would_change(&deferred);
        match attempt.phase {
            BallotPhase::Withholding if changes_nobody => {
                attempt.phase = BallotPhase::Waiting;
                if !answer_may_help {
                    self.deadlines.clear(Deadline::Resend);
                }
                self.deadlines.set(Deadline::Leases, now.mono + longest);
            }
            BallotPhase::Waiting if changes_nobody => {} // a late answer: all are asked again later
            _ => self.begin_deferring(now, &deferred, out),
        }
    }

    /// The leases that a waiting attempt waits for have expired: drops all `Withheld` answers,
    /// restarts the patience and asks all voters again how long leases run. Does nothing in any
    /// other phase.
    pub(super) fn leases_expired(&mut self, now: Now, out: &mut EpochOutbox) {
        if let Some(attempt) = self.attempt.as_mut().filter(|a| a.phase == BallotPhase::Waiting) {
            attempt.withhold_again();
            self.restart_patience(now);
            self.enter(now, out);
        }
    }

    /// Starts to probe the members removed as lost, before the first `Accept` makes their removal
    /// final. Sends nothing itself: the question of the phase does. Nothing is probed if no member
    /// was removed as lost, or the proposal is adopted, because it may be decided already.
    fn probe_lost_members(&mut self, now: Now) {
        let Some(attempt) = self.attempt.as_mut().filter(|a| a.is_syncing_own()) else { return };
        let lost = attempt.change.lost.iter().copied();
        attempt.probing = lost.filter(|id| attempt.base.is_member(*id)).collect();
        if !attempt.probing.is_empty() {
            attempt.probe_ended = false;
            self.deadlines.set(Deadline::RemovalProbe, now.mono + self.config.probe_wait);
        }
    }

    /// The time to answer the probe has ended: removed members that are silent count as dead,
    /// unless they answer before `Accept` is sent. Sends `Accept` if a quorum is synced, otherwise
    /// that waits for the sync only. Does nothing without an attempt.
    pub(super) fn removal_probe_ended(&mut self, now: Now, out: &mut EpochOutbox) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.probe_ended = true;
        let step = attempt.may_accept();
        self.follow(now, Some(step), out);
    }

    /// Counts the decision and installs the chosen proposal, which ends the attempt and tells the
    /// parent. Sends `Install` to all other members of the base and of the new configuration,
    /// removed ones included, once and without resends.
    fn decided(&mut self, now: Now, chosen: &SharedEpoch, out: &mut EpochOutbox) {
        self.stats.decided += 1;
        let base = self.current();
        let members: BTreeSet<_> = base.members().iter().chain(chosen.members()).collect();
        self.learn(now, None, chosen.clone(), out); // ends the attempt and tells the parent
        let install = EpochMessage::Install { epoch: chosen.clone() };
        let others = members.into_iter().copied().filter(|id| *id != self.me);
        self.send_all(others.collect::<Vec<_>>(), &install, out);
    }

    /// Begins a new ballot for the same change, with the removal of `members` deferred; confirmed
    /// syncs stay valid in it. Does nothing without an attempt.
    fn begin_deferring(&mut self, now: Now, members: &BTreeSet<ReplicaId>, out: &mut EpochOutbox) {
        if let Some(attempt) = self.attempt.take() {
            self.begin(now, attempt.into_goal().deferring(members), out);
        }
    }

    /// The patience with a seal or with this node's own attempt has ended; the table in
    /// docs/protocol/configurations.md#the-proposer lists the cases. Without an own attempt it
    /// proposes unchanged members, to end the seal of another node. With one:
    ///
    /// - While sealed by another ballot, withholding or waiting: a new ballot defers all removals.
    /// - Withholding and not sealed: see [`lose_patience_unsealed`](Self::lose_patience_unsealed).
    /// - Sealing, and a voter refused for leases: a new ballot defers those removals, or all.
    /// - Syncing: a new ballot for the same change. But an own proposal is given up once
    ///   `sync_attempts` ballots of this node have reached the sealing phase in this configuration:
    ///   a change of the parent is refused as `NotSynced`, and unchanged members are proposed.
    /// - Overtaken in another phase: a new ballot. Otherwise the attempt goes on, with new
    ///   patience.
    ///
    /// Does nothing on a node that is no member.
    pub(super) fn lose_patience(&mut self, now: Now, out: &mut EpochOutbox) {
        if !self.is_member() {
            return;
        }
        let Some(attempt) = self.attempt.take() else {
            return self.begin(now, Goal::abandoned(), out);
        };
        let is_given_up =
            attempt.is_syncing_own() && self.sealing_ballots >= self.config.sync_attempts;
        match (attempt.phase, attempt.leases_in_refusals()) {
            // Sealed by another node's attempt, which patience now takes for abandoned: this ballot
            // ends the seal, and must not wait for leases.
            (BallotPhase::Withholding | BallotPhase::Waiting, _) if self.state.is_sealed() => {
                let removals = attempt.change.removed().collect();
                self.begin(now, attempt.into_goal().deferring(&removals), out);
            }
            (BallotPhase::Withholding, _) => self.lose_patience_unsealed(now, attempt, out),
            (BallotPhase::Sealing, Some((leased, _))) => {
                let deferred = attempt.removals_to_defer(&leased);
                self.begin(now, attempt.into_goal().deferring(&deferred), out);
            }
            (BallotPhase::Syncing, _) if is_given_up => {
                if attempt.origin == AttemptReason::Asked {
                    refuse(ProposalRefusal::NotSynced, out);
                }
                self.begin(now, Goal::abandoned(), out);
            }
            (BallotPhase::Syncing, _) => self.begin(now, attempt.into_goal(), out),
            _ if attempt.overtaken => self.begin(now, attempt.into_goal(), out),
            // Only resending can help, or in `Waiting` the end of the leases.
            _ => {
                self.attempt = Some(attempt);
                self.restart_patience(now);
            }
        }
    }

    /// The patience with unanswered questions has ended, and this node is not sealed. The caller
    /// has taken `attempt` away. Without a quorum of answers the change is given back. If leases
    /// run, the attempt goes on as if no further voter answered. Otherwise the voters that would
    /// remain are too silent: the fewest removals are deferred that make the batch possible, or
    /// all; if that leaves nothing to change, it is given back.
    fn lose_patience_unsealed(&mut self, now: Now, attempt: BallotAttempt, out: &mut EpochOutbox) {
        if !attempt.has_withheld() {
            return self.give_back(out);
        }
        if let Some((members, longest)) = attempt.leases_in_withheld() {
            let since = attempt.withholding_since.unwrap_or(now.mono);
            self.attempt = Some(attempt);
            self.restart_patience(now);
            let left = longest.saturating_sub(now.mono - since); // then all are asked again
            return self.leases_run(now, &members, left, VoterPatience::Ended, out);
        }
        let deferred = attempt.fewest_to_defer().unwrap_or_else(|| attempt.wanted_removals());
        if attempt.would_change(&deferred) {
            return self.begin(now, attempt.into_goal().deferring(&deferred), out);
        }
        self.give_back(out);
    }

    /// Refuses the change with `TooFewAnswered`; the caller has taken the attempt away. The parent
    /// may know better by now which members are gone, and proposes again, with longer patience.
    /// Voters grant the named members no lease until twice the lease duration has passed, or until
    /// the next install. An earlier ballot of the batch may have sealed other voters; their
    /// patience ends that.
    fn give_back(&mut self, out: &mut EpochOutbox) {
        self.changes_given_back = self.changes_given_back.saturating_add(1);
        self.deadlines.clear(Deadline::Resend);
        refuse(ProposalRefusal::TooFewAnswered, out);
    }
}

/// Whether the attempt still waits for voters that have not answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VoterPatience {
    Running,
    Ended,
}

/// Tells the parent that a change is not, or no longer, proposed. `NotAMember`, `Busy` and `Change`
/// answer the change that was proposed last: changes that joined a batch were checked before.
/// `TooFewAnswered` and `NotSynced` answer all changes of the batch.
fn refuse(why: ProposalRefusal, out: &mut EpochOutbox) {
    out.push(EpochOutput::Outcome(ProposalOutcome::Refused { why }));
}
