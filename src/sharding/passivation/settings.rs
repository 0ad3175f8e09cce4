//! Settings of passivation, `[cluster.sharding.passivation]`: which entities stop to make room, and
//! when.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Highest limit of active entities: slots are 32-bit numbers.
pub const ACTIVE_ENTITIES_MAX: usize = 1 << 30;

/// Most counters in a row of a frequency sketch, whatever the limit: 2²⁴ are 8 MiB.
pub const SKETCH_WIDTH_MAX: usize = 1 << 24;

/// `[cluster.sharding.passivation]`: automatic passivation. An entity can always passivate itself.
///
/// An entity that handles a message or has messages waiting is never stopped. With
/// `remember-entities` automatic passivation is off.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PassivationConfig {
    /// `idle` alone, or a limit as well. `composite` has the most messages find their entity
    /// active, whatever the pattern, and costs about 60 bytes per entity.
    pub strategy: PassivationStrategy,
    /// Stops an entity that got no message for this long, with every strategy except `none`. An
    /// entity with a pending timer (`Context::after`) or a receive timeout is not stopped for being
    /// idle; a task (`Context::spawn`) does not keep its entity. 0: no entity is stopped for being
    /// idle.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// Time between two checks, at least 10 ms. Unset: half of `idle-timeout`. With `idle` alone a
    /// check costs a few nanoseconds per entity.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub idle_interval: Option<Duration>,
    /// Most active entities of a region, at least 1. Only busy entities exceed it: an entity over
    /// the limit stops as soon as it is idle. A pending timer does not protect its entity; its loss
    /// is counted and logged (`sharding.lost_timers`).
    pub active_entity_limit: usize,
    /// Whether the limit applies to a region or to each shard.
    pub scope: LimitScope,
    /// Levels of `segmented`: `[cluster.sharding.passivation.segmented]`
    pub segmented: Segmented,
    /// Aging of counts: `[cluster.sharding.passivation.least-frequently-used]`
    pub least_frequently_used: LeastFrequentlyUsed,
    /// Window and filter: `[cluster.sharding.passivation.composite]`
    pub composite: Composite,
}

impl Default for PassivationConfig {
    fn default() -> Self {
        Self {
            strategy: PassivationStrategy::Idle,
            idle_timeout: Duration::from_secs(120),
            idle_interval: None,
            active_entity_limit: 100_000,
            scope: LimitScope::Region,
            segmented: Segmented::default(),
            least_frequently_used: LeastFrequentlyUsed::default(),
            composite: Composite::default(),
        }
    }
}

/// Strategies that choose the entity to stop first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PassivationStrategy {
    /// No entity is stopped.
    None,
    /// Entities that were idle for `idle-timeout`; no limit.
    #[default]
    Idle,
    /// Over the limit, the entity whose last message is the oldest.
    LeastRecentlyUsed,
    /// Least recently used in levels: entities that are used again are better protected.
    Segmented,
    /// Over the limit, the entity whose last message is the youngest: for entities that are all
    /// used in a loop.
    MostRecentlyUsed,
    /// Over the limit, the entity with the fewest messages.
    LeastFrequentlyUsed,
    /// An admission window, a filter by frequency, and any of the policies above.
    Composite,
}

/// Entities to which a limit applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitScope {
    /// Active entities of all shards of a region, with one policy for all.
    #[default]
    Region,
    /// An equal part for each shard that runs here, each with its own policy, as in Pekko.
    Shard,
}

/// Policy that chooses the entity to stop.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Policy {
    /// The entity with the oldest last message stops first.
    #[default]
    LeastRecentlyUsed,
    /// Least recently used in levels.
    Segmented(Segmented),
    /// The entity with the youngest last message stops first.
    MostRecentlyUsed,
    /// The entity with the fewest messages stops first.
    LeastFrequentlyUsed(LeastFrequentlyUsed),
}

/// Settings of the levels of least recently used.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Segmented {
    /// Shares of the limit by level, the lowest first, from which entities stop; 2 to 8 levels,
    /// which add up to 1.
    pub proportions: Vec<f64>,
}

impl Default for Segmented {
    fn default() -> Self {
        Self { proportions: vec![0.2, 0.8] }
    }
}

/// Settings of least frequently used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeastFrequentlyUsed {
    /// Ages the counts, so that an entity that was popular once does not stay for ever.
    pub dynamic_aging: bool,
}

/// Settings of an admission window and a filter before a main area.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Composite {
    /// Policy of the main area.
    pub main: Policy,
    /// Initial share of the limit for the window; 0 to 1. The window adapts its size, in the
    /// direction that raises the share of messages that find their entity active.
    pub window_proportion: f64,
    /// Least share of the limit for the window. If it is the greatest share as well, the window
    /// keeps its size; if both and `window-proportion` are 0, there is no window.
    pub minimum_window_proportion: f64,
    /// Greatest share of the limit for the window.
    pub maximum_window_proportion: f64,
    /// How the size of the window adapts.
    pub hill_climbing: HillClimbing,
    /// How frequencies are estimated. A candidate from the window must have been used more often
    /// lately than the entity that it replaces.
    pub frequency_sketch: FrequencySketch,
}

impl Default for Composite {
    fn default() -> Self {
        Self {
            main: Policy::Segmented(Segmented::default()),
            window_proportion: 0.01,
            minimum_window_proportion: 0.01,
            maximum_window_proportion: 1.0,
            hill_climbing: HillClimbing::default(),
            frequency_sketch: FrequencySketch::default(),
        }
    }
}

/// Settings of the adaptation of an admission window.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HillClimbing {
    /// Messages between two steps, as a multiple of the limit.
    pub adjust_multiplier: f64,
    /// The first step, as a share of the limit.
    pub initial_step: f64,
    /// The steps start again at the first size when the share of messages that find their entity
    /// active changes by this much.
    pub restart_threshold: f64,
    /// Factor between the sizes of two steps.
    pub step_decay: f64,
}

impl Default for HillClimbing {
    fn default() -> Self {
        Self {
            adjust_multiplier: 10.0,
            initial_step: 0.0625,
            restart_threshold: 0.05,
            step_decay: 0.98,
        }
    }
}

/// Settings of the estimation of frequencies.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FrequencySketch {
    /// Rows of counters, 1 to 8: with more rows an estimate is less often too high.
    pub depth: usize,
    /// Counters in a row, as a multiple of the limit's next power of two; 4 bits each.
    pub width_multiplier: usize,
    /// Messages after which all counts are halved, as a multiple of the limit.
    pub reset_multiplier: f64,
}

impl Default for FrequencySketch {
    fn default() -> Self {
        Self { depth: 4, width_multiplier: 4, reset_multiplier: 10.0 }
    }
}

impl PassivationConfig {
    /// Returns the policy of a strategy that has a limit and no window, with its settings of this
    /// section; `None` for `none`, `idle` and `composite`.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        match self.strategy {
            PassivationStrategy::None
            | PassivationStrategy::Idle
            | PassivationStrategy::Composite => None,
            PassivationStrategy::LeastRecentlyUsed => Some(Policy::LeastRecentlyUsed),
            PassivationStrategy::Segmented => Some(Policy::Segmented(self.segmented.clone())),
            PassivationStrategy::MostRecentlyUsed => Some(Policy::MostRecentlyUsed),
            PassivationStrategy::LeastFrequentlyUsed => {
                Some(Policy::LeastFrequentlyUsed(self.least_frequently_used.clone()))
            }
        }
    }

    /// Returns the first setting out of bounds: its name within the section, its value, and the
    /// values allowed. Checks, in this order, `idle-interval` (above 0), `active-entity-limit` (1
    /// to [`ACTIVE_ENTITIES_MAX`]), the proportions of all levels, and the numbers of `composite`,
    /// also for strategies that are not chosen.
    ///
    /// Durations that are too long, and a greatest share below the least one, are found elsewhere.
    /// An `idle-interval` below 10 ms is accepted and acts as 10 ms.
    #[must_use]
    pub fn wrong(&self) -> Option<SettingOutOfBounds> {
        let limit = self.active_entity_limit;
        let checks = [
            (
                self.idle_interval.is_none_or(|interval| !interval.is_zero()),
                ("idle-interval", "0s".to_owned(), "must be longer than nothing"),
            ),
            (
                (1..=ACTIVE_ENTITIES_MAX).contains(&limit),
                ("active-entity-limit", limit.to_string(), "must be 1 to 1,073,741,824"),
            ),
        ];
        first_wrong(checks).or_else(|| self.wrong_levels()).or_else(|| self.composite.wrong())
    }

    /// Returns the first levels that do not fit, the section's own or those of the main area of
    /// `composite`, with the name of their setting.
    fn wrong_levels(&self) -> Option<SettingOutOfBounds> {
        let all = [
            ("segmented.proportions", Some(&self.segmented)),
            ("composite.main.proportions", self.composite.main.levels()),
        ];
        let mut given = all.into_iter().filter_map(|(setting, levels)| Some((setting, levels?)));
        let (setting, wrong) = given.find(|(_, levels)| !levels.fit())?;
        let value = format!("{:?}", wrong.proportions);
        Some((setting, value, "must be 2 to 8 shares above 0 that are 1 together"))
    }
}

impl Policy {
    const fn levels(&self) -> Option<&Segmented> {
        match self {
            Self::Segmented(levels) => Some(levels),
            _ => None,
        }
    }
}

impl Composite {
    /// Returns the first number out of bounds, in this order: the three shares of the window, the
    /// initial step and the step decay (each 0 to 1), the restart threshold (above 0, not bounded
    /// above), the multipliers of the optimizer and of the halving of counts ([`multiple`]), the
    /// depth (1 to 8), the width multiplier (1 to 64). NaN is out of bounds everywhere.
    ///
    /// The policies' levels are checked elsewhere. A greatest share below the least one is not out
    /// of bounds here.
    fn wrong(&self) -> Option<SettingOutOfBounds> {
        let sketch = &self.frequency_sketch;
        let share = |setting, value: f64| {
            ((0.0..=1.0).contains(&value), (setting, value.to_string(), "must be 0 to 1"))
        };
        let checks = [
            share("composite.window-proportion", self.window_proportion),
            share("composite.minimum-window-proportion", self.minimum_window_proportion),
            share("composite.maximum-window-proportion", self.maximum_window_proportion),
            share("composite.hill-climbing.initial-step", self.hill_climbing.initial_step),
            share("composite.hill-climbing.step-decay", self.hill_climbing.step_decay),
            (
                self.hill_climbing.restart_threshold > 0.0,
                (
                    "composite.hill-climbing.restart-threshold",
                    self.hill_climbing.restart_threshold.to_string(),
                    "must be above 0",
                ),
            ),
            multiple(
                "composite.hill-climbing.adjust-multiplier",
                self.hill_climbing.adjust_multiplier,
            ),
            multiple("composite.frequency-sketch.reset-multiplier", sketch.reset_multiplier),
            (
                (1..=8).contains(&sketch.depth),
                ("composite.frequency-sketch.depth", sketch.depth.to_string(), "must be 1 to 8"),
            ),
            (
                (1..=64).contains(&sketch.width_multiplier),
                (
                    "composite.frequency-sketch.width-multiplier",
                    sketch.width_multiplier.to_string(),
                    "must be 1 to 64",
                ),
            ),
        ];
        first_wrong(checks)
    }
}

/// A setting out of bounds: its name, its value, and the values allowed.
pub type SettingOutOfBounds = (&'static str, String, &'static str);

/// Returns the setting of the first check whose flag is false.
fn first_wrong(
    checks: impl IntoIterator<Item = (bool, SettingOutOfBounds)>,
) -> Option<SettingOutOfBounds> {
    checks.into_iter().find(|(right, _)| !right).map(|(_, wrong)| wrong)
}

/// Makes a check, for [`first_wrong`], of a setting that is a multiple of something: 0.01 to
/// 1,000,000.
fn multiple(setting: &'static str, value: f64) -> (bool, SettingOutOfBounds) {
    let right = (0.01..=1e6).contains(&value);
    (right, (setting, value.to_string(), "must be 0.01 to 1,000,000"))
}

impl Segmented {
    /// Returns whether there are 2 to 8 shares, all above 0, with a sum within 0.000001 of 1.
    fn fit(&self) -> bool {
        let shares = &self.proportions;
        (2..=8).contains(&shares.len())
            && shares.iter().all(|&share| share > 0.0)
            && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-6
    }
}
