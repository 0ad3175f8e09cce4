//! Routing around the sharding machines: pure functions that the driver and the simulator share.
//!
//! Messages between nodes travel on the control lane with a header of two names: the kind of
//! message (between coordinator and regions, about the location of the coordinator, or of a cluster
//! query), and the entity type.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use ostraca_ddata::encoded::from_foreign;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::port as data;
use ostraca_ddata::replicator::request::{RequestId, SubscriptionId};
use serde::de::DeserializeOwned;

use crate::cluster::lease::Departure;
use crate::cluster::lease::guard::{GuardInput, GuardOutput};
use crate::cluster::member::Address;
use crate::cluster::membership::Membership;
use crate::cluster::membership::port::{
    MembershipCommand, MembershipInput, MembershipOutput as Told,
};
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::allocation::StrategyRequest;
use crate::sharding::allocation::pins::PinsKey;
use crate::sharding::decision_history::{DecisionStep, SlowDecisions};
use crate::sharding::ids::{EntityId, EntityType, InvalidName, RegionId, ShardId};
use crate::sharding::machines::{
    ClusterQueryMessage, ClusterQueryResult, Counting, MachineMessage, ShardingInput,
    ShardingOutput,
};
use crate::sharding::region::{RegionOutput, Unregistered};
use crate::sharding::store::HomesKey;

/// First name in the header of messages between coordinators and regions.
pub const SHARDING: &str = "s";

/// First name in the header of messages about the location of a coordinator ("o" for the oldest
/// member).
pub const SINGLETON: &str = "o";

/// First name in the header of cluster queries and their answers.
pub const CLUSTER_QUERY: &str = "q";

/// Bit that distinguishes ids of requests and subscriptions of the sharding machines from those of
/// programs, which count from 1.
const OF_COORDINATORS: u64 = 1 << 63;

/// Maximum nesting of a received message, as MessagePack.
const NESTING_MAX: usize = 24;

/// Destination of an output of the sharding machines.
#[derive(Debug)]
pub enum ShardingDestination {
    /// The sharding machines of a peer, on the control lane.
    Peer {
        /// Incarnation of the receiving node.
        to: ReplicaId,
        /// Name of the entity type.
        entity_type: EntityType,
        /// The message to send.
        word: MachineMessage,
    },
    /// The guarded Replicator of this node.
    Guard(GuardInput),
    /// The membership machine of this node.
    Membership(MembershipInput),
    /// The code that runs the entities of a type.
    Entities {
        /// Name of the entity type.
        entity_type: EntityType,
        /// The order to perform.
        order: RegionOutput,
    },
    /// The code that runs the entities of a type, to report to `to` the number of entities in these
    /// shards.
    Count {
        /// The asking node, which may be this one.
        to: ReplicaId,
        /// Name of the entity type.
        entity_type: EntityType,
        /// Number of the query.
        number: u64,
        /// The shards, one entry for each message of the answer. All are counted at the same time.
        messages: Vec<Counting>,
    },
    /// The code that runs the entities of a type, to report to `to` whether this entity is live.
    Exists {
        /// The asking node, which may be this one.
        to: ReplicaId,
        /// Name of the entity type.
        entity_type: EntityType,
        /// Number of the query.
        number: u64,
        /// Id of the entity.
        entity: EntityId,
    },
    /// The program's allocation strategy, which answers with [`ShardingInput::Advised`].
    Strategy {
        /// Name of the entity type.
        entity_type: EntityType,
        /// Number of the request.
        number: u64,
        /// The request of the coordinator.
        asked: StrategyRequest,
    },
    /// All hosted types: the nodes of these regions have been removed from the configuration.
    Removed(Vec<(RegionId, Departure)>),
    /// The node: callers that wait, and its log.
    Node(ShardingEvent),
}

/// Events that the sharding machines report to their node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardingEvent {
    /// A coordinator has registered the region of this type, which was not registered at that time.
    /// This happens again after each change of the coordinator, also for a proxy.
    Registered(EntityType),
    /// A cluster query has ended.
    Answered {
        /// Number of the query.
        id: u64,
        /// Answers collected until its end.
        found: ClusterQueryResult,
    },
    /// At least one shard whose stop the program requested has stopped, or its request was given
    /// up. Others may still be pending.
    Stopped(EntityType),
    /// A step of a decision about a shard.
    Step {
        /// Name of the entity type.
        entity_type: EntityType,
        /// The step that was made.
        step: Box<DecisionStep>,
    },
    /// Decisions about shards, or a recount after a forced configuration, take unusually long.
    Slow {
        /// Name of the entity type.
        entity_type: EntityType,
        /// The decisions and their duration.
        slow: SlowDecisions,
    },
    /// No coordinator has registered the region of a type for long, while messages wait for homes.
    Unregistered {
        /// Name of the entity type.
        entity_type: EntityType,
        /// Duration, and the coordinator if it is known.
        complaint: Unregistered,
    },
    /// The program's allocation strategy failed or gave an unusable answer.
    StrategyFailed {
        /// Name of the entity type.
        entity_type: EntityType,
        /// Cause, as text for the log.
        why: std::sync::Arc<str>,
    },
    /// Shards are pinned to addresses at which no region may host them.
    PinsAbsent {
        /// Name of the entity type.
        entity_type: EntityType,
        /// The addresses, with the number of shards pinned to each.
        addresses: BTreeMap<Address, usize>, // ≤ number-of-shards
    },
    /// The leave of this node is complete: all its shards were handed over or stopped.
    Left,
    /// The coordinator of a type became active on this node.
    Acting {
        /// Name of the entity type.
        entity_type: EntityType,
        /// Number of the coordinator's term.
        term: u64,
    },
    /// The coordinator gives this node no shards of a type, because their settings of it differ.
    Differs {
        /// Name of the entity type.
        entity_type: EntityType,
        /// Settings of this node.
        here: AgreedSettings,
        /// The coordinator's node; `None` if the settings come from the replicated data.
        coordinator: Option<ReplicaId>,
        /// Settings of the coordinator or the replicated data.
        there: AgreedSettings,
    },
    /// The coordinator on this node was superseded or refused, and has stopped.
    SteppedDown {
        /// Name of the entity type.
        entity_type: EntityType,
        /// Cause, as text for the log.
        why: std::sync::Arc<str>,
    },
}

/// Destination of an output of the sharding machines: exactly one, and no output is dropped.
/// Requests to the Replicator get ids with the bit `OF_COORDINATORS`, by which [`answer`] finds
/// their replies; a watch of pins uses the id of its request as the id of its subscription. `Host`
/// becomes a command for membership. The receiver of a `Count` or an `Exists` may be this node.
#[must_use]
#[expect(clippy::too_many_lines, reason = "one arm for each output")]
pub fn route(output: ShardingOutput) -> ShardingDestination {
    match output {
        ShardingOutput::Send { to, entity_type, word } => {
            ShardingDestination::Peer { to, entity_type, word }
        }
        ShardingOutput::Ask { id, entity_type, level, ask } => {
            let request = HomesKey::new(&entity_type, level).request(ask);
            let id = RequestId(OF_COORDINATORS | id);
            ShardingDestination::Guard(GuardInput::Data(data::ReplicatorInput::Request {
                id,
                request,
            }))
        }
        ShardingOutput::AskPins { id, entity_type, ask } => {
            let id = OF_COORDINATORS | id;
            let request = PinsKey::new(&entity_type).request(SubscriptionId(id), ask);
            ShardingDestination::Guard(GuardInput::Data(data::ReplicatorInput::Request {
                id: RequestId(id),
                request,
            }))
        }
        ShardingOutput::Consult { entity_type, number, asked } => {
            ShardingDestination::Strategy { entity_type, number, asked }
        }
        ShardingOutput::StrategyFailed { entity_type, why } => {
            ShardingDestination::Node(ShardingEvent::StrategyFailed { entity_type, why })
        }
        ShardingOutput::PinsAbsent { entity_type, addresses } => {
            ShardingDestination::Node(ShardingEvent::PinsAbsent { entity_type, addresses })
        }
        ShardingOutput::Order { entity_type, order } => {
            ShardingDestination::Entities { entity_type, order }
        }
        ShardingOutput::Count { to, entity_type, number, messages } => {
            ShardingDestination::Count { to, entity_type, number, messages }
        }
        ShardingOutput::Exists { to, entity_type, number, entity } => {
            ShardingDestination::Exists { to, entity_type, number, entity }
        }
        ShardingOutput::Answered { id, found } => {
            ShardingDestination::Node(ShardingEvent::Answered { id, found })
        }
        ShardingOutput::Stopped(entity_type) => {
            ShardingDestination::Node(ShardingEvent::Stopped(entity_type))
        }
        ShardingOutput::Step { entity_type, step } => {
            ShardingDestination::Node(ShardingEvent::Step { entity_type, step })
        }
        ShardingOutput::Slow { entity_type, slow } => {
            ShardingDestination::Node(ShardingEvent::Slow { entity_type, slow })
        }
        ShardingOutput::Unregistered { entity_type, complaint } => {
            ShardingDestination::Node(ShardingEvent::Unregistered { entity_type, complaint })
        }
        ShardingOutput::Removed(regions) => ShardingDestination::Removed(regions),
        ShardingOutput::Host { entity_types, draining } => {
            ShardingDestination::Membership(host(entity_types, draining))
        }
        ShardingOutput::Registered(entity_type) => {
            ShardingDestination::Node(ShardingEvent::Registered(entity_type))
        }
        ShardingOutput::Left => ShardingDestination::Node(ShardingEvent::Left),
        ShardingOutput::Acting { entity_type, term } => {
            ShardingDestination::Node(ShardingEvent::Acting { entity_type, term: term.number })
        }
        ShardingOutput::Differs { entity_type, here, coordinator, there } => {
            ShardingDestination::Node(ShardingEvent::Differs {
                entity_type,
                here,
                coordinator,
                there,
            })
        }
        ShardingOutput::SteppedDown { entity_type, why } => {
            ShardingDestination::Node(ShardingEvent::SteppedDown { entity_type, why })
        }
    }
}

const fn host(entity_types: BTreeSet<String>, draining: bool) -> MembershipInput {
    MembershipInput::Command(MembershipCommand::Host { entity_types, draining })
}

/// Converts an output of membership to an input of the sharding machines; `None` if it does not
/// concern them. Any event becomes the whole present state of the cluster, so several events of one
/// batch give the same state again (`None` as long as `membership` has none). `LeaseHeld` and
/// `LeaseLost` are passed on, `LeaseLapsed` is not. A stop of the node becomes `Out`, which ends
/// the machines for good. The output itself still takes its route.
#[must_use]
pub fn news(told: &Told, membership: &Membership) -> Option<ShardingInput> {
    match told {
        Told::Event(_) => membership.state().cloned().map(ShardingInput::State),
        Told::LeaseHeld { .. } => Some(ShardingInput::LeaseHeld),
        Told::LeaseLost => Some(ShardingInput::LeaseLost),
        Told::Stop(_) => Some(ShardingInput::Out),
        _ => None,
    }
}

/// Converts an input of membership to one of the sharding machines; `None` if it does not concern
/// them. An installed configuration does, and the command `Drained`, which becomes `Out` and ends
/// them for good, whatever membership does with it. The caller passes the result on before
/// membership handles the input.
#[must_use]
pub fn overheard(told: &MembershipInput) -> Option<ShardingInput> {
    match told {
        MembershipInput::Installed(epoch) => Some(ShardingInput::Installed(epoch.clone())),
        // No entity runs on this node any longer. Its coordinators must stop before it releases the
        // hosting lease.
        MembershipInput::Command(MembershipCommand::Drained) => Some(ShardingInput::Out),
        _ => None,
    }
}

/// Returns an output of the guarded Replicator as `Break` with an input of the sharding machines if
/// it answers one of their requests or notifies one of their subscriptions, and otherwise unchanged
/// as `Continue`. Only the bit `OF_COORDINATORS` of the id decides. The input carries the id that
/// the machines gave, without that bit; errors of the Replicator are passed on as well.
pub fn answer(output: GuardOutput) -> ControlFlow<ShardingInput, GuardOutput> {
    match output {
        GuardOutput::Data(data::ReplicatorOutput::Reply { id, reply })
            if id.0 & OF_COORDINATORS != 0 =>
        {
            ControlFlow::Break(ShardingInput::Answered { id: id.0 & !OF_COORDINATORS, reply })
        }
        GuardOutput::Data(data::ReplicatorOutput::Notify { subscription, notice })
            if subscription.0 & OF_COORDINATORS != 0 =>
        {
            ControlFlow::Break(ShardingInput::Noticed {
                id: subscription.0 & !OF_COORDINATORS,
                notice,
            })
        }
        output => ControlFlow::Continue(output),
    }
}

/// Encodes a message. Returns the first name of its header, and its bytes, whose length is not
/// limited here. The entity type, the second name, is added by the caller.
#[must_use]
pub fn say(word: &MachineMessage) -> (&'static str, Vec<u8>) {
    let (name, bytes) = match word {
        MachineMessage::Sharding(message) => (SHARDING, rmp_serde::to_vec_named(message)),
        MachineMessage::Singleton(message) => (SINGLETON, rmp_serde::to_vec_named(message)),
        MachineMessage::ClusterQuery(message) => (CLUSTER_QUERY, rmp_serde::to_vec_named(message)),
    };
    (name, bytes.expect("plain data always encodes into memory"))
}

/// Builds a message of the answer to [`ShardingDestination::Count`]: the number of entities in each
/// shard of `counting`, in its order, 0 for a shard that is missing in `entities`. Shards that only
/// `entities` has are left out. Call it once for each entry of `messages`.
#[must_use]
pub fn counted(
    number: u64,
    counting: &Counting,
    entities: &BTreeMap<ShardId, u64>,
) -> MachineMessage {
    let count = |shard: &ShardId| (*shard, entities.get(shard).copied().unwrap_or(0));
    let shards = counting.shards.iter().map(count).collect();
    MachineMessage::ClusterQuery(ClusterQueryMessage::Told { number, shards, of: counting.of })
}

/// Builds the answer to [`ShardingDestination::Exists`]. `None`: the shard does not live here.
#[must_use]
pub const fn lives(number: u64, lives: Option<bool>) -> MachineMessage {
    MachineMessage::ClusterQuery(ClusterQueryMessage::Lives { number, lives })
}

/// Why a message for the sharding machines is dropped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingDropReason {
    /// The header names a kind of message that this release does not know.
    #[error("its header names no part of this release")]
    Part,
    /// The second name in the header is not valid for an entity type.
    #[error(transparent)]
    Type(#[from] InvalidName),
    /// The body cannot be decoded.
    #[error("{len} bytes between sharding machines do not decode")]
    Malformed {
        /// Length of the body in bytes.
        len: usize,
        /// Error of the decoder.
        source: rmp_serde::decode::Error,
    },
}

/// Decodes a message whose header has two names, the kind and the entity type. Does not check
/// whether this node has started the type.
///
/// # Errors
/// [`ShardingDropReason`], checked in this order: `Part`, `Malformed`, `Type`; so the body of a
/// message with an invalid entity type is decoded first. The caller counts and drops the message.
pub fn decode(
    from: ReplicaId,
    header: (&str, &str),
    body: &[u8],
) -> Result<ShardingInput, ShardingDropReason> {
    let (part, name) = header;
    let word = match part {
        SHARDING => MachineMessage::Sharding(decoded(body)?),
        SINGLETON => MachineMessage::Singleton(decoded(body)?),
        CLUSTER_QUERY => MachineMessage::ClusterQuery(decoded(body)?),
        _ => return Err(ShardingDropReason::Part),
    };
    Ok(ShardingInput::Message { from, entity_type: EntityType::new(name)?, word })
}

/// Decodes a body within the memory budget for messages of peers, with at most [`NESTING_MAX`]
/// levels; beyond either it is malformed. Ignores bytes after the message.
fn decoded<T: DeserializeOwned>(body: &[u8]) -> Result<T, ShardingDropReason> {
    from_foreign(body, NESTING_MAX)
        .map_err(|source| ShardingDropReason::Malformed { len: body.len(), source })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use ostraca_ddata::clock::Now;
    use ostraca_ddata::replicator::epoch::EpochId;
    use ostraca_ddata::replicator::request::RequestError;
    use ostraca_ddata::types::Term;

    use super::*;
    use crate::cluster::singleton::SingletonMessage;
    use crate::net::config::NetLimits;
    use crate::net::frame::FRAME_BYTES_MIN;
    use crate::sharding::config::MajorityPlus;
    use crate::sharding::decision_history::Remembered;
    use crate::sharding::explanation::{DecisionReport, DecisionSource, Topic};
    use crate::sharding::ids::{Generation, SHARDS_MAX, ShardId};
    use crate::sharding::region::PayloadPartSizes;
    use crate::sharding::store::StoreRequest;
    use crate::sharding::wire::{
        Fetch, HostShard, PayloadPart, RegistrationRefusal, ReleaseShard, Released,
        ReleasedWithLongPayload, ShardRoute, ShardingMessage, ToCoordinator, ToRegion,
    };

    const PEER: ReplicaId = ReplicaId::new(7);
    const SHARD: ShardId = ShardId::new(3);

    fn counter() -> EntityType {
        EntityType::new("counter").expect("a name")
    }

    fn g(seq: u64) -> Generation {
        Generation::new(Term { number: 2, owner: PEER }, seq)
    }

    type Golden<T> = Vec<(T, &'static str)>;

    fn agreed() -> AgreedSettings {
        AgreedSettings { shards: 100, extractor: "xxh3".into(), ..AgreedSettings::default() }
    }

    fn to_coordinators() -> Golden<ToCoordinator> {
        let at = vec![(SHARD, g(1))];
        vec![
            (
                ToCoordinator::Register {
                    proxy: true,
                    hosted: at.clone(),
                    highest: g(1),
                    agreed: agreed(),
                    slow: Vec::new(),
                },
                concat!(
                    "81a16381a17284a170c3a16891920382a17482a16e",
                    "02a16f07a17301a16d82a17482a16e02a16f07a17301",
                    "a17384a16e64a178a478786833a165c2a163c0"
                ),
            ),
            (
                ToCoordinator::Register {
                    proxy: true,
                    hosted: at.clone(),
                    highest: g(1),
                    agreed: agreed(),
                    slow: vec![SHARD],
                },
                concat!(
                    "81a16381a17285a170c3a16891920382a17482a16e",
                    "02a16f07a17301a16d82a17482a16e02a16f07a17301",
                    "a17384a16e64a178a478786833a165c2a163c0a1629103"
                ),
            ),
            (ToCoordinator::GetShardHome(vec![SHARD]), "81a16381a1679103"),
            (ToCoordinator::Hosted(at.clone()), "81a16381a16f91920382a17482a16e02a16f07a17301"),
            (ToCoordinator::Drained(at.clone()), "81a16381a16491920382a17482a16e02a16f07a17301"),
            (ToCoordinator::Leaving, "81a163a16c"),
            (ToCoordinator::Stop(vec![(SHARD, 9)]), "81a16381a17391920309"),
        ]
    }

    fn refusals() -> Golden<ToRegion> {
        vec![
            (ToRegion::NotYet(RegistrationRefusal::Reading), "81a17281a16ea172"),
            (
                ToRegion::NotYet(RegistrationRefusal::Differs(agreed())),
                "81a17281a16e81a16484a16e64a178a478786833a165c2a163c0",
            ),
        ]
    }

    fn to_regions() -> Golden<ToRegion> {
        let region = RegionId::new(PEER);
        let epoch = EpochId { generation: 5, number: 6 };
        let host = HostShard {
            shard: SHARD,
            generation: g(1),
            after: [(region, g(1))].into_iter().collect(),
            epoch,
        };
        let released = Released {
            shard: SHARD,
            reached: g(2),
            last: g(1),
            payload: Some(Bytes::from_static(b"\x01\x02")),
            sealed: Generation::NEVER, // as encoded by nodes that do not know the field
            cluster: 5,
        };
        let route = ShardRoute { shard: SHARD, generation: g(1), home: Some(region) };
        let at = vec![(SHARD, g(1))];
        let homes = || [route].into_iter().collect();
        vec![
            (ToRegion::Here(g(1).term), "81a17281a16382a16e02a16f07"),
            (
                ToRegion::RegisterAck { term: g(1).term, homes: homes() },
                concat!(
                    "81a17281a16182a17482a16e02a16f07a16883a1",
                    "749182a16e02a16f07a1729107a173919403000101"
                ),
            ),
            (
                ToRegion::Host(vec![host]),
                concat!(
                    "81a17281a1689184a17303a16782a17482a16e02a16f07a17301",
                    "a161810782a17482a16e02a16f07a17301a16582a16705a16e06"
                ),
            ),
            (
                ToRegion::Release(vec![ReleaseShard {
                    shard: SHARD,
                    generation: g(1),
                    to: Some(region),
                    listed: Generation::NEVER,
                }]),
                "81a17281a16c9183a17303a16782a17482a16e02a16f07a17301a17407",
            ),
            (
                ToRegion::Announce(homes()),
                "81a17281a17783a1749182a16e02a16f07a1729107a173919403000101",
            ),
            (
                ToRegion::Released(vec![released]),
                concat!(
                    "81a17281a1649185a17303a16d82a17482a16e02a16f07",
                    "a17302a16c82a17482a16e02a16f07a17301a170c4020102a16305"
                ),
            ),
            (ToRegion::Hosted(at), "81a17281a16f91920382a17482a16e02a16f07a17301"),
            (ToRegion::Stopped(vec![(SHARD, 9)]), "81a17281a17391920309"),
            (ToRegion::MayLeave(g(1).term), "81a17281a17982a16e02a16f07"),
        ]
    }

    fn of_singletons() -> Golden<SingletonMessage> {
        vec![
            (SingletonMessage::HandOverToMe { number: 9 }, "81a17481a16e09"),
            (SingletonMessage::HandOverInProgress { number: 9 }, "81a17081a16e09"),
            (SingletonMessage::HandOverDone { number: 9 }, "81a16481a16e09"),
            (SingletonMessage::Identify, "a177"),
            (SingletonMessage::Here, "a168"),
            (SingletonMessage::Gone, "a167"),
        ]
    }

    fn account() -> DecisionReport {
        let (from, awaited) = (Some(RegionId::new(PEER)), vec![RegionId::new(PEER)]);
        let new = Remembered::new(Now::default(), SHARD, g(1), "test".into());
        let settled = Some(Duration::from_millis(5));
        let remembered = Remembered { from, awaited, settled, ..new };
        DecisionReport { by: PEER, witness: DecisionSource::Region, remembered }
    }

    fn of_surveys() -> Golden<ClusterQueryMessage> {
        vec![
            (ClusterQueryMessage::Ask { number: 9 }, "81a16181a16e09"),
            (
                ClusterQueryMessage::Told { number: 9, shards: vec![(SHARD, 5)], of: 0 },
                "81a17482a16e09a17391920305",
            ),
            (
                ClusterQueryMessage::Told { number: 9, shards: vec![(SHARD, 5)], of: 7 },
                "81a17483a16e09a17391920305a16f07",
            ),
            (
                ClusterQueryMessage::Why { number: 9, topic: Topic::Shard(SHARD) },
                "81a17782a16e09a17481a17303",
            ),
            (
                ClusterQueryMessage::Why { number: 9, topic: Topic::Region(RegionId::new(PEER)) },
                "81a17782a16e09a17481a17207",
            ),
            (
                ClusterQueryMessage::Because { number: 9, accounts: vec![account()] },
                concat!(
                    "81a16282a16e09a1619183a2627907a77769746e657373a6726567696f6eaa72",
                    "656d656d626572656488a2617400a5736861726403aa67656e65726174696f6e",
                    "82a17482a16e02a16f07a17301a466726f6d07a2746fc0a3776879a474657374",
                    "a7736574746c6564a3356d73a7617761697465649107"
                ),
            ),
            (
                ClusterQueryMessage::Exists {
                    number: 9,
                    entity: EntityId::new("a").expect("a name"),
                },
                "81a16582a16e09a169a161",
            ),
            (ClusterQueryMessage::Lives { number: 9, lives: Some(true) }, "81a16c82a16e09a16cc3"),
            (ClusterQueryMessage::Lives { number: 9, lives: None }, "81a16c82a16e09a16cc0"),
        ]
    }

    fn of_long_payloads() -> Golden<ToRegion> {
        let (shard, last) = (SHARD, g(1));
        let bytes = Bytes::from_static(b"\x01\x02");
        vec![
            (
                ToRegion::Carries(vec![ReleasedWithLongPayload {
                    shard,
                    reached: g(2),
                    last,
                    length: 9,
                    sealed: Generation::NEVER,
                    cluster: 5,
                }]),
                concat!(
                    "81a17281a16b9185a17303a16d82a17482a16e02a16f07",
                    "a17302a16c82a17482a16e02a16f07a17301a16e09a16305"
                ),
            ),
            (
                ToRegion::Fetch(vec![Fetch { shard, last, at: 4 }]),
                "81a17281a1669183a17303a16c82a17482a16e02a16f07a17301a16104",
            ),
            (
                ToRegion::Part(PayloadPart { shard, last, at: 4, bytes }),
                concat!("81a17281a17084a17303a16c82a17482a16e02a16f07", "a17301a16104a162c4020102"),
            ),
        ]
    }

    /// A message of each kind, and the expected bytes.
    fn words() -> Golden<MachineMessage> {
        let coordinators = to_coordinators().into_iter().map(|(message, hex)| {
            (MachineMessage::Sharding(ShardingMessage::Coordinator(message)), hex)
        });
        let regions = to_regions().into_iter().chain(of_long_payloads()).chain(refusals()).map(
            |(message, hex)| (MachineMessage::Sharding(ShardingMessage::Region(message)), hex),
        );
        let singletons = of_singletons()
            .into_iter()
            .map(|(message, hex)| (MachineMessage::Singleton(message), hex));
        let cluster_queries = of_surveys()
            .into_iter()
            .map(|(message, hex)| (MachineMessage::ClusterQuery(message), hex));
        coordinators.chain(regions).chain(singletons).chain(cluster_queries).collect()
    }

    #[test]
    fn messages_match_golden_bytes_and_decode_unchanged() {
        for (word, golden) in words() {
            let (name, bytes) = say(&word);
            let expected = match word {
                MachineMessage::Sharding(_) => "s",
                MachineMessage::Singleton(_) => "o",
                MachineMessage::ClusterQuery(_) => "q",
            };
            assert_eq!(name, expected);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden, "{word:?}");
            let heard = decode(PEER, (name, "counter"), &bytes).expect("encoded messages decode");
            assert_eq!(heard, ShardingInput::Message { from: PEER, entity_type: counter(), word });
        }
    }

    /// Uses the numbers with the longest encoding.
    #[test]
    fn count_of_all_shards_fits_into_allowed_messages() {
        let by_default = NetLimits::default().message_bytes_max;
        for bytes_max in [FRAME_BYTES_MIN, by_default] {
            let all: Vec<_> = (0..SHARDS_MAX).map(ShardId::new).collect();
            let entities = all.iter().map(|shard| (*shard, u64::MAX)).collect();
            let messages =
                Counting::in_messages(all.clone(), PayloadPartSizes::within(bytes_max).words);
            for counting in &messages {
                let bytes = say(&counted(u64::MAX, counting, &entities)).1.len();
                assert!(bytes <= bytes_max, "{bytes} bytes of {}", counting.shards.len());
                assert_eq!(counting.of, u64::from(SHARDS_MAX));
            }
            let sent: Vec<_> = messages.into_iter().flat_map(|it| it.shards).collect();
            assert_eq!(sent, all);
        }
        let whole = |shards| Counting { shards, of: 0 };
        for few in [vec![], vec![SHARD]] {
            assert_eq!(Counting::in_messages(few.clone(), 1_000), [whole(few)]);
        }
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let (name, bytes) = say(&MachineMessage::Singleton(SingletonMessage::Here));
        let why = |header, body: &[u8]| decode(PEER, header, body).expect_err("it is rejected");
        assert!(matches!(why(("x", "counter"), &bytes), ShardingDropReason::Part));
        for wrong in ["", "a/b"] {
            assert!(matches!(why((name, wrong), &bytes), ShardingDropReason::Type(_)));
        }
        let deep = [&[0x91; 100][..], &[0xc0]].concat();
        for body in [&b""[..], b"\xc1", b"\x81\xa1\x5a\x01", &deep] {
            for part in [SHARDING, SINGLETON, CLUSTER_QUERY] {
                assert!(matches!(
                    why((part, "counter"), body),
                    ShardingDropReason::Malformed { .. }
                ));
            }
        }
    }

    #[test]
    fn reply_to_a_coordinators_request_returns_to_it() {
        let ask = StoreRequest::Fence { term: g(1).term, within: Duration::from_secs(2) };
        let level = MajorityPlus::Some(0);
        let asked = ShardingOutput::Ask { id: 4, entity_type: counter(), level, ask };
        let ShardingDestination::Guard(GuardInput::Data(data::ReplicatorInput::Request {
            id, ..
        })) = route(asked)
        else {
            panic!("no request");
        };
        let reply = Err(RequestError::NotJoined);
        let replied =
            |id| GuardOutput::Data(data::ReplicatorOutput::Reply { id, reply: reply.clone() });
        let expected = ShardingInput::Answered { id: 4, reply: Err(RequestError::NotJoined) };
        assert!(matches!(answer(replied(id)), ControlFlow::Break(input) if input == expected));
        let of_a_program = answer(replied(RequestId(4)));
        assert!(matches!(of_a_program, ControlFlow::Continue(GuardOutput::Data(_))));
    }

    #[test]
    fn hosted_types_reach_membership_and_drained_reaches_sharding() {
        let entity_types = BTreeSet::from(["counter".to_owned()]);
        let hosts = ShardingOutput::Host { entity_types: entity_types.clone(), draining: true };
        let ShardingDestination::Membership(MembershipInput::Command(told)) = route(hosts) else {
            panic!("no command");
        };
        assert_eq!(told, MembershipCommand::Host { entity_types, draining: true });
        assert_eq!(
            overheard(&MembershipInput::Command(MembershipCommand::Drained)),
            Some(ShardingInput::Out)
        );
        assert_eq!(overheard(&MembershipInput::Tick), None);
    }
}
