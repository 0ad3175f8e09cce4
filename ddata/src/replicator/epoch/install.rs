//! Installing configurations: founding, forced recovery, restore after a restart, and decided
//! configurations (docs/protocol/configurations.md#install-the-newest).
//!
//! Every install resets the voting state and tells the parent. A member that was not ready for the
//! new configuration then pulls the state of one voter, the *source*, and changes it when that
//! fails.
//! [`Epochs::peer_epoch`] keeps nodes up to date: it answers older ids with `Install` and newer
//! ones with `Ask`.

use std::collections::BTreeSet;

use super::attempt::AttemptReason;
use super::configuration::SharedEpoch;
use super::{AcceptorState, Consents};
use super::{
    ConfigurationRole, Deadline, Epoch, EpochId, EpochMessage, EpochOutbox, EpochOutput, Epochs,
    ProposalOutcome,
};
use crate::clock::Now;
use crate::id::ReplicaId;

impl Epochs {
    /// Installs the first configuration of a cluster or of a generation. This node is synced at
    /// once. The parent must have checked [`may_found`](Self::may_found); otherwise this panics.
    pub(super) fn found(&mut self, now: Now, epoch: SharedEpoch, out: &mut EpochOutbox) {
        assert!(self.may_found(&epoch), "this node is in a cluster already");
        self.install(epoch);
        self.state.synced = true;
        self.installed_anew(now, None, out);
    }

    /// Whether `epoch` may be the first configuration of a cluster or of a generation here: nothing
    /// is installed (then any will do, even one without this node), or this node is the only member
    /// of a forced configuration of another generation with a higher id.
    pub(in crate::replicator) fn may_found(&self, epoch: &Epoch) -> bool {
        let succeeds = || epoch.is_forced() && *epoch.members() == [self.me];
        let installed = self.state.installed.as_ref();
        installed.is_none_or(|installed| {
            succeeds() && epoch.id() > installed.id() && epoch.is_forced_after(installed)
        })
    }

    /// Forced recovery: installs a configuration on an operator's order, without a quorum
    /// (docs/protocol/configurations.md#forced-recovery). The state of this node is the state of
    /// the new generation, so this node counts as synced; the other members merge it with theirs.
    /// Sends `Install` to all other members of the replaced configuration: those that are given up
    /// must end themselves.
    ///
    /// This node stays even if `kept` lacks it; a seal ends and an own attempt is superseded. The
    /// order is ignored without a report if this node is no member, has not installed `replaced`,
    /// or there is no higher configuration.
    pub(super) fn force(
        &mut self,
        now: Now,
        replaced: EpochId,
        kept: &BTreeSet<ReplicaId>,
        out: &mut EpochOutbox,
    ) {
        if !self.is_member() || self.id() != Some(replaced) {
            return;
        }
        let before = self.current();
        let Ok(forced) = before.forced(self.me, kept, now.wall.as_millis()) else { return };
        self.stats.forced += 1;
        self.install(SharedEpoch::new(forced));
        self.state.synced = true;
        self.installed_anew(now, None, out);
        let install = EpochMessage::Install { epoch: self.current() };
        let me = self.me;
        let others = before.members().iter().copied().filter(|id| *id != me);
        self.send_all(others, &install, out);
    }

    /// Restores the state that an earlier run made durable. The promises of a predecessor bind no
    /// other incarnation: one that is not a member of the restored configuration is a joiner
    /// (excluded, without an `Excluded` output, if it is listed as departed), and is only told the
    /// configuration. A sealed member freezes again; `Pending` and `StopServing` are not repeated.
    /// A member that is not synced pulls the state.
    ///
    /// Nothing is persisted or counted as an install. Must be the first input, otherwise it panics;
    /// a state without a configuration changes nothing.
    pub(super) fn restore(&mut self, now: Now, state: AcceptorState, out: &mut EpochOutbox) {
        assert!(self.state == AcceptorState::default(), "restore must be the first input");
        let Some(epoch) = state.installed.clone() else { return };
        self.state = state;
        self.role = self.role_in(&epoch);
        out.push(EpochOutput::Installed(epoch));
        if !self.is_member() {
            return;
        }
        if self.state.is_sealed() {
            // The live state holds all that the snapshot held, because acknowledged data is
            // durable.
            out.push(EpochOutput::Freeze(self.current().id()));
            self.restart_patience(now);
        }
        if self.state.synced {
            out.push(EpochOutput::Synced(self.current().id()));
        } else {
            self.next_source(now, out);
        }
    }

    /// Replaces the installed configuration and resets the votes and the last proposal, but not the
    /// attempt and the role. Records the replaced one as `former` if the new one directly follows
    /// it (otherwise `former` is empty), and as `unforced` if the new one belongs to another
    /// generation that was forced. Sends nothing.
    ///
    /// The caller must have checked that it is newer and may be installed, and calls
    /// [`installed_anew`](Self::installed_anew) afterwards.
    fn install(&mut self, epoch: SharedEpoch) {
        if let Some(before) = self.state.installed.clone() {
            if epoch.is_forced_after(&before) {
                self.unforced = Some(before.clone());
            }
            // After a skip the preceding configuration is unknown; members of an older one prove
            // nothing.
            self.former = Some(before).filter(|before| before.id().next() == epoch.id());
        }
        self.proposed = None;
        self.state.install(epoch);
    }

    /// Learns a decided configuration, from a peer or (`None`) from this node's own attempt. A
    /// newer one is installed if, from a peer, the sender rule allows it
    /// ([`may_install`](Self::may_install)). The sender of an older one is sent the installed one,
    /// by [`peer_epoch`](Self::peer_epoch). One with the same id changes nothing; a different one
    /// is counted as nonsense.
    pub(super) fn learn(
        &mut self,
        now: Now,
        from: Option<ReplicaId>,
        epoch: SharedEpoch,
        out: &mut EpochOutbox,
    ) {
        match self.state.installed.as_ref().map(|mine| (mine.id().cmp(&epoch.id()), mine)) {
            Some((std::cmp::Ordering::Equal, mine)) => {
                self.stats.nonsense += u64::from(*mine != epoch);
            }
            Some((std::cmp::Ordering::Greater, _)) => {
                if let Some(from) = from {
                    self.peer_epoch(now, from, Some(epoch.id()), out);
                }
            }
            Some((std::cmp::Ordering::Less, _)) | None => {
                if from.is_some_and(|from| !self.may_install(now, from, &epoch, out)) {
                    return;
                }
                let before = self.state.installed.clone();
                self.install(epoch);
                if let Some(before) = before {
                    self.pass_on(&before, from, out);
                }
                self.installed_anew(now, from, out);
            }
        }
    }

    /// Sends a forced configuration that gives this node up to all members of the replaced one
    /// (docs/protocol/configurations.md#given-up-nodes-are-told). Some of them joined since, some
    /// refuse the forcing node, and some are kept but have not heard: only this node may be able to
    /// tell them. It then ends itself. The sender of the configuration gets no copy. Any other
    /// configuration is not passed on. Must be called between [`install`](Self::install) and
    /// [`installed_anew`](Self::installed_anew), which changes the role.
    fn pass_on(&mut self, before: &Epoch, from: Option<ReplicaId>, out: &mut EpochOutbox) {
        let epoch = self.current();
        if self.role == ConfigurationRole::Member
            && !epoch.is_member(self.me)
            && epoch.is_forced_after(before)
        {
            let install = EpochMessage::Install { epoch };
            let me = self.me;
            let knows = |id: &ReplicaId| *id == me || Some(*id) == from;
            let others = before.members().iter().copied().filter(|id| !knows(id));
            self.send_all(others, &install, out);
        }
    }

    /// A peer has installed `id`: the side that is behind learns of the newer configuration
    /// (docs/protocol/configurations.md#catch-up-by-configuration-id). Any peer that is behind,
    /// even an unknown one, is sent `Install`; one that is ahead is sent `Ask`. A peer whose
    /// configurations may not be installed here ([`believes`](Self::believes)) is not asked: a
    /// newer `id` of it is only a hint, after which this node probes its own voters.
    ///
    /// Each peer gets at most one `Ask` and one `Install` in `resend_first`, counted anew from each
    /// install; an equal id, or this node's own message, causes nothing.
    pub(super) fn peer_epoch(
        &mut self,
        now: Now,
        from: ReplicaId,
        id: Option<EpochId>,
        out: &mut EpochOutbox,
    ) {
        let mine = self.id();
        if from == self.me || id == mine {
            return;
        }
        if id > mine {
            if !self.believes(from) {
                self.follow_hint(now, from, out);
            } else if self.asks.may(now.mono, from) {
                self.send(from, EpochMessage::Ask { installed: mine }, out);
            }
        } else if self.installs.may(now.mono, from) {
            self.send(from, EpochMessage::Install { epoch: self.current() }, out);
        }
    }

    /// Resets the state that belonged to the configuration before (open consents, counts of
    /// ballots, rate limits, hint probe, all deadlines but a report of another refused
    /// configuration), counts the install and reports the new one. The outputs come in this order:
    /// `Persist`, `Installed`, the outcome of an own attempt, `StopPulls`, then one of `Excluded`,
    /// `Synced` and `PullState`.
    ///
    /// A sync for the new one continues. A member that is not synced pulls the state, first from
    /// `from`, the sender of the configuration, if that is a voter; the only voter pulls from no
    /// node and waits for its own snapshot. An exclusion is reported only when the role changes to
    /// it; a joiner pulls nothing.
    fn installed_anew(&mut self, now: Now, from: Option<ReplicaId>, out: &mut EpochOutbox) {
        let epoch = self.current();
        let was = self.role;
        self.role = self.role_in(&epoch);
        self.stopped = false;
        (self.sealing_ballots, self.changes_given_back) = (0, 0);
        self.consents = Consents::default();
        self.installs.reset();
        self.asks.reset();
        self.settle_doubt();
        self.cancel_hint_probe();
        for kind in
            [Deadline::AbandonedSeal, Deadline::Resend, Deadline::Leases, Deadline::RemovalProbe]
        {
            self.deadlines.clear(kind);
        }
        self.stats.installed += 1;
        self.persist(out);
        out.push(EpochOutput::Installed(epoch.clone()));
        self.report(&epoch, out);
        self.keep_syncing_only_for(epoch.id(), out);
        if self.is_excluded() && was != ConfigurationRole::Excluded {
            out.push(EpochOutput::Excluded(epoch.id()));
        } else if self.is_member() && self.state.synced {
            out.push(EpochOutput::Synced(epoch.id()));
        } else if self.is_member() {
            self.source = from.filter(|from| epoch.is_voter(*from) && *from != self.me);
            self.pull_state(now, out);
        }
    }

    /// Ends this node's attempt, if there is one. If it was for a change of the parent, reports the
    /// change as decided, if `epoch` is the attempt's own proposal (also when another node decided
    /// it), or as superseded. An attempt that only ended a seal is not reported.
    fn report(&mut self, epoch: &SharedEpoch, out: &mut EpochOutbox) {
        let Some(attempt) = self.attempt.take().filter(|a| a.origin == AttemptReason::Asked) else {
            return;
        };
        out.push(EpochOutput::Outcome(if attempt.own_proposal == *epoch {
            let deferred = attempt.deferred.into_iter().collect();
            ProposalOutcome::Decided { epoch: epoch.id(), deferred }
        } else {
            ProposalOutcome::Superseded { by: epoch.id() }
        }));
    }

    /// The role of this node once `epoch` is installed. A member that it lacks, and a joiner that
    /// it lists as departed, are excluded for good: a removed incarnation never returns, whatever a
    /// later configuration lists.
    fn role_in(&self, epoch: &SharedEpoch) -> ConfigurationRole {
        let has_me = epoch.is_member(self.me);
        match self.role {
            ConfigurationRole::Excluded => ConfigurationRole::Excluded,
            _ if has_me => ConfigurationRole::Member,
            ConfigurationRole::Joining if !epoch.left().contains(&self.me) => {
                ConfigurationRole::Joining
            }
            ConfigurationRole::Joining | ConfigurationRole::Member => ConfigurationRole::Excluded,
        }
    }

    /// The parent has merged the state of `from`. The state of any member makes this one synced,
    /// not only that of the current source. Ignored if this node is synced or no member, if `from`
    /// is no member, or if another configuration is installed.
    pub(super) fn state_merged(&mut self, epoch: EpochId, from: ReplicaId, out: &mut EpochOutbox) {
        let awaited = self.id() == Some(epoch) && self.is_member() && !self.state.synced;
        if awaited && self.current().is_member(from) {
            self.now_synced(out);
        }
    }

    /// The parent cannot pull from `from`. If that is the current source, the next one is tried
    /// after `resend_first`, which every further failure starts anew; otherwise, and on a synced
    /// node, the failure is ignored.
    pub(super) fn source_failed(&mut self, now: Now, epoch: EpochId, from: ReplicaId) {
        if self.id() == Some(epoch) && self.source == Some(from) && !self.state.synced {
            // Not at once: a source that fails without a round trip would be asked in a busy loop.
            self.deadlines.set(Deadline::Source, now.mono + self.config.resend_first);
        }
    }

    /// The state is merged: this member may acknowledge in the installed configuration, unless it
    /// is sealed. Persists, then ends all pulls (`StopPulls` even if there are none); those for the
    /// next configuration are ordered again. `Synced` comes last.
    pub(super) fn now_synced(&mut self, out: &mut EpochOutbox) {
        self.state.synced = true;
        self.source = None;
        self.deadlines.clear(Deadline::Source);
        self.keep_syncing_after_sync();
        self.persist(out);
        self.reorder_pulls(out);
        out.push(EpochOutput::Synced(self.current().id()));
    }

    /// Pulls from the voter after the one tried last, in the order of voters and around its end;
    /// the first one is random. Does nothing if this node is no member, is synced, or is the only
    /// voter.
    pub(super) fn next_source(&mut self, now: Now, out: &mut EpochOutbox) {
        if !self.is_member() || self.state.synced {
            return;
        }
        let epoch = self.current();
        let others: Vec<_> = epoch.voters().iter().copied().filter(|id| *id != self.me).collect();
        if others.is_empty() {
            return; // the only voter syncs from its own snapshot
        }
        let last = self.source.and_then(|source| others.iter().position(|id| *id == source));
        let next = last.map_or_else(|| self.pick(others.len()), |last| (last + 1) % others.len());
        self.source = Some(others[next]);
        self.pull_state(now, out);
    }

    /// Orders a pull from the current source, or from a random one if there is none. The next
    /// source is tried after `source_patience`.
    fn pull_state(&mut self, now: Now, out: &mut EpochOutbox) {
        let Some(from) = self.source else { return self.next_source(now, out) };
        out.push(EpochOutput::PullState { epoch: self.current().id(), from });
        self.deadlines.set(Deadline::Source, now.mono + self.config.source_patience);
    }
}
