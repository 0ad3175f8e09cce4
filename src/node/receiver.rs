//! The receiving side: decodes messages of Replicators on the lane reader's task and puts them
//! into the inbox.
//!
//! What does not decode is counted, logged once a minute and taken: one bad message must not stop
//! the lane behind it, nor end the connection.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ddata::replicator::Replicator as Machine;

use super::clock::Clock;
use super::inbox::{Inbox, Urgency};
use super::rarely::Rarely;
use super::wiring;
use crate::net::{Busy, Class, Inbound, Receiver};

/// Takes what arrives for the Replicator.
pub(crate) struct DataReceiver {
    inbox: Inbox<Machine>,
    clock: Clock,
    taken: AtomicU64,
    undecodable: AtomicU64,
    warned: Mutex<Rarely>,
}

impl DataReceiver {
    pub(crate) fn new(inbox: Inbox<Machine>, clock: Clock) -> Self {
        let (taken, undecodable) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { inbox, clock, taken, undecodable, warned: Mutex::default() }
    }

    /// Messages put into the inbox so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Messages that were none of a Replicator, so far.
    pub(crate) fn undecodable(&self) -> u64 {
        self.undecodable.load(Ordering::Relaxed)
    }

    fn refuse(&self, message: &Inbound<'_>, why: &dyn std::fmt::Display) {
        let count = self.undecodable.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.clock.now().mono;
        if self.warned.lock().unwrap_or_else(PoisonError::into_inner).now(now) {
            let (from, class, bytes) = (message.from, message.class, message.body.len());
            tracing::warn!(
                %from, ?class, bytes, %why, count,
                "node.undecodable: dropped; does that node run another release, or another program?"
            );
        }
    }
}

impl Receiver for DataReceiver {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if message.class == Class::User {
            self.refuse(&message, &"the Replicator has no messages of users");
            return Ok(());
        }
        let urgency = urgency(message.class);
        if !self.inbox.has_room(urgency) {
            return Err(Busy); // before the work of decoding, which would be done again
        }
        match wiring::hear(&message) {
            Ok(input) => {
                self.inbox.offer(input, message.body.len(), urgency)?;
                self.taken.fetch_add(1, Ordering::Relaxed);
            }
            Err(why) => self.refuse(&message, &why),
        }
        Ok(())
    }

    fn ready(&self, class: Class) -> BoxFuture<'_, ()> {
        self.inbox.room(urgency(class)).boxed()
    }
}

const fn urgency(class: Class) -> Urgency {
    match class {
        Class::Control => Urgency::Urgent,
        Class::Data | Class::User | Class::Bulk => Urgency::Ordinary,
    }
}
