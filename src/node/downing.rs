//! The lease of `lease-majority`: who provides it, and how a node asks.
//!
//! Membership says when, and judges the answer by what it sees then. Knows no strategy.

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
use crate::cluster::membership::port::Input;

/// Orders that wait for the provider, at most. Membership gives one and waits for the answer; what
/// is beyond is refused.
const ORDERS_MAX: usize = 4;

/// What a provider says that can't tell who holds the lease; it counts as a refusal.
pub type LeaseError = Box<dyn std::error::Error + Send + Sync>;

/// Provides the lease of the downing strategy `lease-majority`: something outside of the cluster
/// that at most one side of a split can get, such as a row of a database or a lock service.
///
/// Hand it to [`NodeBuilder::downing_lease`](super::NodeBuilder::downing_lease), on every
/// node one that asks the same outside.
///
/// The lease is asked for by one node of each side, when members have been unreachable for
/// `cluster.downing.stable-after`, and by the smaller side
/// `cluster.downing.lease-majority.acquire-lease-delay-for-minority` later. It decides who ends
/// itself; who goes on needs a quorum of the cluster besides, so a provider that errs costs
/// availability, never a second instance.
///
/// # Example
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use futures::future::BoxFuture;
/// use ostraca::node::downing::{DowningLease, LeaseError, LeaseName};
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
    /// Whether `lease.owner` has the lease now, if need be by taking it. Who has it already is
    /// told so again.
    ///
    /// The future is dropped after `cluster.downing.lease-majority.acquire-within`, and the lease
    /// then released.
    ///
    /// # Errors
    /// Whatever keeps the provider from knowing; logged, and counted as a refusal.
    fn acquire(&self, lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>>;

    /// Gives the lease back, if `lease.owner` has it. A node that dies or stops gives nothing
    /// back: the lease should run out by itself, some minutes after its owner was last heard of.
    ///
    /// # Errors
    /// Whatever keeps the provider from it; logged.
    fn release(&self, lease: LeaseName) -> BoxFuture<'static, Result<(), LeaseError>>;
}

/// Which lease, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseName {
    /// `cluster.downing.lease-majority.lease-name`, or `<cluster name>-downing`; the same on all
    /// nodes of a cluster, and on no other.
    pub name: String,
    /// The node that asks, by its incarnation: no two ever have the same.
    pub owner: String,
}

/// Asks a provider in a task of its own. When this is dropped, the task ends after the call that is
/// under way: a lease that is acquired too late is given back all the same.
pub(super) struct Asking {
    orders: mpsc::Sender<bool>,
}

impl Asking {
    /// Needs a runtime of tokio.
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
                    let _ = inbox.fact(Input::DowningLease(Some(answer)).into()); // at the stop
                } else {
                    give_back(&*provider, &lease, within).await;
                }
            }
        });
        Self { orders }
    }

    /// Whether the order will be followed.
    pub(super) fn order(&self, acquire: bool) -> bool {
        self.orders.try_send(acquire).is_ok()
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asking")
    }
}

async fn ask(provider: &dyn DowningLease, lease: &LeaseName, within: Duration) -> LeaseAnswer {
    let LeaseName { name, .. } = lease;
    let acquired = guarded(async { provider.acquire(lease.clone()).await });
    match tokio::time::timeout(within, acquired).await {
        Ok(Ok(true)) => {
            tracing::info!(name, "cluster.downing_lease: this side has it");
            return LeaseAnswer::Granted;
        }
        Ok(Ok(false)) => tracing::warn!(name, "cluster.downing_lease: another side has it"),
        Ok(Err(error)) => {
            tracing::warn!(name, %error, "cluster.downing_lease: nobody can tell");
            give_back(provider, lease, within).await; // the answer may be what was lost
        }
        Err(_) => {
            tracing::warn!(name, ?within, "cluster.downing_lease: no answer in time");
            give_back(provider, lease, within).await; // it may be taken all the same
        }
    }
    LeaseAnswer::Denied
}

/// A provider that panics says nothing, this time.
async fn guarded<T>(call: impl Future<Output = Result<T, LeaseError>>) -> Result<T, LeaseError> {
    let panicked = |_| Err("the provider panicked".into());
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(panicked)
}

async fn give_back(provider: &dyn DowningLease, lease: &LeaseName, within: Duration) {
    let LeaseName { name, .. } = lease;
    let released = guarded(async { provider.release(lease.clone()).await });
    match tokio::time::timeout(within, released).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(name, %error, "cluster.downing_lease: not given back"),
        Err(_) => tracing::warn!(name, ?within, "cluster.downing_lease: not given back in time"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_provider_that_panics_denies() {
        struct Panics;
        impl DowningLease for Panics {
            fn acquire(&self, _lease: LeaseName) -> BoxFuture<'static, Result<bool, LeaseError>> {
                panic!("on purpose")
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

    /// Answers with this, or never.
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
    async fn only_a_clear_yes_in_time_is_a_grant_and_a_late_one_is_given_back() {
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
