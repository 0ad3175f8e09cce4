//! [`TypeEnvironment`]: the environment of an entity type on this node, as the trait
//! [`RegionEnvironment`] defines it.
//!
//! It connects the code that runs entities with the node's user lanes, the region's machine, the
//! hosting lease, the clock and the program's runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::log_throttle::SourceThrottle;
use tokio::runtime::Handle;

use super::region_registry::RegionRegistry;
use crate::net::TrafficClass;
use crate::net::handle::Net;
use crate::net::lane::{Lane, SendError};
use crate::node::clock::Clock;
use crate::node::control::machine::{ControlInbox, ControlInput};
use crate::node::executor::Executor;
use crate::node::lease::LeaseDeadline;
use crate::node::names::NodeNames;
use crate::sharding::activation::Activation;
use crate::sharding::ids::{EntityType, RegionId};
use crate::sharding::machines::ShardingInput;
use crate::sharding::region::RegionInput;
use crate::sharding::region_handle::{NoRoom, RegionEnvironment};
use crate::threads::PerThread;

/// Maximum number of cached lanes for each thread and type. A look-up that finds the cache so full
/// clears it first; lanes themselves are not ended by that.
const KNOWN_MAX: usize = 4_096;

/// Parts of the environment that all types of a node share.
#[derive(Clone)]
pub(crate) struct SharedEnvironment {
    /// Empty until the transport has started. This reference and `region_registry` are weak to
    /// avoid a cycle: the transport holds the receiver of messages, which holds the hosted types,
    /// which hold this.
    pub(crate) net: Weak<OnceLock<Net>>,
    pub(crate) inbox: ControlInbox,
    pub(crate) lease: LeaseDeadline,
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
    pub(crate) executor: Arc<Executor>,
    pub(crate) region_registry: Weak<RegionRegistry>,
    /// Regions whose full or unconnected lane a task is waiting for, for all types; ≤ lanes. The
    /// task removes the region before it notifies the types.
    pub(crate) full: Arc<Mutex<BTreeSet<RegionId>>>,
}

/// The environment of one entity type.
pub(crate) struct TypeEnvironment {
    entity_type: EntityType,
    shared: SharedEnvironment,
    /// Cached lanes of each thread. A broken lane stays until the next frame to its region from
    /// that thread. Read-locked while a frame is appended.
    lanes: PerThread<RwLock<BTreeMap<RegionId, Lane>>>, // each ≤ KNOWN_MAX
    /// Throttle of `sharding.frame_lost`: once a minute for each receiving node.
    complained: Mutex<SourceThrottle<(), ReplicaId>>,
}

/// Result of appending a frame to a lane.
enum AppendResult {
    Yes,
    /// This lane has no room, or no connection carries it.
    Full(Lane),
    /// The transport knows no lane to the node, or its lane is closed for good.
    NoLane,
    /// The frame exceeds the limit of the lane, so that it can never be sent. This is logged.
    TooLong,
}

impl TypeEnvironment {
    pub(crate) fn new(entity_type: EntityType, shared: SharedEnvironment) -> Self {
        Self { entity_type, shared, lanes: PerThread::default(), complained: Mutex::default() }
    }

    /// Appends a frame with `append` to the cached lane or, if there is none or it is broken, to
    /// the present one, once: if that is broken too, the result is [`AppendResult::NoLane`], which
    /// is not logged. A full lane is not looked up again. `append` gets the header, which is the
    /// name of the entity type.
    fn append(
        &self,
        to: RegionId,
        append: impl Fn(&Lane, &[&str]) -> Result<(), SendError>,
    ) -> AppendResult {
        let header = [self.entity_type.as_str()];
        // `None`: the lane is broken.
        let append = |lane: &Lane| match append(lane, &header) {
            Ok(()) => Some(AppendResult::Yes),
            Err(SendError::Full { .. } | SendError::Unconnected) => {
                Some(AppendResult::Full(lane.clone()))
            }
            Err(SendError::Broken) => None,
            Err(why) => {
                // Earlier checks use this node's limit of the message size; the peer's may be
                // lower.
                self.complain(to, &why);
                Some(AppendResult::TooLong)
            }
        };
        let known = {
            let lanes = self.lanes.mine().read().unwrap_or_else(PoisonError::into_inner);
            lanes.get(&to).and_then(append)
        };
        known.or_else(|| append(&self.find(to)?)).unwrap_or(AppendResult::NoLane)
    }

    /// Asks the transport for the present lane to a region, and caches it. `None`, which clears
    /// the region's entry of the cache, before the transport has started, after it was dropped, and
    /// if it has no lane to the node.
    fn find(&self, to: RegionId) -> Option<Lane> {
        let net = self.shared.net.upgrade();
        let net = net.as_ref().and_then(|net| net.get());
        let found = net.and_then(|net| net.lane(to.replica(), TrafficClass::User));
        let mut lanes = self.lanes.mine().write().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() >= KNOWN_MAX {
            lanes.clear();
        }
        match &found {
            Some(lane) => lanes.insert(to, lane.clone()),
            None => lanes.remove(&to),
        };
        found
    }

    /// Logs as an error that a frame for a region is lost, at most once a minute for each node and
    /// type, whatever the cause.
    fn complain(&self, to: RegionId, why: &dyn std::fmt::Display) {
        let mut complained = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        if complained.permit(self.shared.clock.mono(), (), to.replica()) {
            let entity_type = &self.entity_type;
            tracing::error!(
                %entity_type, to = %self.name_of(to), %why,
                "sharding.frame_lost: a frame for that node could not be sent and is lost; set \
                 net.limits equally on all nodes, and check that that node is not suspended"
            );
        }
    }

    /// Notifies all types ([`RegionRegistry::room`]) when the lane has room again or has ended. One
    /// task waits for each region, however many frames of however many types were refused; so a
    /// call while one waits does nothing, even for a newer lane. Returns at once.
    fn wait_for_room(&self, to: RegionId, lane: Lane) {
        let first = self.shared.full.lock().unwrap_or_else(PoisonError::into_inner).insert(to);
        if !first {
            return;
        }
        let (full, region_registry) =
            (self.shared.full.clone(), self.shared.region_registry.clone());
        self.shared.runtime.spawn(async move {
            lane.room().await;
            full.lock().unwrap_or_else(PoisonError::into_inner).remove(&to);
            if let Some(region_registry) = region_registry.upgrade() {
                region_registry.room(to);
            }
        });
    }
}

impl RegionEnvironment for TypeEnvironment {
    /// Returns the name that the transport knows, the incarnation alone if it knows none.
    fn name_of(&self, region: RegionId) -> String {
        NodeNames::new(self.shared.net.clone()).of(region.replica()).to_string()
    }

    /// Fails with [`NoRoom::Full`] also if no connection carries the lane; a task then waits for
    /// room. After [`NoRoom::NoLane`] the event pump calls [`RegionRegistry::room`] for a new lane.
    /// [`NoRoom::TooLong`] is logged; the caller must drop the frame, because it never fits.
    fn send(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom> {
        match self.append(to, |lane, header| lane.send_connected(header, frame)) {
            AppendResult::Yes => Ok(()),
            AppendResult::NoLane => Err(NoRoom::NoLane),
            AppendResult::TooLong => Err(NoRoom::TooLong),
            AppendResult::Full(lane) => {
                self.wait_for_room(to, lane);
                Err(NoRoom::Full)
            }
        }
    }

    /// Appends also while no connection carries the lane. A frame that fails is lost: no task waits
    /// for room. Logs that it is lost because the lane keeps four times its limit
    /// ([`NoRoom::Full`]) or the frame is too long; without a lane logs nothing.
    fn answer(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom> {
        match self.append(to, |lane, header| lane.answer(header, frame)) {
            AppendResult::Yes => Ok(()),
            AppendResult::TooLong => Err(NoRoom::TooLong),
            AppendResult::NoLane => Err(NoRoom::NoLane),
            AppendResult::Full(_) => {
                self.complain(to, &"the lane keeps four times as much as it may");
                Err(NoRoom::Full)
            }
        }
    }

    fn tell(&self, fact: RegionInput) {
        let fact = ShardingInput::Fact { entity_type: self.entity_type.clone(), fact };
        let _ = self.shared.inbox.fact(ControlInput::from(fact)); // fails only after the stop
    }

    /// Whether the hosting lease is held at this moment.
    fn serves(&self) -> bool {
        self.shared.lease.serves()
    }

    fn now(&self) -> Instant {
        self.shared.clock.mono()
    }

    /// Spawns the task on the runtime of the program.
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.shared.runtime.spawn(task);
    }

    fn run(&self, activation: Activation) {
        self.shared.executor.run(activation);
    }

    /// The pause begins at the first poll, which must be on the runtime, not at this call.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        async move { tokio::time::sleep(pause).await }.boxed() // creates the timer on the runtime
    }
}
