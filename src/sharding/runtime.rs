//! One entity type on one node: its shards, and the entry points for messages of this node, frames
//! of lanes, outputs of the region machine, and results of entities' tasks.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ostraca_ddata::clock::Instant;
use serde::Serialize;

use super::activation::Activation;
use super::batch::{LONG, MessageInTransit, SingleMessage};
use super::callers::{CallerRegistration, Callers};
use super::config::ShardingConfig;
use super::dead_letters::{DeadLetterReason, DeadLetters};
use super::entity::{Entity, Supervision};
use super::entity_ref::TellError;
use super::envelope::{Envelope, EnvelopeBuilder};
use super::extractor::Extractor;
use super::fault_injection::{ShardingFault, ShardingFaultInjection};
use super::frame::{self, ShardingFrame};
use super::gate;
use super::gate::{
    Bounce, Budget, BufferLimits, HeldBudget, HomeDecision, MailboxLimitCheck, Origin, SizedMessage,
};
use super::id_hash::hash;
use super::ids::{EntityId, EntityType, RegionId, ShardId};
use super::loss_counter::LossCounter;
use super::mailbox::MailboxLimits;
use super::panics;
use super::passivation_tracker::PassivationTracker;
use super::pending_asks::{AskedShard, CarriedAsk, PendingAsks, PendingAsksHandles, ReplyAddress};
use super::polls::Entities;
use super::region::{RegionInput, RegionOutput, ShardHostState};
use super::region_handle::{BadFrame, RegionEnvironment, UndeliveredCounts};
use super::scope;
use super::shard::{DeliveryContext, Shard, ShardEffects, ShardInner};
use super::shard_region::RegionSetup;
use super::shard_stage::ShardStage;
use super::slow_handlers::SlowHandlers;
use super::state_transfer::DeferredDrop;
use super::timeouts::Timeouts;
use super::waiting_shards::WaitingShards;
use crate::cluster::lease::Departure;

/// Maximum number of remembered removed regions; the oldest is forgotten first. A missing lane to
/// any other region is taken for one that does not exist yet.
const REMOVED_MAX: usize = 1_024;

/// Numbers the runtimes of this process.
static RUNTIMES: AtomicU32 = AtomicU32::new(0);

/// The executor of a type's entities on this node, see
/// [`ShardRegion::new`](super::shard_region::ShardRegion::new).
///
/// Its fields for each thread begin a cache line, so the counts of its `Arc`, which asks and
/// activations on all threads change, are in another one.
pub(super) struct Runtime<E: Entity> {
    pub(super) number: u32, // unique in this process
    pub(super) me: RegionId,
    pub(super) entity_type: EntityType,
    pub(super) settings: ShardingConfig,
    pub(super) message_bytes_max: usize,
    pub(super) supervision: Supervision,
    pub(super) extractor: Arc<dyn Extractor<E::Message>>,
    pub(super) factory: Box<dyn Fn(&EntityId) -> E + Send + Sync>,
    pub(super) asks: Arc<PendingAsks>,
    pub(super) ask_handles: PendingAsksHandles,
    pub(super) timeouts: Arc<Timeouts>,
    pub(super) fault_injection: ShardingFaultInjection,
    /// Whether the type has a stop message. It is asked once, because the answer is the user's
    /// code.
    pub(super) has_stop_message: bool,
    pub(super) world: Arc<dyn RegionEnvironment>,
    pub(super) polls: Entities,
    shards: Box<[OnceLock<Arc<Shard<E>>>]>,
    budget: Mutex<Budget>,
    held: Mutex<HeldBudget>,
    dead: DeadLetters,
    /// Exported states that no instance will import.
    pub(super) lost_states: LossCounter,
    /// Timers that an active-entity limit stopped before they sent their message.
    pub(super) lost_timers: LossCounter,
    pub(super) waiting_shards: WaitingShards,
    removed: Mutex<VecDeque<RegionId>>, // ≤ REMOVED_MAX
    callers: Callers,
    over: AtomicBool,              // stopped for good, set only by `stop_all`
    cluster_generation: AtomicU64, // only rises; read with each batch of messages
    // since when a coordinator has known this region
    coordinated: Mutex<Option<Instant>>,
    pub(super) sent_back: AtomicU64, // bounces and echoes, also those that no lane took
    pub(super) passivation_tracker: PassivationTracker,
    pub(super) sweeps: AtomicBool, // the check for idle entities was started
    pub(super) slow_handlers: SlowHandlers,
    pub(super) limit: AtomicUsize,  // of active entities
    pub(super) failures: AtomicU64, // of the program's code
}

/// A message on its way to its entity, as a value or encoded.
pub(super) enum OutgoingMessage<M> {
    Typed(M),
    Envelope(Envelope),
}

/// Where a message waits if the lane of its shard has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitingPlace {
    /// In the shard's buffer, in order with the others; refused if that is full.
    Buffer,
    /// With its caller, if the message has more than [`LONG_BYTES`] or the buffer more than
    /// [`CALLERS_BUFFER_BYTES`]. The message is then refused and delays no message to another
    /// entity of the shard.
    Caller,
}

/// Length in bytes above which a message may wait with its caller.
pub(super) const LONG_BYTES: usize = 16 << 10;

/// Maximum bytes, plus one message, that callers which can wait put into a shard's buffer while its
/// lane is full.
const CALLERS_BUFFER_BYTES: usize = 64 << 10;

/// Reason of a refusal, with the refused message.
pub(super) type RefusedMessage<M> = (TellError, OutgoingMessage<M>);

/// Id of an entity, the [`hash`] of the id, and its shard.
pub(super) type EntityAddress<'a> = (&'a EntityId, u64, ShardId);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Encodes a message as an envelope. With `ask` the envelope names the asker, with the number 0 if
/// the message does not contain the reply address of the ask. Fails if the message's own
/// `Serialize` fails; a panic of it passes through. The length is not checked.
pub(super) fn encode<M: Serialize>(
    to: &EntityId,
    message: &M,
    ask: Option<&dyn CarriedAsk>,
) -> Result<EnvelopeBuilder, rmp_serde::encode::Error> {
    let asker = ask.map(|ask| move || ask.asker());
    let asker = asker.as_ref().map(|asker| asker as &dyn Fn() -> Option<ReplyAddress>);
    EnvelopeBuilder::write(to, |bytes| rmp_serde::encode::write_named(bytes, message), asker)
}

impl<E: Entity> Runtime<E> {
    /// Makes the runtime without any shard. References in messages find it only after
    /// [`publish`](Self::publish). Asks the program for the type's stop message, once.
    pub(super) fn new(setup: RegionSetup<E>, world: Arc<dyn RegionEnvironment>) -> Arc<Self> {
        let RegionSetup { entity_type, me, settings, message_bytes_max, supervision, .. } = setup;
        let RegionSetup { extractor, factory, asks, fault_injection, .. } = setup;
        let shards = (0..extractor.shards()).map(|_| OnceLock::new()).collect();
        let buffers = (settings.buffer_size, settings.buffer_bytes_max);
        let [buffers, held] = [buffers, (settings.held_size, settings.held_bytes_max)]
            .map(|(messages, bytes)| BufferLimits { messages, bytes });
        let (passivation_tracker, limit) =
            (PassivationTracker::new(&settings), settings.passivation.active_entity_limit);
        Arc::new(Self {
            number: RUNTIMES.fetch_add(1, Ordering::Relaxed),
            me,
            entity_type,
            settings,
            message_bytes_max,
            supervision,
            extractor,
            factory,
            ask_handles: PendingAsksHandles::new(&asks),
            asks,
            timeouts: Timeouts::new(),
            fault_injection,
            has_stop_message: E::stop_message().is_some(),
            world,
            polls: Entities::unnamed(),
            shards,
            budget: Mutex::new(Budget::new(buffers)),
            held: Mutex::new(HeldBudget::new(held, buffers.of_moved())),
            dead: DeadLetters::default(),
            lost_states: LossCounter::default(),
            lost_timers: LossCounter::default(),
            waiting_shards: WaitingShards::default(),
            removed: Mutex::default(),
            callers: Callers::new(),
            over: AtomicBool::new(false),
            cluster_generation: AtomicU64::new(0),
            coordinated: Mutex::new(None),
            sent_back: AtomicU64::new(0),
            passivation_tracker,
            sweeps: AtomicBool::new(false),
            slow_handlers: SlowHandlers::default(),
            limit: AtomicUsize::new(limit),
            failures: AtomicU64::new(0),
        })
    }

    /// Makes the type known to the decoder, so that entity references in messages find it. Replaces
    /// an earlier runtime of the same name.
    pub(super) fn publish(self: &Arc<Self>) {
        self.asks.types().add(self.entity_type.clone(), self);
    }

    /// Limits of a mailbox for messages that arrive directly.
    pub(super) const fn room_of_mailbox(&self) -> MailboxLimits {
        MailboxLimits {
            messages: self.settings.mailbox_size,
            bytes: self.settings.mailbox_bytes_max,
        }
    }

    /// The budget of messages that wait at the gates.
    pub(super) fn budget(&self) -> MutexGuard<'_, Budget> {
        lock(&self.budget)
    }

    /// The budget of messages held for shards that will start here.
    pub(super) fn held(&self) -> MutexGuard<'_, HeldBudget> {
        lock(&self.held)
    }

    /// Limits, per entity, of the messages that all regions together have moved here. Adds `from`
    /// to these regions for the time that it is a member; the limits grow with their number.
    pub(super) fn moved_by(&self, from: RegionId) -> BufferLimits {
        let limits = self.held().moved_by(from);
        if self.is_removed(from) {
            self.held().ended(from); // the removal is not reported again
        }
        limits
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Since when a coordinator has known this region; `None`: none knows it.
    pub(super) fn coordinated_since(&self) -> Option<Instant> {
        *lock(&self.coordinated)
    }

    /// The generation of the cluster. It is set before the shards that start under it.
    pub(super) fn cluster_generation(&self) -> u64 {
        self.cluster_generation.load(Ordering::Acquire)
    }

    /// Why a handler is dropped at an await, given the stage of its shard: the node has stopped for
    /// good, else in an open shard the lease lapsed for long, else the shard's drain was aborted.
    pub(super) fn why_aborted(&self, stage: ShardStage) -> DeadLetterReason {
        match stage {
            _ if self.is_over() => DeadLetterReason::HandlerStopped,
            ShardStage::Open => DeadLetterReason::NotLeased,
            ShardStage::Empty | ShardStage::Draining | ShardStage::Aborted => {
                DeadLetterReason::Aborted
            }
        }
    }

    /// The lease has lapsed for long: ends the instances of all open shards. Draining ones end by
    /// their own timeout.
    pub(super) fn let_go(self: &Arc<Self>) {
        for shard in self.known().filter(|shard| shard.phase.get() == ShardStage::Open) {
            shard.pass(self, MailboxLimitCheck::Exempt, |_, gate_effects| {
                gate_effects.drop_instances();
            });
        }
    }

    /// The shard with this number, which is made at the first use. `None` if the type has no such
    /// shard.
    pub(super) fn shard(&self, id: ShardId) -> Option<&Arc<Shard<E>>> {
        let cell = self.shards.get(id.get() as usize)?;
        let shard = || Shard::new(id, self.me, self.passivation_tracker.of_shard());
        Some(cell.get_or_init(|| Arc::new(shard())))
    }

    /// The shard of an entity.
    pub(super) fn shard_of(&self, id: &EntityId) -> ShardId {
        self.extractor.shard(id)
    }

    /// Shards about which there was ever a message, frame or order, by number.
    pub(super) fn known(&self) -> impl Iterator<Item = &Arc<Shard<E>>> {
        self.shards.iter().filter_map(OnceLock::get)
    }

    /// Number of own messages that wait at the gates, and of messages from lanes held there.
    pub(super) fn at_gates(&self) -> (usize, usize) {
        self.known().fold((0, 0), |(waiting, held), shard| {
            let gate = &shard.lock().gate;
            (waiting + gate.waiting(), held + gate.held())
        })
    }

    /// Messages sent back or waiting, see
    /// [`RegionHandle::unrest`](super::region_handle::RegionHandle::unrest). `None` once stopped.
    pub(super) fn unrest(&self) -> Option<UndeliveredCounts> {
        let sent_back = self.sent_back.load(Ordering::Relaxed);
        let waiting = self.known().fold(0, |waiting, shard| {
            let gate = &shard.lock().gate;
            waiting + gate.behind_a_lane() + gate.held()
        });
        (!self.is_over()).then_some(UndeliveredCounts { sent_back, waiting })
    }

    /// Shards with entities, each with their number.
    pub(super) fn entities(&self) -> impl Iterator<Item = (ShardId, usize)> {
        let entities =
            self.known().map(|shard| (shard.id, shard.lock().shard_entities.entity_table.len()));
        entities.filter(|(_, entities)| *entities > 0)
    }

    /// The home of a shard by the newest decision known here; `None` if it has none, or no message
    /// or decision about the shard ever came here.
    pub(super) fn home(&self, shard: ShardId) -> Option<RegionId> {
        let shard = self.shards.get(shard.get() as usize)?.get()?;
        shard.lock().gate.newest().home
    }

    /// Whether an entity is in the table here: it has an instance, messages or a dormant state.
    /// `None`: its shard is neither hosted nor drains here.
    pub(super) fn lives(&self, entity: &EntityId) -> Option<bool> {
        let shard = self.shards.get(self.extractor.shard(entity).get() as usize)?.get()?;
        let inside = shard.lock();
        let hosts = inside.gate.standing().run != gate::HostingPhase::Idle;
        hosts.then(|| {
            inside
                .shard_entities
                .entity_table
                .find(hash(entity.as_bytes()), entity.as_bytes())
                .is_some()
        })
    }

    /// The id of the entity in a row of a shard; `None` if the row is free.
    pub(super) fn entity_at(&self, shard: ShardId, row: u32) -> Option<EntityId> {
        let shard = self.shards.get(shard.get() as usize)?.get()?;
        Some(shard.lock().shard_entities.entity_table.try_get(row)?.id.clone())
    }

    // ── From this node ──

    /// Accepts a message of this node for an entity: puts it into a mailbox here, sends it, or lets
    /// it wait for a home or a lane. `place` states where the message waits if its lane has no
    /// room. `ask` is the ask whose reply address the message contains.
    ///
    /// An error returns the message, which may have been encoded meanwhile. A message is encoded
    /// only if its shard neither lives nor drains here, or the node has stopped; otherwise its
    /// length is not checked. Errors: `Encode`, then those of
    /// [`tell_envelope`](Self::tell_envelope). Panics if the type has no such shard.
    pub(super) fn offer(
        self: &Arc<Self>,
        (to, hash, shard): EntityAddress<'_>,
        (message, place): (OutgoingMessage<E::Message>, WaitingPlace),
        ask: Option<&dyn CarriedAsk>,
    ) -> Result<(), RefusedMessage<E::Message>> {
        let shard = self.shard(shard).expect("an extractor gives shards below its number");
        let message = match message {
            OutgoingMessage::Typed(message) if shard.here.load(Ordering::Acquire) => {
                match self.tell_here(shard, (hash, to.as_str()), message) {
                    Ok(None) => return Ok(()),
                    Ok(Some(message)) => message, // the hint was out of date
                    Err((why, message)) => return Err((why, OutgoingMessage::Typed(message))),
                }
            }
            OutgoingMessage::Typed(message) => message,
            OutgoingMessage::Envelope(envelope) => {
                return self.tell_envelope(shard, hash, (envelope, place));
            }
        };
        let mut envelope_builder = match encode(to, &message, ask) {
            Ok(envelope_builder) => envelope_builder,
            Err(why) => {
                return Err((TellError::Encode(why.to_string()), OutgoingMessage::Typed(message)));
            }
        };
        if self.tell_there(shard, &mut envelope_builder, ask) {
            return Ok(());
        }
        let envelope = envelope_builder.envelope();
        drop(envelope_builder); // returns the thread's buffer
        self.tell_envelope(shard, hash, (envelope, place))
    }

    /// Puts the message directly into the mailbox if the shard lives or drains here, with the
    /// effect of [`Gate::tell`](gate::Gate::tell). Returns the message if it does neither or the
    /// node has stopped, and as an error if the mailbox is full.
    fn tell_here(
        self: &Arc<Self>,
        shard: &Arc<Shard<E>>,
        (hash, id): (u64, &str),
        message: E::Message,
    ) -> Result<Option<E::Message>, (TellError, E::Message)> {
        let mut after = ShardEffects::default();
        let bytes = E::message_bytes(&message).try_into().unwrap_or(u32::MAX); // not under the lock
        {
            let mut inside = shard.lock();
            if self.is_over() || !inside.gate.leads_here() {
                return Ok(Some(message));
            }
            let delivery = DeliveryContext { shard, runtime: self };
            let pushed = inside.shard_entities.push_within(
                delivery,
                (hash, id),
                (message, bytes),
                &mut after,
            );
            if let Err((full, message)) = pushed {
                drop(inside);
                return Err((full.into(), message));
            }
        }
        self.carry_out(shard, after);
        Ok(None)
    }

    /// Sends the message directly down the lane, with the effect of
    /// [`Gate::tell`](gate::Gate::tell), if the shard is hosted elsewhere, no message waits before
    /// it, the lane has room, and no entity of the shard is known to be busy there. Returns whether
    /// it was sent, and then `ask` knows its node; otherwise does nothing, also if the message is
    /// too long: no report of room is requested.
    fn tell_there(
        &self,
        shard: &Shard<E>,
        envelope_builder: &mut EnvelopeBuilder,
        ask: Option<&dyn CarriedAsk>,
    ) -> bool {
        if envelope_builder.bytes().len() > self.envelope_bytes_max() {
            return false;
        }
        let mut inside = shard.lock();
        let ShardInner { gate, shard_entities } = &mut *inside;
        let Some((home, stamp)) = gate.lane() else { return false };
        if self.is_over() || shard_entities.full_mailboxes.is_some() {
            return false;
        }
        frame::message_head(&mut shard_entities.scratch, shard.id, stamp, MailboxLimitCheck::Must);
        let sent = self.world.send(home, envelope_builder.framed(&shard_entities.scratch)).is_ok();
        if let Some(ask) = ask.filter(|_| sent) {
            ask.is_with(home);
        }
        sent
    }

    /// Maximum length of an envelope that this node sends.
    const fn envelope_bytes_max(&self) -> usize {
        self.message_bytes_max.saturating_sub(frame::HEAD_BYTES_MAX)
    }

    /// Gives an encoded message to the gate, which delivers, sends or buffers it. Errors, in this
    /// order: `TooLong`, also for an entity here; `Stopped`; `MailboxFull` if the shard lives or
    /// drains here, else `Busy` if the home reported the entity's mailbox as full; `BufferFull` if
    /// the message would have to wait and may not: see [`WaitingPlace`].
    fn tell_envelope(
        self: &Arc<Self>,
        shard: &Arc<Shard<E>>,
        hash: u64,
        (envelope, place): (Envelope, WaitingPlace),
    ) -> Result<(), RefusedMessage<E::Message>> {
        let (bytes, limit) = (envelope.bytes().len(), self.envelope_bytes_max());
        if bytes > limit {
            return Err((TellError::TooLong { bytes, limit }, OutgoingMessage::Envelope(envelope)));
        }
        let told = shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
            if self.is_over() {
                return Err((TellError::Stopped, envelope));
            }
            if gate.leads_here() {
                let delivery = DeliveryContext { shard, runtime: self };
                let room = gate_effects.shard_entities.check_room(
                    (hash, envelope.id_bytes()),
                    bytes,
                    &delivery,
                );
                if let Err(full) = room {
                    return Err((full.into(), envelope));
                }
            } else if let Some(home) = gate_effects.shard_entities.crowded_at(envelope.id()) {
                return Err((TellError::Busy { home }, envelope));
            }
            let item = SizedMessage { message: envelope, bytes };
            let is_much = bytes > LONG_BYTES || gate.buffered_bytes() > CALLERS_BUFFER_BYTES;
            if place == WaitingPlace::Caller && is_much && gate.uses_lane() {
                return gate_effects.send_or_return(gate, item);
            }
            let told = gate.tell(item, Origin::Anybody, gate_effects);
            told.map_err(|(full, item)| (TellError::BufferFull(full), item.message))
        });
        told.map(|_| ()).map_err(|(why, envelope)| (why, OutgoingMessage::Envelope(envelope)))
    }

    // ── From lanes ──

    /// Takes in a frame from the user lane of a node, removed or not. Answers and refusals reach
    /// their asks without a shard. Once the node has stopped, messages and bounces are lost and
    /// counted, and all other frames are handled as before. A bounced ask no longer counts as with
    /// that node. Fails if the frame is malformed or names a shard that the type does not have.
    pub(super) fn arrived(self: &Arc<Self>, from: RegionId, bytes: &[u8]) -> Result<(), BadFrame> {
        let known = |shard| self.shard(shard).ok_or(BadFrame("no shard of this type"));
        match ShardingFrame::read(bytes)? {
            ShardingFrame::Message { shard, stamp, fit, envelope } => {
                let bytes = envelope.bytes().len();
                let own = (bytes > LONG).then(|| envelope.to_envelope()); // not under the lock
                known(shard)?.pass(self, fit, |gate, gate_effects| {
                    if self.is_over() {
                        return gate_effects
                            .lose(DeadLetterReason::NodeStopped, envelope.to_envelope());
                    }
                    gate_effects.moved = fit == MailboxLimitCheck::Exempt;
                    if own.is_none() && gate.accepts(from, stamp) {
                        return gate_effects.deliver(from, MessageInTransit::Envelope(envelope));
                    }
                    let message = own.unwrap_or_else(|| envelope.to_envelope());
                    gate.arrived(from, stamp, SizedMessage { bytes, message }, gate_effects);
                });
            }
            ShardingFrame::Barrier { shard, stamp } => {
                known(shard)?.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                    gate.barrier_arrived(from, stamp, gate_effects);
                });
            }
            ShardingFrame::Echo { shard, stamp } => {
                known(shard)?.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                    gate.echoed(from, stamp, gate_effects);
                });
            }
            ShardingFrame::Bounce { shard, stamp, newest, envelope } => {
                let item =
                    SizedMessage { bytes: envelope.bytes().len(), message: envelope.to_envelope() };
                known(shard)?.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                    if self.is_over() {
                        return gate_effects.lose(DeadLetterReason::NodeStopped, item.message);
                    }
                    self.asks.set_holder(&item.message, None);
                    gate.bounced(from, Bounce { stamp, item, newest }, gate_effects);
                });
            }
            ShardingFrame::Answer { correlation, body } => self.asks.answered(correlation, body),
            ShardingFrame::Refused { correlation, why } => self.asks.refused(correlation, why),
            ShardingFrame::Notice { notice, shard, id } => {
                known(shard)?.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                    gate_effects.noticed(gate, from, notice, id);
                });
            }
        }
        Ok(())
    }

    /// The region left the configuration: remembers that, and ends its lane at all gates. Unless it
    /// left in order, this then fails the asks whose message it has, if its lane was still in use
    /// for their shard. If this node has changed to another home, the message may have moved there.
    pub(super) fn removed(self: &Arc<Self>, region: RegionId, how: Departure) {
        {
            let mut removed = lock(&self.removed);
            if removed.len() == REMOVED_MAX {
                removed.pop_front();
            }
            removed.push_back(region);
        }
        self.waiting_shards.remove(region);
        self.held().ended(region);
        let mut lost = BTreeSet::new();
        for shard in self.known() {
            let uses_lane = shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                let uses_lane = gate.uses_lane_to(region);
                gate.removed(region, gate_effects);
                uses_lane
            });
            lost.extend(uses_lane.then_some(shard.id));
        }
        let ends_asks =
            how == Departure::Unheard && !self.fault_injection.has(ShardingFault::AskOutlivesNode);
        if ends_asks && !lost.is_empty() {
            let is_lost =
                |asked: AskedShard| asked.runtime == self.number && lost.contains(&asked.shard);
            self.asks.lost_with(region, is_lost);
        }
    }

    /// Whether the region was removed, as far as the last [`REMOVED_MAX`] removals tell.
    pub(super) fn is_removed(&self, region: RegionId) -> bool {
        lock(&self.removed).contains(&region)
    }

    /// Gives up the lane to a region at the gates that wait for its echo and know another home;
    /// logs each of these shards. All other gates go on waiting for the lane.
    pub(super) fn cut(self: &Arc<Self>, region: RegionId) {
        for shard in self.known() {
            if shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                gate.give_up(region, gate_effects)
            }) {
                let (entity_type, shard) = (&self.entity_type, shard.id);
                tracing::info!(
                    %entity_type, %shard, region = %self.world.name_of(region),
                    "sharding.lane_broken: the lane to the former home of a moved shard was given \
                     up; messages that it had not acknowledged may be lost"
                );
            }
        }
    }

    /// Repeats barriers without an echo, because they or their echoes may be lost with a lane, and
    /// asks again about mailboxes that were reported full. Gives up held messages of removed
    /// senders. Passes over the shards where nothing of this is open.
    pub(super) fn remind(self: &Arc<Self>) {
        let waits = |shard: &Shard<E>| {
            let inside = shard.lock();
            inside.gate.is_moving()
                || inside.gate.held() > 0
                || inside.shard_entities.full_mailboxes.is_some()
        };
        for shard in self.known().filter(|shard| waits(shard)) {
            shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                if gate.is_moving() {
                    gate.remind(gate_effects);
                }
                gate_effects.review_crowded();
                gate_effects.review_held(gate);
            });
        }
    }

    // ── From the region's machine ──

    /// Carries out an order of the region's machine. The payload of a `Start` waits for the
    /// `Standing` that follows, in place of one that still waits, which is not counted as lost. A
    /// `Route`, old or new, has a missing home requested again. `Coordinated(true)` sets the time
    /// anew. Orders about unknown shards, and those of the node, have no effect.
    pub(super) fn perform(self: &Arc<Self>, order: RegionOutput) {
        match order {
            RegionOutput::Start { shard, payload, .. } => {
                if let Some(shard) = self.shard(shard) {
                    shard.lock().shard_entities.carried = payload;
                }
            }
            RegionOutput::Standing(standing) => self.stand(&standing),
            RegionOutput::Route(route) => {
                let Some(shard) = self.shard(route.shard) else { return };
                let decision = HomeDecision { generation: route.generation, home: route.home };
                shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                    gate_effects.shard_entities.ask_again();
                    gate.learn(decision, gate_effects);
                });
            }
            RegionOutput::Abort(shard) => {
                let Some(shard) = self.shard(shard) else { return };
                shard.pass(self, MailboxLimitCheck::Exempt, |_, gate_effects| gate_effects.abort());
            }
            RegionOutput::Discard { shard, reach, payload, .. } => {
                self.lose_payload(shard, reach, &payload);
            }
            RegionOutput::ClusterGeneration(generation) => {
                self.cluster_generation.fetch_max(generation, Ordering::AcqRel);
            }
            RegionOutput::Coordinated(known) => {
                *lock(&self.coordinated) = known.then(|| self.world.now());
            }
            RegionOutput::StopAll => self.stop_all(),
            // A standing follows an adoption and a drain and contains all of it. The node handles
            // the other outputs.
            RegionOutput::Adopt { .. }
            | RegionOutput::Drain { .. }
            | RegionOutput::Send { .. }
            | RegionOutput::Stopped
            | RegionOutput::Step(_)
            | RegionOutput::Slow(_)
            | RegionOutput::Registered
            | RegionOutput::Unregistered(_)
            | RegionOutput::Left => {}
        }
    }

    /// Applies a new state of a shard in the region. If the shard opens by it, also starts the
    /// check for idle entities and divides the limit of active entities anew.
    fn stand(self: &Arc<Self>, said: &ShardHostState) {
        let Some(shard) = self.shard(said.shard) else { return };
        let ShardHostState { max_gen: newest, home, pending, run, .. } = *said;
        let standing = gate::HostState { run, newest, home, pending };
        let before = shard.phase.get();
        shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
            gate_effects.stand(gate, standing);
        });
        if before == ShardStage::Empty && shard.phase.get() == ShardStage::Open {
            self.sweep();
            self.share_limit();
        }
    }

    /// Ends all entities at once and loses all waiting messages, because the node is out. Running
    /// handlers are dropped at their next await. Waiting callers are woken and fail. A second call
    /// does nothing.
    fn stop_all(self: &Arc<Self>) {
        if self.over.swap(true, Ordering::AcqRel) {
            return;
        }
        for shard in self.known() {
            shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                gate_effects.stop(gate);
            });
        }
        self.room_here();
    }

    // ── Deferred effects ──

    /// Does the work that had to wait until the shard's lock was released, in the order of starts,
    /// request for a home, callers, drops, passivation. Must not be called under any shard's lock.
    /// Drops of the user's values, and with them the report of a drain, are left to a task.
    pub(super) fn carry_out(self: &Arc<Self>, shard: &Arc<Shard<E>>, after: ShardEffects<E>) {
        if after.is_nothing() {
            return;
        }
        for start in after.starts {
            let runtime = Arc::<Self>::clone(self);
            self.world.run(Activation::unstarted(runtime, shard.id, start));
        }
        if after.wanted {
            self.world.tell(RegionInput::Wanted(shard.id));
        }
        if after.freed {
            self.room_here();
        }
        // Values of the user are dropped in a task, because this may be the thread of the node's
        // machines or of a lane. If the executor is shut down, dropping the task drops them too.
        let ShardEffects { lost, values, typed, leaving, drained, .. } = after;
        let ends = drained.is_some() || leaving.is_some();
        if ends || !(lost.is_empty() && values.is_empty() && typed.is_empty()) {
            let (runtime, shard, states) = (Arc::clone(self), Arc::clone(shard), Vec::new());
            let deferred =
                DeferredDrop { runtime, shard, lost, values, typed, leaving, states, drained };
            if deferred.is_light() {
                drop(deferred);
            } else {
                self.world.spawn(Box::pin(deferred.sweep()));
            }
        }
        self.passivate(after.leavers);
    }

    /// Drops a value of the user. A panic of its `Drop` is caught, and counted as a failure.
    pub(super) fn discard<T>(&self, what: T) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(what))) {
            self.failures.fetch_add(1, Ordering::Relaxed);
            let (entity_type, why) = (&self.entity_type, panics::message(panic));
            tracing::error!(
                %entity_type, why = &*why,
                "sharding.drop_failed: Drop of the program panicked"
            );
        }
    }

    /// Counts a message that will not be handled, and tells its asker the reason. May drop a value
    /// of the user, so it must not be called under a lock.
    pub(super) fn lose(
        &self,
        why: DeadLetterReason,
        entry: SingleMessage<E::Message>,
        shard: ShardId,
    ) {
        self.dead(why, 1, shard);
        match entry {
            SingleMessage::Typed(message) => scope::dropping(why, || self.discard(message)),
            SingleMessage::Envelope(envelope) => {
                if let Some(asker) = envelope.asker() {
                    let mut bytes = Vec::with_capacity(16);
                    frame::refused(&mut bytes, asker.correlation, why);
                    self.send(asker, &bytes);
                }
            }
        }
    }

    /// Counts messages that will not be handled; their askers are told nothing here.
    pub(super) fn dead(&self, why: DeadLetterReason, count: usize, shard: ShardId) {
        self.dead.add(why, count, (&self.entity_type, Some(shard)), || self.world.now());
    }

    pub(super) const fn dead_letters(&self) -> &DeadLetters {
        &self.dead
    }

    // ── Callers that wait for room ──

    /// Makes the registration of a caller that may have to wait for room.
    pub(super) const fn caller_registration(&self) -> CallerRegistration<'_> {
        self.callers.registration()
    }

    /// Number of callers that wait for room.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    /// A buffer or a mailbox of this node has room again: wakes all callers that wait for room.
    pub(super) fn room_here(&self) {
        self.callers.wake();
    }

    /// Whether a message may begin or continue now.
    pub(super) fn serves(&self) -> bool {
        self.world.serves() || self.fault_injection.has(ShardingFault::LeaseNotAsked)
    }
}
