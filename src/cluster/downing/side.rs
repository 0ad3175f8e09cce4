//! Which side a node is on where records contradict each other, and whether it has a quorum.
//!
//! In a clean split who is reachable is this side. Where a node is both accused and accuses others,
//! or is accused and answers all the same, nobody can tell by one record who of its two ends is to
//! blame. Upstream has both go. That ends whole clusters here: a node that is heard by all and hears
//! nobody accuses all, and is accused by all, so that all would go. A side with a quorum can do
//! better, since only a configuration removes, and of two that want each other out it has one. So
//! as few go as possible: first who is not connected with this node and has not seen the present
//! state, then one after the other who is at the end of most records, until nobody is left who accuses another one that is left. (The
//! fewest possible would be a minimum vertex cover; the one of highest degree first is the usual
//! approximation of it.) Spec: spec/safety.md §6.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::NodeId;

use super::indirect::Indirect;
use super::view::{Record, View};
use crate::cluster::member::Status;

/// The side of the node whose view it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It holds a quorum of the installed configuration. In this view who is reachable is on it.
    Quorum(View),
    /// Those who had better stay hold one, without this node.
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
        if !rest.holds(|voter| !odd.contains(&voter) && rest.is_reachable(voter)) {
            // Not all of those can be spared, so those stay that this node itself reaches.
            return Self::reached_in(view.with_own_eyes());
        }
        if odd.contains(&view.own) { Self::Spare } else { Self::Quorum(rest) }
    }

    fn reached_in(view: View) -> Self {
        if view.holds(|voter| view.is_reachable(voter)) {
            Self::Quorum(view)
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

    fn holds(&self, is_here: impl Fn(NodeId) -> bool) -> bool {
        self.electorate.as_ref().is_some_and(|electorate| self.is_quorum_of(electorate, is_here))
    }

    /// Nothing of those who are odd is heard: they alone are unreachable, beside who is Down.
    fn without(&self, odd: &BTreeSet<NodeId>) -> Self {
        let mut view = self.clone();
        view.records.retain(|record| !odd.contains(&record.observer));
        view.unreachable.retain(|node, _| odd.contains(node) || !self.counts(*node));
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

    /// Whether its word counts, and what is said of it.
    fn counts(&self, node: NodeId) -> bool {
        self.member(node).is_some_and(|member| member.status < Status::Down)
    }
}

/// Who goes so that nobody is left who accuses another one that is left; this node perhaps among
/// them. Only who is accused by somebody; ≤ members.
fn odd_ones(view: &View) -> BTreeSet<NodeId> {
    let records = || {
        let counted = |r: &&Record| view.counts(r.observer) && view.counts(r.subject);
        view.records.iter().filter(counted)
    };
    let accused: BTreeSet<NodeId> = records().map(|record| record.subject).collect();
    let by_me = |node| view.records.contains(&Record { observer: view.own, subject: node });
    let is_apart = |node| node != view.own && !view.connected.contains(&node);
    let is_silent = |node: &NodeId| is_apart(*node) && !view.seen.contains(node);
    let mut odd: BTreeSet<NodeId> = accused.iter().copied().filter(is_silent).collect();
    let pair = |r: &Record| (r.observer.min(r.subject), r.observer.max(r.subject));
    let mut pairs: BTreeSet<(NodeId, NodeId)> = records().map(pair).collect();
    pairs.retain(|(one, other)| !odd.contains(one) && !odd.contains(other));
    // Of equals: not this node; whom it is not connected with, or accuses; who is younger.
    let before = |node: NodeId| {
        let age = view.member(node).and_then(|member| member.up_number);
        (node != view.own, is_apart(node), by_me(node), age.unwrap_or(u64::MAX), node)
    };
    loop {
        let mut records_of: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (one, other) in &pairs {
            [one, other].into_iter().for_each(|end| *records_of.entry(*end).or_default() += 1);
        }
        let candidates = records_of.into_iter().filter(|(node, _)| accused.contains(node));
        let Some((worst, _)) = candidates.max_by_key(|(node, count)| (*count, before(*node)))
        else {
            return odd;
        };
        odd.insert(worst);
        pairs.retain(|(one, other)| *one != worst && *other != worst);
    }
}
