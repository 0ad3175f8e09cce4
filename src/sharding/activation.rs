//! An activation: one run of an entity's message loop, until no message waits. It is queued as a
//! description and becomes a future only when a worker first polls it.
//!
//! Most activations end at their first poll. So the future is made on the worker that polls it, in
//! the memory that the previous one left, which is in the caches of that core; no memory passes
//! from the thread that queues an activation to the one that runs it. Otherwise the allocator has
//! to take a lock: measured with glibc's, three nodes in one process on two cores, with 1,024 asks
//! in flight, spent a tenth of their time in it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_util::sync::ReusableBoxFuture;

use super::ids::ShardId;
use super::shard::Start;

/// Largest future whose memory is reused. Placing a future into existing memory copies it, also on
/// the stack, and a worker keeps several.
const SIZE_MAX: usize = 16 * 1024; // bytes

/// Future of an activation. A completed one owns nothing, and its memory may be reused. It must not
/// be polled after it completed.
pub struct ActivationFuture(ReusableBoxFuture<'static, ()>);

impl ActivationFuture {
    /// Makes the future in new memory. `activation` must own nothing once it completed.
    pub(super) fn new(activation: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(ReusableBoxFuture::new(activation))
    }

    /// Makes the future in the memory of a completed one, if given, of exactly its size and not
    /// larger than [`SIZE_MAX`]; otherwise in new memory, and `over` is dropped.
    pub(super) fn instead(
        over: Option<Self>,
        activation: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        match over {
            Some(mut running) if size_of_val(&activation) <= SIZE_MAX => {
                running.0.set(activation);
                running
            }
            _ => Self::new(activation),
        }
    }

    /// Returns whether it is small enough for its memory to be kept, at most 16 KiB.
    pub fn is_small(&mut self) -> bool {
        size_of_val(&*self.0.get_pin()) <= SIZE_MAX
    }
}

impl Future for ActivationFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

/// A run of an entity, begun or not. If it is dropped before it begins, its entity is told, by
/// `ActivationStarter::give_up`.
pub struct Activation(ActivationState);

/// Whether the future of an activation was made.
enum ActivationState {
    Unstarted(UnstartedActivation),
    Begun(ActivationFuture),
}

/// A run whose future was not made: what its [`ActivationStarter`] needs to make it. `None` once it
/// has begun, so that dropping this does nothing.
struct UnstartedActivation(Option<(Arc<dyn ActivationStarter>, ShardId, Start)>);

/// Entities of one type, whose activations may begin on another thread than the one that queues
/// them.
pub(super) trait ActivationStarter: Send + Sync {
    /// Makes the future of an activation, in the memory of a completed one if given. Called at most
    /// once for a `start`, on the worker that will poll the future. The end of the future, also by
    /// a drop, is then reported by the future itself.
    fn begin(
        self: Arc<Self>,
        shard: ShardId,
        start: Start,
        over: Option<ActivationFuture>,
    ) -> ActivationFuture;

    /// Called once instead of `begin` if the activation is dropped before it begins, for example
    /// because the runtime has ended.
    fn give_up(self: Arc<Self>, shard: ShardId, start: Start);
}

impl Activation {
    /// Makes an activation of any future, which counts as begun. The future is dropped when it
    /// completes.
    pub fn of(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let owner = async move {
            future.await; // drops it when it completes
        };
        ActivationFuture::new(owner).into()
    }

    /// Makes an activation that is only described. It calls `entities` exactly once: `begin`, or
    /// `give_up` if the activation is dropped before it begins.
    pub(super) fn unstarted(
        entities: Arc<dyn ActivationStarter>,
        shard: ShardId,
        start: Start,
    ) -> Self {
        Self(ActivationState::Unstarted(UnstartedActivation(Some((entities, shard, start)))))
    }

    /// Returns the future, without a poll. If it has not been made, it is made now, in the memory
    /// that `over` returns, if any. If it was made before, `over` is not called, and the future
    /// continues where it was.
    pub fn begin(self, over: impl FnOnce() -> Option<ActivationFuture>) -> ActivationFuture {
        match self.0 {
            ActivationState::Unstarted(mut unstarted) => {
                let (entities, shard, start) =
                    unstarted.0.take().expect("an activation begins only once");
                entities.begin(shard, start, over())
            }
            ActivationState::Begun(future) => future,
        }
    }
}

/// Wraps a future that was polled and has not completed, so that a caller can queue it again.
impl From<ActivationFuture> for Activation {
    fn from(future: ActivationFuture) -> Self {
        Self(ActivationState::Begun(future))
    }
}

impl Drop for UnstartedActivation {
    /// Gives the activation up, unless it has begun.
    fn drop(&mut self) {
        if let Some((entities, shard, start)) = self.0.take() {
            entities.give_up(shard, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::sharding::ids::EntityId;

    /// Records the calls, each with its row.
    #[derive(Default)]
    struct CallRecorder(Mutex<Vec<(&'static str, u32)>>);

    impl CallRecorder {
        fn activation(self: &Arc<Self>, row: u32) -> Activation {
            let id = EntityId::new("a").expect("an id");
            let start = Start { row, id, handling: None, lapses: 0 };
            Activation::unstarted(Arc::<Self>::clone(self), ShardId::new(0), start)
        }

        fn note(&self, what: &'static str, row: u32) {
            self.0.lock().expect("no thread panicked").push((what, row));
        }

        fn noted(&self) -> Vec<(&'static str, u32)> {
            std::mem::take(&mut self.0.lock().expect("no thread panicked"))
        }
    }

    impl ActivationStarter for CallRecorder {
        fn begin(
            self: Arc<Self>,
            _: ShardId,
            start: Start,
            over: Option<ActivationFuture>,
        ) -> ActivationFuture {
            self.note(if over.is_some() { "begins in old memory" } else { "begins" }, start.row);
            ActivationFuture::new(async {})
        }

        fn give_up(self: Arc<Self>, _: ShardId, start: Start) {
            self.note("gives up", start.row);
        }
    }

    #[test]
    fn a_burst_that_never_begins_is_given_up_once() {
        let entities = Arc::<CallRecorder>::default();
        drop(entities.activation(1));
        assert_eq!(entities.noted(), [("gives up", 1)]);
        let running = entities.activation(2).begin(|| None);
        drop(running);
        assert_eq!(
            entities.noted(),
            [("begins", 2)],
            "the end of its future is reported elsewhere"
        );
    }

    #[test]
    fn only_a_new_burst_reuses_memory() {
        let entities = Arc::<CallRecorder>::default();
        let running = entities.activation(1).begin(|| Some(ActivationFuture::new(async {})));
        assert_eq!(entities.noted(), [("begins in old memory", 1)]);
        let _running = Activation::from(running)
            .begin(|| panic!("an activation that has begun keeps its future"));
        assert_eq!(entities.noted(), []);
    }
}
