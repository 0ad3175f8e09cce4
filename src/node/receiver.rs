//! The receiving side: decodes messages on the lane reader's task and puts them into the inbox of
//! the part that they are for.
//!
//! What does not decode is counted, logged once a minute and taken: one bad message must not stop
//! the lane behind it, nor end the connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::port;

use super::clock::Clock;
use super::control::machine::{ControlInbox, ControlInput};
use super::inbox::{Inbox, Urgency};
use super::rarely::Rarely;
use super::sharding::hostings::Hostings;
use super::wiring::membership::{self, Lease};
use super::wiring::{self, Heard, Part};
use crate::cluster::lease::guard::{Grants, Guard, GuardInput};
use crate::cluster::lease::{Beat, LeaseMessage};
use crate::net::handle::Net;
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
    beats: Option<Beats>,
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
        let (beats, warned) = (None, Mutex::default());
        Self { inbox, beats, control, hostings, clock, taken, undecodable, warned }
    }

    /// Has heartbeats of leases answered here, and not by the Replicator at its next turn.
    pub(super) fn answering(self, beats: Option<Beats>) -> Self {
        Self { beats, ..self }
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
                Lease::Guard(input) => return self.promise(input, message.body.len()),
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

    /// Answers a heartbeat on the arriving thread; queues all else for the Replicator.
    fn promise(&self, input: GuardInput, bytes: usize) -> Result<(), Busy> {
        let input = match (&self.beats, input) {
            (Some(beats), GuardInput::Lease { from, message: LeaseMessage::Beat(beat) }) => {
                if !beats.answer(from, beat) {
                    return Ok(());
                }
                // Whoever is behind learns it from the other's epoch.
                GuardInput::Data(port::Input::PeerEpoch { from, id: Some(beat.epoch) })
            }
            (_, input) => input,
        };
        self.take(input, bytes, Urgency::Urgent)
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

/// Answers heartbeats of leases on the thread that they come on.
pub(super) struct Beats {
    grants: Grants,
    net: Weak<OnceLock<Net>>, // which holds this: it must end with its last handle
    clock: Clock,
}

impl Beats {
    pub(super) const fn new(grants: Grants, net: Weak<OnceLock<Net>>, clock: Clock) -> Self {
        Self { grants, net, clock }
    }

    /// Grants what can be granted. Says whether the Replicator must hear of the sender's epoch.
    fn answer(&self, from: ReplicaId, beat: Beat) -> bool {
        let beaten = self.grants.beat(self.clock.now(), from, beat);
        if let Some(message) = beaten.answer {
            let net = self.net.upgrade();
            let net = net.as_deref().and_then(OnceLock::get);
            if let Some(lane) = net.and_then(|net| net.lane(from, Class::Control)) {
                // What is not sent is a grant that was lost: the next heartbeat brings another one.
                let _ = lane.send(Part::Lease.header(), &wiring::say(&message));
            }
        }
        beaten.is_news
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
