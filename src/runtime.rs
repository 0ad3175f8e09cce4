//! Runtimes of the node's own: their threads serve one part of the node each, so that no handler,
//! no task of the program and no other part can delay it.
//!
//! A program that blocks every thread of its runtime stops all tasks on that runtime. The parts
//! that other nodes' failure detectors observe, and those that renew the lease, must not run there:
//! connections and the control lanes have a runtime, the Replicator has one, and membership has a
//! thread. Tools have one as well, so that an operator sees a node whose program is blocked.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime that ends with its last clone. Tasks that run on it then are dropped at their next
/// `await`; nothing waits for them.
#[derive(Clone, Debug)]
pub(crate) struct OwnRuntime(Arc<RuntimeGuard>);

/// The runtime; `None` only while it is dropped.
#[derive(Debug)]
struct RuntimeGuard(Option<Runtime>);

impl OwnRuntime {
    /// Starts `threads` threads of this name, which shows in `top -H` (at most 15 bytes). Must be
    /// called within a task, see [`build`].
    ///
    /// # Errors
    /// The system gives no I/O driver (epoll, wakeup pipe), or refuses the first thread. Later ones
    /// that it refuses may be missing silently.
    ///
    /// # Panics
    /// If `threads` is 0.
    pub(crate) fn start(name: &str, threads: usize) -> io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads).thread_name(name).enable_all();
        Ok(Self(Arc::new(RuntimeGuard(Some(build(&mut builder)?)))))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.0.0.as_ref().expect("only dropping takes it").handle()
    }
}

impl Drop for RuntimeGuard {
    /// Ends the runtime without waiting for its tasks or threads, so that one of its own tasks may
    /// drop the last clone.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background(); // may be dropped within a task, its own ones included
        }
    }
}

/// Builds a runtime. Tokio panics if the system starts no thread; that panic becomes an error here,
/// after the panic hook has reported it. If it refuses a later one, tokio may panic as well; the
/// threads that had started then stay, idle, and outside of a task tokio would wait for their end,
/// for ever.
///
/// # Errors
/// The system starts no thread, or gives the runtime no other resource.
fn build(builder: &mut Builder) -> io::Result<Runtime> {
    let built = catch_unwind(AssertUnwindSafe(|| builder.build()));
    built.unwrap_or_else(|panic| {
        let no_text = |_| "the runtime panicked at its start".to_owned();
        Err(io::Error::other(panic.downcast::<String>().map_or_else(no_text, |why| *why)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_thread_is_an_error_instead_of_a_panic() {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_stack_size(usize::MAX / 4);
        let error = build(&mut builder).expect_err("no system has so much memory");
        assert!(error.to_string().contains("thread"), "{error}");
    }
}
