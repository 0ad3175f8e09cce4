//! [`DataReceiver`]: decodes received messages on the lane reader's task and puts each into the
//! inbox of its part.
//!
//! A message that cannot be decoded is counted, logged at most once a minute for each sender and
//! dropped, because a malformed message must neither block its lane nor end the connection. For the
//! lane it counts as accepted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::log_throttle::SourceThrottle;
use ostraca_ddata::replicator::port;

use super::clock::Clock;
use super::control::machine::{ControlInbox, ControlInput};
use super::inbox::{Inbox, Urgency};
use super::routes::membership::{self, RoutedLeaseMessage};
use super::routes::{self, ReceivedMessage, Subsystem};
use super::sharding::region_registry::RegionRegistry;
use crate::cluster::lease::guard::{Grants, GuardInput, GuardedReplicator};
use crate::cluster::lease::{Heartbeat, LeaseMessage};
use crate::net::handle::Net;
use crate::net::{Busy, Inbound, Receiver, TrafficClass};
use crate::sharding::is_answer;

/// Weight of an answer to an ask, or of its refusal, when a lane reader measures its turn. An
/// answer wakes its caller, while other messages mostly join others in a mailbox. Measured with
/// 1,024 asks in flight, two thirds of them remote: the 99th percentile was 9 to 12 ms with 128
/// answers in a turn and 5.6 to 6.5 ms with 64. With 32 it was not lower, and asks that were all
/// remote took longer.
const ANSWER_WEIGHT: usize = 2;

/// Receives messages for the Replicator and its lease grantor, for membership and the sharding
/// machines (if they run), and for entities.
pub(crate) struct DataReceiver {
    inbox: Inbox<GuardedReplicator>,
    beats: Option<LeaseResponder>,
    control: Option<ControlInbox>, // `None` without membership
    region_registry: Arc<RegionRegistry>,
    clock: Clock,
    taken: AtomicU64,       // accepted by `inbox`
    undecodable: AtomicU64, // dropped, for any of the parts
    warned: Mutex<SourceThrottle<(), ReplicaId>>,
}

impl DataReceiver {
    /// Creates a receiver. `control` is `None` without membership. Lease heartbeats are answered by
    /// the Replicator unless [`answering`](Self::answering) sets a responder.
    pub(crate) fn new(
        inbox: Inbox<GuardedReplicator>,
        control: Option<ControlInbox>,
        region_registry: Arc<RegionRegistry>,
        clock: Clock,
    ) -> Self {
        let (taken, undecodable) = (AtomicU64::new(0), AtomicU64::new(0));
        let (beats, warned) = (None, Mutex::default());
        Self { inbox, beats, control, region_registry, clock, taken, undecodable, warned }
    }

    /// Sets how lease heartbeats are answered on arrival. `None`: by the Replicator in its next
    /// turn.
    pub(super) fn answering(self, beats: Option<LeaseResponder>) -> Self {
        Self { beats, ..self }
    }

    /// Number of messages put into the Replicator's inbox so far, with those of leases. Heartbeats
    /// that were answered on arrival count only if their epoch was news; messages for other parts
    /// never count.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Number of messages that were dropped so far because they do not decode, or their part or
    /// entity type does not run here. Messages refused as [`Busy`] do not count.
    pub(crate) fn undecodable(&self) -> u64 {
        self.undecodable.load(Ordering::Relaxed)
    }

    /// Receives a message of a part other than the Replicator: one with a header on the control
    /// lane. All but lease messages for the grantor go to the control part; without membership they
    /// are dropped and counted like malformed ones, with the result `Ok`.
    ///
    /// # Errors
    /// [`Busy`] if the Replicator or the control part has no room, whichever the message is for.
    /// That is checked before the message is decoded, so it holds for malformed ones as well.
    fn receive_control(&self, message: &Inbound<'_>) -> Result<(), Busy> {
        if !self.has_room() {
            return Err(Busy); // before decoding, which would be repeated later
        }
        let input = match routes::hear_control(message) {
            Ok(ReceivedMessage::Cluster { from, message }) => {
                ControlInput::Heard { from, message, at: self.clock.mono() }
            }
            Ok(ReceivedMessage::Lease { from, message: said }) => {
                match membership::lease(from, said) {
                    RoutedLeaseMessage::Membership(input) => input.into(),
                    RoutedLeaseMessage::Guard(input) => {
                        return self.promise(input, message.body.len());
                    }
                }
            }
            Ok(ReceivedMessage::Sharding(fact)) => fact.into(),
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

    /// Answers a heartbeat on the receiving thread, and then queues the sender's epoch for the
    /// Replicator instead of the heartbeat, if it is not the epoch installed here. Queues other
    /// inputs for the Replicator, and heartbeats as well if no responder is set.
    ///
    /// # Errors
    /// [`Busy`] if the Replicator has no room. The message is then offered again, so a heartbeat
    /// may be answered twice.
    fn promise(&self, input: GuardInput, bytes: usize) -> Result<(), Busy> {
        let input = match (&self.beats, input) {
            (Some(beats), GuardInput::Lease { from, message: LeaseMessage::Beat(beat) }) => {
                if !beats.answer(from, beat) {
                    return Ok(());
                }
                // The Replicator compares the sender's epoch with its own, to find out which of the
                // two is behind.
                GuardInput::Data(port::ReplicatorInput::PeerEpoch { from, id: Some(beat.epoch) })
            }
            (_, input) => input,
        };
        self.take(input, bytes, Urgency::Urgent)
    }

    /// Whether the queues of urgent messages of both the Replicator and the control part have room.
    /// They have bounds of their own, so a backlog of data does not count. A closed inbox has room.
    fn has_room(&self) -> bool {
        let urgent = Urgency::Urgent;
        self.inbox.has_room(urgent)
            && self.control.as_ref().is_none_or(|control| control.has_room(urgent))
    }

    /// Puts an input into the Replicator's inbox and counts it, also after the Replicator's end,
    /// which drops it.
    fn take(&self, input: GuardInput, bytes: usize, urgency: Urgency) -> Result<(), Busy> {
        self.inbox.offer(input, bytes, urgency)?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a message that is dropped, and logs it at most once a minute for its sender, as
    /// the throttle of its node permits.
    fn refuse(&self, message: &Inbound<'_>, why: &dyn std::fmt::Display) {
        let count = self.undecodable.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.clock.mono();
        let from = message.from.incarnation;
        let is_due =
            self.warned.lock().unwrap_or_else(PoisonError::into_inner).permit(now, (), from);
        if is_due {
            let (from, class, bytes) = (message.from, message.class, message.body.len());
            tracing::warn!(
                %from, ?class, bytes, %why, count,
                "node.undecodable: a message of that node does not decode and was dropped; run one \
                 release of one program on all nodes"
            );
        }
    }
}

/// Answers lease heartbeats on the receiving thread, so that they do not wait for a long step of
/// the Replicator.
pub(super) struct LeaseResponder {
    grants: Grants,
    net: Weak<OnceLock<Net>>, // weak, because the transport holds this receiver
    clock: Clock,
}

impl LeaseResponder {
    pub(super) const fn new(grants: Grants, net: Weak<OnceLock<Net>>, clock: Clock) -> Self {
        Self { grants, net, clock }
    }

    /// Answers a heartbeat with a grant, unless the grantor refuses it; a refusal has no answer.
    /// The grant is lost if there is no lane to the sender or the lane is full, but its promise
    /// counts. Returns whether the Replicator must be told the sender's epoch, because it is not
    /// the one installed here; then no grant was made. May block for a moment; see
    /// [`Grants::beat`].
    fn answer(&self, from: ReplicaId, beat: Heartbeat) -> bool {
        let beaten = self.grants.beat(self.clock.now(), from, beat);
        if let Some(message) = beaten.answer {
            let net = self.net.upgrade();
            let net = net.as_deref().and_then(OnceLock::get);
            if let Some(lane) = net.and_then(|net| net.lane(from, TrafficClass::Control)) {
                // An unsent grant is like a lost one: the next heartbeat is answered again.
                let _ = lane.send(Subsystem::Lease.header(), &routes::encode(&message));
            }
        }
        beaten.is_other_epoch
    }
}

impl Receiver for DataReceiver {
    /// Receives a message: on a user lane for entities, which never refuse it; on the control lane
    /// with a header for [`receive_control`](Self::receive_control); all others for the Replicator,
    /// whatever their header. A message that does not decode, or whose entity type is not
    /// registered here, is counted, dropped and accepted; but an answer to an ask is taken whether
    /// its type is registered here or not ([`RegionRegistry::arrived`]).
    ///
    /// # Errors
    /// [`Busy`] if the part has no room, which is checked before the message is decoded.
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if message.class == TrafficClass::Control && !message.fields.is_empty() {
            return self.receive_control(&message);
        }
        if message.class == TrafficClass::User {
            if let Err(why) = self.region_registry.arrived(&message) {
                self.refuse(&message, &why);
            }
            // A lane reader never waits for a mailbox
            // (docs/protocol/message-order.md#a-lane-reader-never-waits-for-a-mailbox).
            return Ok(());
        }
        let urgency = urgency(message.class);
        if !self.inbox.has_room(urgency) {
            return Err(Busy); // before decoding, which would be repeated later
        }
        match routes::decode(&message) {
            Ok(input) => self.take(input, message.body.len(), urgency)?,
            Err(why) => self.refuse(&message, &why),
        }
        Ok(())
    }

    /// [`ANSWER_WEIGHT`] if the body is that of an answer or a refusal ([`is_answer`]), else 1.
    /// Does not check the lane.
    fn weight(&self, message: &Inbound<'_>) -> usize {
        if is_answer(message.body) { ANSWER_WEIGHT } else { 1 }
    }

    /// Handles queued messages of a data or bulk lane, which wake nothing when they are received if
    /// a runner is set: if the Replicator sleeps, runs a turn of it on this thread, or wakes its
    /// loop instead if more than 64 KiB are queued or no runner is set ([`Inbox::run`]). Does
    /// nothing for a control or user lane: control messages wake the Replicator's loop when they
    /// are received.
    fn pause(&self, class: TrafficClass) {
        match class {
            TrafficClass::Data | TrafficClass::Bulk => self.inbox.run(),
            TrafficClass::Control | TrafficClass::User => {} // heartbeats and entities must not wait for a merge
        }
    }

    /// Waits for room in the Replicator's inbox, and for the control lane also in that of the
    /// control part. The two need not have room at the same time. A closed inbox counts as one with
    /// room. User lanes never need this, because their messages are never refused.
    fn ready(&self, class: TrafficClass) -> BoxFuture<'_, ()> {
        let data = self.inbox.room(urgency(class));
        match &self.control {
            // The reader does not know which part was full, so wait for both.
            Some(control) if class == TrafficClass::Control => {
                futures::future::join(data, control.room(Urgency::Urgent)).map(|_| ()).boxed()
            }
            _ => data.boxed(),
        }
    }
}

/// Urgency of the messages of a lane: only those of the control lane are urgent. It selects the
/// queue of the inbox with its own bounds, and whether a message wakes the loop; urgent messages
/// are taken before others. The room check, the push and the wait for room must use the same value.
const fn urgency(class: TrafficClass) -> Urgency {
    match class {
        TrafficClass::Control => Urgency::Urgent,
        TrafficClass::Data | TrafficClass::User | TrafficClass::Bulk => Urgency::Ordinary,
    }
}
