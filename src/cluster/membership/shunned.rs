//! Members that refuse this incarnation because it was removed, and when it believes them.
//!
//! Who was removed while it was cut off may come back when nobody keeps a lane for it any more: it
//! is refused before anybody could say why by message. One peer's word ends nobody who serves
//! (spec/reference/pekko-cluster.md §4.2), for that peer may only have met another life of this
//! one. A quorum's does: nobody could take this one back. So does that of all who answer at all.

use std::collections::BTreeSet;

use ostraca_ddata::bug::Canary;
use ostraca_ddata::id::{PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::Epoch;

use crate::cluster::gossip::Gossip;
use crate::cluster::member::Status;

/// Who refuses this node.
#[derive(Debug, Default)]
pub(super) struct Shunned {
    by: BTreeSet<PeerKey>, // ≤ members
}

impl Shunned {
    /// A peer refuses it. Says whether that is a member.
    pub(super) fn by(&mut self, gossip: &Gossip, peer: PeerKey) -> bool {
        let is_member = gossip.incarnations_of(peer).next().is_some();
        if is_member {
            self.by.insert(peer);
        }
        self.by.retain(|peer| gossip.incarnations_of(*peer).next().is_some());
        is_member
    }

    /// The peer talks with it after all.
    pub(super) fn not_by(&mut self, peer: PeerKey) {
        self.by.remove(&peer);
    }

    /// Whether it is to be believed, with this configuration.
    pub(super) fn is_out(&self, me: ReplicaId, epoch: Option<&Epoch>, gossip: &Gossip) -> bool {
        if self.by.is_empty() {
            return false;
        }
        // It is drained, and has only waited to be told so.
        if gossip.member(me).is_some_and(|own| own.status == Status::Exiting) {
            return true;
        }
        let refuse = gossip.members().filter(|member| self.by.contains(&member.peer()));
        let refuse: BTreeSet<ReplicaId> = refuse.map(|member| member.incarnation()).collect();
        let unreachable = gossip.unreachable_to(me);
        let answers =
            |id: ReplicaId| id != me && !refuse.contains(&id) && !unreachable.contains(&id);
        epoch.is_some_and(|epoch| epoch.is_quorum(&refuse, Canary::none()))
            || !gossip.members().any(|member| answers(member.incarnation()))
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings};

    use super::*;
    use crate::cluster::gossip::tests::{id, node, state};

    /// What is told, the state as E knows it, who refuses E, whether E believes it.
    const CASES: &[(&str, &str, &str, bool)] = &[
        ("nobody refuses it", "A B C D E", "", false),
        ("the word of one is not enough", "A B C D E", "A", false),
        ("nor that of two of five", "A B C D E", "A B", false),
        ("a quorum's is", "A B C D E", "A B C", true),
        ("so is that of all who answer", "A B C D E; E>B E>C E>D", "A", true),
        ("who is unreachable says nothing", "A B C D E; E>A E>B E>C E>D", "", false),
        ("who has drained waits for no second word", "A B C D Ex", "A", true),
        ("who is no member has no say", "A B C D Ex", "F", false),
    ];

    #[test]
    fn one_peer_ends_nobody_who_serves() {
        let id_of_first = EpochId { generation: 1, number: 1 };
        let members = "ABCDE".chars().map(id).collect();
        let epoch = Epoch::founding(id_of_first, members, EpochSettings::default());
        let epoch = epoch.expect("five");
        for (what, text, by, expected) in CASES {
            let (gossip, mut shunned) = (state(text), Shunned::default());
            for name in by.split_whitespace() {
                let peer = node(id(name.chars().next().expect("a name")).get()).peer;
                assert_eq!(shunned.by(&gossip, peer), name != "F");
            }
            assert_eq!(shunned.is_out(id('E'), Some(&epoch), &gossip), *expected, "{what}");
            for name in 'A'..='D' {
                shunned.not_by(node(id(name).get()).peer);
            }
            assert!(!shunned.is_out(id('E'), Some(&epoch), &gossip), "{what}");
        }
    }
}
