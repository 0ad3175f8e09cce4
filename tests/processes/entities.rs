//! Counter entities on clusters of processes, each process in its own network namespace, under load
//! while nodes join, leave, crash and are partitioned. Planned moves lose and duplicate no message
//! and keep the order; a crash loses only the entities of the crashed node. Skipped with a message
//! without the privileges for namespaces.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::cluster::{Hosts, agree};
use crate::counters::{SHARDS, Sums};
use crate::hosts;
use crate::member::Running;
use crate::served::Kind;
use crate::waits::until;

/// Number of hosts of counters; the feeder runs on a further host, the last one.
const HOSTS: usize = 3;

/// A member's report about the counters.
#[derive(Clone, Debug)]
struct Hosting {
    registered: bool,
    coordinator: String,
    shards: u32,
}

impl Running {
    async fn hosting(&mut self) -> Hosting {
        let told = self.peer.asks("hosting").await.expect("the member runs");
        let parts: Vec<&str> = told.split(' ').collect();
        let [registered, coordinator, shards] = parts[..] else { panic!("{told:?}") };
        Hosting {
            registered: registered == "true",
            coordinator: coordinator.to_owned(),
            shards: shards.parse().expect("a count"),
        }
    }

    /// Waits until the report meets a condition.
    async fn hosts(&mut self, what: &str, is_so: impl Fn(&Hosting) -> bool) -> Hosting {
        until(what, async || self.hosting().await, is_so).await
    }

    /// Incarnation of the node, without its peer id.
    fn incarnation(&self) -> &str {
        self.me.rsplit('/').next().expect("a node's name has an incarnation")
    }
}

/// A cluster with counters under load: [`HOSTS`] members that host them, and a feeder.
struct Fed {
    hosts: Hosts,
    members: Vec<Running>,
    feeder: Running,
}

impl Fed {
    /// Starts the cluster in a network with room for `places` hosts and the feeder.
    async fn start(test: &str, places: usize) -> Option<Self> {
        let seeds: Vec<_> = (0..HOSTS).map(|host| hosts::order(host).listen).collect();
        let mut hosts = Hosts::new(test, places + 1, &seeds).await?;
        for order in &mut hosts.orders {
            order.kind = Kind::Host;
        }
        hosts.orders[places].kind = Kind::Feeder;
        let mut members = Vec::new();
        for host in (0..HOSTS).chain([places]) {
            members.push(hosts.start(host).await);
        }
        agree(&mut members).await;
        let mut feeder = members.pop().expect("the feeder is the last");
        for member in &mut members {
            member.hosts("its region is registered", |hosting| hosting.registered).await;
        }
        feeder.peer.asks("feed-on").await.expect("the feeder runs");
        let mut fed = Self { hosts, members, feeder };
        fed.serves_everywhere().await;
        Some(fed)
    }

    /// Waits until every host has its share of the shards.
    async fn serves_everywhere(&mut self) {
        let least = SHARDS / u32::try_from(self.members.len()).expect("few");
        for member in &mut self.members {
            let has_its_part = |hosting: &Hosting| hosting.registered && hosting.shards >= least;
            member.hosts("it has its share of shards", has_its_part).await;
        }
    }

    /// Ends the load once every counter answers. Checks that no message was duplicated, reordered
    /// or lost by a surviving counter, and returns the sums.
    async fn ends(mut self) -> Sums {
        let sums = self.feeder.peer.asks("fed").await.expect("the feeder runs");
        let sums = Sums::parse(&sums);
        eprintln!("{sums:?}");
        assert!(sums.told > 1_000, "too few messages for a result: {sums:?}");
        assert_eq!((sums.too_many, sums.disordered), (0, 0), "at most once, in order: {sums:?}");
        assert_eq!(sums.lost, 0, "surviving counters lose no message: {sums:?}");
        sums
    }

    /// Like [`ends`](Self::ends), but also checks that no counter lost its state.
    async fn ends_without_a_loss(self) {
        let sums = self.ends().await;
        let expected = Sums { told: sums.told, ..Sums::default() };
        assert_eq!(sums, expected, "planned moves lose nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn join_and_leave_lose_no_messages() {
    let test = "join_and_leave_lose_no_messages";
    let Some(mut fed) = Fed::start(test, HOSTS + 1).await else { return };
    let began = Instant::now();
    fed.members.push(fed.hosts.start(HOSTS).await);
    fed.serves_everywhere().await;
    eprintln!("a fourth host had its share after {:?}", began.elapsed());
    let leaver = fed.members.remove(0);
    let began = Instant::now();
    leaver.peer.terminate();
    assert_eq!(leaver.ends().await.reason, "Signal");
    eprintln!("the first host had left after {:?}", began.elapsed());
    fed.serves_everywhere().await;
    fed.ends_without_a_loss().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_of_hosts_loses_no_messages() {
    let test = "rolling_restart_of_hosts_loses_no_messages";
    let Some(mut fed) = Fed::start(test, HOSTS).await else { return };
    let began = Instant::now();
    for host in 0..HOSTS {
        let leaver = fed.members.remove(host);
        leaver.peer.terminate();
        assert_eq!(leaver.ends().await.reason, "Signal");
        fed.members.insert(host, fed.hosts.start(host).await);
        fed.serves_everywhere().await;
    }
    eprintln!("three hosts were restarted in {:?}", began.elapsed());
    fed.ends_without_a_loss().await;
}

/// Kills one host, lets the others continue, and checks that only its counters lost their state.
async fn is_killed(test: &str, with_coordinator: bool) {
    let Some(mut fed) = Fed::start(test, HOSTS).await else { return };
    let coordinator =
        fed.members[0].hosts("a coordinator runs", |it| it.coordinator != "-").await.coordinator;
    let is_it = |member: &Running| (member.incarnation() == coordinator) == with_coordinator;
    let which = fed.members.iter().position(is_it).expect("there are three hosts");
    let killed = fed.members.remove(which);
    let incarnation = killed.incarnation().to_owned();
    let shards = fed.members.len();
    let began = Instant::now();
    killed.peer.kill().await;
    fed.serves_everywhere().await;
    eprintln!("{shards} hosts had all shards {:?} after the kill", began.elapsed());
    let sums = fed.ends().await;
    assert!(sums.gone > 0, "the killed host had counters: {sums:?}");
    assert_eq!(sums.ended_on, BTreeSet::from([incarnation]), "only its counters lost state");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_coordinator_loses_only_entities_of_its_node() {
    is_killed("killed_coordinator_loses_only_entities_of_its_node", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_host_loses_only_its_own_entities() {
    is_killed("killed_host_loses_only_its_own_entities", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitioned_host_loses_only_its_entities_and_rejoins() {
    let test = "partitioned_host_loses_only_its_entities_and_rejoins";
    let Some(mut fed) = Fed::start(test, HOSTS).await else { return };
    let cut_off = fed.members.remove(2);
    let incarnation = cut_off.incarnation().to_owned();
    fed.hosts.network.partition(&[2], &[0, 1, 3]);
    fed.serves_everywhere().await;
    let end = cut_off.ends().await;
    assert!(end.reason.starts_with("Membership"), "{end:?}");
    fed.hosts.network.heal();
    fed.members.insert(2, fed.hosts.start(2).await);
    fed.serves_everywhere().await;
    let sums = fed.ends().await;
    assert_eq!(sums.ended_on, BTreeSet::from([incarnation]), "only its counters lost state");
}
