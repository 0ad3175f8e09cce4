//! Indirectly connected members: some member cannot reach them, and yet they are not on the other
//! side of a split. The network is then neither intact nor cleanly split.
//!
//! The definition is that of Pekko's split brain resolver.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::NodeId;

use super::view::{UnreachableRecord, View};
use crate::cluster::member::Status;

/// The indirectly connected members of a view, by two criteria.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Indirect {
    /// Members that are both observer and subject of records.
    circular: BTreeSet<NodeId>,
    /// Subjects that have nevertheless seen the present gossip state, and their observers.
    heard: BTreeSet<NodeId>,
}

impl Indirect {
    /// Determines them from the records of the view. Counts records between members of any status,
    /// and ignores records of or about other nodes.
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

    /// The view without the records of circular observers that are unreachable in it; `None` if
    /// there are no such records. The caller passes the result of [`rest`](Self::rest), not the
    /// view of [`of`](Self::of). The set of unreachable members remains unchanged.
    ///
    /// Pekko considers a member indirectly connected if it accused another member and crashed
    /// before that member was removed, so that two crashes in short succession would end the
    /// cluster. (A side with a quorum does not follow this decision: see
    /// [`resolve`](super::resolve).)
    pub(super) fn without_the_silent(&self, view: &View) -> Option<View> {
        let silent = |record: &UnreachableRecord| {
            self.circular.contains(&record.observer) && !view.is_reachable(record.observer)
        };
        let records: BTreeSet<UnreachableRecord> =
            view.records.iter().copied().filter(|record| !silent(record)).collect();
        (records != view.records).then(|| View { records, ..view.clone() })
    }

    /// The view without the records among indirectly connected members (both ends meet the same
    /// criterion) and without those by or about Exiting and Down members; `None` if every
    /// unreachable member is indirectly connected. Only subjects of the remaining records are
    /// unreachable in it, perhaps none, so most indirectly connected members count as reachable. No
    /// member is left out, and `seen` and `connected` remain.
    pub(super) fn rest(&self, view: &View) -> Option<View> {
        if view.unreachable.keys().all(|node| self.contains(*node)) {
            return None;
        }
        let both = |set: &BTreeSet<NodeId>, record: &UnreachableRecord| {
            set.contains(&record.observer) && set.contains(&record.subject)
        };
        let kept = records_among(view, |status| status < Status::Exiting)
            .filter(|record| !both(&self.circular, record) && !both(&self.heard, record));
        let records: BTreeSet<UnreachableRecord> = kept.collect();
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

/// The records of which both ends are members with an accepted status.
fn records_among(
    view: &View,
    accepts: impl Fn(Status) -> bool,
) -> impl Iterator<Item = UnreachableRecord> + '_ {
    let members: BTreeSet<NodeId> = view
        .members
        .iter()
        .filter(|member| accepts(member.status))
        .map(|member| member.node)
        .collect();
    let among = move |record: &UnreachableRecord| {
        members.contains(&record.observer) && members.contains(&record.subject)
    };
    view.records.iter().copied().filter(among)
}
