//! The side of a node where reachability records contradict each other, and whether it holds a
//! quorum (docs/protocol/membership.md#few-go-where-records-contradict).
//!
//! In a clean split the reachable members are this side. Where a member is both accused and an
//! accuser, or is accused and still answers, one record cannot tell which end of the link is bad.
//! Akka removes both ends, which would end whole clusters here: a node that hears no member accuses
//! all and is accused by all, so all would go. A side with a quorum can remove fewer, because only
//! a configuration removes members, and of two members that accuse each other at most one side
//! holds the quorum.
//!
//! The removed members are first those that are neither connected with this node nor have seen the
//! present gossip state; then, one after the other, the accused member with the most records, until
//! no remaining member accuses another one. This approximates a minimum vertex cover by highest
//! degree first. Nodes with the same links compute the same result.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::NodeId;

use super::indirect::Indirect;
use super::view::{UnreachableRecord, View};
use crate::cluster::member::Status;

/// The side of the node that owns the view.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartitionSide {
    /// It holds a quorum of the installed configuration. In the contained view its members are
    /// exactly the reachable ones.
    Quorum(Box<View>),
    /// The remaining members hold a quorum without this node, and are connected with it.
    Spare,
    /// It holds no quorum, or there is no configuration yet.
    Minority,
}

impl PartitionSide {
    /// Determines the side of this node. Without contradictory records the reachable members are
    /// its side. Otherwise the odd members ([`odd_ones`]) are set aside. If the others hold a
    /// quorum, the side is theirs: `Quorum` if this node is one of them; `Spare` if it is odd and
    /// those that it is connected with hold a quorum. In all other cases only the records and
    /// connections of this node itself decide between `Quorum` and `Minority`.
    pub(super) fn of(view: &View) -> Self {
        if Indirect::of(view).is_empty() {
            return Self::reached_in(view.clone());
        }
        let odd = odd_ones(view);
        let rest = view.without(&odd);
        let stays = |voter: NodeId| !odd.contains(&voter) && rest.is_reachable(voter);
        let is_told = |voter: NodeId| stays(voter) && view.connected.contains(&voter);
        if !odd.contains(&view.own) && rest.holds(stays) {
            return Self::Quorum(Box::new(rest));
        }
        if odd.contains(&view.own) && rest.holds(is_told) {
            return Self::Spare;
        }
        // The quorum needs some of the odd members: this node's own records decide alone.
        Self::reached_in(view.with_own_eyes())
    }

    /// `Quorum` if the reachable voters of the view form a quorum, otherwise `Minority`.
    fn reached_in(view: View) -> Self {
        if view.holds(|voter| view.is_reachable(voter)) {
            Self::Quorum(Box::new(view))
        } else {
            Self::Minority
        }
    }
}

impl View {
    /// Whether the voters on this node's side, including itself, form a quorum of the installed
    /// configuration. `false` before the first configuration. Down members do not count.
    #[must_use]
    pub fn holds_quorum(&self) -> bool {
        matches!(PartitionSide::of(self), PartitionSide::Quorum(_))
    }

    /// Whether this node must not stop with its side: its side holds a quorum; or the other side
    /// can remove this node by itself; or the other side cannot continue without this one while a
    /// configuration is pending.
    pub(super) fn may_not_end_itself(&self) -> bool {
        !matches!(PartitionSide::of(self), PartitionSide::Minority) || self.may_hold_quorum()
    }

    /// Whether the accepted voters form a quorum of the installed configuration; `false` before the
    /// first one.
    fn holds(&self, is_here: impl Fn(NodeId) -> bool) -> bool {
        self.electorate.as_ref().is_some_and(|electorate| self.is_quorum_of(electorate, is_here))
    }

    /// The view without the records by odd members. Of its unreachable members only odd, Down and
    /// unknown ones remain unreachable; all others become reachable. Records about odd members
    /// remain.
    fn without(&self, odd: &BTreeSet<NodeId>) -> Self {
        let is_down =
            |node: &NodeId| self.member(*node).is_none_or(|member| member.status >= Status::Down);
        let mut view = self.clone();
        view.records.retain(|record| !odd.contains(&record.observer));
        view.unreachable.retain(|node, _| odd.contains(node) || is_down(node));
        view
    }

    /// The view with only the records of this node itself. Members that only others accuse remain
    /// unreachable unless this node is connected with them.
    fn with_own_eyes(&self) -> Self {
        let mut view = self.clone();
        view.records.retain(|record| record.observer == self.own);
        let is_accused = |node: &NodeId| view.records.iter().any(|record| record.subject == *node);
        view.unreachable.retain(|node, _| is_accused(node) || !self.connected.contains(node));
        view
    }
}

/// Accused members whose removal leaves no accusation between remaining members; may include this
/// node. First the silent ones: accused, not connected with this node, and have not seen the
/// present gossip state. Then, until no link is left, the accused member with the most links with
/// accusations, whatever their direction; of equal ones preferably another node than this one, then
/// the younger (never Up is youngest), then the higher node id. Records by and about Down members
/// do not count. ≤ members.
fn odd_ones(view: &View) -> BTreeSet<NodeId> {
    // Records by and about Down members do not count.
    let present = view.members.iter().filter(|member| member.status < Status::Down);
    let ages: BTreeMap<NodeId, u64> =
        present.map(|member| (member.node, member.up_number.unwrap_or(u64::MAX))).collect();
    let counts = |record: &&UnreachableRecord| {
        [record.observer, record.subject].iter().all(|n| ages.contains_key(n))
    };
    let accused: BTreeSet<NodeId> =
        view.records.iter().filter(counts).map(|record| record.subject).collect();
    let is_silent = |node: &NodeId| {
        *node != view.own && !view.connected.contains(node) && !view.seen.contains(node)
    };
    let mut odd: BTreeSet<NodeId> = accused.iter().copied().filter(is_silent).collect();
    let mut bad_links: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new(); // records by or of
    let both_left =
        |r: &&UnreachableRecord| !odd.contains(&r.observer) && !odd.contains(&r.subject);
    for record in view.records.iter().filter(counts).filter(both_left) {
        bad_links.entry(record.observer).or_default().insert(record.subject);
        bad_links.entry(record.subject).or_default().insert(record.observer);
    }
    loop {
        // Among equals, preferably another node than this one, then the younger.
        let candidates =
            bad_links.iter().filter(|(node, of)| accused.contains(*node) && !of.is_empty());
        let worst = candidates
            .max_by_key(|(node, of)| (of.len(), **node != view.own, ages[*node], **node))
            .map(|(node, _)| *node);
        let Some(worst) = worst else { return odd };
        for other in bad_links.remove(&worst).unwrap_or_default() {
            bad_links.entry(other).or_default().remove(&worst);
        }
        odd.insert(worst);
    }
}
