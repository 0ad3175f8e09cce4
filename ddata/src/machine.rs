//! The one shape of every protocol in Ostraca: a [`Machine`] consumes one input at a time and
//! appends orders to an [`Outbox`].
//!
//! A machine knows no socket, no clock, no lock and no async runtime. Time, chance, disk and
//! network reach it as inputs, so the same code runs under the tokio driver and, bit for bit
//! repeatable, under the simulator. The shape is that of quinn-proto and of openraft's engine.

use crate::clock::{Instant, Now};

/// A protocol as a plain struct: `(now, input) → outputs`.
///
/// Two runs that start from the same value and get the same inputs at the same times end in the
/// same state and emit the same outputs. Randomness comes from a generator seeded at construction.
pub trait Machine {
    /// A fact: a message that came, a request of the user, a tick.
    type Input;
    /// An order to the world: send, reply, persist, notify.
    type Output;

    /// Consumes one input and appends what follows from it.
    fn handle(&mut self, now: Now, input: Self::Input, out: &mut Outbox<Self::Output>);

    /// When the machine wants a tick; `None` if it waits for nothing.
    ///
    /// Asked after each batch of inputs. A time that has passed already means "right after this
    /// batch": that is how a machine joins the work of one batch into one message.
    fn next_deadline(&self) -> Option<Instant>;
}

/// What a [`Machine`] has ordered, in order.
#[derive(Debug)]
pub struct Outbox<O> {
    outputs: Vec<O>,
}

impl<O> Default for Outbox<O> {
    fn default() -> Self {
        Self { outputs: Vec::new() }
    }
}

impl<O> Outbox<O> {
    /// An empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an order.
    pub fn push(&mut self, output: O) {
        self.outputs.push(output);
    }

    /// Takes everything, oldest first; keeps the capacity.
    pub fn drain(&mut self) -> std::vec::Drain<'_, O> {
        self.outputs.drain(..)
    }

    /// Orders not yet taken.
    #[must_use]
    pub fn as_slice(&self) -> &[O] {
        &self.outputs
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// How many orders wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.outputs.len()
    }
}

impl<O> Extend<O> for Outbox<O> {
    fn extend<I: IntoIterator<Item = O>>(&mut self, outputs: I) {
        self.outputs.extend(outputs);
    }
}
