//! The control part: membership and the sharding machines on a thread and a runtime of their own.
//!
//! On a shared thread a long merge of replicated data or a handler that blocks would delay
//! heartbeats, and other nodes would suspect a healthy node.

pub(crate) mod dialler;
pub(crate) mod environment;
pub(crate) mod machine;
pub(crate) mod memory;

use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;

use futures::FutureExt;
use tokio::sync::oneshot;

use self::environment::ControlEnvironment;
use self::machine::{Control, ControlInbox};
pub use self::memory::MemoryError;
use super::cluster::watchers::Watchers;
use super::driver::Driver;
use super::replicator::panic_message;
use super::shutdown::{CoordinatedShutdown, Reason};

/// Handle to the running control part. Dropping it stops the part as [`stop`](Self::stop) does, but
/// without waiting for its end.
///
/// When the part ends in any way, also by a panic of a machine, cluster event streams end, the
/// hosting lease ends, all entity types stop, and then the lock that shows that this incarnation is
/// alive is released, in this order.
pub(crate) struct ControlPart {
    inbox: ControlInbox,
    ended: oneshot::Receiver<()>,
}

/// A value that must outlive a part: the lock which shows that this incarnation is alive.
pub(crate) type Alive = Arc<dyn Any + Send + Sync>;

impl ControlPart {
    /// Starts the thread that runs both machines, on a runtime with timers but without I/O. `alive`
    /// is held until nothing of this part runs any longer.
    ///
    /// # Errors
    /// If the operating system starts no thread, or gives the runtime no resources. All arguments
    /// are dropped then, without the other steps of an end.
    pub(crate) fn start(
        machine: Control,
        world: ControlEnvironment,
        alive: Alive,
    ) -> io::Result<Self> {
        let inbox = world.inbox.clone();
        let (clock, watchers) = (world.clock, world.watchers.clone());
        let (shutdown, region_registry) = (world.shutdown.clone(), world.region_registry.clone());
        let lease = world.lease.clone();
        let driver = Driver::new(machine, world, inbox.clone(), clock);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (end, ended) = oneshot::channel();
        thread::Builder::new().name("ostraca-control".to_owned()).spawn(move || {
            runtime.block_on(run(driver, &watchers, &shutdown));
            lease.end(); // it is not renewed any longer: entities must stop now
            region_registry.end();
            drop(runtime);
            drop(alive); // nothing of this part runs any longer
            let _ = end.send(()); // fails if no caller waits for the end
        })?;
        Ok(Self { inbox, ended })
    }

    /// Stops the part, after it has handled all queued inputs and performed their outputs; further
    /// inputs are refused. Waits without a limit until all steps of the end are done and the lock
    /// is released; returns immediately if that is so already. If the future is dropped, even
    /// before its first poll, the part still stops.
    pub(crate) async fn stop(mut self) {
        self.inbox.close();
        let _ = (&mut self.ended).await; // fails if it has ended already
    }
}

impl Drop for ControlPart {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// Runs the machines until the inbox is closed and empty, or one of them panics. In both cases ends
/// the streams of `watchers`, first. A panic is logged and begins the node's shutdown with
/// `Reason::Failed`; it is not propagated.
async fn run(
    driver: Driver<Control, ControlEnvironment>,
    watchers: &Watchers,
    shutdown: &CoordinatedShutdown,
) {
    let ended = AssertUnwindSafe(driver.run()).catch_unwind().await;
    watchers.end();
    if let Err(panic) = ended {
        let message = panic_message(panic);
        tracing::error!(
            message,
            "node.membership_failed: membership panicked, which is a bug; the node stops"
        );
        shutdown.begin(Reason::Failed);
    }
}
