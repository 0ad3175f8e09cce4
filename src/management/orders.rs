//! Requests that delete a key or change members or shards, executed with the node's public handles.
//!
//! The requests about members and the rebalance are answered when the order is queued on this node,
//! not when it is done; membership may still ignore an order that does not fit its state. The limit
//! of the time of all requests is in [`answer`](super::answers::answer). Every request fails with
//! [`RefusalReason::Stopped`] if the part of the node that it needs has stopped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::key::Key;
use ostraca_ddata::replicator::request::WriteConsistency;
use ostraca_ddata::types::LWWRegister;

use super::answers::{
    Handles, node_called, query_refusal, refusal, refuse_cluster_key, span, stopped,
};
use super::verbatim::Verbatim;
use super::wire::{
    AdminResponse, ConsistencyLevel, DrainReport, MemberName, RefusalReason, RequestRefusal,
};
use crate::cluster::member::Member;
use crate::node::cluster::{DownError, LeaveError};
use crate::node::replicator::DeleteError;
use crate::node::sharding::{DrainProgress, RebalanceError};
use crate::sharding::ids::ShardId;

/// The answer, or the refusal of a request that was not executed.
type OrderResult = Result<AdminResponse, RequestRefusal>;

// ── Data ──

/// Deletes a key of any type; also succeeds if the key holds nothing. Refuses first the keys of the
/// cluster ([`refuse_cluster_key`]), then as [`not_deleted`]. After [`RefusalReason::TooFew`] the
/// deletion stays applied on this node and may still spread.
pub(super) async fn delete(handles: &Handles, key: &str, level: ConsistencyLevel) -> OrderResult {
    refuse_cluster_key(key)?;
    let consistency = match level {
        ConsistencyLevel::Local => WriteConsistency::Local,
        ConsistencyLevel::Majority { .. } => WriteConsistency::majority(span(level)),
    };
    // A deletion ignores the type of the key.
    let key = Key::<LWWRegister<Verbatim>>::new(key);
    let deleted = handles.replicator.delete(&key, consistency).await;
    deleted.map(|()| AdminResponse::Done).map_err(|why| not_deleted(&why))
}

/// Makes the refusal for a failed deletion: `TooFew` for a timeout, `Guarded` for a key that an
/// owner guards, `NotJoined`, `Busy` for an overload, `Stopped` also for a deletion that the node's
/// stop interrupted, although it may have been made; otherwise [`RefusalReason::Other`].
fn not_deleted(why: &DeleteError) -> RequestRefusal {
    let kind = match why {
        DeleteError::Timeout(_) => RefusalReason::TooFew,
        DeleteError::Guarded { .. } | DeleteError::GuardedMeanwhile { .. } => {
            RefusalReason::Guarded
        }
        DeleteError::NotJoined => RefusalReason::NotJoined,
        DeleteError::Overloaded { .. } => RefusalReason::Busy,
        DeleteError::Stopped | DeleteError::Interrupted => RefusalReason::Stopped,
        _ => RefusalReason::Other,
    };
    refusal(kind, why)
}

// ── Members ──

/// Asks a member to leave; without a name, this node. The answer names the member and comes before
/// it leaves. A member that is already leaving or `Down` stays so; that is no refusal. Refuses as
/// [`member_called`] does, also for this node, and as [`RefusalReason::UnknownMember`] if the
/// member was removed meanwhile.
pub(super) async fn leave(handles: &Handles, node: Option<&str>) -> OrderResult {
    let me = handles.cluster.me().to_string();
    let member = member_called(handles, node.unwrap_or(&me))?;
    match handles.cluster.leave(member.node).await {
        Ok(()) => Ok(AdminResponse::Ordered(named(&member))),
        Err(why @ LeaveError::Unknown { .. }) => Err(refusal(RefusalReason::UnknownMember, &why)),
        Err(why) => Err(stopped(why)),
    }
}

/// Declares a member `Down`, also this node itself. The answer names the member and comes before
/// the removal is agreed; a member that is `Down` already is no refusal. Refuses as [`leave`] does.
pub(super) async fn down(handles: &Handles, node: &str) -> OrderResult {
    let member = member_called(handles, node)?;
    match handles.cluster.down(member.node).await {
        Ok(()) => Ok(AdminResponse::Ordered(named(&member))),
        Err(why @ DownError::Unknown { .. }) => Err(refusal(RefusalReason::UnknownMember, &why)),
        Err(why) => Err(stopped(why)),
    }
}

/// Freezes members and shards of the whole cluster before all nodes stop. Can't be undone. The
/// answer is `Done` when the order is queued, also on a node that has joined no cluster, where it
/// has no effect. The only refusal is [`RefusalReason::Stopped`].
pub(super) async fn prepare_for_shutdown(handles: &Handles) -> OrderResult {
    let prepared = handles.cluster.prepare_for_full_shutdown().await;
    prepared.map(|()| AdminResponse::Done).map_err(stopped)
}

/// Finds a current member, of any status, by its name, address or incarnation ([`node_called`]).
/// Refuses, in this order, with [`RefusalReason::NotJoined`] if this node knows no members at all,
/// and with [`RefusalReason::UnknownMember`] if none of them is meant, also for a removed
/// incarnation.
fn member_called(handles: &Handles, name: &str) -> Result<Arc<Member>, RequestRefusal> {
    let members = handles.cluster.members();
    if members.is_empty() {
        let text = "this node belongs to no cluster: nothing was done".to_owned();
        return Err(RequestRefusal { why: RefusalReason::NotJoined, text });
    }
    let incarnation = node_called(handles, name)?;
    members.into_iter().find(|member| member.incarnation() == incarnation).ok_or_else(|| {
        let text = format!(
            "{name} is not a member now: nothing was done; `ostraca members` lists the members"
        );
        RequestRefusal { why: RefusalReason::UnknownMember, text }
    })
}

fn named(member: &Member) -> MemberName {
    MemberName { node: member.node.to_string(), address: member.address.to_string() }
}

// ── Shards ──

/// Drains this node or, with `undo`, lets it host shards again. Draining is answered when no shard
/// is left or after `within`, with the shards left by type; it goes on after that. `undo` is
/// answered at once, with the shards that live here; a leaving node refuses it with
/// [`RefusalReason::Stopped`].
pub(super) async fn drain(handles: &Handles, undo: bool, within: Duration) -> OrderResult {
    let sharding = &handles.sharding;
    let left = match undo {
        false => sharding.drain(within).await.map_err(stopped)?,
        true => sharding.stop_draining().await.map_err(stopped)?,
    };
    drained(handles.cluster.me().to_string(), undo, left)
}

/// Makes the answer of [`drain`] with the shards that are left and whether the node drains now.
/// Refuses with [`RefusalReason::Stopped`] if it drains after `undo`, as a leaving node does.
fn drained(node: String, undo: bool, progress: DrainProgress) -> OrderResult {
    let DrainProgress { left, draining } = progress;
    if undo && draining {
        let text = "this node is leaving its cluster, so it gets no shards again: nothing was done";
        return Err(RequestRefusal { why: RefusalReason::Stopped, text: text.to_owned() });
    }
    let shards = left.into_iter().map(|(name, count)| (name.to_string(), count as u64)).collect();
    Ok(AdminResponse::Drained(DrainReport { node, draining, shards }))
}

/// Stops shards of a type on any node; without numbers, all of them. The answer is the number of
/// shards meant: one that is named twice counts once, and those that did not run count.
///
/// Refuses with [`RefusalReason::NotStopped`] after `within`, although some may still stop; with
/// [`RefusalReason::Other`] if a number does not exist, then without stopping the others; otherwise
/// as [`query_refusal`] does.
pub(super) async fn stop_shards(
    handles: &Handles,
    entity_type: &str,
    shards: Vec<u32>,
    within: Duration,
) -> OrderResult {
    let sharding = &handles.sharding;
    let of_type = sharding.types().await.map_err(stopped)?.into_iter();
    let mut of_type = of_type.filter(|of_type| of_type.entity_type.as_str() == entity_type);
    let shards: BTreeSet<u32> = match (shards.is_empty(), of_type.next()) {
        (true, Some(of_type)) => (0..of_type.number_of_shards).collect(),
        _ => shards.into_iter().collect(), // a number may be named twice
    };
    let count = shards.len() as u64;
    let stopping = sharding.stop_shards(entity_type, shards.into_iter().map(ShardId::new), within);
    match stopping.await {
        Ok(()) => Ok(AdminResponse::ShardsStopped(count)),
        Err(why) => Err(query_refusal(handles, entity_type, &why).await),
    }
}

/// Makes the coordinator check the balance now; the answer comes before any shard moves, and none
/// may move. Refuses first as [`query_refusal`] does: with [`RefusalReason::NotUnderstood`] for an
/// invalid name, and with [`RefusalReason::UnknownType`] for a type that was not started on this
/// node, even if other nodes host it. On a node without the active coordinator nothing is done: the
/// refusal ([`RefusalReason::NotCoordinator`]) names the node to ask if this node knows it as a
/// member, and otherwise advises to try again.
pub(super) async fn rebalance(handles: &Handles, entity_type: &str) -> OrderResult {
    match handles.sharding.rebalance(entity_type).await {
        Ok(()) => Ok(AdminResponse::Done),
        Err(RebalanceError::NotCoordinator { at, .. }) => {
            let members = handles.cluster.members();
            let at = at.and_then(|at| members.iter().find(|member| member.incarnation() == at));
            let text = at.map_or_else(
                || {
                    format!(
                        "no known member coordinates {entity_type}: nothing was done; try again"
                    )
                },
                |at| {
                    let (node, address) = (at.node, &at.address);
                    format!(
                        "{entity_type} is coordinated by {node} at {address}, and only that node \
                         can be asked: nothing was done (--node {address})"
                    )
                },
            );
            Err(RequestRefusal { why: RefusalReason::NotCoordinator, text })
        }
        Err(RebalanceError::Query(why)) => Err(query_refusal(handles, entity_type, &why).await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_of_a_leaving_node_is_not_undone() {
        for (undo, draining, is_refused) in
            [(false, true, false), (true, false, false), (true, true, true)]
        {
            let progress = DrainProgress { draining, ..DrainProgress::default() };
            match drained("n".to_owned(), undo, progress) {
                Ok(AdminResponse::Drained(report)) => {
                    assert_eq!((report.draining, is_refused), (draining, false));
                }
                Err(refusal) => {
                    assert_eq!((refusal.why, is_refused), (RefusalReason::Stopped, true));
                }
                Ok(other) => panic!("{other:?}"),
            }
        }
    }
}
