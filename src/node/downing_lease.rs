//! The lease of the downing strategy `lease-majority`: [`DowningLease`], the interface of a
//! provider, and the task that calls it.
//!
//! Membership decides when to acquire the lease, and what the answer means.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::control::machine::ControlInbox;
use crate::cluster::downing::LeaseAnswer;
use crate::cluster::membership::port::MembershipInput;
use crate::sharding::forget_panic;

/// Maximum number of orders that wait for the provider, without the one that it carries out;
/// further ones are refused. Membership gives one order and waits for the answer.
const ORDERS_MAX: usize = 4;

/// Error of a provider that cannot determine the holder of the lease. It counts as a refusal.
pub type LeaseError = Box<dyn std::error::Error + Send + Sync>;

/// Provides the lease of the downing strategy `lease-majority`: a lock outside of the cluster that
/// at most one side of a network partition can acquire, such as a row of a database or a lock
/// service.
///
/// Pass it to [`NodeBuilder::downing_lease`](super::NodeBuilder::downing_lease). The providers of
/// all nodes must use the same external lock.
///
/// When members have been unreachable for `cluster.downing.stable-after`, one node of each side
/// acquires the lease; the smaller side does so
/// `cluster.downing.lease-majority.acquire-lease-delay-for-minority` later. The side without the
/// lease stops. The other side continues only with a quorum of the cluster, so that a faulty
/// provider costs availability but never causes a second instance of an entity.
///
/// # Example
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use futures::future::BoxFuture;
/// use ostraca::node::downing_lease::{DowningLease, LeaseError, LeaseName};
///
/// /// For tests: all nodes are in one process.
/// #[derive(Default)]
/// struct InMemory(Arc<Mutex<Option<String>>>);
///
/// impl DowningLease for InMemory {
///     fn acquire(&self, lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
///         let holder = self.0.clone();
///         Box::pin(async move {
///             let mut holder = holder.lock().map_err(|error| error.to_string())?;
///             Ok(*holder.get_or_insert_with(|| lease.owner.clone()) == lease.owner)
///         })
///     }
///
///     fn release(&self, lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>> {
///         let holder = self.0.clone();
///         Box::pin(async move {
///             let mut holder = holder.lock().map_err(|error| error.to_string())?;
///             holder.take_if(|holder| *holder == lease.owner);
///             Ok(())
///         })
///     }
/// }
/// ```
pub trait DowningLease: Send + Sync + 'static {
    /// Acquires the lease for `lease.owner`. Returns whether this owner holds the lease now, also
    /// if it held it before.
    ///
    /// After `cluster.downing.lease-majority.acquire-within` the future is dropped, which counts as
    /// a refusal, and the lease is released.
    ///
    /// # Errors
    /// If the provider cannot determine the holder. The error is logged and counts as a refusal,
    /// and the lease is released. A panic counts as an error.
    fn acquire(&self, lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>>;

    /// Releases the lease, if `lease.owner` holds it. A node that crashes or stops releases
    /// nothing, so the lease should expire by itself some minutes after its owner's last call.
    /// After `acquire-within` the future is dropped.
    ///
    /// # Errors
    /// If the provider cannot release the lease. The error is logged, and the call is not repeated.
    fn release(&self, lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>>;
}

/// Name and owner of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseName {
    /// `cluster.downing.lease-majority.lease-name`, or `<cluster name>-downing`. Equal on all nodes
    /// of a cluster, and different from that of any other cluster.
    pub name: String,
    /// The acquiring node, identified by its incarnation, which is never reused.
    pub owner: String,
}

/// Handle to the task that calls the provider, for one order after the other. When the handle is
/// dropped, the task carries out the queued orders and ends. It releases nothing by itself, except
/// after an attempt to acquire that failed, panicked or took too long.
pub(super) struct LeaseRequester {
    orders: mpsc::Sender<bool>,
}

impl LeaseRequester {
    /// Starts the task on the current tokio runtime; panics outside of one. Each order to acquire
    /// is answered with [`MembershipInput::DowningLease`] to `inbox`. The provider is called even
    /// if the lease is held already. An order to release is not answered. `within` bounds each call
    /// of the provider, so an answer may take twice as long; orders wait meanwhile.
    pub(super) fn start(
        provider: Arc<dyn DowningLease>,
        lease: LeaseName,
        within: Duration,
        inbox: ControlInbox,
    ) -> Self {
        let (orders, mut waiting) = mpsc::channel(ORDERS_MAX);
        tokio::spawn(async move {
            while let Some(acquire) = waiting.recv().await {
                if acquire {
                    let answer = ask(&*provider, &lease, within).await;
                    // Fails only after the stop.
                    let _ = inbox.fact(MembershipInput::DowningLease(Some(answer)).into());
                } else {
                    give_back(&*provider, &lease, within).await;
                }
            }
        });
        Self { orders }
    }

    /// Orders the task to acquire (`true`) or release the lease, after all queued orders; never
    /// waits. Returns whether the order was accepted: `false` if [`ORDERS_MAX`] orders wait, or the
    /// runtime of the task has ended. An order that was not accepted gets no answer.
    pub(super) fn order(&self, acquire: bool) -> bool {
        self.orders.try_send(acquire).is_ok()
    }
}

impl fmt::Debug for LeaseRequester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseRequester")
    }
}

/// Acquires the lease. Only a timely `true` of the provider is a grant. After `false` nothing is
/// released. After an error, a panic or no timely answer the lease counts as denied and is released
/// before this returns, because it may have been acquired nevertheless; that takes up to `within`
/// again, and its result is only logged. Logs each case: a grant at level info, others as warnings.
async fn ask(provider: &dyn DowningLease, lease: &LeaseName, within: Duration) -> LeaseAnswer {
    let LeaseName { name, .. } = lease;
    let acquired = guarded(async { provider.acquire(lease.clone()).await });
    match tokio::time::timeout(within, acquired).await {
        Ok(Ok(true)) => {
            tracing::info!(name, "cluster.downing_lease: this side holds the lease");
            return LeaseAnswer::Granted;
        }
        Ok(Ok(false)) => {
            tracing::warn!(
                name,
                "cluster.downing_lease: another side holds it, so this side stops"
            );
        }
        Ok(Err(error)) => {
            tracing::warn!(
                name, %error,
                "cluster.downing_lease: the provider failed, and the lease counts as denied"
            );
            give_back(provider, lease, within).await; // the lease may be acquired nevertheless
        }
        Err(_) => {
            tracing::warn!(
                name,
                ?within,
                "cluster.downing_lease: no answer in time, and the lease counts as denied"
            );
            give_back(provider, lease, within).await; // the lease may be acquired nevertheless
        }
    }
    LeaseAnswer::Denied
}

/// Runs a call of the provider, and converts a panic to an error, also one in the call before its
/// future exists, if `call` includes that.
async fn guarded<T>(call: impl Future<Output = Result<T, LeaseError>>) -> Result<T, LeaseError> {
    let panicked = |panic| {
        forget_panic(panic); // the panic hook has reported it
        Err("the provider panicked".into())
    };
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(panicked)
}

/// Releases the lease. An error, a panic or a call that takes longer than `within` is only logged.
async fn give_back(provider: &dyn DowningLease, lease: &LeaseName, within: Duration) {
    let LeaseName { name, .. } = lease;
    let released = guarded(async { provider.release(lease.clone()).await });
    match tokio::time::timeout(within, released).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(name, %error, "cluster.downing_lease: not released"),
        Err(_) => tracing::warn!(name, ?within, "cluster.downing_lease: not released in time"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn panic_of_the_provider_denies_the_lease() {
        struct PanicsWhenDropped;
        impl Drop for PanicsWhenDropped {
            fn drop(&mut self) {
                panic!("on purpose: a payload that panics again");
            }
        }
        struct Panics;
        impl DowningLease for Panics {
            fn acquire(&self, _lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
                std::panic::panic_any(PanicsWhenDropped)
            }

            fn release(&self, _lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>> {
                Box::pin(async { panic!("on purpose") })
            }
        }
        let lease = LeaseName { name: "l".to_owned(), owner: "o".to_owned() };
        let within = Duration::from_secs(10);
        assert_eq!(ask(&Panics, &lease, within).await, LeaseAnswer::Denied);
        give_back(&Panics, &lease, within).await;
    }

    /// A provider with a fixed answer, or none at all, that counts releases.
    struct Says(Option<Result<bool, &'static str>>, Arc<AtomicUsize>);

    impl DowningLease for Says {
        fn acquire(&self, _lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
            let Some(answer) = self.0 else { return Box::pin(std::future::pending()) };
            Box::pin(async move { answer.map_err(Into::into) })
        }

        fn release(&self, _lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn only_a_timely_yes_grants_and_unclear_answers_release() {
        let lease = LeaseName { name: "l".to_owned(), owner: "o".to_owned() };
        for (answer, expected, released) in [
            (Some(Ok(true)), LeaseAnswer::Granted, 0),
            (Some(Ok(false)), LeaseAnswer::Denied, 0),
            (Some(Err("broken")), LeaseAnswer::Denied, 1),
            (None, LeaseAnswer::Denied, 1),
        ] {
            let given_back = Arc::new(AtomicUsize::new(0));
            let provider = Says(answer, given_back.clone());
            assert_eq!(ask(&provider, &lease, Duration::ZERO).await, expected, "{answer:?}");
            assert_eq!(given_back.load(Ordering::Relaxed), released, "{answer:?}");
        }
    }
}
