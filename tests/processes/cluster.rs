//! Clusters of processes with default settings, each process in its own network namespace:
//! partitions, pauses, crashes, restarts, graceful leaves. Skipped with a message without the
//! privileges for namespaces.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use libp2p::Multiaddr;
use ostraca::cluster::config::DowningStrategyName;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::hosts;
use crate::member::{Running, View};
use crate::namespaces::Namespaces;
use crate::served::{Kind, Order};

const HOSTS: usize = 5;
/// Number of seeds, which are the first hosts.
const SEEDS: usize = 3;

/// Held by each test, so that one cluster runs at a time and measured durations are comparable.
static TURN: Mutex<()> = Mutex::const_new(());

/// A network with a host for each member, and the members' orders.
pub(crate) struct Hosts {
    pub(crate) orders: Vec<Order>,
    pub(crate) network: Namespaces,
    _dirs: Vec<TempDir>,
    _turn: MutexGuard<'static, ()>,
}

impl Hosts {
    pub(crate) async fn new(test: &str, count: usize, seeds: &[Multiaddr]) -> Option<Self> {
        let turn = TURN.lock().await;
        let network = Namespaces::or_skip(count, test)?;
        let dirs: Vec<TempDir> =
            (0..count).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let order = |host: usize| Order {
            kind: Kind::Member,
            data_dir: Some(dirs[host].path().to_owned()),
            seeds: seeds.to_vec(),
            ..hosts::order(host)
        };
        let orders = (0..count).map(order).collect();
        Some(Self { orders, network, _dirs: dirs, _turn: turn })
    }

    /// Starts a cluster of five members, three of which are seeds, and waits until all agree.
    async fn five(test: &str, downing: DowningStrategyName) -> Option<(Self, Vec<Running>)> {
        let seeds: Vec<_> = (0..SEEDS).map(|host| hosts::order(host).listen).collect();
        let mut hosts = Self::new(test, HOSTS, &seeds).await?;
        for order in &mut hosts.orders {
            order.downing = downing;
        }
        let began = Instant::now();
        let mut all = hosts.start_all().await;
        let listening = began.elapsed();
        agree(&mut all).await;
        eprintln!(
            "five processes were one cluster after {:?}, of which they took {listening:?} to \
             listen (goal: < 2 s)",
            began.elapsed()
        );
        Some((hosts, all))
    }

    pub(crate) async fn start(&self, host: usize) -> Running {
        Running::start(&self.network.on(host), &self.orders[host]).await
    }

    pub(crate) async fn start_all(&self) -> Vec<Running> {
        join_all((0..self.orders.len()).map(|host| self.start(host))).await
    }
}

pub(crate) fn ids<'a>(members: impl IntoIterator<Item = &'a Running>) -> BTreeSet<String> {
    members.into_iter().map(|member| member.me.clone()).collect()
}

/// Waits until each of these members sees exactly these members, all Up and reachable, and holds
/// its lease.
pub(crate) async fn agree(members: &mut [Running]) {
    let wanted = ids(&*members);
    let mut clusters = BTreeSet::new();
    for member in members {
        let view = member.sees("all are Up", |view| is_whole(view, &wanted)).await;
        clusters.insert(view.cluster);
    }
    assert_eq!(clusters.len(), 1, "one cluster: {clusters:?}");
}

fn is_whole(view: &View, wanted: &BTreeSet<String>) -> bool {
    view.up == *wanted && view.known == *wanted && view.unreachable.is_empty() && view.serves
}

/// Waits until each of these members sees the lost ones removed.
pub(crate) async fn lose(members: &mut [Running], lost: &BTreeSet<String>) {
    for member in members {
        member.sees("the lost members are removed", |view| view.known.is_disjoint(lost)).await;
    }
}

/// Asserts that no member ever found another one unreachable or declared one dead.
async fn missed_nobody(members: &mut [Running]) {
    for member in members {
        let view = member.view().await;
        assert!(view.accusations == 0 && view.downed.is_empty(), "{view:?}");
    }
}

/// Asserts that a member runs no entities: it has ended, or holds no lease.
pub(crate) async fn serves_nothing(member: &mut Running) {
    if let Ok(view) = member.look().await {
        assert!(!view.serves, "a removed member must not serve: {view:?}");
    }
}

// ── Partitions ──

/// Partitions two seeds from the three other members. The two stop; restarted during the partition,
/// they must not found a second cluster, because they remember the existing one.
async fn the_three_stay_and_the_two_go(test: &str, downing: DowningStrategyName) {
    let Some((hosts, mut all)) = Hosts::five(test, downing).await else { return };
    assert!(all[0].writes().await);
    let cluster = all[0].view().await.cluster;
    hosts.network.partition(&[0, 1], &[2, 3, 4]);
    let split_at = Instant::now();
    let mut staying = all.split_off(2);
    let mut going = all;
    lose(&mut staying, &ids(&going)).await;
    for member in &mut going {
        serves_nothing(member).await;
    }
    eprintln!("{downing}: the three continued without the two after {:?}", split_at.elapsed());
    agree(&mut staying).await;
    assert!(staying[0].writes().await);
    for member in going {
        let end = member.ends().await;
        assert!(end.reason.starts_with("Membership"), "{end:?}");
        assert!(end.removed.is_empty(), "the smaller side removes nobody: {end:?}");
    }
    eprintln!("{downing}: the two had ended after {:?}", split_at.elapsed());

    let mut again = vec![hosts.start(0).await, hosts.start(1).await];
    for member in &mut again {
        member.has_sent(8).await; // enough time to found a second cluster
        let view = member.view().await;
        assert!(view.up.is_empty(), "a second cluster: {view:?}");
    }
    hosts.network.heal();
    again.append(&mut staying);
    agree(&mut again).await;
    assert_eq!(again[0].view().await.cluster, cluster);
    assert_eq!(again[0].reads().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_majority_keeps_the_larger_side_of_a_partition() {
    let test = "keep_majority_keeps_the_larger_side_of_a_partition";
    the_three_stay_and_the_two_go(test, DowningStrategyName::KeepMajority).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn static_quorum_keeps_the_side_with_the_quorum() {
    let test = "static_quorum_keeps_the_side_with_the_quorum";
    the_three_stay_and_the_two_go(test, DowningStrategyName::StaticQuorum).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_keeps_both_sides_but_only_the_larger_serves() {
    let test = "manual_keeps_both_sides_but_only_the_larger_serves";
    let Some((hosts, mut all)) = Hosts::five(test, DowningStrategyName::Manual).await else {
        return;
    };
    let everybody = ids(&all);
    hosts.network.partition(&[0, 1], &[2, 3, 4]);
    let (two, three) = all.split_at_mut(2);
    let (lost, rest) = (ids(&*two), ids(&*three));
    for member in two {
        member.sees("its lease expired", |view| !view.serves && view.unreachable == rest).await;
        assert!(!member.tries().await, "two of five are no majority");
    }
    for member in three {
        member.sees("the two are missed", |view| view.serves && view.unreachable == lost).await;
        assert!(member.writes().await);
    }
    hosts.network.heal();
    agree(&mut all).await;
    assert_eq!(ids(&all), everybody, "no member was restarted");
    for member in &mut all {
        assert!(member.writes().await);
    }
    for member in &mut all {
        let view = member.view().await;
        assert!(view.removed.is_empty() && view.downed.is_empty(), "{view:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn down_all_stops_both_sides() {
    let test = "down_all_stops_both_sides";
    let Some((hosts, all)) = Hosts::five(test, DowningStrategyName::DownAll).await else { return };
    hosts.network.partition(&[0, 1], &[2, 3, 4]);
    for member in all {
        let end = member.ends().await;
        assert!(end.reason.starts_with("Membership"), "{end:?}");
    }
}

// ── Pauses and crashes ──

#[tokio::test(flavor = "multi_thread")]
async fn member_paused_for_two_seconds_stays_reachable() {
    /// Silence that the failure detector accepts by default; a longer pause is rightly suspected.
    const ACCEPTABLE: Duration = Duration::from_secs(3);
    let test = "member_paused_for_two_seconds_stays_reachable";
    let strategy = DowningStrategyName::default();
    let Some((_hosts, mut all)) = Hosts::five(test, strategy).await else { return };
    let paused_at = Instant::now();
    all[3].peer.pause().await;
    tokio::time::sleep(Duration::from_secs(2)).await; // the pause that is tested
    all[3].peer.go_on();
    assert!(all[3].writes().await);
    let silent = paused_at.elapsed(); // upper bound, since the member runs again
    eprintln!("a member was paused for at most {silent:?}");
    agree(&mut all).await;
    if silent < ACCEPTABLE {
        missed_nobody(&mut all).await;
    } else {
        eprintln!("SKIPPED the end of {test}: the busy machine made the pause longer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_member_is_removed_and_rejoins_after_a_restart() {
    let test = "killed_member_is_removed_and_rejoins_after_a_restart";
    let strategy = DowningStrategyName::default();
    let Some((hosts, mut all)) = Hosts::five(test, strategy).await else { return };
    assert!(all[0].writes().await);
    let cluster = all[0].view().await.cluster;
    for host in [4, 0] {
        let killed = all.remove(host);
        let lost = BTreeSet::from([killed.me.clone()]);
        killed.peer.kill().await;
        let killed_at = Instant::now();
        lose(&mut all, &lost).await;
        eprintln!("a killed member was removed after {:?} (goal: ≤ 6 s)", killed_at.elapsed());
        agree(&mut all).await;
        assert!(all[1].writes().await);

        let started_at = Instant::now();
        all.insert(host, hosts.start(host).await);
        agree(&mut all).await;
        eprintln!("the restarted process was a member after {:?}", started_at.elapsed());
        assert_eq!(all[host].view().await.cluster, cluster);
    }
    assert_eq!(all[0].reads().await, 3);
}

/// The restart itself proves that the old incarnation has ended, so no failure detection is needed.
#[tokio::test(flavor = "multi_thread")]
async fn known_failure_22_quickly_restarted_member_is_up_only_once() {
    let test = "known_failure_22_quickly_restarted_member_is_up_only_once";
    let strategy = DowningStrategyName::default();
    let Some((hosts, mut all)) = Hosts::five(test, strategy).await else { return };
    for host in [3, 1] {
        let killed = all.remove(host);
        let (old, killed_at) = (killed.me.clone(), Instant::now());
        killed.peer.kill().await;
        all.insert(host, hosts.start(host).await);
        assert_ne!(all[host].me, old, "a new incarnation of the same peer");
        assert_eq!(all[host].me.split('/').next(), old.split('/').next());
        agree(&mut all).await; // also checks every view for two incarnations of a peer
        eprintln!("killed and restarted at once: a member after {:?}", killed_at.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_host_stops_serving_and_is_removed() {
    let test = "silent_host_stops_serving_and_is_removed";
    let strategy = DowningStrategyName::default();
    let Some((hosts, mut all)) = Hosts::five(test, strategy).await else { return };
    let mut silent = all.remove(3);
    hosts.network.cut(3);
    let cut_at = Instant::now();
    lose(&mut all, &BTreeSet::from([silent.me.clone()])).await;
    serves_nothing(&mut silent).await;
    eprintln!("a silent host was removed after {:?} (goal: ≤ 9 s)", cut_at.elapsed());
    agree(&mut all).await;
    assert!(all[0].writes().await);
    let end = silent.ends().await;
    assert!(end.reason.starts_with("Membership") && end.removed.is_empty(), "{end:?}");
    hosts.network.heal();
    all.insert(3, hosts.start(3).await);
    agree(&mut all).await;
}

// ── Graceful leaves ──

#[tokio::test(flavor = "multi_thread")]
async fn terminated_member_leaves_without_suspicion() {
    let test = "terminated_member_leaves_without_suspicion";
    let strategy = DowningStrategyName::default();
    let Some((_hosts, mut all)) = Hosts::five(test, strategy).await else { return };
    for host in [4, 0] {
        let leaver = all.remove(host);
        let left = leaver.me.clone();
        let told_at = Instant::now();
        leaver.peer.terminate();
        let end = leaver.ends().await;
        assert_eq!(end.reason, "Signal");
        for member in &mut all {
            member.sees("the leaver is removed", |view| view.removed.contains(&left)).await;
        }
        eprintln!("ended and removed everywhere {:?} after SIGTERM", told_at.elapsed());
        agree(&mut all).await;
        missed_nobody(&mut all).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_always_keeps_a_majority() {
    let test = "rolling_restart_always_keeps_a_majority";
    let strategy = DowningStrategyName::default();
    let Some((hosts, mut all)) = Hosts::five(test, strategy).await else { return };
    let cluster = all[0].view().await.cluster;
    assert!(all[0].writes().await);
    let (mut written, began) = (1, Instant::now());
    for host in 0..HOSTS {
        let writer = (host + 1) % HOSTS;
        all[writer].peer.asks("write-on").await.expect("the writer runs");
        let leaver = all.remove(host);
        leaver.peer.terminate();
        assert_eq!(leaver.ends().await.reason, "Signal");
        all.insert(host, hosts.start(host).await);
        agree(&mut all).await;
        let told = all[writer].peer.asks("enough").await.expect("the writer runs");
        let (done, failed) = told.split_once(' ').expect("two counts");
        assert_eq!(
            failed, "0",
            "{failed} writes failed, {done} succeeded at the restart of {host}"
        );
        written += done.parse::<u64>().expect("a count");
    }
    eprintln!("all five were restarted in {:?}, with {written} writes", began.elapsed());
    missed_nobody(&mut all).await;
    assert_eq!(all[0].view().await.cluster, cluster);
    for member in &mut all {
        assert_eq!(member.reads().await, written);
    }
}

/// As in containers: no multicast, no broadcast, and one name that resolves to all hosts.
#[tokio::test(flavor = "multi_thread")]
async fn known_failure_29_cluster_founds_by_a_name_without_multicast() {
    let test = "known_failure_29_cluster_founds_by_a_name_without_multicast";
    let seed = "/dns4/nodes.shop/tcp/7001".parse().expect("an address");
    let Some(hosts) = Hosts::new(test, SEEDS, &[seed]).await else { return };
    let names: Vec<_> = (0..SEEDS).map(|host| ("nodes.shop", Namespaces::address(host))).collect();
    for host in 0..SEEDS {
        hosts.network.set_names(host, &names);
    }
    agree(&mut hosts.start_all().await).await;
}
