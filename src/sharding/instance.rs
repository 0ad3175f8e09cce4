//! One life of an entity: its value, and what ends with it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::entity::Entity;
use super::entity_ref::EntityRef;
use super::hosting::World;
use super::runtime::Runtime;
use super::tracked::Tracked;

/// A value with what hangs on it. Most have nothing.
pub(super) struct Instance<E: Entity> {
    pub(super) value: E,
    pub(super) extras: Option<Box<Extras<E>>>,
}

/// What ends with an instance.
pub(super) struct Extras<E: Entity> {
    life: Arc<AtomicU64>, // counts bursts of messages
    receive: Option<Receive<E>>,
    pub(super) tracked: Tracked,
}

struct Receive<E: Entity> {
    pause: Duration,
    message: Arc<dyn Fn() -> E::Message + Send + Sync>,
}

impl<E: Entity> Instance<E> {
    pub(super) const fn new(value: E) -> Self {
        Self { value, extras: None }
    }

    /// Messages came.
    pub(super) fn wakes(&self) {
        if let Some(extras) = &self.extras {
            extras.life.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Nothing waits any more: the receive timeout begins, if there is one.
    pub(super) fn rests(&self, runtime: &Arc<Runtime<E>>, id: &str) {
        let Some(extras) = &self.extras else { return };
        let Some(Receive { pause, message }) = &extras.receive else { return };
        let turn = extras.life.load(Ordering::Acquire);
        let (life, message) = (Arc::downgrade(&extras.life), Arc::clone(message));
        let (to, sleep) = (EntityRef::new(runtime, id), runtime.world.sleep(*pause));
        runtime.world.spawn(Box::pin(async move {
            sleep.await;
            let rested = |life: Arc<AtomicU64>| life.load(Ordering::Acquire) == turn;
            if life.upgrade().is_some_and(rested) {
                // What does not reach it finds it busy, or gone.
                let _told = to.tell(message());
            }
        }));
    }
}

impl<E: Entity> Extras<E> {
    pub(super) fn of(extras: &mut Option<Box<Self>>) -> &mut Self {
        let none = || Self { life: Arc::default(), receive: None, tracked: Tracked::default() };
        extras.get_or_insert_with(|| Box::new(none()))
    }

    pub(super) fn after(
        &self,
        world: &Arc<dyn World>,
        to: EntityRef<E>,
        pause: Duration,
        message: E::Message,
    ) -> Timer {
        let cancelled = Arc::new(AtomicBool::new(false));
        let timer = Timer { cancelled: Arc::clone(&cancelled) };
        let life = Arc::downgrade(&self.life);
        let sleep = world.sleep(pause);
        world.spawn(Box::pin(async move {
            sleep.await;
            if life.strong_count() > 0 && !cancelled.load(Ordering::Acquire) {
                let _told = to.tell_wait(message).await;
            }
        }));
        timer
    }

    pub(super) fn set_receive_timeout(
        &mut self,
        pause: Duration,
        message: Arc<dyn Fn() -> E::Message + Send + Sync>,
    ) {
        self.receive = Some(Receive { pause, message });
    }

    pub(super) fn cancel_receive_timeout(&mut self) {
        self.receive = None;
    }
}

/// A message that an entity sends itself later. Ends with the instance that began it: dropped, it
/// goes on.
#[derive(Clone)]
pub struct Timer {
    cancelled: Arc<AtomicBool>,
}

impl Timer {
    /// It sends nothing any more. What it has sent already is still handled.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        f.debug_struct("Timer").field("cancelled", &cancelled).finish()
    }
}
