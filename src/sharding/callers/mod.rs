//! The callers of `tell_wait` that wait for room, and how they are woken.

#[cfg(test)]
mod threads;
mod waiters;

pub(super) use waiters::{CallerRegistration, Callers};

/// Synchronisation primitives of [`waiters`]. Its loom tests replace them with loom's.
mod sync {
    pub(super) use std::sync::atomic::AtomicBool;
    pub(super) use std::sync::{Mutex, MutexGuard};
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    use super::Callers;

    /// Uses the callers when it is dropped, as a task that waits for room itself does.
    struct Nosy(Arc<Callers>);

    impl Wake for Nosy {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Nosy {
        fn drop(&mut self) {
            self.0.len();
        }
    }

    #[test]
    fn dropped_waker_finds_the_callers_unlocked() {
        let callers = Arc::new(Callers::new());
        let nosy = || Waker::from(Arc::new(Nosy(Arc::clone(&callers))));
        let mut caller = callers.registration();
        caller.register(&nosy());
        caller.register(&nosy()); // replaces the first one
        drop(caller);
        assert_eq!(callers.len(), 0);
    }
}
