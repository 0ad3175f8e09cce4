//! Rare traces on the real Replicator: four coordinators one after the other, two of which leave a
//! decision on one replica only; and a home key that is removed.

use std::sync::Arc;
use std::time::Duration;

use ostraca::sharding::bug::{Bug, Canary};
use ostraca::sharding::ids::{RegionId, ShardId};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca_ddata::sim::{Faults, LaneRule, NodeIndex, Setup, Simulation};

use super::Sim;
use super::node::{Command, Node, Weakened, replica};
use super::watch::Watch;

const SHARD: ShardId = ShardId::new(0);

struct Stage {
    sim: Sim,
    seen: Option<String>,
}

impl Stage {
    /// Three nodes; the shard lives on the last one, by a coordinator on the first.
    fn new(rule: Canary) -> Self {
        let setup =
            Setup { faults: Faults::none(), lanes: vec![LaneRule::STREAM; 4], ..Setup::new(1, 3) };
        let weakened = Weakened { rule, ..Weakened::default() };
        let sim = Simulation::new(setup, Watch::default(), move |boot| Node::new(&boot, weakened));
        let mut stage = Self { sim, seen: None };
        let id = EpochId { generation: 1, number: 1 };
        let members = (0..3).map(|node| replica(node, 1)).collect();
        let epoch = Epoch::founding(id, members, EpochSettings::default()).expect("a valid one");
        let epoch = Arc::new(epoch);
        (0..3).for_each(|node| stage.command(node, Command::Found(epoch.clone())));
        stage.acts(0);
        stage.command(0, Command::CoordinatorAt(replica(0, 1)));
        stage.command(0, Command::Want(SHARD));
        stage.run(8_000);
        stage.moves(0, 2);
        stage.run(8_000);
        stage
    }

    fn command(&mut self, node: usize, command: Command) {
        self.sim.command(NodeIndex::new(node), command);
    }

    fn run(&mut self, millis: u64) {
        if self.seen.is_none() {
            let ran = self.sim.try_run_for(Duration::from_millis(millis));
            self.seen = ran.err().map(|failure| failure.reason.clone());
        }
    }

    fn acts(&mut self, node: usize) {
        self.command(node, Command::Coordinate(true));
        self.run(1_000);
    }

    fn moves(&mut self, coordinator: usize, to: usize) {
        let to = Some(RegionId::new(replica(to, 1)));
        self.command(coordinator, Command::MoveTo(SHARD, to));
        self.run(300);
    }

    fn stops(&mut self, node: usize) {
        self.command(node, Command::Coordinate(false));
        self.run(10);
    }

    fn splits<const GROUPS: usize>(&mut self, groups: [&[usize]; GROUPS]) {
        self.sim.heal();
        self.sim.partition(groups);
    }
}

fn two_decisions_that_one_replica_holds(rule: Canary) -> Stage {
    let mut stage = Stage::new(rule);
    stage.splits([&[0], &[1, 2]]);
    stage.moves(0, 0);
    stage.stops(0);
    stage.acts(1);
    stage.splits([&[0], &[1], &[2]]);
    stage.moves(1, 1);
    stage.stops(1);
    stage.splits([&[0, 2], &[1]]);
    stage.acts(2);
    stage.run(40_000);
    stage.stops(2);
    stage.splits([&[0], &[1, 2]]);
    stage.acts(1);
    stage.run(40_000);
    stage
}

#[test]
fn a_takeover_that_does_not_write_what_it_read_makes_two_hosts_on_the_real_replicator() {
    let weak = two_decisions_that_one_replica_holds(Canary::with(Bug::NoRewrite));
    let seen = weak.seen.unwrap_or_default();
    assert!(seen.contains("shard 0 at "), "{seen:?}");
    assert_eq!(two_decisions_that_one_replica_holds(Canary::none()).seen, None);
}

/// The shard's only host hears of nothing, while two others decide that it is to live nowhere, and
/// then that it is to live with one of them.
fn a_home_for_what_lives_nowhere(rule: Canary) -> Stage {
    let mut stage = Stage::new(rule);
    stage.splits([&[0, 1], &[2]]);
    stage.command(0, Command::MoveTo(SHARD, None));
    stage.run(300);
    stage.stops(0);
    stage.acts(1);
    stage.command(1, Command::CoordinatorAt(replica(1, 1)));
    stage.command(1, Command::Want(SHARD));
    stage.run(8_000);
    stage
}

/// The kernel refuses to remove a key under guard; this is what would happen if it did not.
#[test]
fn a_home_key_that_is_removed_makes_two_hosts() {
    let weak = a_home_for_what_lives_nowhere(Canary::with(Bug::HomeKeyRemoved));
    let seen = weak.seen.unwrap_or_default();
    assert!(seen.contains("shard 0"), "{seen:?}");
    assert_eq!(a_home_for_what_lives_nowhere(Canary::none()).seen, None);
}
