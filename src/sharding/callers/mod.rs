//! Callers of `tell_wait`, and how they hear of room.

#[cfg(test)]
mod threads;
mod waiting;

pub(super) use waiting::{Callers, Seat};

/// What [`waiting`] synchronises with. Its tests under loom have other types of these names.
mod sync {
    pub(super) use std::sync::atomic::AtomicBool;
    pub(super) use std::sync::{Mutex, MutexGuard};
}
