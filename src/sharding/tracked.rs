//! Tasks that an instance begins and that end with it: dropped at their next await, before the
//! instance's shard lives anywhere else.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures::task::AtomicWaker;

use super::entity::Entity;
use super::gate::Fit;
use super::ids::EntityId;
use super::run::wait;
use super::runtime::Runtime;
use super::scope;
use super::shard::Shard;

/// What an instance holds of its tasks. Dropped, it ends them.
#[derive(Default)]
pub(super) struct Tracked(Vec<Arc<Leash>>); // ≤ twice the tasks that run, and 8

#[derive(Default)]
struct Leash {
    over: AtomicBool,
    waker: AtomicWaker,
}

/// A task counts among what its shard's drain waits for.
struct Stay<E: Entity> {
    runtime: Arc<Runtime<E>>,
    shard: Arc<Shard<E>>,
}

impl Tracked {
    /// Runs a task of an entity, which handles a message now.
    pub(super) fn spawn<E: Entity>(
        &mut self,
        (runtime, shard): (&Arc<Runtime<E>>, &Arc<Shard<E>>),
        id: &EntityId,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let leash = self.leash();
        shard.lock().floor.running += 1;
        let stay = Stay { runtime: Arc::clone(runtime), shard: Arc::clone(shard) };
        runtime.world.spawn(Box::pin(run(stay, id.clone(), leash, task)));
    }

    fn leash(&mut self) -> Arc<Leash> {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|leash| Arc::strong_count(leash) > 1); // those that run
        }
        let leash = Arc::<Leash>::default();
        self.0.push(Arc::clone(&leash));
        leash
    }
}

async fn run<E: Entity>(
    stay: Stay<E>,
    id: EntityId,
    leash: Arc<Leash>,
    task: impl Future<Output = ()> + Send,
) {
    let runtime = &*stay.runtime;
    let mut task = pin!(task); // dropped before the stay is over
    let (mut pause, mut phase) = (None, Some(Arc::clone(&stay.shard.phase)));
    poll_fn(|cx| {
        leash.waker.register(cx.waker());
        loop {
            if leash.over.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if runtime.serves() {
                break;
            }
            if wait(&mut pause, runtime, cx).is_pending() {
                return Poll::Pending;
            }
        }
        // Its shard's drain waits for it, and so for those that it asks.
        let poll = || scope::at_work(&mut phase, || task.as_mut().poll(cx));
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|_| {
            runtime.failures.fetch_add(1, Ordering::Relaxed);
            let (entity_type, shard) = (&runtime.entity_type, stay.shard.id);
            tracing::error!(
                %entity_type, entity = %id, %shard,
                "sharding.task_failed: a task of the entity panicked; the entity goes on"
            );
            Poll::Ready(())
        })
    })
    .await;
}

impl Drop for Tracked {
    fn drop(&mut self) {
        for leash in &self.0 {
            leash.over.store(true, Ordering::Release);
            leash.waker.wake();
        }
    }
}

impl<E: Entity> Drop for Stay<E> {
    fn drop(&mut self) {
        let Self { runtime, shard } = self;
        shard.pass(runtime, Fit::Exempt, |gate, desk| desk.ended(gate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_have_ended_are_forgotten_and_those_that_run_are_not() {
        let mut tracked = Tracked::default();
        let running: Vec<_> = (0..3).map(|_| tracked.leash()).collect();
        for _ in 0..100 {
            drop(tracked.leash());
        }
        assert!(tracked.0.len() <= 8, "{} are remembered", tracked.0.len());
        drop(tracked);
        assert!(running.iter().all(|leash| leash.over.load(Ordering::Acquire)));
    }
}
