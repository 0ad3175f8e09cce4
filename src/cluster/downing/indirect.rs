//! Indirectly connected nodes: somebody cannot reach them, and yet they are not on the other side
//! of a cut. The network is then neither whole nor cleanly split.
//!
//! Source: Pekko's split brain resolver as described in spec/reference/pekko-cluster.md §2.8.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::NodeId;

use super::view::{Record, View};
use crate::cluster::member::Status;

/// Who is indirectly connected, by either sign of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Indirect {
    /// Both observers and subjects.
    circular: BTreeSet<NodeId>,
    /// Subjects that have nevertheless seen the present state, and their observers.
    heard: BTreeSet<NodeId>,
}

impl Indirect {
    /// Finds them in the records of the view.
    pub(super) fn of(view: &View) -> Self {
        let records = || records_among(view, |_| true);
        let observers: BTreeSet<NodeId> = records().map(|record| record.observer).collect();
        let subjects: BTreeSet<NodeId> = records().map(|record| record.subject).collect();
        let heard = records().filter(|record| view.seen.contains(&record.subject));
        Self {
            circular: observers.intersection(&subjects).copied().collect(),
            heard: heard.flat_map(|record| [record.observer, record.subject]).collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.circular.is_empty() && self.heard.is_empty()
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.circular.contains(&node) || self.heard.contains(&node)
    }

    /// The view without what is told by observers that are unreachable themselves, if there are
    /// such.
    ///
    /// Pekko takes a node for indirectly connected that accused another one and crashed before that
    /// one was removed: two crashes shortly one after the other would end the cluster. (Who holds a
    /// quorum does not go by this verdict: see [`resolve`](super::resolve).)
    pub(super) fn without_the_silent(&self, view: &View) -> Option<View> {
        let silent = |record: &Record| {
            self.circular.contains(&record.observer) && !view.is_reachable(record.observer)
        };
        let records: BTreeSet<Record> =
            view.records.iter().copied().filter(|record| !silent(record)).collect();
        (records != view.records).then(|| View { records, ..view.clone() })
    }

    /// The view without the records among indirectly connected nodes, if somebody else is
    /// unreachable as well.
    pub(super) fn rest(&self, view: &View) -> Option<View> {
        if view.unreachable.keys().all(|node| self.contains(*node)) {
            return None;
        }
        let both = |set: &BTreeSet<NodeId>, record: &Record| {
            set.contains(&record.observer) && set.contains(&record.subject)
        };
        let kept = records_among(view, |status| status < Status::Exiting)
            .filter(|record| !both(&self.circular, record) && !both(&self.heard, record));
        let records: BTreeSet<Record> = kept.collect();
        let unreachable: BTreeMap<_, _> = records
            .iter()
            .map(|record| {
                let silent = view.unreachable.get(&record.subject).copied();
                (record.subject, silent.unwrap_or_default())
            })
            .collect();
        Some(View { records, unreachable, ..view.clone() })
    }
}

/// The records both of whose ends are members of such a status.
fn records_among(
    view: &View,
    standing: impl Fn(Status) -> bool,
) -> impl Iterator<Item = Record> + '_ {
    let members: BTreeSet<NodeId> = view
        .members
        .iter()
        .filter(|member| standing(member.status))
        .map(|member| member.node)
        .collect();
    let among = move |record: &Record| {
        members.contains(&record.observer) && members.contains(&record.subject)
    };
    view.records.iter().copied().filter(among)
}
