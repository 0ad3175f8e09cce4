//! Messages to entities of other nodes, which are other processes. Limit: raw TCP to another
//! process, with the same encoding and queues.

use std::collections::VecDeque;

use ostraca::prelude::*;

use crate::figures::{Rate, Row, Spans, Watch, beside, median, rate, span, times};
use crate::here::{asks, round_trips, sum};
use crate::limits::Choice::{self, Any, Own};
use crate::peers::{Cluster, Peer, start};
use crate::places::Places;
use crate::subject::{self, Command, Subject, note, one_per_shard};
use crate::{Error, RUN, RUNS, limits};

const ROUND_TRIPS: usize = 4_000;
const TARGETS: usize = 16;
/// Messages between two asks of one entity; twice as many fit into its mailbox.
const WINDOW: usize = 4_000;

type Entities = Vec<EntityRef<Subject>>;

/// Measures asks in a cluster of three processes.
pub(crate) async fn run() -> Result<(), Error> {
    let mut cluster = Cluster::start(2).await?;
    let region = cluster.host("there").await?;
    let all = one_per_shard(&region);
    sum(&all).await?; // starts all entities
    let (here, there) = by_home(&region, &cluster.node, &all);
    ask_alone(&cluster, &there[0]).await?;
    let processes = &cluster.processes();
    ask(processes, &there, Own, "ask elsewhere of 3 nodes, 1,024 in flight", &SHARDED).await?;
    ask(processes, &here, Own, "ask here of 3 nodes, 1,024 in flight", &SHARDED).await?;
    ask(processes, &all, Own, "ask everywhere of 3 nodes, 1,024 in flight", &SHARDED).await?;
    ask(processes, &all, Any, "    the same, any of 1,000 entities", &SHARDED).await?;
    cluster.stop().await;
    Ok(())
}

/// Splits the entities into those of this node and the others.
fn by_home(region: &ShardRegion<Subject>, node: &Node, all: &Entities) -> (Entities, Entities) {
    let me = node.id().incarnation;
    let lives_here = |entity: &EntityRef<Subject>| {
        region.shard_home(entity.shard()).is_some_and(|home| home.replica() == me)
    };
    all.iter().cloned().partition(lives_here)
}

/// Measures asks with all three nodes in this process, also over loopback. Then no node waits for
/// the kernel to take a core from another one, as three processes do that share fewer cores.
pub(crate) async fn run_together() -> Result<(), Error> {
    let first = start(&[]).await?;
    let seed = first.addresses()[0].to_string();
    let nodes = [start(&[&seed]).await?, first, start(&[&seed]).await?];
    let region = subject::start(&nodes[0], "together").await?;
    for node in &nodes[1..] {
        subject::start(node, "together").await?;
    }
    let all = one_per_shard(&region);
    sum(&all).await?;
    let (_, there) = by_home(&region, &nodes[0], &all);
    ask(&[], &there, Own, "ask elsewhere, 3 nodes in 1 process", &SHARDED).await?;
    ask(&[], &all, Own, "ask everywhere, 3 nodes in 1 process", &SHARDED).await?;
    ask(&[], &all, Any, "    the same, any of 1,000 entities", &SHARDED).await?;
    for node in nodes {
        node.stop().await;
    }
    Ok(())
}

// ── Messages without answers ──

/// Measures messages to another process that hosts all entities, from this one, which only routes.
pub(crate) async fn run_tells() -> Result<(), Error> {
    let mut peer = Peer::start(&[]).await?;
    let node = start(&[&peer.address]).await?;
    peer.host("told").await?;
    let region = node.sharding().start_proxy::<Subject>("told").await?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    let all = one_per_shard(&region);
    sum(&all).await?;
    let others: Vec<u32> = peer.process.child.id().into_iter().collect();
    for _ in 0..RUNS {
        ours.push(tells(&all[..TARGETS], others.clone()).await?);
        limit.push(limits::tells().await?);
    }
    let (ours, limit) = (median(ours), median(limit));
    Row {
        what: "tell elsewhere, 1 sender, 100 B, 2 processes",
        goal: ">= 2.5 M/s, >= 0.6",
        ours: rate(ours),
        limit: beside(ours, limit, "raw TCP"),
    }
    .print();
    let (others, some) = (&others, &all[..TARGETS]);
    ask(others, &all[..1], Own, "ask elsewhere, 1,024 in flight, 1 entity", &REMOTE).await?;
    ask(others, some, Own, "ask elsewhere, 1,024 in flight, 16 entities", &REMOTE).await?;
    ask(others, &all, Own, "ask elsewhere, 1,024 in flight, 1,000 entities", &REMOTE).await?;
    ask(others, &all, Any, "    the same, any of 1,000 entities", &REMOTE).await?;
    node.stop().await;
    Ok(())
}

/// One sender. Mailboxes of other nodes exert no back-pressure on it, so it asks each entity from
/// time to time, and is never two windows ahead of an answer.
async fn tells(entities: &[EntityRef<Subject>], others: Vec<u32>) -> Result<Rate, Error> {
    let before = sum(entities).await?;
    let (watch, mut told) = (Watch::start(others), 0);
    let mut asked = VecDeque::with_capacity(entities.len());
    'run: loop {
        for entity in entities {
            if asked.len() == entities.len()
                && let Some(asked) = asked.pop_front()
            {
                match asked.await {
                    // That ask was not sent: wait for all sent messages instead.
                    Err(AskError::NotSent(full)) if full.is_full() => {
                        sum(entities).await?;
                    }
                    answer => {
                        answer?;
                    }
                }
            }
            if watch.elapsed() > RUN {
                break 'run;
            }
            for _ in 0..WINDOW {
                if entity.tell(note(told)).is_err() {
                    entity.tell_wait(note(told)).await?;
                }
                told += 1;
            }
            entity.tell_wait(Command::Add(0)).await?;
            asked.push_back(entity.ask_within(secs(30), Command::Get));
        }
    }
    let counted = sum(entities).await? - before;
    assert_eq!(counted, told, "every message is handled");
    Ok(watch.stop(told))
}

// ── Asks ──

/// Measures single asks with each process on cores of its own, as on two hosts, and with the
/// placement of the kernel.
async fn ask_alone(cluster: &Cluster, entity: &EntityRef<Subject>) -> Result<(), Error> {
    let apart = (true, "ask elsewhere, one at a time, p50", "<= 1.4 x");
    let placed = (false, "    as the kernel places it", "-");
    for (apart, what, goal) in [apart, placed] {
        if apart && Places::apart(cluster.processes()).is_none() {
            continue; // too few cores to choose
        }
        let (mut ours, mut limit) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let places = apart.then(|| Places::apart(cluster.processes()));
            ours.extend(round_trips(entity, ROUND_TRIPS).await?);
            drop(places);
            limit.extend(limits::round_trips(apart).await?);
        }
        let (ours, limit) = (Spans::of(ours), Spans::of(limit));
        let p99 = span(ours.at(99));
        let row = Row {
            what,
            goal,
            ours: span(ours.at(50)),
            limit: format!("p99 {p99}; {}", times(ours.at(50), limit.at(50), "raw TCP")),
        };
        if apart { row.print() } else { row.print_below() }
    }
    Ok(())
}

/// Goals for asks in flight.
struct Goals {
    rate: &'static str,
    p99: &'static str,
}

const REMOTE: Goals = Goals { rate: ">= 800,000/s", p99: "-" };
const SHARDED: Goals = Goals { rate: ">= 700,000/s", p99: "< 5 ms" };

async fn ask(
    processes: &[u32],
    entities: &[EntityRef<Subject>],
    choice: Choice,
    what: &str,
    goals: &Goals,
) -> Result<(), Error> {
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    let (mut spans, mut limit_spans) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (rate, took) = asks(entities, choice, processes.to_vec()).await?;
        ours.push(rate);
        spans.push(took);
        let (rate, took) = limits::asks().await?;
        limit.push(rate);
        limit_spans.push(took);
    }
    let (ours, limit) = (median(ours), median(limit));
    let p99 = [&spans, &limit_spans].map(|spans| span(limits::p99(spans)));
    Row { what, goal: goals.rate, ours: rate(ours), limit: beside(ours, limit, "raw TCP, 1 task") }
        .print();
    let [ours, limit] = p99;
    Row { what: "    its p99", goal: goals.p99, ours, limit: format!("raw TCP, 1 task {limit}") }
        .print_below();
    Ok(())
}
