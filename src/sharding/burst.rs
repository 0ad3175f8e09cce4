//! What an entity is to do until nothing waits for it: first only who is to begin, and once a worker
//! polls it a future.
//!
//! Most bursts are over at their first poll. So a future is made where it is polled, in the memory
//! that the one before has left there, which is in that core's caches; and no memory goes from the
//! thread that queues a burst to the one that runs it. An allocator has to take a lock for that:
//! measured with glibc's, three nodes in one process on two cores and 1,024 asks of any entity in
//! flight spent a tenth of their time in it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_util::sync::ReusableBoxFuture;

use super::ids::ShardId;
use super::shard::Start;

/// The largest future whose memory another one gets. Setting one where another was copies it, on the
/// stack as well; and a worker keeps several.
const SIZE_MAX: usize = 16 * 1024; // bytes

/// A burst's future. Once it is over it owns nothing, and its memory may be another one's.
pub struct Running(ReusableBoxFuture<'static, ()>);

impl Running {
    pub(super) fn new(burst: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(ReusableBoxFuture::new(burst))
    }

    /// In the memory of one that is over, if there is that.
    pub(super) fn instead(
        over: Option<Self>,
        burst: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        match over {
            Some(mut running) if size_of_val(&burst) <= SIZE_MAX => {
                running.0.set(burst);
                running
            }
            _ => Self::new(burst),
        }
    }

    /// Whether it is small enough for its memory to be kept.
    pub fn is_small(&mut self) -> bool {
        size_of_val(&*self.0.get_pin()) <= SIZE_MAX
    }
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

/// Something to run until it is over. If it is dropped before, its entity learns that.
pub struct Burst(Kind);

enum Kind {
    Unbegun(Unbegun),
    Begun(Running),
}

/// `None`: it has begun.
struct Unbegun(Option<(Arc<dyn Begin>, ShardId, Start)>);

/// Entities of one type, whose bursts begin somewhere else than where they are queued.
pub(super) trait Begin: Send + Sync {
    /// Puts the burst's future into the memory of one that is over, if there is that.
    fn begin(self: Arc<Self>, shard: ShardId, start: Start, over: Option<Running>) -> Running;

    /// It will not begin.
    fn give_up(self: Arc<Self>, shard: ShardId, start: Start);
}

impl Burst {
    /// Of anything that is a future already.
    pub fn of(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let owner = async move {
            future.await; // and then drops it
        };
        Running::new(owner).into()
    }

    pub(super) fn unbegun(entities: Arc<dyn Begin>, shard: ShardId, start: Start) -> Self {
        Self(Kind::Unbegun(Unbegun(Some((entities, shard, start)))))
    }

    /// Its future. If it is made only now, in the memory of what `over` gives.
    pub fn begin(self, over: impl FnOnce() -> Option<Running>) -> Running {
        match self.0 {
            Kind::Unbegun(mut unbegun) => {
                let (entities, shard, start) = unbegun.0.take().expect("it has not begun");
                entities.begin(shard, start, over())
            }
            Kind::Begun(future) => future,
        }
    }
}

/// Of a burst that was polled and is not over.
impl From<Running> for Burst {
    fn from(future: Running) -> Self {
        Self(Kind::Begun(future))
    }
}

impl Drop for Unbegun {
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

    /// What was asked of it, with the row that it was asked for.
    #[derive(Default)]
    struct Entities(Mutex<Vec<(&'static str, u32)>>);

    impl Entities {
        fn burst(self: &Arc<Self>, row: u32) -> Burst {
            let id = EntityId::new("a").expect("an id");
            let start = Start { row, id, waker: None, lapses: 0 };
            Burst::unbegun(Arc::<Self>::clone(self), ShardId::new(0), start)
        }

        fn note(&self, what: &'static str, row: u32) {
            self.0.lock().expect("nobody panicked").push((what, row));
        }

        fn noted(&self) -> Vec<(&'static str, u32)> {
            std::mem::take(&mut self.0.lock().expect("nobody panicked"))
        }
    }

    impl Begin for Entities {
        fn begin(self: Arc<Self>, _: ShardId, start: Start, over: Option<Running>) -> Running {
            self.note(if over.is_some() { "begins where one was" } else { "begins" }, start.row);
            Running::new(async {})
        }

        fn give_up(self: Arc<Self>, _: ShardId, start: Start) {
            self.note("gives up", start.row);
        }
    }

    #[test]
    fn a_burst_that_never_begins_is_given_up_once() {
        let entities = Arc::<Entities>::default();
        drop(entities.burst(1));
        assert_eq!(entities.noted(), [("gives up", 1)]);
        let running = entities.burst(2).begin(|| None);
        drop(running);
        assert_eq!(entities.noted(), [("begins", 2)], "its future tells the entity of its end");
    }

    #[test]
    fn only_a_burst_that_begins_takes_the_memory_of_another_one() {
        let entities = Arc::<Entities>::default();
        let running = entities.burst(1).begin(|| Some(Running::new(async {})));
        assert_eq!(entities.noted(), [("begins where one was", 1)]);
        let _running = Burst::from(running).begin(|| panic!("it has its own"));
        assert_eq!(entities.noted(), []);
    }
}
