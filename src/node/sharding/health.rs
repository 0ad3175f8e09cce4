//! Readiness check: a node is ready from the registration of its regions with their coordinators
//! until its shutdown begins. A type that the program starts later makes the node unready until its
//! region is registered as well, unless `healthcheck.names` lists other types.
//!
//! A coordinator that fails later does not make the node unready, because the node continues to
//! serve shards whose homes are known
//! (docs/protocol/sharding.md#known-homes-outlive-the-coordinator).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::region_registry::Progress;
use super::{NotReady, Sharding};
use crate::cluster::member::Status;
use crate::sharding::ids::EntityType;

impl Sharding {
    /// Waits until the region of every entity type in `healthcheck.names` (if empty: of every type
    /// that was started on this node, if any) has been registered once. Without any such type the
    /// node is ready at once, member or not. Once ready, the node stays ready until its shutdown
    /// begins, or until it starts a further type, if `healthcheck.names` is empty. Meant for the
    /// readiness probe of an orchestrator.
    ///
    /// If `healthcheck.disabled-after` is set, missing registrations are ignored from that time on,
    /// counted from the first check that missed some and saw this node Up. Each call looks at this
    /// once, at its begin: a call that began before the time waits for registrations to its end.
    /// With a `healthcheck.timeout` of 0 the setting has no effect.
    ///
    /// # Errors
    /// [`NotReady::Stopped`] once membership has ended, even after a shutdown;
    /// [`NotReady::Stopping`] as soon as the shutdown has begun, even if all types are registered;
    /// [`NotReady::Unregistered`] after `healthcheck.timeout`, with the types that are missing.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # struct Bell;
    /// # impl Entity for Bell {
    /// #     type Message = Reply<()>;
    /// #     async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
    /// #         ring.send(());
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::start(Config::default()).await?;
    /// node.sharding().start("bell", |_id| Bell).await?;
    /// node.sharding().ready().await?;
    /// # node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ready(&self) -> Result<(), NotReady> {
        self.ready_within(self.0.settings.healthcheck.timeout).await
    }

    /// Like [`ready`](Self::ready), with a time limit of the caller. With a limit of zero it
    /// reports the present state, and does not consider `healthcheck.disabled-after`. A type that
    /// is started meanwhile is awaited as well.
    pub(crate) async fn ready_within(&self, within: Duration) -> Result<(), NotReady> {
        let (shutdown, mut progress) = (&self.0.shutdown, self.0.region_registry.progress());
        let names = || self.names();
        let is_settled = |progress: &mut watch::Receiver<Progress>| {
            unregistered(names, progress).is_none_or(|types| types.is_empty())
        };
        if shutdown.reason().is_none() && !is_settled(&mut progress) {
            // The time limit also holds for the look at membership, whose thread may be stuck.
            let is_ignored = async {
                if self.was_up_for_long().await {
                    return true;
                }
                let settled = async {
                    while !is_settled(&mut progress) {
                        if progress.changed().await.is_err() {
                            return; // the node was dropped
                        }
                    }
                };
                tokio::select! {
                    () = settled => {}
                    () = shutdown.begun() => {}
                }
                false
            };
            if let Ok(true) = tokio::time::timeout(within, is_ignored).await {
                return Ok(());
            }
        }
        let types = unregistered(names, &mut progress).ok_or(NotReady::Stopped)?;
        if let Some(reason) = shutdown.reason() {
            return Err(NotReady::Stopping { reason });
        }
        if types.is_empty() { Ok(()) } else { Err(NotReady::Unregistered { types }) }
    }

    /// The types that must be registered: the configured ones, started here or not; if none is
    /// configured, all that were started here, proxies included. Locks the started types.
    fn names(&self) -> BTreeSet<EntityType> {
        let names = &self.0.settings.healthcheck.names;
        if names.is_empty() {
            self.started().keys().cloned().collect()
        } else {
            names.iter().cloned().collect()
        }
    }

    /// Whether this node is Up now and `healthcheck.disabled-after` has passed since the first call
    /// that saw it Up, which sets `seen_up` for good. False if the setting is unset (then it does
    /// not look), without membership, and after its end. Waits for the machines without a limit.
    async fn was_up_for_long(&self) -> bool {
        let Some(disabled_after) = self.0.settings.healthcheck.disabled_after else { return false };
        let me = self.0.me.replica();
        let is_up = self.look(move |control| {
            let state = control.membership().state();
            let member = state.and_then(|state| state.members.get(&me).cloned());
            member.is_some_and(|member| member.status == Status::Up)
        });
        if is_up.await != Ok(true) {
            return false;
        }
        let since = *self.0.seen_up.get_or_init(Instant::now);
        since.elapsed() >= disabled_after
    }
}

/// The types of `names` whose region was never registered; `None` if the machines have ended, even
/// if all are registered. Marks the present progress as seen, so that a following
/// `progress.changed()` waits for a later change.
///
/// `names` may lock the started types, and a start of a type borrows the watch under that lock.
/// `names` is therefore called before the watch is borrowed; otherwise both could wait for each
/// other, as soon as a third thread waits to write to the watch.
fn unregistered(
    names: impl FnOnce() -> BTreeSet<EntityType>,
    progress: &mut watch::Receiver<Progress>,
) -> Option<BTreeSet<EntityType>> {
    let names = names();
    let progress = progress.borrow_and_update();
    (!progress.ended).then(|| missing(&names, &progress))
}

/// The types of `names` whose region was never registered.
fn missing(names: &BTreeSet<EntityType>, progress: &Progress) -> BTreeSet<EntityType> {
    names.difference(&progress.registered).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;
    use crate::node::shutdown::{Phase, PhaseSettings, Reason};
    use crate::sharding::config::HealthCheck;
    use crate::{Config, Node};

    #[tokio::test]
    async fn stopping_node_is_not_ready() {
        let mut config = Config::default();
        let first = PhaseSettings { timeout: Duration::from_secs(600) }; // the test ends it
        config.shutdown.phases.insert(Phase::BeforeServiceUnbind, first);
        let node = Node::start(config).await.expect("it starts");
        node.cluster().wait_until_up().await.expect("it founds a cluster");
        let (shutdown, sharding) = (node.shutdown(), node.sharding());
        assert_eq!(sharding.ready().await, Ok(()));
        let (release, released) = oneshot::channel::<()>();
        let holds = || async move {
            let _ = released.await; // fails when the test drops the sender
        };
        shutdown.add_task(Phase::BeforeServiceUnbind, "holds", holds).expect("in time");
        shutdown.begin(Reason::Signal);
        let stopping = NotReady::Stopping { reason: Reason::Signal };
        assert_eq!(sharding.ready().await, Err(stopping), "it is Up and stops");
        drop(release);
        node.stop().await;
        assert_eq!(sharding.ready().await, Err(NotReady::Stopped));
    }

    #[tokio::test]
    async fn unregistered_node_is_ready_only_if_disabled_after_is_set() {
        assert_eq!(HealthCheck::default().disabled_after, None);
        let absent = EntityType::new("absent").expect("a name");
        for disabled_after in [None, Some(Duration::ZERO)] {
            let mut config = Config::default();
            let names = vec![absent.clone()];
            config.sharding.healthcheck =
                HealthCheck { names, disabled_after, ..HealthCheck::default() };
            let node = Node::start(config).await.expect("it starts");
            node.cluster().wait_until_up().await.expect("it founds a cluster");
            let within = match disabled_after {
                None => Duration::from_millis(1),
                Some(_) => Duration::from_secs(60), // the check ends at once
            };
            let ready = node.sharding().ready_within(within).await;
            let types = BTreeSet::from([absent.clone()]);
            let expected = match disabled_after {
                None => Err(NotReady::Unregistered { types }),
                Some(_) => Ok(()),
            };
            assert_eq!(ready, expected, "{disabled_after:?}");
            node.stop().await;
        }
    }

    #[tokio::test]
    async fn stuck_membership_does_not_delay_the_check() {
        let absent = EntityType::new("absent").expect("a name");
        let mut config = Config::default();
        config.sharding.healthcheck = HealthCheck {
            names: vec![absent.clone()],
            disabled_after: Some(Duration::from_secs(600)),
            ..HealthCheck::default()
        };
        let node = Node::start(config).await.expect("it starts");
        let sharding = node.sharding();
        let (enter, entered) = oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let stuck = sharding.look(move |_| {
            let _ = enter.send(()); // fails if the test has failed
            let _ = released.recv(); // fails when the test drops the sender
        });
        let check = async {
            entered.await.expect("the look begins");
            let check = sharding.ready_within(Duration::from_millis(1));
            let ready = tokio::time::timeout(Duration::from_secs(60), check).await;
            drop(release);
            ready.expect("the check ends in time")
        };
        let (looked, ready) = tokio::join!(stuck, check);
        assert_eq!(looked, Ok(()));
        assert_eq!(ready, Err(NotReady::Unregistered { types: BTreeSet::from([absent]) }));
        node.stop().await;
    }

    #[test]
    fn names_are_computed_before_progress_is_borrowed() {
        let sender = watch::Sender::new(Progress::default());
        let mut progress = sender.subscribe();
        let names = || {
            let (writer, (done, is_done)) = (sender.clone(), mpsc::channel());
            thread::spawn(move || {
                writer.send_modify(|progress| progress.ended = true);
                let _ = done.send(()); // fails if the test has failed
            });
            is_done.recv_timeout(Duration::from_secs(60)).expect("the watch is not borrowed");
            BTreeSet::new()
        };
        assert_eq!(unregistered(names, &mut progress), None, "it sees the newest progress");
    }

    #[test]
    fn registered_type_is_no_longer_missing() {
        let [one, two] = ["one", "two"].map(|name| EntityType::new(name).expect("a name"));
        let names = BTreeSet::from([one.clone(), two.clone()]);
        let mut progress = Progress::default();
        assert_eq!(missing(&names, &progress), names);
        progress.registered.insert(one);
        let left = missing(&names, &progress);
        assert_eq!(left, BTreeSet::from([two.clone()]));
        let error = NotReady::Unregistered { types: left };
        let text = "no coordinator has registered the region of two on this node yet";
        assert_eq!(error.to_string(), text);
        progress.registered.insert(two);
        assert_eq!(missing(&names, &progress), BTreeSet::new());
    }
}
