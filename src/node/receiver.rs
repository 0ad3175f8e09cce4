//! The receiving side: decodes messages on the lane reader's task and puts them into the inbox of
//! the part that they are for.
//!
//! What does not decode is counted, logged once a minute and taken: one bad message must not stop
//! the lane behind it, nor end the connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::clock::Clock;
use super::control::machine::{ControlInbox, ControlInput};
use super::inbox::{Inbox, Urgency};
use super::rarely::Rarely;
use super::sharding::hostings::Hostings;
use super::wiring::membership::{self, Lease};
use super::wiring::{self, Heard};
use crate::cluster::lease::guard::{Guard, GuardInput};
use crate::net::{Busy, Class, Inbound, Receiver};
use crate::sharding::is_answer;

/// An answer wakes who asked; any other message joins others in a mailbox, mostly. With 1,024 asks
/// in flight, two of three to other nodes, of a hundred one took 9 to 12 ms where 128 answers were
/// a turn and 5.6 to 6.5 ms where 64 are; where 32 are, no less, and asks that all go to others
/// take longer.
const ANSWER_WEIGHT: usize = 2;

/// Takes what arrives for the Replicator and its grantor, for membership and the sharding machines
/// where there are some, and for entities.
pub(crate) struct DataReceiver {
    inbox: Inbox<Guard>,
    control: Option<ControlInbox>,
    hostings: Arc<Hostings>,
    clock: Clock,
    taken: AtomicU64,
    undecodable: AtomicU64,
    warned: Mutex<Rarely>,
}

impl DataReceiver {
    pub(crate) fn new(
        inbox: Inbox<Guard>,
        control: Option<ControlInbox>,
        hostings: Arc<Hostings>,
        clock: Clock,
    ) -> Self {
        let (taken, undecodable) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { inbox, control, hostings, clock, taken, undecodable, warned: Mutex::default() }
    }

    /// Messages put into the inbox so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Messages that were none of a Replicator, so far.
    pub(crate) fn undecodable(&self) -> u64 {
        self.undecodable.load(Ordering::Relaxed)
    }

    /// A message of another part than the Replicator.
    fn receive_control(&self, message: &Inbound<'_>) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy); // before the work of decoding, which would be done again
        }
        let input = match wiring::hear_control(message) {
            Ok(Heard::Cluster { from, message }) => {
                ControlInput::Heard { from, message, at: self.clock.mono() }
            }
            Ok(Heard::Lease { from, message: said }) => match membership::lease(from, said) {
                Lease::Membership(input) => input.into(),
                Lease::Guard(input) => {
                    return self.take(input, message.body.len(), Urgency::Urgent);
                }
            },
            Ok(Heard::Sharding(fact)) => fact.into(),
            Err(why) => {
                self.refuse(message, &why);
                return Ok(());
            }
        };
        match &self.control {
            Some(control) => control.offer(input, message.body.len(), Urgency::Urgent)?,
            None => self.refuse(message, &"this node runs no membership"),
        }
        Ok(())
    }

    /// Whether every part takes a message from the control lane.
    fn has_room(&self) -> bool {
        let urgent = Urgency::Urgent;
        self.inbox.has_room(urgent)
            && self.control.as_ref().is_none_or(|control| control.has_room(urgent))
    }

    fn take(&self, input: GuardInput, bytes: usize, urgency: Urgency) -> Result<(), Busy> {
        self.inbox.offer(input, bytes, urgency)?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn refuse(&self, message: &Inbound<'_>, why: &dyn std::fmt::Display) {
        let count = self.undecodable.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.clock.mono();
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
        if message.class == Class::Control && !message.fields.is_empty() {
            return self.receive_control(&message);
        }
        if message.class == Class::User {
            if let Err(why) = self.hostings.arrived(&message) {
                self.refuse(&message, &why);
            }
            return Ok(()); // mailboxes never make a lane wait
        }
        let urgency = urgency(message.class);
        if !self.inbox.has_room(urgency) {
            return Err(Busy); // before the work of decoding, which would be done again
        }
        match wiring::hear(&message) {
            Ok(input) => self.take(input, message.body.len(), urgency)?,
            Err(why) => self.refuse(&message, &why),
        }
        Ok(())
    }

    fn weight(&self, message: &Inbound<'_>) -> usize {
        if is_answer(message.body) { ANSWER_WEIGHT } else { 1 }
    }

    fn pause(&self, class: Class) {
        match class {
            Class::Data | Class::Bulk => self.inbox.run(),
            Class::Control | Class::User => {} // neither beats nor entities wait for a merge
        }
    }

    fn ready(&self, class: Class) -> BoxFuture<'_, ()> {
        let data = self.inbox.room(urgency(class));
        match &self.control {
            // Whichever part was full: the reader can't tell, and must not come back in vain.
            Some(control) if class == Class::Control => {
                futures::future::join(data, control.room(Urgency::Urgent)).map(|_| ()).boxed()
            }
            _ => data.boxed(),
        }
    }
}

const fn urgency(class: Class) -> Urgency {
    match class {
        Class::Control => Urgency::Urgent,
        Class::Data | Class::User | Class::Bulk => Urgency::Ordinary,
    }
}
