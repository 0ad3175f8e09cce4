//! What can go wrong, how much of it a run has, and the draw of what comes next.
//!
//! Which faults exist in a run, and how hard they are, is drawn first (swarm testing: Groce et al.,
//! 2012; TigerBeetle's VOPR): many runs with a few kinds of fault find more than runs with all.

use std::time::Duration;

use super::NodeIndex;
use super::network::LinkQuality;
use super::stream::Stream;

/// One fault, as it stands in a [`Schedule`](super::Schedule).
///
/// `span: None` means "until [`heal`](super::Simulation::heal)".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No link between different groups works, in either direction. Nodes in no group keep theirs.
    Partition {
        /// Disjoint groups.
        groups: Vec<Vec<NodeIndex>>,
        /// How long.
        span: Option<Duration>,
    },
    /// These directed links lose everything.
    Cut {
        /// From every `from` to every `to`.
        links: Vec<Links>,
        /// How long.
        span: Option<Duration>,
    },
    /// These directed links hold what is sent and deliver it afterwards.
    Clog {
        /// From every `from` to every `to`.
        links: Vec<Links>,
        /// How long.
        span: Option<Duration>,
    },
    /// These directed links delay everything by that much more.
    Delay {
        /// From every `from` to every `to`.
        links: Vec<Links>,
        /// How much more.
        by: Duration,
        /// How long.
        span: Option<Duration>,
    },
    /// These directed links lose what is under way; both ends are told, and told again when the
    /// link is up.
    Break {
        /// From every `from` to every `to`.
        links: Vec<Links>,
    },
    /// The process stops and its memory is gone.
    Crash {
        /// Which node.
        node: NodeIndex,
        /// What becomes of its disk.
        disk: DiskFate,
        /// How long until it starts again as a new incarnation; `None`: not by itself.
        down: Option<Duration>,
    },
    /// A stopped node starts as a new incarnation.
    Restart {
        /// Which node.
        node: NodeIndex,
    },
    /// The node does nothing; inputs queue and come in a batch, with time gone by.
    Pause {
        /// Which node.
        node: NodeIndex,
        /// How long.
        span: Duration,
    },
    /// The node's wall clock jumps.
    Jump {
        /// Which node.
        node: NodeIndex,
        /// By how many milliseconds; below zero: back.
        millis: i64,
    },
    /// The node's monotonic clock runs fast (or slow, below zero) from now on.
    Drift {
        /// Which node.
        node: NodeIndex,
        /// Millionths.
        ppm: i32,
    },
    /// Every input takes the node that long.
    Slow {
        /// Which node.
        node: NodeIndex,
        /// Time per input.
        per_input: Duration,
        /// How long.
        span: Option<Duration>,
    },
    /// Every sync of the node's disk takes that much longer.
    SlowDisk {
        /// Which node.
        node: NodeIndex,
        /// How much longer.
        by: Duration,
        /// How long.
        span: Option<Duration>,
    },
    /// The node's next sync fails.
    FailSync {
        /// Which node.
        node: NodeIndex,
    },
}

/// Directed links from every node of one set to every other node of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// Where messages enter.
    pub from: Vec<NodeIndex>,
    /// Where they come out.
    pub to: Vec<NodeIndex>,
}

/// What a crash leaves of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFate {
    /// What was synced; of the rest at most a prefix.
    Kept,
    /// Nothing.
    Lost,
}

/// A kind of fault that a run may draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FaultKind {
    /// Two groups, the size drawn uniformly.
    PartitionBySize,
    /// Two or three groups, every node assigned on its own.
    PartitionByAssignment,
    /// One node alone.
    Isolate,
    /// One direction between two groups.
    OneWay,
    /// A and C cannot talk, B reaches both.
    Bridge,
    /// Every node sees a majority, and no two the same one.
    MajorityRing,
    /// The same partition, again and again.
    Flapping,
    /// A node's links stop one by one and come back in another order.
    Swizzle,
    /// Links that hold messages.
    Clog,
    /// Links that are slow.
    SlowLink,
    /// Broken links.
    Break,
    /// Crashes that keep the disk.
    Crash,
    /// Crashes that lose the disk.
    DiskLoss,
    /// Paused nodes.
    Pause,
    /// Wall clocks that jump.
    Jump,
    /// Monotonic clocks whose rate changes.
    Drift,
    /// Slow nodes.
    SlowNode,
    /// Slow disks.
    SlowDisk,
    /// Syncs that fail.
    FailSync,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 19] = [
        Self::PartitionBySize,
        Self::PartitionByAssignment,
        Self::Isolate,
        Self::OneWay,
        Self::Bridge,
        Self::MajorityRing,
        Self::Flapping,
        Self::Swizzle,
        Self::Clog,
        Self::SlowLink,
        Self::Break,
        Self::Crash,
        Self::DiskLoss,
        Self::Pause,
        Self::Jump,
        Self::Drift,
        Self::SlowNode,
        Self::SlowDisk,
        Self::FailSync,
    ];
}

/// Which faults a run has, and how hard.
///
/// A plain struct: `Faults { every: Duration::from_secs(1), ..Faults::swarm(seed) }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Each directed link gets one of these; at least one.
    pub links: Vec<LinkQuality>,
    /// Kinds that are drawn, each with its weight. Empty: no faults but the links' quality.
    pub kinds: Vec<(FaultKind, u32)>,
    /// Mean time between two drawn faults.
    pub every: Duration,
    /// Shortest and longest partition, clog, slowness.
    pub span: (Duration, Duration),
    /// Shortest and longest pause.
    pub pause: (Duration, Duration),
    /// Shortest and longest time between a drawn crash and the restart.
    pub down: (Duration, Duration),
    /// Most nodes that drawn crashes keep down at once; `None`: fewer than half.
    pub down_at_once: Option<usize>,
    /// Most disks that drawn faults lose in the run; `None`: fewer than half.
    pub disks_lost: Option<usize>,
    /// Furthest a wall clock is off at the start, either way; and furthest it jumps.
    pub wall_skew: Duration,
    /// Fastest a monotonic clock runs, either way, in millionths; 10,000 is 1 %.
    pub rate_ppm: u32,
    /// Mean time of a sync, exponentially distributed.
    pub sync: Duration,
    /// Probability that a crash leaves some unsynced records, in order, on the disk.
    pub torn_tail: f64,
    /// Probability that a crash breaks the node's links at once, as a killed process does; else
    /// peers hear nothing until it is back, as from a host that lost power.
    pub crash_is_told: f64,
    /// Messages arrive on multiples of this: the larger, the more come in one batch.
    pub grain: Duration,
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl Faults {
    /// No fault: a clean network, even clocks, an honest disk.
    #[must_use]
    pub fn none() -> Self {
        Self {
            links: vec![LinkQuality::clean()],
            kinds: Vec::new(),
            every: 5 * SECOND,
            span: (10 * MS, 30 * SECOND),
            pause: (MS, 120 * SECOND),
            down: (10 * MS, MINUTE),
            down_at_once: None,
            disks_lost: None,
            wall_skew: Duration::ZERO,
            rate_ppm: 0,
            sync: 5 * MS,
            torn_tail: 0.0,
            crash_is_told: 1.0,
            grain: Duration::ZERO,
        }
    }

    /// Every kind of fault, each at a middling strength.
    #[must_use]
    pub fn all() -> Self {
        let poor = LinkQuality {
            spread: 2 * MS,
            tail: 0.01,
            tail_scale: 5 * MS,
            loss: 0.05,
            duplicate: 0.02,
            reorder: 0.1,
            ..LinkQuality::clean()
        };
        Self {
            links: vec![poor, LinkQuality::clean()],
            kinds: FaultKind::ALL.iter().map(|kind| (*kind, 1)).collect(),
            every: 2 * SECOND,
            wall_skew: 10 * SECOND,
            rate_ppm: 10_000,
            torn_tail: 0.5,
            crash_is_told: 0.5,
            grain: MS,
            ..Self::none()
        }
    }

    /// Some faults, some of them wild: drawn from the seed.
    #[must_use]
    pub fn swarm(seed: impl Into<super::Seed>) -> Self {
        let mut draw = Stream::split(seed.into().value, "swarm", 0);
        let kept = *draw.pick(&[0.2, 0.4, 0.8]);
        let kinds = FaultKind::ALL
            .iter()
            .map(|kind| (*kind, draw.chance(kept), 1 + draw.below(4) as u32))
            .filter_map(|(kind, chosen, weight)| chosen.then_some((kind, weight)))
            .collect();
        let links = (0..1 + draw.below(3)).map(|_| LinkQuality::swarm(&mut draw)).collect();
        Self {
            links,
            kinds,
            every: draw.span(100 * MS, 20 * SECOND),
            span: (MS, draw.span(SECOND, MINUTE)),
            pause: (MS, draw.span(SECOND, 120 * SECOND)),
            down: (MS, draw.span(SECOND, MINUTE)),
            wall_skew: *draw.pick(&[Duration::ZERO, 5 * MS, SECOND, MINUTE, 60 * MINUTE]),
            rate_ppm: *draw.pick(&[0, 100, 10_000]),
            sync: draw.span(Duration::from_micros(100), 100 * MS),
            torn_tail: *draw.pick(&[0.0, 0.5, 1.0]),
            crash_is_told: *draw.pick(&[0.0, 0.5, 1.0]),
            grain: *draw.pick(&[Duration::ZERO, Duration::from_micros(100), MS, 10 * MS]),
            ..Self::none()
        }
    }
}

impl LinkQuality {
    /// A quality drawn at random: often clean in most respects.
    #[must_use]
    pub fn swarm(draw: &mut Stream) -> Self {
        Self {
            base: draw.span(Duration::from_micros(20), 50 * MS),
            spread: draw.span(Duration::from_micros(10), 100 * MS),
            tail: *draw.pick(&[0.0, 0.0, 0.001, 0.02]),
            tail_scale: draw.span(MS, 200 * MS),
            loss: *draw.pick(&[0.0, 0.0, 0.01, 0.05, 0.2]),
            duplicate: *draw.pick(&[0.0, 0.0, 0.01, 0.1]),
            reorder: *draw.pick(&[0.0, 0.0, 0.1, 0.5]),
        }
    }
}

/// What the draw must know of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) nodes: usize,
    pub(super) down: usize,
}

/// Draws faults from a run's [`Faults`].
#[derive(Clone, Debug)]
pub(super) struct Draw {
    chance: Stream,
    disks_lost: usize,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self { chance: Stream::split(seed, "faults", 0), disks_lost: 0 }
    }

    /// Time until the next draw.
    pub(super) fn wait(&mut self, faults: &Faults) -> Duration {
        let mean = super::stream::nanos(faults.every).max(1);
        Duration::from_nanos(self.chance.exponential(mean).max(1))
    }

    /// Faults to come, each after a while from now. Empty if the kind drawn has no room.
    pub(super) fn next(&mut self, faults: &Faults, run: Standing) -> Vec<(Duration, Fault)> {
        let total: u64 = faults.kinds.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut ticket = self.chance.below(total);
        for (kind, weight) in &faults.kinds {
            match ticket.checked_sub(u64::from(*weight)) {
                Some(rest) => ticket = rest,
                None => return self.of(*kind, faults, run),
            }
        }
        Vec::new()
    }

    fn of(&mut self, kind: FaultKind, faults: &Faults, run: Standing) -> Vec<(Duration, Fault)> {
        let span = self.chance.span(faults.span.0, faults.span.1);
        let lasting = Some(span);
        let node = NodeIndex::new(self.chance.index(run.nodes));
        let fault = match kind {
            FaultKind::Swizzle => return self.swizzle(node, span, run.nodes),
            FaultKind::Flapping => return self.flapping(span, run.nodes),
            FaultKind::Crash | FaultKind::DiskLoss => {
                return self.crash(kind, node, faults, run).into_iter().collect();
            }
            FaultKind::PartitionBySize => {
                Fault::Partition { groups: self.by_size(run.nodes), span: lasting }
            }
            FaultKind::PartitionByAssignment => {
                Fault::Partition { groups: self.by_assignment(run.nodes), span: lasting }
            }
            FaultKind::Isolate => Fault::Partition {
                groups: vec![vec![node], others(node, run.nodes)],
                span: lasting,
            },
            FaultKind::Bridge => Fault::Partition { groups: self.bridge(run.nodes), span: lasting },
            FaultKind::OneWay => Fault::Cut { links: vec![self.one_way(run.nodes)], span: lasting },
            FaultKind::MajorityRing => Fault::Cut { links: self.ring(run.nodes), span: lasting },
            FaultKind::Clog => Fault::Clog { links: vec![self.some_links(run)], span: lasting },
            FaultKind::SlowLink => Fault::Delay {
                links: vec![self.some_links(run)],
                by: self.chance.span(MS, 2 * SECOND),
                span: lasting,
            },
            FaultKind::Break => Fault::Break { links: vec![self.some_links(run)] },
            FaultKind::Pause => {
                Fault::Pause { node, span: self.chance.span(faults.pause.0, faults.pause.1) }
            }
            FaultKind::Jump => Fault::Jump { node, millis: self.jump(faults) },
            FaultKind::Drift => Fault::Drift { node, ppm: self.ppm(faults) },
            FaultKind::SlowNode => Fault::Slow {
                node,
                per_input: self.chance.span(Duration::from_micros(10), 5 * MS),
                span: lasting,
            },
            FaultKind::SlowDisk => {
                Fault::SlowDisk { node, by: self.chance.span(MS, 5 * SECOND), span: lasting }
            }
            FaultKind::FailSync => Fault::FailSync { node },
        };
        vec![(Duration::ZERO, fault)]
    }

    fn crash(
        &mut self,
        kind: FaultKind,
        node: NodeIndex,
        faults: &Faults,
        run: Standing,
    ) -> Option<(Duration, Fault)> {
        let minority = run.nodes.saturating_sub(1) / 2;
        let down = Some(self.chance.span(faults.down.0, faults.down.1));
        if run.down >= faults.down_at_once.unwrap_or(minority) {
            return None;
        }
        let disk = match kind {
            FaultKind::DiskLoss if self.disks_lost < faults.disks_lost.unwrap_or(minority) => {
                self.disks_lost += 1;
                DiskFate::Lost
            }
            _ => DiskFate::Kept,
        };
        Some((Duration::ZERO, Fault::Crash { node, disk, down }))
    }

    fn shuffled(&mut self, nodes: usize) -> Vec<NodeIndex> {
        let mut all: Vec<NodeIndex> = (0..nodes).map(NodeIndex::new).collect();
        self.chance.shuffle(&mut all);
        all
    }

    fn by_size(&mut self, nodes: usize) -> Vec<Vec<NodeIndex>> {
        let mut one = self.shuffled(nodes);
        let size = 1 + self.chance.index(nodes.saturating_sub(1));
        let other = one.split_off(size.min(nodes));
        sorted(vec![one, other])
    }

    fn by_assignment(&mut self, nodes: usize) -> Vec<Vec<NodeIndex>> {
        let mut groups = vec![Vec::new(); 2 + self.chance.index(2)];
        for node in 0..nodes {
            let group = self.chance.index(groups.len());
            groups[group].push(NodeIndex::new(node));
        }
        sorted(groups)
    }

    fn bridge(&mut self, nodes: usize) -> Vec<Vec<NodeIndex>> {
        let mut one = self.shuffled(nodes);
        let _ = one.pop(); // the bridge is in no group
        let other = one.split_off(one.len() / 2);
        sorted(vec![one, other])
    }

    fn one_way(&mut self, nodes: usize) -> Links {
        let mut groups = self.by_size(nodes);
        if self.chance.chance(0.5) {
            groups.reverse();
        }
        let to = groups.pop().unwrap_or_default();
        Links { from: groups.pop().unwrap_or_default(), to }
    }

    /// On a circle in random order each node reaches a majority around itself.
    fn ring(&mut self, nodes: usize) -> Vec<Links> {
        let circle = self.shuffled(nodes);
        let reach = nodes / 4 + usize::from(nodes % 4 >= 2);
        let far = |at: usize| (reach + 1..nodes.saturating_sub(reach)).map(move |step| at + step);
        (0..nodes)
            .map(|at| Links {
                from: vec![circle[at]],
                to: far(at).map(|other| circle[other % nodes]).collect(),
            })
            .filter(|links| !links.to.is_empty())
            .collect()
    }

    fn some_links(&mut self, run: Standing) -> Links {
        let mut from = self.shuffled(run.nodes);
        let mut to = self.shuffled(run.nodes);
        from.truncate(1 + self.chance.index(run.nodes));
        to.truncate(1 + self.chance.index(run.nodes));
        from.sort_unstable();
        to.sort_unstable();
        Links { from, to }
    }

    fn flapping(&mut self, span: Duration, nodes: usize) -> Vec<(Duration, Fault)> {
        let groups = self.by_size(nodes);
        let times = 2 + u32::try_from(self.chance.below(8)).unwrap_or(0);
        let on = span / times / 2;
        let partition = |n| (span / times * n, groups.clone());
        (0..times)
            .map(partition)
            .map(|(at, groups)| (at, Fault::Partition { groups, span: Some(on) }))
            .collect()
    }

    fn swizzle(&mut self, node: NodeIndex, span: Duration, nodes: usize) -> Vec<(Duration, Fault)> {
        let steps = u32::try_from(nodes).unwrap_or(u32::MAX);
        let mut faults = Vec::new();
        for (n, peer) in (1..).zip(others(node, nodes)) {
            let at = span / steps / 2 * n;
            let rest = Duration::from_nanos(self.chance.below(super::stream::nanos(span)) + 1);
            let groups = vec![vec![node], vec![peer]];
            faults.push((at, Fault::Partition { groups, span: Some(rest) }));
        }
        faults
    }

    fn jump(&mut self, faults: &Faults) -> i64 {
        let most = i64::try_from(faults.wall_skew.as_millis()).unwrap_or(i64::MAX).max(1);
        let size = i64::try_from(self.chance.between(1, most.unsigned_abs())).unwrap_or(most);
        if self.chance.chance(0.5) { size } else { -size }
    }

    fn ppm(&mut self, faults: &Faults) -> i32 {
        let most = i32::try_from(faults.rate_ppm).unwrap_or(i32::MAX);
        let size = self.chance.between(0, u64::from(most.unsigned_abs()));
        let size = i32::try_from(size).unwrap_or(most);
        if self.chance.chance(0.5) { size } else { -size }
    }
}

fn others(node: NodeIndex, nodes: usize) -> Vec<NodeIndex> {
    (0..nodes).map(NodeIndex::new).filter(|other| *other != node).collect()
}

fn sorted(mut groups: Vec<Vec<NodeIndex>>) -> Vec<Vec<NodeIndex>> {
    groups.retain(|group| !group.is_empty());
    for group in &mut groups {
        group.sort_unstable();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_faults_and_another_seed_others() {
        assert_eq!(Faults::swarm(7), Faults::swarm(7));
        assert_ne!(Faults::swarm(7), Faults::swarm(8));
    }

    #[test]
    fn a_swarm_leaves_every_kind_out_of_some_runs_and_none_out_of_all() {
        for kind in FaultKind::ALL {
            let with = (0..200)
                .filter(|seed| Faults::swarm(*seed).kinds.iter().any(|(k, _)| *k == kind))
                .count();
            assert!((20..180).contains(&with), "{kind:?}: {with} of 200");
        }
    }

    #[test]
    fn every_kind_can_be_drawn_with_any_number_of_nodes() {
        for nodes in 1..10 {
            for kind in FaultKind::ALL {
                let faults = Faults { kinds: vec![(kind, 1)], ..Faults::all() };
                let mut draw = Draw::new(3);
                let drawn: usize =
                    (0..50).map(|_| draw.next(&faults, Standing { nodes, down: 0 }).len()).sum();
                let crashes = matches!(kind, FaultKind::Crash | FaultKind::DiskLoss);
                let alone = nodes == 1 && kind == FaultKind::Swizzle;
                let room = !(alone || crashes && nodes < 3);
                assert_eq!(drawn > 0, room, "{kind:?} with {nodes} nodes");
            }
        }
    }

    #[test]
    fn in_a_majority_ring_everybody_hears_a_majority_and_nobody_all() {
        for nodes in [4, 5, 7, 9] {
            for links in Draw::new(1).ring(nodes) {
                let reached = nodes - links.to.len();
                assert!(reached > nodes / 2, "{nodes} nodes: {links:?}");
                assert!(!links.to.contains(&links.from[0]));
            }
        }
    }

    #[test]
    fn drawn_crashes_leave_a_majority_up_and_with_its_disks() {
        let faults = Faults { kinds: vec![(FaultKind::DiskLoss, 1)], ..Faults::all() };
        let mut draw = Draw::new(3);
        let full = Standing { nodes: 5, down: 2 };
        assert!((0..50).all(|_| draw.next(&faults, full).is_empty()));
        let lost = (0..50)
            .flat_map(|_| draw.next(&faults, Standing { nodes: 5, down: 0 }))
            .filter(|(_, fault)| matches!(fault, Fault::Crash { disk: DiskFate::Lost, .. }))
            .count();
        assert_eq!(lost, 2);
    }
}
