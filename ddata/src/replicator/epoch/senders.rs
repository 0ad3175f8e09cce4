//! From which peers a configuration is taken.
//!
//! Nothing in a configuration proves that a quorum decided it: nodes do not sign their votes, so a
//! list of voters that accepted it could be made up by its sender. The evidence is the sender's
//! authenticated incarnation instead.
//!
//! **Sender rule.** A configuration is installed only if it belongs to this cluster, does not jump,
//! and was sent by
//! - a member of the configuration that is installed here; of the one that it directly follows, if
//!   that was installed here (after a skip it is not known, and the members of an older one may have
//!   been removed long ago); of the one that an operator's force replaced (two operators may force at
//!   once, and the higher generation must reach both sides however often each has changed since); or
//!   of one that a member proposes to follow the installed one (that member could as well send it as
//!   decided, so trusting its newcomers trusts nobody else); or
//! - a node that membership has let in, as long as this node is in no configuration, or while it
//!   reaches no quorum of the one that it has: the failure detector says so, or a probe was not
//!   answered. A joining node has nothing else to go by. A member without a quorum can decide
//!   nothing, so a refusal would protect nothing, and all members that it knows may be gone.
//!
//! **Hints.** A configuration of a let-in node that the rule refuses is a hint: the receiver pings the
//! voters of its own configuration, at most once per `probe-wait`. A voter that has a newer one sends
//! it. If no quorum answers in time, this node believes let-in nodes for [`ALONE_FOR`], and asks the
//! one that gave the hint. If a quorum answers, each decided configuration is found without that
//! node: a quorum decided it, so one of the voters that answered has accepted it, and has installed
//! it or proposes it again once its patience ends. A hint of an unknown node causes no message.
//!
//! A refusal is reported ([`EpochOutput::Declined`]) only if no configuration of at least that id has
//! been installed within [`CONFIRM_WITHIN`]: in an orderly restart the newest member often speaks
//! before the older ones do.
//!
//! Without the rule, one message of any admitted peer replaces the members of the whole cluster:
//! its receiver installs it and hands it on. `tests/epochs/forged.rs` explores attackers
//! exhaustively, with the rule and without; `tests/epochs/scenarios.rs` shows that the rule keeps no
//! member from the newest configuration.
//!
//! The rule has two costs. A member whose known members were all replaced while it slept, and whose
//! membership has let in none of the others, stays behind until it is downed or restarted. A member
//! that was removed two or more changes ago is not believed, even if an operator forced it to go on:
//! both sides then stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::configuration::{EpochId, GENERATION_AHEAD_MAX, JUMP_MAX, SharedEpoch};
use super::{Ballot, Deadline, Epoch, EpochMessage, EpochOutput, Epochs, Out, Role};
use crate::bug::Bug;
use crate::clock::Now;
use crate::id::ReplicaId;

/// Why a configuration was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Declined {
    /// The sender is in neither the installed configuration nor the one before it.
    #[error(
        "its sender is no member of the configuration installed here, nor of the one before it"
    )]
    Sender,
    /// Two clusters share a name and a secret.
    #[error("it belongs to cluster {theirs:016x}, and this node to cluster {ours:016x}")]
    Cluster {
        /// The installed configuration's.
        ours: u64,
        /// The sender's.
        theirs: u64,
    },
    /// Its number or its generation lies further ahead than a cluster can have come.
    #[error("its number or generation is too far above the one held here")]
    Jump,
}

/// How long the members of a configuration have to confirm what another node sent, before the
/// refusal is reported.
pub(super) const CONFIRM_WITHIN: Duration = Duration::from_secs(10);

/// How long a member whose probe no quorum answered believes let-in nodes.
pub(super) const ALONE_FOR: Duration = Duration::from_secs(1);

/// A probe of the installed configuration's voters, because a let-in node has a newer one.
#[derive(Clone, Debug)]
pub(super) struct HintProbe {
    /// The node that gave the last hint.
    hinted_by: ReplicaId,
    answered: BTreeSet<ReplicaId>, // ≤ voters
    /// No quorum has answered in time.
    is_alone: bool,
}

/// The newest configuration that was refused because of its sender and is not reported yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubted {
    from: ReplicaId,
    epoch: EpochId,
}

/// Nodes that membership has let in, and whether it reaches them.
pub(super) type LetInNodes = BTreeMap<ReplicaId, bool>; // ≤ members of the gossip

impl Epochs {
    pub(super) fn known(&mut self, known: LetInNodes) {
        self.known = known;
    }

    /// Whether a configuration is taken from this peer.
    pub(super) fn believes(&self, from: ReplicaId) -> bool {
        let is_let_in = || self.known.contains_key(&from);
        let Some(installed) = &self.state.installed else { return is_let_in() };
        let is_in = |epoch: Option<&SharedEpoch>| epoch.is_some_and(|it| it.is_member(from));
        let is_vouched_for = installed.is_member(from)
            || is_in(self.former.as_ref())
            || is_in(self.unforced.as_ref())
            || is_in(self.proposed.as_ref());
        let is_alone = || self.hint_probe.as_ref().is_some_and(|probe| probe.is_alone);
        let has_no_say = || self.role == Role::Joining || is_alone() || self.is_cut_off(installed);
        is_vouched_for || (is_let_in() && has_no_say())
    }

    /// Whether the members that this node reaches, itself included, are no quorum.
    fn is_cut_off(&self, installed: &Epoch) -> bool {
        let is_reached = |id: &ReplicaId| *id == self.me || self.known.get(id) == Some(&true);
        let reached: BTreeSet<_> = installed.voters().iter().copied().filter(is_reached).collect();
        !installed.is_quorum(&reached, self.canary)
    }

    /// Whether a newer configuration of `from` is installed. If not, the refusal is counted, and
    /// reported at once or, where only the sender is doubted, after [`CONFIRM_WITHIN`].
    pub(super) fn takes(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: &Epoch,
        out: &mut Out,
    ) -> bool {
        let Some(why) = self.declined(now, from, epoch) else { return true };
        self.stats.declined += 1;
        let epoch = epoch.id();
        if why == Declined::Sender {
            self.doubt(now, Doubted { from, epoch });
            self.follow_hint(now, from, out);
        } else {
            out.push(EpochOutput::Declined { from, epoch, why });
        }
        false
    }

    fn doubt(&mut self, now: Now, doubted: Doubted) {
        if self.doubted.is_none() {
            self.deadlines.set(Deadline::Doubt, now.mono + CONFIRM_WITHIN);
        }
        if self.doubted.is_none_or(|other| other.epoch < doubted.epoch) {
            self.doubted = Some(doubted);
        }
    }

    /// A configuration was installed: it may be the doubted one, or newer.
    pub(super) fn settle_doubt(&mut self) {
        let id = self.id();
        if self.doubted.take_if(|doubted| Some(doubted.epoch) <= id).is_some() {
            self.deadlines.clear(Deadline::Doubt);
        }
    }

    /// No member has confirmed the doubted configuration in time.
    pub(super) fn report_doubt(&mut self, out: &mut Out) {
        let Some(Doubted { from, epoch }) = self.doubted.take() else { return };
        out.push(EpochOutput::Declined { from, epoch, why: Declined::Sender });
    }

    /// A let-in node that is not believed has a newer configuration: asks the voters of the installed
    /// one whether they are there.
    pub(super) fn follow_hint(&mut self, now: Now, from: ReplicaId, out: &mut Out) {
        let Some(current) = self.state.installed.clone() else { return };
        if !self.known.contains_key(&from) {
            return;
        }
        if let Some(probe) = &mut self.hint_probe {
            probe.hinted_by = from;
            return;
        }
        let answered = BTreeSet::from([self.me]);
        self.hint_probe = Some(HintProbe { hinted_by: from, answered, is_alone: false });
        self.deadlines.set(Deadline::HintProbe, now.mono + self.config.probe_wait);
        let ping = EpochMessage::Ping { epoch: current.id(), ballot: self.hint_ballot() };
        let others = current.voters().iter().copied().filter(|id| *id != self.me);
        self.send_all(others.collect::<Vec<_>>(), &ping, out);
    }

    /// Names a probe where an attempt's pings name its ballot, whose number is never 0.
    pub(super) const fn hint_ballot(&self) -> Ballot {
        Ballot { number: 0, node: self.me }
    }

    /// A voter is there.
    pub(super) fn hint_probe_answered(&mut self, from: ReplicaId) {
        let (Some(probe), Some(current)) = (&mut self.hint_probe, &self.state.installed) else {
            return;
        };
        probe.answered.insert(from);
        probe.is_alone &= !current.is_quorum(&probe.answered, self.canary);
    }

    /// The voters have had their time to answer a probe; or this node has been alone for long enough.
    pub(super) fn hint_probe_ended(&mut self, now: Now, out: &mut Out) {
        let Some(probe) = self.hint_probe.take().filter(|probe| !probe.is_alone) else { return };
        let current = self.current();
        if current.is_quorum(&probe.answered, self.canary) {
            return;
        }
        let (to, installed) = (probe.hinted_by, Some(current.id()));
        self.hint_probe = Some(HintProbe { is_alone: true, ..probe });
        self.deadlines.set(Deadline::HintProbe, now.mono + ALONE_FOR);
        self.send(to, EpochMessage::Ask { installed }, out);
    }

    /// Another configuration is installed: its voters are others.
    pub(super) fn cancel_hint_probe(&mut self) {
        self.hint_probe = None;
        self.deadlines.clear(Deadline::HintProbe);
    }

    fn declined(&self, now: Now, from: ReplicaId, epoch: &Epoch) -> Option<Declined> {
        if self.canary.has(Bug::ConfigurationFromAnybody) {
            return None;
        }
        let installed = self.state.installed.as_ref();
        if let Some(mine) = installed.filter(|mine| mine.cluster() != epoch.cluster()) {
            let (ours, theirs) = (mine.cluster(), epoch.cluster());
            return Some(Declined::Cluster { ours, theirs });
        }
        if !self.believes(from) {
            return Some(Declined::Sender);
        }
        let held = self.id().unwrap_or_default();
        let ages = held.generation.max(now.wall.as_millis()).saturating_add(GENERATION_AHEAD_MAX);
        // A joiner holds no number to compare with.
        let numbers = installed.map_or(u64::MAX, |_| held.number.saturating_add(JUMP_MAX));
        let jumps = epoch.id().generation > ages || epoch.id().number > numbers;
        jumps.then_some(Declined::Jump)
    }

    /// Whether a ballot's number can follow those that this node has heard of.
    pub(super) const fn is_near(&self, ballot: Ballot) -> bool {
        ballot.number <= self.state.number.saturating_add(JUMP_MAX)
    }
}
