//! Directory of the lanes to every known incarnation. The connection manager, which opens
//! substreams for the lanes, and all senders share it.
//!
//! Each incarnation has at most one lane per class. A lane that leaves the directory
//! ([`Directory::renew`], [`Directory::remove`]) is not ended by that: senders that hold it can
//! still append to it until the caller breaks it off.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use libp2p::PeerId;
use ostraca_ddata::id::ReplicaId;
use tokio::sync::mpsc;

use super::config::NetLimits;
use super::frame::FRAME_BYTES;
use super::lane::Lane;
use super::wire::NodeInfo;
use super::{NodeId, TrafficClass};

/// The lanes to one incarnation, by class. Each is created when it is first used.
#[derive(Debug)]
struct NodeLanes {
    node: NodeId,
    limits: NodeLimits,
    lanes: [Mutex<Option<Lane>>; 4],
    removed: AtomicBool, // written before, read under a slot's lock
}

/// Limits that a node has announced when it was added, in bytes.
#[derive(Clone, Copy, Debug)]
struct NodeLimits {
    message: usize,
    frame: usize,
}

impl NodeLimits {
    fn apply(self, lane: &Lane) {
        lane.limit_messages(self.message);
        lane.limit_frames(self.frame);
    }
}

/// A lane that was created for a sender, so that the connection manager must open it. It is the
/// first one of its class to the node, or the first one since the last was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedLane {
    pub(super) node: NodeId,
    pub(super) class: TrafficClass,
}

/// Directory of the lanes, keyed by incarnation.
#[derive(Debug)]
pub(super) struct Directory {
    limits: NetLimits,
    nodes: RwLock<BTreeMap<ReplicaId, Arc<NodeLanes>>>, // ≤ admitted, not forgotten peers
    wanted: mpsc::UnboundedSender<WantedLane>,          // ≤ one per lane
    closed: AtomicBool,                                 // written before, read under a slot's lock
}

impl NodeLanes {
    /// Locks the slot of a class; `None` in it: the lane was not used yet, or was renewed.
    fn slot(&self, class: TrafficClass) -> MutexGuard<'_, Option<Lane>> {
        self.lanes[class as usize].lock().expect("nothing panics under this lock")
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// The lanes that exist, in the order of [`TrafficClass::ALL`]. Locks one slot at a time.
    fn used(&self) -> impl Iterator<Item = (TrafficClass, Lane)> {
        TrafficClass::ALL.into_iter().filter_map(|class| Some((class, self.slot(class).clone()?)))
    }
}

impl Directory {
    /// Creates an empty directory, and the channel on which the connection manager is told of each
    /// lane that [`lane`](Self::lane) creates.
    pub(super) fn new(limits: NetLimits) -> (Arc<Self>, mpsc::UnboundedReceiver<WantedLane>) {
        let (wanted, receiver) = mpsc::unbounded_channel();
        (
            Arc::new(Self {
                limits,
                nodes: RwLock::default(),
                wanted,
                closed: AtomicBool::new(false),
            }),
            receiver,
        )
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<ReplicaId, Arc<NodeLanes>>> {
        self.nodes.read().expect("nothing panics under this lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<ReplicaId, Arc<NodeLanes>>> {
        self.nodes.write().expect("nothing panics under this lock")
    }

    fn lanes(&self, to: ReplicaId) -> Option<Arc<NodeLanes>> {
        self.read().get(&to).cloned()
    }

    /// Returns the lane to an incarnation. If it does not exist, creates it with the limits that
    /// the node has announced, and sends one [`WantedLane`] under the lock of the slot. `None` if
    /// the incarnation is unknown or was removed, and for every incarnation after
    /// [`close`](Self::close), also if its lane exists ([`used`](Self::used) finds that).
    pub(super) fn lane(&self, to: ReplicaId, class: TrafficClass) -> Option<Lane> {
        let lanes = self.lanes(to)?;
        self.lane_of(&lanes, class)
    }

    /// Returns or creates a lane of this node, as [`lane`](Self::lane) does. `None` also if the node
    /// was removed since the caller has found it.
    fn lane_of(&self, lanes: &NodeLanes, class: TrafficClass) -> Option<Lane> {
        let mut slot = lanes.slot(class);
        if self.is_closed() || lanes.is_removed() {
            return None;
        }
        if let Some(lane) = &*slot {
            return Some(lane.clone());
        }
        let lane = Lane::new(lanes.node, class, &self.limits);
        lanes.limits.apply(&lane);
        *slot = Some(lane.clone());
        // The connection manager is gone only when the node stops: then the lane is never opened.
        let _ = self.wanted.send(WantedLane { node: lanes.node, class });
        Some(lane)
    }

    /// Returns the peer of an incarnation; `None` if it is unknown or was removed. Works also after
    /// [`close`](Self::close). This node itself is not in the directory.
    pub(super) fn peer_of(&self, incarnation: ReplicaId) -> Option<PeerId> {
        Some(self.lanes(incarnation)?.node.peer)
    }

    /// Returns the lane if it exists, also after [`close`](Self::close). Never creates one.
    pub(super) fn used(&self, to: ReplicaId, class: TrafficClass) -> Option<Lane> {
        self.lanes(to)?.slot(class).clone()
    }

    /// Returns all lanes that exist, ordered by incarnation, also after [`close`](Self::close). Not
    /// a snapshot: it locks one slot after the other.
    pub(super) fn all(&self) -> Vec<(NodeId, TrafficClass, Lane)> {
        let nodes: Vec<Arc<NodeLanes>> = self.read().values().cloned().collect();
        used_of(&nodes)
    }

    /// Adds a node with the limits that it has announced; its frames have at most [`FRAME_BYTES`]
    /// if it announced none. From now on there are lanes to it, unless the directory is closed.
    /// Changes nothing if the incarnation is known, even of another peer: its lanes and its first
    /// limits stay. The caller has checked that no other peer has it.
    pub(super) fn add(&self, node: NodeId, facts: &NodeInfo) {
        let frame = facts.frame_bytes_max.map_or(FRAME_BYTES, |max| max as usize);
        let limits = NodeLimits { message: facts.message_bytes_max as usize, frame };
        let lanes = || {
            let lanes = [const { Mutex::new(None) }; 4];
            Arc::new(NodeLanes { node, limits, lanes, removed: AtomicBool::new(false) })
        };
        self.write().entry(node.incarnation).or_insert_with(lanes);
    }

    /// Registers a lane that was opened before the peer's incarnation was known, sets its
    /// incarnation ([`Lane::to`]), and applies the limits of the node to it. No [`WantedLane`] is
    /// sent. Returns `false`, and changes nothing, if there is a lane already, the incarnation is
    /// unknown, or the directory is closed.
    pub(super) fn adopt(&self, to: ReplicaId, class: TrafficClass, lane: &Lane) -> bool {
        let Some(lanes) = self.lanes(to) else { return false };
        let mut slot = lanes.slot(class);
        let takes = slot.is_none() && !self.is_closed() && !lanes.is_removed();
        if takes {
            lane.set_incarnation(to);
            lanes.limits.apply(lane);
            *slot = Some(lane.clone());
        }
        takes
    }

    /// Removes one lane of an incarnation and returns it, for the caller to break off; the next
    /// sender gets a new one, unless the directory is closed. The node stays. `None` if the
    /// incarnation is unknown or the lane does not exist.
    pub(super) fn renew(&self, to: ReplicaId, class: TrafficClass) -> Option<Lane> {
        self.lanes(to)?.slot(class).take()
    }

    /// Closes the directory for good: from now on senders get no lane from it. Returns the existing
    /// lanes, which the caller must finish: senders that hold one can still append to it. They stay
    /// in the directory, where the connection manager finds them with
    /// [`lane_to_open`](Self::lane_to_open). When called again, returns those that exist then.
    pub(super) fn close(&self) -> Vec<(NodeId, TrafficClass, Lane)> {
        // Every slot is locked after this store, so that a lane created concurrently is found in
        // it.
        self.closed.store(true, Ordering::Relaxed);
        self.all()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns the lane that the connection manager opens: the existing one, also after the close,
    /// or a new one as [`lane`](Self::lane) creates it, with a [`WantedLane`], which then asks for
    /// a lane that is already being opened. `None` if neither is possible.
    pub(super) fn lane_to_open(&self, to: ReplicaId, class: TrafficClass) -> Option<Lane> {
        self.used(to, class).or_else(|| self.lane(to, class))
    }

    /// Removes a node and returns its lanes, for the caller to break off; they are collected after
    /// the lock of the table is released. Removes and returns nothing if the incarnation is unknown
    /// or belongs to another peer. A removed node may be [added](Self::add) again.
    pub(super) fn remove(&self, node: NodeId) -> Vec<(TrafficClass, Lane)> {
        let mut nodes = self.write();
        if nodes.get(&node.incarnation).is_none_or(|lanes| lanes.node != node) {
            return Vec::new();
        }
        let removed = nodes.remove(&node.incarnation);
        drop(nodes);
        let Some(lanes) = removed else { return Vec::new() };
        // Every slot is locked after this store, so a sender that has found the node before either
        // has created its lane by then, which is returned, or creates none.
        lanes.removed.store(true, Ordering::Relaxed);
        lanes.used().collect()
    }
}

/// Lists the existing lanes of these nodes, node by node.
fn used_of<'a>(
    nodes: impl IntoIterator<Item = &'a Arc<NodeLanes>>,
) -> Vec<(NodeId, TrafficClass, Lane)> {
    let used = |lanes: &'a Arc<NodeLanes>| {
        lanes.used().map(|(class, lane)| (lanes.node, class, lane)).collect::<Vec<_>>()
    };
    nodes.into_iter().flat_map(used).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(incarnation: u64) -> NodeId {
        NodeId { peer: PeerId::random(), incarnation: ReplicaId::new(incarnation) }
    }

    #[test]
    fn lane_is_requested_once_and_shared() {
        let (directory, mut wanted) = Directory::new(NetLimits::default());
        let node = node(1);
        assert!(directory.lane(node.incarnation, TrafficClass::Data).is_none(), "not known yet");
        directory.add(node, &NodeInfo::of(node.incarnation));
        let lane = directory.lane(node.incarnation, TrafficClass::Data).expect("known now");
        lane.send(&[], b"one").expect("room");
        let again = directory.lane(node.incarnation, TrafficClass::Data).expect("still");
        assert_eq!(again.stats().appended, 1);
        assert_eq!(wanted.try_recv(), Ok(WantedLane { node, class: TrafficClass::Data }));
        assert!(wanted.try_recv().is_err());
        assert!(lane.send(&[], &[0; 1_001]).is_err(), "longer than that node takes");
    }

    #[test]
    fn abandoned_lane_is_replaced_by_a_new_one() {
        let (directory, _wanted) = Directory::new(NetLimits::default());
        let node = node(1);
        directory.add(node, &NodeInfo::of(node.incarnation));
        let old = directory.lane(node.incarnation, TrafficClass::User).expect("known");
        old.send(&[], b"lost").expect("room");
        let given_up = directory.renew(node.incarnation, TrafficClass::User);
        assert_eq!(given_up.map(|lane| lane.break_off()), Some(1));
        assert!(old.send(&[], b"too late").is_err());
        let new = directory.lane(node.incarnation, TrafficClass::User).expect("known");
        new.send(&[], b"first").expect("room");
        assert!(new.next_generation() > old.next_generation());
    }

    #[test]
    fn adopted_lane_leads_to_the_node_that_was_met() {
        let (directory, _wanted) = Directory::new(NetLimits::default());
        let node = node(1);
        let unknown = NodeId { incarnation: ReplicaId::default(), ..node };
        let lane = Lane::new(unknown, TrafficClass::Control, &NetLimits::default());
        directory.add(node, &NodeInfo::of(node.incarnation));
        assert!(directory.adopt(node.incarnation, TrafficClass::Control, &lane));
        let adopted = directory.lane(node.incarnation, TrafficClass::Control).expect("known");
        assert_eq!((lane.to(), adopted.to()), (node, node));
    }

    #[test]
    fn closed_directory_has_old_lanes_for_the_manager_only() {
        let (directory, mut wanted) = Directory::new(NetLimits::default());
        let (node, later) = (node(1), node(2));
        directory.add(node, &NodeInfo::of(node.incarnation));
        let lane = directory.lane(node.incarnation, TrafficClass::User).expect("known");
        lane.send(&[], b"goodbye").expect("room");
        assert!(wanted.try_recv().is_ok());
        let closed = directory.close();
        assert_eq!(
            closed.iter().map(|(to, class, _)| (*to, *class)).collect::<Vec<_>>(),
            [(node, TrafficClass::User)]
        );
        directory.add(later, &NodeInfo::of(later.incarnation));
        for to in [node, later] {
            for class in TrafficClass::ALL {
                assert!(directory.lane(to.incarnation, class).is_none(), "{to} {class:?}");
                let found = directory.lane_to_open(to.incarnation, class);
                let kept = found.map(|lane| lane.stats().unacknowledged);
                let expected = (to == node && class == TrafficClass::User).then_some(1);
                assert_eq!(kept, expected, "{to} {class:?}");
            }
            assert!(!directory.adopt(to.incarnation, TrafficClass::Bulk, &lane));
        }
        assert!(wanted.try_recv().is_err());
    }

    #[test]
    fn removed_node_has_no_lanes() {
        let (directory, _wanted) = Directory::new(NetLimits::default());
        let node = node(1);
        directory.add(node, &NodeInfo::of(node.incarnation));
        directory.lane(node.incarnation, TrafficClass::Control);
        let other = NodeId { peer: PeerId::random(), ..node };
        assert_eq!(directory.remove(other).len(), 0, "these are not its lanes");
        assert!(directory.lane(node.incarnation, TrafficClass::Control).is_some());
        assert_eq!(directory.remove(node).len(), 1);
        assert!(directory.lane(node.incarnation, TrafficClass::Control).is_none());
        assert!(directory.all().is_empty());
    }

    #[test]
    fn late_sender_creates_no_lane_to_a_removed_node() {
        let (directory, mut wanted) = Directory::new(NetLimits::default());
        let node = node(1);
        directory.add(node, &NodeInfo::of(node.incarnation));
        let found = directory.lanes(node.incarnation).expect("known");
        assert!(directory.remove(node).is_empty(), "the sender has not created its lane yet");
        assert!(directory.lane_of(&found, TrafficClass::User).is_none());
        assert!(wanted.try_recv().is_err());
    }
}
