//! Fencing tokens of an entity never go back: a later instance has a higher token, also while a
//! forced configuration spreads from node to node
//! (docs/protocol/sharding.md#fencing-tokens-never-go-back).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::fencing::FencingToken;
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca_ddata::sim::{RandomStream, Seed, seeds};
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan, Step};

const NODES: usize = 3;
const SHARD: ShardId = ShardId::new(0);

/// The tokens that a system outside of the cluster has seen, in order, for each entity.
type Seen = Arc<Mutex<BTreeMap<EntityId, Vec<FencingToken>>>>;

struct Writer {
    seen: Seen,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Write,
}

impl Entity for Writer {
    type Message = Command;

    async fn handle(&mut self, Command::Write: Command, cx: &mut Context<'_, Self>) {
        let token = cx.fencing_token();
        assert_eq!(token.generation(), cx.generation());
        self.seen.lock().expect("nobody panicked").entry(cx.id().clone()).or_default().push(token);
    }
}

struct Outside {
    nodes: Nodes<Writer>,
    seen: Seen,
}

impl Outside {
    fn new(nodes: usize, shards: u32) -> Self {
        let seen = Seen::default();
        let factory = |_, _| {
            let seen = Arc::clone(&seen);
            move |_: &EntityId| Writer { seen: Arc::clone(&seen) }
        };
        let nodes = Nodes::new(&Plan { nodes, shards, ..Plan::default() }, factory);
        Self { nodes, seen }
    }

    fn tell(&self, from: usize, id: &str) {
        let _full = self.nodes.nodes[from].region.entity(id).tell(Command::Write);
    }

    /// Lets the entity write once and returns the token of that write. Control messages stay under
    /// way.
    fn write(&mut self, from: usize, id: &str) -> FencingToken {
        self.tell(from, id);
        self.nodes.settle_without_control();
        let seen = self.seen.lock().expect("nobody panicked");
        *seen[&EntityId::new(id).expect("a name")].last().expect("it was handled")
    }

    fn went_back(&self) -> Option<String> {
        let seen = self.seen.lock().expect("nobody panicked");
        let back = seen.iter().find(|(_, tokens)| !tokens.is_sorted())?;
        Some(format!("{}: {:?}", back.0, back.1))
    }
}

#[test]
fn fencing_token_rises_with_moves_and_forced_configurations() {
    let mut it = Outside::new(2, 1);
    it.nodes.host(0, 0);
    let first = it.write(0, "a");
    assert_eq!(first.cluster_generation(), 1);
    assert_eq!(it.write(0, "a"), first, "the token changed within one tenure");
    it.nodes.host(0, 1);
    let second = it.write(1, "a");
    assert!(second > first && second.cluster_generation() == 1);
    it.nodes.recover();
    it.nodes.install_at(1);
    let third = it.write(1, "a");
    assert_eq!((third.cluster_generation(), third.generation()), (2, second.generation()));
    assert_eq!(it.nodes.all_lost(), 0);
}

#[test]
fn next_home_waits_for_the_cluster_generation_of_the_old_home() {
    for long in [false, true] {
        let mut it = Outside::new(2, 1);
        it.nodes.host(0, 1);
        it.nodes.decide(SHARD, Some(0)); // under way when the cluster generation rises
        it.nodes.recover();
        it.nodes.install_at(1);
        let before = it.write(1, "a");
        assert_eq!(before.cluster_generation(), 2);
        if long {
            // Many waiting messages make a long payload, which the next home fetches in parts.
            it.nodes.nodes[1].world.leased.store(false, std::sync::atomic::Ordering::SeqCst);
            (0..4_000).for_each(|id| it.tell(1, &format!("b{id}")));
        }
        it.nodes.settle();
        assert_eq!(it.nodes.fetched(), 0, "the next home waits for the new configuration");
        it.nodes.install_at(0);
        it.nodes.send_orders(SHARD);
        it.nodes.settle();
        let after = it.write(0, "a");
        assert!(after > before, "{after} after {before}; long: {long}");
        assert_eq!(it.nodes.fetched() > 0, long);
    }
}

/// A random schedule of moves, forced configurations that spread, and at most one crash.
fn run(seed: Seed) -> Outside {
    let (mut it, mut chance) =
        (Outside::new(NODES, 2), RandomStream::split(seed.value, "tokens", 0));
    for _ in 0..600 {
        let (steps, at) = (it.nodes.possible(), chance.index(NODES));
        match chance.below(14) {
            0..3 => {
                let id: &&str = chance.pick(&["a", "b", "c"]);
                it.tell(at, id);
            }
            3 if it.nodes.nodes[at].up => {
                it.nodes.decide(ShardId::new(chance.below(2) as u32), Some(at));
            }
            4 if chance.chance(0.3) => it.nodes.recover(),
            5 => it.nodes.install_at(at),
            6 => (0..2).for_each(|shard| it.nodes.send_orders(ShardId::new(shard))),
            7 if at == 2 && it.nodes.nodes[at].up && chance.chance(0.02) => it.nodes.crash(at),
            _ if !steps.is_empty() => {
                let step: Step = *chance.pick(&steps);
                it.nodes.step(step, chance.index(1 << 20));
            }
            _ => {}
        }
    }
    it
}

#[test]
fn fencing_tokens_never_go_back() {
    let (mut runs, mut tokens, mut holders, mut raised) = (0, 0, 0, 0);
    for seed in seeds("fencing_tokens_never_go_back", 200) {
        let it = run(seed);
        runs += 1;
        if let Some(why) = it.went_back() {
            panic!("{why}\n{}", seed.replay_command());
        }
        for seen in it.seen.lock().expect("nobody panicked").values_mut() {
            tokens += seen.len();
            seen.dedup();
            holders += seen.len();
            let alone = |pair: &&[FencingToken]| pair[0].generation() == pair[1].generation();
            raised += seen.windows(2).filter(alone).count();
        }
    }
    let often = tokens > 20 * runs && holders > 5 * runs && raised > runs;
    assert!(often, "{runs} runs: {tokens} effects, {holders} tokens, {raised} of one decision");
}
