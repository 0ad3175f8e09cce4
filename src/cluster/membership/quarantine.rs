//! Quarantine: members that refuse this incarnation because it was removed, and the condition under
//! which it believes them (docs/protocol/membership.md#quarantine-needs-a-quorum).
//!
//! A node that was removed while it was disconnected may return when no member keeps a lane for it
//! any longer; then it is refused before a message could tell it why. The refusal of one peer must
//! not stop a serving node, because that peer may only have met another incarnation of it. The
//! refusals of a quorum stop it, because no other members could restore it; so do the refusals of
//! all members that answer.

use std::collections::BTreeSet;

use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::{PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::Epoch;

use crate::cluster::gossip::Gossip;
use crate::cluster::member::Status;

/// Peers of members that refuse this node now: a peer leaves the set when it is connected again or,
/// at the next [`record`](Self::record), if it is no longer a member.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    by: BTreeSet<PeerKey>, // ≤ members
}

impl Quarantine {
    /// Records that a peer refuses this node. Returns whether the peer is a member, in any
    /// incarnation and of any status, also if it was recorded before; the refusal of another peer
    /// is not recorded. Also drops recorded peers that are no longer members.
    pub(super) fn record(&mut self, gossip: &Gossip, peer: PeerKey) -> bool {
        let is_member = gossip.incarnations_of(peer).next().is_some();
        if is_member {
            self.by.insert(peer);
        }
        self.by.retain(|peer| gossip.incarnations_of(*peer).next().is_some());
        is_member
    }

    /// The peer accepts this node again.
    pub(super) fn clear(&mut self, peer: PeerKey) {
        self.by.remove(&peer);
    }

    /// Whether this node must believe that it was removed, given this configuration: an Exiting
    /// node believes a single refusal; any other node believes those of a quorum of the
    /// configuration, or of all other members that it considers reachable, Down ones included. So
    /// one refusal is enough if no other member is reachable. Refusals count of unreachable members
    /// too; all incarnations of a refusing peer count. Never without a refusal.
    pub(super) fn is_out(&self, me: ReplicaId, epoch: Option<&Epoch>, gossip: &Gossip) -> bool {
        if self.by.is_empty() {
            return false;
        }
        // An Exiting node has drained and only waits for its removal.
        if gossip.member(me).is_some_and(|own| own.status == Status::Exiting) {
            return true;
        }
        let refuse = gossip.members().filter(|member| self.by.contains(&member.peer()));
        let refuse: BTreeSet<ReplicaId> = refuse.map(|member| member.incarnation()).collect();
        let unreachable = gossip.unreachable_to(me);
        let answers =
            |id: ReplicaId| id != me && !refuse.contains(&id) && !unreachable.contains(&id);
        epoch.is_some_and(|epoch| epoch.is_quorum(&refuse, FaultInjection::none()))
            || !gossip.members().any(|member| answers(member.incarnation()))
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings};

    use super::*;
    use crate::cluster::gossip::tests::{id, node, state};

    /// Description, state as known to E, peers that refuse E, and whether E believes them.
    const CASES: &[(&str, &str, &str, bool)] = &[
        ("no peer refuses it", "A B C D E", "", false),
        ("the refusal of one is not enough", "A B C D E", "A", false),
        ("nor are the refusals of two of five", "A B C D E", "A B", false),
        ("the refusals of a quorum are", "A B C D E", "A B C", true),
        ("so are those of all that answer", "A B C D E; E>B E>C E>D", "A", true),
        ("unreachable members do not count", "A B C D E; E>A E>B E>C E>D", "", false),
        ("an Exiting node believes one refusal", "A B C D Ex", "A", true),
        ("refusals of non-members do not count", "A B C D Ex", "F", false),
    ];

    #[test]
    fn one_refusal_does_not_stop_a_serving_node() {
        let id_of_first = EpochId { generation: 1, number: 1 };
        let members = "ABCDE".chars().map(id).collect();
        let epoch = Epoch::founding(id_of_first, members, EpochSettings::default());
        let epoch = epoch.expect("five");
        for (what, text, by, expected) in CASES {
            let (gossip, mut quarantine) = (state(text), Quarantine::default());
            for name in by.split_whitespace() {
                let peer = node(id(name.chars().next().expect("a name")).get()).peer;
                assert_eq!(quarantine.record(&gossip, peer), name != "F");
            }
            assert_eq!(quarantine.is_out(id('E'), Some(&epoch), &gossip), *expected, "{what}");
            for name in 'A'..='D' {
                quarantine.clear(node(id(name).get()).peer);
            }
            assert!(!quarantine.is_out(id('E'), Some(&epoch), &gossip), "{what}");
        }
    }
}
