//! What holds on a thread while an entity's code runs on it: which shard is at work, which way
//! answers go, which types there are, and why a message is dropped. Synchronous: never held across
//! an await.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread::LocalKey;

use super::asks::{Readers, Way};
use super::dead_letters::Lost;
use super::ids::EntityId;
use super::tenancy::Phase;
use super::types::Types;

/// The entity whose code runs on a thread.
#[derive(Clone, Debug)]
pub(super) struct AtWork {
    /// Of its shard.
    pub(super) phase: Arc<Phase>,
    /// Set while a handler is polled: the entity handles nothing else until that ends. Unset in a
    /// task of the entity.
    pub(super) handler: Option<EntityId>,
}

thread_local! {
    static AT_WORK: RefCell<Option<AtWork>> = const { RefCell::new(None) };
    static WAY: RefCell<Option<Arc<dyn Way>>> = const { RefCell::new(None) };
    static TYPES: RefCell<Option<Arc<Readers>>> = const { RefCell::new(None) };
    static DROPPED: Cell<Option<Lost>> = const { Cell::new(Some(Lost::NoAnswer)) };
}

/// Runs something while this stands here: it is lent, so that nobody has to count who uses it.
fn lending<V, T>(
    slot: &'static LocalKey<RefCell<Option<V>>>,
    value: &mut Option<V>,
    run: impl FnOnce() -> T,
) -> T {
    struct Lent<'a, V: 'static>(&'static LocalKey<RefCell<Option<V>>>, &'a mut Option<V>);
    impl<V> Drop for Lent<'_, V> {
        fn drop(&mut self) {
            self.0.with(|slot| std::mem::swap(&mut *slot.borrow_mut(), self.1));
        }
    }
    slot.with(|slot| std::mem::swap(&mut *slot.borrow_mut(), value));
    let _lent = Lent(slot, value);
    run()
}

/// Runs a poll of an entity's code. `at_work` is there before and after.
pub(super) fn at_work<T>(at_work: &mut Option<AtWork>, poll: impl FnOnce() -> T) -> T {
    lending(&AT_WORK, at_work, poll)
}

/// The entity whose handler is polled on this thread, with its shard's phase.
pub(super) fn handler() -> Option<(Arc<Phase>, EntityId)> {
    AT_WORK.with(|at_work| {
        let at_work = at_work.borrow();
        let AtWork { phase, handler } = at_work.as_ref()?;
        handler.clone().map(|handler| (Arc::clone(phase), handler))
    })
}

/// Whether a handler of a shard that drains is at work on this thread.
pub(super) fn is_draining() -> bool {
    AT_WORK.with(|at_work| at_work.borrow().as_ref().is_some_and(|at| at.phase.is_draining()))
}

/// Decodes something in which addresses of answers may stand: they go `way`.
pub(super) fn decoding<T>(way: &mut Option<Arc<dyn Way>>, decode: impl FnOnce() -> T) -> T {
    lending(&WAY, way, decode)
}

/// The way for an address that is being decoded.
pub(super) fn way() -> Option<Arc<dyn Way>> {
    WAY.with(|way| way.borrow().clone())
}

/// Reads an answer, in which references to entities may stand.
pub(super) fn reading<T>(types: Arc<Readers>, read: impl FnOnce() -> T) -> T {
    lending(&TYPES, &mut Some(types), read)
}

/// The types of the node that reads a message, or an answer, now.
pub(super) fn types() -> Option<Arc<Types>> {
    let of_answer = || TYPES.with(|types| types.borrow().as_ref().map(|of| Arc::clone(&of.0)));
    way().map(|way| Arc::clone(way.types())).or_else(of_answer)
}

/// Where a message is dropped by `drop`, whoever asked in it learns why.
pub(super) fn dropping(why: Lost, drop: impl FnOnce()) {
    dropping_for(Some(why), drop);
}

/// Where a message's value is dropped by `drop` and the message itself goes on, as the bytes that it
/// was read from: nobody who asked in it learns anything.
pub(super) fn dropping_value(drop: impl FnOnce()) {
    dropping_for(None, drop);
}

fn dropping_for(why: Option<Lost>, drop: impl FnOnce()) {
    struct Before(Option<Lost>);
    impl Drop for Before {
        fn drop(&mut self) {
            DROPPED.with(|dropped| dropped.set(self.0));
        }
    }
    let _before = Before(DROPPED.with(|dropped| dropped.replace(why)));
    drop();
}

/// Why an address that nobody used is dropped now; `None`: it goes on elsewhere.
pub(super) fn dropped() -> Option<Lost> {
    let why = DROPPED.with(Cell::get);
    if std::thread::panicking() { why.and(Some(Lost::EntityFailed)) } else { why }
}
