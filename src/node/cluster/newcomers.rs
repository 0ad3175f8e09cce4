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
use super::watching::{ClusterSnapshot, MembershipState};
use crate::cluster::member::{Member, Status};

/// Maximum wait, and the time for which a member counts as new after it became Up.
const WAIT_MAX: Duration = Duration::from_secs(3);

impl Cluster {
    /// Waits until each entity type that this node hosts has another host, no new member could
    /// become one, or [`WAIT_MAX`] has passed.
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

    /// The types that only this node hosts and the new members that may host them; `None` if there
    /// is no such type or no such member.
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
        let hosted: BTreeSet<&String> = others()
            .filter(|member| may_host(member))
            .flat_map(|member| &member.hosting.entity_types)
            .collect();
        let is_only_here = |of_type: &&String| !hosted.contains(of_type);
        let types: BTreeSet<String> =
            own.hosting.entity_types.iter().filter(is_only_here).cloned().collect();
        let is_new = |member: &Member| match member.status {
            Status::Joining | Status::WeaklyUp => {
                !seen.state.unreachable.contains(&member.incarnation())
            }
            Status::Up => {
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
