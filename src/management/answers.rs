//! Answers requests of tools with the node's public handles. `answer` bounds the time of each
//! request; `orders.rs` holds the requests that change members or shards or delete a key.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::data::Value;
use ostraca_ddata::encoded::Encoded;
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::key::{Key, KeyName};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::request::{ReadConsistency, WriteConsistency};
use ostraca_ddata::types::LWWRegister;
use tokio::time::{Instant, timeout_at};

use super::orders;
use super::server::too_long;
use super::verbatim::Verbatim;
use super::wire::{
    self, ANSWER_BYTES_MAX, AdminRequest, AdminResponse, Configuration, ConsistencyLevel, Data,
    ExplainAnswer, Health, KEYS_MAX, MemberInfo, Members, Packed, RecoveryReport, RefusalReason,
    RegionInfo, RequestRefusal, Shards, Survivor, ValueContent, WITHIN_MAX,
};
use crate::cluster::member;
use crate::net::address;
use crate::node::cluster::{Cluster, ClusterView, RecoverError};
use crate::node::replicator::{GetError, QueryError, Replicator, UpdateError};
use crate::node::routes;
use crate::node::sharding::{
    ClusterShardingStats, ExplanationSubject, Sharding, ShardingQueryError, ShardingUnavailable,
    TypeView,
};
use crate::sharding::ids::{RegionId, ShardId};

/// Time limit of a request that asks no other node. It expires only if the node is stopping or
/// stuck.
const SOON: Duration = Duration::from_secs(10);

/// Prefix of the keys that the cluster itself writes. Tools may read and list them.
const OWN: &str = "sharding/";

/// The handles of a node that requests are answered with.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Members of the cluster.
    pub cluster: Cluster,
    /// Reads and writes replicated data.
    pub replicator: Replicator,
    /// Entity types and the placement of shards.
    pub sharding: Sharding,
}

impl Handles {
    pub(crate) fn of(cluster: &Cluster, replicator: &Replicator, sharding: &Sharding) -> Self {
        let (cluster, replicator) = (cluster.clone(), replicator.clone());
        Self { cluster, replicator, sharding: sharding.clone() }
    }
}

/// Executes a request, which [`RequestOrigin::admit`](super::access::RequestOrigin::admit) must
/// have admitted, and returns its answer or its refusal. Must not be called with
/// [`AdminRequest::Watch`], which panics here.
///
/// The time limit is [`SOON`] plus the caller's own limit (at most [`WITHIN_MAX`], zero for
/// requests without one), twice that limit for reads and writes of data. At its end the request's
/// future is dropped, and the answer is a refusal as [`RefusalReason::Stopped`], although the node
/// may still execute the request.
pub(super) async fn answer(handles: &Handles, request: AdminRequest) -> AdminResponse {
    let patience = match &request {
        AdminRequest::Shards { within_ms, .. }
        | AdminRequest::Explain { within_ms, .. }
        | AdminRequest::Drain { within_ms, .. }
        | AdminRequest::StopShards { within_ms, .. }
        | AdminRequest::Health { within_ms } => SOON + within(*within_ms),
        AdminRequest::Get { level, .. }
        | AdminRequest::Set { level, .. }
        | AdminRequest::Delete { level, .. } => SOON + 2 * span(*level),
        AdminRequest::Members
        | AdminRequest::Leave { .. }
        | AdminRequest::Down { .. }
        | AdminRequest::PrepareForShutdown
        | AdminRequest::Rebalance { .. }
        | AdminRequest::Watch { .. }
        | AdminRequest::Recover { .. }
        | AdminRequest::Keys { .. } => SOON,
    };
    match tokio::time::timeout(patience, answer_in_time(handles, request)).await {
        Ok(answered) => answered.unwrap_or_else(AdminResponse::Refused),
        Err(_) => {
            let text = format!(
                "the node has not answered within {patience:?} (see its log); it may still \
                 execute the request"
            );
            AdminResponse::Refused(RequestRefusal { why: RefusalReason::Stopped, text })
        }
    }
}

/// Executes a request without the limit of [`answer`]. Checks neither the caller's right nor that
/// limit. Panics on [`AdminRequest::Watch`].
async fn answer_in_time(
    handles: &Handles,
    request: AdminRequest,
) -> Result<AdminResponse, RequestRefusal> {
    match request {
        AdminRequest::Members => members(handles).await,
        AdminRequest::Shards { entity_type, within_ms } => {
            shards(handles, &entity_type, within(within_ms)).await
        }
        AdminRequest::Explain { entity_type, about, within_ms } => {
            explain(handles, &entity_type, about, within(within_ms)).await
        }
        AdminRequest::Get { key, level } => get(handles, &key, level).await,
        AdminRequest::Set { key, value, level } => set(handles, &key, value, level).await,
        AdminRequest::Delete { key, level } => orders::delete(handles, &key, level).await,
        AdminRequest::Leave { node } => orders::leave(handles, node.as_deref()).await,
        AdminRequest::Down { node } => orders::down(handles, &node).await,
        AdminRequest::PrepareForShutdown => orders::prepare_for_shutdown(handles).await,
        AdminRequest::Drain { undo, within_ms } => {
            orders::drain(handles, undo, within(within_ms)).await
        }
        AdminRequest::StopShards { entity_type, shards, within_ms } => {
            orders::stop_shards(handles, &entity_type, shards, within(within_ms)).await
        }
        AdminRequest::Rebalance { entity_type } => orders::rebalance(handles, &entity_type).await,
        AdminRequest::Health { within_ms } => health(handles, within(within_ms)).await,
        AdminRequest::Recover { force } => recover(handles, force).await,
        AdminRequest::Keys { prefix, after, limit } => keys(handles, &prefix, after, limit).await,
        AdminRequest::Watch { .. } => unreachable!("a watch has more than one answer"),
    }
}

/// Converts a time limit of a caller; a longer one counts as [`WITHIN_MAX`], without an error.
fn within(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds).min(WITHIN_MAX)
}

/// Returns the time limit of a read or write, at most [`WITHIN_MAX`]; zero for
/// [`ConsistencyLevel::Local`], which waits for no other node.
pub(super) fn span(level: ConsistencyLevel) -> Duration {
    match level {
        ConsistencyLevel::Local => Duration::ZERO,
        ConsistencyLevel::Majority { within_ms } => within(within_ms),
    }
}

// ── Members ──

/// Lists the members of any status as this node sees them, ordered by address; empty before the
/// node has joined, with `waits_for` as the reason. `configuration` is `None` until the node has
/// installed one; it is read after the members, so it may be newer. Fails only if the node is
/// stopping.
async fn members(handles: &Handles) -> Result<AdminResponse, RequestRefusal> {
    let view = handles.cluster.state().await.map_err(stopped)?;
    let installed = handles.replicator.configuration().await.map_err(|why| unasked(&why))?;
    let configuration = installed.map(|epoch| Configuration {
        generation: epoch.id().generation,
        number: epoch.id().number,
        members: epoch.members().len() as u64,
        voters: epoch.voters().len() as u64,
    });
    Ok(AdminResponse::Members(Members {
        me: view.me.to_string(),
        cluster: view.id.map(|id| id.to_string()),
        leader: view.leader.map(|leader| leader.to_string()),
        converged: view.converged,
        preparing_for_shutdown: view.preparing_for_shutdown,
        configuration,
        members: view.members.iter().map(|member| shown(member, &view)).collect(),
        waits_for: view.waits_for,
    }))
}

/// Formats a member. `unreachable_by` lists the nodes that accuse it in `view`; empty if it counts
/// as reachable there.
fn shown(member: &member::Member, view: &ClusterView) -> MemberInfo {
    let accusers = view.unreachable.get(&member.node).into_iter().flatten();
    MemberInfo {
        node: member.node.to_string(),
        peer: routes::to_net(member.node).peer.to_string(),
        address: member.address.to_string(),
        status: member.status.to_string(),
        roles: member.roles.iter().map(str::to_owned).collect(),
        unreachable_by: accusers.map(NodeId::to_string).collect(),
        entity_types: member.hosting.entity_types.iter().map(str::to_owned).collect(),
        draining: member.hosting.draining,
        app_version: member.app_version.clone(),
        up_number: member.up_number,
    }
}

/// Reports that the node is alive and, unless `within` is zero, whether it becomes ready in that
/// time; `ready` and `reason` are `None` with zero. Id, cluster and status are read after that
/// wait; `status` is `None` if the node is no member. A node that is not ready is no refusal: the
/// answer holds the reason. Fails only if membership has stopped.
async fn health(handles: &Handles, within: Duration) -> Result<AdminResponse, RequestRefusal> {
    let checked = match within.is_zero() {
        true => None,
        false => Some(unready(handles, within).await),
    };
    let view = handles.cluster.state().await.map_err(stopped)?; // as it is after the wait
    let me = view.members.iter().find(|member| member.node == view.me);
    Ok(AdminResponse::Health(Health {
        node: view.me.to_string(),
        cluster: view.id.map(|id| id.to_string()),
        status: me.map(|member| member.status.to_string()),
        ready: checked.as_ref().map(Option::is_none),
        reason: checked.flatten(),
    }))
}

/// Waits until the node is Up, then, in the time that is left, until all types that it has started
/// are registered. Returns the reason if either does not happen within `within` or can no longer
/// happen; `None` if the node is ready. With no time left, the present registrations decide. The
/// reason itself is read after that time.
async fn unready(handles: &Handles, within: Duration) -> Option<String> {
    let until = Instant::now() + within;
    match timeout_at(until, handles.cluster.wait_until_up()).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => return Some(error_chain(&why)),
        Err(_) => return Some(not_up(handles).await),
    }
    let left = until.saturating_duration_since(Instant::now());
    handles.sharding.ready_within(left).await.err().map(|why| error_chain(&why))
}

/// Returns the reason why the node has not become Up in time: what it waits for if it is no member,
/// otherwise its status. The node may have become Up since then; the text then tells that, and the
/// node still counts as not ready. If membership has stopped, the reason is that error.
async fn not_up(handles: &Handles) -> String {
    let view = match handles.cluster.state().await {
        Ok(view) => view,
        Err(why) => return error_chain(&why),
    };
    let me = view.members.iter().find(|member| member.node == view.me);
    match me.map(|member| member.status) {
        None => view.waits_for.unwrap_or_else(|| "it has not joined a cluster".to_owned()),
        Some(member::Status::Up) => "it has only just become Up: ask again".to_owned(),
        Some(status) => format!("it is {status}, not Up"),
    }
}

// ── Recovery ──

/// Executes a forced recovery or, without `force`, only reports which members it would keep and
/// give up; `configuration` is then `None`. With `force` the answer follows once the forced
/// configuration is installed here. Members are named as they were known before the recovery;
/// unknown ones by their incarnation. Refuses with [`RefusalReason::NotRecovered`] if there is
/// nothing to recover or this node cannot do it, also without `force`; otherwise as
/// [`not_recovered`].
async fn recover(handles: &Handles, force: bool) -> Result<AdminResponse, RequestRefusal> {
    let cluster = &handles.cluster;
    let members = cluster.members().into_iter(); // before the recovery removes some
    let known: MembersByIncarnation =
        members.map(|member| (member.incarnation(), member)).collect();
    let (recovery, configuration) = if force {
        let done = cluster.recover_by_force().await.map_err(|why| not_recovered(&why))?;
        let (members, voters) = (done.recovery.kept.len() as u64, done.voters as u64);
        let EpochId { generation, number } = done.configuration;
        let configuration = Configuration { generation, number, members, voters };
        (done.recovery, Some(configuration))
    } else {
        (cluster.recovery().await.map_err(|why| not_recovered(&why))?, None)
    };
    let survivor = |id: ReplicaId| {
        let RegionInfo { node, address, .. } = named(RegionId::new(id), &known);
        Survivor { node, address }
    };
    Ok(AdminResponse::Recovery(RecoveryReport {
        forced: force,
        me: cluster.me().to_string(),
        configuration,
        kept: recovery.kept.into_iter().map(survivor).collect(),
        given_up: recovery.given_up.into_iter().map(survivor).collect(),
    }))
}

/// Makes the refusal for a failed recovery: `NotRecovered` if membership refused it, `Stopped` if
/// the node has stopped, `Other` if the recovery was late and may still complete.
fn not_recovered(why: &RecoverError) -> RequestRefusal {
    let kind = match why {
        RecoverError::Refused(_) => RefusalReason::NotRecovered,
        RecoverError::Stopped(_) => RefusalReason::Stopped,
        _ => RefusalReason::Other,
    };
    refusal(kind, why)
}

// ── Shards ──

/// Members of the cluster by incarnation.
type MembersByIncarnation = BTreeMap<ReplicaId, Arc<member::Member>>;

/// Asks all regions of a type for their shards. Regions that have not answered in time are listed
/// in `unanswered`; that is no refusal. `coordinator` is `None` if this node knows none. Refuses as
/// [`query_refusal`] does.
async fn shards(
    handles: &Handles,
    entity_type: &str,
    within: Duration,
) -> Result<AdminResponse, RequestRefusal> {
    let sharding = &handles.sharding;
    let stats = match sharding.cluster_sharding_stats(entity_type, within).await {
        Ok(stats) => stats,
        Err(why) => return Err(query_refusal(handles, entity_type, &why).await),
    };
    let types = sharding.types().await.map_err(stopped)?;
    let of_type = types.iter().find(|of_type| of_type.entity_type.as_str() == entity_type);
    let members = handles.cluster.members().into_iter();
    let known: MembersByIncarnation =
        members.map(|member| (member.incarnation(), member)).collect();
    let coordinator = of_type.and_then(|of_type| of_type.coordinator);
    let ClusterShardingStats { regions, unanswered } = stats;
    let answered = regions.into_iter().map(|(region, shards)| {
        let shards = shards.into_iter().map(|(shard, entities)| (shard.get(), entities)).collect();
        RegionInfo { shards, ..named(region, &known) }
    });
    Ok(AdminResponse::Shards(Shards {
        entity_type: entity_type.to_owned(),
        coordinator: coordinator.map(|at| named(RegionId::new(at), &known).node),
        regions: answered.collect(),
        unanswered: unanswered.into_iter().map(|region| named(region, &known)).collect(),
    }))
}

/// Explains the place of a shard or an entity, or the moves of a node, as text and in encoded form.
/// Nodes that are no longer members are named by their incarnation.
///
/// Refuses an invalid entity id ([`RefusalReason::NotUnderstood`]) and a name that can be no node
/// ([`RefusalReason::UnknownMember`]), otherwise as [`query_refusal`] does.
async fn explain(
    handles: &Handles,
    entity_type: &str,
    about: wire::ExplainSubject,
    within: Duration,
) -> Result<AdminResponse, RequestRefusal> {
    let senseless = |why: &dyn Error| refusal(RefusalReason::NotUnderstood, why);
    let about = match about {
        wire::ExplainSubject::Shard(number) => ExplanationSubject::Shard(ShardId::new(number)),
        wire::ExplainSubject::Entity(id) => {
            ExplanationSubject::entity(&id).map_err(|why| senseless(&why))?
        }
        wire::ExplainSubject::Node(name) => ExplanationSubject::Node(node_called(handles, &name)?),
    };
    let why = match handles.sharding.explain(entity_type, about, within).await {
        Ok(why) => why,
        Err(why) => return Err(query_refusal(handles, entity_type, &why).await),
    };
    let detail = Encoded::new(&why).map_err(|why| refusal(RefusalReason::Other, &why))?;
    let members = handles.cluster.members().into_iter();
    let known: MembersByIncarnation =
        members.map(|member| (member.incarnation(), member)).collect();
    let text = why.text(|node| named(RegionId::new(node), &known).node);
    Ok(AdminResponse::Explained(ExplainAnswer { text, detail: Packed::from(&detail) }))
}

/// Strips the peer id and everything behind it from an address, and turns `dns4` and `dns6` into
/// `dns`, for comparison. Upper and lower case remain. Resolves no name.
fn plain(address: &str) -> String {
    let address = address.split("/p2p/").next().unwrap_or(address);
    address.replace("/dns4/", "/dns/").replace("/dns6/", "/dns/")
}

/// Finds a member by its name in logs, its address or its incarnation. Addresses are compared
/// without peer id and DNS version, and may have the form `HOST:PORT`. A member of any status
/// counts; of several with one address, the first in the order of [`Cluster::members`].
///
/// An incarnation of 16 hexadecimal digits, alone or behind the 8 digits of a peer, is accepted
/// although no member may have it, because a removed member has no other name: the result need not
/// be a member. It is refused with [`RefusalReason::UnknownMember`] if it is that of a member with
/// another peer, and so is any other name that no member has.
pub(super) fn node_called(handles: &Handles, name: &str) -> Result<ReplicaId, RequestRefusal> {
    let members = handles.cluster.members();
    let dialled = address::parse(name).ok().map(|address| plain(&address.to_string()));
    let called = |member: &&Arc<member::Member>| {
        member.node.to_string() == name || Some(plain(member.address.as_str())) == dialled
    };
    let known = members.iter().find(called).map(|member| member.incarnation());
    let nodes = members.iter().map(|member| member.node);
    known.or_else(|| incarnation_of(name, nodes)).ok_or_else(|| {
        let text = format!(
            "{name} is neither a member's name or address nor an incarnation: `ostraca members` \
             lists them"
        );
        RequestRefusal { why: RefusalReason::UnknownMember, text }
    })
}

/// Parses `PEER/INCARNATION` (8 and 16 hexadecimal digits, in either case) or an incarnation alone.
/// `None` for other texts, and if the incarnation is that of a member with another peer. An
/// incarnation of no member is accepted with any peer.
fn incarnation_of(name: &str, mut members: impl Iterator<Item = NodeId>) -> Option<ReplicaId> {
    let (peer, incarnation) = match name.split_once('/') {
        Some((peer, incarnation)) => (Some(peer), incarnation),
        None => (None, name),
    };
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|it| it.is_ascii_hexdigit())
    };
    if !is_hex(incarnation, 16) || peer.is_some_and(|peer| !is_hex(peer, 8)) {
        return None;
    }
    let id = ReplicaId::new(u64::from_str_radix(incarnation, 16).ok()?);
    let differs =
        |node: NodeId| peer.is_some_and(|peer| !node.peer.to_string().eq_ignore_ascii_case(peer));
    let is_other = |node: NodeId| node.incarnation == id && differs(node);
    (!members.any(is_other)).then_some(id)
}

/// Name and address of a region's node, without shards. A node that is not in `known` is named by
/// its incarnation, and its address is empty.
fn named(region: RegionId, known: &MembersByIncarnation) -> RegionInfo {
    let replica = region.replica();
    let (node, address) = match known.get(&replica) {
        Some(member) => (member.node.to_string(), member.address.to_string()),
        None => (replica.to_string(), String::new()),
    };
    RegionInfo { node, address, shards: Vec::new() }
}

/// Makes the refusal for a failed query about an entity type. For a type that was not started on
/// this node, the text also names the types that were, and the members that host this one, if any.
pub(super) async fn query_refusal(
    handles: &Handles,
    entity_type: &str,
    why: &ShardingQueryError,
) -> RequestRefusal {
    let reason = reason_of(why);
    if reason != RefusalReason::UnknownType {
        return refusal(reason, why);
    }
    // The error's own text tells a programmer how to start it; an operator can't.
    let mut text = format!("{entity_type} was not started on this node");
    text.push_str(&started_here(handles.sharding.types().await));
    let hosts = |member: &Arc<member::Member>| member.hosting.entity_types.contains(entity_type);
    let members = handles.cluster.members();
    let hosts: Vec<&str> =
        members.iter().filter(|member| hosts(member)).map(|it| it.address.as_str()).collect();
    if !hosts.is_empty() {
        text.push_str(&format!(
            "; hosted by the nodes at {}: ask one of them (--node {})",
            hosts.join(", "),
            hosts[0]
        ));
    }
    RequestRefusal { why: reason, text }
}

const fn reason_of(why: &ShardingQueryError) -> RefusalReason {
    match why {
        ShardingQueryError::Name(_) => RefusalReason::NotUnderstood,
        ShardingQueryError::NotStarted { .. } => RefusalReason::UnknownType,
        ShardingQueryError::NotStopped { .. } => RefusalReason::NotStopped,
        ShardingQueryError::Unanswered(_) => RefusalReason::Stopped,
        ShardingQueryError::NoAnswer { .. } | ShardingQueryError::NoShard { .. } => {
            RefusalReason::Other
        }
    }
}

/// The types that this node has started, as a part of a refusal that begins with `; `; empty if
/// they are unknown, and a text of its own if there are none.
fn started_here(types: Result<Vec<TypeView>, ShardingUnavailable>) -> String {
    let Ok(types) = types else { return String::new() };
    let types: Vec<&str> = types.iter().map(|view| view.entity_type.as_str()).collect();
    match types.is_empty() {
        true => "; nothing was started here".to_owned(),
        false => format!("; started here: {}", types.join(", ")),
    }
}

// ── Replicated data ──

/// Reads the value of a key of any type, also one of the cluster, from this node or from a
/// majority. The answer is [`AdminResponse::Value`]; `None` in it if the key was never written, was
/// deleted or has expired. Too large a value is an answer with a refusal ([`value`]); a failed read
/// is refused as in [`unread`].
async fn get(
    handles: &Handles,
    key: &str,
    level: ConsistencyLevel,
) -> Result<AdminResponse, RequestRefusal> {
    let consistency = match level {
        ConsistencyLevel::Local => ReadConsistency::Local,
        ConsistencyLevel::Majority { .. } => ReadConsistency::majority(span(level)),
    };
    let read = handles.replicator.get_value(&KeyName::new(key), consistency).await;
    Ok(value(read.map_err(|why| unread(&why))?).await)
}

/// Makes the answer for the value of a key; `value` is `None` if the key holds nothing or was
/// deleted. A value whose estimated size exceeds [`ANSWER_BYTES_MAX`] is refused as
/// [`RefusalReason::TooLong`] without being encoded; the size of the encoded answer is checked when
/// it is sent. The encoding runs on a thread for blocking work, because it may take long; if it
/// panics, the answer is a refusal as [`RefusalReason::Other`].
pub(super) async fn value(value: Option<Value>) -> AdminResponse {
    let Some(value) = value else { return AdminResponse::Value(None) };
    let bytes = value.size();
    if bytes > ANSWER_BYTES_MAX {
        return too_long(bytes);
    }
    // Encoding a large value takes long and would delay other tasks of this worker.
    let packed = tokio::task::spawn_blocking(move || Data {
        shape: value.shape().to_string(),
        content: Verbatim::of(&ValueContent::from(value.content())),
    });
    match packed.await {
        Ok(data) => AdminResponse::Value(Some(data)),
        Err(error) => AdminResponse::Refused(RequestRefusal {
            why: RefusalReason::Other,
            text: error.to_string(),
        }),
    }
}

/// Returns the first answer to a watch if the key holds nothing on this node or can't be read;
/// `None` if it holds a value, which the subscription delivers itself. After a refusal the watch
/// goes on, too. Must be called after the subscription was opened, so that no change is missed.
pub(super) async fn nothing_yet(handles: &Handles, key: &KeyName) -> Option<AdminResponse> {
    match handles.replicator.get_value(key, ReadConsistency::Local).await {
        Ok(Some(_)) => None,
        Ok(None) => Some(AdminResponse::Value(None)),
        Err(why) => Some(AdminResponse::Refused(unread(&why))),
    }
}

/// Sets the last-writer-wins register at a key, which need not exist before. Refuses, in this
/// order, keys of the cluster ([`refuse_cluster_key`]), a `value` that is not one MessagePack value
/// ([`RefusalReason::NotUnderstood`]), and failed updates as in [`unwritten`], such as that of a
/// key that holds another type ([`RefusalReason::WrongType`]). After [`RefusalReason::TooFew`] the
/// write is made on this node and will spread.
async fn set(
    handles: &Handles,
    key: &str,
    value: Packed,
    level: ConsistencyLevel,
) -> Result<AdminResponse, RequestRefusal> {
    refuse_cluster_key(key)?;
    let value = value.verbatim().map_err(|why| refusal(RefusalReason::NotUnderstood, &why))?;
    let consistency = match level {
        ConsistencyLevel::Local => WriteConsistency::Local,
        ConsistencyLevel::Majority { .. } => WriteConsistency::majority(span(level)),
    };
    let key = Key::<LWWRegister<Verbatim>>::new(key);
    let update = handles.replicator.update(&key, consistency, move |it| it.set(&value));
    update.await.map(|()| AdminResponse::Done).map_err(|why| unwritten(&why))
}

/// Refuses a key with the prefix [`OWN`], which only the cluster itself writes, as
/// [`RefusalReason::Guarded`]. Reads need no such check.
pub(super) fn refuse_cluster_key(key: &str) -> Result<(), RequestRefusal> {
    if !key.starts_with(OWN) {
        return Ok(());
    }
    let text = format!(
        "keys that begin with {OWN} are the cluster's own, guarded by the coordinators: nothing \
         was changed; choose another key"
    );
    Err(RequestRefusal { why: RefusalReason::Guarded, text })
}

/// Lists the keys with this prefix that hold a value on this node, in ascending order and only
/// those after `after`, which need not exist. Returns at most [`KEYS_MAX`] keys, even if `limit` is
/// higher; none with a `limit` of 0. Nothing in the answer tells that there are more. An empty
/// prefix lists all keys, also those of the cluster.
async fn keys(
    handles: &Handles,
    prefix: &str,
    after: Option<String>,
    limit: u32,
) -> Result<AdminResponse, RequestRefusal> {
    let after = after.as_deref().map(KeyName::new);
    let limit = limit.min(KEYS_MAX) as usize;
    let page = handles
        .replicator
        .keys(prefix, after.as_ref(), limit)
        .await
        .map_err(|why| unasked(&why))?;
    Ok(AdminResponse::Keys(page.iter().map(|key| key.as_str().to_owned()).collect()))
}

// ── Why not ──

/// Makes the refusal for a failed read: `TooFew` for a timeout, `NotJoined`, `Busy` for an
/// overload, `Stopped`, and [`RefusalReason::Other`] for errors without a reason of their own, such
/// as a read that was not answered in time.
fn unread(why: &GetError) -> RequestRefusal {
    let kind = match why {
        GetError::Timeout(_) => RefusalReason::TooFew,
        GetError::NotJoined => RefusalReason::NotJoined,
        GetError::Overloaded { .. } => RefusalReason::Busy,
        GetError::Stopped => RefusalReason::Stopped,
        _ => RefusalReason::Other,
    };
    refusal(kind, why)
}

/// Makes the refusal for a failed update. A key that another owner guards or has fenced
/// is refused as [`RefusalReason::Guarded`], an update that the node's stop interrupted as
/// [`RefusalReason::Stopped`], although it may have been made. Further ones: `TooFew` for a
/// timeout, `WrongType`, `NotJoined`, `Busy` for an overload, `TooLong` for too large a value;
/// otherwise [`RefusalReason::Other`].
fn unwritten(why: &UpdateError) -> RequestRefusal {
    let kind = match why {
        UpdateError::Timeout(_) => RefusalReason::TooFew,
        UpdateError::Guarded { .. }
        | UpdateError::GuardedMeanwhile { .. }
        | UpdateError::Fenced { .. } => RefusalReason::Guarded,
        UpdateError::WrongType { .. } => RefusalReason::WrongType,
        UpdateError::NotJoined => RefusalReason::NotJoined,
        UpdateError::Overloaded { .. } => RefusalReason::Busy,
        UpdateError::TooLarge { .. } => RefusalReason::TooLong,
        UpdateError::Stopped | UpdateError::Interrupted => RefusalReason::Stopped,
        _ => RefusalReason::Other,
    };
    refusal(kind, why)
}

/// Makes the refusal for a failed query of the Replicator: `Busy`, `Stopped`, otherwise `Other`.
fn unasked(why: &QueryError) -> RequestRefusal {
    let kind = match why {
        QueryError::Overloaded { .. } => RefusalReason::Busy,
        QueryError::Stopped => RefusalReason::Stopped,
        _ => RefusalReason::Other,
    };
    refusal(kind, why)
}

/// Makes a refusal with the reason [`RefusalReason::Stopped`], for every error.
pub(super) fn stopped(why: impl Error) -> RequestRefusal {
    refusal(RefusalReason::Stopped, &why)
}

/// Makes a refusal with this reason. Its text is the error with its causes ([`error_chain`]).
pub(super) fn refusal(why: RefusalReason, error: &dyn Error) -> RequestRefusal {
    RequestRefusal { why, text: error_chain(error) }
}

/// Formats an error with its chain of sources, separated by `: `. A source that the error's own
/// text contains already is repeated.
pub(super) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(behind) = cause {
        text.push_str(&format!(": {behind}"));
        cause = behind.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::PeerKey;

    use super::*;
    use crate::sharding::ids::EntityType;

    /// Regression: if the types were unknown, the refusal claimed that nothing was started.
    #[test]
    fn unknown_types_are_not_reported_as_none() {
        assert_eq!(started_here(Err(ShardingUnavailable)), "");
        assert_eq!(started_here(Ok(Vec::new())), "; nothing was started here");
    }

    /// Regression: an invalid name was reported as a type that was not started.
    #[test]
    fn only_types_not_started_are_unknown() {
        let entity_type = EntityType::new("bell").expect("a valid name");
        let invalid = EntityType::new("a/b").expect_err("a name with a slash");
        let (shard, shards) = (ShardId::new(7), 7);
        for (why, reason) in [
            (ShardingQueryError::Name(invalid), RefusalReason::NotUnderstood),
            (
                ShardingQueryError::NotStarted { entity_type: entity_type.clone(), host: None },
                RefusalReason::UnknownType,
            ),
            (ShardingQueryError::NoShard { entity_type, shard, shards }, RefusalReason::Other),
            (ShardingQueryError::NotStopped { left: 1, waited: SOON }, RefusalReason::NotStopped),
            (ShardingQueryError::Unanswered(ShardingUnavailable), RefusalReason::Stopped),
        ] {
            assert_eq!(reason_of(&why), reason, "{why}");
        }
    }

    #[test]
    fn peer_of_a_name_must_be_that_of_the_member() {
        let incarnation = ReplicaId::new(0xc0ff_ee01);
        let member = NodeId { peer: PeerKey::new([0xab; 32]), incarnation };
        let found = |name: &str| incarnation_of(name, [member].into_iter());
        assert_eq!(found(&member.to_string()), Some(incarnation));
        for name in ["00000000c0ffee01", "ABABABAB/00000000C0FFEE01"] {
            assert_eq!(found(name), Some(incarnation), "{name}");
        }
        let former = ReplicaId::new(0xc0ff_ee02);
        assert_eq!(found("abababac/00000000c0ffee02"), Some(former), "it may have been removed");
        for name in [
            "abababac/00000000c0ffee01",
            "x/00000000c0ffee01",
            "/00000000c0ffee01",
            "abababab/abababab/00000000c0ffee01",
            "c0ffee01",
            "abababab/",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
