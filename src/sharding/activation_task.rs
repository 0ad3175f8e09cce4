//! Activation of an entity: the task that handles its messages. It takes the waiting messages and
//! handles one after the other. Before each message and each poll it checks the lease
//! (docs/protocol/leases.md#clock-check-before-every-message). It ends when no message waits.
//!
//! The task alternates between two places. Under the shard's lock it gives unbegun messages back,
//! takes the instance out of the entity's row, and takes the next batch (`take`). Without the lock
//! it runs the program's code: the factory, handlers, the stop message, export and import of the
//! state, and `Drop`. A change of the shard's stage, or a lapse of the lease that lasts, ends the
//! batch: unbegun messages go back, and the next `take` decides on the next step.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures::future::BoxFuture;

use super::activation::{ActivationFuture, ActivationStarter};
use super::batch::{BATCH, MessageBatch, MessageInTransit};
use super::context::Context;
use super::dead_letters::DeadLetterReason;
use super::entity::{Entity, Supervision};
use super::envelope::{EnvelopeRef, decode};
use super::fault_injection::ShardingFault;
use super::fencing::FencingToken;
use super::frame;
use super::gate::MailboxLimitCheck;
use super::handler_guard::{
    ContinueConditions, HandlerOutcome, LeaseCheck, WakerSlot, guarded, wait,
};
use super::ids::{EntityId, ShardId};
use super::instance::Instance;
use super::panics;
use super::pending_asks::{ReplyAddress, ReplySink};
use super::runtime::Runtime;
use super::scope::{self, CurrentEntity};
use super::shard::{Shard, ShardEffects, ShardEntities, ShardInner, Start};
use super::shard_stage::ShardStage;
use super::state_transfer::ExportedState;
use super::tracked::UnfinishedTasks;
use super::types::TypeRegistry;
use crate::wakers::yield_now;

/// The next action of the activation.
enum ActivationStep {
    /// Handle the messages of the batch.
    Batch,
    /// Handle the stop message, then end the instance.
    StopMessage,
    /// Drop the instance, because the lease lapsed for too long.
    DropInstance,
    /// Wait until the tasks of the former instance have ended, then check again.
    Again,
    /// Return: the entity is parked or ended. From `take`, also if the task must yield first and
    /// call `take` again; then `ActivationTask::ended` is not set.
    Nothing,
}

/// The decoded content of the first envelope of a batch.
enum DecodedMessage<M> {
    /// It was not decoded: there is no envelope at the front, no instance yet, the batch does not
    /// [stay](ActivationTask::stays), or the envelope is an explicit start, which has no message.
    Nothing,
    Message(M),
    Undecodable,
}

/// Why an activation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActivationEnd {
    ByItself,
    /// Its code panicked, or its executor was shut down and accepts no task.
    Dropped,
}

/// The state of an activation. A drop before its end [ends](Self::end) it.
struct ActivationTask<E: Entity> {
    runtime: Arc<Runtime<E>>,
    shard: Arc<Shard<E>>,
    row: u32,
    id: EntityId,
    waker_slot: WakerSlot,
    value: Option<Box<Instance<E>>>, // the instance, while it is not in the entity's row
    state: Option<ExportedState>,    // for the next instance
    unfinished: UnfinishedTasks,     // tasks of former instances
    batch: MessageBatch<E::Message>, // taken and not begun
    stage: ShardStage,               // when the batch was taken
    token: FencingToken,             // when the batch was taken
    reply_path: Option<Arc<dyn ReplySink>>, // set once an envelope was decoded
    lapses: u64,                     // of the shard, when the instance began or was taken
    failures: u32,                   // in a row, in this activation
    /// Turns of `handle_batch` since the last yield: messages, and attempts to create an instance.
    /// 0: nothing was done since the yield before the end, so no second such yield follows. A yield
    /// between messages leaves 1. At most [`BATCH`].
    since_yield: usize,
    lingers: bool, // it yields before it ends; the next `take` learns from that
    begun: bool,   // was polled
    ended: bool,   // parked, or `end` was called
}

/// The reply path of the envelopes of one activation.
struct ReplyPath<E: Entity>(Arc<Runtime<E>>);

impl<E: Entity> ReplySink for ReplyPath<E> {
    fn send(&self, to: ReplyAddress, frame: &[u8]) {
        self.0.send(to, frame);
    }

    fn lose_answer(&self, why: DeadLetterReason) {
        self.0.lose_answer(why);
    }

    fn types(&self) -> &Arc<TypeRegistry> {
        self.0.asks.types()
    }
}

/// Starts activations, which were prepared under the locks of their shards.
impl<E: Entity> ActivationStarter for Runtime<E> {
    /// Makes the future, which does nothing before its first poll. During each poll, but not during
    /// its drop, its entity is the current entity of the thread ([`scope::at_work`]). A drop, also
    /// of an unpolled future, [ends](ActivationTask::end) the activation.
    fn begin(
        self: Arc<Self>,
        shard: ShardId,
        start: Start,
        over: Option<ActivationFuture>,
    ) -> ActivationFuture {
        let mut task = self.task(shard, start);
        let shard = Arc::clone(&task.shard);
        let (phase, handler) = (Arc::clone(&shard.phase), Some(task.id.clone()));
        let mut at_work = Some(CurrentEntity { phase, handler });
        let activation = async move {
            let mut run = pin!(run(&mut task, &shard)); // by value it would be stored three times
            poll_fn(|cx| scope::at_work(&mut at_work, || run.as_mut().poll(cx))).await;
        };
        ActivationFuture::instead(over, activation)
    }

    /// Makes the task and drops it unpolled: its `Drop` reports the end to the shard. The messages
    /// of the entity stay in its mailbox, and no other task starts for them now; if the node is out
    /// they are lost. Takes the shard's lock.
    fn give_up(self: Arc<Self>, shard: ShardId, start: Start) {
        drop(self.task(shard, start));
    }
}

impl<E: Entity> Runtime<E> {
    /// Makes the task of a start. It takes no lock, and neither instance nor messages: its first
    /// `take` does.
    fn task(self: Arc<Self>, shard: ShardId, start: Start) -> ActivationTask<E> {
        let shard = Arc::clone(self.shard(shard).expect("it has given the start"));
        let Start { row, id, handling, lapses } = start;
        ActivationTask {
            runtime: self,
            shard,
            row,
            id,
            waker_slot: WakerSlot(handling),
            value: None,
            state: None,
            unfinished: UnfinishedTasks::default(),
            batch: MessageBatch::default(),
            stage: ShardStage::Open,
            token: FencingToken::default(),
            reply_path: None,
            lapses,
            failures: 0,
            since_yield: 0,
            lingers: false,
            begun: false,
            ended: false,
        }
    }
}

/// Carries out the steps of an activation until [`ActivationStep::Nothing`]. By then the entity is
/// parked or the activation has ended.
async fn run<E: Entity>(task: &mut ActivationTask<E>, shard: &Shard<E>) {
    task.begun = true;
    loop {
        match task.next(shard).await {
            ActivationStep::Batch => task.handle_batch().await,
            ActivationStep::StopMessage => task.handle_stop_message().await,
            ActivationStep::DropInstance => task.drop_instance(),
            ActivationStep::Again => {}
            ActivationStep::Nothing => return,
        }
    }
}

impl<E: Entity> ActivationTask<E> {
    /// Decides on the next action, after the tasks of a former instance have ended. If nothing
    /// waits and yields have paid in this shard recently (`AdaptiveYield`), yields once and looks
    /// again before the entity parks, so that a steady stream of messages finds the entity active.
    /// The second look never yields again.
    async fn next(&mut self, shard: &Shard<E>) -> ActivationStep {
        self.tasks_end().await;
        let next = self.take(shard);
        if !matches!(next, ActivationStep::Nothing) || self.ended {
            return next;
        }
        (self.since_yield, self.lingers) = (0, true);
        yield_now().await;
        self.take(shard)
    }

    /// An entity parks, ends, or gets another instance only after the tasks of its former instance
    /// are dropped; otherwise the next instance would find resources of the former one still in use
    /// (docs/protocol/sharding.md#an-instance-ends-before-its-successor). This waits until they
    /// are, and returns at once if there are none.
    async fn tasks_end(&mut self) {
        if !self.unfinished.is_empty() {
            self.unfinished.end().await;
        }
    }

    /// Gives unbegun messages back and takes the instance and the next batch, under the shard's
    /// lock. Renews the fencing token and the number of lapses. Returns, in this order:
    ///
    /// - [`DropInstance`](ActivationStep::DropInstance) if there is an instance, the lease has
    ///   lapsed for long since the last call and the shard is Open; no message is taken then;
    /// - [`Batch`](ActivationStep::Batch) if messages may begin; refused local callers are woken;
    /// - [`StopMessage`](ActivationStep::StopMessage) if there is an instance and either its shard
    ///   drains and the type has a stop message, or it is Open and passivation chose the instance;
    /// - [`Nothing`](ActivationStep::Nothing) if the shard is Open: the task must yield first (only
    ///   if it did something since the last yield), or the entity is parked;
    /// - in any other stage drops the instance, without the lock. Before that it exports the state,
    ///   except in an aborted shard of a type with a stop message. Returns
    ///   [`Again`](ActivationStep::Again) while tasks of the instance run; otherwise ends the
    ///   activation and returns [`Nothing`](ActivationStep::Nothing).
    fn take(&mut self, shard: &Shard<E>) -> ActivationStep {
        let mut inside = shard.lock();
        let stage = shard.phase.get();
        let ShardInner { shard_entities, .. } = &mut *inside;
        self.give_back(shard_entities);
        self.token =
            FencingToken::new(self.runtime.cluster_generation(), shard_entities.generation);
        self.take_value(shard_entities); // first: the instance may be from before a lapse
        let lapsed =
            std::mem::replace(&mut self.lapses, shard_entities.lapses) != shard_entities.lapses;
        if lapsed && stage == ShardStage::Open && self.value.is_some() {
            return ActivationStep::DropInstance;
        }
        let (made_room, leaves) = self.take_batch(shard_entities, stage);
        self.stage = stage;
        if std::mem::take(&mut self.lingers) {
            shard_entities.adaptive_yield.learn(!self.batch.is_empty());
        }
        if !self.batch.is_empty() {
            drop(inside);
            if made_room {
                self.runtime.room_here();
            }
            return ActivationStep::Batch;
        }
        match stage {
            ShardStage::Draining if self.value.is_some() && self.runtime.has_stop_message => {
                ActivationStep::StopMessage
            }
            ShardStage::Open if leaves && self.value.is_some() => ActivationStep::StopMessage,
            ShardStage::Open
                if self.since_yield > 0 && shard_entities.adaptive_yield.should_yield() =>
            {
                ActivationStep::Nothing
            }
            ShardStage::Open => {
                let after = self.park(shard_entities);
                drop(inside);
                self.runtime.carry_out(&self.shard, after);
                ActivationStep::Nothing
            }
            ShardStage::Draining | ShardStage::Aborted | ShardStage::Empty => {
                drop(inside);
                // Aborted before the stop message, the state is not consistent: no export.
                if stage == ShardStage::Draining || !self.runtime.has_stop_message {
                    self.export_state();
                }
                self.drop_instance();
                if !self.unfinished.is_empty() {
                    return ActivationStep::Again;
                }
                self.end(ActivationEnd::ByItself);
                ActivationStep::Nothing
            }
        }
    }

    /// Takes the instance, or the state for a new one, from the entity's row, and ends the idle
    /// period of the instance's receive timeout. Does nothing if the task has an instance.
    fn take_value(&mut self, shard_entities: &mut ShardEntities<E>) {
        if self.value.is_none() {
            self.value = shard_entities.entity_table.get_mut(self.row).instance.take();
            self.value.iter_mut().for_each(|instance| instance.end_idle());
            self.state =
                self.state.take().or_else(|| shard_entities.entity_table.take_state(self.row));
        }
    }

    /// Takes the next messages: a batch if the shard is Open, only marked ones while it drains,
    /// none in another stage. Tells the nodes that found the mailbox full if it has room again.
    ///
    /// Returns whether refused callers of this node may try again (the caller wakes them), and
    /// whether passivation has chosen the instance to stop. Both facts are cleared, so the choice
    /// lapses if messages were taken.
    fn take_batch(
        &mut self,
        shard_entities: &mut ShardEntities<E>,
        stage: ShardStage,
    ) -> (bool, bool) {
        let busy = shard_entities.entity_table.get_mut(self.row).busy.as_mut();
        let busy = busy.expect("a task's entity is busy");
        let most = match stage {
            ShardStage::Open => BATCH,
            ShardStage::Draining => busy.marked,
            ShardStage::Aborted | ShardStage::Empty => 0,
        };
        let count = busy.mailbox.take(most, &mut self.batch);
        busy.marked = busy.marked.saturating_sub(count);
        let made_room = count > 0 && busy.mailbox.take_refused();
        let leaves = std::mem::take(&mut busy.stops_if_idle);
        if busy.mailbox.puts_somebody_off() {
            shard_entities.tell_freed(self.row, self.shard.id, &self.runtime);
        }
        (made_room, leaves)
    }

    /// Puts messages that have not begun back at the front of the mailbox. They count as marked if
    /// messages behind them are marked, or if they were taken from a draining shard as marked ones.
    fn give_back(&mut self, shard_entities: &mut ShardEntities<E>) {
        let busy = shard_entities.entity_table.busy(self.row);
        if self.runtime.fault_injection.has(ShardingFault::TakenNotGivenBack) {
            self.batch.clear();
        }
        if busy.marked > 0 || self.stage == ShardStage::Draining {
            busy.marked += self.batch.len();
        }
        if self.runtime.fault_injection.has(ShardingFault::TakenGivenBackBehind) {
            busy.mailbox.give_back_behind(&mut self.batch);
        }
        busy.mailbox.give_back(&mut self.batch);
    }

    /// Parks the entity, because no message waits, or removes it if it has neither instance nor
    /// state. The instance and an unused state go back into the row, the memory of the empty batch
    /// to the mailbox, a receive timeout begins, and the activation counts as ended. The caller
    /// carries the effects out after it has released the shard's lock.
    fn park(&mut self, shard_entities: &mut ShardEntities<E>) -> ShardEffects<E> {
        let mut after = ShardEffects::default();
        if let Some(instance) = &mut self.value {
            instance.begin_idle(&self.runtime, self.id.as_str());
        }
        if let (None, Some(state)) = (&self.value, self.state.take()) {
            shard_entities.entity_table.keep_state(self.row, state); // its factory failed
        }
        let busy = shard_entities.entity_table.busy(self.row);
        busy.mailbox.adopt(&mut self.batch);
        shard_entities.entity_table.get_mut(self.row).instance = self.value.take();
        shard_entities.park(self.row, &self.runtime, &mut after);
        self.ended = true;
        after
    }

    /// Stops the tasks and timers of the instance, which `unfinished` then contains, and drops it.
    /// A panic of its `Drop` counts as a failure of this entity only. Does nothing without
    /// instance.
    fn drop_instance(&mut self) {
        let Some(mut value) = self.value.take() else { return };
        self.unfinished.add(value.stop_tasks());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            self.failed(&panics::message(panic));
        }
    }

    /// Exports the state of an intact instance whose shard moves, then drops the instance. Exports
    /// nothing if the node is out. Without instance, a state that was not imported yet is kept. The
    /// state stays in the task; [`end`](Self::end) puts it into the row.
    fn export_state(&mut self) {
        if let Some(instance) = self.value.as_mut().filter(|_| !self.runtime.is_over()) {
            self.state = self.runtime.export_state(self.shard.id, &self.id, &mut instance.value);
        }
        self.drop_instance();
    }

    /// Ends the activation, except by `park`: drops the instance and reports the end to the shard.
    /// Does nothing if the activation has parked or ended. Runs user code and takes the shard's
    /// lock.
    ///
    /// Messages that have not begun stay in the mailbox, for the payload or the next activation; if
    /// the node is out they are lost. A state goes back into the row. While the shard drains,
    /// another task starts for marked messages that came during the drop (not if this task itself
    /// was dropped). Tasks of the instance that still run delay all activations of the shard.
    ///
    /// In an Open shard, where only a task that was dropped ends here, the entity parks if no
    /// message waits. Otherwise another task starts: at once after a panic of a begun task, or once
    /// the tasks of the instance have ended. If there are none and the executor is shut down, no
    /// task starts and the messages stay.
    fn end(&mut self, how: ActivationEnd) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.waker_slot.has_ended(); // the task may be dropped with its executor
        self.drop_instance();
        let (shard, runtime) = (Arc::clone(&self.shard), Arc::clone(&self.runtime));
        shard.pass(&runtime, MailboxLimitCheck::Exempt, |gate, gate_effects| {
            self.give_back(gate_effects.shard_entities);
            let busy = gate_effects.shard_entities.entity_table.busy(self.row);
            busy.runs = false;
            if runtime.is_over() {
                let lost = busy.mailbox.entries().into_iter();
                gate_effects
                    .after
                    .lost
                    .extend(lost.map(|entry| (DeadLetterReason::NodeStopped, entry)));
            }
            let is_empty = busy.mailbox.is_empty();
            if let Some(state) = self.state.take() {
                gate_effects.keep(self.row, state);
            }
            if how == ActivationEnd::ByItself && shard.phase.is_draining() && !runtime.is_over() {
                // A message may have come during the drop.
                gate_effects.shard_entities.go_on(self.row, gate_effects.after);
            }
            if !self.unfinished.is_empty() {
                let unfinished = std::mem::take(&mut self.unfinished);
                // The entity then parks, or another task continues, or the drain ends.
                gate_effects.end_after(unfinished);
                return gate_effects.ended(gate);
            }
            gate_effects.ended(gate);
            if shard.phase.get() == ShardStage::Open {
                // The task was dropped early. After a panic a new task continues. If the executor
                // is shut down, a new task would be dropped here as well, without end.
                if is_empty {
                    gate_effects.shard_entities.running += 1; // parks as if it had ended normally
                    gate_effects.shard_entities.park(self.row, &runtime, gate_effects.after);
                } else if self.begun && std::thread::panicking() {
                    gate_effects.shard_entities.start(self.row, gate_effects.after);
                }
            }
        });
    }

    /// Handles the messages of the batch in order, and yields after every [`BATCH`] of them.
    ///
    /// Creates the instance first if there is none, also for an explicit start and for an envelope
    /// that then does not decode. Checks the lease again after that and before each message, and
    /// waits while it is not valid. Returns early, with the rest in the batch, if the stage of the
    /// shard changes or the lease lapses for long. An envelope that does not decode is lost and
    /// counted, and an explicit start is answered; neither reaches the handler.
    async fn handle_batch(&mut self) {
        while !self.batch.is_empty() {
            // Decoded first, because the lease check must immediately precede the handler.
            let opened = self.open_first();
            if !self.begins_now() {
                self.leave_unopened(opened);
                if !self.may_begin().await {
                    return; // the rest of the batch is put back
                }
                continue;
            }
            self.since_yield += 1;
            if self.value.is_none() {
                self.create().await;
                continue; // the lease is checked again: a factory may take long
            }
            let message = match (self.batch.pop(), opened) {
                (
                    Some(MessageInTransit::Typed(message) | MessageInTransit::Weighed(message, _)),
                    _,
                )
                | (
                    Some(MessageInTransit::Envelope(_) | MessageInTransit::Own(_)),
                    DecodedMessage::Message(message),
                ) => Some(message),
                (Some(lost), DecodedMessage::Undecodable) => {
                    self.runtime.lose(DeadLetterReason::Undecodable, lost.entry(), self.shard.id);
                    None
                }
                (Some(envelope), DecodedMessage::Nothing) => {
                    let envelope = envelope.envelope().expect("others are values");
                    assert!(envelope.starts(), "a message is opened before it begins");
                    self.runtime.started(envelope);
                    None
                }
                (None, _) => return,
            };
            if let Some(message) = message {
                self.handle(message).await;
            }
            if self.since_yield >= BATCH {
                self.since_yield = 1;
                yield_now().await;
            }
        }
    }

    /// Whether the shard is at the same stage as when the batch was taken, and the lease has not
    /// lapsed for long since.
    fn stays(&self) -> bool {
        self.shard.phase.get() == self.stage && self.shard.lapses() == self.lapses
    }

    /// Whether a message may begin: [`stays`](Self::stays), and the lease is valid.
    fn begins_now(&self) -> bool {
        self.stays() && self.runtime.serves()
    }

    /// Waits for the lease, which it checks again after each pause of
    /// [`wait`]. Returns false if the shard has left the stage at which
    /// the batch was taken, or the lease lapsed for so long that the instance must be dropped. That
    /// is checked before the lease.
    async fn may_begin(&mut self) -> bool {
        if self.begins_now() {
            return true;
        }
        let Self { runtime, shard, row, waker_slot, stage, lapses, .. } = self;
        let mut pause: Option<BoxFuture<'static, ()>> = None;
        poll_fn(|cx| {
            waker_slot.register(shard, *row, cx);
            loop {
                if shard.phase.get() != *stage || shard.lapses() != *lapses {
                    return Poll::Ready(false);
                }
                if runtime.serves() {
                    return Poll::Ready(true);
                }
                if wait(&mut pause, &**runtime, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Creates an instance, which imports the state that waits for it. Creates none while tasks of
    /// a former instance run: waits for their end instead, and the caller checks everything again.
    ///
    /// If the factory panics there is no instance, the failure is counted, messages and state stay,
    /// and the activation pauses, by any supervision. If the batch was not taken from an Open
    /// shard, the first message is lost as `EntityFailed` instead of the pause.
    async fn create(&mut self) {
        if !self.unfinished.is_empty() {
            return self.tasks_end().await; // meanwhile the shard may have begun to drain
        }
        let (factory, id) = (&self.runtime.factory, &self.id);
        match catch_unwind(AssertUnwindSafe(|| Box::new(Instance::new(factory(id))))) {
            Ok(value) => {
                self.value = Some(value);
                return self.import_state().await;
            }
            Err(panic) => self.failed(&panics::message(panic)),
        }
        if self.stage == ShardStage::Open {
            return self.back_off().await;
        }
        // A drain must not wait for the pause, because the factory may fail forever.
        if let Some(message) = self.batch.pop() {
            self.runtime.lose(DeadLetterReason::EntityFailed, message.entry(), self.shard.id);
        }
    }

    /// Imports the state that a former instance exported, if there is one. A failed import loses
    /// the state and counts as a failure, which is supervised like that of a handler: with `Resume`
    /// the fresh instance continues without the state, with `Stop` all messages are lost.
    async fn import_state(&mut self) {
        let (Some(state), Some(instance)) = (self.state.take(), &mut self.value) else { return };
        let taken = self.runtime.import_state(self.shard.id, &self.id, &mut instance.value, &state);
        if self.runtime.fault_injection.has(ShardingFault::StateTakenAgain) {
            self.state = Some(state);
        }
        if !taken {
            self.failed("the import of its state failed");
            self.supervise().await;
        }
    }

    /// Decodes the first message if it is an envelope with a message, there is an instance, and the
    /// batch [stays](Self::stays). The envelope remains in the batch, because it may have to travel
    /// on unchanged before the message begins. Also makes the reply path at the first call that
    /// decodes. An envelope that does not decode is not counted here.
    fn open_first(&mut self) -> DecodedMessage<E::Message> {
        let Some(envelope) = self.batch.first_envelope() else { return DecodedMessage::Nothing };
        if self.value.is_none() || envelope.starts() || !self.stays() {
            return DecodedMessage::Nothing;
        }
        if self.reply_path.is_none() {
            self.reply_path = Some(Arc::new(ReplyPath(Arc::clone(&self.runtime))));
        }
        match scope::decoding(&mut self.reply_path, || decode(envelope.body())) {
            Ok(message) => DecodedMessage::Message(message),
            Err(_) => DecodedMessage::Undecodable,
        }
    }

    /// Drops a decoded message whose envelope stays in the batch. Its askers are not told anything,
    /// because the envelope will be decoded again. A panic of the message's `Drop` is counted.
    fn leave_unopened(&self, opened: DecodedMessage<E::Message>) {
        if let DecodedMessage::Message(message) = opened {
            scope::dropping_value(|| self.runtime.discard(message));
        }
    }

    /// Handles a message. There must be an instance, and the lease was checked immediately before.
    ///
    /// A handled message resets the failures in a row. An aborted handler is counted by its reason
    /// and its instance dropped, without supervision. A panic counts as a dead letter and as a
    /// failure, and is supervised.
    ///
    /// If the handler asked to passivate and the instance still exists (also after a panic with
    /// `Resume`), the instance handles its stop message and is dropped at once, by any outcome and
    /// also if messages wait. No state is exported, and pending timers are not counted as lost.
    async fn handle(&mut self, message: E::Message) {
        let mut passivates = false;
        let outcome = {
            let Self { runtime, shard, row, id, value, waker_slot, token, lapses, .. } = self;
            let stays = ContinueConditions { runtime, shard, row: *row, lapses: *lapses };
            let instance = value.as_deref_mut().expect("an instance was created");
            let Instance { value, extras } = instance;
            let mut cx = Context::new(runtime, shard, id, *token, &mut passivates, extras);
            // The wrapper defers the handler's part before its first await into a guarded poll.
            let handling = pin!(Some(async { value.handle(message, &mut cx).await }));
            guarded(handling, LeaseCheck::Done, stays, waker_slot).await
        };
        match outcome {
            HandlerOutcome::Handled => self.failures = 0,
            HandlerOutcome::Aborted(why) => {
                self.runtime.dead(why, 1, self.shard.id);
                self.drop_instance();
            }
            HandlerOutcome::Panicked(why) => {
                self.runtime.dead(DeadLetterReason::EntityFailed, 1, self.shard.id);
                self.failed(&why);
                self.supervise().await;
            }
        }
        if passivates && self.value.is_some() {
            self.run_stop_message().await;
            self.drop_instance();
            if self.runtime.fault_injection.has(ShardingFault::PassivatedWithMessages) {
                self.batch.clear();
            }
        }
    }

    /// Carries out the supervision of the type after a failure that was already counted. `Restart`
    /// drops the instance and pauses; `Resume` changes nothing. `Stop` drops the instance and loses
    /// all messages of the entity as `EntityStopped`, those in the batch included, then tells
    /// refused callers and nodes that there is room. The entity itself stays until the next `take`,
    /// and messages that arrive meanwhile get a fresh instance without a pause.
    async fn supervise(&mut self) {
        match self.runtime.supervision {
            Supervision::Resume => {}
            Supervision::Restart => {
                self.drop_instance();
                self.back_off().await;
            }
            Supervision::Stop => {
                self.drop_instance();
                let shard = Arc::clone(&self.shard);
                let mut lost = Vec::new();
                self.batch.drain(|message| lost.push(message.entry()));
                {
                    let mut inside = shard.lock();
                    let busy = inside.shard_entities.entity_table.busy(self.row);
                    busy.marked = 0;
                    lost.extend(busy.mailbox.entries());
                    inside.shard_entities.tell_emptied(self.row, shard.id, &self.runtime);
                }
                for entry in lost {
                    self.runtime.lose(DeadLetterReason::EntityStopped, entry, shard.id);
                }
                self.runtime.room_here();
            }
        }
    }

    /// Counts a failure, for the type and in a row for this activation, and logs it. Changes
    /// neither instance nor messages; the caller supervises.
    fn failed(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        self.runtime.failures.fetch_add(1, Ordering::Relaxed);
        let (entity_type, shard) = (&self.runtime.entity_type, self.shard.id);
        let (entity, failures) = (&self.id, self.failures);
        tracing::error!(
            %entity_type, %entity, %shard, failures, why,
            "sharding.entity_failed: the entity failed; other entities are not affected"
        );
    }

    /// Pauses before a restart, but not longer than the shard stays Open; not at all if it was not
    /// Open when the batch was taken. `restart-backoff-min`, doubled with each further failure in a
    /// row, at most `restart-backoff-max`. A lapse of the lease does not end the pause.
    async fn back_off(&mut self) {
        if self.stage != ShardStage::Open {
            return; // running handlers of the draining shard may wait for this entity
        }
        let settings = &self.runtime.settings;
        let doubled = 1_u32.checked_shl(self.failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let pause = settings.restart_backoff_min.saturating_mul(doubled);
        let mut sleep = self.runtime.world.sleep(pause.min(settings.restart_backoff_max));
        let Self { shard, row, waker_slot, stage, .. } = self;
        poll_fn(|cx| {
            waker_slot.register(shard, *row, cx);
            if shard.phase.get() != *stage {
                return Poll::Ready(());
            }
            sleep.as_mut().poll(cx)
        })
        .await;
    }

    /// Handles the stop message of an instance that passivates or moves, then drops the instance.
    ///
    /// Exports the state first if the shard drained at `take` and the stop message was handled to
    /// its end (with `Supervision::Resume` also if it panicked). An instance that passivates, in an
    /// Open shard, loses its pending timers, which are counted. A stop message that is aborted is
    /// counted as a dead letter.
    ///
    /// Waits for the lease before. Does nothing if the stage changes, or the lease lapses for long,
    /// before the stop message begins: the next `take` decides anew.
    async fn handle_stop_message(&mut self) {
        if !self.may_begin().await {
            return; // the stage has changed
        }
        let outcome = self.run_stop_message().await;
        if self.stage == ShardStage::Open
            && let Some(instance) = &self.value
        {
            self.runtime.lose_timers(instance.unsent(), self.shard.id, &self.id);
        }
        let is_whole = match outcome {
            HandlerOutcome::Handled => true,
            HandlerOutcome::Panicked(_) => self.runtime.supervision == Supervision::Resume,
            HandlerOutcome::Aborted(_) => false,
        };
        if self.stage == ShardStage::Draining && is_whole {
            self.export_state();
        } else {
            self.drop_instance();
        }
    }

    /// Has the instance handle its stop message. Returns `Handled` at once if the type has none or
    /// there is no instance. A panic is counted as a failure and not supervised; the instance
    /// stays. An aborted stop message is counted by its reason, as any other message.
    async fn run_stop_message(&mut self) -> HandlerOutcome {
        let Some(message) = E::stop_message() else { return HandlerOutcome::Handled };
        let mut passivates = false;
        let outcome = {
            let Self { runtime, shard, row, id, value, waker_slot, token, lapses, .. } = self;
            let stays = ContinueConditions { runtime, shard, row: *row, lapses: *lapses };
            let Some(Instance { value, extras }) = value.as_deref_mut() else {
                return HandlerOutcome::Handled;
            };
            let mut cx = Context::new(runtime, shard, id, *token, &mut passivates, extras);
            // The wrapper defers the handler's part before its first await into a guarded poll.
            let handling = pin!(Some(async { value.handle(message, &mut cx).await }));
            guarded(handling, LeaseCheck::Due, stays, waker_slot).await
        };
        match &outcome {
            HandlerOutcome::Handled => {}
            HandlerOutcome::Aborted(why) => self.runtime.dead(*why, 1, self.shard.id),
            HandlerOutcome::Panicked(why) => self.failed(why),
        }
        outcome
    }
}

impl<E: Entity> Runtime<E> {
    /// Answers an explicit start with `()`: the entity runs. Does nothing without an asker.
    fn started(&self, envelope: EnvelopeRef<'_>) {
        let Some(asker) = envelope.asker() else { return };
        let mut bytes = Vec::with_capacity(16);
        frame::answer(&mut bytes, asker.correlation);
        rmp_serde::encode::write_named(&mut bytes, &()).expect("nothing encodes");
        self.send(asker, &bytes);
    }
}

/// A task that is dropped, or panics outside a handler, must end too; otherwise the drain of its
/// shard would wait forever.
impl<E: Entity> Drop for ActivationTask<E> {
    fn drop(&mut self) {
        self.end(ActivationEnd::Dropped);
    }
}
