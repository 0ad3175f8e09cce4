//! From which peers a configuration is taken.
//!
//! Nothing in a configuration proves that a quorum decided it: nodes do not sign their votes, so a
//! list of voters that accepted it could be made up by its sender. The evidence is the sender's
//! authenticated incarnation instead.
//!
//! **Sender rule.** A configuration is installed only if it belongs to this cluster, does not jump,
//! and was sent by
//! - a member of the configuration that is installed here, or of the one installed before it (a
//!   proposer that removes itself is only in the latter once its decision has arrived), or of the
//!   one that an operator's force replaced (two operators may force at once, and the higher
//!   generation must reach both sides however often each has changed since); or
//! - a node that membership has let in, as long as this node is in no configuration, or while the
//!   members that it reaches are no quorum of the one that it has. A node that joins has nothing
//!   else to go by. A member without a quorum can decide nothing, so a refusal would protect
//!   nothing, and all members that it knows may be gone. (A member that reaches a quorum needs no
//!   such word: if another configuration was decided, one of that quorum has accepted it and names
//!   it in the next ballot.)
//!
//! Without the rule, one message of any admitted peer replaces the members of the whole cluster:
//! its receiver installs it and hands it on. `tests/epochs/forged.rs` explores attackers
//! exhaustively, with the rule and without.
//!
//! The rule has two costs. A member that slept until every member that it knows was replaced, and
//! that membership told of none of the others, stays behind until it is downed or restarted. A
//! member that was removed two or more changes ago is not believed, even if an operator forced it to
//! go on: both sides then stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use super::configuration::{GENERATION_AHEAD_MAX, JUMP_MAX, Shared};
use super::{Ballot, Epoch, EpochOutput, Epochs, Out, Standing};
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

/// Nodes that membership has let in, and whether it reaches them.
pub(super) type Known = BTreeMap<ReplicaId, bool>; // ≤ members of the gossip

impl Epochs {
    pub(super) fn known(&mut self, known: Known) {
        self.known = known;
    }

    /// Whether a configuration is taken from this peer.
    pub(super) fn believes(&self, from: ReplicaId) -> bool {
        let Some(installed) = &self.state.installed else { return self.known.contains_key(&from) };
        let is_in = |epoch: Option<&Shared>| epoch.is_some_and(|it| it.is_member(from));
        installed.is_member(from)
            || is_in(self.former.as_ref())
            || is_in(self.unforced.as_ref())
            || self.known.contains_key(&from)
                && (self.standing == Standing::Joining || self.is_cut_off(installed))
    }

    /// Whether the members that this node reaches, itself included, are no quorum.
    fn is_cut_off(&self, installed: &Epoch) -> bool {
        let is_reached = |id: &ReplicaId| *id == self.me || self.known.get(id) == Some(&true);
        let reached: BTreeSet<_> = installed.voters().iter().copied().filter(is_reached).collect();
        !installed.is_quorum(&reached, self.canary)
    }

    /// Whether a newer configuration of `from` is installed; if not, it is counted and named.
    pub(super) fn takes(
        &mut self,
        now: Now,
        from: ReplicaId,
        epoch: &Epoch,
        out: &mut Out,
    ) -> bool {
        let Some(why) = self.declined(now, from, epoch) else { return true };
        self.stats.declined += 1;
        out.push(EpochOutput::Declined { from, epoch: epoch.id(), why });
        false
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
