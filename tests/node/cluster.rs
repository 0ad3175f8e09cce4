//! Helpers: clusters of Replicators in one process.

use std::sync::{Arc, mpsc};

use ostraca::ddata::data::Registry;
use ostraca::ddata::durable::MemoryStore;
use ostraca::ddata::fault_injection::FaultInjection;
use ostraca::ddata::id::ReplicaId;
use ostraca::ddata::replicator::ReplicatorParameters;
use ostraca::ddata::replicator::config::ReplicatorConfig;
use ostraca::ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca::net::NodeId;
use ostraca::node::InboxLimits;
use ostraca::node::disk::Store;
use ostraca::node::parts::{ReplicatorPart, ReplicatorSetup, start_replicator};
use ostraca::node::routes::Fact;
use ostraca::prelude::*;

use crate::network::{Network, node_id};
use crate::waits::soon;

pub(crate) struct Plan {
    pub(crate) nodes: u8,
    pub(crate) config: ReplicatorConfig,
    pub(crate) inbox: InboxLimits,
    pub(crate) founded: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let (config, inbox) = (ReplicatorConfig::default(), InboxLimits::default());
        Self { nodes: 3, config, inbox, founded: true }
    }
}

pub(crate) struct Cluster {
    pub(crate) network: Network,
    pub(crate) nodes: Vec<ReplicatorPart>,
}

pub(crate) fn setup(number: u8, config: ReplicatorConfig) -> ReplicatorSetup {
    let (registry, fault_injection) = (Registry::new(), FaultInjection::none());
    let (me, seed) = (node_id(number).incarnation, u64::from(number));
    ReplicatorSetup::new(ReplicatorParameters { me, config, registry, seed, fault_injection })
}

/// Starts a cluster of one node, in memory.
pub(crate) async fn single() -> ReplicatorPart {
    stored(0, ReplicatorConfig::default(), Box::new(MemoryStore::new())).await
}

/// Starts a cluster of one node with a given incarnation and store.
pub(crate) async fn stored(number: u8, config: ReplicatorConfig, store: Store) -> ReplicatorPart {
    let mut setup = setup(number, config);
    setup.store = store;
    let node = start_replicator(setup, ()).await.expect("a readable store");
    node.facts.tell(Fact::Found(founding(vec![node_id(number).incarnation])));
    node
}

pub(crate) fn epoch(nodes: u8) -> Arc<Epoch> {
    founding((0..nodes).map(|number| node_id(number).incarnation).collect())
}

fn founding(members: Vec<ReplicaId>) -> Arc<Epoch> {
    let id = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(id, members, EpochSettings::default()).expect("a valid one"))
}

impl Plan {
    pub(crate) async fn start(self) -> Cluster {
        let network = Network::default();
        let mut nodes = Vec::new();
        for number in 0..self.nodes {
            let mut setup = setup(number, self.config.clone());
            setup.inbox = self.inbox;
            let port = network.port(node_id(number));
            let node = start_replicator(setup, port).await.expect("memory is readable");
            network.connect(node_id(number), node.receiver.clone());
            nodes.push(node);
        }
        for node in nodes.iter().filter(|_| self.founded) {
            node.facts.tell(Fact::Found(epoch(self.nodes)));
        }
        Cluster { network, nodes }
    }
}

impl Cluster {
    pub(crate) async fn of_three() -> Self {
        Plan::default().start().await
    }

    pub(crate) fn at(&self, number: usize) -> Replicator {
        self.nodes[number].handle.clone()
    }

    pub(crate) fn id(number: u8) -> NodeId {
        node_id(number)
    }

    /// Stops all nodes, none of which may have panicked.
    pub(crate) async fn stop(self) {
        for node in self.nodes {
            node.running.stop().await.expect("the Replicator did not panic");
        }
    }
}

/// Blocks the Replicator's task until this is dropped. Needs a runtime with two threads.
pub(crate) struct Held(#[expect(dead_code, reason = "lives")] mpsc::Sender<()>);

pub(crate) async fn hold(replicator: &Replicator) -> Held {
    let (release, released) = mpsc::channel::<()>();
    let (began, begins) = tokio::sync::oneshot::channel();
    let replicator = replicator.clone();
    tokio::spawn(async move {
        let key = Key::<Flag>::new("held");
        let hold = move |_: &mut Edit<'_, Flag>| {
            let _ = began.send(());
            let _ = released.recv(); // fails when the `Held` is dropped
            Ok(())
        };
        let _ = replicator.update(&key, WriteLocal, hold).await;
    });
    soon(begins).await.expect("the update has begun");
    Held(release)
}
