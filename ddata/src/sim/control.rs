//! The controls of a harness: commands, faults, rules that inject faults at chosen steps, healing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock::SimTime;
use super::fault::{DiskFate, Fault, LinkSet};
use super::network::SimLink;
use super::queue::{Owner, QueueEvent};
use super::simulation::{Action, FaultSource, Rule, Simulation};
use super::stream::RandomStream;
use super::trace::EventKind;
use super::world::{Observer, SimInput};
use super::{NodeIndex, Process};

/// Maximum time until an end learns of a link that a `Break` fault broke, or the crash or the start
/// of its peer.
const BREAK_TOLD_MAX: Duration = Duration::from_millis(50);

impl<P: Process, O: Observer<P>> Simulation<P, O> {
    /// Gives a command to a node now; the node handles it when the run goes on. It is dropped if
    /// the node is down then. An unknown node makes the run fail.
    pub fn command(&mut self, node: NodeIndex, command: P::Command) {
        self.schedule_command(Duration::ZERO, node, command);
    }

    /// Gives a command to a node after this time. It is dropped if the node is down then, but not
    /// if the node has restarted in between.
    pub fn schedule_command(&mut self, after: Duration, node: NodeIndex, command: P::Command) {
        let input = SimInput::Command(command);
        let action = Action::Tell { incarnation: None, input };
        self.schedule_action(self.now + after, Owner::Node(node), action);
    }

    /// Injects a fault now, before this function returns, even if the run was healed. It is not
    /// part of the recorded [`schedule`](Self::schedule). A violation that it causes is reported by
    /// the next function that runs the simulation.
    ///
    /// The nodes that it names must exist, which is not checked: an unknown one panics, or hits
    /// another link.
    pub fn fault(&mut self, fault: &Fault) {
        self.strike(fault, FaultSource::Harness);
    }

    /// Injects a fault after this time, as [`fault`](Self::fault) does, even if the run is healed
    /// before.
    pub fn schedule_fault(&mut self, after: Duration, fault: Fault) {
        let action = Action::Strike { fault, source: FaultSource::Harness };
        self.schedule_action(self.now + after, Owner::Run, action);
    }

    /// Registers a rule: whenever a process emits an event that `matches`, `fault` is injected with
    /// this probability, after the event and before the orders that its node made after it.
    ///
    /// `fault` is called with the node that emitted the event. Rules apply in the order of their
    /// registration, each to every event from now on, and end with [`heal`](Self::heal). A crash is
    /// left out if as many nodes are down already as
    /// [`Faults::down_at_once`](super::Faults::down_at_once) allows. In a run that follows a
    /// schedule, rules inject only its targeted faults, and `fault` is never called.
    pub fn after(
        &mut self,
        matches: impl FnMut(&P::Event) -> bool + 'static,
        fault: impl FnMut(NodeIndex) -> Fault + 'static,
        probability: f64,
    ) {
        let (matches, fault) = (Box::new(matches), Box::new(fault));
        let (matched_at, matches_by_node) = (SimTime::default(), BTreeMap::new());
        self.rules.push(Rule { matches, fault, probability, matched_at, matches_by_node });
    }

    /// Crashes a node, without a restart. Its disk keeps the synced records, and of the others at
    /// most a prefix (see [`Faults::torn_tail`](super::Faults::torn_tail)). Does nothing if the
    /// node is down.
    pub fn crash(&mut self, node: NodeIndex) {
        self.fault(&Fault::Crash { node, disk: DiskFate::Kept, down: None });
    }

    /// Starts the next incarnation of a node that is down or was never up, and runs its first
    /// batch. Does nothing if the node is up.
    pub fn restart(&mut self, node: NodeIndex) {
        self.fault(&Fault::Restart { node });
    }

    /// Starts the next incarnation of every node that has crashed, one fault for each. Nodes that
    /// were never started stay down.
    pub fn restart_all(&mut self) {
        for node in (0..self.nodes.len()).map(NodeIndex::new) {
            if self.nodes[node.get()].has_crashed() {
                self.restart(node);
            }
        }
    }

    /// Pauses a node for `span`. A longer pause under way is kept; a node that is down is not
    /// paused.
    pub fn pause(&mut self, node: NodeIndex, span: Duration) {
        self.fault(&Fault::Pause { node, span });
    }

    /// Cuts every link between different groups, in both directions, until [`heal`](Self::heal).
    /// Nodes in no group keep their links. The ends are not told.
    pub fn partition<const GROUPS: usize>(&mut self, groups: [&[usize]; GROUPS]) {
        let named = |group: &&[usize]| group.iter().copied().map(NodeIndex::new).collect();
        let groups = groups.iter().map(named).collect();
        self.fault(&Fault::Partition { groups, span: None });
    }

    /// Ends all faults (partitions, clogs, pauses, slowness, loss, a pending `FailSync`) and draws
    /// no further ones.
    ///
    /// It restarts nothing and leaves clocks and syncs under way as they are. Nodes that crashed
    /// with a restart time are still restarted then. Messages that clogs held are sent on, and lost
    /// only if their link has broken or their receiver is gone. Broken links between nodes that are
    /// up come up within about a second after both ends know of the break. Every link is clean from
    /// now on, and rules inject nothing. Faults that were drawn, or that the followed schedule
    /// holds, and have not begun are dropped; those that the harness has ordered, or orders later,
    /// still occur, and a second call ends them.
    pub fn heal(&mut self) {
        self.healed = true;
        self.heals += 1;
        for slot in self.network.heal() {
            self.release(slot);
        }
        for index in (0..self.nodes.len()).map(NodeIndex::new) {
            let node = &mut self.nodes[index.get()];
            node.per_input = Duration::ZERO;
            node.sync_slower = Duration::ZERO;
            node.sync_fails = false;
            if node.ready_at > self.now {
                node.ready_at = self.now;
                self.queue.push(self.now, Owner::Node(index), QueueEvent::Wake);
            }
        }
        self.reconnect_all();
    }

    /// Whether a fault is no crash, or not so many nodes are down already as `down_at_once` allows
    /// (by default fewer than half of all). Nodes that were never started do not count as down.
    /// Used for rules only: the draw has a check of its own, harness and schedule have none.
    pub(super) fn leaves_enough_up(&self, fault: &Fault) -> bool {
        let down = self.nodes.iter().filter(|node| node.has_crashed()).count();
        let minority = (self.nodes.len() - 1) / 2;
        !matches!(fault, Fault::Crash { .. }) || down < self.faults.down_at_once.unwrap_or(minority)
    }

    /// Starts a fault: counts it, records it in the schedule of its source and in the trace,
    /// carries it out, schedules its end if it has a duration, and lets the observer check. A fault
    /// without effect (the crash of a node that is down) is counted and recorded all the same. A
    /// drawn fault is dropped without any of this if the run was healed since it was drawn.
    pub(super) fn strike(&mut self, fault: &Fault, source: FaultSource) {
        if matches!(source, FaultSource::Drawn { heals } if heals != self.heals) {
            return; // drawn before the run was healed
        }
        self.note(source, fault);
        let digest = self.trace.digest(fault);
        self.trace.record(self.now, NodeIndex::new(0), EventKind::Fault, digest, fault);
        match fault {
            Fault::Partition { .. }
            | Fault::Cut { .. }
            | Fault::Clog { .. }
            | Fault::Delay { .. }
            | Fault::Break { .. } => self.strike_links(fault),
            Fault::Crash { node, disk, down } => self.strike_crash(*node, *disk, *down),
            Fault::Restart { node } => self.start(*node),
            Fault::Pause { node, span } => self.strike_pause(*node, *span),
            Fault::Jump { node, millis } => self.nodes[node.get()].clock.jump(*millis),
            Fault::Drift { node, ppm } => self.strike_drift(*node, *ppm),
            Fault::Slow { node, per_input, .. } => {
                self.nodes[node.get()].per_input += *per_input;
            }
            Fault::SlowDisk { node, by, .. } => self.nodes[node.get()].sync_slower += *by,
            Fault::FailSync { node } => self.nodes[node.get()].sync_fails = true,
        }
        if let Some(span) = fault.span() {
            let action = Action::End { heals: self.heals, fault: fault.clone() };
            self.schedule_action(self.now + span, Owner::Run, action);
        }
        self.check(None);
    }

    /// Ends a lasting fault whose duration has passed; other faults of the same link or node go on.
    /// The end of a cut schedules attempts to bring up all broken links of the run, that of a clog
    /// releases its messages if no other clog of the link lasts. Nothing is recorded or checked.
    /// Does nothing for faults without a duration.
    pub(super) fn end(&mut self, fault: &Fault) {
        match fault {
            Fault::Partition { .. } | Fault::Cut { .. } => {
                for link in fault.links() {
                    self.network.uncut(link);
                }
                self.reconnect_all();
            }
            Fault::Clog { .. } => {
                for link in fault.links() {
                    for slot in self.network.unclog(link) {
                        self.release(slot);
                    }
                }
            }
            Fault::Delay { by, .. } => {
                for link in fault.links() {
                    self.network.unslow(link, *by);
                }
            }
            Fault::Slow { node, per_input, .. } => {
                let node = &mut self.nodes[node.get()];
                node.per_input = node.per_input.saturating_sub(*per_input);
            }
            Fault::SlowDisk { node, by, .. } => {
                let node = &mut self.nodes[node.get()];
                node.sync_slower = node.sync_slower.saturating_sub(*by);
            }
            Fault::Break { .. }
            | Fault::Crash { .. }
            | Fault::Restart { .. }
            | Fault::Pause { .. }
            | Fault::Jump { .. }
            | Fault::Drift { .. }
            | Fault::FailSync { .. } => {}
        }
    }

    /// Starts a fault of links on each of them. A partition is a cut in both directions.
    fn strike_links(&mut self, fault: &Fault) {
        for link in fault.links() {
            match fault {
                Fault::Clog { .. } => self.network.clog(link),
                Fault::Delay { by, .. } => self.network.slow(link, *by),
                Fault::Break { .. } => self.break_link(link, BREAK_TOLD_MAX),
                _ => self.network.cut(link),
            }
        }
    }

    /// Crashes a node: drops its process and inbox, and keeps or loses its disk. Messages in the
    /// inbox are not counted as lost. If the crash is told (a random decision), the node's links
    /// break at once; otherwise they break when the node starts again. A restart is scheduled if
    /// the fault has one. Slowness and a pending `FailSync` stay for the next incarnation. Does
    /// nothing if the node is down; such a crash does not count.
    fn strike_crash(&mut self, index: NodeIndex, disk: DiskFate, down: Option<Duration>) {
        let node = &mut self.nodes[index.get()];
        if node.process.take().is_none() {
            return;
        }
        self.totals.crashes += 1;
        node.armed = SimTime::NEVER;
        node.inbox.clear();
        match disk {
            DiskFate::Kept => {
                let torn = node.chance.chance(self.faults.torn_tail);
                node.disk.crash(torn, &mut node.chance);
            }
            DiskFate::Lost => node.disk.lose(),
        }
        let incarnation = node.incarnation;
        let told = (1 << 60) | index.get() as u64;
        if let Some(down) = down {
            let action = Action::Restart { node: index, incarnation };
            self.schedule_action(self.now + down, Owner::Run, action);
        }
        if RandomStream::decision(self.family, self.now.as_nanos(), told)
            .chance(self.faults.crash_is_told)
        {
            self.break_links_of(index);
        }
    }

    /// Breaks every link of a node, in both directions, on which a message was ever sent. Ends that
    /// are up are told within [`BREAK_TOLD_MAX`]. Links that are broken already stay as they are.
    pub(super) fn break_links_of(&mut self, index: NodeIndex) {
        for peer in (0..self.nodes.len()).map(NodeIndex::new).filter(|peer| *peer != index) {
            for link in [SimLink { from: index, to: peer }, SimLink { from: peer, to: index }] {
                if self.network.is_used(link) {
                    self.break_link(link, BREAK_TOLD_MAX);
                }
            }
        }
    }

    /// Pauses a node. A longer pause or busy time that is already under way is kept. If an event of
    /// the node causes the pause, the rest of its batch is still carried out, and a slow node's
    /// busy time then replaces the pause. Does nothing if the node is down.
    fn strike_pause(&mut self, index: NodeIndex, span: Duration) {
        let node = &mut self.nodes[index.get()];
        if node.process.is_some() {
            node.ready_at = node.ready_at.max(self.now + span);
            self.queue.push(node.ready_at, Owner::Node(index), QueueEvent::Wake);
        }
    }

    /// Changes the rate of a node's monotonic clock, up or down, and schedules its tick anew,
    /// because the deadline is now reached at another time. A paused or busy node arms its tick
    /// when it wakes.
    fn strike_drift(&mut self, index: NodeIndex, ppm: i32) {
        let node = &mut self.nodes[index.get()];
        node.clock.drift(self.now, ppm);
        node.armed = SimTime::NEVER;
        if node.ready_at <= self.now {
            self.arm(index);
        }
    }
}

impl Fault {
    /// A fault that cuts a node off from all others, in both directions, in a run with `nodes`
    /// nodes. Without a second node it has no effect.
    #[must_use]
    pub fn isolate(node: NodeIndex, nodes: usize, span: Duration) -> Self {
        let others = (0..nodes).map(NodeIndex::new).filter(|other| *other != node).collect();
        Self::Partition { groups: vec![vec![node], others], span: Some(span) }
    }

    /// A fault that crashes a node, which restarts after `down` with what a crash leaves on its
    /// disk.
    #[must_use]
    pub fn crash(node: NodeIndex, down: Duration) -> Self {
        Self::Crash { node, disk: DiskFate::Kept, down: Some(down) }
    }

    /// Returns the directed links that the fault affects, of a partition in both directions. Empty
    /// for faults of nodes.
    #[must_use]
    pub fn links(&self) -> Vec<SimLink> {
        match self {
            Self::Partition { groups, .. } => between(groups),
            Self::Cut { links, .. }
            | Self::Clog { links, .. }
            | Self::Delay { links, .. }
            | Self::Break { links } => links.iter().flat_map(LinkSet::each).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns every node that the fault names, some perhaps several times. A partition does not
    /// name the nodes in no group.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeIndex> {
        match self {
            Self::Partition { groups, .. } => groups.concat(),
            Self::Cut { links, .. }
            | Self::Clog { links, .. }
            | Self::Delay { links, .. }
            | Self::Break { links } => {
                links.iter().flat_map(|links| links.from.iter().chain(&links.to)).copied().collect()
            }
            Self::Crash { node, .. }
            | Self::Restart { node }
            | Self::Pause { node, .. }
            | Self::Jump { node, .. }
            | Self::Drift { node, .. }
            | Self::Slow { node, .. }
            | Self::SlowDisk { node, .. }
            | Self::FailSync { node } => vec![*node],
        }
    }

    /// The time after which the simulator ends the fault; `None` if the fault lasts until
    /// [`heal`](Simulation::heal) or has no end. Crashes and pauses end by themselves.
    fn span(&self) -> Option<Duration> {
        match self {
            Self::Partition { span, .. }
            | Self::Cut { span, .. }
            | Self::Clog { span, .. }
            | Self::Delay { span, .. }
            | Self::Slow { span, .. }
            | Self::SlowDisk { span, .. } => *span,
            _ => None,
        }
    }
}

impl LinkSet {
    /// Iterates over the single links. A node has no link to itself. Repeated nodes give repeated
    /// links, which are then cut or slowed several times.
    pub fn each(&self) -> impl Iterator<Item = SimLink> + '_ {
        let all = |from: &NodeIndex| {
            let from = *from;
            self.to.iter().map(move |to| SimLink { from, to: *to })
        };
        self.from.iter().flat_map(all).filter(|link| link.from != link.to)
    }
}

/// All directed links from each group to every other one.
fn between(groups: &[Vec<NodeIndex>]) -> Vec<SimLink> {
    let mut links = Vec::new();
    for (one, from) in groups.iter().enumerate() {
        for (_, to) in groups.iter().enumerate().filter(|(other, _)| *other != one) {
            links.extend(LinkSet { from: from.clone(), to: to.clone() }.each());
        }
    }
    links
}
