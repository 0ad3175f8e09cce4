//! A node: how its parts meet. Nobody else knows this room.
//!
//! | file | is |
//! |---|---|
//! | `driver`, `inbox` | the one loop that runs machines, and what waits for it |
//! | [`wiring`] | who hears whom: a pure function |
//! | [`parts`], `control` | starting and stopping the data part and the control part |
//! | `stall` | names what blocks threads of the program's runtime |
//! | `start`, `ears` | how a node begins, and what it hears while it runs |
//! | [`replicator`], [`cluster`], [`sharding`], [`lease`] | the handles of programs |
//! | [`downing`] | what a program may provide |
//! | [`shutdown`], `ending` | how a node ends, and its own steps of that |
//! | [`outgoing`], `receiver` | the two seams to the network |
//! | [`disk`] | the durable store as a peer |

mod builder;
pub mod clock;
pub mod cluster;
mod control;
pub mod crew;
mod data;
pub mod disk;
pub mod downing;
mod driver;
mod ears;
mod ending;
mod fixed;
mod inbox;
mod lanes;
pub mod lease;
pub mod outgoing;
pub mod parts;
mod rarely;
mod receiver;
pub mod replicator;
mod replies;
pub mod sharding;
pub mod shutdown;
mod stall;
mod start;
mod tools;
pub mod wiring;

use std::sync::Arc;

use libp2p::Multiaddr;
use tokio::sync::watch;

pub use self::builder::NodeBuilder;
use self::cluster::Cluster;
pub use self::control::MemoryError;
pub use self::driver::{TURN_MAX, Turns};
use self::ears::Up;
use self::ending::Ending;
pub use self::fixed::FixedError;
pub use self::inbox::{InboxLimits, Waiting};
use self::lease::Lease;
use self::parts::Facts;
use self::replicator::{Load, Replicator};
use self::sharding::Sharding;
use self::shutdown::{CoordinatedShutdown, Reason};
use self::stall::StallMonitor;
pub use self::stall::Stalls;
pub use self::start::StartError;
use crate::management::server::Server;
use crate::net::NodeId;
use crate::net::handle::{self, Net};
use crate::net::identity::Identity;

/// A running node.
///
/// [`stop`](Self::stop) ends it in order: it leaves its cluster, and others see it removed.
/// Dropping it ends its tasks without saying goodbye: others find it unreachable, and remove it
/// when their downing strategy says so.
#[derive(Debug)]
pub struct Node {
    net: Net,
    replicator: Replicator,
    cluster: Cluster,
    lease: Lease,
    sharding: Sharding,
    shutdown: CoordinatedShutdown,
    facts: Facts,
    management: Server,
    up: watch::Receiver<Up>,
    ending: Arc<Ending>,
    stall_monitor: StallMonitor,
    _identity: Arc<Identity>, // the last to go: its lock says that this incarnation lives
}

/// A node at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Lanes, peers, and what was refused.
    pub net: handle::Stats,
    /// The inbox and the turns of the Replicator.
    pub replicator: Load,
    /// What has blocked threads of the program's runtime.
    pub stalls: Stalls,
}

impl Node {
    /// Who this is, as the transport names it; [`Cluster::me`] is the same node.
    #[must_use]
    pub const fn id(&self) -> NodeId {
        self.net.me()
    }

    /// Where others dial this node; its peer id is part of each address.
    #[must_use]
    pub fn addresses(&self) -> &[Multiaddr] {
        self.net.addresses()
    }

    /// The replicated data.
    #[must_use]
    pub fn replicator(&self) -> Replicator {
        self.replicator.clone()
    }

    /// The cluster: who belongs to it, what happens, and what can be asked of it.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    /// Cluster sharding: entity types, started here.
    #[must_use]
    pub fn sharding(&self) -> Sharding {
        self.sharding.clone()
    }

    /// Until when this node may begin messages of entities.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// The transport.
    #[must_use]
    pub const fn net(&self) -> &Net {
        &self.net
    }

    /// What answers tools, over any stream that somebody else has admitted. It gives up no majority:
    /// the control socket alone does ([`Cluster::recover_by_force`] does, too).
    #[must_use]
    pub fn management(&self) -> Server {
        self.management.clone()
    }

    /// The node at this moment: what waits, how it is batched, how much went over each lane.
    pub async fn stats(&self) -> Stats {
        Stats {
            net: self.net.stats().await,
            replicator: self.replicator.load(),
            stalls: self.stall_monitor.stalls(),
        }
    }

    /// How this node ends: add what a program has to do then.
    #[must_use]
    pub fn shutdown(&self) -> CoordinatedShutdown {
        self.shutdown.clone()
    }

    /// Runs the coordinated shutdown to its end: leaves the cluster in order, then ends requests
    /// that wait for others with an error, sends what is queued as far as peers take it, and ends
    /// the lanes.
    pub async fn stop(self) {
        self.shutdown.run(Reason::Asked).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.shutdown.abandon() {
            self.ending.drop_parts();
        }
    }
}
