//! [`Cluster`], the handle: what a program asks of membership (spec/membership.md).
//!
//! Reads are answered from what membership has told last; orders go to it and are done when it
//! gets to them, here or at another member. Knows no protocol.

mod error;
mod newcomers;
mod recovering;
mod view;
pub(crate) mod watching;

use std::fmt;
use std::sync::Arc;

use libp2p::Multiaddr;
use ostraca_ddata::id::NodeId;
use tokio::sync::oneshot;

pub use self::error::{DownError, JoinError, LeaveError, RecoverError, Stopped, UpError};
pub use self::recovering::Recovered;
pub use self::view::ClusterView;
pub use self::watching::ClusterEvents;
use self::watching::{Seen, Standing, Watchers};
use super::clock::Clock;
use super::control::dialling::bare;
use super::control::machine::{Control, ControlInbox};
use crate::cluster::member::{Member, Status};
use crate::cluster::membership::port::{Command, Input};
use crate::cluster::membership::stats::Stats;

/// The cluster as this node sees it, and what can be asked of it. Cheap to clone; every clone is
/// the same.
///
/// # Example
/// ```
/// use ostraca::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::start(Config::default()).await?; // without seeds: a cluster of its own
/// let cluster = node.cluster();
/// cluster.up().await?;
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

/// How a node gets into a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinsBy {
    /// Its seeds.
    Seeds,
    /// It founds one, or is told whom to join.
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

    /// This node, as membership names it.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// Ends when this node is in the configuration: replicated data is served by quorums then.
    ///
    /// # Errors
    /// [`UpError`] if it will not come to that any more. Without it this waits as long as it
    /// takes; the log says every now and then who has not answered.
    pub async fn up(&self) -> Result<(), UpError> {
        let mut watch = self.watchers.watch();
        let seen = watch.wait_for(|seen| self.arrival(seen).is_some()).await;
        let arrival = seen.ok().and_then(|seen| self.arrival(&seen));
        arrival.unwrap_or(Err(UpError::Stopped))
    }

    /// `None`: wait.
    fn arrival(&self, seen: &Seen) -> Option<Result<(), UpError>> {
        match seen.standing {
            Standing::Out(why) => return Some(Err(UpError::Out(why))),
            Standing::Ended => return Some(Err(UpError::Stopped)),
            Standing::Runs => {}
        }
        match seen.state.members.get(&self.me.incarnation)?.status {
            Status::Joining | Status::WeaklyUp => None,
            Status::Up => Some(Ok(())),
            status => Some(Err(UpError::Going { status })),
        }
    }

    /// All members that this node knows, in the order of their addresses; none before it has
    /// joined.
    #[must_use]
    pub fn members(&self) -> Vec<Arc<Member>> {
        view::in_order(&self.watchers.state())
    }

    /// Everything: members, who leads, who has lost whom, whether all agree.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn state(&self) -> Result<ClusterView, Stopped> {
        let me = self.me;
        self.look(move |control| ClusterView::of(me, control.membership())).await
    }

    /// What membership counts.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn stats(&self) -> Result<Stats, Stopped> {
        self.look(|control| *control.membership().stats()).await
    }

    /// What happens: how things stand first, then every change.
    #[must_use]
    pub fn events(&self) -> ClusterEvents {
        self.watchers.listen()
    }

    /// Joins the cluster of whoever answers at this address. [`up`](Self::up) says when it has
    /// come to that. Only for nodes without seeds that were started with `wait-for-join`.
    ///
    /// # Errors
    /// [`JoinError`].
    pub async fn join(&self, address: &Multiaddr) -> Result<(), JoinError> {
        if self.joins_by == JoinsBy::Seeds {
            return Err(JoinError::HasSeeds);
        }
        if self.watchers.state().members.contains_key(&self.me.incarnation) {
            return Err(JoinError::Member);
        }
        let address =
            bare(address).ok_or_else(|| JoinError::Address { len: address.to_string().len() })?;
        Ok(self.order(Command::Join(address)).await?)
    }

    /// Asks a member, this node or another, to leave in order: it gives away what it hosts and
    /// ends. A `MemberRemoved` says when it is out.
    ///
    /// # Errors
    /// [`LeaveError`]; nothing has happened then.
    pub async fn leave(&self, node: NodeId) -> Result<(), LeaveError> {
        if !self.watchers.state().members.contains_key(&node.incarnation) {
            return Err(LeaveError::Unknown { node });
        }
        Ok(self.order(Command::Leave(node.incarnation)).await?)
    }

    /// Declares a member dead. It is out as soon as a quorum of the others agrees, which waits
    /// until its lease is over; if it lives after all, it stops.
    ///
    /// # Errors
    /// [`DownError`]; nothing has happened then.
    pub async fn down(&self, node: NodeId) -> Result<(), DownError> {
        if !self.watchers.state().members.contains_key(&node.incarnation) {
            return Err(DownError::Unknown { node });
        }
        Ok(self.order(Command::Down(node.incarnation)).await?)
    }

    /// Freezes joins, promotions, rebalance and hand-over, for good: the whole cluster is about to
    /// stop.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn prepare_for_full_shutdown(&self) -> Result<(), Stopped> {
        self.order(Command::PrepareForFullShutdown).await
    }

    pub(crate) async fn order(&self, command: Command) -> Result<(), Stopped> {
        let place = self.inbox.place().await.map_err(|_| Stopped)?;
        place.request(Input::Command(command).into()).map_err(|_| Stopped)
    }

    /// Ends when this is so; also when membership ends or this node is out.
    pub(crate) async fn until(&self, is_so: impl Fn(Option<Status>) -> bool) {
        let mut watch = self.watchers.watch();
        let status =
            |seen: &Seen| seen.state.members.get(&self.me.incarnation).map(|member| member.status);
        let met = |seen: &Seen| seen.standing != Standing::Runs || is_so(status(seen));
        let _ = watch.wait_for(met).await; // an error: the node is gone, and so is who waits
    }

    /// Whether this node is a member, and not told to stop.
    pub(crate) fn is_member(&self) -> bool {
        let watch = self.watchers.watch();
        let seen = watch.borrow();
        let is_known = seen.state.members.contains_key(&self.me.incarnation);
        is_known && seen.standing == Standing::Runs
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (sender, receiver) = oneshot::channel();
        let place = self.inbox.place().await.map_err(|_| Stopped)?;
        let look = |control: &Control| {
            let _ = sender.send(look(control)); // who asked may have left
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
