//! What the Replicator costs: updates, majority writes and reads, anti-entropy, fences; without
//! a network, so that what is measured is the machine.
//!
//! `cargo bench -p ostraca-ddata --bench replicator`; a filter picks groups, e.g. `-- write`.
//! Figures of an operation are of all its replicas together, on one core; a line below says how
//! they divide. "limit" is the bare data types doing the same: one edit, and the delta encoded,
//! decoded and merged at every other replica.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

#[path = "replicator/cluster.rs"]
mod cluster;
mod ratio;

use std::collections::BTreeMap;
use std::time::Duration;

use criterion::Criterion;
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::{Group, Key};
use ostraca_ddata::replicator::request::{
    Guard, ReadConsistency, ReplicatorReply, ReplicatorRequest, Update, WriteConsistency,
};
use ostraca_ddata::types::delta::Delta;
use ostraca_ddata::types::edit::Author;
use ostraca_ddata::types::{Causal, DataType, LWWMap, LWWRegister, Term};

use cluster::{Cluster, Traffic, Wire};

const WITHIN: Duration = Duration::from_secs(3);
const WRITE_MAJORITY: WriteConsistency = WriteConsistency::majority(WITHIN);
const READ_MAJORITY: ReadConsistency = ReadConsistency::majority(WITHIN);

/// Keys of the clusters that updates and reads run on.
const KEYS: usize = 10_000;

type Register = LWWRegister<u64>;
type Homes = LWWMap<u64, (u64, u64)>;

fn key(entry: usize) -> Key<Register> {
    Key::new(&format!("key-{entry:012}"))
}

fn write(key: &Key<Register>, value: u64, level: WriteConsistency) -> ReplicatorRequest {
    ReplicatorRequest::Update(Update::new(key, level, move |register| register.set(&value)))
}

/// Every key written once, and everybody quiet.
fn fill(cluster: &mut Cluster, keys: &[Key<Register>]) {
    for (at, some) in keys.chunks(1_000).enumerate() {
        if at > 0 && at % 200 == 0 {
            println!("filled {} of {} keys", at * 1_000, keys.len());
        }
        for key in some {
            cluster.ask(0, write(key, 7, WriteConsistency::Local));
        }
        cluster.run();
        cluster.replies.clear();
    }
    for _ in 0..5 {
        cluster.pass(Duration::from_secs(2));
        cluster.run();
    }
}

// ── updates and reads ──

/// The bare types on three replicas.
struct Bare {
    replicas: [BTreeMap<String, Causal<Register>>; 3],
}

impl Bare {
    fn new(keys: &[Key<Register>]) -> Self {
        let names = keys.iter().map(|key| key.name().as_str().to_owned());
        let all: BTreeMap<_, _> = names.map(|name| (name, Causal::new())).collect();
        Self { replicas: [all.clone(), all.clone(), all] }
    }

    fn update(&mut self, key: &Key<Register>, value: u64) {
        let author = Author::new(ReplicaId::new(7), HybridTimestamp::from_raw(7 << 40));
        let [mine, others @ ..] = &mut self.replicas;
        let held = mine.get_mut(key.name().as_str()).expect("it was filled");
        let edited = held.edit(author, |register| register.set(&value)).expect("never stale");
        let bytes = edited.1.encode();
        for other in others {
            let delta = Delta::decode(&bytes, &Register::shape()).expect("our own bytes");
            let held = other.get_mut(key.name().as_str()).expect("it was filled");
            held.apply(&delta).expect("in order");
        }
    }
}

/// Majority writes a second that the machine has to leave room for (spec DESIGN §6).
const WRITES_PER_SECOND: f64 = 250_000.0;

/// An operation that users ask for `in_flight` times in one batch.
struct Load {
    name: &'static str,
    goal: &'static str,
    in_flight: usize,
    wire: Wire,
    request: fn(&Key<Register>) -> ReplicatorRequest,
}

impl Load {
    fn bench(&self, c: &mut Criterion) {
        let wire = if self.wire == Wire::Encoded { "encoded" } else { "handed" };
        let name = format!("{}/{}-in-flight/{wire}", self.name, self.in_flight);
        if !ratio::wanted(&name) {
            return;
        }
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let mut cluster = Cluster::new(3, self.wire);
        fill(&mut cluster, &keys);
        let mut keys = keys.iter().cycle();
        let mut group = c.benchmark_group(&name);
        group.bench_function("ours", |b| b.iter(|| self.run(&mut cluster, &mut keys)));
        let all: Vec<_> = (0..KEYS).map(key).collect();
        let mut bare = Bare::new(&all);
        let mut all = all.iter().cycle();
        group.bench_function("limit", |b| {
            let next = all.by_ref();
            b.iter(|| next.take(self.in_flight).for_each(|key| bare.update(key, 8)));
        });
        group.finish();
        ratio::print_per(&name, self.in_flight, &["limit"]);
        if ratio::median(&name, "ours").is_some() {
            self.divide(&name, &mut cluster, &mut keys);
        }
    }

    fn run<'k>(&self, cluster: &mut Cluster, keys: &mut impl Iterator<Item = &'k Key<Register>>) {
        for key in keys.by_ref().take(self.in_flight) {
            cluster.ask(0, (self.request)(key));
        }
        cluster.run();
        assert_eq!(cluster.replies.len(), self.in_flight, "every request has its reply");
        assert!(cluster.replies.drain(..).all(|reply| reply.is_ok()), "nothing is refused");
    }

    /// Who of the replicas works for how long, and what goes over the wire.
    fn divide<'k>(
        &self,
        name: &str,
        cluster: &mut Cluster,
        keys: &mut impl Iterator<Item = &'k Key<Register>>,
    ) {
        let (mut origin, mut others) = (Vec::new(), Vec::new());
        cluster.traffic = Traffic::default();
        let rounds = (20_000 / self.in_flight).max(20);
        cluster.take_busy();
        for _ in 0..rounds {
            self.run(cluster, keys);
            let busy = cluster.take_busy();
            origin.push(busy[0]);
            others.push(busy[1]);
        }
        let least = (ratio::least(&origin), ratio::least(&others));
        let (operations, per) = ((rounds * self.in_flight) as f64, self.in_flight as f64);
        let (origin, other) = (ratio::middle(origin) / per, ratio::middle(others) / per);
        println!(
            "{name}: here {} ({:.0}/s{}; least {}), at each other replica {} (least {}), \
             {:.2} messages and {:.0} B each",
            ratio::time(origin),
            1e9 / origin,
            self.goal,
            ratio::time(least.0 / per),
            ratio::time(other),
            ratio::time(least.1 / per),
            cluster.traffic.messages as f64 / operations,
            cluster.traffic.bytes as f64 / operations,
        );
    }
}

/// A quarter of a million majority writes a second for two seconds of the cluster's time, with
/// gossip as busy as it then is: what anti-entropy adds to each.
fn sustained(count: usize) {
    let name = format!("sustained-250k/{count}");
    println!("filling three replicas with {count} keys");
    let keys: Vec<_> = (0..count).map(key).collect();
    let mut cluster = Cluster::new(3, Wire::Encoded);
    fill(&mut cluster, &keys);
    let mut keys = keys.iter().cycle();
    let differed = |cluster: &Cluster| cluster.node(0).stats().gossip_differed;
    let before = differed(&cluster);
    cluster.traffic = Traffic::default();
    cluster.take_busy();
    const BATCHES: usize = 500;
    for _ in 0..BATCHES {
        for key in keys.by_ref().take(1_000) {
            cluster.ask(0, write(key, 8, WRITE_MAJORITY));
        }
        cluster.run();
        assert!(cluster.replies.drain(..).all(|reply| reply.is_ok()), "nothing is refused");
        cluster.pass(Duration::from_millis(4));
    }
    let per = |sum: f64| sum / (BATCHES * 1_000) as f64;
    let busy = cluster.take_busy().into_iter().map(|busy| per(busy.as_secs_f64() * 1e9));
    let busy: Vec<String> = busy.map(ratio::time).collect();
    println!(
        "{name}: a write costs {} at the three replicas (≤ {}), {:.0} B; comparisons that \
         differed: {}",
        busy.join(", "),
        ratio::time(1e9 / WRITES_PER_SECOND),
        per(cluster.traffic.bytes as f64),
        differed(&cluster) - before,
    );
}

// ── anti-entropy ──

fn anti_entropy(c: &mut Criterion, count: usize) {
    println!("filling two replicas with {count} keys");
    let keys: Vec<_> = (0..count).map(key).collect();
    let mut cluster = Cluster::new(2, Wire::Encoded);
    let before = ratio::resident();
    fill(&mut cluster, &keys);
    if count > 100_000 {
        let grown = ratio::resident().saturating_sub(before) as f64;
        println!(
            "anti-entropy/memory: {:.0} B per key and replica at {count} keys",
            grown / 2.0 / count as f64
        );
    }
    equal(c, &mut cluster, count);
    for differing in [1, 10, 100] {
        if differing <= count {
            differ(&mut cluster, &keys, differing);
        }
    }
}

/// Two replicas that hold the same, each asking the other once.
fn equal(c: &mut Criterion, cluster: &mut Cluster, count: usize) {
    let differed = cluster.node(0).stats().gossip_differed;
    let name = format!("anti-entropy/equal/{count}");
    let mut group = c.benchmark_group(&name);
    cluster.traffic = Traffic::default();
    let mut rounds = 0;
    group.bench_function("ours", |b| {
        b.iter(|| {
            rounds += 2;
            cluster.pass(Duration::from_secs(2));
            cluster.run();
        });
    });
    group.finish();
    ratio::print_per(&name, 2, &[]);
    if rounds > 0 {
        let per = |sum: u64| sum as f64 / f64::from(rounds);
        let Traffic { messages, bytes } = cluster.traffic;
        println!(
            "{name}: {:.1} messages (2: one each way), {:.0} B both ways",
            per(messages),
            per(bytes)
        );
    }
    assert_eq!(cluster.node(0).stats().gossip_differed, differed, "they are equal");
}

/// What the most keys cost when nothing differs, against what one key costs.
fn no_scan(counts: &[usize]) {
    let [one, .., most] = counts else { return };
    let median = |count: &usize| ratio::median(&format!("anti-entropy/equal/{count}"), "ours");
    if let (Some(least), Some(most_took)) = (median(one), median(most)) {
        let ratio = most_took / least;
        println!("anti-entropy/equal: {most} keys cost {ratio:.1} times {one} (no scan: about 1)");
    }
}

/// One replica misses some changes for good; then one comparison mends it.
fn differ(cluster: &mut Cluster, keys: &[Key<Register>], differing: usize) {
    let (mut times, mut traffic) = (Vec::new(), Traffic::default());
    const REPEATS: usize = 7;
    let changed: Vec<_> = keys.iter().step_by(keys.len() / differing).take(differing).collect();
    for _ in 0..REPEATS {
        cluster.cut_off = Some(1);
        for key in &changed {
            cluster.ask(0, write(key, 9, WriteConsistency::Local));
        }
        for _ in 0..20 {
            cluster.run();
            cluster.pass(Duration::from_secs(2));
        }
        cluster.cut_off = None;
        cluster.traffic = Traffic::default();
        cluster.take_busy();
        let mended = |cluster: &Cluster| {
            let holds = |key: &&Key<Register>| {
                cluster.node(0).peek(key.name()) == cluster.node(1).peek(key.name())
            };
            changed.iter().all(holds)
        };
        while !mended(cluster) {
            cluster.pass(Duration::from_millis(20));
            cluster.run();
        }
        times.push(cluster.take_busy().into_iter().sum());
        traffic = cluster.traffic;
    }
    println!(
        "anti-entropy/{differing}-differ/{}: {} at both, {} messages, {} B",
        keys.len(),
        ratio::time(ratio::middle(times)),
        traffic.messages,
        traffic.bytes,
    );
}

// ── guarded groups ──

const SHARDS: u64 = 1_000;

fn term(number: u64, owner: &Cluster, node: usize) -> Term {
    Term { number, owner: owner.node(node).id() }
}

/// Takes a term and says what the group held.
fn fence(cluster: &mut Cluster, node: usize, group: &Group, number: u64) -> usize {
    let term = term(number, cluster, node);
    cluster.ask(node, ReplicatorRequest::Fence { group: group.clone(), term, within: WITHIN });
    cluster.run();
    match cluster.replies.pop() {
        Some(Ok(ReplicatorReply::Fenced { values, .. })) => values.len(),
        other => panic!("the term was to be had: {other:?}"),
    }
}

/// Where the homes of all shards stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    OneMap,
    KeyEach,
}

impl Layout {
    /// All homes written under a term, in one batch.
    fn assign(self, cluster: &mut Cluster, node: usize, group: &Group, number: u64) {
        let guard = Guard { group: group.clone(), term: term(number, cluster, node) };
        match self {
            Self::OneMap => {
                let key = Key::<Homes>::new("shard-homes");
                let update = Update::new(&key, WRITE_MAJORITY, move |homes| {
                    (0..SHARDS).try_for_each(|shard| homes.insert(&shard, &(number, shard)))
                });
                cluster.ask(node, ReplicatorRequest::Update(update.guarded(guard)));
            }
            Self::KeyEach => {
                for shard in 0..SHARDS {
                    let key = Key::<Register>::new(&format!("shard-{shard:04}"));
                    let update =
                        Update::new(&key, WRITE_MAJORITY, move |home| home.set(&(number + shard)));
                    cluster.ask(node, ReplicatorRequest::Update(update.guarded(guard.clone())));
                }
            }
        }
        cluster.run();
        assert!(cluster.replies.drain(..).all(|reply| reply.is_ok()), "the term holds");
    }
}

fn guarded(c: &mut Criterion, layout: Layout) {
    let label = if layout == Layout::OneMap { "one-map" } else { "a-key-each" };
    let group = Group::new("shard-");
    let mut cluster = Cluster::new(3, Wire::Encoded);
    let mut number = 1;
    fence(&mut cluster, 0, &group, number);
    layout.assign(&mut cluster, 0, &group, number);

    let name = format!("guarded/1000-homes/{label}");
    let mut bench = c.benchmark_group(&name);
    bench.bench_function("ours", |b| {
        b.iter(|| layout.assign(&mut cluster, 0, &group, number));
    });
    bench.finish();
    ratio::print(&name, &[]);
    cluster.traffic = Traffic::default();
    layout.assign(&mut cluster, 0, &group, number);
    report(&name, cluster.traffic);

    let name = format!("guarded/fence-1000-equal/{label}");
    let mut bench = c.benchmark_group(&name);
    bench.bench_function("ours", |b| {
        b.iter(|| {
            number += 1;
            fence(&mut cluster, 1, &group, number)
        });
    });
    bench.finish();
    ratio::print(&name, &[]);
    cluster.traffic = Traffic::default();
    number += 1;
    fence(&mut cluster, 1, &group, number);
    report(&name, cluster.traffic);
    recover(&mut cluster, layout, number, &group, label);
}

/// The next owner has missed everything and recovers it.
fn recover(cluster: &mut Cluster, layout: Layout, mut number: u64, group: &Group, label: &str) {
    let mut times = Vec::new();
    for round in 0..21 {
        let (owner, next) = (round % 2, (round + 1) % 2);
        cluster.cut_off = Some(next);
        number += 1;
        fence(cluster, owner, group, number);
        layout.assign(cluster, owner, group, number);
        cluster.cut_off = None;
        cluster.traffic = Traffic::default();
        cluster.take_busy();
        number += 1;
        fence(cluster, next, group, number);
        times.push(cluster.take_busy().into_iter().sum());
    }
    let name = format!("guarded/fence-and-recover-1000/{label}");
    println!("{name}: {} at all three", ratio::time(ratio::middle(times)));
    report(&name, cluster.traffic);
}

fn report(name: &str, traffic: Traffic) {
    println!("{name}: {} messages, {} B", traffic.messages, traffic.bytes);
}

fn main() {
    let mut c = ratio::criterion();
    let batch = if ratio::measuring() { 1_024 } else { 16 };
    for wire in [Wire::Handed, Wire::Encoded] {
        for in_flight in [1, batch] {
            let update: fn(&Key<Register>) -> ReplicatorRequest =
                |key| write(key, 8, WriteConsistency::Local);
            Load { name: "update-local", goal: "", in_flight, wire, request: update }.bench(&mut c);
            let update: fn(&Key<Register>) -> ReplicatorRequest =
                |key| write(key, 8, WRITE_MAJORITY);
            let goal = if in_flight > 1 { " (≥ 250,000/s)" } else { "" };
            Load { name: "write-majority", goal, in_flight, wire, request: update }.bench(&mut c);
            let read: fn(&Key<Register>) -> ReplicatorRequest = |key| ReplicatorRequest::Get {
                key: key.name().clone(),
                shape: None,
                consistency: READ_MAJORITY,
            };
            Load { name: "read-majority", goal: "", in_flight, wire, request: read }.bench(&mut c);
        }
    }
    if ratio::wanted("sustained") {
        sustained(if ratio::measuring() { 100_000 } else { 1_000 });
    }
    if ratio::wanted("guarded") {
        guarded(&mut c, Layout::OneMap);
        guarded(&mut c, Layout::KeyEach);
    }
    let counts: &[usize] = if ratio::measuring() { &[1, 10_000, 1_000_000] } else { &[1, 100] };
    for &count in counts.iter().filter(|_| ratio::wanted("anti-entropy")) {
        anti_entropy(&mut c, count);
    }
    no_scan(counts);
    c.final_summary();
}
