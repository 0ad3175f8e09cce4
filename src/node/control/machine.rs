//! [`Control`]: membership and the sharding machines combined to one machine for the driver.
//!
//! Outputs of one machine that concern the other become inputs of it and are handled within the
//! same call of [`Machine::handle`], in order. A message for membership carries its time of
//! arrival, so that the machine learns how long it was queued.

use std::collections::VecDeque;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::NodeId;
use ostraca_ddata::machine::{Machine, Outbox};

use super::super::inbox::Inbox;
use super::super::routes::sharding::{self, ShardingDestination};
use crate::cluster::membership::Membership;
use crate::cluster::membership::port::{MembershipInput, MembershipOutput};
use crate::cluster::wire::ClusterMessage;
use crate::sharding::machines::{Machines, ShardingInput};

/// The inbox of the control part.
pub(crate) type ControlInbox = Inbox<Control>;

/// An input for membership or for the sharding machines.
#[derive(Debug)]
pub(crate) enum ControlInput {
    /// A deadline of either machine may have passed.
    Tick,
    /// An input for membership.
    Fact(MembershipInput),
    /// A message of a peer for membership.
    Heard {
        /// The sender that the transport authenticated.
        from: NodeId,
        /// The message after decoding.
        message: ClusterMessage,
        /// Time at which the message arrived.
        at: Instant,
    },
    /// An input for the sharding machines.
    Sharding(ShardingInput),
}

impl From<MembershipInput> for ControlInput {
    fn from(input: MembershipInput) -> Self {
        Self::Fact(input)
    }
}

impl From<ShardingInput> for ControlInput {
    fn from(fact: ShardingInput) -> Self {
        Self::Sharding(fact)
    }
}

/// An output of either machine.
#[derive(Debug)]
pub(crate) enum ControlOutput {
    Membership(MembershipOutput),
    Sharding(ShardingDestination),
}

/// Membership and the sharding machines as one machine.
#[derive(Debug)]
pub(crate) struct Control {
    membership: Membership,
    machines: Machines,
}

impl Control {
    pub(crate) const fn new(membership: Membership, machines: Machines) -> Self {
        Self { membership, machines }
    }

    /// The membership machine, for reading.
    pub(crate) const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The sharding machines, for reading.
    pub(crate) const fn machines(&self) -> &Machines {
        &self.machines
    }

    /// Handles an input, and then all inputs that the machines' outputs cause within this machine,
    /// first in, first out, until none is left. All are handled with the same `now`.
    fn work(&mut self, now: Now, first: ControlInput, out: &mut Outbox<ControlOutput>) {
        let mut queue = VecDeque::from([first]);
        while let Some(work) = queue.pop_front() {
            match work {
                ControlInput::Tick => self.tick(now, out),
                ControlInput::Fact(input) => self.member(now, input, &mut queue, out),
                ControlInput::Heard { from, message, at } => {
                    let input = MembershipInput::Message { from, message, waited: now.mono - at };
                    self.member(now, input, &mut queue, out);
                }
                ControlInput::Sharding(fact) => self.shard(now, fact, &mut queue, out),
            }
        }
    }

    /// Gives an input to membership; if it concerns the sharding machines, those handle it before,
    /// and their outputs come first. Outputs of membership go to `out`, and those that concern the
    /// sharding machines also to `queue`, with the state that membership has after the whole input.
    fn member(
        &mut self,
        now: Now,
        input: MembershipInput,
        queue: &mut VecDeque<ControlInput>,
        out: &mut Outbox<ControlOutput>,
    ) {
        if let Some(fact) = sharding::overheard(&input) {
            self.shard(now, fact, queue, out);
        }
        let mut orders = Outbox::new();
        self.membership.handle(now, input, &mut orders);
        for order in orders.drain() {
            queue.extend(sharding::news(&order, &self.membership).map(ControlInput::Sharding));
            out.push(ControlOutput::Membership(order));
        }
    }

    /// Gives an input to the sharding machines. Outputs for membership go to `queue` only, all
    /// others to `out`.
    fn shard(
        &mut self,
        now: Now,
        fact: ShardingInput,
        queue: &mut VecDeque<ControlInput>,
        out: &mut Outbox<ControlOutput>,
    ) {
        let mut orders = Outbox::new();
        self.machines.handle(now, fact, &mut orders);
        for order in orders.drain() {
            match sharding::route(order) {
                ShardingDestination::Membership(input) => queue.push_back(input.into()),
                dest => out.push(ControlOutput::Sharding(dest)),
            }
        }
    }

    /// Ticks each machine whose deadline has passed, membership first, each at most once; perhaps
    /// none. Handles the inputs that follow from membership's tick before it checks the deadline of
    /// the sharding machines.
    fn tick(&mut self, now: Now, out: &mut Outbox<ControlOutput>) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now.mono);
        if is_due(self.membership.next_deadline()) {
            self.work(now, MembershipInput::Tick.into(), out);
        }
        if is_due(self.machines.next_deadline()) {
            self.work(now, ShardingInput::Tick.into(), out);
        }
    }
}

impl Machine for Control {
    type Input = ControlInput;
    type Output = ControlOutput;

    fn handle(&mut self, now: Now, input: ControlInput, out: &mut Outbox<ControlOutput>) {
        self.work(now, input, out);
    }

    /// The earlier deadline of the two machines; `None` if neither has one.
    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.membership.next_deadline(), self.machines.next_deadline()];
        deadlines.into_iter().flatten().min()
    }
}
