//! Settings of sharding, `[cluster.sharding]`: their defaults, bounds and contradictions.
//!
//! The doc comments of the fields are also the comments of the generated file of defaults. The
//! private checks return rows of a flag, `true` if the value is allowed, and the refusal otherwise.
//! A node calls [`ShardingConfig::check`] before it starts anything, and [`ShardingConfig::of`] for
//! each entity type.

use std::collections::BTreeMap;
use std::time::Duration;

use documented::DocumentedFields;
use humantime_serde::re::humantime;
use serde::{Deserialize, Serialize};

use super::allocation::{
    AllocationStrategy, ConsistentHashing, External, LeastShard, LeastShardRounds,
};
use super::extractor::ShardHash;
use super::ids::{EntityType, SHARDS_MAX};
use super::passivation::settings::{PassivationConfig, SettingOutOfBounds};
use crate::cluster::member::NAME_BYTES_MAX;

/// Most entity types with their own settings.
pub const TYPES_MAX: usize = 1_024;

/// `[cluster.sharding]`: settings of all entity types. `[cluster.sharding.types.<name>]` overrides
/// some of them for one type ([`Overrides`]).
///
/// [`check`](Self::check) knows the lower bounds of durations and the bounds of numbers. The upper
/// bounds of durations are checked with the whole [`Config`](crate::config::Config), and so are
/// settings without an implementation: their defaults are accepted, other values refused.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ShardingConfig {
    /// Role of the nodes that host entities; on other nodes a start gives a proxy. Unset: all nodes
    /// host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Role of the nodes that may run the coordinator. Unset: nodes that host the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_role: Option<String>,
    /// Number of shards of a type: about ten per node of the largest cluster planned. All nodes
    /// must agree; to change it, stop all of them.
    pub number_of_shards: u32,
    /// Hash function from an entity id to a shard. All nodes must agree.
    pub extractor: ShardHash,
    /// Where the coordinator stores homes. `ddata`: as replicated data in the cluster itself.
    pub state_store_mode: StateStoreMode,
    /// Starts the entities of a shard again when the shard starts, without a message. Refused: this
    /// release remembers no entities.
    pub remember_entities: bool,
    /// Rate at which remembered entities start. Refused: this release remembers no entities.
    pub entity_recovery_strategy: EntityRecovery,
    /// `[cluster.sharding.entity-recovery-constant-rate]`. Refused: this release remembers no
    /// entities.
    pub entity_recovery_constant_rate: ConstantRate,
    /// Regions that must be registered before the *first* allocation of a cluster's life. Known
    /// homes never wait.
    pub min_nr_of_members: usize,
    /// Allocates all shards in one write as soon as the first regions have registered.
    pub preallocate: bool,
    /// Answers beyond a majority that a read of homes waits for, or `all`. Values other than 0 are
    /// refused: a plain majority sees every acknowledged write of homes.
    pub read_majority_plus: MajorityPlus,
    /// Answers beyond a majority that a write of homes waits for, or `all`.
    pub write_majority_plus: MajorityPlus,
    /// A read of homes is repeated if a majority has not answered within this time.
    #[serde(with = "humantime_serde")]
    pub waiting_for_state_timeout: Duration,
    /// A write of homes is repeated if a majority has not answered within this time.
    #[serde(with = "humantime_serde")]
    pub updating_state_timeout: Duration,
    /// Time between repetitions of registrations and requests for homes. A safety net: events drive
    /// progress.
    #[serde(with = "humantime_serde")]
    pub retry_interval: Duration,
    /// Time between reports of a region about the shards that it hosts.
    #[serde(with = "humantime_serde")]
    pub audit_interval: Duration,
    /// Time to the first repetition of a `Host` or `Release` that was not answered.
    #[serde(with = "humantime_serde")]
    pub move_retry_min: Duration,
    /// Longest time between repetitions; each one waits twice as long as the last.
    #[serde(with = "humantime_serde")]
    pub move_retry_max: Duration,
    /// Time in which the handlers of a moving shard must end; then its entities are aborted.
    /// Handlers that have run for `slow-handler-after` are aborted once they alone keep the shard.
    /// Must be shorter than the shutdown phase.
    #[serde(with = "humantime_serde")]
    pub handoff_timeout: Duration,
    /// A lane that is cut for this long while its node is still a member is given up for shards
    /// that have moved; messages that it had not acknowledged may be lost.
    #[serde(with = "humantime_serde")]
    pub lane_broken_after: Duration,
    /// Pause before a remembered entity that stopped or failed starts again. Refused: this release
    /// remembers no entities.
    #[serde(with = "humantime_serde")]
    pub entity_restart_backoff: Duration,
    /// Pause before the first restart of an entity that failed.
    #[serde(with = "humantime_serde")]
    pub restart_backoff_min: Duration,
    /// Longest pause before a restart; each further restart waits twice as long as the last, until
    /// a message is handled or none waits.
    #[serde(with = "humantime_serde")]
    pub restart_backoff_max: Duration,
    /// Messages that a region buffers for shards without a known home; at most a quarter for one
    /// shard.
    pub buffer_size: usize,
    /// Bytes of the messages that a region buffers; at most a quarter for one shard.
    pub buffer_bytes_max: usize,
    /// Messages, also of its own node, that a region holds for shards that will start there; at
    /// most a quarter for one shard. The first 100 of each shard, up to 64 KiB, are held beyond
    /// this limit. Moved messages of other nodes count, and are refused only beyond several times
    /// what one node may buffer.
    pub held_size: usize,
    /// Bytes of the messages that a region holds; at most a quarter for one shard.
    pub held_bytes_max: usize,
    /// Messages that wait for one entity. Moved messages are exempt.
    pub mailbox_size: usize,
    /// Encoded bytes of the messages that wait for one entity; a message that never left its node
    /// counts with the result of `Entity::message_bytes`, by default the size of its type. A larger
    /// message fits into an empty mailbox.
    pub mailbox_bytes_max: usize,
    /// Default timeout of an ask: longer than a failover (8.8 s with the defaults), so that an ask
    /// of an entity whose node was lost is answered by its next home. A timeout of a second or more
    /// may be reported up to 50 ms late.
    #[serde(with = "humantime_serde")]
    pub ask_timeout: Duration,
    /// A handler that has awaited for this long is counted and logged with its entity and the type
    /// of its message (`sharding.slow_handler`), and again each time that it has run twice as long.
    /// Until it ends, rebalancing leaves its shard where it is; if the shard has to leave its node,
    /// by a drain, a leave or a stop of shards, the handler is aborted as soon as all other
    /// entities of the shard have stopped, without waiting for `handoff-timeout`. A handler that
    /// blocks its thread for as long cannot be aborted; rebalancing leaves its shard out, too. 0:
    /// none of this.
    #[serde(with = "humantime_serde")]
    pub slow_handler_after: Duration,
    /// Decisions that the coordinator and each region remember for `explain`; about 100 bytes each.
    pub remembered_decisions: usize,
    /// Strategy that allocates shards to regions: `least-shard`, `least-shard-rounds`,
    /// `consistent-hashing`, or `external`, where the program pins shards to nodes. A strategy that
    /// the program supplies takes precedence.
    pub allocation_strategy: AllocationStrategyName,
    /// Longest time between two looks at the balance.
    #[serde(with = "humantime_serde")]
    pub rebalance_interval: Duration,
    /// Settings of `least-shard`: `[cluster.sharding.least-shard]`
    pub least_shard: LeastShard,
    /// Settings of `least-shard-rounds`: `[cluster.sharding.least-shard-rounds]`
    pub least_shard_rounds: LeastShardRounds,
    /// Settings of `consistent-hashing`: `[cluster.sharding.consistent-hashing]`
    pub consistent_hashing: ConsistentHashing,
    /// When idle entities stop: `[cluster.sharding.passivation]`
    pub passivation: PassivationConfig,
    /// When the node is ready: `[cluster.sharding.healthcheck]`
    pub healthcheck: HealthCheck,
    /// Settings of single entity types: `[cluster.sharding.types.<name>]`
    pub types: BTreeMap<EntityType, Overrides>, // ≤ TYPES_MAX
}

impl Default for ShardingConfig {
    fn default() -> Self {
        Self {
            role: None,
            coordinator_role: None,
            number_of_shards: 1_000,
            extractor: ShardHash::default(),
            state_store_mode: StateStoreMode::Ddata,
            remember_entities: false,
            entity_recovery_strategy: EntityRecovery::All,
            entity_recovery_constant_rate: ConstantRate::default(),
            min_nr_of_members: 1,
            preallocate: false,
            read_majority_plus: MajorityPlus::Some(0),
            write_majority_plus: MajorityPlus::Some(0),
            waiting_for_state_timeout: Duration::from_secs(2),
            updating_state_timeout: Duration::from_secs(5),
            retry_interval: Duration::from_secs(2),
            audit_interval: Duration::from_secs(30),
            move_retry_min: Duration::from_millis(200),
            move_retry_max: Duration::from_secs(2),
            handoff_timeout: Duration::from_secs(15),
            lane_broken_after: Duration::from_secs(5),
            entity_restart_backoff: Duration::from_secs(10),
            restart_backoff_min: Duration::from_millis(200),
            restart_backoff_max: Duration::from_secs(10),
            buffer_size: 100_000,
            buffer_bytes_max: 256 << 20,
            held_size: 100_000,
            held_bytes_max: 256 << 20,
            mailbox_size: 10_000,
            mailbox_bytes_max: 16 << 20,
            ask_timeout: Duration::from_secs(10),
            slow_handler_after: Duration::from_secs(30),
            remembered_decisions: 4_096,
            allocation_strategy: AllocationStrategyName::LeastShard,
            rebalance_interval: Duration::from_secs(10),
            least_shard: LeastShard::default(),
            least_shard_rounds: LeastShardRounds::default(),
            consistent_hashing: ConsistentHashing::default(),
            passivation: PassivationConfig::default(),
            healthcheck: HealthCheck::default(),
            types: BTreeMap::new(),
        }
    }
}

/// `[cluster.sharding.types.<name>]`: settings of one entity type. Unset fields have the value of
/// `[cluster.sharding]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Overrides {
    /// Overrides [`ShardingConfig::role`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Overrides [`ShardingConfig::coordinator_role`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_role: Option<String>,
    /// Overrides [`ShardingConfig::number_of_shards`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_of_shards: Option<u32>,
    /// Overrides [`ShardingConfig::extractor`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extractor: Option<ShardHash>,
    /// Overrides [`ShardingConfig::remember_entities`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remember_entities: Option<bool>,
    /// Overrides [`ShardingConfig::min_nr_of_members`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_nr_of_members: Option<usize>,
    /// Overrides [`ShardingConfig::preallocate`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preallocate: Option<bool>,
    /// Overrides [`ShardingConfig::handoff_timeout`] for this type.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub handoff_timeout: Option<Duration>,
    /// Overrides [`ShardingConfig::buffer_size`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_size: Option<usize>,
    /// Overrides [`ShardingConfig::buffer_bytes_max`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer_bytes_max: Option<usize>,
    /// Overrides [`ShardingConfig::held_size`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_size: Option<usize>,
    /// Overrides [`ShardingConfig::held_bytes_max`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_bytes_max: Option<usize>,
    /// Overrides [`ShardingConfig::mailbox_size`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mailbox_size: Option<usize>,
    /// Overrides [`ShardingConfig::mailbox_bytes_max`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mailbox_bytes_max: Option<usize>,
    /// Overrides [`ShardingConfig::ask_timeout`] for this type.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub ask_timeout: Option<Duration>,
    /// Overrides [`ShardingConfig::slow_handler_after`] for this type.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub slow_handler_after: Option<Duration>,
    /// Overrides [`ShardingConfig::allocation_strategy`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_strategy: Option<AllocationStrategyName>,
    /// Overrides [`ShardingConfig::passivation`] for this type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passivation: Option<PassivationConfig>,
}

/// Store of the coordinator for the homes of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateStoreMode {
    /// Replicated data in the cluster itself.
    #[default]
    Ddata,
    /// The journal mode of Akka and Pekko: parsed, and refused at start.
    Persistence,
}

/// Rate at which remembered entities start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityRecovery {
    /// All at once, entities with messages first.
    #[default]
    All,
    /// At the rate of `entity-recovery-constant-rate`, entities with messages first.
    Constant,
}

/// Rate of starts: `[cluster.sharding.entity-recovery-constant-rate]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConstantRate {
    /// Time between two batches.
    #[serde(with = "humantime_serde")]
    pub frequency: Duration,
    /// Entities in a batch, over all shards of a region.
    pub number_of_entities: usize,
}

impl Default for ConstantRate {
    fn default() -> Self {
        Self { frequency: Duration::from_millis(100), number_of_entities: 5 }
    }
}

/// Number of answers beyond a majority that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum MajorityPlus {
    /// This many more; 0 is a plain majority, which is enough for safety.
    Some(usize),
    /// All replicas: one silent node stops every allocation.
    All(AllWord),
}

/// The value `all` of a setting that is otherwise a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllWord {
    /// All replicas must answer.
    All,
}

/// Name of an allocation strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AllocationStrategyName {
    /// Equal numbers of shards with the fewest moves, continuously.
    #[default]
    LeastShard,
    /// Equal numbers of shards in rounds, as in Pekko.
    LeastShardRounds,
    /// A hash of address and shard.
    ConsistentHashing,
    /// As the program pins them: [`pin_shards`](crate::node::sharding::Sharding::pin_shards).
    External,
}

/// `[cluster.sharding.healthcheck]`: a node is ready once its regions have registered, until its
/// shutdown begins or, with empty `names`, until it starts a further type. Later trouble of a
/// coordinator does not make it unready.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HealthCheck {
    /// Entity types whose regions must have registered. Empty: all types that the program has
    /// started on this node.
    pub names: Vec<EntityType>,
    /// Longest time for which `Sharding::ready` of a program waits. `ostraca health` waits for its
    /// `--timeout` instead.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Missing registrations are ignored once this time has passed since a check first saw the node
    /// Up, so that a node which never registers is ready all the same, as in Akka and Pekko (10 s).
    /// Unset: such a node is never ready.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub disabled_after: Option<Duration>,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self { names: Vec::new(), timeout: Duration::from_secs(5), disabled_after: None }
    }
}

/// Reason why a node does not start with these settings. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingConfigError {
    /// `state-store-mode` selects the journal mode of Akka and Pekko.
    #[error(
        "cluster.sharding.state-store-mode = \"persistence\" needs a journal, and Ostraca has \
         none: homes are replicated data in the memory of a majority of the nodes; take \"ddata\" \
         or leave it out"
    )]
    Persistence,
    /// `remember-entities` is set, which this release does not support.
    #[error(
        "{section}.remember-entities is set, but this release cannot remember entities: unset it"
    )]
    RememberEntities {
        /// Section of the setting.
        section: String,
    },
    /// The shutdown phase ends before `handoff-timeout`, so entities would be aborted early.
    #[error(
        "{section}.handoff-timeout is {handoff}, and \
         cluster.shutdown.cluster-sharding-shutdown-region.timeout is {phase}: make the phase longer, \
         or handoff-timeout shorter, so that entities have their time",
        handoff = time(*handoff), phase = time(*phase)
    )]
    HandoffOutlastsPhase {
        /// Section of the setting.
        section: String,
        /// The value of `handoff-timeout`.
        handoff: Duration,
        /// Length of the shutdown phase.
        phase: Duration,
    },
    /// A maximum is below its minimum.
    #[error(
        "{section}.{setting} is {value}, and {section}.{other} is {than}: raise the former or lower \
         the latter"
    )]
    Contradiction {
        /// Section of both settings.
        section: String,
        /// Name of the maximum.
        setting: &'static str,
        /// Value of the maximum.
        value: String,
        /// Name of the minimum.
        other: &'static str,
        /// Value of the minimum.
        than: String,
    },
    /// A value is outside its bounds.
    #[error("{section}.{setting} is {value}: {must}")]
    OutOfRange {
        /// Section of the setting.
        section: String,
        /// Name of the setting.
        setting: &'static str,
        /// The value that was found.
        value: String,
        /// The values that are allowed.
        must: &'static str,
    },
}

const SECTION: &str = "cluster.sharding";

impl ShardingConfig {
    /// Returns the settings of one entity type: its overrides, and otherwise these, also for a type
    /// without a section. The result has no `types`. An override replaces a whole value, with
    /// `passivation` the whole section (its unset keys have their defaults, not the values of
    /// `[cluster.sharding.passivation]`); it cannot unset a role.
    #[must_use]
    pub fn of(&self, entity_type: &EntityType) -> Self {
        let mut own = Self { types: BTreeMap::new(), ..self.clone() };
        let Some(overrides) = self.types.get(entity_type).cloned() else { return own };
        own.role = overrides.role.or(own.role);
        own.coordinator_role = overrides.coordinator_role.or(own.coordinator_role);
        set(&mut own.number_of_shards, overrides.number_of_shards);
        set(&mut own.extractor, overrides.extractor);
        set(&mut own.remember_entities, overrides.remember_entities);
        set(&mut own.min_nr_of_members, overrides.min_nr_of_members);
        set(&mut own.preallocate, overrides.preallocate);
        set(&mut own.handoff_timeout, overrides.handoff_timeout);
        set(&mut own.buffer_size, overrides.buffer_size);
        set(&mut own.buffer_bytes_max, overrides.buffer_bytes_max);
        set(&mut own.held_size, overrides.held_size);
        set(&mut own.held_bytes_max, overrides.held_bytes_max);
        set(&mut own.mailbox_size, overrides.mailbox_size);
        set(&mut own.mailbox_bytes_max, overrides.mailbox_bytes_max);
        set(&mut own.ask_timeout, overrides.ask_timeout);
        set(&mut own.slow_handler_after, overrides.slow_handler_after);
        set(&mut own.allocation_strategy, overrides.allocation_strategy);
        set(&mut own.passivation, overrides.passivation);
        own
    }

    /// Returns the chosen allocation strategy with its settings. [`External`] has no pins yet, and
    /// takes its limit from `least-shard`. The strategy of a program is not considered.
    #[must_use]
    pub fn strategy(&self) -> AllocationStrategy {
        match self.allocation_strategy {
            AllocationStrategyName::LeastShard => {
                AllocationStrategy::LeastShard(self.least_shard.clone())
            }
            AllocationStrategyName::LeastShardRounds => {
                AllocationStrategy::Rounds(self.least_shard_rounds.clone())
            }
            AllocationStrategyName::ConsistentHashing => {
                AllocationStrategy::ConsistentHashing(self.consistent_hashing.clone())
            }
            AllocationStrategyName::External => AllocationStrategy::External(External {
                pinned: None,
                max_moves_in_flight: self.least_shard.max_moves_in_flight,
            }),
        }
    }

    /// Returns the passivation settings; `None` if entities are remembered, because they never
    /// passivate. Settings that switch passivation off are returned as well.
    #[must_use]
    pub fn automatic_passivation(&self) -> Option<&PassivationConfig> {
        (!self.remember_entities).then_some(&self.passivation)
    }

    /// Checks these settings and those of every type in `types`: their bounds, and
    /// `handoff-timeout` against the length of the shutdown phase in which shards move away. These
    /// settings must be valid even if every type overrides a wrong one.
    ///
    /// # Errors
    /// [`ShardingConfigError`] describes the first fault, in this order: `state-store-mode`, this
    /// section, more than [`TYPES_MAX`] types, then the types by name, each with its overrides and
    /// the values of this section. The order within a section is: a value out of bounds, a maximum
    /// below its minimum, `handoff-timeout`, `remember-entities`.
    pub fn check(&self, shutdown_phase: Duration) -> Result<(), ShardingConfigError> {
        if self.state_store_mode == StateStoreMode::Persistence {
            return Err(ShardingConfigError::Persistence);
        }
        self.check_as(SECTION, shutdown_phase)?;
        if self.types.len() > TYPES_MAX {
            let value = self.types.len().to_string();
            return Err(out_of_range(SECTION, ("types", value, "must have 1,024 entries at most")));
        }
        self.types.keys().try_for_each(|entity_type| {
            let section = format!("{SECTION}.types.{entity_type}");
            self.of(entity_type).check_as(&section, shutdown_phase)
        })
    }

    /// Checks one section, which errors name: bounds first (durations, numbers, limits, roles,
    /// passivation), then contradictions, then `handoff-timeout`, which must be shorter than
    /// `phase`, then `remember-entities`. Does not check `types` and `state-store-mode`, nor the
    /// settings without an implementation, which the whole configuration checks.
    fn check_as(&self, section: &str, phase: Duration) -> Result<(), ShardingConfigError> {
        let checks = self.times().into_iter().chain(self.numbers()).chain(self.limits());
        let checks = checks.chain(self.roles());
        if let Some((_, wrong)) = checks.into_iter().find(|(right, _)| !right) {
            return Err(out_of_range(section, wrong));
        }
        if let Some(wrong) = self.passivation.wrong() {
            return Err(out_of_range(&format!("{section}.passivation"), wrong));
        }
        if let Some(wrong) = self.contradiction(section) {
            return Err(wrong);
        }
        if self.handoff_timeout >= phase {
            let (section, handoff) = (section.to_owned(), self.handoff_timeout);
            return Err(ShardingConfigError::HandoffOutlastsPhase { section, handoff, phase });
        }
        if self.remember_entities {
            return Err(ShardingConfigError::RememberEntities { section: section.to_owned() });
        }
        Ok(())
    }

    /// The first maximum that is below its minimum: of `move-retry`, of `restart-backoff`, then of
    /// the window of `passivation.composite`, whatever strategy is chosen. Equal ones are allowed.
    fn contradiction(&self, section: &str) -> Option<ShardingConfigError> {
        let composite = &self.passivation.composite;
        let (low, high) =
            (composite.minimum_window_proportion, composite.maximum_window_proportion);
        let pairs = [
            (
                self.move_retry_max < self.move_retry_min,
                ("move-retry-max", time(self.move_retry_max)),
                ("move-retry-min", time(self.move_retry_min)),
            ),
            (
                self.restart_backoff_max < self.restart_backoff_min,
                ("restart-backoff-max", time(self.restart_backoff_max)),
                ("restart-backoff-min", time(self.restart_backoff_min)),
            ),
            (
                high < low,
                ("passivation.composite.maximum-window-proportion", high.to_string()),
                ("passivation.composite.minimum-window-proportion", low.to_string()),
            ),
        ];
        let found = pairs.into_iter().find(|(is_wrong, ..)| *is_wrong);
        found.map(|(_, (setting, value), (other, than))| {
            let section = section.to_owned();
            ShardingConfigError::Contradiction { section, setting, value, other, than }
        })
    }

    /// Checks the durations that must not be zero. Others may be: 0 switches `slow-handler-after`
    /// off. A maximum is at least its minimum ([`contradiction`](Self::contradiction)). Durations
    /// that are too long are found elsewhere.
    fn times(&self) -> Vec<(bool, SettingOutOfBounds)> {
        let positive = [
            ("waiting-for-state-timeout", self.waiting_for_state_timeout),
            ("updating-state-timeout", self.updating_state_timeout),
            ("retry-interval", self.retry_interval),
            ("audit-interval", self.audit_interval),
            ("move-retry-min", self.move_retry_min),
            ("handoff-timeout", self.handoff_timeout),
            ("lane-broken-after", self.lane_broken_after),
            ("restart-backoff-min", self.restart_backoff_min),
            ("ask-timeout", self.ask_timeout),
            ("rebalance-interval", self.rebalance_interval),
            (
                "entity-recovery-constant-rate.frequency",
                self.entity_recovery_constant_rate.frequency,
            ),
            ("healthcheck.timeout", self.healthcheck.timeout),
        ];
        let positive = positive.map(|(setting, value)| {
            (!value.is_zero(), (setting, time(value), "must be longer than nothing"))
        });
        positive.into()
    }

    /// Checks the numbers that are no limits of buffers, also those of strategies that are not
    /// chosen: at least 1 each and not bounded above, except `number-of-shards` (1 to
    /// [`SHARDS_MAX`]) and the relative limit of rounds (above 0, at most 1; NaN is out of range).
    fn numbers(&self) -> Vec<(bool, SettingOutOfBounds)> {
        let rounds = &self.least_shard_rounds;
        let at_least_one = [
            ("min-nr-of-members", self.min_nr_of_members),
            (
                "entity-recovery-constant-rate.number-of-entities",
                self.entity_recovery_constant_rate.number_of_entities,
            ),
            ("least-shard.max-moves-in-flight", self.least_shard.max_moves_in_flight),
            ("least-shard-rounds.rebalance-threshold", rounds.rebalance_threshold),
            ("least-shard-rounds.max-simultaneous-rebalance", rounds.max_simultaneous_rebalance),
        ];
        let at_least_one = at_least_one.map(|(setting, value)| {
            (value >= 1, (setting, value.to_string(), "must be at least 1"))
        });
        let relative = rounds.rebalance_relative_limit;
        let others = [
            (
                (1..=SHARDS_MAX).contains(&self.number_of_shards),
                (
                    "number-of-shards",
                    self.number_of_shards.to_string(),
                    "must be 1 to 1,000,000, about ten per node",
                ),
            ),
            (
                relative > 0.0 && relative <= 1.0,
                (
                    "least-shard-rounds.rebalance-relative-limit",
                    relative.to_string(),
                    "must be above 0 and at most 1",
                ),
            ),
        ];
        at_least_one.into_iter().chain(others).collect()
    }

    /// Checks that roles have at most [`NAME_BYTES_MAX`] bytes: no member has a role with a longer
    /// name, and other nodes refuse it. An empty name is accepted. The error does not repeat it.
    fn roles(&self) -> [(bool, SettingOutOfBounds); 2] {
        let roles = [("role", &self.role), ("coordinator-role", &self.coordinator_role)];
        roles.map(|(setting, role)| {
            let bytes = role.as_ref().map_or(0, String::len);
            let value = format!("a name of {bytes} bytes");
            (bytes <= NAME_BYTES_MAX, (setting, value, "must have at most 128 bytes"))
        })
    }

    /// Checks the limits of buffers, held messages, mailboxes and remembered decisions: 1 to
    /// 100,000,000 messages, 1 byte to 1 TiB, 1 to 1,048,576 decisions.
    fn limits(&self) -> Vec<(bool, SettingOutOfBounds)> {
        const MESSAGES: (usize, &str) = (100_000_000, "must be 1 to 100,000,000 messages");
        const BYTES: (usize, &str) = (1 << 40, "must be 1 byte to 1 TiB");
        let limits: [(&'static str, usize, usize, &'static str); 7] = [
            ("buffer-size", self.buffer_size, MESSAGES.0, MESSAGES.1),
            ("buffer-bytes-max", self.buffer_bytes_max, BYTES.0, BYTES.1),
            ("held-size", self.held_size, MESSAGES.0, MESSAGES.1),
            ("held-bytes-max", self.held_bytes_max, BYTES.0, BYTES.1),
            ("mailbox-size", self.mailbox_size, MESSAGES.0, MESSAGES.1),
            ("mailbox-bytes-max", self.mailbox_bytes_max, BYTES.0, BYTES.1),
            ("remembered-decisions", self.remembered_decisions, 1 << 20, "must be 1 to 1,048,576"),
        ];
        let within = |(setting, value, high, must): (&'static str, usize, usize, &'static str)| {
            ((1..=high).contains(&value), (setting, value.to_string(), must))
        };
        limits.map(within).into()
    }
}

/// Replaces a value if there is another.
fn set<T>(value: &mut T, other: Option<T>) {
    if let Some(other) = other {
        *value = other;
    }
}

/// The duration as it is written in the configuration.
fn time(value: Duration) -> String {
    humantime::format_duration(value).to_string()
}

fn out_of_range(section: &str, (setting, value, must): SettingOutOfBounds) -> ShardingConfigError {
    ShardingConfigError::OutOfRange { section: section.to_owned(), setting, value, must }
}

#[cfg(test)]
mod tests;
