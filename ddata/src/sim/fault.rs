//! The faults of the simulator, the settings of a run's faults, and the draw of the next fault.
//!
//! The kinds of fault in a run, and their strength, are drawn first (swarm testing: Groce et al.,
//! 2012; TigerBeetle's VOPR), because many runs with a few kinds of fault find more errors than
//! runs with all of them.

use std::time::Duration;

use super::NodeIndex;
use super::network::LinkQuality;
use super::stream::RandomStream;

/// One fault, as recorded in a [`Schedule`](super::Schedule).
///
/// `span: None` means "until [`heal`](super::Simulation::heal)". Lasting faults of the same link or
/// node may overlap: a link is cut or clogged while any cut or clog of it lasts, and delays and
/// times add up. Pauses do not: the latest end counts. All nodes must exist in the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Cuts all links between different groups, in both directions. Nodes in no group keep theirs.
    Partition {
        /// Disjoint groups of nodes.
        groups: Vec<Vec<NodeIndex>>,
        /// The duration of the fault.
        span: Option<Duration>,
    },
    /// Directed links lose every message, also those that are in flight and would arrive during the
    /// cut. On a reliable lane a lost message breaks the link.
    Cut {
        /// The links, each from every `from` to every `to`.
        links: Vec<LinkSet>,
        /// The duration of the fault.
        span: Option<Duration>,
    },
    /// Directed links hold all messages that are sent and send them on when the fault ends, with a
    /// new delay. Messages in flight at its start arrive. A link holds at most 100,000 messages;
    /// further ones are lost as by a cut.
    Clog {
        /// The links, each from every `from` to every `to`.
        links: Vec<LinkSet>,
        /// The duration of the fault.
        span: Option<Duration>,
    },
    /// Directed links delay every message longer that is sent during the fault; the whole delay of
    /// a message is at most 10 s.
    Delay {
        /// The links, each from every `from` to every `to`.
        links: Vec<LinkSet>,
        /// The additional delay per message.
        by: Duration,
        /// The duration of the fault.
        span: Option<Duration>,
    },
    /// Directed links lose their messages in flight, except on lanes that
    /// [cross restarts](super::LaneRule::crosses_restart), and all that are sent until they are up
    /// again. Both ends are told, and told again when the link is up.
    Break {
        /// The links, each from every `from` to every `to`.
        links: Vec<LinkSet>,
    },
    /// The process stops and loses its memory and waiting inputs. No effect on a node that is down;
    /// a restart that is scheduled already then keeps its time.
    Crash {
        /// The node that the fault affects.
        node: NodeIndex,
        /// The content of its disk after the crash.
        disk: DiskFate,
        /// The time until it restarts as a new incarnation; `None`: not by itself.
        down: Option<Duration>,
    },
    /// A stopped node starts as a new incarnation. No effect on a node that is up.
    Restart {
        /// The node that the fault affects.
        node: NodeIndex,
    },
    /// The node does nothing. Its inputs are queued and handled in a batch when the pause ends;
    /// above 100,000 of them messages of other nodes are lost. No effect on a node that is down, or
    /// paused or busy for longer already.
    Pause {
        /// The node that the fault affects.
        node: NodeIndex,
        /// The duration of the pause.
        span: Duration,
    },
    /// The node's wall clock jumps, and stays off, also over a crash. Jumps add up.
    Jump {
        /// The node that the fault affects.
        node: NodeIndex,
        /// The jump in milliseconds; negative: backwards.
        millis: i64,
    },
    /// The rate of the node's monotonic clock changes, and stays so until the next drift, also over
    /// a crash.
    Drift {
        /// The node that the fault affects.
        node: NodeIndex,
        /// How fast the clock runs, in millionths off the exact rate; negative: slow. At most
        /// 900,000 in either direction; more counts as that.
        ppm: i32,
    },
    /// Every input and tick takes the node some time: after each batch it is busy, and its inputs
    /// are queued, as in a pause. Stays over a crash.
    Slow {
        /// The node that the fault affects.
        node: NodeIndex,
        /// The time per input.
        per_input: Duration,
        /// The duration of the fault.
        span: Option<Duration>,
    },
    /// Every sync that the node orders during the fault takes longer. Stays over a crash.
    SlowDisk {
        /// The node that the fault affects.
        node: NodeIndex,
        /// The additional time per sync.
        by: Duration,
        /// The duration of the fault.
        span: Option<Duration>,
    },
    /// The next sync that the node orders fails, also one of a later incarnation: a suffix of its
    /// unsynced records is lost, perhaps none or all. Two such faults fail one sync only.
    FailSync {
        /// The node that the fault affects.
        node: NodeIndex,
    },
}

/// Directed links from every node of one set to every other node of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSet {
    /// The nodes that send on the links.
    pub from: Vec<NodeIndex>,
    /// The nodes that receive on the links.
    pub to: Vec<NodeIndex>,
}

/// The content of a disk after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFate {
    /// The synced records, and of the others at most a prefix.
    Kept,
    /// Nothing; the disk is lost.
    Lost,
}

/// A kind of fault that a run may draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FaultKind {
    /// A partition into two groups whose size is drawn uniformly.
    PartitionBySize,
    /// A partition into two or three groups, with every node assigned independently.
    PartitionByAssignment,
    /// A partition of one node from all others.
    Isolate,
    /// A cut of one direction between two groups.
    OneWay,
    /// A partition into two groups that both reach one further node.
    Bridge,
    /// Cuts after which every node reaches a majority, but no two nodes the same one; no cut in a
    /// run of up to three nodes.
    MajorityRing,
    /// One partition that starts and ends several times.
    Flapping,
    /// A node's links are cut one by one and restored in another order.
    Swizzle,
    /// Links that hold messages for a time.
    Clog,
    /// Links with an additional delay.
    SlowLink,
    /// Links that break, like a closed connection.
    Break,
    /// A crash that keeps the synced records of the disk, with a restart.
    Crash,
    /// A crash that loses the disk, with a restart. It keeps the disk once
    /// [`Faults::disks_lost`] is reached.
    DiskLoss,
    /// A node that does nothing for a time.
    Pause,
    /// A jump of a wall clock.
    Jump,
    /// A change of a monotonic clock's rate.
    Drift,
    /// A node that needs time for every input.
    SlowNode,
    /// A disk whose syncs take longer.
    SlowDisk,
    /// A sync that fails once.
    FailSync,
}

impl FaultKind {
    /// All kinds of fault.
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

/// The faults of a run and their strength.
///
/// A plain struct: `Faults { every: Duration::from_secs(1), ..Faults::swarm(seed) }`.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// The qualities of links, at least one. Each directed link gets one of them at random.
    pub links: Vec<LinkQuality>,
    /// The kinds of fault to draw from, with weights. Empty: no faults beside the links' quality
    /// and the clocks. At least one weight must be above 0, otherwise every draw is empty.
    pub kinds: Vec<(FaultKind, u32)>,
    /// Mean time between two draws, exponentially distributed; zero counts as 1 ns. A draw may give
    /// no fault or several.
    pub every: Duration,
    /// Minimum and maximum duration of a partition, a clog or slowness. Here and below, a maximum
    /// under the minimum is the duration.
    pub span: (Duration, Duration),
    /// Minimum and maximum duration of a pause.
    pub pause: (Duration, Duration),
    /// Minimum and maximum time between a drawn crash and the restart.
    pub down: (Duration, Duration),
    /// Number of nodes down at which drawn crashes, and those of rules, are left out; `None`: the
    /// most that is fewer than half, so that a single node never crashes. Crashes that the harness
    /// or a followed schedule orders are not bounded, but count as down.
    pub down_at_once: Option<usize>,
    /// Maximum number of disks that drawn faults lose in the run; `None`: fewer than half. Further
    /// crashes keep the disk.
    pub disks_lost: Option<usize>,
    /// Maximum skew of a wall clock at the start, in either direction, and maximum drawn jump,
    /// which is at least 1 ms even if this is zero.
    pub wall_skew: Duration,
    /// Maximum deviation of a monotonic clock's rate, at the start and after a drawn drift, in
    /// millionths; 10,000 is 1 %. More than 900,000 counts as that.
    pub rate_ppm: u32,
    /// Mean time of a sync, exponentially distributed.
    pub sync: Duration,
    /// Probability that a crash leaves a random prefix of the unsynced records on the disk, perhaps
    /// none or all. Otherwise it leaves none.
    pub torn_tail: f64,
    /// Probability that a crash breaks the node's links at once, as when a process is killed.
    /// Otherwise peers notice nothing until the node is back, as when a host loses power.
    pub crash_is_told: f64,
    /// Messages arrive at multiples of this duration. The longer it is, the more messages arrive in
    /// one batch. Zero counts as 1 ns.
    pub grain: Duration,
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl Faults {
    /// No faults: a clean network, exact clocks, reliable disks whose syncs take 5 ms on average.
    /// Unsynced records are lost in a crash that the harness orders, and every crash is told.
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

    /// Every kind of fault, all with the same weight and of medium strength. Half of the links are
    /// poor, on average; the others are clean.
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

    /// A random selection of kinds and strengths, drawn from the seed: the same seed gives the same
    /// faults. It may contain no kind at all. The bounds on nodes down and disks lost are the
    /// defaults.
    #[must_use]
    pub fn swarm(seed: impl Into<super::Seed>) -> Self {
        let mut draw = RandomStream::split(seed.into().value, "swarm", 0);
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
    /// A random quality, in which loss, duplication, reordering and the tail are often absent.
    #[must_use]
    pub fn swarm(draw: &mut RandomStream) -> Self {
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

/// The state of the run on which the draw depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunState {
    pub(super) nodes: usize,
    pub(super) down: usize, // nodes that have crashed and are not up again
}

/// Draws faults from a run's [`Faults`].
#[derive(Clone, Debug)]
pub(super) struct Draw {
    chance: RandomStream,
    disks_lost: usize, // drawn so far, even if the crash then had no effect
}

impl Draw {
    /// Creates the draw of a run, from a random stream of its own.
    pub(super) fn new(seed: u64) -> Self {
        Self { chance: RandomStream::split(seed, "faults", 0), disks_lost: 0 }
    }

    /// Draws the time until the next draw, exponentially distributed around `every`; at least 1 ns.
    pub(super) fn wait(&mut self, faults: &Faults) -> Duration {
        let mean = super::stream::nanos(faults.every).max(1);
        Duration::from_nanos(self.chance.exponential(mean).max(1))
    }

    /// Draws a kind by its weight, and the faults of that kind, each with a delay from now. Empty
    /// if the drawn kind is a crash and as many nodes are down already as may be, if it is a
    /// swizzle in a run with one node, and if no kind has a weight above 0.
    pub(super) fn next(&mut self, faults: &Faults, run: RunState) -> Vec<(Duration, Fault)> {
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

    /// Draws the details of a fault of this kind; see [`next`](Self::next). Most kinds give one
    /// fault without delay. A fault may have no effect: it may hit a node that is down, or no link
    /// in a small run.
    fn of(&mut self, kind: FaultKind, faults: &Faults, run: RunState) -> Vec<(Duration, Fault)> {
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

    /// A crash of `node` with a restart; `None` if as many nodes are down as may be. It loses the
    /// disk if the kind is `DiskLoss` and a further disk may be lost, which counts the disk even if
    /// `node` is down. The time until the restart is drawn in any case.
    fn crash(
        &mut self,
        kind: FaultKind,
        node: NodeIndex,
        faults: &Faults,
        run: RunState,
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

    /// All nodes in random order.
    fn shuffled(&mut self, nodes: usize) -> Vec<NodeIndex> {
        let mut all: Vec<NodeIndex> = (0..nodes).map(NodeIndex::new).collect();
        self.chance.shuffle(&mut all);
        all
    }

    /// Two groups of all nodes, the size of the first one drawn uniformly from 1 to all but one. A
    /// single node gives one group.
    fn by_size(&mut self, nodes: usize) -> Vec<Vec<NodeIndex>> {
        let mut one = self.shuffled(nodes);
        let size = 1 + self.chance.index(nodes.saturating_sub(1));
        let other = one.split_off(size.min(nodes));
        sorted(vec![one, other])
    }

    /// Two or three groups of all nodes; each node is in a random one. Groups without a node are
    /// left out, so there may be one group only.
    fn by_assignment(&mut self, nodes: usize) -> Vec<Vec<NodeIndex>> {
        let mut groups = vec![Vec::new(); 2 + self.chance.index(2)];
        for node in 0..nodes {
            let group = self.chance.index(groups.len());
            groups[group].push(NodeIndex::new(node));
        }
        sorted(groups)
    }

    /// Two groups of equal size (the second may have one more) of all nodes but a random one.
    /// Groups without a node are left out: with two nodes there is one group, with one node none.
    fn bridge(&mut self, nodes: usize) -> Vec<Vec<NodeIndex>> {
        let mut one = self.shuffled(nodes);
        let _ = one.pop(); // the bridge is in no group
        let other = one.split_off(one.len() / 2);
        sorted(vec![one, other])
    }

    /// The links from one of two groups [by size](Self::by_size) to the other. None with one node.
    fn one_way(&mut self, nodes: usize) -> LinkSet {
        let mut groups = self.by_size(nodes);
        if self.chance.chance(0.5) {
            groups.reverse();
        }
        let to = groups.pop().unwrap_or_default();
        LinkSet { from: groups.pop().unwrap_or_default(), to }
    }

    /// Arranges the nodes on a circle in random order; each reaches only a majority around itself.
    /// Returns the links to cut, in both directions. Up to three nodes none is cut.
    fn ring(&mut self, nodes: usize) -> Vec<LinkSet> {
        let circle = self.shuffled(nodes);
        let reach = nodes / 4 + usize::from(nodes % 4 >= 2);
        let far = |at: usize| (reach + 1..nodes.saturating_sub(reach)).map(move |step| at + step);
        (0..nodes)
            .map(|at| LinkSet {
                from: vec![circle[at]],
                to: far(at).map(|other| circle[other % nodes]).collect(),
            })
            .filter(|links| !links.to.is_empty())
            .collect()
    }

    /// The links from some nodes to some nodes, at least one each; the two sets may overlap. They
    /// may name no link if both are the same node.
    fn some_links(&mut self, run: RunState) -> LinkSet {
        let mut from = self.shuffled(run.nodes);
        let mut to = self.shuffled(run.nodes);
        from.truncate(1 + self.chance.index(run.nodes));
        to.truncate(1 + self.chance.index(run.nodes));
        from.sort_unstable();
        to.sort_unstable();
        LinkSet { from, to }
    }

    /// One partition [by size](Self::by_size) that starts 2 to 9 times within `span`, the first
    /// time without delay, each time for half of the interval.
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

    /// Cuts between one node and each other one, in both directions, started one after the other
    /// within half of `span` (the first one after a first step, not at once), each of random length
    /// from 1 ns to `span`. None with one node.
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

    /// The milliseconds of a jump, in either direction: at least 1, even if the wall skew of the
    /// run is less, otherwise at most the wall skew.
    fn jump(&mut self, faults: &Faults) -> i64 {
        let most = i64::try_from(faults.wall_skew.as_millis()).unwrap_or(i64::MAX).max(1);
        let size = i64::try_from(self.chance.between(1, most.unsigned_abs())).unwrap_or(most);
        if self.chance.chance(0.5) { size } else { -size }
    }

    /// The rate of a drifting clock: at most `rate_ppm` fast or slow; 0 makes it exact again. It
    /// replaces the present rate, and is not relative to it.
    fn ppm(&mut self, faults: &Faults) -> i32 {
        let most = i32::try_from(faults.rate_ppm).unwrap_or(i32::MAX);
        let size = self.chance.between(0, u64::from(most.unsigned_abs()));
        let size = i32::try_from(size).unwrap_or(most);
        if self.chance.chance(0.5) { size } else { -size }
    }
}

/// All nodes but one, in order.
fn others(node: NodeIndex, nodes: usize) -> Vec<NodeIndex> {
    (0..nodes).map(NodeIndex::new).filter(|other| *other != node).collect()
}

/// Sorts the nodes of each group, and drops empty groups.
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
    fn seed_determines_the_faults() {
        assert_eq!(Faults::swarm(7), Faults::swarm(7));
        assert_ne!(Faults::swarm(7), Faults::swarm(8));
    }

    #[test]
    fn swarm_includes_every_kind_in_some_runs_only() {
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
                    (0..50).map(|_| draw.next(&faults, RunState { nodes, down: 0 }).len()).sum();
                let crashes = matches!(kind, FaultKind::Crash | FaultKind::DiskLoss);
                let alone = nodes == 1 && kind == FaultKind::Swizzle;
                let room = !(alone || crashes && nodes < 3);
                assert_eq!(drawn > 0, room, "{kind:?} with {nodes} nodes");
            }
        }
    }

    #[test]
    fn majority_ring_gives_each_node_a_majority_but_not_all() {
        for nodes in [4, 5, 7, 9] {
            for links in Draw::new(1).ring(nodes) {
                let reached = nodes - links.to.len();
                assert!(reached > nodes / 2, "{nodes} nodes: {links:?}");
                assert!(!links.to.contains(&links.from[0]));
            }
        }
    }

    #[test]
    fn drawn_crashes_leave_a_majority_up_with_its_disks() {
        let faults = Faults { kinds: vec![(FaultKind::DiskLoss, 1)], ..Faults::all() };
        let mut draw = Draw::new(3);
        let full = RunState { nodes: 5, down: 2 };
        assert!((0..50).all(|_| draw.next(&faults, full).is_empty()));
        let lost = (0..50)
            .flat_map(|_| draw.next(&faults, RunState { nodes: 5, down: 0 }))
            .filter(|(_, fault)| matches!(fault, Fault::Crash { disk: DiskFate::Lost, .. }))
            .count();
        assert_eq!(lost, 2);
    }
}
