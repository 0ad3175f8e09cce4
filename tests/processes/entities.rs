//! Counters on clusters of processes, each on a host of its own, kept busy while nodes come, leave,
//! are killed and cut off. Planned moves lose nothing, double nothing and keep the order; of a crash,
//! only what the dead node held is missing, and that is known. spec/sharding.md "To be shown";
//! skipped, and said so, without privileges.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::cluster::{Hosts, agree};
use crate::counters::{SHARDS, Sums};
use crate::hosts;
use crate::member::Running;
use crate::peer::PATIENCE;
use crate::served::Kind;

/// Hosts of counters; the feeder is on one more, the last.
const HOSTS: usize = 3;

/// A member's part.
#[derive(Clone, Debug)]
struct Hosting {
    registered: bool,
    coordinator: String,
    shards: u32,
}

impl Running {
    async fn hosting(&mut self) -> Hosting {
        let told = self.peer.asks("hosting").await.expect("it runs");
        let parts: Vec<&str> = told.split(' ').collect();
        let [registered, coordinator, shards] = parts[..] else { panic!("{told:?}") };
        Hosting {
            registered: registered == "true",
            coordinator: coordinator.to_owned(),
            shards: shards.parse().expect("a count"),
        }
    }

    /// Waits until its part is like that.
    async fn hosts(&mut self, what: &str, is_so: impl Fn(&Hosting) -> bool) -> Hosting {
        let until = Instant::now() + PATIENCE;
        loop {
            let hosting = self.hosting().await;
            if is_so(&hosting) {
                return hosting;
            }
            assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}: {hosting:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// This life of the node, without its name.
    fn incarnation(&self) -> &str {
        self.me.rsplit('/').next().expect("a name has an end")
    }
}

/// Hosts with places for `places` counters' nodes, of which three run, and a feeder that feeds.
struct Fed {
    hosts: Hosts,
    members: Vec<Running>,
    feeder: Running,
}

impl Fed {
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
        let mut feeder = members.pop().expect("it is the last");
        for member in &mut members {
            member.hosts("it is registered", |hosting| hosting.registered).await;
        }
        feeder.peer.asks("feed-on").await.expect("it runs");
        let mut fed = Self { hosts, members, feeder };
        fed.serves_everywhere().await;
        Some(fed)
    }

    /// Waits until every host has its part of the shards.
    async fn serves_everywhere(&mut self) {
        let least = SHARDS / u32::try_from(self.members.len()).expect("few");
        for member in &mut self.members {
            let has_its_part = |hosting: &Hosting| hosting.registered && hosting.shards >= least;
            member.hosts("it has its part", has_its_part).await;
        }
    }

    /// What became of all that the feeder told, once every counter answers.
    async fn ends(mut self) -> Sums {
        let sums = self.feeder.peer.asks("fed").await.expect("it runs");
        let sums = Sums::parse(&sums);
        eprintln!("{sums:?}");
        assert!(sums.told > 1_000, "too little to say anything: {sums:?}");
        assert_eq!((sums.too_many, sums.disordered), (0, 0), "I4, I5, I6: {sums:?}");
        assert_eq!(sums.lost, 0, "counters that lived on have all that was told them: {sums:?}");
        sums
    }

    /// As [`ends`](Self::ends), where nobody was killed.
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
    eprintln!("a fourth host had its part after {:?}", began.elapsed());
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

/// Kills one, lets the others go on, and looks what is missing.
async fn is_killed(test: &str, with_coordinator: bool) {
    let Some(mut fed) = Fed::start(test, HOSTS).await else { return };
    let coordinator =
        fed.members[0].hosts("it knows", |it| it.coordinator != "-").await.coordinator;
    let is_it = |member: &Running| (member.incarnation() == coordinator) == with_coordinator;
    let which = fed.members.iter().position(is_it).expect("three of them");
    let killed = fed.members.remove(which);
    let incarnation = killed.incarnation().to_owned();
    let shards = fed.members.len();
    let began = Instant::now();
    killed.peer.kill().await;
    fed.serves_everywhere().await;
    eprintln!("{shards} hosts had all shards {:?} after the kill", began.elapsed());
    let sums = fed.ends().await;
    assert!(sums.gone > 0, "it held counters: {sums:?}");
    assert_eq!(sums.ended_on, BTreeSet::from([incarnation]), "only what it held is missing");
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
    assert_eq!(sums.ended_on, BTreeSet::from([incarnation]), "only what it held is missing");
}
