//! The common interface of all protocols in Ostraca: a [`Machine`] consumes one input at a time and
//! appends outputs to an [`Outbox`].
//!
//! A machine uses no socket, clock, lock or async runtime. Time, randomness, disk and network reach
//! it as inputs. So the same code runs under the tokio driver and, reproducible bit for bit, under
//! the simulator. quinn-proto and openraft's engine have the same structure.

use crate::clock::{Instant, Now};

/// A protocol as a plain struct: `(now, input) → outputs`.
///
/// Two runs that start from equal states and receive the same inputs at the same times end in equal
/// states and produce the same outputs. Random numbers come from a generator that is seeded at
/// construction.
pub trait Machine {
    /// An event: a received message, a request of the user, a tick.
    type Input;
    /// An action for the driver: send, reply, persist, notify.
    type Output;

    /// Consumes one input and appends the resulting outputs.
    fn handle(&mut self, now: Now, input: Self::Input, out: &mut Outbox<Self::Output>);

    /// Returns the time of the next tick; `None` if the machine waits for no time.
    ///
    /// The driver calls this after each batch of inputs. A time in the past means directly after
    /// this batch; a machine uses it to combine the work of one batch into one message.
    fn next_deadline(&self) -> Option<Instant>;
}

/// The outputs of a [`Machine`], oldest first.
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
    /// Creates an empty outbox.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an output after all others.
    pub fn push(&mut self, output: O) {
        self.outputs.push(output);
    }

    /// Removes and returns all outputs, oldest first. Removes them also if the iterator is dropped
    /// early. Keeps the capacity.
    pub fn drain(&mut self) -> std::vec::Drain<'_, O> {
        self.outputs.drain(..)
    }

    /// Returns the outputs that were not drained.
    #[must_use]
    pub fn as_slice(&self) -> &[O] {
        &self.outputs
    }

    /// Whether there are no outputs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Number of outputs that were not drained.
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
