//! [`Node`]: connects the state machines with the network, the disk, threads and the program.
//!
//! The machines (membership, sharding, replicated data) do no input or output themselves. The code
//! of this module runs them, delivers their outputs, and offers handles to programs. No other
//! module depends on how the parts are connected.
//!
//! | file | holds |
//! |---|---|
//! | `driver`, `inbox` | the loop that runs a machine, and the queue of its inputs |
//! | [`routes`] | pure functions that route a machine's outputs to other parts |
//! | [`parts`], `control` | start and stop of the data part and the control part |
//! | `stall` | detects what blocks threads of the program's runtime |
//! | `start`, `event_pump` | start of a node, and dispatch of events while it runs |
//! | [`replicator`], [`cluster`], [`sharding`], [`lease`] | handles for programs |
//! | [`downing_lease`] | a lease that the program may provide |
//! | [`shutdown`], `teardown` | coordinated shutdown, and the node's own tasks in it |
//! | [`message_sender`], `receiver` | sending to and receiving from the network |
//! | [`disk`] | the task that writes to the durable store |

mod admin_server;
mod builder;
pub mod clock;
pub mod cluster;
mod control;
mod data;
pub mod disk;
pub mod downing_lease;
mod driver;
mod event_pump;
pub mod executor;
mod inbox;
mod lanes;
pub mod lease;
pub mod message_sender;
mod names;
pub mod parts;
mod receiver;
pub mod replicator;
mod replies;
pub mod routes;
pub mod sharding;
pub mod shutdown;
mod stall;
mod start;
mod static_membership;
mod teardown;

use std::sync::Arc;

use libp2p::Multiaddr;
use tokio::sync::watch;

pub use self::builder::NodeBuilder;
use self::cluster::Cluster;
pub use self::control::MemoryError;
pub use self::driver::{TURN_MAX, TurnStats};
use self::event_pump::ConnectedNodes;
pub use self::inbox::{InboxLimits, QueueLengths};
use self::lease::LeaseDeadline;
use self::parts::ReplicatorNotifier;
use self::replicator::{Load, Replicator};
use self::sharding::Sharding;
use self::shutdown::{CoordinatedShutdown, Reason};
use self::stall::StallMonitor;
pub use self::stall::Stalls;
pub use self::start::StartError;
pub use self::static_membership::StaticMembershipError;
use self::teardown::RunningParts;
use crate::management::server::Server;
use crate::net::NodeId;
use crate::net::handle::{self, Net};
use crate::net::identity::Identity;

/// A running node.
///
/// [`stop`](Self::stop) makes the node leave its cluster gracefully; the other members then remove
/// it. Dropping the node ends its tasks without notice: the other members find it unreachable, and
/// remove it when their downing strategy decides so. A coordinated shutdown that has begun
/// continues when the node is dropped.
#[derive(Debug)]
pub struct Node {
    net: Net,
    replicator: Replicator,
    cluster: Cluster,
    lease: LeaseDeadline,
    sharding: Sharding,
    shutdown: CoordinatedShutdown,
    facts: ReplicatorNotifier,
    management: Server,
    up: watch::Receiver<ConnectedNodes>,
    ending: Arc<RunningParts>,
    stall_monitor: StallMonitor,
    _identity: Arc<Identity>, // dropped last: its lock shows that this incarnation is alive
}

/// Counters and queue lengths of a node, read one part after the other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// Lanes, peers, and refused connections.
    pub net: handle::NetStats,
    /// Inbox and turns of the Replicator.
    pub replicator: Load,
    /// Stalls of handlers and of the program's runtime.
    pub stalls: Stalls,
}

impl Node {
    /// Id of this node, as the transport names it; [`Cluster::me`] is the same node.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.net.me()
    }

    /// Addresses at which other nodes dial this node; each ends in its peer id.
    #[must_use]
    pub fn addresses(&self) -> &[Multiaddr] {
        self.net.addresses()
    }

    /// Handle for replicated data.
    #[must_use]
    pub fn replicator(&self) -> Replicator {
        self.replicator.clone()
    }

    /// Handle for the cluster: its members, its events, and orders such as join and leave.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    /// Handle for cluster sharding: starts entity types on this node.
    #[must_use]
    pub fn sharding(&self) -> Sharding {
        self.sharding.clone()
    }

    /// The hosting lease: until when entities of this node may begin to handle messages.
    #[must_use]
    pub fn lease(&self) -> LeaseDeadline {
        self.lease.clone()
    }

    /// Handle for the transport.
    #[must_use]
    pub const fn net(&self) -> &Net {
        &self.net
    }

    /// Server that answers administration tools over any stream that the caller has admitted. It
    /// refuses forced recovery, which only the control socket and [`Cluster::recover_by_force`]
    /// allow.
    #[must_use]
    pub fn management(&self) -> Server {
        self.management.clone()
    }

    /// Counters of this node: queue lengths, batch sizes, traffic of each lane. Waits for the
    /// transport; those of a transport that has stopped are zero.
    pub async fn stats(&self) -> NodeStats {
        NodeStats {
            net: self.net.stats().await,
            replicator: self.replicator.load(),
            stalls: self.stall_monitor.stalls(),
        }
    }

    /// The coordinated shutdown of this node, to which a program adds its own tasks.
    #[must_use]
    pub fn shutdown(&self) -> CoordinatedShutdown {
        self.shutdown.clone()
    }

    /// Runs the coordinated shutdown to its end: leaves the cluster gracefully, then fails requests
    /// that wait for other nodes, sends queued messages as far as peers take them, and closes the
    /// lanes. If it has begun already, waits for its end. Once begun, it continues even if the
    /// future is dropped.
    pub async fn stop(self) {
        self.shutdown.run(Reason::Asked).await;
    }
}

impl Drop for Node {
    /// Drops the tasks of the shutdown and stops all parts, without waiting for their ends. Does
    /// nothing if the shutdown has begun, so also after [`stop`](Self::stop).
    fn drop(&mut self) {
        if self.shutdown.abandon() {
            self.ending.drop_parts();
        }
    }
}
