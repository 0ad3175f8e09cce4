//! [`Watchers`]: publishes the state of membership and its events to the program.
//!
//! Membership never waits for a listener. A listener that lags more than [`BEHIND_MAX`] events
//! receives the present state instead of the events that it missed.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use ostraca_ddata::id::ReplicaId;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::events::{ClusterEvent, ClusterState};
use crate::cluster::membership::port::StopReason;

/// Number of events by which a listener may lag.
const BEHIND_MAX: usize = 1_024;

/// State of membership on this node. It never returns to [`Runs`](Self::Runs). `Out` remains after
/// the end; the other way round, a stop reason that comes after [`Ended`](Self::Ended) replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MembershipState {
    /// Membership runs, and has not stopped this node.
    Runs,
    /// Membership has decided that this node must stop; it may still run, or have ended since.
    Out(StopReason),
    /// Membership has ended without such a decision.
    Ended,
}

/// State that listeners see at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSnapshot {
    pub(crate) state: Arc<ClusterState>,
    pub(crate) membership: MembershipState,
    /// Time at which this node learned that a member, itself included, became Up. Members that were
    /// Up when this node joined have no entry. An entry stays until the member is removed, whatever
    /// its status.
    pub(crate) up_since: BTreeMap<ReplicaId, Instant>, // ≤ members
}

impl ClusterSnapshot {
    /// Applies an event to the state and to `up_since`. [`ClusterEvent::CurrentState`] replaces the
    /// state, removes the times of members that it does not contain, and adds none.
    fn apply(&mut self, event: &ClusterEvent) {
        Arc::make_mut(&mut self.state).apply(event);
        match event {
            ClusterEvent::MemberUp(member) => {
                self.up_since.insert(member.incarnation(), Instant::now());
            }
            ClusterEvent::MemberRemoved { member, .. } => {
                self.up_since.remove(&member.incarnation());
            }
            ClusterEvent::CurrentState(state) => {
                self.up_since.retain(|id, _| state.members.contains_key(id));
            }
            _ => {}
        }
    }
}

/// Publisher of membership's state and events.
pub(crate) struct Watchers {
    seen: watch::Sender<ClusterSnapshot>,
    /// The lock is also held while the state changes, so that a subscriber that reads the state
    /// under it misses no event.
    listeners: Mutex<Option<broadcast::Sender<ClusterEvent>>>, // `None` after the end
}

impl Watchers {
    /// Creates a publisher with an empty state, no listeners, and membership that runs.
    pub(crate) fn new() -> Arc<Self> {
        let (state, membership) = (Arc::default(), MembershipState::Runs);
        let seen = ClusterSnapshot { state, membership, up_since: BTreeMap::new() };
        let listeners = Mutex::new(Some(broadcast::Sender::new(BEHIND_MAX)));
        Arc::new(Self { seen: watch::Sender::new(seen), listeners })
    }

    /// Applies an event to the state and then sends it to all listeners, under one lock. Never
    /// waits for a listener. After [`end`](Self::end) only the state changes, which
    /// [`watch`](Self::watch) still shows.
    pub(crate) fn publish(&self, event: ClusterEvent) {
        let listeners = self.lock();
        self.seen.send_modify(|seen| seen.apply(&event));
        if let Some(listeners) = &*listeners {
            let _ = listeners.send(event); // fails if there are no listeners
        }
    }

    /// Records that membership has decided to stop this node, and wakes the receivers of
    /// [`watch`](Self::watch). Streams get no event of it and continue until [`end`](Self::end). A
    /// later call replaces the reason, and also a recorded end.
    pub(crate) fn set_stop_reason(&self, reason: StopReason) {
        self.seen.send_modify(|seen| seen.membership = MembershipState::Out(reason));
    }

    /// Ends all streams, because membership has ended. Events that were sent before are still
    /// delivered to listeners that do not lag, and the last state to those that do. Keeps a
    /// recorded stop reason; otherwise records [`MembershipState::Ended`]. A second call has no
    /// effect.
    pub(crate) fn end(&self) {
        self.lock().take();
        self.seen.send_modify(|seen| {
            if seen.membership == MembershipState::Runs {
                seen.membership = MembershipState::Ended;
            }
        });
    }

    /// The present state of the cluster; after the end the last one.
    pub(crate) fn state(&self) -> Arc<ClusterState> {
        self.seen.borrow().state.clone()
    }

    /// Receiver of the present state and later ones. It sees the newest state only, and works after
    /// the end as well.
    pub(crate) fn watch(&self) -> watch::Receiver<ClusterSnapshot> {
        self.seen.subscribe()
    }

    /// Returns a stream of the state at the time of this call, followed by every change since. It
    /// is empty after [`end`](Self::end). A listener that lags too far skips its buffered events,
    /// and a warning is logged; it then gets the present state, which is the last item of the
    /// stream if membership has ended.
    pub(crate) fn listen(self: &Arc<Self>) -> ClusterEvents {
        let (first, changes) = self.subscribe();
        if changes.is_none() {
            return ClusterEvents(stream::empty().boxed());
        }
        let watchers = self.clone();
        let later = stream::unfold((watchers, changes), |(watchers, changes)| async move {
            let mut changes = changes?;
            match changes.recv().await {
                Ok(event) => Some((event, (watchers, Some(changes)))),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(
                        missed,
                        "cluster.slow_listener: a listener of the program read too slowly and gets \
                         the present state instead of the missed events"
                    );
                    let (state, changes) = watchers.subscribe();
                    Some((state, (watchers, changes)))
                }
                Err(RecvError::Closed) => None,
            }
        });
        ClusterEvents(stream::once(async { first }).chain(later).boxed())
    }

    /// The present state as a [`ClusterEvent::CurrentState`], and a receiver of exactly the changes
    /// after it; the receiver is `None` after the end.
    fn subscribe(&self) -> (ClusterEvent, Option<broadcast::Receiver<ClusterEvent>>) {
        let listeners = self.lock();
        let changes = listeners.as_ref().map(broadcast::Sender::subscribe);
        (ClusterEvent::CurrentState(self.state()), changes)
    }

    fn lock(&self) -> MutexGuard<'_, Option<broadcast::Sender<ClusterEvent>>> {
        // The program's code never runs under the lock, so it is consistent after a panic.
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stream of cluster events: the state at the subscription first, then every change. A reader that
/// lags more than 1,024 events receives the present state again instead of the missed events. The
/// stream ends when membership of the node ends, also after such a state, and is empty if that has
/// ended before.
pub struct ClusterEvents(BoxStream<'static, ClusterEvent>);

impl ClusterEvents {
    /// The next event; `None` when membership has ended and its last events were read. Cancel-safe.
    pub async fn next(&mut self) -> Option<ClusterEvent> {
        self.0.next().await
    }
}

impl Stream for ClusterEvents {
    type Item = ClusterEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ClusterEvent>> {
        self.0.poll_next_unpin(cx)
    }
}

impl std::fmt::Debug for ClusterEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterEvents")
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};

    use super::*;

    fn node() -> NodeId {
        NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) }
    }

    #[tokio::test]
    async fn listener_gets_the_state_and_then_each_change() {
        let watchers = Watchers::new();
        watchers.publish(ClusterEvent::LeaderChanged(Some(node())));
        let mut events = watchers.listen();
        watchers.publish(ClusterEvent::ConvergenceChanged(true));
        let Some(ClusterEvent::CurrentState(first)) = events.next().await else { panic!("first") };
        assert_eq!((first.leader, first.converged), (Some(node()), false));
        assert_eq!(events.next().await, Some(ClusterEvent::ConvergenceChanged(true)));
        assert_eq!(events.next().now_or_never(), None);
        watchers.end();
        assert_eq!(events.next().await, None);
        assert_eq!(watchers.listen().next().await, None);
        assert_eq!(watchers.watch().borrow().membership, MembershipState::Ended);
    }

    #[tokio::test]
    async fn lagging_listener_gets_the_present_state() {
        let watchers = Watchers::new();
        let mut events = watchers.listen();
        events.next().await.expect("the present state");
        for n in 0..=BEHIND_MAX {
            watchers.publish(ClusterEvent::ConvergenceChanged(n % 2 == 0));
        }
        let Some(ClusterEvent::CurrentState(now)) = events.next().await else { panic!("anew") };
        assert!(now.converged);
        assert_eq!(events.next().now_or_never(), None);
        watchers.publish(ClusterEvent::ConvergenceChanged(false));
        assert_eq!(events.next().await, Some(ClusterEvent::ConvergenceChanged(false)));
    }

    #[tokio::test]
    async fn lagging_listener_gets_the_last_state_after_the_end() {
        let watchers = Watchers::new();
        let mut events = watchers.listen();
        events.next().await.expect("the present state");
        for n in 0..=BEHIND_MAX {
            watchers.publish(ClusterEvent::ConvergenceChanged(n % 2 == 0));
        }
        watchers.end();
        let Some(ClusterEvent::CurrentState(last)) = events.next().await else { panic!("last") };
        assert!(last.converged);
        assert_eq!(events.next().await, None);
    }

    #[test]
    fn stop_reason_survives_the_end_of_membership() {
        let watchers = Watchers::new();
        watchers.set_stop_reason(StopReason::Left);
        watchers.end();
        assert_eq!(watchers.watch().borrow().membership, MembershipState::Out(StopReason::Left));
    }
}
