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
    /// Called when a process has emitted an event, before the rules of the harness see it. By then
    /// the process has handled its whole batch of inputs (or the tick that emitted it), but effects
    /// that it ordered after the event are not carried out yet. The observer may order commands and
    /// faults in response; they are carried out even if it returns an error. The default accepts.
    ///
    /// # Errors
    /// The violation that ends the run. Only the first one is kept.
    fn event(
        &mut self,
        _view: &SimulationView<'_, P>,
        _node: NodeIndex,
        _event: &P::Event,
        _orders: &mut Orders<P>,
    ) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// Called after every batch of a node that had an input or a tick
    /// ([`SimulationView::touched`]), and after every fault, also one in the middle of a batch or
    /// without effect. Not called at the end of a lasting fault. The default accepts.
    ///
    /// # Errors
    /// The violation that ends the run. Only the first one is kept.
    fn check(&mut self, _view: &SimulationView<'_, P>) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

impl<P: Process> Observer<P> for () {}

/// The orders of an [`Observer`] in response to one event. All commands are scheduled first, then
/// the faults are injected one by one, in the order of the calls. Both happen in a healed run too.
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
    /// Gives a command to `node` after this time; with zero at this instant, but after this event.
    /// It is dropped if the node is down then, but not if the node has restarted in between.
    pub fn command(&mut self, after: Duration, node: NodeIndex, command: P::Command) {
        self.commands.push((after, node, command));
    }

    /// Injects a fault now: after this event, before the effects that its node ordered after it. A
    /// crash of that node drops those effects. The fault is not a part of the recorded schedule.
    pub fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }
}

/// A read-only view of a run. Methods that take a node panic if the run has no such node.
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

    /// Returns the node whose event or batch the observer is shown, also if it has crashed since;
    /// `None` after a fault and in the view of a harness.
    #[must_use]
    pub fn touched(&self) -> Option<NodeIndex> {
        self.touched
    }

    /// Returns the number of nodes, up or down.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the process of a node; `None` while it is down or was never started.
    #[must_use]
    pub fn process(&self, node: NodeIndex) -> Option<&'a P> {
        self.nodes[node.get()].process.as_ref()
    }

    /// Iterates over the processes that are up, in the order of their nodes.
    pub fn processes(&self) -> impl Iterator<Item = (NodeIndex, &'a P)> + use<'a, P> {
        processes(self.nodes)
    }

    /// Returns the number of a node's incarnation, the last one if the node is down; 0 before its
    /// first start.
    #[must_use]
    pub fn incarnation(&self, node: NodeIndex) -> u32 {
        self.nodes[node.get()].incarnation
    }

    /// Returns the content that a node's disk would certainly keep if the node crashed now. Records
    /// written since the last completed sync are left out.
    #[must_use]
    pub fn disk(&self, node: NodeIndex) -> &'a P::Disk {
        self.nodes[node.get()].disk.synced()
    }

    /// Returns the present readings of a node's clocks, which run also while the node is down.
    #[must_use]
    pub fn clock(&self, node: NodeIndex) -> Now {
        self.nodes[node.get()].clock.read(self.now)
    }

    /// Whether a directed link loses every message sent now, because it is cut or broken. A clogged
    /// link holds messages instead, so it does not count.
    #[must_use]
    pub fn is_cut(&self, link: SimLink) -> bool {
        self.network.is_cut(link) || self.network.is_broken(link)
    }
}

/// Iterates over the processes that are up, in the order of their nodes.
pub(super) fn processes<P: Process>(nodes: &[SimNode<P>]) -> impl Iterator<Item = (NodeIndex, &P)> {
    let up = |(n, node)| -> Option<(NodeIndex, &P)> {
        let node: &SimNode<P> = node;
        Some((NodeIndex::new(n), node.process.as_ref()?))
    };
    nodes.iter().enumerate().filter_map(up)
}

/// An input of a node. It is dropped if the process is down when it is due, or crashes while it
/// waits in the inbox. Answers of the disk and news of links are dropped also if the node has
/// restarted since they were scheduled.
#[derive(Debug)]
pub(super) enum SimInput<P: Process> {
    Start,
    Message { from: NodeIndex, lane: u8, message: P::Message },
    Command(P::Command),
    Synced { token: u64, outcome: Result<(), SyncFailed> },
    LinkBroken { peer: NodeIndex, direction: Direction },
    LinkUp { peer: NodeIndex, direction: Direction },
}

/// Number of inputs waiting for a paused or slow node from which on further messages of other nodes
/// are lost, which breaks the link of a reliable lane. Other inputs have no bound.
pub(super) const INBOX_MAX: usize = 100_000;

/// A node, which runs one incarnation of its process after the other.
pub(super) struct SimNode<P: Process> {
    pub(super) process: Option<P>, // `None` before the first start and after a crash
    pub(super) incarnation: u32,   // of the last start; 0 before the first one
    pub(super) clock: NodeClock,
    pub(super) armed: SimTime, // of the next tick, others are stale; `NEVER`: none is scheduled
    pub(super) ready_at: SimTime, // paused or busy until then; inputs wait in the inbox
    pub(super) per_input: Duration, // a slow node's busy time for each input; zero: not slow
    /// Inputs that wait, oldest first: at most [`INBOX_MAX`] messages of other nodes, plus others.
    /// Emptied by a crash.
    pub(super) inbox: VecDeque<SimInput<P>>,
    pub(super) disk: SimDisk<P::Disk>,
    pub(super) synced_at: SimTime, // end of the last sync that was ordered
    pub(super) sync_slower: Duration, // added to each sync by slow-disk faults
    pub(super) sync_fails: bool,   // the next sync fails, once
    pub(super) chance: RandomStream,
}

impl<P: Process> SimNode<P> {
    /// Creates a node that was never started, without a pause, a fault or records on its disk. It
    /// stays down until the engine starts it.
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

    /// Whether the node is down and was up before. A node that was never started has not crashed.
    pub(super) fn has_crashed(&self) -> bool {
        self.process.is_none() && self.incarnation > 0
    }
}
