//! Which side a node is on where records contradict each other, and whether it has a quorum.
//!
//! In a clean split who is reachable is this side. Where a node is both accused and accuses others,
//! or is accused and answers all the same, nobody can tell by one record which of its two ends is to
//! blame. Upstream has both go. That ends whole clusters here: a node that is heard by all and hears
//! nobody accuses all, and is accused by all, so that all would go. A side with a quorum can do
//! better, since only a configuration removes, and of two that want each other out it has one. So
//! few go: first who is neither connected with this node nor has seen the present state, then one
//! after the other who is accused and stands in most records, until nobody is left who accuses
//! another one that is left. (The fewest possible would be a minimum vertex cover; the one of highest
//! degree first is the usual approximation of it.) Nodes with the same links see it the same way.
//! Spec: spec/safety.md §6.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::NodeId;

use super::indirect::Indirect;
use super::view::{Record, View};
use crate::cluster::member::Status;

/// The side of the node whose view it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It holds a quorum of the installed configuration. In this view who is reachable is on it.
    Quorum(Box<View>),
    /// Those who had better stay hold one without this node, and are connected with it.
    Spare,
    /// It holds none, or there is no configuration yet.
    Minority,
}

impl Side {
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
        // Not all of those can be spared, so those stay that this node itself reaches.
        Self::reached_in(view.with_own_eyes())
    }

    fn reached_in(view: View) -> Self {
        if view.holds(|voter| view.is_reachable(voter)) {
            Self::Quorum(Box::new(view))
        } else {
            Self::Minority
        }
    }
}

impl View {
    /// Whether the voters on this node's side, itself included, form a quorum of the installed
    /// configuration. False before the first one. Who is Down does not help.
    #[must_use]
    pub fn holds_quorum(&self) -> bool {
        matches!(Side::of(self), Side::Quorum(_))
    }

    /// Whether neither side may go on without this one, or the others have its removal in hand.
    pub(super) fn may_not_end_itself(&self) -> bool {
        !matches!(Side::of(self), Side::Minority) || self.may_hold_quorum()
    }

    fn holds(&self, is_here: impl Fn(NodeId) -> bool) -> bool {
        self.electorate.as_ref().is_some_and(|electorate| self.is_quorum_of(electorate, is_here))
    }

    /// Nothing of those who are odd is heard: they alone are unreachable, beside who is Down.
    fn without(&self, odd: &BTreeSet<NodeId>) -> Self {
        let is_down =
            |node: &NodeId| self.member(*node).is_none_or(|member| member.status >= Status::Down);
        let mut view = self.clone();
        view.records.retain(|record| !odd.contains(&record.observer));
        view.unreachable.retain(|node, _| odd.contains(node) || is_down(node));
        view
    }

    /// Nothing is heard but what this node itself finds.
    fn with_own_eyes(&self) -> Self {
        let mut view = self.clone();
        view.records.retain(|record| record.observer == self.own);
        let is_accused = |node: &NodeId| view.records.iter().any(|record| record.subject == *node);
        view.unreachable.retain(|node, _| is_accused(node) || !self.connected.contains(node));
        view
    }
}

/// Who goes so that nobody is left who accuses another one that is left; this node perhaps among
/// them. Only who is accused by somebody; ≤ members.
fn odd_ones(view: &View) -> BTreeSet<NodeId> {
    // The word of who is Down does not count, nor what is said of it.
    let standing = view.members.iter().filter(|member| member.status < Status::Down);
    let ages: BTreeMap<NodeId, u64> =
        standing.map(|member| (member.node, member.up_number.unwrap_or(u64::MAX))).collect();
    let counts =
        |record: &&Record| [record.observer, record.subject].iter().all(|n| ages.contains_key(n));
    let accused: BTreeSet<NodeId> =
        view.records.iter().filter(counts).map(|record| record.subject).collect();
    let is_silent = |node: &NodeId| {
        *node != view.own && !view.connected.contains(node) && !view.seen.contains(node)
    };
    let mut odd: BTreeSet<NodeId> = accused.iter().copied().filter(is_silent).collect();
    let mut said: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new(); // by or of each other
    let both_left = |r: &&Record| !odd.contains(&r.observer) && !odd.contains(&r.subject);
    for record in view.records.iter().filter(counts).filter(both_left) {
        said.entry(record.observer).or_default().insert(record.subject);
        said.entry(record.subject).or_default().insert(record.observer);
    }
    loop {
        // Of equals rather not this node; who is younger.
        let candidates = said.iter().filter(|(node, of)| accused.contains(*node) && !of.is_empty());
        let worst = candidates
            .max_by_key(|(node, of)| (of.len(), **node != view.own, ages[*node], **node))
            .map(|(node, _)| *node);
        let Some(worst) = worst else { return odd };
        for other in said.remove(&worst).unwrap_or_default() {
            said.entry(other).or_default().remove(&worst);
        }
        odd.insert(worst);
    }
}
