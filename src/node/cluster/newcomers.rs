//! A node that leaves as the last host of an entity type waits for hosts that are just joining.
//!
//! Without another host its entities would stop and lose their state, although the nodes that
//! replace it may just have been started. The node therefore waits for members that are joining, or
//! that became Up within the last [`WAIT_MAX`] and may not have announced their entity types yet.
//! It waits at most [`WAIT_MAX`].

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use super::watchers::{ClusterSnapshot, MembershipState};
use crate::cluster::member::{Member, Status};

/// Maximum wait, and the time for which a member counts as new after it became Up. It is short,
/// because in a restart of several nodes each of them may wait for it.
const WAIT_MAX: Duration = Duration::from_secs(3);

impl Cluster {
    /// Waits until each entity type that this node announced as hosted has another host, no new
    /// member could become one, or [`WAIT_MAX`] has passed since the call. Returns immediately if
    /// there is nothing to wait for, and early if membership ends or stops this node. Looks again
    /// at every change and every tenth of [`WAIT_MAX`]. Logs once per call that it waits, with the
    /// types and members of the first look.
    pub(crate) async fn wait_for_newcomers(&self) {
        let until = Instant::now() + WAIT_MAX;
        let mut watch = self.watchers.watch();
        let mut is_told = false;
        loop {
            let awaited = self.awaited(&watch.borrow_and_update(), Instant::now());
            let Some((types, nodes)) = awaited else { return };
            if !is_told {
                is_told = true;
                tracing::info!(
                    ?types,
                    ?nodes,
                    within = ?WAIT_MAX,
                    "cluster.waits_for_newcomers: this node is the last host of these entity types, \
                     and members are joining; it waits for them before it stops its entities"
                );
            }
            // Check again in between, because a member stops counting as new without an event.
            let look_again = until.min(Instant::now() + WAIT_MAX / 10);
            let changed = tokio::time::timeout_at(look_again, watch.changed()).await;
            if Instant::now() >= until || matches!(changed, Ok(Err(_))) {
                return;
            }
        }
    }

    /// The types that only this node hosts and the addresses of the new members that may host them;
    /// `None` if there is no such type or no such member, this node is no member, or membership has
    /// ended or stopped this node.
    ///
    /// A host is another member that is Up, announces the type and does not drain, even if it is
    /// unreachable. A new member is Joining or WeaklyUp and reachable, or became Up less than
    /// [`WAIT_MAX`] ago, as this node saw it, and does not drain, reachable or not. A member that
    /// was Up when this node joined is never new.
    fn awaited(
        &self,
        seen: &ClusterSnapshot,
        now: Instant,
    ) -> Option<(BTreeSet<String>, Vec<String>)> {
        if seen.membership != MembershipState::Runs {
            return None;
        }
        let me = self.me.incarnation;
        let own = seen.state.members.get(&me)?;
        let others = || seen.state.members.values().filter(|member| member.incarnation() != me);
        let may_host = |member: &Member| member.status == Status::Up && !member.hosting.draining;
        // An unreachable host counts: while there is one, the regions of this node do not stop
        // their entities at once, but ask the coordinator for other homes and wait for its
        // permission.
        let hosted: BTreeSet<&str> = others()
            .filter(|member| may_host(member))
            .flat_map(|member| &member.hosting.entity_types)
            .collect();
        let is_only_here = |of_type: &&str| !hosted.contains(of_type);
        let types: BTreeSet<String> =
            own.hosting.entity_types.iter().filter(is_only_here).map(str::to_owned).collect();
        let is_new = |member: &Member| match member.status {
            Status::Joining | Status::WeaklyUp => {
                !seen.state.unreachable.contains(&member.incarnation())
            }
            Status::Up => {
                // Without an entry the member was Up before this node saw it.
                let since = seen.up_since.get(&member.incarnation());
                may_host(member) && since.is_some_and(|since| now < *since + WAIT_MAX)
            }
            _ => false,
        };
        let nodes: Vec<String> =
            others().filter(|member| is_new(member)).map(|it| it.address.to_string()).collect();
        (!types.is_empty() && !nodes.is_empty()).then_some((types, nodes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use futures::FutureExt;
    use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};

    use super::super::JoinsBy;
    use super::super::watchers::Watchers;
    use super::*;
    use crate::cluster::events::{ClusterEvent, ClusterState};
    use crate::cluster::member::Address;
    use crate::cluster::membership::port::StopReason;
    use crate::node::clock::Clock;
    use crate::node::inbox::{Inbox, InboxLimits};

    fn node(number: u8) -> NodeId {
        NodeId { peer: PeerKey::new([number; 32]), incarnation: ReplicaId::new(number.into()) }
    }

    /// Node 1, and the publisher of what it sees.
    fn cluster() -> (Cluster, Arc<Watchers>) {
        let (inbox, watchers) = (Inbox::new(InboxLimits::default()), Watchers::new());
        let cluster =
            Cluster::new(node(1), inbox, watchers.clone(), JoinsBy::Itself, Clock::start());
        (cluster, watchers)
    }

    fn member(number: u8, status: Status, types: &[&str]) -> Member {
        let address = Address::new(format!("/ip4/10.0.0.{number}/tcp/1")).expect("short");
        let mut member = Member::joining(node(number), address, 0);
        member.status = status;
        member.hosting.entity_types = types.iter().collect();
        member
    }

    /// Node 1 is Up and hosts two types; the other members are given.
    fn with_others(others: &[Member]) -> ClusterSnapshot {
        let own = member(1, Status::Up, &["cart", "user"]);
        let all = others.iter().chain([&own]);
        let members = all.map(|it| (it.incarnation(), Arc::new(it.clone()))).collect();
        let state = Arc::new(ClusterState { members, ..ClusterState::default() });
        let (membership, up_since) = (MembershipState::Runs, BTreeMap::new());
        ClusterSnapshot { state, membership, up_since }
    }

    /// The awaited types and nodes, as text.
    fn awaited(seen: &ClusterSnapshot, now: Instant) -> Option<String> {
        let (types, nodes) = cluster().0.awaited(seen, now)?;
        Some(format!("{types:?} {nodes:?}"))
    }

    #[test]
    fn last_host_awaits_members_that_are_joining() {
        for status in [Status::Joining, Status::WeaklyUp] {
            let others = [member(2, status, &[]), member(3, Status::Up, &["user"])];
            let expected = r#"{"cart"} ["/ip4/10.0.0.2/tcp/1"]"#;
            assert_eq!(awaited(&with_others(&others), Instant::now()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn member_is_new_for_a_bounded_time_after_it_is_up() {
        let up = Instant::now();
        let mut seen = with_others(&[member(2, Status::Up, &[])]);
        assert_eq!(awaited(&seen, up), None, "this node saw it as Up from the start");
        seen.up_since.insert(node(2).incarnation, up);
        let expected = r#"{"cart", "user"} ["/ip4/10.0.0.2/tcp/1"]"#;
        let last = up + WAIT_MAX - Duration::from_millis(1);
        assert_eq!(awaited(&seen, last).as_deref(), Some(expected));
        assert_eq!(awaited(&seen, up + WAIT_MAX), None);
    }

    #[test]
    fn members_that_will_not_host_are_not_awaited() {
        let now = Instant::now();
        let mut seen = with_others(&[member(2, Status::Joining, &[])]);
        Arc::make_mut(&mut seen.state).unreachable.insert(node(2).incarnation);
        assert_eq!(awaited(&seen, now), None, "it is unreachable");
        for status in [Status::Leaving, Status::Exiting, Status::Down] {
            assert_eq!(awaited(&with_others(&[member(2, status, &[])]), now), None, "{status}");
        }
        let mut drains = member(2, Status::Up, &[]);
        drains.hosting.draining = true;
        let mut seen = with_others(&[drains]);
        seen.up_since.insert(node(2).incarnation, now);
        assert_eq!(awaited(&seen, now), None, "it drains");
    }

    #[test]
    fn node_waits_only_for_types_without_another_host() {
        let now = Instant::now();
        let joining = member(2, Status::Joining, &[]);
        let hosts = member(3, Status::Up, &["cart", "user"]);
        assert_eq!(awaited(&with_others(&[joining.clone(), hosts.clone()]), now), None);
        let mut drains = hosts.clone();
        drains.hosting.draining = true;
        assert!(awaited(&with_others(&[joining.clone(), drains]), now).is_some(), "it drains, too");
        assert_eq!(awaited(&with_others(&[hosts]), now), None, "no member is new");
        let mut out = with_others(&[joining]);
        out.membership = MembershipState::Out(StopReason::Left);
        assert_eq!(awaited(&out, now), None, "this node is no member");
    }

    #[tokio::test]
    async fn wait_ends_once_a_new_member_hosts_the_types() {
        let (cluster, watchers) = cluster();
        let publish = |others: &[Member]| {
            watchers.publish(ClusterEvent::CurrentState(with_others(others).state));
        };
        publish(&[member(2, Status::Joining, &[])]);
        let mut waits = Box::pin(cluster.wait_for_newcomers());
        assert_eq!(waits.as_mut().now_or_never(), None);
        publish(&[member(2, Status::Up, &["cart", "user"])]);
        assert_eq!(waits.now_or_never(), Some(()));
    }

    #[tokio::test]
    async fn wait_for_a_member_that_never_hosts_is_bounded() {
        let (cluster, watchers) = cluster();
        let joining = with_others(&[member(2, Status::Joining, &[])]);
        watchers.publish(ClusterEvent::CurrentState(joining.state));
        let begun = Instant::now();
        let waits = tokio::time::timeout(WAIT_MAX * 20, cluster.wait_for_newcomers());
        waits.await.expect("it ends");
        assert!(begun.elapsed() >= WAIT_MAX, "it waits for as long as it may");
    }
}
