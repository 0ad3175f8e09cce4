//! Timers and receive timeouts: messages that an entity schedules for itself, and their relation to
//! passivation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::passivation::settings::{PassivationConfig, PassivationStrategy};
use ostraca::sharding::timers::Timer;
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan};

type Log = Arc<Mutex<Vec<&'static str>>>;

struct Clock {
    log: Log,
    timer: Option<Timer>,
}

#[derive(Serialize, Deserialize)]
enum Tick {
    Start(u64),
    Cancel,
    Rang,
    Listen(u64),
    Silence,
    Stop,
}

impl Entity for Clock {
    type Message = Tick;

    async fn handle(&mut self, tick: Tick, cx: &mut Context<'_, Self>) {
        match tick {
            Tick::Start(secs) => self.timer = Some(cx.after(Duration::from_secs(secs), Tick::Rang)),
            Tick::Cancel => self.timer.iter().for_each(Timer::cancel),
            Tick::Listen(secs) => {
                cx.set_receive_timeout(Duration::from_secs(secs), || Tick::Silence);
            }
            Tick::Stop => cx.passivate(),
            Tick::Rang => self.log.lock().expect("nobody panicked").push("rang"),
            Tick::Silence => self.log.lock().expect("nobody panicked").push("silence"),
        }
    }
}

struct Stage {
    nodes: Nodes<Clock>,
    log: Log,
}

impl Stage {
    fn new() -> Self {
        Self::with(&Plan::default())
    }

    /// Entities passivate after 60 s without a message, or beyond a limit of one active entity.
    fn passivating(strategy: PassivationStrategy) -> Self {
        let passivation = PassivationConfig {
            strategy,
            idle_timeout: Duration::from_secs(60),
            active_entity_limit: 1,
            ..PassivationConfig::default()
        };
        let settings = ShardingConfig { passivation, ..ShardingConfig::default() };
        Self::with(&Plan { settings, ..Plan::default() })
    }

    fn with(plan: &Plan) -> Self {
        let log = Log::default();
        let mut nodes = Nodes::new(plan, |_, _| {
            let log = Arc::clone(&log);
            move |_: &EntityId| Clock { log: Arc::clone(&log), timer: None }
        });
        nodes.host(0, 0);
        Self { nodes, log }
    }

    fn tell(&mut self, tick: Tick) {
        self.nodes.nodes[1].region.entity("c").tell(tick).expect("there is room");
        self.nodes.settle();
    }

    fn pass(&mut self, secs: u64) -> Vec<&'static str> {
        self.nodes.advance(Duration::from_secs(secs));
        self.nodes.settle();
        std::mem::take(&mut *self.log.lock().expect("nobody panicked"))
    }
}

#[test]
fn timer_fires_once_unless_cancelled_or_its_instance_ended() {
    let mut stage = Stage::new();
    stage.tell(Tick::Start(10));
    assert_eq!((stage.pass(9), stage.pass(1), stage.pass(20)), (vec![], vec!["rang"], vec![]));
    for end in [Tick::Cancel, Tick::Stop] {
        stage.tell(Tick::Start(10));
        stage.tell(end);
        assert_eq!(stage.pass(20), [""; 0]);
    }
    stage.tell(Tick::Start(10));
    stage.nodes.host(0, 1);
    assert_eq!(stage.pass(20), [""; 0], "a timer does not move with its shard");
}

#[test]
fn receive_timeout_fires_after_each_silence() {
    let mut stage = Stage::new();
    stage.tell(Tick::Listen(10));
    assert_eq!((stage.pass(9), stage.pass(1)), (vec![], vec!["silence"]));
    assert_eq!((stage.pass(9), stage.pass(1)), (vec![], vec!["silence"]));
    assert_eq!(stage.pass(9), [""; 0]);
    stage.tell(Tick::Cancel);
    assert_eq!((stage.pass(9), stage.pass(1)), (vec![], vec!["silence"]));
    stage.tell(Tick::Stop);
    assert_eq!((stage.pass(20), stage.nodes.executor.tasks()), (vec![], 0));
}

#[test]
fn receive_timeout_owns_one_task_however_many_messages_come() {
    let mut stage = Stage::new();
    stage.tell(Tick::Listen(3_600));
    for _ in 0..100 {
        stage.tell(Tick::Cancel);
    }
    assert_eq!(stage.nodes.executor.tasks(), 1);
    stage.tell(Tick::Stop);
    assert_eq!(stage.nodes.executor.tasks(), 0, "it ends with its instance");
}

const STRATEGIES: [PassivationStrategy; 6] = [
    PassivationStrategy::Idle,
    PassivationStrategy::LeastRecentlyUsed,
    PassivationStrategy::Segmented,
    PassivationStrategy::MostRecentlyUsed,
    PassivationStrategy::LeastFrequentlyUsed,
    PassivationStrategy::Composite,
];

#[test]
fn timer_longer_than_idle_timeout_fires() {
    for strategy in STRATEGIES {
        for (tick, rings) in [(Tick::Start(200), "rang"), (Tick::Listen(200), "silence")] {
            let mut stage = Stage::passivating(strategy);
            stage.tell(tick);
            let heard: Vec<_> = (0..20).flat_map(|_| stage.pass(10)).collect();
            assert_eq!(heard, [rings], "{strategy:?}");
        }
    }
}

#[test]
fn entity_stops_when_idle_after_its_timers() {
    for strategy in STRATEGIES {
        for (cancels, last) in [(false, 200), (true, 0)] {
            let mut stage = Stage::passivating(strategy);
            stage.tell(Tick::Start(200));
            if cancels {
                stage.tell(Tick::Cancel);
            }
            (0..last / 10).for_each(|_| drop(stage.pass(10)));
            assert_eq!(stage.nodes.nodes[0].region.entities(), 1, "{strategy:?}");
            (0..20).for_each(|_| drop(stage.pass(10)));
            assert_eq!(stage.nodes.nodes[0].region.entities(), 0, "{strategy:?}");
        }
    }
}

#[test]
fn limit_counts_timers_that_it_stops() {
    for strategy in
        [PassivationStrategy::LeastRecentlyUsed, PassivationStrategy::LeastFrequentlyUsed]
    {
        let mut stage = Stage::passivating(strategy);
        stage.tell(Tick::Start(30));
        stage.tell(Tick::Listen(30));
        stage.nodes.nodes[0].region.entity("another").tell(Tick::Cancel).expect("there is room");
        stage.nodes.settle();
        assert_eq!(stage.nodes.nodes[0].region.entities(), 1, "{strategy:?}");
        assert_eq!(stage.nodes.nodes[0].region.lost_timers(), 1, "{strategy:?}");
        assert_eq!(stage.pass(30), [""; 0], "{strategy:?}");
    }
}

#[test]
fn stopped_timer_leaves_no_task() {
    let mut stage = Stage::new();
    for end in [Tick::Cancel, Tick::Stop] {
        stage.tell(Tick::Start(3_600));
        stage.tell(end);
        assert_eq!(stage.nodes.executor.tasks(), 0);
    }
    assert_eq!(stage.nodes.nodes[0].region.lost_timers(), 0, "the entity passivated itself");
}
