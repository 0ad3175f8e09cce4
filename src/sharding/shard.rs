//! One shard on one node: its gate and its entities under one lock, and the effects of the gate's
//! verdicts on the entities.
//!
//! Under the lock no code of the user runs, except `Serialize` when mailboxes are sealed. Values
//! and messages to drop are collected in [`ShardEffects`] and dropped once the lock is released.
//! All methods of [`ShardEntities`] and [`ShardGateEffects`] are called under the lock. A row that
//! is passed to them must be in use.
//!
//! An entity is *busy* while it has messages or a task. Its task is counted in
//! [`ShardEntities::running`] from its [start](ShardEntities::start) until it has ended, and so is
//! everything else that a drain must wait for: spawned tasks, and instances that are being dropped.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use super::active_entities::StopCandidate;
use super::batch::{MessageInTransit, SingleMessage};
use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::entity_ref::TellError;
use super::entity_table::EntityTable;
use super::envelope::Envelope;
use super::fault_injection::ShardingFault;
use super::full_mailboxes::FullMailboxes;
use super::gate::{
    Full, Gate, GateEffects, HostState, HostingPhase, LaneSendError, MailboxLimitCheck, Origin,
    Reached, SendOutcome, SizedMessage,
};
use super::id_hash::hash;
use super::ids::{EntityId, Generation, RegionId, ShardId};
use super::instance::Instance;
use super::mailbox::MailboxFull;
use super::passivation_tracker::ShardPassivationTracker;
use super::payload;
use super::removed_senders::RemovedSenders;
use super::runtime::{LONG_BYTES, Runtime};
use super::scope;
use super::shard_stage::{ShardStage, SharedStage};
use super::slow_handlers::{Handling, RunningRow};
use super::state_transfer::{ExportedState, LeavingInstances, StateExport};
use super::tracked::UnfinishedTasks;
use crate::adaptive_yield::AdaptiveYield;

/// Why states are lost when the node is out.
pub(super) const OVER: &str = "their node is out of the configuration";

/// Whether an entity that has handled all its messages yields once before its task ends, so that a
/// message that arrives meanwhile needs no further task.
///
/// That pays if the sender is on this node and asks again at once, or sends a stream of messages.
/// It is wasted if messages come one by one from other nodes: an answer takes longer than the
/// yield, and the entity's data have left the core's cache when it continues. Measured with 1,000
/// entities and 1,024 asks in flight: from one other node 460,000 a second with the yield and
/// 600,000 without; to entities on three nodes, the asker's own among them, 950,000 and 760,000.
/// With a patience of 2, streams to 1,000 entities in turn, for which every second yield pays, lose
/// a fifth of their rate.
pub(super) type ActivationYield = AdaptiveYield<8, 16>;

/// A shard on this node.
pub(super) struct Shard<E: Entity> {
    pub(super) id: ShardId,
    /// The stage of the shard. Handlers read it without the lock.
    pub(super) phase: Arc<SharedStage>,
    /// Hint that the shard lives or drains here, so that messages of this node need no encoding.
    pub(super) here: AtomicBool,
    lapses: AtomicU64, // copy of `ShardEntities::lapses` that handlers read without the lock
    /// Every message changes it. On its own cache line it causes no cache misses for handlers and
    /// senders that read the fields above.
    inside: CachePadded<Mutex<ShardInner<E>>>,
}

/// The state behind a shard's lock.
pub(super) struct ShardInner<E: Entity> {
    pub(super) gate: Gate<Envelope>,
    pub(super) shard_entities: ShardEntities<E>,
}

/// The entities behind the gate, and their state.
pub(super) struct ShardEntities<E: Entity> {
    pub(super) entity_table: EntityTable<E>,
    /// Number of entities with a task, of tasks that entities have spawned, and of tasks that drop
    /// instances. The payload is sealed only at 0.
    pub(super) running: usize,
    /// The decision by which the shard is hosted or drains here; `NEVER` if it does neither.
    pub(super) generation: Generation,
    /// The payload for the next start, from the region's order until its new state arrives.
    pub(super) carried: Option<Bytes>,
    pub(super) passivation_tracker: ShardPassivationTracker,
    /// Number of long lapses of the lease while the shard was open; no instance outlives one.
    pub(super) lapses: u64,
    /// Number of tasks that drop instances or await their tasks; no activation begins before.
    leaving: u32,
    pub(super) adaptive_yield: ActivationYield,
    wanted: bool, // the region was asked for the home
    /// Entities that are busy at the shard's home.
    pub(super) full_mailboxes: Option<Box<FullMailboxes>>,
    /// The lane that had no room when a caller was refused last; inner `None`: messages waited for
    /// it. Callers may try again once this changes.
    callers_saw: Option<Option<(RegionId, Generation)>>,
    pub(super) removed_senders: Option<Box<RemovedSenders>>,
    /// Rows whose handlers were found to be slow; some may have ended since.
    pub(super) slow: BTreeSet<u32>, // ≤ rows
    /// The handler that had awaited for the longest time at the last check; it may have ended
    /// since.
    pub(super) oldest: Option<RunningRow>,
    pub(super) scratch: Vec<u8>, // buffer for one frame
}

/// A task to begin. It is counted as running already.
pub(super) struct Start {
    pub(super) row: u32,
    pub(super) id: EntityId,
    pub(super) handling: Option<Arc<Handling>>,
    /// [`ShardEntities::lapses`] when the entity got the task.
    pub(super) lapses: u64,
}

/// Effects to carry out once the lock is released.
pub(super) struct ShardEffects<E: Entity> {
    pub(super) starts: SmallVec<[Start; 1]>,
    pub(super) wanted: bool, // the region must find the shard's home
    /// Callers that wait for room may try again.
    pub(super) freed: bool,
    /// The shard has drained, with this payload, to be reported to the region.
    pub(super) drained: Option<Option<Bytes>>,
    /// Entities to passivate, in any shard.
    pub(super) leavers: Vec<StopCandidate>,
    /// Entity instances to drop outside the lock.
    pub(super) values: Vec<Box<Instance<E>>>,
    pub(super) typed: Vec<E::Message>,
    pub(super) lost: Vec<(DeadLetterReason, SingleMessage<E::Message>)>,
    /// Idle instances to end. Together they count as one running task. Set at most once.
    pub(super) leaving: Option<LeavingInstances<E>>,
}

impl<E: Entity> Default for ShardEffects<E> {
    fn default() -> Self {
        Self {
            starts: SmallVec::new(),
            wanted: false,
            freed: false,
            drained: None,
            leavers: Vec::new(),
            values: Vec::new(),
            typed: Vec::new(),
            lost: Vec::new(),
            leaving: None,
        }
    }
}

/// Entry point of a message: its shard and the type's runtime.
pub(super) struct DeliveryContext<'a, E: Entity> {
    pub(super) shard: &'a Shard<E>,
    pub(super) runtime: &'a Runtime<E>,
}

impl<E: Entity> ShardEffects<E> {
    /// Whether there is nothing to carry out, which is the usual result of a message.
    pub(super) fn is_nothing(&self) -> bool {
        let Self { starts, wanted, freed, drained, leavers, values, typed, lost, leaving } = self;
        starts.is_empty()
            && !(*wanted || *freed)
            && drained.is_none()
            && leavers.is_empty()
            && values.is_empty()
            && typed.is_empty()
            && lost.is_empty()
            && leaving.is_none()
    }
}

impl<E: Entity> Shard<E> {
    /// Makes a shard in stage `Empty`, whose gate knows no home yet.
    pub(super) fn new(
        id: ShardId,
        me: RegionId,
        passivation_tracker: ShardPassivationTracker,
    ) -> Self {
        let shard_entities = ShardEntities {
            entity_table: EntityTable::new(),
            running: 0,
            generation: Generation::NEVER,
            carried: None,
            passivation_tracker,
            lapses: 0,
            leaving: 0,
            adaptive_yield: ActivationYield::yielding(),
            wanted: false,
            full_mailboxes: None,
            callers_saw: None,
            removed_senders: None,
            slow: BTreeSet::new(),
            oldest: None,
            scratch: Vec::new(),
        };
        Self {
            id,
            phase: Arc::default(),
            here: AtomicBool::new(false),
            lapses: AtomicU64::new(0),
            inside: CachePadded::new(Mutex::new(ShardInner {
                gate: Gate::new(me),
                shard_entities,
            })),
        }
    }

    /// Number of long lapses, see [`ShardEntities::lapses`].
    pub(super) fn lapses(&self) -> u64 {
        self.lapses.load(Ordering::Acquire)
    }

    /// Whether the current message comes from code of a draining shard, which may be another one,
    /// while this shard drains too. Such a message is handled before the payload is sealed, because
    /// a handler may wait for it
    /// (docs/protocol/sharding.md#draining-handlers-reach-draining-shards).
    fn is_waited_for(&self) -> bool {
        self.phase.is_draining() && scope::is_draining()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ShardInner<E>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` at the gate under the lock, then updates what is [derived](Self::look) from the
    /// gate, and carries out the effects without the lock. `fit` states whether messages that `act`
    /// delivers may be refused by a full mailbox. Must not be called under any shard's lock.
    pub(super) fn pass<T>(
        self: &Arc<Self>,
        runtime: &Arc<Runtime<E>>,
        fit: MailboxLimitCheck,
        act: impl FnOnce(&mut Gate<Envelope>, &mut ShardGateEffects<'_, E>) -> T,
    ) -> T {
        let mut after = ShardEffects::default();
        let result = {
            let mut inside = self.lock();
            let ShardInner { gate, shard_entities } = &mut *inside;
            let mut gate_effects = ShardGateEffects {
                runtime,
                shard: self,
                shard_entities,
                after: &mut after,
                fit,
                moved: false,
            };
            let result = act(gate, &mut gate_effects);
            self.look(gate, shard_entities, &mut after);
            result
        };
        runtime.carry_out(self, after);
        result
    }

    /// Updates what is derived from the gate: the hint `here`, the request for a home, and whether
    /// callers may retry. The home is requested once, when messages begin to wait for it. Callers
    /// may retry when the lane is another one than they saw, or when a newer decision ends the
    /// reports of full mailboxes, which are then dropped. Call it after every change of the gate.
    pub(super) fn look(
        &self,
        gate: &Gate<Envelope>,
        shard_entities: &mut ShardEntities<E>,
        after: &mut ShardEffects<E>,
    ) {
        self.here.store(gate.leads_here(), Ordering::Release);
        let wants = gate.wants_home();
        after.wanted |= wants && !shard_entities.wanted;
        shard_entities.wanted = wants;
        if shard_entities.callers_saw.is_some_and(|saw| saw != gate.lane()) {
            (shard_entities.callers_saw, after.freed) = (None, true);
        }
        if shard_entities
            .full_mailboxes
            .as_ref()
            .is_some_and(|full_mailboxes| !full_mailboxes.is_valid_for(gate.newest()))
        {
            (shard_entities.full_mailboxes, after.freed) = (None, true);
        }
    }
}

impl<E: Entity> ShardEntities<E> {
    /// The route has changed, so a missing home is requested again.
    pub(super) const fn ask_again(&mut self) {
        self.wanted = false;
    }

    /// Whether an entity's mailbox has room for a message of `bytes` bytes. An unknown or idle
    /// entity has room for any message. After a refusal waiting callers are woken once it has room.
    pub(super) fn check_room(
        &mut self,
        (hash, id): (u64, &[u8]),
        bytes: usize,
        delivery: &DeliveryContext<'_, E>,
    ) -> Result<(), MailboxFull> {
        let row = self.entity_table.find(hash, id);
        row.map_or(Ok(()), |row| self.check_row(row, bytes, delivery))
    }

    /// Like [`check_room`](Self::check_room), for the entity in a row. A message that a draining
    /// handler waits for always fits.
    fn check_row(
        &mut self,
        row: u32,
        bytes: usize,
        DeliveryContext { shard, runtime }: &DeliveryContext<'_, E>,
    ) -> Result<(), MailboxFull> {
        let Some(busy) = &mut self.entity_table.get_mut(row).busy else { return Ok(()) };
        let checked = busy.mailbox.check(runtime.room_of_mailbox(), bytes);
        // A full mailbox of a draining shard gets no room, so a message that a draining handler
        // waits for is accepted anyway; otherwise it would delay the drain.
        if checked.is_err() && shard.is_waited_for() { Ok(()) } else { checked }
    }

    /// Puts a message of this node into the mailbox, or returns it if the mailbox is full. Adds the
    /// entity if it is unknown, and starts it as [`push`](Self::push) does. The shard must be
    /// hosted or drain here, which is not checked. Panics if it must add an invalid id.
    pub(super) fn push_within(
        &mut self,
        delivery: DeliveryContext<'_, E>,
        to: (u64, &str),
        (message, bytes): (E::Message, u32),
        after: &mut ShardEffects<E>,
    ) -> Result<(), (MailboxFull, E::Message)> {
        let known = self.entity_table.find(to.0, to.1.as_bytes());
        if let Some(row) = known
            && let Err(full) = self.check_row(row, bytes as usize, &delivery)
        {
            return Err((full, message));
        }
        let row = known.unwrap_or_else(|| self.add(to.0, to.1));
        self.push(row, to.0, delivery, MessageInTransit::typed(message, bytes), after);
        Ok(())
    }

    fn add(&mut self, hash: u64, id: &str) -> u32 {
        let id = EntityId::new(id).expect("ids are checked where they come in");
        self.entity_table.add(hash, id)
    }

    /// Puts a message into the mailbox, without a check of its limits, and starts the entity if it
    /// is not running. It does not start while instances of the shard are being dropped, nor unless
    /// the shard is open. A message that a draining handler waits for starts it in a draining shard
    /// too, and marks itself and all messages before it as still to be handled here. In an open
    /// shard the passivation tracker learns of it, and may choose entities to stop.
    fn push(
        &mut self,
        row: u32,
        hash: u64,
        DeliveryContext { shard, runtime }: DeliveryContext<'_, E>,
        message: MessageInTransit<'_, E::Message>,
        after: &mut ShardEffects<E>,
    ) {
        let stage = shard.phase.get();
        let waited_for = shard.is_waited_for()
            && !runtime.fault_injection.has(ShardingFault::DrainingHandlersNotMarked);
        let busy = self.entity_table.busy(row);
        busy.mailbox.push(message);
        if waited_for {
            busy.marked = busy.mailbox.len();
        }
        let may_start = !busy.runs && self.leaving == 0;
        let starts = may_start && (stage == ShardStage::Open || waited_for);
        if starts {
            self.start(row, after);
        }
        if stage == ShardStage::Open {
            self.track_delivery(row, hash, DeliveryContext { shard, runtime }, after);
        }
    }

    /// The task of an entity ends because the entity has nothing to do: makes its row idle, or
    /// removes the row if it has neither instance nor state. Panics if the mailbox is not empty.
    /// Uncounts the task, and seals nothing: only called while the shard is open.
    pub(super) fn park(&mut self, row: u32, runtime: &Runtime<E>, after: &mut ShardEffects<E>) {
        self.running -= 1;
        self.entity_table.idle(row);
        let entity_slot = self.entity_table.get_mut(row);
        let (slot, stays) = (entity_slot.tracker_slot, entity_slot.instance.is_some());
        if stays || self.entity_table.is_dormant(row) {
            self.rest(row, runtime, after);
        } else {
            after.values.extend(self.entity_table.remove(row, hash));
            self.untrack(slot);
        }
    }

    /// Stores a state that an instance exported before a move, and adds the entity if it is
    /// unknown. Returns false if the entity had one already; the new one is lost then.
    fn arrive(
        &mut self,
        id: EntityId,
        state: ExportedState,
        DeliveryContext { shard, runtime }: DeliveryContext<'_, E>,
        after: &mut ShardEffects<E>,
    ) -> bool {
        let hash = hash(id.as_bytes());
        let known = self.entity_table.find(hash, id.as_bytes());
        let row = known.unwrap_or_else(|| self.entity_table.add(hash, id));
        if self.entity_table.is_dormant(row) {
            return false;
        }
        self.entity_table.keep_state(row, state);
        self.track_delivery(row, hash, DeliveryContext { shard, runtime }, after);
        if self.entity_table.get(row).busy.is_none() {
            self.rest(row, runtime, after);
        }
        true
    }

    /// Starts a task for an entity, which must not have one; it begins once the lock is released.
    pub(super) fn start(&mut self, row: u32, after: &mut ShardEffects<E>) {
        let busy = self.entity_table.busy(row);
        busy.runs = true;
        let handling = busy.handling.clone();
        self.running += 1;
        let (id, lapses) = (self.entity_table.get(row).id.clone(), self.lapses);
        after.starts.push(Start { row, id, handling, lapses });
    }

    /// Starts a task for messages that a draining handler waits for, unless one runs already.
    pub(super) fn go_on(&mut self, row: u32, after: &mut ShardEffects<E>) {
        let busy = self.entity_table.get(row).busy.as_ref();
        if busy.is_some_and(|busy| busy.marked > 0 && !busy.runs) {
            self.start(row, after);
        }
    }

    /// Wakes the tasks of all entities that have waited, so that they see a new stage or lapse.
    pub(super) fn wake(&mut self) {
        let busy = self.entity_table.all().filter_map(|entity_slot| entity_slot.busy.as_ref());
        let running = busy.filter(|busy| busy.runs);
        running
            .filter_map(|busy| busy.handling.as_ref())
            .for_each(|handling| handling.waker.wake());
    }
}

/// Effects of the gate: access to the node, its lanes and its mailboxes. Made for one
/// [pass](Shard::pass).
pub(super) struct ShardGateEffects<'a, E: Entity> {
    pub(super) runtime: &'a Arc<Runtime<E>>,
    pub(super) shard: &'a Arc<Shard<E>>,
    pub(super) shard_entities: &'a mut ShardEntities<E>,
    pub(super) after: &'a mut ShardEffects<E>,
    pub(super) fit: MailboxLimitCheck, // whether a full mailbox refuses delivered messages
    /// The message comes from a lane and had been bounced or had waited for a home.
    pub(super) moved: bool,
}

impl<E: Entity> ShardGateEffects<'_, E> {
    /// Applies the region's verdict: the shard starts, continues or drains here. A start takes the
    /// payload that the region's order left, states first. A node that has stopped opens no shard;
    /// its payload is lost and counted. A verdict that the shard drains does not undo the end of
    /// that drain. Changes the stage only from `Empty` to `Open` and from `Open` to `Draining`.
    pub(super) fn stand(&mut self, gate: &mut Gate<Envelope>, standing: HostState) {
        let stage = self.shard.phase.get();
        let carried = match standing.run {
            HostingPhase::Hosting(generation) => {
                self.shard_entities.generation = generation;
                if stage == ShardStage::Empty && !self.runtime.is_over() {
                    self.shard.phase.set(ShardStage::Open);
                }
                self.carried()
            }
            HostingPhase::Draining(_) | HostingPhase::Idle => VecDeque::new(),
        };
        if stage == ShardStage::Open && matches!(standing.run, HostingPhase::Draining(_)) {
            // Set before the gate's standing, so that messages accepted meanwhile do not begin.
            self.shard.phase.set(ShardStage::Draining);
            gate.stand(standing, carried, self);
            self.drain(gate);
        } else {
            gate.stand(standing, carried, self);
        }
    }

    /// Takes the payload of a start: stores its states and returns its messages; none without a
    /// payload. If it is malformed, the entries before that place are taken, and the rest counts as
    /// one lost message.
    fn carried(&mut self) -> VecDeque<SizedMessage<Envelope>> {
        let Some(payload) = self.shard_entities.carried.take() else { return VecDeque::new() };
        let (carried, rest) = payload::read(&payload);
        if let Err(why) = rest {
            let (entity_type, shard) = (&self.runtime.entity_type, self.shard.id);
            let (read, bytes) = (carried.envelopes.len(), payload.len());
            tracing::error!(
                %entity_type, %shard, %why, read, bytes,
                "sharding.payload: the payload of a move does not decode; the messages and states \
                 after this place are lost: run one release on all nodes"
            );
            self.runtime.dead(DeadLetterReason::Undecodable, 1, shard);
        }
        self.arrive(carried.states);
        carried
            .envelopes
            .into_iter()
            .map(|envelope| SizedMessage { bytes: envelope.bytes().len(), message: envelope })
            .collect()
    }

    /// Stores the states before any message, so that instances which these messages start find
    /// them. All are lost and counted if the node has stopped; otherwise each one after the first
    /// of its entity.
    fn arrive(&mut self, states: Vec<(EntityId, ExportedState)>) {
        let (shard, runtime, mut lost) = (self.shard, self.runtime, 0);
        if runtime.is_over() {
            return runtime.lose_states(states.len(), shard.id, OVER);
        }
        for (id, state) in states {
            let delivery = DeliveryContext { shard, runtime };
            lost += usize::from(!self.shard_entities.arrive(id, state, delivery, self.after));
        }
        runtime.lose_states(lost, shard.id, "a move carried two for one entity");
    }

    /// Begins the drain; the stage is set already. Entities with a task go on and end by
    /// themselves. An idle instance gets a task for its stop message if the type has one, otherwise
    /// it exports its state and is dropped. Wakes the tasks and callers that wait. Seals at once if
    /// nothing runs.
    fn drain(&mut self, gate: &mut Gate<Envelope>) {
        self.shard_entities.untrack_all();
        let (has_stop_message, mut instances) = (self.runtime.has_stop_message, Vec::new());
        for row in self.shard_entities.entity_table.rows().collect::<Vec<_>>() {
            let entity_slot = self.shard_entities.entity_table.get_mut(row);
            if entity_slot.busy.as_ref().is_some_and(|busy| busy.runs) {
                continue;
            }
            if has_stop_message && entity_slot.instance.is_some() {
                self.shard_entities.start(row, self.after);
            } else if let Some(instance) = entity_slot.instance.take() {
                instances.push((row, entity_slot.id.clone(), instance));
            }
        }
        self.end(instances, StateExport::Asked);
        // tasks that wait for a restart or for the lease stop waiting
        self.shard_entities.wake();
        // and draining handlers of other shards stop waiting for room here
        self.after.freed = true;
        self.seal_if_done(gate);
    }

    /// `handoff-timeout` has expired: aborts the running handlers of a draining shard. No effect in
    /// any other stage.
    pub(super) fn abort(&mut self) {
        if self.shard.phase.is_draining() {
            self.shard.phase.set(ShardStage::Aborted);
            self.shard_entities.wake();
        }
    }

    /// The lease has lapsed for long: ends all instances of an open shard without a stop message
    /// and without an export, because no handler may run: idle ones here, others by their tasks,
    /// which see the new count of lapses. Messages that have not begun stay. No effect in any other
    /// stage: a draining shard ends by its own timeout.
    pub(super) fn drop_instances(&mut self) {
        if self.shard.phase.get() != ShardStage::Open {
            return;
        }
        self.shard_entities.lapses += 1;
        self.shard.lapses.store(self.shard_entities.lapses, Ordering::Release);
        let entity_table = &mut self.shard_entities.entity_table;
        let mut instances = Vec::new();
        for row in entity_table.rows().collect::<Vec<_>>() {
            let entity_slot = entity_table.get_mut(row);
            let runs = entity_slot.busy.as_ref().is_some_and(|busy| busy.runs);
            if runs && !self.runtime.fault_injection.has(ShardingFault::LetGoTakesStarted) {
                continue; // its task drops it and begins no other meanwhile
            }
            let id = &entity_slot.id;
            instances
                .extend(entity_slot.instance.take().map(|instance| (row, id.clone(), instance)));
        }
        self.end(instances, StateExport::No);
        self.shard_entities.wake(); // running handlers are dropped
    }

    /// Ends idle instances, which were taken out of their rows, once the lock is released. No
    /// effect without any.
    fn end(
        &mut self,
        instances: Vec<(u32, EntityId, Box<Instance<E>>)>,
        export_state: StateExport,
    ) {
        if !instances.is_empty() {
            self.leave(LeavingInstances {
                export_state,
                instances,
                unfinished: UnfinishedTasks::default(),
            });
        }
    }

    /// Delays all activations of the shard until `unfinished` has ended. An activation that was
    /// dropped uses this, because it cannot wait for the tasks of its instance.
    pub(super) fn end_after(&mut self, unfinished: UnfinishedTasks) {
        self.leave(LeavingInstances {
            export_state: StateExport::No,
            instances: Vec::new(),
            unfinished,
        });
    }

    /// Has instances dropped after the lock is released. [`left`](Self::left) follows, and until
    /// then no activation begins. Panics at the second call in one pass.
    fn leave(&mut self, leaving: LeavingInstances<E>) {
        self.shard_entities.running += 1; // until they are dropped
        self.shard_entities.leaving += 1;
        let before = self.after.leaving.replace(leaving);
        assert!(before.is_none(), "the shard would wait for the replaced set for ever");
    }

    /// Idle instances were dropped; `states` are their exported states, which wait here for the
    /// next instance or the seal. If no others are being dropped, starts the entities whose
    /// messages waited for that, and removes rows that are no longer needed. Seals the payload if
    /// the drain ends with it.
    pub(super) fn left(&mut self, gate: &mut Gate<Envelope>, states: Vec<(u32, ExportedState)>) {
        for (row, state) in states {
            self.keep(row, state);
        }
        assert!(self.shard_entities.leaving > 0, "they were to end");
        self.shard_entities.leaving -= 1;
        let stage = self.shard.phase.get();
        if self.shard_entities.leaving == 0 && !self.runtime.is_over() {
            for row in self.shard_entities.entity_table.rows().collect::<Vec<_>>() {
                match stage {
                    ShardStage::Open => self.begin(row),
                    ShardStage::Draining => self.shard_entities.go_on(row, self.after),
                    ShardStage::Empty | ShardStage::Aborted => {}
                }
            }
        }
        self.ended(gate);
    }

    /// Starts the entity of a row if messages wait and it has no task. Makes a row without messages
    /// idle, or removes it if it has neither instance nor state.
    fn begin(&mut self, row: u32) {
        let (shard, runtime) = (self.shard, self.runtime);
        let entity_slot = self.shard_entities.entity_table.get(row);
        match &entity_slot.busy {
            Some(busy) if busy.runs => {}
            Some(busy) if !busy.mailbox.is_empty() => {
                let hash = hash(entity_slot.id.as_bytes());
                self.shard_entities.start(row, self.after);
                self.shard_entities.track_delivery(
                    row,
                    hash,
                    DeliveryContext { shard, runtime },
                    self.after,
                );
            }
            None if entity_slot.instance.is_some()
                || self.shard_entities.entity_table.is_dormant(row) => {}
            _ => {
                self.shard_entities.running += 1; // `park` counts it as ended
                self.shard_entities.park(row, runtime, self.after);
            }
        }
    }

    /// Stores a state for the next instance, here or at the next home. It is lost and counted if
    /// the node has stopped. Panics if the entity has one already.
    pub(super) fn keep(&mut self, row: u32, state: ExportedState) {
        if self.runtime.is_over() {
            return self.runtime.lose_states(1, self.shard.id, OVER);
        }
        let before = self.shard_entities.entity_table.keep_state(row, state);
        assert!(before.is_none(), "an entity has one state");
    }

    /// A task that was counted as running has ended. Seals the payload if the drain ends with it.
    /// Panics if none is counted.
    pub(super) fn ended(&mut self, gate: &mut Gate<Envelope>) {
        assert!(self.shard_entities.running > 0, "a task ends that never began");
        self.shard_entities.running -= 1;
        self.seal_if_done(gate);
    }

    /// Seals the payload once the last entity has ended, and turns this node's own gate to the next
    /// home in the same step, so that no message falls in between
    /// (docs/protocol/sharding.md#release-after-last-stop). Callers, and nodes that full mailboxes
    /// refused, are told to try again. The stage becomes `Empty`. Instances that are left export
    /// nothing, and messages that do not encode are lost.
    ///
    /// While something runs, only aborts handlers if all that still run are slow. Does nothing
    /// unless the shard drains or was aborted, and nothing once the node has stopped.
    fn seal_if_done(&mut self, gate: &mut Gate<Envelope>) {
        let ends = matches!(self.shard.phase.get(), ShardStage::Draining | ShardStage::Aborted);
        if !ends || self.runtime.is_over() {
            return;
        }
        if self.shard_entities.running > 0 {
            let (shard, runtime) = (self.shard, self.runtime);
            return self.shard_entities.abort_slow(&DeliveryContext { shard, runtime });
        }
        self.shard_entities.slow.clear();
        self.shard_entities.oldest = None;
        for row in self.shard_entities.entity_table.rows().collect::<Vec<_>>() {
            self.shard_entities.tell_emptied(row, self.shard.id, self.runtime);
        }
        let entity_table =
            std::mem::replace(&mut self.shard_entities.entity_table, EntityTable::new());
        let (payload, left) = payload::seal(entity_table, self.runtime.fault_injection);
        self.after.values.extend(left.values);
        self.after.lost.extend(left.lost);
        self.after.typed.extend(left.typed);
        self.shard.phase.set(ShardStage::Empty);
        self.shard_entities.generation = Generation::NEVER;
        gate.stand(HostState { run: HostingPhase::Idle, ..gate.standing() }, VecDeque::new(), self);
        self.after.drained = Some(payload);
        // callers that wait for room in a mailbox here take the new route
        self.after.freed = true;
    }

    /// Ends everything at once, because the node is out: idle instances are dropped, running
    /// handlers at their next await, and messages in mailboxes, at the gate and in a payload are
    /// lost and counted. The stage becomes `Aborted`, and rows and the count of running tasks stay.
    /// `Runtime::is_over` must be set before; later calls see it under this lock.
    pub(super) fn stop(&mut self, gate: &mut Gate<Envelope>) {
        self.shard_entities.untrack_all();
        self.shard.phase.set(ShardStage::Aborted);
        let dormant = self.shard_entities.entity_table.forget_dormant();
        self.runtime.lose_states(dormant, self.shard.id, OVER);
        for row in self.shard_entities.entity_table.rows().collect::<Vec<_>>() {
            let entity_slot = self.shard_entities.entity_table.get_mut(row);
            self.after.values.extend(entity_slot.instance.take());
            if let Some(busy) = &mut entity_slot.busy {
                let lost = busy.mailbox.entries().into_iter();
                self.after.lost.extend(lost.map(|entry| (DeadLetterReason::NodeStopped, entry)));
                busy.marked = 0;
            }
        }
        self.shard_entities.wake();
        for item in self.carried().into_iter().chain(gate.empty(self)) {
            self.lose(DeadLetterReason::NodeStopped, item.message);
        }
    }

    /// Puts an accepted envelope into the mailbox of its entity, and adds the entity if it is
    /// unknown. The message is lost and counted if the node has stopped, if the mailbox is full and
    /// `fit` requires room (`from` is told then), or if `from` marked it as moved and more wait
    /// than moves can bring. The stage is not checked, only by [`push`](ShardEntities::push).
    pub(super) fn deliver(&mut self, from: RegionId, message: MessageInTransit<'_, E::Message>) {
        let envelope = message.envelope().expect("values are told here, and not delivered");
        let (hash, bytes) = (hash(envelope.id_bytes()), envelope.bytes().len());
        if self.runtime.is_over() {
            return self.after.lost.push((DeadLetterReason::NodeStopped, message.entry()));
        }
        let known = self.shard_entities.entity_table.find(hash, envelope.id_bytes());
        let row = known.unwrap_or_else(|| self.shard_entities.add(hash, envelope.id()));
        let delivery = DeliveryContext { shard: self.shard, runtime: self.runtime };
        let mut is_full = false;
        if self.fit == MailboxLimitCheck::Must
            && self.shard_entities.check_row(row, bytes, &delivery).is_err()
        {
            self.turn_away(from, row, bytes);
            is_full = true;
        }
        if is_full || self.moved && self.is_overrun(from, row, bytes) {
            return self.after.lost.push((DeadLetterReason::MailboxFull, message.entry()));
        }
        self.shard_entities.push(row, hash, delivery, message, self.after);
    }

    /// Sends a message down the lane if the lane has room and no message waits for it. Otherwise
    /// returns it to its caller as `BufferFull`; the caller is woken when the lane has room or
    /// changes. If the lane has ended, the gate takes the message, so that it may wait there.
    pub(super) fn send_or_return(
        &mut self,
        gate: &mut Gate<Envelope>,
        item: SizedMessage<Envelope>,
    ) -> Result<SendOutcome, (TellError, Envelope)> {
        let lane = gate.lane();
        let item = match lane {
            None => item,
            Some((home, stamp)) => match self.send(home, stamp, item, MailboxLimitCheck::Must) {
                Ok(()) => return Ok(SendOutcome::Sent),
                Err(LaneSendError::Full(item)) => item,
                Err(LaneSendError::Gone(item)) => {
                    let told = gate.tell(item, Origin::Anybody, self); // detects that itself
                    return told.map_err(|(full, item)| (full.into(), item.message));
                }
            },
        };
        self.shard_entities.callers_saw = Some(lane);
        let full = Full { buffered: item.bytes, limit: LONG_BYTES, why: Reached::ShardBytes };
        Err((full.into(), item.message))
    }

    /// Has a message counted as lost, and its asker told, once the lock is released.
    pub(super) fn lose(&mut self, why: DeadLetterReason, envelope: Envelope) {
        self.after.lost.push((why, SingleMessage::Envelope(envelope)));
    }
}
