//! Moves of shards because a node joins, leaves, or is killed with the coordinator on it, while
//! each of their entities is asked 40 times a second. Limit: the longest wait of the same asks
//! while nothing moves.

use std::time::{Duration, Instant};

use ostraca::ddata::id::ReplicaId;
use ostraca::prelude::*;

use crate::figures::{Row, Spans, runs, span};
use crate::here::sum;
use crate::peers::{Cluster, Peer};
use crate::probes::{Patience, Watched, watch};
use crate::subject::{Subject, one_per_shard};
use crate::{Error, SHARDS, progress};

const ROUNDS: usize = 3;
const TYPE: &str = "moving";
const QUIET: Duration = Duration::from_secs(2);
/// Longest wait for any event.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);

/// The figures of all rounds.
#[derive(Default)]
struct Rounds {
    quiet: Vec<Watched>,
    joined: Vec<Watched>,
    balanced: Vec<Duration>,
    left: Vec<Watched>,
    drained: Vec<Duration>,
    killed: Vec<Watched>,
    coordinator: Vec<Duration>,
    homes: Vec<Duration>,
}

struct Round {
    cluster: Cluster,
    region: ShardRegion<Subject>,
    entities: Vec<EntityRef<Subject>>,
}

pub(crate) async fn run() -> Result<(), Error> {
    let mut rounds = Rounds::default();
    for round in 1..=ROUNDS {
        progress(&format!("round {round} of {ROUNDS}"));
        Round::start().await?.run(&mut rounds).await?;
    }
    rounds.print();
    Ok(())
}

impl Round {
    async fn start() -> Result<Self, Error> {
        let mut cluster = Cluster::start(2).await?;
        let region = cluster.host(TYPE).await?;
        let entities = one_per_shard(&region);
        sum(&entities).await?; // starts all entities
        Ok(Self { cluster, region, entities })
    }

    async fn run(mut self, rounds: &mut Rounds) -> Result<(), Error> {
        let entities = self.entities.clone();
        let quiet = async {
            tokio::time::sleep(QUIET).await;
            Ok(())
        };
        rounds.quiet.push(watch(&entities, Patience::Normal, quiet).await?.1);
        let seed = self.cluster.peers[0].address.clone();
        let joiner = Peer::start(&[&seed]).await?;
        let (took, seen) = watch(&entities, Patience::Normal, self.join(joiner)).await?;
        rounds.balanced.push(took);
        rounds.joined.push(seen);
        let (took, seen) = watch(&entities, Patience::Normal, self.leave()).await?;
        rounds.drained.push(took);
        rounds.left.push(seen);
        let ((coordinator, homes), seen) = watch(&entities, Patience::Short, self.kill()).await?;
        rounds.coordinator.push(coordinator);
        rounds.homes.push(homes);
        rounds.killed.push(seen);
        self.cluster.stop().await;
        Ok(())
    }

    /// Returns the number of shards on a node, as far as this node knows.
    fn shards_on(&self, incarnation: u64) -> usize {
        let homes =
            self.entities.iter().filter_map(|entity| self.region.shard_home(entity.shard()));
        homes.filter(|home| home.replica().get() == incarnation).count()
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            if Instant::now() > until {
                return Err(format!("not within {PATIENCE:?}: {what}").into());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A fourth node starts the type. Returns the time until it has its quarter of the shards.
    async fn join(&mut self, mut joiner: Peer) -> Result<Duration, Error> {
        let begun = Instant::now();
        joiner.host(TYPE).await?;
        let quarter = SHARDS as usize / 4;
        self.until("the new node has its quarter", || {
            self.shards_on(joiner.incarnation) >= quarter
        })
        .await?;
        let took = begun.elapsed();
        self.cluster.peers.push(joiner);
        Ok(took)
    }

    /// One of four nodes leaves in order. Returns the time until its process has ended.
    async fn leave(&mut self) -> Result<Duration, Error> {
        let mut leaver = self.cluster.peers.remove(1);
        let begun = Instant::now();
        leaver.order("leave").await?;
        Ok(begun.elapsed())
    }

    /// Kills the coordinator's process. Returns the times until another coordinator acts, and until
    /// it has given a home to every shard of the dead node.
    async fn kill(&mut self) -> Result<(Duration, Duration), Error> {
        let killed = self.coordinator().await?.ok_or("there is a coordinator")?;
        let at = self.cluster.peers.iter().position(|peer| peer.incarnation == killed);
        let mut peer = self.cluster.peers.remove(at.ok_or("the oldest is another process")?);
        let begun = Instant::now();
        peer.process.child.kill().await?;
        while self.coordinator().await?.is_none_or(|now| now == killed) {
            if begun.elapsed() > PATIENCE {
                return Err("no other coordinator".into());
            }
            tokio::time::sleep(LOOK).await;
        }
        let coordinator = begun.elapsed();
        self.until("all shards have homes", || self.shards_on(killed) == 0).await?;
        Ok((coordinator, begun.elapsed()))
    }

    async fn coordinator(&self) -> Result<Option<u64>, Error> {
        let types = self.cluster.node.sharding().types().await?;
        Ok(types.iter().find_map(|of_type| of_type.coordinator).map(ReplicaId::get))
    }
}

/// Returns a percentile of each round.
fn each(rounds: &[Watched], spans: fn(&Watched) -> &Spans, percent: usize) -> Vec<Duration> {
    rounds.iter().map(|watched| spans(watched).at(percent)).collect()
}

fn faults(rounds: &[Watched]) -> String {
    let sum = |figure: fn(&Watched) -> u64| rounds.iter().map(figure).sum::<u64>();
    let moved: Vec<String> = rounds.iter().map(|watched| watched.moved.len().to_string()).collect();
    let (failed, wrong) = (sum(|watched| watched.failed), sum(|watched| watched.wrong));
    let answers = sum(|watched| watched.answers);
    format!("{} moved; of {answers} asks {failed} failed, {wrong} wrong", moved.join(", "))
}

impl Rounds {
    fn print(&self) {
        let stayed = |watched: &Watched| watched.stayed.at(100);
        let quiet: Vec<Duration> = self.quiet.iter().map(stayed).collect();
        let quiet = format!("nothing moves: longest {}", runs(&quiet));
        print(
            "4th node starts 1,000 shards, until balanced",
            "< 2 s, 250",
            &self.balanced,
            faults(&self.joined),
        );
        print_pauses(&self.joined, &quiet);
        print(
            "one of four leaves, until it has ended",
            "0 failed",
            &self.drained,
            faults(&self.left),
        );
        print_pauses(&self.left, &quiet);
        print("coordinator killed, until another acts", "-", &self.coordinator, String::new());
        print("    until all its shards have new homes", "-", &self.homes, String::new());
        let first = each(&self.killed, |watched| &watched.first, 99);
        let most = each(&self.killed, |watched| &watched.first, 100);
        print(
            "    first answer of a moved entity, p99",
            "<= 6 s",
            &first,
            format!("the last {}", runs(&most)),
        );
        let stayed = each(&self.killed, |watched| &watched.stayed, 100);
        print("    longest wait of one that stayed", "none", &stayed, quiet);
    }
}

fn print(what: &str, goal: &str, spans: &[Duration], limit: String) {
    Row { what, goal, ours: runs(spans), limit }.print();
}

/// Prints the longest wait of the moved entities.
fn print_pauses(rounds: &[Watched], quiet: &str) {
    let p99 = each(rounds, |watched| &watched.moved, 99);
    let most = Spans::of(each(rounds, |watched| &watched.moved, 100)).at(100);
    let limit = format!("the longest of all {}; {quiet}", span(most));
    print("    longest wait of a moved entity, p99", "< 50 ms", &p99, limit);
}
