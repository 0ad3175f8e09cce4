//! Membership as the driver runs it: a message knows when it came, and tells the machine how long
//! it waited.

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::NodeId;
use ostraca_ddata::machine::{Machine, Outbox};

use super::super::inbox::Inbox;
use crate::cluster::membership::Membership;
use crate::cluster::membership::port::{Input, Output};
use crate::cluster::wire::ClusterMessage;

/// The inbox of the control part.
pub(crate) type ControlInbox = Inbox<Control>;

/// Something for membership.
#[derive(Debug)]
pub(crate) enum ControlInput {
    /// As it is.
    Fact(Input),
    /// A message of a peer.
    Heard {
        /// The sender, as the transport knows it.
        from: NodeId,
        /// What it says.
        message: ClusterMessage,
        /// When it came.
        at: Instant,
    },
}

impl From<Input> for ControlInput {
    fn from(input: Input) -> Self {
        Self::Fact(input)
    }
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Control {
    membership: Membership,
}

impl Control {
    pub(crate) const fn new(membership: Membership) -> Self {
        Self { membership }
    }

    /// Membership, to look at.
    pub(crate) const fn membership(&self) -> &Membership {
        &self.membership
    }
}

impl Machine for Control {
    type Input = ControlInput;
    type Output = Output;

    fn handle(&mut self, now: Now, input: ControlInput, out: &mut Outbox<Output>) {
        let input = match input {
            ControlInput::Fact(input) => input,
            ControlInput::Heard { from, message, at } => {
                Input::Message { from, message, waited: now.mono - at }
            }
        };
        self.membership.handle(now, input, out);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.membership.next_deadline()
    }
}
