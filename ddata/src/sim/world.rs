//! The nodes of a simulated run, and the observer that watches them through a read-only view.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::clock::{NodeClock, SimTime};
use super::disk::{SimDisk, SyncFailed};
use super::fault::Fault;
use super::network::{Network, SimLink};
use super::stream::RandomStream;
use super::{Direction, NodeIndex, Process};
use crate::clock::Now;

/// A violated invariant. It ends the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvariantViolation {
    /// A sentence that describes the violation.
    pub what: String,
}

impl InvariantViolation {
    /// Creates a violation with this description.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Watches a run: checks invariants, keeps a history, drives closed-loop users.
///
/// `()` checks nothing.
pub trait Observer<P: Process> {
    /// Called when a process has emitted an event. It may order commands and faults in response.
    ///
    /// # Errors
    /// The violation that ends the run.
    fn event(
        &mut self,
        _view: &SimulationView<'_, P>,
        _node: NodeIndex,
        _event: &P::Event,
        _orders: &mut Orders<P>,
    ) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// Called after every batch of a node ([`SimulationView::touched`]) and after every fault.
    ///
    /// # Errors
    /// The violation that ends the run.
    fn check(&mut self, _view: &SimulationView<'_, P>) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

impl<P: Process> Observer<P> for () {}

/// The orders of an [`Observer`].
pub struct Orders<P: Process> {
    pub(super) commands: Vec<(Duration, NodeIndex, P::Command)>, // taken after every event
    pub(super) faults: Vec<Fault>,                               // taken after every event
}

impl<P: Process> Default for Orders<P> {
    fn default() -> Self {
        Self { commands: Vec::new(), faults: Vec::new() }
    }
}

impl<P: Process> Orders<P> {
    /// Gives a command to `node` after this time.
    pub fn command(&mut self, after: Duration, node: NodeIndex, command: P::Command) {
        self.commands.push((after, node, command));
    }

    /// Injects a fault now: after this event, before the orders that its node made after it.
    pub fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }
}

/// A read-only view of a run.
pub struct SimulationView<'a, P: Process> {
    pub(super) now: SimTime,
    pub(super) touched: Option<NodeIndex>,
    pub(super) nodes: &'a [SimNode<P>],
    pub(super) network: &'a Network,
}

impl<'a, P: Process> SimulationView<'a, P> {
    /// Returns the simulated time.
    #[must_use]
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// Returns the node that acted last; `None` after a fault.
    #[must_use]
    pub fn touched(&self) -> Option<NodeIndex> {
        self.touched
    }

    /// Returns the number of nodes, up or down.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the process of a node; `None` while it is down.
    #[must_use]
    pub fn process(&self, node: NodeIndex) -> Option<&'a P> {
        self.nodes[node.get()].process.as_ref()
    }

    /// Iterates over the processes that are up.
    pub fn processes(&self) -> impl Iterator<Item = (NodeIndex, &'a P)> + use<'a, P> {
        processes(self.nodes)
    }

    /// Returns the number of a node's incarnation; 0 before its first start.
    #[must_use]
    pub fn incarnation(&self, node: NodeIndex) -> u32 {
        self.nodes[node.get()].incarnation
    }

    /// Returns the content that a node's disk would certainly keep if the node crashed now.
    #[must_use]
    pub fn disk(&self, node: NodeIndex) -> &'a P::Disk {
        self.nodes[node.get()].disk.synced()
    }

    /// Returns the present readings of a node's clocks.
    #[must_use]
    pub fn clock(&self, node: NodeIndex) -> Now {
        self.nodes[node.get()].clock.read(self.now)
    }

    /// Whether a directed link loses every message now, because it is cut or broken.
    #[must_use]
    pub fn is_cut(&self, link: SimLink) -> bool {
        self.network.is_cut(link) || self.network.is_broken(link)
    }
}

pub(super) fn processes<P: Process>(nodes: &[SimNode<P>]) -> impl Iterator<Item = (NodeIndex, &P)> {
    let up = |(n, node)| -> Option<(NodeIndex, &P)> {
        let node: &SimNode<P> = node;
        Some((NodeIndex::new(n), node.process.as_ref()?))
    };
    nodes.iter().enumerate().filter_map(up)
}

/// An input of a node.
#[derive(Debug)]
pub(super) enum SimInput<P: Process> {
    Start,
    Message { from: NodeIndex, lane: u8, message: P::Message },
    Command(P::Command),
    Synced { token: u64, outcome: Result<(), SyncFailed> },
    LinkBroken { peer: NodeIndex, direction: Direction },
    LinkUp { peer: NodeIndex, direction: Direction },
}

/// Maximum number of inputs that wait for a paused or slow node. Further messages of other nodes are
/// lost, which breaks the link of a reliable lane.
pub(super) const INBOX_MAX: usize = 100_000;

/// A node, which runs one incarnation of its process after the other.
pub(super) struct SimNode<P: Process> {
    pub(super) process: Option<P>,
    pub(super) incarnation: u32,
    pub(super) clock: NodeClock,
    pub(super) armed: SimTime,
    pub(super) ready_at: SimTime,
    pub(super) per_input: Duration,
    pub(super) inbox: VecDeque<SimInput<P>>, // ≤ INBOX_MAX messages of other nodes, plus other inputs
    pub(super) disk: SimDisk<P::Disk>,
    pub(super) synced_at: SimTime,
    pub(super) sync_slower: Duration,
    pub(super) sync_fails: bool,
    pub(super) chance: RandomStream,
}

impl<P: Process> SimNode<P> {
    pub(super) fn new(clock: NodeClock, chance: RandomStream) -> Self {
        Self {
            process: None,
            incarnation: 0,
            clock,
            armed: SimTime::NEVER,
            ready_at: SimTime::default(),
            per_input: Duration::ZERO,
            inbox: VecDeque::new(),
            disk: SimDisk::default(),
            synced_at: SimTime::default(),
            sync_slower: Duration::ZERO,
            sync_fails: false,
            chance,
        }
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.process.is_none() && self.incarnation > 0
    }
}
