//! Seeded discrete-event simulation of any protocol of this project.
//!
//! A [`Process`] is the protocol code of one node, usually one or more [machines](crate::machine)
//! and the wiring between them. A [`Simulation`] runs several of them on virtual time, over a
//! network, disks and clocks that fail as configured by [`Faults`], and shows every step to an
//! [`Observer`]. The same [`Seed`] gives the same run, event for event ([`Simulation::hash`]).
//!
//! The simulator does not depend on what it runs: it knows no replicator, membership or message.
//! Its design follows TigerBeetle's VOPR and FoundationDB's simulation.
//!
//! # Example
//! ```
//! use std::time::Duration;
//! use ostraca_ddata::clock::{Instant, Now};
//! use ostraca_ddata::sim::{Effects, Faults, NodeIndex, Process, Simulation, SimulationSetup};
//!
//! /// Counts the messages that it receives, and answers the first nine.
//! struct Echo {
//!     received: u32,
//! }
//! impl Process for Echo {
//!     type Message = u32;
//!     type Command = NodeIndex;
//!     type Event = u32;
//!     type Disk = ();
//!     fn message(&mut self, _: Now, from: NodeIndex, n: u32, fx: &mut Effects<Self>) {
//!         self.received += 1;
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
//! let setup = SimulationSetup { faults: Faults::none(), ..SimulationSetup::new(7, 2) };
//! let mut sim = Simulation::new(setup, (), |_boot| Echo { received: 0 });
//! sim.command(NodeIndex::new(0), NodeIndex::new(1));
//! sim.run_until(Duration::from_secs(1), |sim| sim.is_quiet());
//! assert_eq!(sim.process(NodeIndex::new(1)).map(|echo| echo.received), Some(5));
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
pub use fault::{DiskFate, Fault, FaultKind, Faults, LinkSet};
pub use network::{LaneLoss, LaneRule, LinkQuality, SimLink};
pub use schedule::{NoFault, Schedule, ScheduledFault, Trigger, shrink};
pub use seeds::{Seed, Seeds, Totals, on_all_cores, seeds};
pub use simulation::{Failure, Simulation, SimulationSetup};
pub use stream::RandomStream;
pub use trace::{Marks, TraceLevel};
pub use world::{InvariantViolation, Observer, Orders, SimulationView};

use crate::clock::{Instant, Now};

/// Maximum number of nodes of a run.
pub const NODES_MAX: usize = 60_000;

/// A node of a run, counted from 0. It names a place, not an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(u16);

impl NodeIndex {
    /// Returns the node with this number.
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

    /// Returns the number of the node.
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

/// The direction of a directed link, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the peer to this node.
    Incoming,
    /// From this node to the peer.
    Outgoing,
}

/// The arguments for building a [`Process`], at the start of a run and after every crash.
#[derive(Debug)]
pub struct Boot<'a, D> {
    /// The node that the process runs on.
    pub node: NodeIndex,
    /// The number of the incarnation; the first is 1.
    pub incarnation: u32,
    /// A seed for the process's own random generator; a different one for every incarnation.
    pub seed: u64,
    /// The present time on the node's clocks.
    pub now: Now,
    /// The content of the node's disk.
    pub disk: &'a D,
}

/// The protocol code of one node, as the simulator drives it.
///
/// It gets inputs in batches, as from the real driver: everything that arrived at one instant, then
/// ticks while [`next_deadline`](Self::next_deadline) has passed. Its orders through [`Effects`]
/// are carried out in order after the inputs of the batch, and after each tick; a crash may occur
/// behind any event that it emits, and the orders after that event are then lost.
pub trait Process: Sized {
    /// A message between nodes.
    type Message: Clone + fmt::Debug;
    /// A request of a user to a node, given by the harness or the observer.
    type Command: fmt::Debug;
    /// An event shown to the harness: an answer to a user, or a step at which a rule may inject a
    /// fault.
    type Event: fmt::Debug;
    /// The content of its disk; `()` if it has none.
    type Disk: Image;

    /// Called once after the process was built, before any other input; after a crash too, for the
    /// next incarnation.
    fn started(&mut self, _now: Now, _fx: &mut Effects<Self>) {}

    /// Handles a message of another node, or of this one.
    fn message(
        &mut self,
        now: Now,
        from: NodeIndex,
        message: Self::Message,
        fx: &mut Effects<Self>,
    );

    /// Handles a request of a user.
    fn command(&mut self, now: Now, command: Self::Command, fx: &mut Effects<Self>);

    /// Called when the deadline has passed, and again while [`next_deadline`](Self::next_deadline)
    /// is not in the future. After 1,000 ticks in one batch the run fails.
    fn tick(&mut self, now: Now, fx: &mut Effects<Self>);

    /// When the process must be ticked, on its own monotonic clock; `None`: never. A time in the
    /// past means "right after this batch". Asked after every batch and tick, and after a drift of
    /// the clock.
    fn next_deadline(&self) -> Option<Instant>;

    /// The sync with this token has ended: records written before it are safe, or the disk failed.
    /// Syncs end in the order in which they were ordered. One of an earlier incarnation is not
    /// reported, and its records are not made safe.
    fn synced(
        &mut self,
        _now: Now,
        _token: u64,
        _outcome: Result<(), SyncFailed>,
        _fx: &mut Effects<Self>,
    ) {
    }

    /// A directed link broke: messages in flight on it are lost (except on lanes that
    /// [cross restarts](LaneRule::crosses_restart)), and so are all that are sent on it until it is
    /// up again. Each end is told at its own time, up to 15 s later, unless it has crashed by then.
    fn link_broken(
        &mut self,
        _now: Now,
        _peer: NodeIndex,
        _direction: Direction,
        _fx: &mut Effects<Self>,
    ) {
    }

    /// A broken link works again. Both ends have been told of the break before, unless they were
    /// down then.
    fn link_up(
        &mut self,
        _now: Now,
        _peer: NodeIndex,
        _direction: Direction,
        _fx: &mut Effects<Self>,
    ) {
    }

    /// The hash of a message's content, for the hash of the run. With `None` its `Debug` text is
    /// hashed, which is slow for large messages.
    fn digest(_message: &Self::Message) -> Option<u64> {
        None
    }

    /// The hash of a command's content. With `None` its `Debug` text is hashed.
    fn digest_command(_command: &Self::Command) -> Option<u64> {
        None
    }

    /// Encodes and decodes a message by the real codec; the result is sent. Called for every tenth
    /// message, so that a run also tests that decoding inverts encoding. By default returns the
    /// message.
    fn recode(message: Self::Message) -> Self::Message {
        message
    }
}

/// The orders of a [`Process`], carried out after its batch.
#[derive(Debug)]
pub struct Effects<P: Process> {
    node: NodeIndex,
    pending: Vec<Effect<P>>, // carried out after the inputs of a batch, and after every tick
    /// Of all nodes of the run together.
    marks: Marks,
}

/// One order of a process.
enum Effect<P: Process> {
    Send { to: NodeIndex, lane: usize, message: P::Message },
    Emit(P::Event),
    Write(<P::Disk as Image>::Record),
    Sync(u64),
}

/// Shows the content of messages and events, but not that of records.
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
    /// Returns the node whose process is called.
    #[must_use]
    pub fn node(&self) -> NodeIndex {
        self.node
    }

    /// Sends a message on a lane, an index into [`SimulationSetup::lanes`]. A message to the node
    /// itself arrives after a short delay; no fault of a link affects it, but a crash does: its
    /// next incarnation gets the message only on a lane that [crosses
    /// restarts](LaneRule::crosses_restart).
    ///
    /// An unknown node or lane makes the run fail when the order is carried out.
    pub fn send(&mut self, to: NodeIndex, lane: usize, message: P::Message) {
        self.pending.push(Effect::Send { to, lane, message });
    }

    /// Shows an event to the harness. It has no other effect, but rules may inject faults here.
    pub fn emit(&mut self, event: P::Event) {
        self.pending.push(Effect::Emit(event));
    }

    /// Writes a record. A crash may lose it until a sync that is ordered later has succeeded, and
    /// so may a failed sync.
    pub fn write(&mut self, record: <P::Disk as Image>::Record) {
        self.pending.push(Effect::Write(record));
    }

    /// Syncs all records written so far, even if there are none. [`Process::synced`] is called with
    /// the token in a later batch, unless the node crashes before. Tokens need not be unique, but
    /// must be below 2^63.
    pub fn sync(&mut self, token: u64) {
        self.pending.push(Effect::Sync(token));
    }

    /// Counts that a rare branch was reached, at once and even if the node crashes in this batch.
    pub fn mark(&mut self, name: &'static str) {
        self.marks.hit(name);
    }
}
