//! Which peers a configuration is taken from.
//!
//! Nothing in a configuration proves that a quorum decided it: nodes do not sign their votes, so a
//! sender could make up a list of voters that accepted it. The evidence is the sender's
//! authenticated incarnation instead.
//!
//! **Sender rule** (docs/protocol/configurations.md#sender-rule). A configuration is installed only
//! if it belongs to this cluster, does not jump, and was sent by
//! - a member of the installed configuration; of the one that it directly follows, if that was
//!   installed here (after a skip it is unknown, and members of an older one may have been removed
//!   long ago); of the one that forced recovery replaced (two operators may force at once, and the
//!   higher generation must reach both sides however often each has changed since); or of a
//!   configuration that a member proposes to follow the installed one (that member could as well
//!   send it as decided, so trusting its newcomers extends no trust); or
//! - a node that membership has let in, while this node is in no configuration or reaches no quorum
//!   of its own: the failure detector reports that, or a hint probe was not answered. A joining
//!   node has no other evidence. A member without a quorum can decide nothing, so a refusal would
//!   protect nothing, and all members that it knows may be gone.
//!
//! **Hints** (docs/protocol/configurations.md#hints). A configuration of a let-in node that the
//! rule refuses is a hint: the receiver pings the voters of its own configuration, at most once per
//! `probe-wait`. A voter that has a newer one sends it. If no quorum answers in time, this node
//! believes let-in nodes for [`ALONE_FOR`], and asks the one that gave the hint. If a quorum
//! answers, the receiver learns each decided configuration without that node: a quorum decided it,
//! so one of the voters that answered has accepted it, and has installed it or proposes it again
//! once its patience ends. A hint of an unknown node causes no message.
//!
//! A refusal is reported ([`EpochOutput::Declined`]) only if no configuration of at least that id
//! has been installed within [`CONFIRM_WITHIN`], because in an orderly restart the newest member
//! often sends its configuration before the older ones do.
//!
//! Without the rule, one message of any admitted peer replaces the members of the whole cluster:
//! its receiver installs it and passes it on. `tests/epochs/forged.rs` explores attackers
//! exhaustively, with the rule and without; `tests/epochs/scenarios.rs` shows that the rule keeps
//! no member from the newest configuration.
//!
//! The rule has two costs. A member whose known members were all replaced while it was cut off, and
//! whose membership has let in none of the others, stays behind until it is downed or restarted. A
//! member that was removed two or more changes ago is not believed, even if an operator forced it
//! to go on: both sides then stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::configuration::{EpochId, GENERATION_AHEAD_MAX, JUMP_MAX, SharedEpoch};
use super::{
    Ballot, ConfigurationRole, Deadline, Epoch, EpochMessage, EpochOutbox, EpochOutput, Epochs,
};
use crate::clock::Now;
use crate::fault_injection::ReplicatorFault;
use crate::id::ReplicaId;

/// Why a newer configuration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationRefusal {
    /// The sender rule does not allow the sender: it is in neither the installed configuration nor
    /// the one before it, nor vouched for in another way.
    #[error(
        "its sender is no member of the configuration installed here, nor of the one before it"
    )]
    Sender,
    /// The configuration belongs to another cluster: two clusters share a name and a secret.
    #[error("it belongs to cluster {theirs:016x}, this node to cluster {ours:016x}")]
    Cluster {
        /// The cluster of the installed configuration.
        ours: u64,
        /// The cluster of the refused configuration.
        theirs: u64,
    },
    /// The number or the generation is above every one that this cluster can have reached.
    #[error("its number or generation is too far above the one held here")]
    Jump,
}

/// How long members have to confirm a configuration that another node sent, before its refusal is
/// reported.
pub(super) const CONFIRM_WITHIN: Duration = Duration::from_secs(10);

/// How long a member believes let-in nodes after no quorum has answered its hint probe.
pub(super) const ALONE_FOR: Duration = Duration::from_secs(1);

/// A probe of the voters of the installed configuration, because a let-in node has a newer one.
#[derive(Clone, Debug)]
pub(super) struct HintProbe {
    /// The node that gave the last hint.
    hinted_by: ReplicaId,
    /// The voters that have answered, and this node.
    pub(super) answered: BTreeSet<ReplicaId>, // ≤ voters + 1
    /// No quorum answered in time: this node believes let-in nodes until the deadline, or until a
    /// late answer completes a quorum.
    is_alone: bool,
}

/// The newest configuration that was refused because of its sender and is not reported yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedConfiguration {
    from: ReplicaId,
    epoch: EpochId,
}

/// The nodes that membership has let in, and whether this node reaches each.
pub(super) type LetInNodes = BTreeMap<ReplicaId, bool>; // ≤ members of the gossip

impl Epochs {
    /// Replaces the list of nodes that membership has let in.
    pub(super) fn known(&mut self, known: LetInNodes) {
        self.known = known;
    }

    /// Whether a configuration of this peer may be installed, by the sender rule
    /// (docs/protocol/configurations.md#sender-rule). Before the first configuration only let-in
    /// nodes are believed. Later, members of the installed one, of the one before, of the one that
    /// a forced one replaced, and of the last proposal always are; let-in nodes only while this
    /// node is a joiner, its hint probe failed, or it reaches no quorum.
    pub(super) fn believes(&self, from: ReplicaId) -> bool {
        let is_let_in = || self.known.contains_key(&from);
        let Some(installed) = &self.state.installed else { return is_let_in() };
        let is_in = |epoch: Option<&SharedEpoch>| epoch.is_some_and(|it| it.is_member(from));
        let is_vouched_for = installed.is_member(from)
            || is_in(self.former.as_ref())
            || is_in(self.unforced.as_ref())
            || is_in(self.proposed.as_ref());
        let is_alone = || self.hint_probe.as_ref().is_some_and(|probe| probe.is_alone);
        let has_no_say =
            || self.role == ConfigurationRole::Joining || is_alone() || self.is_cut_off(installed);
        is_vouched_for || (is_let_in() && has_no_say())
    }

    /// Whether the voters that this node reaches, itself included if it is one, are no quorum. A
    /// voter that membership does not list counts as not reached.
    fn is_cut_off(&self, installed: &Epoch) -> bool {
        let is_reached = |id: &ReplicaId| *id == self.me || self.known.get(id) == Some(&true);
        let reached: BTreeSet<_> = installed.voters().iter().copied().filter(is_reached).collect();
        !installed.is_quorum(&reached, self.fault_injection)
    }

    /// Whether a newer configuration of `from` may be installed; the caller has checked that it is
    /// newer, and installs it. A refusal is counted as `declined`. It is reported at once, each
    /// time, or, if only the sender is the reason, after [`CONFIRM_WITHIN`]; the latter is also
    /// handled as a hint.
    pub(super) fn may_install(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: &Epoch,
        out: &mut EpochOutbox,
    ) -> bool {
        let Some(why) = self.declined(now, from, epoch) else { return true };
        self.stats.declined += 1;
        let epoch = epoch.id();
        if why == ConfigurationRefusal::Sender {
            self.doubt(now, RefusedConfiguration { from, epoch });
            self.follow_hint(now, from, out);
        } else {
            out.push(EpochOutput::Declined { from, epoch, why });
        }
        false
    }

    /// Remembers a refused configuration for the report, in place of one with a lower id; of equal
    /// ids the first stays. The time until the report runs from the first one and does not start
    /// again.
    fn doubt(&mut self, now: Now, doubted: RefusedConfiguration) {
        if self.doubted.is_none() {
            self.deadlines.set(Deadline::Doubt, now.mono + CONFIRM_WITHIN);
        }
        if self.doubted.is_none_or(|other| other.epoch < doubted.epoch) {
            self.doubted = Some(doubted);
        }
    }

    /// Forgets the doubted configuration if one of at least its id is installed now. Otherwise the
    /// report stays due.
    pub(super) fn settle_doubt(&mut self) {
        let id = self.id();
        if self.doubted.take_if(|doubted| Some(doubted.epoch) <= id).is_some() {
            self.deadlines.clear(Deadline::Doubt);
        }
    }

    /// No member has confirmed the doubted configuration in time: reports its refusal and forgets
    /// it. Does nothing without one.
    pub(super) fn report_doubt(&mut self, out: &mut EpochOutbox) {
        let Some(RefusedConfiguration { from, epoch }) = self.doubted.take() else { return };
        out.push(EpochOutput::Declined { from, epoch, why: ConfigurationRefusal::Sender });
    }

    /// Handles a hint (docs/protocol/configurations.md#hints): pings the other voters of the
    /// installed configuration, once each, without resends. While a hint probe exists (open or
    /// failed), `from` only replaces the node that gave the last hint. Ignored before the first
    /// configuration, and from a node that is not let in.
    pub(super) fn follow_hint(&mut self, now: Now, from: ReplicaId, out: &mut EpochOutbox) {
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

    /// The ballot that hint probes carry. Its number 0 tells them from the probes of an attempt.
    pub(super) const fn hint_ballot(&self) -> Ballot {
        Ballot { number: 0, node: self.me }
    }

    /// Handles the answer to a hint probe in which this node named the configuration `epoch`. It
    /// counts only if that is the installed one and the sender is a voter of it: others have
    /// accepted nothing, so their answers do not make the hint superfluous. A quorum in time does
    /// not end the probe before its deadline; a late answer that completes a quorum ends the belief
    /// in let-in nodes at once.
    pub(super) fn hint_probe_answered(&mut self, from: ReplicaId, epoch: EpochId) {
        let (Some(probe), Some(current)) = (&mut self.hint_probe, &self.state.installed) else {
            return;
        };
        if current.id() != epoch || !current.is_voter(from) {
            return;
        }
        probe.answered.insert(from);
        probe.is_alone &= !current.is_quorum(&probe.answered, self.fault_injection);
    }

    /// Ends a hint probe at its deadline. With answers of a quorum nothing follows. Without, this
    /// node believes let-in nodes for [`ALONE_FOR`] and asks the one that gave the last hint for
    /// its configuration; at the end of that time it drops the probe and stops believing them.
    pub(super) fn hint_probe_ended(&mut self, now: Now, out: &mut EpochOutbox) {
        let Some(probe) = self.hint_probe.take().filter(|probe| !probe.is_alone) else { return };
        let current = self.current();
        if current.is_quorum(&probe.answered, self.fault_injection) {
            return;
        }
        let (to, installed) = (probe.hinted_by, Some(current.id()));
        self.hint_probe = Some(HintProbe { is_alone: true, ..probe });
        self.deadlines.set(Deadline::HintProbe, now.mono + ALONE_FOR);
        self.send(to, EpochMessage::Ask { installed }, out);
    }

    /// Drops the hint probe and the belief in let-in nodes that it gave, because another
    /// configuration is installed and has other voters.
    pub(super) fn cancel_hint_probe(&mut self) {
        self.hint_probe = None;
        self.deadlines.clear(Deadline::HintProbe);
    }

    /// Reason to refuse a newer configuration; `None` if it may be installed. The cluster is
    /// checked first, then the sender, then the numbers, so a jump is reported only if the sender
    /// is believed. The generation may lie [`GENERATION_AHEAD_MAX`] above the installed one or the
    /// wall clock, whichever is higher, and is therefore limited even while nothing is installed.
    /// The number may lie [`JUMP_MAX`] above the installed one, in whatever generation. Before the
    /// first configuration every cluster and number will do.
    fn declined(&self, now: Now, from: ReplicaId, epoch: &Epoch) -> Option<ConfigurationRefusal> {
        if self.fault_injection.has(ReplicatorFault::ConfigurationFromAnybody) {
            return None;
        }
        let installed = self.state.installed.as_ref();
        if let Some(mine) = installed.filter(|mine| mine.cluster() != epoch.cluster()) {
            let (ours, theirs) = (mine.cluster(), epoch.cluster());
            return Some(ConfigurationRefusal::Cluster { ours, theirs });
        }
        if !self.believes(from) {
            return Some(ConfigurationRefusal::Sender);
        }
        let held = self.id().unwrap_or_default();
        let ages = held.generation.max(now.wall.as_millis()).saturating_add(GENERATION_AHEAD_MAX);
        // A joiner has no number to compare with.
        let numbers = installed.map_or(u64::MAX, |_| held.number.saturating_add(JUMP_MAX));
        let jumps = epoch.id().generation > ages || epoch.id().number > numbers;
        jumps.then_some(ConfigurationRefusal::Jump)
    }

    /// Whether the number of a ballot is at most [`JUMP_MAX`] above the highest used or heard of
    /// here (docs/protocol/configurations.md#bounded-ballot-and-configuration-numbers). A lower one
    /// is near.
    pub(super) const fn is_near(&self, ballot: Ballot) -> bool {
        ballot.number <= self.state.number.saturating_add(JUMP_MAX)
    }
}
