//! Thread-local context of user code: the entity that runs, the sink of its replies, the registry
//! of types, and the reason why a message is dropped. Set only around synchronous calls, never
//! across an await.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread::LocalKey;

use super::dead_letters::DeadLetterReason;
use super::ids::EntityId;
use super::pending_asks::{AnswerTypes, ReplyAddress, ReplySink};
use super::shard_stage::SharedStage;
use super::types::TypeRegistry;

/// The entity whose code runs on this thread.
#[derive(Clone, Debug)]
pub(super) struct CurrentEntity {
    /// Present stage of its shard, and the asks of the shard's handlers.
    pub(super) phase: Arc<SharedStage>,
    /// The entity, while its handler is polled: until the handler completes, the entity handles
    /// nothing else. `None` in a task that the entity has spawned: while such a task runs, the
    /// entity handles messages.
    pub(super) handler: Option<EntityId>,
}

thread_local! {
    static AT_WORK: RefCell<Option<CurrentEntity>> = const { RefCell::new(None) };
    static REPLY_SINK: RefCell<Option<Arc<dyn ReplySink>>> = const { RefCell::new(None) };
    static ANSWER_TYPES: RefCell<Option<Arc<AnswerTypes>>> = const { RefCell::new(None) };
    // Default: an unused reply address is dropped by a handler that gave no answer.
    static DROP_REASON: Cell<Option<DeadLetterReason>> =
        const { Cell::new(Some(DeadLetterReason::NoAnswer)) };
    static FIRST_REPLY_ADDRESS: Cell<Option<ReplyAddress>> = const { Cell::new(None) };
}

/// Sets a thread-local for the duration of `run`, and restores it afterwards, also if `run` panics.
/// The value is swapped in and out again, which avoids reference counting: meanwhile `value` holds
/// the former one, so calls may nest. `None` unsets it.
fn lending<V, T>(
    slot: &'static LocalKey<RefCell<Option<V>>>,
    value: &mut Option<V>,
    run: impl FnOnce() -> T,
) -> T {
    struct ThreadLocalGuard<'a, V: 'static>(
        &'static LocalKey<RefCell<Option<V>>>,
        &'a mut Option<V>,
    );
    impl<V> Drop for ThreadLocalGuard<'_, V> {
        fn drop(&mut self) {
            self.0.with(|slot| std::mem::swap(&mut *slot.borrow_mut(), self.1));
        }
    }
    slot.with(|slot| std::mem::swap(&mut *slot.borrow_mut(), value));
    let _lent = ThreadLocalGuard(slot, value);
    run()
}

/// Polls an entity's code with `at_work` set as the present entity.
pub(super) fn at_work<T>(at_work: &mut Option<CurrentEntity>, poll: impl FnOnce() -> T) -> T {
    lending(&AT_WORK, at_work, poll)
}

/// Returns the entity whose handler is polled on this thread, with its shard's stage and asks.
/// `None` outside of entities' code, and in tasks that an entity has spawned.
pub(super) fn handler() -> Option<(Arc<SharedStage>, EntityId)> {
    AT_WORK.with(|at_work| {
        let at_work = at_work.borrow();
        let CurrentEntity { phase, handler } = at_work.as_ref()?;
        handler.clone().map(|handler| (Arc::clone(phase), handler))
    })
}

/// Returns whether code of an entity whose shard drains runs on this thread, tasks that it has
/// spawned included. False once the drain was aborted.
pub(super) fn is_draining() -> bool {
    AT_WORK.with(|at_work| at_work.borrow().as_ref().is_some_and(|at| at.phase.is_draining()))
}

/// Decodes a message; replies to the addresses in it go to `sink`.
pub(super) fn decoding<T>(sink: &mut Option<Arc<dyn ReplySink>>, decode: impl FnOnce() -> T) -> T {
    lending(&REPLY_SINK, sink, decode)
}

/// Returns the sink for a reply address that is being decoded; `None` unless a message is decoded
/// for its entity.
pub(super) fn reply_sink() -> Option<Arc<dyn ReplySink>> {
    REPLY_SINK.with(|sink| sink.borrow().clone())
}

/// Decodes an answer. It may contain references to entities, which need the registry of types, but
/// no reply addresses, so no sink is set.
pub(super) fn reading<T>(types: Arc<AnswerTypes>, read: impl FnOnce() -> T) -> T {
    lending(&ANSWER_TYPES, &mut Some(types), read)
}

/// Returns the registry of types of the node that decodes a message or answer now; `None` while
/// none is decoded. A message's sink brings the registry along; only for an answer it is set by
/// itself.
pub(super) fn types() -> Option<Arc<TypeRegistry>> {
    let of_answer =
        || ANSWER_TYPES.with(|types| types.borrow().as_ref().map(|of| Arc::clone(&***of)));
    reply_sink().map(|sink| Arc::clone(sink.types())).or_else(of_answer)
}

/// Serializes a message, and returns the first reply address in it as well, also if serializing
/// fails. Must not be nested: an inner call forgets the address of the outer one.
pub(super) fn with_first_reply_address<T>(
    serialize: impl FnOnce() -> T,
) -> (T, Option<ReplyAddress>) {
    FIRST_REPLY_ADDRESS.set(None);
    let serialized = serialize();
    (serialized, FIRST_REPLY_ADDRESS.take())
}

/// Notes a serialized reply address, for [`with_first_reply_address`]. Keeps the first one; outside
/// of that call it is noted as well, and forgotten by the next call.
pub(super) fn note_reply_address(address: ReplyAddress) {
    FIRST_REPLY_ADDRESS.set(FIRST_REPLY_ADDRESS.get().or(Some(address)));
}

/// Runs `drop`, which drops a message; the askers in it learn the reason `why`.
pub(super) fn dropping(why: DeadLetterReason, drop: impl FnOnce()) {
    dropping_for(Some(why), drop);
}

/// Runs `drop`, which drops the value of a message that continues to exist as the bytes from which
/// it was decoded, so the askers in it are not told anything.
pub(super) fn dropping_value(drop: impl FnOnce()) {
    dropping_for(None, drop);
}

/// Sets the drop reason for the duration of `drop`, and restores it, also if `drop` panics.
fn dropping_for(why: Option<DeadLetterReason>, drop: impl FnOnce()) {
    struct DropReasonGuard(Option<DeadLetterReason>);
    impl Drop for DropReasonGuard {
        fn drop(&mut self) {
            DROP_REASON.with(|reason| reason.set(self.0));
        }
    }
    let _before = DropReasonGuard(DROP_REASON.with(|reason| reason.replace(why)));
    drop();
}

/// Returns the reason with which an unused reply address is dropped now; `None`: the message
/// continues elsewhere, also while the thread panics. Outside of [`dropping`] the reason is that
/// the handler gave no answer. While the thread panics it is that the entity failed, inside of
/// [`dropping`] too, because a handler that panics drops its address while its stack unwinds.
pub(super) fn drop_reason() -> Option<DeadLetterReason> {
    let why = DROP_REASON.with(Cell::get);
    if std::thread::panicking() { why.and(Some(DeadLetterReason::EntityFailed)) } else { why }
}
