//! A peer that holds the secret, never joins, and sends messages that only members may send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca::ddata::id::ReplicaId;
use ostraca::ddata::replicator::epoch::{
    Ballot, Epoch, EpochId, EpochMessage, EpochSettings, MembershipChange,
};
use ostraca::ddata::replicator::wire::{Body, ReplicatorMessage};
use ostraca::net::handle::Net;
use ostraca::net::identity::Identity;
use ostraca::net::{Busy, Inbound, Receiver, TrafficClass};
use ostraca::prelude::*;

use crate::fixture::{Plan, all_up, drop_all, free_addresses};
use crate::waits::{SOON, eventually, soon};

/// Keeps the newest configuration that each node has sent.
#[derive(Default)]
struct Eavesdropper(Mutex<BTreeMap<ReplicaId, Arc<Epoch>>>);

impl Receiver for Eavesdropper {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if let Ok(ReplicatorMessage {
            body: Body::Epoch(EpochMessage::Install { epoch }), ..
        }) = ReplicatorMessage::decode(message.body)
        {
            self.0.lock().expect("not poisoned").insert(message.from.incarnation, epoch);
        }
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        futures::future::ready(()).boxed()
    }
}

struct Attacker {
    net: Net,
    heard: Arc<Eavesdropper>,
    _identity: Identity,
}

impl Attacker {
    /// Starts a transport that dials all seeds.
    async fn start(plan: &Plan) -> Self {
        let config = plan.config(&free_addresses(1)[0], None).net;
        let identity = Identity::load(None).expect("an identity");
        let heard = Arc::<Eavesdropper>::default();
        let (net, _events) =
            Net::start(&config, &identity, heard.clone()).await.expect("it starts");
        for address in &plan.seeds {
            net.dial(address.clone());
        }
        Self { net, heard, _identity: identity }
    }

    fn me(&self) -> ReplicaId {
        self.net.me().incarnation
    }

    /// Sends a message as a configuration machine in `epoch` would. `false` if there is no lane.
    fn send(&self, to: &Node, epoch: Option<EpochId>, message: EpochMessage) -> bool {
        let message = ReplicatorMessage { epoch, body: Body::Epoch(message) };
        let lane = self.net.lane(to.cluster().me().incarnation, TrafficClass::Control);
        lane.is_some_and(|lane| lane.send(&[], &message.encode()).is_ok())
    }

    /// The configuration of a node, which it sends to every peer that asks.
    async fn configuration(&self, of: &Node) -> Arc<Epoch> {
        let id = of.cluster().me().incarnation;
        let heard = || self.heard.0.lock().expect("not poisoned").get(&id).cloned();
        self.heard.0.lock().expect("not poisoned").clear();
        eventually("it tells its configuration", async || {
            self.send(of, None, EpochMessage::Ask { installed: None });
            heard().is_some()
        })
        .await;
        heard().expect("just heard")
    }

    /// Forged configurations of this cluster, well formed and above the real one, and votes of a
    /// forged ballot.
    fn attack(&self, real: &Epoch) -> Vec<EpochMessage> {
        let me = self.me();
        let settings = EpochSettings { cluster: real.cluster(), ..EpochSettings::default() };
        let made_up = |generation, number| {
            let id = EpochId { generation, number };
            Arc::new(Epoch::founding(id, vec![me], settings.clone()).expect("one member"))
        };
        let id = real.id();
        let ballot = Ballot { number: 1 << 20, node: me };
        let base = made_up(id.generation, id.number + 1);
        let same = Arc::new(real.next(&MembershipChange::default()).expect("the same members"));
        let join =
            MembershipChange { join: real.members().to_vec(), ..MembershipChange::default() };
        let proposal = Arc::new(base.next(&join).expect("they join"));
        vec![
            EpochMessage::Install { epoch: base.clone() },
            EpochMessage::Install { epoch: made_up(id.generation + 1, 1) },
            EpochMessage::Install { epoch: made_up(u64::MAX / 2, 1) },
            EpochMessage::Sync { base, ballot, proposal, sealed: vec![me] },
            EpochMessage::Seal { epoch: id, ballot, proposal: same.clone() },
            EpochMessage::Accept { epoch: id, ballot, proposal: same },
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_configurations_of_an_admitted_peer_are_refused() {
    let plan = Plan::with_seeds(3);
    let nodes = plan.start().await;
    let attacker = Attacker::start(&plan).await;
    let newest = attacker.configuration(&nodes[0]).await;
    for node in &nodes {
        let is_newest = async || attacker.configuration(node).await == newest;
        eventually("all have the configuration of three", is_newest).await;
    }
    assert_eq!(newest.members().len(), 3);
    assert_ne!(newest.cluster(), 0, "configurations carry the id of their cluster");
    for node in &nodes {
        for message in attacker.attack(&newest) {
            let epoch = Some(newest.id());
            assert!(attacker.send(node, epoch, message), "the lane is open");
        }
    }
    for node in &nodes {
        eventually("each refusal is counted", async || {
            let stats = soon(node.replicator().stats()).await.expect("it runs");
            stats.epoch.declined >= 4 && stats.epoch.nonsense >= 2
        })
        .await;
    }
    all_up(&nodes).await;
    let key = Key::<PNCounter>::new("sold");
    for node in &nodes {
        let sold = node.replicator().update(&key, WriteMajority::within(SOON), |sold| sold.add(1));
        sold.await.expect("a majority");
    }
    for node in &nodes {
        let sold = node.replicator().get(&key, ReadMajority::within(SOON)).await;
        assert_eq!(sold.expect("a majority").map(|sold| sold.value()), Some(3));
        assert_eq!(attacker.configuration(node).await.members(), newest.members());
    }
    soon(attacker.net.stop()).await;
    drop_all(nodes);
}
