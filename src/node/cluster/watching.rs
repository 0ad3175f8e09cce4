//! What membership tells the program: how things stand, and every change, to whoever listens.
//!
//! Membership never waits for a listener: one that is too slow is told how things stand, instead
//! of what it has missed.

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

/// Events that a listener may be behind.
const BEHIND_MAX: usize = 1_024;

/// How membership stands towards this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It runs.
    Runs,
    /// It says that this node must stop, or has.
    Out(StopReason),
    /// It has ended.
    Ended,
}

/// What listeners see at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) state: Arc<ClusterState>,
    pub(crate) standing: Standing,
    /// When this node learned that a member is Up.
    pub(crate) up_since: BTreeMap<ReplicaId, Instant>, // ≤ members
}

impl Seen {
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

/// See the module's page.
pub(crate) struct Watchers {
    seen: watch::Sender<Seen>,
    /// Also held while the state changes: who subscribes under it misses nothing.
    listeners: Mutex<Option<broadcast::Sender<ClusterEvent>>>, // none after the end
}

impl Watchers {
    pub(crate) fn new() -> Arc<Self> {
        let (state, standing) = (Arc::default(), Standing::Runs);
        let seen = Seen { state, standing, up_since: BTreeMap::new() };
        let listeners = Mutex::new(Some(broadcast::Sender::new(BEHIND_MAX)));
        Arc::new(Self { seen: watch::Sender::new(seen), listeners })
    }

    /// Tells all listeners.
    pub(crate) fn publish(&self, event: ClusterEvent) {
        let listeners = self.lock();
        self.seen.send_modify(|seen| seen.apply(&event));
        if let Some(listeners) = &*listeners {
            let _ = listeners.send(event); // nobody listens
        }
    }

    /// This node must stop.
    pub(crate) fn out(&self, reason: StopReason) {
        self.seen.send_modify(|seen| seen.standing = Standing::Out(reason));
    }

    /// Membership has ended: streams end.
    pub(crate) fn end(&self) {
        self.lock().take();
        self.seen.send_modify(|seen| {
            if seen.standing == Standing::Runs {
                seen.standing = Standing::Ended;
            }
        });
    }

    /// How things stand.
    pub(crate) fn state(&self) -> Arc<ClusterState> {
        self.seen.borrow().state.clone()
    }

    /// How things stand, now and later.
    pub(crate) fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// A new listener: how things stand, then every change.
    pub(crate) fn listen(self: &Arc<Self>) -> ClusterEvents {
        let Some((first, changes)) = self.subscribe() else {
            return ClusterEvents(stream::empty().boxed());
        };
        let watchers = self.clone();
        let later = stream::unfold((watchers, changes), |(watchers, mut changes)| async move {
            match changes.recv().await {
                Ok(event) => Some((event, (watchers, changes))),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(missed, "cluster.slow_listener: told how things stand instead");
                    let (state, changes) = watchers.subscribe()?;
                    Some((state, (watchers, changes)))
                }
                Err(RecvError::Closed) => None,
            }
        });
        ClusterEvents(stream::once(async { first }).chain(later).boxed())
    }

    fn subscribe(&self) -> Option<(ClusterEvent, broadcast::Receiver<ClusterEvent>)> {
        let listeners = self.lock();
        let changes = listeners.as_ref()?.subscribe();
        Some((ClusterEvent::CurrentState(self.state()), changes))
    }

    fn lock(&self) -> MutexGuard<'_, Option<broadcast::Sender<ClusterEvent>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code under it
    }
}

/// The cluster's events: how things stand first, then every change. A reader that falls far
/// behind is told how things stand once more. Ends with the node.
pub struct ClusterEvents(BoxStream<'static, ClusterEvent>);

impl ClusterEvents {
    /// The next event; `None` when the node has ended. Cancel-safe.
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
    async fn a_listener_hears_how_things_stand_and_then_each_change() {
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
        assert_eq!(watchers.watch().borrow().standing, Standing::Ended);
    }

    #[tokio::test]
    async fn a_listener_that_is_too_slow_is_told_how_things_stand() {
        let watchers = Watchers::new();
        let mut events = watchers.listen();
        events.next().await.expect("how things stand");
        for n in 0..=BEHIND_MAX {
            watchers.publish(ClusterEvent::ConvergenceChanged(n % 2 == 0));
        }
        let Some(ClusterEvent::CurrentState(now)) = events.next().await else { panic!("anew") };
        assert!(now.converged);
        assert_eq!(events.next().now_or_never(), None);
        watchers.publish(ClusterEvent::ConvergenceChanged(false));
        assert_eq!(events.next().await, Some(ClusterEvent::ConvergenceChanged(false)));
    }

    #[test]
    fn why_this_node_is_out_outlives_the_end() {
        let watchers = Watchers::new();
        watchers.out(StopReason::Left);
        watchers.end();
        assert_eq!(watchers.watch().borrow().standing, Standing::Out(StopReason::Left));
    }
}
