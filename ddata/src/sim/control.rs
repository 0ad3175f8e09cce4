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

/// Maximum time until an end learns of a link that a fault broke.
const BREAK_TOLD_MAX: Duration = Duration::from_millis(50);

impl<P: Process, O: Observer<P>> Simulation<P, O> {
    /// Gives a command to a node now. It is dropped if the node is down.
    pub fn command(&mut self, node: NodeIndex, command: P::Command) {
        self.schedule_command(Duration::ZERO, node, command);
    }

    /// Gives a command to a node after this time. It is dropped if the node is down then.
    pub fn schedule_command(&mut self, after: Duration, node: NodeIndex, command: P::Command) {
        let input = SimInput::Command(command);
        let action = Action::Tell { incarnation: None, input };
        self.schedule_action(self.now + after, Owner::Node(node), action);
    }

    /// Injects a fault now.
    pub fn fault(&mut self, fault: &Fault) {
        self.strike(fault, FaultSource::Harness);
    }

    /// Injects a fault after this time.
    pub fn schedule_fault(&mut self, after: Duration, fault: Fault) {
        let action = Action::Strike { fault, source: FaultSource::Harness };
        self.schedule_action(self.now + after, Owner::Run, action);
    }

    /// Registers a rule: whenever a process emits an event that `matches`, `fault` is injected with
    /// this probability, after the event and before the orders that its node made after it.
    ///
    /// Rules end with [`heal`](Self::heal). A crash is left out if as many nodes are down already
    /// as [`Faults::down_at_once`](super::Faults::down_at_once) allows.
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

    /// Crashes a node. Its disk keeps the synced records.
    pub fn crash(&mut self, node: NodeIndex) {
        self.fault(&Fault::Crash { node, disk: DiskFate::Kept, down: None });
    }

    /// Starts the next incarnation of a node that is down or was never up.
    pub fn restart(&mut self, node: NodeIndex) {
        self.fault(&Fault::Restart { node });
    }

    /// Starts the next incarnation of every node that has crashed.
    pub fn restart_all(&mut self) {
        for node in (0..self.nodes.len()).map(NodeIndex::new) {
            if self.nodes[node.get()].has_crashed() {
                self.restart(node);
            }
        }
    }

    /// Pauses a node for `span`.
    pub fn pause(&mut self, node: NodeIndex, span: Duration) {
        self.fault(&Fault::Pause { node, span });
    }

    /// Cuts every link between different groups until [`heal`](Self::heal).
    pub fn partition<const GROUPS: usize>(&mut self, groups: [&[usize]; GROUPS]) {
        let named = |group: &&[usize]| group.iter().copied().map(NodeIndex::new).collect();
        let groups = groups.iter().map(named).collect();
        self.fault(&Fault::Partition { groups, span: None });
    }

    /// Ends all faults (partitions, clogs, pauses, slowness, loss) and draws no further ones.
    ///
    /// It restarts nothing and leaves clocks as they are. Nodes that crashed with a restart time
    /// are still restarted then.
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

    /// Whether a fault is no crash, or a further node may be down.
    pub(super) fn leaves_enough_up(&self, fault: &Fault) -> bool {
        let down = self.nodes.iter().filter(|node| node.has_crashed()).count();
        let minority = (self.nodes.len() - 1) / 2;
        !matches!(fault, Fault::Crash { .. }) || down < self.faults.down_at_once.unwrap_or(minority)
    }

    /// Starts a fault and records it.
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

    /// Ends a lasting fault.
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

    /// Crashes a node: drops its process and inbox, and keeps or loses its disk. If the crash is
    /// told, the node's links break at once. A restart is scheduled if the fault has one.
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

    /// Breaks every link of a node on which a message was ever sent.
    pub(super) fn break_links_of(&mut self, index: NodeIndex) {
        for peer in (0..self.nodes.len()).map(NodeIndex::new).filter(|peer| *peer != index) {
            for link in [SimLink { from: index, to: peer }, SimLink { from: peer, to: index }] {
                if self.network.is_used(link) {
                    self.break_link(link, BREAK_TOLD_MAX);
                }
            }
        }
    }

    /// Pauses a node. A longer pause that is already under way is kept.
    fn strike_pause(&mut self, index: NodeIndex, span: Duration) {
        let node = &mut self.nodes[index.get()];
        if node.process.is_some() {
            node.ready_at = node.ready_at.max(self.now + span);
            self.queue.push(node.ready_at, Owner::Node(index), QueueEvent::Wake);
        }
    }

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
    /// A fault that cuts a node off from all others, in a run with `nodes` nodes.
    #[must_use]
    pub fn isolate(node: NodeIndex, nodes: usize, span: Duration) -> Self {
        let others = (0..nodes).map(NodeIndex::new).filter(|other| *other != node).collect();
        Self::Partition { groups: vec![vec![node], others], span: Some(span) }
    }

    /// A fault that crashes a node, which restarts with its disk after `down`.
    #[must_use]
    pub fn crash(node: NodeIndex, down: Duration) -> Self {
        Self::Crash { node, disk: DiskFate::Kept, down: Some(down) }
    }

    /// Returns the directed links that the fault affects.
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

    /// Returns every node that the fault names.
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

    /// The time after which the simulator ends the fault. Crashes and pauses end by themselves.
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
    /// Iterates over the single links. A node has no link to itself.
    pub fn each(&self) -> impl Iterator<Item = SimLink> + '_ {
        let all = |from: &NodeIndex| {
            let from = *from;
            self.to.iter().map(move |to| SimLink { from, to: *to })
        };
        self.from.iter().flat_map(all).filter(|link| link.from != link.to)
    }
}

fn between(groups: &[Vec<NodeIndex>]) -> Vec<SimLink> {
    let mut links = Vec::new();
    for (one, from) in groups.iter().enumerate() {
        for (_, to) in groups.iter().enumerate().filter(|(other, _)| *other != one) {
            links.extend(LinkSet { from: from.clone(), to: to.clone() }.each());
        }
    }
    links
}
