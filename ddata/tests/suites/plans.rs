//! Plans that seeds draw: sizes, settings, habits of users, and faults of every suite.

use std::time::Duration;

use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::key::Pattern;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::sim::{FaultKind, Faults, RandomStream, Seed};

use crate::coordinators::Zeal;
use crate::membership::Churn;
use crate::run::Plan;
use crate::workload::{Habits, Kind};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn draw(seed: Seed) -> RandomStream {
    RandomStream::split(seed.value, "plan", 0)
}

fn habits(draw: &mut RandomStream, keys: usize) -> Habits {
    let kinds = (0..keys).map(|_| *draw.pick(&Kind::ALL)).collect();
    Habits {
        keys: kinds,
        every: draw.span(15 * MS, 200 * MS),
        changes: draw.between(40, 80),
        removals: draw.between(0, 50),
        again: 25,
        strong: *draw.pick(&[30, 60, 90]),
        batch: 1,
        within: draw.span(SECOND, 6 * SECOND),
    }
}

fn config(draw: &mut RandomStream) -> ReplicatorConfig {
    ReplicatorConfig {
        delta_enabled: draw.chance(0.85),
        max_delta_elements: *draw.pick(&[500, 500, 3]),
        notify_subscribers_interval: *draw.pick(&[Duration::ZERO, 100 * MS]),
        expire_keys_after_inactivity: vec![(Pattern::new("exp-*"), 2 * SECOND)],
        max_clock_skew: *draw.pick(&[60 * SECOND, SECOND]),
        ..ReplicatorConfig::default()
    }
}

/// All faults except crashes, which the suites inject where a cluster survives them. One run of
/// five has random crashes, too.
fn faults(draw: &mut RandomStream, seed: Seed) -> Faults {
    let mut faults = Faults::swarm(seed);
    if draw.chance(0.8) {
        faults.kinds.retain(|(kind, _)| !matches!(kind, FaultKind::Crash | FaultKind::DiskLoss));
    }
    faults.span.1 = faults.span.1.min(20 * SECOND);
    faults.pause.1 = faults.pause.1.min(20 * SECOND);
    faults
}

fn size(draw: &mut RandomStream) -> usize {
    *draw.pick(&[1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 6, 7])
}

/// Users at every consistency level under network faults. Members stay, except for crashes.
pub fn steady(seed: Seed) -> Plan {
    let mut draw = draw(seed);
    let keys = 1 + draw.index(10);
    Plan {
        seed,
        members: size(&mut draw),
        spares: 0,
        config: config(&mut draw),
        faults: faults(&mut draw, seed),
        strikes: *draw.pick(&[0.0, 0.1]),
        churn: Churn { crash: *draw.pick(&[0.0, 0.1]), ..Churn::QUIET },
        habits: habits(&mut draw, keys),
        zeal: None,
        span: draw.span(5 * SECOND, 40 * SECOND),
        fault_injection: FaultInjection::none(),
        judged: true,
    }
}

/// As [`steady`], with constant joins and departures, and faults right after the steps of a change.
pub fn changing(seed: Seed) -> Plan {
    let mut draw = RandomStream::split(seed.value, "changing", 0);
    let churn = Churn {
        every: draw.span(100 * MS, 3 * SECOND),
        crash: *draw.pick(&[0.0, 0.1, 0.3]),
        start: 0.2,
        leave: *draw.pick(&[0.0, 0.1]),
        suspect: *draw.pick(&[0.0, 0.1, 0.3]),
        proposers: 1 + draw.index(3),
    };
    let strikes = *draw.pick(&[0.0, 0.1, 0.4]);
    Plan { churn, strikes, spares: draw.index(4), ..steady(seed) }
}

/// As [`changing`], with coordinators of one group.
pub fn coordinated(seed: Seed) -> Plan {
    let mut draw = RandomStream::split(seed.value, "coordinated", 0);
    let zeal = Zeal {
        most: 2 + draw.index(3),
        rise: *draw.pick(&[0.02, 0.1]),
        decide: *draw.pick(&[0.1, 0.4]),
        keys: 1 + draw.below(2),
    };
    let plan = if draw.chance(0.5) { steady(seed) } else { changing(seed) };
    let config = ReplicatorConfig {
        durable_keys: if draw.chance(0.2) { vec![Pattern::new("home-*")] } else { Vec::new() },
        ..plan.config
    };
    let habits = Habits { every: plan.habits.every.max(30 * MS), ..plan.habits };
    Plan { zeal: Some(zeal), config, habits, ..plan }
}

/// Few replicas, many coordinators and many changes, hardly any other work: exercises terms and
/// syncs in as little time as possible.
pub fn contested(seed: Seed) -> Plan {
    let mut draw = RandomStream::split(seed.value, "contested", 0);
    let churn = Churn {
        every: draw.span(50 * MS, 400 * MS),
        crash: *draw.pick(&[0.0, 0.05]),
        start: 0.5,
        leave: *draw.pick(&[0.0, 0.2]),
        suspect: *draw.pick(&[0.0, 0.3]),
        proposers: 1 + draw.index(2),
    };
    let zeal = Zeal { most: 3, rise: *draw.pick(&[0.05, 0.2]), decide: 0.5, keys: 1 };
    let plan = steady(seed);
    let keys = vec![Kind::Set];
    // The plan exercises terms and syncs, so hardly any other work takes time from them.
    let habits = Habits { keys, every: 20 * MS, changes: 40, again: 0, ..plan.habits };
    let members = 2 + draw.index(3);
    let span = draw.span(3 * SECOND, 10 * SECOND);
    Plan { members, spares: 2, churn, zeal: Some(zeal), habits, span, strikes: 0.1, ..plan }
}

/// As [`contested`], with members replaced constantly and hardly any anti-entropy, so that a new
/// member holds earlier values only if the snapshot that it synced from had them.
pub fn replaced(seed: Seed) -> Plan {
    let plan = contested(seed);
    let interval = 30 * SECOND;
    let config = ReplicatorConfig {
        gossip_interval: interval,
        busy_gossip_interval: interval,
        ..plan.config
    };
    let churn = Churn { crash: 0.0, start: 0.5, leave: 0.5, ..plan.churn };
    Plan { config, churn, ..plan }
}

/// As [`changing`], with a disk that is slow, fails and loses data.
pub fn durable(seed: Seed) -> Plan {
    let mut draw = RandomStream::split(seed.value, "durable", 0);
    let plan = if draw.chance(0.5) { steady(seed) } else { changing(seed) };
    let pattern: &&str = draw.pick(&["*", "set-*", "count-*"]);
    let config = ReplicatorConfig {
        durable_keys: vec![Pattern::new(pattern)],
        write_behind_interval: draw.chance(0.2).then_some(200 * MS),
        ..plan.config
    };
    let mut faults = plan.faults;
    faults.kinds.extend([(FaultKind::SlowDisk, 2), (FaultKind::FailSync, 2)]);
    Plan { config, faults, ..plan }
}

/// As [`changing`], with values of many frames, frames of a few kilobytes, and eager pushes to a
/// part of the peers.
pub fn large(seed: Seed) -> Plan {
    let mut draw = RandomStream::split(seed.value, "large", 0);
    let plan = if draw.chance(0.5) { steady(seed) } else { changing(seed) };
    let config = ReplicatorConfig {
        frame_bytes_max: *draw.pick(&[1 << 10, 2 << 10, 4 << 10]),
        direct_push_limit: *draw.pick(&[1, 100]),
        assembly_bytes_max: *draw.pick(&[1 << 20, 64 << 20]),
        ..plan.config
    };
    let keys = plan.habits.keys.iter().map(|_| Kind::Set).take(4).collect();
    let batch = *draw.pick(&[50, 300]);
    let habits = Habits { keys, batch, every: plan.habits.every * 4, removals: 20, ..plan.habits };
    Plan { config, habits, ..plan }
}

/// The measure of speed: 5 replicas, 20 operations a second on 10 keys, all faults.
pub fn speed(seed: Seed) -> Plan {
    let mut faults = Faults::all();
    faults.pause.1 = 10 * SECOND;
    Plan {
        seed,
        members: 5,
        spares: 0,
        config: ReplicatorConfig::default(),
        faults,
        strikes: 0.0,
        churn: Churn::QUIET,
        habits: Habits {
            keys: [Kind::Set, Kind::Counter, Kind::Register, Kind::Map, Kind::Flag].repeat(2),
            every: 50 * MS,
            changes: 60,
            removals: 20,
            again: 0,
            strong: 60,
            batch: 1,
            within: 3 * SECOND,
        },
        zeal: None,
        span: 600 * SECOND,
        fault_injection: FaultInjection::none(),
        judged: true,
    }
}
