//! A node that leaves as the last host of an entity type waits for hosts that are just joining.
//!
//! Without another host its entities are stopped and what they hold is lost, although the nodes that
//! replace it may have been started a moment ago. So it waits for members that are joining, or that
//! became Up a moment ago and have not said yet what they host; [`WAIT_MAX`] at most.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::Cluster;
use super::watching::{Seen, Standing};
use crate::cluster::member::{Member, Status};

/// How long it waits at most, and how long a member counts as one that has just joined.
const WAIT_MAX: Duration = Duration::from_secs(3);

impl Cluster {
    /// Ends when each entity type that this node hosts has another host, nobody is joining who could
    /// become one, or [`WAIT_MAX`] is over.
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
            // A newcomer stops being one as time passes.
            let look_again = until.min(Instant::now() + WAIT_MAX / 10);
            let changed = tokio::time::timeout_at(look_again, watch.changed()).await;
            if Instant::now() >= until || matches!(changed, Ok(Err(_))) {
                return;
            }
        }
    }

    /// The types that only this node hosts, and the nodes that may host them soon; `None`: there is
    /// nothing to wait for.
    fn awaited(&self, seen: &Seen, now: Instant) -> Option<(BTreeSet<String>, Vec<String>)> {
        if seen.standing != Standing::Runs {
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
