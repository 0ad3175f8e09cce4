//! Thread-local context of user code: the entity that runs, the path for answers, the registry of
//! types, and the reason why a message is dropped. Set only around synchronous calls, never across
//! an await.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread::LocalKey;

use super::dead_letters::DeadLetterReason;
use super::ids::EntityId;
use super::pending_asks::{AnswerTypes, ReplySink};
use super::shard_stage::SharedStage;
use super::types::TypeRegistry;

/// The entity whose code runs on this thread.
#[derive(Clone, Debug)]
pub(super) struct CurrentEntity {
    /// Phase of its shard.
    pub(super) phase: Arc<SharedStage>,
    /// Set while a handler is polled: the entity handles nothing else until it completes. Not set
    /// in a task of the entity.
    pub(super) handler: Option<EntityId>,
}

thread_local! {
    static AT_WORK: RefCell<Option<CurrentEntity>> = const { RefCell::new(None) };
    static WAY: RefCell<Option<Arc<dyn ReplySink>>> = const { RefCell::new(None) };
    static TYPES: RefCell<Option<Arc<AnswerTypes>>> = const { RefCell::new(None) };
    static DROPPED: Cell<Option<DeadLetterReason>> = const { Cell::new(Some(DeadLetterReason::NoAnswer)) };
}

/// Sets a thread-local for the duration of `run`. The value is moved in and out again, which avoids
/// reference counting.
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

/// Polls an entity's code with `at_work` set, and restores it afterwards.
pub(super) fn at_work<T>(at_work: &mut Option<CurrentEntity>, poll: impl FnOnce() -> T) -> T {
    lending(&AT_WORK, at_work, poll)
}

/// Returns the entity whose handler is polled on this thread, with its shard's phase.
pub(super) fn handler() -> Option<(Arc<SharedStage>, EntityId)> {
    AT_WORK.with(|at_work| {
        let at_work = at_work.borrow();
        let CurrentEntity { phase, handler } = at_work.as_ref()?;
        handler.clone().map(|handler| (Arc::clone(phase), handler))
    })
}

/// Returns whether code of an entity whose shard drains runs on this thread.
pub(super) fn is_draining() -> bool {
    AT_WORK.with(|at_work| at_work.borrow().as_ref().is_some_and(|at| at.phase.is_draining()))
}

/// Decodes a message; reply addresses in it use the path `way`.
pub(super) fn decoding<T>(way: &mut Option<Arc<dyn ReplySink>>, decode: impl FnOnce() -> T) -> T {
    lending(&WAY, way, decode)
}

/// Returns the path for a reply address that is being decoded.
pub(super) fn way() -> Option<Arc<dyn ReplySink>> {
    WAY.with(|way| way.borrow().clone())
}

/// Decodes an answer, which may contain references to entities.
pub(super) fn reading<T>(types: Arc<AnswerTypes>, read: impl FnOnce() -> T) -> T {
    lending(&TYPES, &mut Some(types), read)
}

/// Returns the registry of types of the node that decodes a message or answer now.
pub(super) fn types() -> Option<Arc<TypeRegistry>> {
    let of_answer = || TYPES.with(|types| types.borrow().as_ref().map(|of| Arc::clone(&of.0)));
    way().map(|way| Arc::clone(way.types())).or_else(of_answer)
}

/// Drops a message; the askers in it learn the reason `why`.
pub(super) fn dropping(why: DeadLetterReason, drop: impl FnOnce()) {
    dropping_for(Some(why), drop);
}

/// Drops the value of a message that continues to exist as the bytes from which it was decoded, so
/// the askers in it are not told anything.
pub(super) fn dropping_value(drop: impl FnOnce()) {
    dropping_for(None, drop);
}

fn dropping_for(why: Option<DeadLetterReason>, drop: impl FnOnce()) {
    struct DropReasonGuard(Option<DeadLetterReason>);
    impl Drop for DropReasonGuard {
        fn drop(&mut self) {
            DROPPED.with(|dropped| dropped.set(self.0));
        }
    }
    let _before = DropReasonGuard(DROPPED.with(|dropped| dropped.replace(why)));
    drop();
}

/// Returns the reason with which an unused reply address is dropped now; `None`: the message
/// continues elsewhere.
pub(super) fn dropped() -> Option<DeadLetterReason> {
    let why = DROPPED.with(Cell::get);
    if std::thread::panicking() { why.and(Some(DeadLetterReason::EntityFailed)) } else { why }
}
