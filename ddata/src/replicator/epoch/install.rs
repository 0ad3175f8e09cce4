//! Learning and installing decided configurations (rule E5), and the state pull that follows.

use std::collections::BTreeSet;

use super::attempt::Origin;
use super::configuration::SharedEpoch;
use super::{AcceptorState, Consents};
use super::{Deadline, Epoch, EpochId, EpochMessage, EpochOutput, Epochs, Out, Outcome, Role};
use crate::clock::Now;
use crate::id::ReplicaId;

impl Epochs {
    pub(super) fn found(&mut self, now: Now, epoch: SharedEpoch, out: &mut Out) {
        assert!(self.may_found(&epoch), "a cluster is founded once, by a node that knows of none");
        self.state.install(epoch);
        self.state.synced = true;
        self.installed_anew(now, None, out);
    }

    /// Whether a cluster, or a generation of it, may begin here with this configuration: nothing is
    /// installed, or a peer has told of an earlier generation of a cluster whose only member's
    /// successor this node is.
    pub(in crate::replicator) fn may_found(&self, epoch: &Epoch) -> bool {
        let succeeds = || epoch.is_forced() && *epoch.members() == [self.me];
        let installed = self.state.installed.as_ref();
        installed.is_none_or(|installed| {
            succeeds() && epoch.id() > installed.id() && epoch.is_forced_after(installed)
        })
    }

    /// An operator's word in place of a quorum's. What this node holds is the state of the new
    /// generation, so it is synced; the others merge it with theirs. Whoever is given up is told, too:
    /// if it lives it ends itself.
    pub(super) fn force(
        &mut self,
        now: Now,
        replaced: EpochId,
        kept: &BTreeSet<ReplicaId>,
        out: &mut Out,
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

    /// Takes over what an earlier run made durable. Of a predecessor's promises nothing follows
    /// but knowledge: this incarnation is a joiner unless it stands in the configuration itself.
    pub(super) fn restore(&mut self, now: Now, state: AcceptorState, out: &mut Out) {
        assert!(self.state == AcceptorState::default(), "restoring comes first");
        let Some(epoch) = state.installed.clone() else { return };
        self.state = state;
        self.role = self.role_in(&epoch);
        out.push(EpochOutput::Installed(epoch));
        if !self.is_member() {
            return;
        }
        if self.state.is_sealed() {
            // The live state holds all that the snapshot did: what was acked is durable.
            out.push(EpochOutput::Freeze(self.current().id()));
            self.restart_patience(now);
        }
        if self.state.synced {
            out.push(EpochOutput::Synced(self.current().id()));
        } else {
            self.next_source(now, out);
        }
    }

    /// Replaces what is installed; the caller has checked it and tells the parent.
    fn install(&mut self, epoch: SharedEpoch) {
        if let Some(before) = self.state.installed.clone() {
            if epoch.is_forced_after(&before) {
                self.unforced = Some(before.clone());
            }
            // After a skip the one before it is not known, and an older one proves nothing.
            self.former = Some(before).filter(|before| before.id().next() == epoch.id());
        }
        self.proposed = None;
        self.state.install(epoch);
    }

    /// A decided configuration: of a peer, or (`None`) decided by this node's own attempt.
    pub(super) fn learn(
        &mut self,
        now: Now,
        from: Option<ReplicaId>,
        epoch: SharedEpoch,
        out: &mut Out,
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
                if from.is_some_and(|from| !self.takes(now, from, &epoch, out)) {
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

    /// Who was given up, and lives, ends itself. Those who live beside it may have been taken up since,
    /// or refuse whoever forced it, or be kept and not have heard of it: nobody but this node can tell them.
    fn pass_on(&mut self, before: &Epoch, from: Option<ReplicaId>, out: &mut Out) {
        let epoch = self.current();
        if self.role == Role::Member && !epoch.is_member(self.me) && epoch.is_forced_after(before) {
            let install = EpochMessage::Install { epoch };
            let me = self.me;
            let knows = |id: &ReplicaId| *id == me || Some(*id) == from;
            let others = before.members().iter().copied().filter(|id| !knows(id));
            self.send_all(others, &install, out);
        }
    }

    /// `from` is in this epoch: whoever is behind gets the newer one.
    pub(super) fn peer_epoch(
        &mut self,
        now: Now,
        from: ReplicaId,
        id: Option<EpochId>,
        out: &mut Out,
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

    /// Ends everything that belonged to the epoch before.
    fn installed_anew(&mut self, now: Now, from: Option<ReplicaId>, out: &mut Out) {
        let epoch = self.current();
        let was = self.role;
        self.role = self.role_in(&epoch);
        self.stopped = false;
        (self.attempts, self.given_back) = (0, 0);
        self.consents = Consents::default();
        self.installs.reset();
        self.asks.reset();
        self.settle_doubt();
        self.cancel_hint_probe();
        for kind in [Deadline::Patience, Deadline::Resend, Deadline::Leases, Deadline::RemovalProbe]
        {
            self.deadlines.clear(kind);
        }
        self.stats.installed += 1;
        self.persist(out);
        out.push(EpochOutput::Installed(epoch.clone()));
        self.report(&epoch, out);
        self.keep_syncing_only_for(epoch.id(), out);
        if self.is_excluded() && was != Role::Excluded {
            out.push(EpochOutput::Excluded(epoch.id()));
        } else if self.is_member() && self.state.synced {
            out.push(EpochOutput::Synced(epoch.id()));
        } else if self.is_member() {
            self.source = from.filter(|from| epoch.is_voter(*from) && *from != self.me);
            self.pull_state(now, out);
        }
    }

    /// Tells the parent what became of its proposal.
    fn report(&mut self, epoch: &SharedEpoch, out: &mut Out) {
        let Some(attempt) = self.attempt.take().filter(|a| a.origin == Origin::Asked) else {
            return;
        };
        out.push(EpochOutput::Outcome(if attempt.own_proposal == *epoch {
            let deferred = attempt.deferred.into_iter().collect();
            Outcome::Decided { epoch: epoch.id(), deferred }
        } else {
            Outcome::Superseded { by: epoch.id() }
        }));
    }

    /// A member that is in no newer configuration, or was in one that this node slept through, is
    /// out for good: a removed incarnation never returns, whatever a later configuration says.
    fn role_in(&self, epoch: &SharedEpoch) -> Role {
        let has_me = epoch.is_member(self.me);
        match self.role {
            Role::Excluded => Role::Excluded,
            _ if has_me => Role::Member,
            Role::Joining if !epoch.left().contains(&self.me) => Role::Joining,
            Role::Joining | Role::Member => Role::Excluded,
        }
    }

    pub(super) fn state_merged(&mut self, epoch: EpochId, from: ReplicaId, out: &mut Out) {
        let awaited = self.id() == Some(epoch) && self.is_member() && !self.state.synced;
        if awaited && self.current().is_member(from) {
            self.now_synced(out);
        }
    }

    pub(super) fn source_failed(&mut self, now: Now, epoch: EpochId, from: ReplicaId) {
        if self.id() == Some(epoch) && self.source == Some(from) && !self.state.synced {
            // Not at once: who fails without a round trip would be asked without end.
            self.deadlines.set(Deadline::Source, now.mono + self.config.resend_first);
        }
    }

    /// This member may ack in the installed epoch.
    pub(super) fn now_synced(&mut self, out: &mut Out) {
        self.state.synced = true;
        self.source = None;
        self.deadlines.clear(Deadline::Source);
        self.keep_syncing_after_sync();
        self.persist(out);
        self.stop_pulls(out);
        out.push(EpochOutput::Synced(self.current().id()));
    }

    /// Tries the voter after the one tried last; the first one at random.
    pub(super) fn next_source(&mut self, now: Now, out: &mut Out) {
        if !self.is_member() || self.state.synced {
            return;
        }
        let epoch = self.current();
        let others: Vec<_> = epoch.voters().iter().copied().filter(|id| *id != self.me).collect();
        if others.is_empty() {
            return; // the only voter: its own snapshot of the epoch before is all there is
        }
        let last = self.source.and_then(|source| others.iter().position(|id| *id == source));
        let next = last.map_or_else(|| self.pick(others.len()), |last| (last + 1) % others.len());
        self.source = Some(others[next]);
        self.pull_state(now, out);
    }

    fn pull_state(&mut self, now: Now, out: &mut Out) {
        let Some(from) = self.source else { return self.next_source(now, out) };
        out.push(EpochOutput::PullState { epoch: self.current().id(), from });
        self.deadlines.set(Deadline::Source, now.mono + self.config.source_patience);
    }
}
