//! [`Cluster`]: the program's handle for membership.
//!
//! Most reads return the state that membership published last. Orders such as `leave` are queued
//! for the membership machine, which carries them out later, on this node or on another member. The
//! protocol is described in docs/protocol/membership.md.

mod error;
mod newcomers;
mod recovery;
mod view;
pub(crate) mod watchers;

use std::fmt;
use std::sync::Arc;

use libp2p::Multiaddr;
use ostraca_ddata::id::NodeId;
use tokio::sync::oneshot;

pub use self::error::{DownError, JoinError, LeaveError, RecoverError, Stopped, UpError};
pub use self::recovery::RecoveryResult;
pub use self::view::ClusterView;
pub use self::watchers::ClusterEvents;
use self::watchers::{ClusterSnapshot, MembershipState, Watchers};
use super::clock::Clock;
use super::control::dialler::bare;
use super::control::machine::{Control, ControlInbox};
use crate::cluster::member::{Member, Status};
use crate::cluster::membership::port::{MembershipCommand, MembershipInput};
use crate::cluster::membership::stats::MembershipStats;

/// Handle for the cluster: its members, its events, and orders such as join, leave and down. Cheap
/// to clone; all clones refer to the same node.
///
/// # Example
/// ```
/// use ostraca::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::start(Config::default()).await?; // without seeds: a cluster of its own
/// let cluster = node.cluster();
/// cluster.wait_until_up().await?;
/// assert_eq!(cluster.members().len(), 1);
/// let mut events = cluster.events();
/// assert!(matches!(events.next().await, Some(ClusterEvent::CurrentState(_))));
/// node.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cluster {
    me: NodeId,
    inbox: ControlInbox,
    watchers: Arc<Watchers>,
    joins_by: JoinsBy,
    clock: Clock,
}

/// How a node joins a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinsBy {
    /// The node joins through its seeds.
    Seeds,
    /// The node has no seeds: it founds a cluster, or the program names a node to join.
    Itself,
}

impl Cluster {
    pub(crate) const fn new(
        me: NodeId,
        inbox: ControlInbox,
        watchers: Arc<Watchers>,
        joins_by: JoinsBy,
        clock: Clock,
    ) -> Self {
        Self { me, inbox, watchers, joins_by, clock }
    }

    /// Id of this node, as membership names it.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// Waits until this node is Up, that is, in the configuration, so that quorum operations on
    /// replicated data work. Returns immediately if it is.
    ///
    /// # Errors
    /// [`UpError`] if the node can no longer become Up, also if it was Up before: after the stop
    /// of membership this never returns `Ok`. Otherwise this waits without a limit; the log names
    /// from time to time the nodes that have not answered.
    pub async fn wait_until_up(&self) -> Result<(), UpError> {
        let mut watch = self.watchers.watch();
        let seen = watch.wait_for(|seen| self.arrival(seen).is_some()).await;
        let arrival = seen.ok().and_then(|seen| self.arrival(&seen));
        arrival.unwrap_or(Err(UpError::Stopped))
    }

    /// Result of [`wait_until_up`](Self::wait_until_up) in this state; `None` if the node is
    /// Joining, WeaklyUp, or not a member. The state of membership is checked before the node's
    /// status, so an Up node that must stop gets [`UpError::Out`].
    fn arrival(&self, seen: &ClusterSnapshot) -> Option<Result<(), UpError>> {
        match seen.membership {
            MembershipState::Out(why) => return Some(Err(UpError::Out(why))),
            MembershipState::Ended => return Some(Err(UpError::Stopped)),
            MembershipState::Runs => {}
        }
        match seen.state.members.get(&self.me.incarnation)?.status {
            Status::Joining | Status::WeaklyUp => None,
            Status::Up => Some(Ok(())),
            status => Some(Err(UpError::Going { status })),
        }
    }

    /// All members that this node knows, of any status, ordered by address; empty before the node
    /// has joined. Once membership has stopped this node, still those published last.
    #[must_use]
    pub fn members(&self) -> Vec<Arc<Member>> {
        view::in_order(&self.watchers.state())
    }

    /// Snapshot of the cluster: members, leader, reachability, convergence. Membership takes it
    /// between two of its inputs, so it may be newer than [`members`](Self::members). Unlike
    /// those, it is empty once membership has stopped this node.
    ///
    /// # Errors
    /// [`Stopped`] if membership has ended, also while this waits.
    pub async fn state(&self) -> Result<ClusterView, Stopped> {
        let me = self.me;
        self.look(move |control| ClusterView::of(me, control.membership())).await
    }

    /// Counters of membership, read between two of its inputs.
    ///
    /// # Errors
    /// [`Stopped`] if membership has ended, also while this waits.
    pub async fn stats(&self) -> Result<MembershipStats, Stopped> {
        self.look(|control| *control.membership().stats()).await
    }

    /// Stream of events: the state at this call first, then every change. It is empty, without even
    /// the state, if membership has ended.
    #[must_use]
    pub fn events(&self) -> ClusterEvents {
        self.watchers.listen()
    }

    /// Joins the cluster of the node at this address. A peer id at its end is ignored. `Ok` means
    /// that the order is queued; [`wait_until_up`](Self::wait_until_up) waits until the node has
    /// joined. Only for nodes without seeds that were started with `wait-for-join`; without that
    /// setting the node founds a cluster by itself and is a member soon. Membership ignores the
    /// order if the node has become a member, or was stopped, before it is handled.
    ///
    /// # Errors
    /// [`JoinError`], checked in the order of its variants. The node's own address is not refused
    /// here. A second call replaces the address that the node asks.
    pub async fn join(&self, address: &Multiaddr) -> Result<(), JoinError> {
        if self.joins_by == JoinsBy::Seeds {
            return Err(JoinError::HasSeeds);
        }
        if self.watchers.state().members.contains_key(&self.me.incarnation) {
            return Err(JoinError::Member);
        }
        let address = bare(address).map_err(|error| JoinError::Address { len: error.len })?;
        Ok(self.order(MembershipCommand::Join(address)).await?)
    }

    /// Asks a member, this node or another one, to leave gracefully: it moves its shards away and
    /// stops. `Ok` means that the order is queued. It has no effect on a member that is Leaving,
    /// Exiting or Down already. The event `MemberRemoved` reports that the member has left.
    ///
    /// # Errors
    /// [`LeaveError`]; the member was not asked.
    pub async fn leave(&self, node: NodeId) -> Result<(), LeaveError> {
        if !self.watchers.state().members.contains_key(&node.incarnation) {
            return Err(LeaveError::Unknown { node });
        }
        Ok(self.order(MembershipCommand::Leave(node.incarnation)).await?)
    }

    /// Declares a member dead, this node or another one, of any status, also Leaving or Exiting.
    /// `Ok` means that the order is queued; it has no effect on a member that is Down. The member
    /// is removed once a quorum of the other members agrees, which waits until its lease has
    /// expired. If the member is alive, it stops.
    ///
    /// # Errors
    /// [`DownError`]; the member was not declared dead.
    pub async fn down(&self, node: NodeId) -> Result<(), DownError> {
        if !self.watchers.state().members.contains_key(&node.incarnation) {
            return Err(DownError::Unknown { node });
        }
        Ok(self.order(MembershipCommand::Down(node.incarnation)).await?)
    }

    /// Permanently freezes joins, promotions, rebalance and hand-over in the whole cluster, because
    /// it is about to stop. `Ok` means that the order is queued; a node that is in no cluster
    /// ignores it. A second call has no effect.
    ///
    /// # Errors
    /// [`Stopped`] if membership has ended.
    pub async fn prepare_for_full_shutdown(&self) -> Result<(), Stopped> {
        self.order(MembershipCommand::PrepareForFullShutdown).await
    }

    /// Queues an order for membership, after waiting for a place in its inbox, without a limit. If
    /// the future is dropped in that wait, nothing is queued. `Ok` does not mean that the order is
    /// carried out: membership ignores one that does not fit its state. Fails if the inbox is
    /// closed, because membership ends or has ended; an order queued before is still handled.
    pub(crate) async fn order(&self, command: MembershipCommand) -> Result<(), Stopped> {
        let place = self.inbox.place().await.map_err(|_| Stopped)?;
        place.request(MembershipInput::Command(command).into()).map_err(|_| Stopped)
    }

    /// Waits until the status of this node (`None`: not a member) meets a condition, or membership
    /// has ended or has decided to stop this node; the caller cannot tell which. Returns
    /// immediately if that is so already. `is_so` runs under the lock of the published state: it
    /// must be short.
    pub(crate) async fn until(&self, is_so: impl Fn(Option<Status>) -> bool) {
        let mut watch = self.watchers.watch();
        let status = |seen: &ClusterSnapshot| {
            seen.state.members.get(&self.me.incarnation).map(|member| member.status)
        };
        let met = |seen: &ClusterSnapshot| {
            seen.membership != MembershipState::Runs || is_so(status(seen))
        };
        let _ = watch.wait_for(met).await; // fails if the node was dropped: the wait ends as well
    }

    /// Whether this node is a member, of any status, and membership neither has ended nor has
    /// decided to stop it.
    pub(crate) fn is_member(&self) -> bool {
        let watch = self.watchers.watch();
        let seen = watch.borrow();
        let is_known = seen.state.members.contains_key(&self.me.incarnation);
        is_known && seen.membership == MembershipState::Runs
    }

    /// Runs `look` on the control machine between two of its inputs, on the machine's thread, and
    /// returns the result. Waits for a place in the inbox as [`order`](Self::order) does. Fails if
    /// the machine has ended, also if it ends while the call waits. If the caller drops the future
    /// once `look` is queued, it still runs.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (sender, receiver) = oneshot::channel();
        let place = self.inbox.place().await.map_err(|_| Stopped)?;
        let look = |control: &Control| {
            let _ = sender.send(look(control)); // fails if the caller dropped its future
        };
        place.look(look).map_err(|_| Stopped)?;
        receiver.await.map_err(|_| Stopped)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("me", &self.me).finish_non_exhaustive()
    }
}
