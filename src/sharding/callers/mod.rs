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
