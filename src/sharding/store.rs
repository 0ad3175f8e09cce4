//! The guarded group in which a coordinator stores homes, `sharding/<type>/homes`: requests to the
//! Replicator and their replies (docs/protocol/sharding.md#the-cell-of-a-shard). The group has
//! three keys: the homes, and beneath them `settings`, on which all nodes must agree, and
//! `recovered`, the last forced configuration whose survivors were counted.
//!
//! The stamp of a register identifies its last write, the generation inside identifies the
//! decision. A decision that is written again, by its coordinator after a timeout or by the next
//! one after its fencing read, gets a new stamp and keeps its generation. From then on no write of
//! a lower term can win, and regions see no change
//! (docs/protocol/sharding.md#takeover-rewrites-before-speaking).

use std::time::Duration;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::{Group, Key, KeyName};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::request::{
    Guard, MinCap, ReplicatorReply, ReplicatorRequest, RequestError, Update, WriteConsistency,
};
use ostraca_ddata::types::edit::Edit;
use ostraca_ddata::types::{LWWRegister, ORMap, Term};
use serde::{Deserialize, Serialize};

use super::agreed_settings::AgreedSettings;
use super::config::MajorityPlus;
use super::fault_injection::{ShardingFault, ShardingFaultInjection};
use super::home::ShardHome;
use super::ids::{EntityType, ShardId};

/// The replicated map of homes.
pub type Homes = ORMap<ShardId, LWWRegister<ShardHome>>;

/// Request of a coordinator to the Replicator. At most one is pending, which the coordinator
/// ensures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreRequest {
    /// Takes a term and reads every cell.
    Fence {
        /// Term that is taken.
        term: Term,
        /// Timeout of the request.
        within: Duration,
    },
    /// Writes cells under the term.
    Write {
        /// Term of the coordinator.
        term: Term,
        /// Stamp of the write, which rises within a term.
        seq: u64,
        /// Cells that are written.
        cells: Vec<(ShardId, ShardHome)>, // ≤ BATCH_MAX
        /// Timeout of the request.
        within: Duration,
    },
    /// Writes under the term that all homes that survived a forced configuration were counted.
    Recover {
        /// The forced configuration, and the term of the write.
        recovered: RecountRecord,
        /// Stamp of the write.
        seq: u64,
        /// Timeout of the request.
        within: Duration,
    },
    /// Writes under the term the settings on which all nodes must agree.
    Agree {
        /// Term of the coordinator.
        term: Term,
        /// Stamp of the write.
        seq: u64,
        /// Settings that are written.
        agreed: AgreedSettings,
        /// Timeout of the request.
        within: Duration,
    },
}

/// Record that the survivors of a forced configuration were counted
/// (docs/protocol/sharding.md#recount-after-a-forced-configuration).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecountRecord {
    /// Origin of the forced configuration.
    #[serde(rename = "o")]
    pub origin: EpochId,
    /// Term of the coordinator that counted. Decisions below it are ignored.
    #[serde(rename = "t")]
    pub term: Term,
}

/// Result of a [`StoreRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// The term is taken. A quorum holds these cells, these settings, and this record of a recount.
    Fenced(Vec<(ShardId, ShardHome)>, Option<AgreedSettings>, Option<RecountRecord>),
    /// A quorum holds the write.
    Written,
    /// A replica has promised a higher term. A write may be on a majority all the same.
    Refused {
        /// The highest term that was reported.
        current: Term,
    },
    /// Too few replicas answered in time, or could store the write durably; a write may have been
    /// made. Ask again at once.
    Late,
    /// Nothing was written. Or the term was taken, but a value that was read does not decode. Ask
    /// again after a while.
    NotNow {
        /// Description of the cause.
        why: String,
    },
    /// This node was removed, or a register holds a later write of the same term, so that the node
    /// must not write any longer: stop. A write of a removed node may be on a majority.
    Over {
        /// Description of the cause.
        why: String,
    },
}

/// Keys of the homes of one entity type.
#[derive(Clone, Debug)]
pub struct HomesKey {
    key: Key<Homes>,
    settings: Key<LWWRegister<AgreedSettings>>,
    recovered: Key<LWWRegister<RecountRecord>>,
    group: Group,
    level: MajorityPlus,
    fault_injection: ShardingFaultInjection,
}

impl HomesKey {
    /// Makes the keys of a type, all of whose values are written at `level`. Fences have no level.
    #[must_use]
    pub fn new(entity_type: &EntityType, level: MajorityPlus) -> Self {
        let name = format!("sharding/{entity_type}/homes");
        let settings = Key::new(&format!("{name}/settings"));
        let recovered = Key::new(&format!("{name}/recovered"));
        let (key, group, fault_injection) =
            (Key::new(&name), Group::new(&name), ShardingFaultInjection::none());
        Self { key, settings, recovered, group, level, fault_injection }
    }

    /// Returns the same keys with an injected fault.
    #[must_use]
    pub fn with_fault(self, fault_injection: ShardingFaultInjection) -> Self {
        Self { fault_injection, ..self }
    }

    /// Returns the key of the homes.
    #[must_use]
    pub const fn key(&self) -> &Key<Homes> {
        &self.key
    }

    /// Returns the request to the Replicator for `ask`. All writes are guarded by the term, and
    /// fail if a replica has promised a higher one. A `Write` changes only its cells: others of the
    /// map stay.
    #[must_use]
    pub fn request(&self, ask: StoreRequest) -> ReplicatorRequest {
        let group = self.group.clone();
        match ask {
            StoreRequest::Fence { term, within } => {
                ReplicatorRequest::Fence { group, term, within }
            }
            StoreRequest::Write { term, seq, cells, within } => {
                let consistency = self.consistency(within);
                let write = move |homes: &mut Edit<'_, Homes>| {
                    cells.iter().try_for_each(|(shard, home)| {
                        homes.update(shard, |register| register.set_at(seq, home))
                    })
                };
                let update = Update::new(&self.key, consistency, write);
                ReplicatorRequest::Update(update.guarded(Guard { group, term }))
            }
            StoreRequest::Recover { recovered, seq, within } => {
                let (consistency, term) = (self.consistency(within), recovered.term);
                let write = move |register: &mut Edit<'_, LWWRegister<RecountRecord>>| {
                    register.set_at(seq, &recovered)
                };
                let update = Update::new(&self.recovered, consistency, write);
                ReplicatorRequest::Update(update.guarded(Guard { group, term }))
            }
            StoreRequest::Agree { term, seq, agreed, within } => {
                let consistency = self.consistency(within);
                let write = move |register: &mut Edit<'_, LWWRegister<AgreedSettings>>| {
                    register.set_at(seq, &agreed)
                };
                let update = Update::new(&self.settings, consistency, write);
                ReplicatorRequest::Update(update.guarded(Guard { group, term }))
            }
        }
    }

    /// Returns the level of a write: a majority, that many replicas more, or all replicas.
    const fn consistency(&self, within: Duration) -> WriteConsistency {
        match self.level {
            MajorityPlus::Some(0) => WriteConsistency::majority(within),
            MajorityPlus::Some(more) => WriteConsistency::MajorityPlus(more, MinCap(0), within),
            MajorityPlus::All(_) => WriteConsistency::All(within),
        }
    }

    /// Translates a reply of the Replicator to a [`request`](Self::request). A reply to any other
    /// request, an error that is not named here, and a group with an unreadable value become
    /// [`StoreAnswer::NotNow`]. `Fenced` becomes `Refused`; `Timeout` and `StoreFailure` become
    /// `Late`; `Excluded` and `Stale` become `Over`. Any `Updated` is `Written`: the key is not
    /// compared.
    #[must_use]
    pub fn answer(&self, reply: Result<ReplicatorReply, RequestError>) -> StoreAnswer {
        match reply {
            Ok(ReplicatorReply::Updated { .. }) => StoreAnswer::Written,
            Ok(ReplicatorReply::Fenced { values, .. }) => match self.read(&values) {
                Ok((cells, agreed, recovered)) => StoreAnswer::Fenced(cells, agreed, recovered),
                Err(why) => StoreAnswer::NotNow { why },
            },
            Ok(_) => StoreAnswer::NotNow { why: "the reply is to another request".into() },
            Err(RequestError::Fenced { current, .. }) => StoreAnswer::Refused { current },
            Err(RequestError::Timeout(_) | RequestError::StoreFailure { .. }) => StoreAnswer::Late,
            Err(error @ (RequestError::Excluded { .. } | RequestError::Stale(_))) => {
                StoreAnswer::Over { why: error.to_string() }
            }
            Err(error) => StoreAnswer::NotNow { why: error.to_string() },
        }
    }
}

impl HomesKey {
    /// Decodes the values of the group. An absent value is no error: there are no cells, no
    /// settings, or no record then; so is a register without a value. Fails if any of the three is
    /// unreadable or of another type, because decisions based on a part could contradict the rest.
    /// Other keys of the group are ignored.
    fn read(&self, values: &[(KeyName, Value)]) -> Result<GroupValues, String> {
        let of = |name: &KeyName| values.iter().find(|(key, _)| key == name);
        let other = |name: &KeyName| format!("`{name}` holds other data");
        let homes = of(self.key.name()).map(|(name, value)| {
            let homes = value.get::<Homes>().ok_or_else(|| other(name))?;
            cells(&homes)
        });
        let agreed = of(self.settings.name()).map(|(name, value)| {
            let register = value.get::<LWWRegister<AgreedSettings>>().ok_or_else(|| other(name))?;
            register.get().map_err(|why| format!("`{name}`: {why}"))
        });
        let recovered = of(self.recovered.name()).map(|(name, value)| {
            let register = value.get::<LWWRegister<RecountRecord>>().ok_or_else(|| other(name))?;
            register.get().map_err(|why| format!("`{name}`: {why}"))
        });
        let mut cells = homes.transpose()?.unwrap_or_default();
        if self.fault_injection.has(ShardingFault::HomeKeyRemoved) {
            cells.retain(|(_, home)| home.region.is_some());
        }
        Ok((cells, agreed.transpose()?.flatten(), recovered.transpose()?.flatten()))
    }
}

type Cells = Vec<(ShardId, ShardHome)>;

/// The three values of the group.
type GroupValues = (Cells, Option<AgreedSettings>, Option<RecountRecord>);

/// Decodes all cells, and returns them in the order of their shards. Registers without a value are
/// left out. Fails if any is unreadable, for the same reason. Shard numbers are not compared with
/// the type's.
fn cells(homes: &Homes) -> Result<Vec<(ShardId, ShardHome)>, String> {
    let mut cells = Vec::with_capacity(homes.len());
    for (shard, register) in homes.iter() {
        let shard = shard.map_err(|why| format!("a shard's id does not decode: {why}"))?;
        let home = register.get().map_err(|why| format!("the home of shard {shard}: {why}"))?;
        cells.extend(home.map(|home| (shard, home)));
    }
    cells.sort_by_key(|(shard, _)| *shard);
    Ok(cells)
}
