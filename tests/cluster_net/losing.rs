//! A node that vanishes, and one that comes back.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca::cluster::config::DowningStrategyName;
use ostraca::config::InvalidConfig;
use ostraca::node::StartError;
use ostraca::node::downing_lease::{DowningLease, LeaseError, LeaseName};
use ostraca::prelude::*;

use crate::fixture::{Plan, all_up, drop_all, events_until, gone, start_again};
use crate::waits::{eventually, soon};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn vanished_node_is_unreachable_and_then_removed() {
    let plan = Plan::with_seeds(3);
    let mut nodes = plan.start().await;
    let mut events = nodes[0].cluster().events();
    let lost = nodes.pop().expect("three");
    let who = lost.cluster().me();
    drop(lost);
    let is_removal = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { member, .. } if member.node == who);
    let told = events_until(&mut events, is_removal).await;
    let unreachable = |event: &ClusterEvent| matches!(event, ClusterEvent::UnreachableMember(member) if member.node == who);
    assert!(told.iter().any(unreachable), "{told:?}");
    gone(&nodes, who).await;
    all_up(&nodes).await;

    let key = Key::<Flag>::new("on");
    let write = WriteMajority::within(PATIENCE);
    nodes[1].replicator().update(&key, write, |flag| flag.switch_on()).await.expect("two of two");
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_member_is_listed_with_its_observers() {
    let hour = Duration::from_secs(3_600);
    let plan = Plan::changed(3, |settings| settings.downing.stable_after = Some(hour));
    let mut nodes = plan.start().await;
    let lost = nodes.pop().expect("three");
    let who = lost.cluster().me();
    drop(lost);
    eventually("an observer reports it", async || {
        let view = nodes[0].cluster().state().await.expect("it runs");
        let by = view.unreachable.get(&who);
        by.is_some_and(|by| !by.is_empty() && !by.contains(&who))
    })
    .await;
    assert_eq!(nodes[0].cluster().members().len(), 3, "no member is removed yet");
    drop_all(nodes);
}

/// The only seed, which has this configuration, and two other nodes.
async fn with_one_seed(dir: &Path) -> (Config, Node, Vec<Node>) {
    let plan = Plan::with_seeds(1);
    let at_seed = plan.config(&plan.seeds[0], Some(dir));
    let seed = Node::start(at_seed.clone()).await.expect("it starts");
    let mut nodes = vec![plan.other().await, plan.other().await, seed];
    all_up(&nodes).await;
    let seed = nodes.pop().expect("three");
    (at_seed, seed, nodes)
}

/// The seed's list contains only itself, and no member dials a removed node.
#[tokio::test(flavor = "multi_thread")]
async fn removed_only_seed_is_invited_after_its_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let (at_seed, seed, mut nodes) = with_one_seed(dir.path()).await;
    let who = seed.cluster().me();
    drop(seed);
    gone(&nodes, who).await;
    nodes.push(start_again(&at_seed).await);
    all_up(&nodes).await;
    drop_all(nodes);
}

/// The seed is removed, and its old process takes so long to stop that the others forget it while
/// it is still connected.
#[tokio::test(flavor = "multi_thread")]
async fn only_seed_is_invited_if_forgotten_before_it_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let (at_seed, seed, mut nodes) = with_one_seed(dir.path()).await;
    let (who, id) = (seed.cluster().me(), seed.id());
    let (release, released) = tokio::sync::watch::channel(false);
    for phase in Phase::ALL {
        let mut released = released.clone();
        let waits = move || async move {
            let _ = released.wait_for(|released| *released).await;
        };
        seed.shutdown().add_task(phase, "waits", waits).expect("it has not begun");
    }
    nodes[0].cluster().down(who).await.expect("a member");
    gone(&nodes, who).await;
    for node in &nodes {
        eventually("its old incarnation is forgotten", async || {
            let peers = node.stats().await.net.peers;
            let known = peers.iter().find(|stats| stats.peer == id.peer);
            known.is_none_or(|stats| stats.incarnation.is_none())
        })
        .await;
    }
    release.send(true).expect("tasks wait for it");
    soon(seed.shutdown().done()).await;
    drop(seed);
    nodes.push(start_again(&at_seed).await);
    all_up(&nodes).await;
    drop_all(nodes);
}

/// Only the proof of death can remove the old incarnation: every timeout is an hour.
#[tokio::test(flavor = "multi_thread")]
async fn restart_on_the_same_directory_proves_death_and_joins() {
    let hour = Duration::from_secs(3_600);
    let plan = Plan::changed(3, |settings| {
        settings.downing.stable_after = Some(hour);
        settings.lease.duration = hour;
    });
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let config = |number: usize| plan.config(&plan.seeds[number], Some(dirs[number].path()));
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(Node::start(config(number)).await.expect("it starts"));
    }
    all_up(&nodes).await;
    let cluster_id = nodes[0].cluster().state().await.expect("it runs").id;

    for number in 0..3 {
        let lost = nodes.remove(number);
        let (before, peer) = (lost.cluster().me(), lost.id().peer);
        drop(lost);
        let again = start_again(&config(number)).await;
        assert!(
            again.id().peer == peer && again.cluster().me() != before,
            "same peer, new incarnation"
        );
        soon(again.cluster().wait_until_up()).await.expect("it joins");
        assert_eq!(again.cluster().state().await.expect("it runs").id, cluster_id);
        nodes.insert(number, again);
        gone(&nodes, before).await;
        all_up(&nodes).await;
    }
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn downed_node_stops() {
    let plan = Plan::with_seeds(3);
    let mut nodes = plan.start().await;
    let victim = nodes.pop().expect("three");
    let who = victim.cluster().me();
    nodes[0].cluster().down(who).await.expect("a member");
    let reason = soon(victim.shutdown().done()).await;
    assert!(matches!(reason, Reason::Membership(_)), "{reason:?}");
    gone(&nodes, who).await;
    all_up(&nodes).await;
    assert!(!victim.lease().serves());
    drop_all(nodes);
}

/// A lease provider: once available, it grants the lease to the first node that asks.
#[derive(Default)]
struct Outside {
    holder: Arc<Mutex<Option<LeaseName>>>,
    is_there: AtomicBool,
    refused: AtomicUsize,
}

impl DowningLease for Outside {
    fn acquire(&self, lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
        if !self.is_there.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Box::pin(async { Err("provider unavailable".into()) });
        }
        let mut holder = self.holder.lock().expect("nobody panics under it");
        let has_it = *holder.get_or_insert_with(|| lease.clone()) == lease;
        Box::pin(async move { Ok(has_it) })
    }

    fn release(&self, lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>> {
        let mut holder = self.holder.lock().expect("nobody panics under it");
        holder.take_if(|holder| *holder == lease);
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_majority_removes_with_the_lease_and_releases_it() {
    let mut plan = Plan::with_seeds(3);
    plan.change(|settings| {
        settings.downing.strategy = DowningStrategyName::LeaseMajority;
        settings.downing.lease_majority.release_after = Duration::from_millis(200);
    });
    let outside = Arc::new(Outside::default());
    let mut nodes = Vec::new();
    for seed in &plan.seeds {
        let config = plan.config(seed, None);
        let node = Node::builder(config).downing_lease(outside.clone()).start();
        nodes.push(node.await.expect("it starts"));
    }
    all_up(&nodes).await;
    let lost = nodes.pop().expect("three");
    let who = lost.cluster().me();
    drop(lost);
    eventually("the lease is requested twice", async || outside.refused.load(Ordering::SeqCst) > 1)
        .await;
    for node in &nodes {
        assert!(node.cluster().members().iter().any(|member| member.node == who));
    }
    outside.is_there.store(true, Ordering::SeqCst);
    gone(&nodes, who).await;
    all_up(&nodes).await;
    let is_held = || outside.holder.lock().expect("nobody panics under it").is_some();
    eventually("the lease is released", async || !is_held()).await;
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_majority_without_a_provider_is_rejected() {
    let plan =
        Plan::changed(1, |settings| settings.downing.strategy = DowningStrategyName::LeaseMajority);
    let refused = Node::start(plan.config(&plan.seeds[0], None)).await.expect_err("no provider");
    assert!(matches!(refused, StartError::Config(InvalidConfig::NoLeaseProvider)), "{refused}");
}
