//! Seeded discrete-event simulation of any protocol of this project.
//!
//! A [`Process`] is one node's protocol code, usually one or more [machines](crate::machine) and
//! the wiring between them. A [`Simulation`] runs several of them on virtual time, over a network,
//! disks and clocks that fail as [`Faults`] say, and shows every step to an [`Observer`]. The same
//! [`Seed`] gives the same run, event for event ([`Simulation::hash`]).
//!
//! The simulator knows nothing of what it runs: no replicator, no membership, no message.
//!
//! Spec: spec/reference/reliability.md §3.2 to §3.4. The shape is that of TigerBeetle's VOPR and
//! FoundationDB's simulation.
//!
//! # Example
//! ```
//! use std::time::Duration;
//! use ostraca_ddata::clock::{Instant, Now};
//! use ostraca_ddata::sim::{Effects, Faults, NodeIndex, Process, Setup, Simulation};
//!
//! /// Counts what comes and answers until ten came.
//! struct Echo {
//!     came: u32,
//! }
//! impl Process for Echo {
//!     type Message = u32;
//!     type Command = NodeIndex;
//!     type Event = u32;
//!     type Disk = ();
//!     fn message(&mut self, _: Now, from: NodeIndex, n: u32, fx: &mut Effects<Self>) {
//!         self.came += 1;
//!         fx.emit(n);
//!         if n < 10 {
//!             fx.send(from, 0, n + 1);
//!         }
//!     }
//!     fn command(&mut self, _: Now, peer: NodeIndex, fx: &mut Effects<Self>) {
//!         fx.send(peer, 0, 1);
//!     }
//!     fn tick(&mut self, _: Now, _: &mut Effects<Self>) {}
//!     fn next_deadline(&self) -> Option<Instant> {
//!         None
//!     }
//! }
//!
//! let setup = Setup { faults: Faults::none(), ..Setup::new(7, 2) };
//! let mut sim = Simulation::new(setup, (), |_boot| Echo { came: 0 });
//! sim.command(NodeIndex::new(0), NodeIndex::new(1));
//! sim.run_until(Duration::from_secs(1), |sim| sim.is_quiet());
//! assert_eq!(sim.process(NodeIndex::new(1)).map(|echo| echo.came), Some(5));
//! ```

mod clock;
mod control;
mod disk;
mod engine;
mod fault;
mod network;
mod queue;
mod schedule;
mod seeds;
mod simulation;
mod stream;
mod trace;
mod world;

use std::fmt;

pub use clock::{NoTime, SimTime};
pub use disk::{Image, SyncFailed};
pub use fault::{DiskFate, Fault, FaultKind, Faults, Links};
pub use network::{LaneLoss, LaneRule, Link, LinkQuality};
pub use schedule::{Line, NoFault, Schedule, Trigger, shrink};
pub use seeds::{Seed, Seeds, Totals, on_all_cores, seeds};
pub use simulation::{Failure, Setup, Simulation};
pub use stream::Stream;
pub use trace::{Marks, TraceLevel};
pub use world::{Observer, Orders, View, Violation};

use crate::clock::{Instant, Now};

/// Most nodes of a run.
pub const NODES_MAX: usize = 60_000;

/// A node of a run, counted from 0. It names a place, not an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(u16);

impl NodeIndex {
    /// The node with this number.
    ///
    /// # Panics
    /// If `index` is not below [`NODES_MAX`].
    #[inline]
    #[must_use]
    pub const fn new(index: usize) -> Self {
        assert!(index < NODES_MAX, "a run has at most 60,000 nodes");
        #[expect(clippy::cast_possible_truncation, reason = "NODES_MAX fits")]
        Self(index as u16)
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Which way a directed link runs, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the peer to this node.
    Incoming,
    /// From this node to the peer.
    Outgoing,
}

/// What a [`Process`] is built from, at the start of a run and after every crash.
#[derive(Debug)]
pub struct Boot<'a, D> {
    /// Which node.
    pub node: NodeIndex,
    /// Its how-manieth life; the first is 1.
    pub incarnation: u32,
    /// For the process's own generator; another one in every life.
    pub seed: u64,
    /// Its clocks.
    pub now: Now,
    /// What its disk holds.
    pub disk: &'a D,
}

/// One node's protocol, as the simulator drives it.
///
/// It gets inputs in batches, as from the real driver: all that arrived at one instant, then a
/// tick if [`next_deadline`](Self::next_deadline) has passed. What it orders through [`Effects`]
/// is carried out after the batch, in order; a crash may come between any two orders.
pub trait Process: Sized {
    /// What nodes send to each other.
    type Message: Clone + fmt::Debug;
    /// What users ask of a node.
    type Command: fmt::Debug;
    /// What the harness may know: answers to users, and steps that a rule wants to strike at.
    type Event: fmt::Debug;
    /// What its disk adds up to; `()` if it keeps nothing.
    type Disk: Image;

    /// It was built and may act.
    fn started(&mut self, _now: Now, _fx: &mut Effects<Self>) {}

    /// A message came.
    fn message(
        &mut self,
        now: Now,
        from: NodeIndex,
        message: Self::Message,
        fx: &mut Effects<Self>,
    );

    /// A user asks.
    fn command(&mut self, now: Now, command: Self::Command, fx: &mut Effects<Self>);

    /// The deadline has passed.
    fn tick(&mut self, now: Now, fx: &mut Effects<Self>);

    /// When it wants a tick, by its own monotonic clock. A time that has passed already means
    /// "right after this batch".
    fn next_deadline(&self) -> Option<Instant>;

    /// The sync with this token is over: what was written before it is safe, or the disk failed.
    fn synced(
        &mut self,
        _now: Now,
        _token: u64,
        _outcome: Result<(), SyncFailed>,
        _fx: &mut Effects<Self>,
    ) {
    }

    /// A directed link broke: what was under way on it is lost, what is sent on it is lost until
    /// it is up.
    fn link_broken(
        &mut self,
        _now: Now,
        _peer: NodeIndex,
        _direction: Direction,
        _fx: &mut Effects<Self>,
    ) {
    }

    /// A broken link works again.
    fn link_up(
        &mut self,
        _now: Now,
        _peer: NodeIndex,
        _direction: Direction,
        _fx: &mut Effects<Self>,
    ) {
    }

    /// A hash of a message's content, for the run's hash; `None`: that of its `Debug` text, which
    /// is slow for large messages.
    fn digest(_message: &Self::Message) -> Option<u64> {
        None
    }

    /// A hash of what tells a command from others; `None`: that of its `Debug` text.
    fn digest_command(_command: &Self::Command) -> Option<u64> {
        None
    }

    /// A message after the real codec. Asked of every tenth message, so that a run also tests
    /// that what is decoded is what was encoded.
    fn recode(message: Self::Message) -> Self::Message {
        message
    }
}

/// What a [`Process`] has ordered.
#[derive(Debug)]
pub struct Effects<P: Process> {
    node: NodeIndex,
    orders: Vec<Effect<P>>, // carried out after every batch
    marks: Marks,
}

/// One order.
enum Effect<P: Process> {
    Send { to: NodeIndex, lane: usize, message: P::Message },
    Emit(P::Event),
    Write(<P::Disk as Image>::Record),
    Sync(u64),
}

impl<P: Process> fmt::Debug for Effect<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, lane, message } => write!(f, "to {to} on lane {lane}: {message:?}"),
            Self::Emit(event) => write!(f, "emit {event:?}"),
            Self::Write(_) => f.write_str("write"),
            Self::Sync(token) => write!(f, "sync {token}"),
        }
    }
}

impl<P: Process> Effects<P> {
    /// The node that acts.
    #[must_use]
    pub fn node(&self) -> NodeIndex {
        self.node
    }

    /// Sends a message on a lane, an index into [`Setup::lanes`]. A message to the node itself
    /// comes after a short while and is never lost.
    pub fn send(&mut self, to: NodeIndex, lane: usize, message: P::Message) {
        self.orders.push(Effect::Send { to, lane, message });
    }

    /// Tells the harness; nothing else follows from it, but rules may strike here.
    pub fn emit(&mut self, event: P::Event) {
        self.orders.push(Effect::Emit(event));
    }

    /// Writes a record; a crash before the next sync is over may lose it.
    pub fn write(&mut self, record: <P::Disk as Image>::Record) {
        self.orders.push(Effect::Write(record));
    }

    /// Syncs what was written so far; [`Process::synced`] brings the token back.
    pub fn sync(&mut self, token: u64) {
        self.orders.push(Effect::Sync(token));
    }

    /// Counts that a rare branch was reached.
    pub fn mark(&mut self, name: &'static str) {
        self.marks.hit(name);
    }
}
