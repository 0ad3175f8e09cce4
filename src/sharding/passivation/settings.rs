//! `[cluster.sharding.passivation]`: who is stopped to make room, and when.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Most active entities that a limit can name: slots are 32-bit numbers.
pub const ACTIVE_ENTITIES_MAX: usize = 1 << 30;

/// Most counters in a row of a frequency sketch, whatever the limit: 2²⁴ are 8 MiB.
pub const SKETCH_WIDTH_MAX: usize = 1 << 24;

/// `[cluster.sharding.passivation]`: automatic passivation. An entity can always ask for its own.
///
/// Never stopped: an entity that is handling a message or has messages waiting. With
/// `remember-entities` all of this is off.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Passivation {
    /// `idle` alone, or a limit as well; `composite` keeps the most messages from finding their
    /// entity stopped, whatever the pattern, and costs about 60 bytes an entity.
    pub strategy: Strategy,
    /// Stops an entity that got no message for this long, whatever the strategy but `none`. An
    /// entity with a pending timer (`Context::after`) or a receive timeout is not stopped for that;
    /// a task (`Context::spawn`) does not keep its entity. 0: no entity is stopped for being idle.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// How often is looked, at most each 10 ms. Unset: half of `idle-timeout`. With `idle` alone a look
    /// costs a few nanoseconds for each entity.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub idle_interval: Option<Duration>,
    /// Most active entities of a region, at least 1. Exceeded only by entities that are busy: one
    /// that was over the limit while it was busy stops as soon as it has nothing to do. A pending
    /// timer does not protect its entity: its loss is counted and logged (`sharding.lost_timers`).
    pub active_entity_limit: usize,
    /// What the limit counts.
    pub scope: Scope,
    /// `[cluster.sharding.passivation.segmented]`
    pub segmented: Segmented,
    /// `[cluster.sharding.passivation.least-frequently-used]`
    pub least_frequently_used: LeastFrequentlyUsed,
    /// `[cluster.sharding.passivation.composite]`
    pub composite: Composite,
}

impl Default for Passivation {
    fn default() -> Self {
        Self {
            strategy: Strategy::Idle,
            idle_timeout: Duration::from_secs(120),
            idle_interval: None,
            active_entity_limit: 100_000,
            scope: Scope::Region,
            segmented: Segmented::default(),
            least_frequently_used: LeastFrequentlyUsed::default(),
            composite: Composite::default(),
        }
    }
}

/// Who is stopped first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strategy {
    /// Nobody.
    None,
    /// Whoever was idle for `idle-timeout`; no limit.
    #[default]
    Idle,
    /// Over the limit, the one whose last message is the oldest.
    LeastRecentlyUsed,
    /// The same in levels: what is used again is better protected.
    Segmented,
    /// Over the limit, the one whose last message is the youngest: for entities that are all
    /// gone through in a loop.
    MostRecentlyUsed,
    /// Over the limit, the one with the fewest messages.
    LeastFrequentlyUsed,
    /// An admission window, a filter by frequency, and any of the above.
    Composite,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Active entities of all shards of a region, with one policy for them all.
    #[default]
    Region,
    /// An equal part for each shard that runs here, with a policy each, as in Pekko.
    Shard,
}

/// A replacement policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Policy {
    /// The oldest last message goes first.
    #[default]
    LeastRecentlyUsed,
    /// The same in levels.
    Segmented(Segmented),
    /// The youngest last message goes first.
    MostRecentlyUsed,
    /// The fewest messages go first.
    LeastFrequentlyUsed(LeastFrequentlyUsed),
}

/// Levels of least recently used.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Segmented {
    /// Share of the limit of each level, the lowest first, from which entities go; together 1;
    /// 2 to 8 levels.
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
    /// Whoever was popular once does not stay for ever.
    pub dynamic_aging: bool,
}

/// An admission window and a filter before a main area.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Composite {
    /// Policy of the main area.
    pub main: Policy,
    /// Policy of the window. Unset: no window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Policy>,
    /// Share of the limit that the window starts with; 0 to 1.
    pub window_proportion: f64,
    /// The optimizer leaves the window at least this share.
    pub minimum_window_proportion: f64,
    /// The optimizer leaves the window at most this share.
    pub maximum_window_proportion: f64,
    /// Whether the window adapts.
    pub optimizer: Optimizer,
    /// How it adapts.
    pub hill_climbing: HillClimbing,
    /// Who comes from the window into the main area.
    pub filter: Filter,
    /// How frequencies are estimated.
    pub frequency_sketch: FrequencySketch,
}

impl Default for Composite {
    fn default() -> Self {
        Self {
            main: Policy::Segmented(Segmented::default()),
            window: Some(Policy::LeastRecentlyUsed),
            window_proportion: 0.01,
            minimum_window_proportion: 0.01,
            maximum_window_proportion: 1.0,
            optimizer: Optimizer::HillClimbing,
            hill_climbing: HillClimbing::default(),
            filter: Filter::FrequencySketch,
            frequency_sketch: FrequencySketch::default(),
        }
    }
}

/// Whether an admission window adapts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// It stays as it is.
    None,
    /// By trying.
    #[default]
    HillClimbing,
}

/// Who comes from the window into a full main area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// Everybody.
    None,
    /// Who was used more often lately than the one that would have to go.
    #[default]
    FrequencySketch,
}

/// How an admission window adapts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HillClimbing {
    /// A step each time that many messages came, as a multiple of the limit.
    pub adjust_multiplier: f64,
    /// The first step, as a share of the limit.
    pub initial_step: f64,
    /// The steps start anew when the share of messages that found their entity active changes by
    /// this much.
    pub restart_threshold: f64,
    /// Each step is the last one times this.
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

/// How frequencies are estimated.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FrequencySketch {
    /// Rows of counters, 1 to 8: each more makes an estimate less often too high.
    pub depth: usize,
    /// Counters in a row, as a multiple of the limit's next power of two; 4 bits each.
    pub width_multiplier: usize,
    /// All counts are halved each time that many messages came, as a multiple of the limit.
    pub reset_multiplier: f64,
}

impl Default for FrequencySketch {
    fn default() -> Self {
        Self { depth: 4, width_multiplier: 4, reset_multiplier: 10.0 }
    }
}

impl Passivation {
    /// The policy of a strategy that has a limit and no window.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        match self.strategy {
            Strategy::None | Strategy::Idle | Strategy::Composite => None,
            Strategy::LeastRecentlyUsed => Some(Policy::LeastRecentlyUsed),
            Strategy::Segmented => Some(Policy::Segmented(self.segmented.clone())),
            Strategy::MostRecentlyUsed => Some(Policy::MostRecentlyUsed),
            Strategy::LeastFrequentlyUsed => {
                Some(Policy::LeastFrequentlyUsed(self.least_frequently_used.clone()))
            }
        }
    }

    /// The first setting that makes no sense: its name within the section, its value, and what it
    /// must be.
    #[must_use]
    pub fn wrong(&self) -> Option<Wrong> {
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

    fn wrong_levels(&self) -> Option<Wrong> {
        let segmented = Policy::Segmented(self.segmented.clone());
        let policies = [&segmented, &self.composite.main].into_iter().chain(&self.composite.window);
        let levels = policies.filter_map(|policy| match policy {
            Policy::Segmented(levels) => Some(levels),
            _ => None,
        });
        let wrong = levels.into_iter().find(|levels| !levels.fit())?;
        let value = format!("{:?}", wrong.proportions);
        Some(("segmented.proportions", value, "must be 2 to 8 shares above 0 that are 1 together"))
    }
}

impl Composite {
    fn wrong(&self) -> Option<Wrong> {
        let (low, high) = (self.minimum_window_proportion, self.maximum_window_proportion);
        let sketch = &self.frequency_sketch;
        let share = |setting, value: f64| {
            ((0.0..=1.0).contains(&value), (setting, value.to_string(), "must be 0 to 1"))
        };
        let checks = [
            share("composite.window-proportion", self.window_proportion),
            (
                (0.0..=1.0).contains(&low) && low <= high,
                (
                    "composite.minimum-window-proportion",
                    low.to_string(),
                    "must be 0 to composite.maximum-window-proportion",
                ),
            ),
            share("composite.maximum-window-proportion", high),
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

/// A setting that makes no sense: its name, its value, what it must be.
pub type Wrong = (&'static str, String, &'static str);

fn first_wrong(checks: impl IntoIterator<Item = (bool, Wrong)>) -> Option<Wrong> {
    checks.into_iter().find(|(right, _)| !right).map(|(_, wrong)| wrong)
}

fn multiple(setting: &'static str, value: f64) -> (bool, Wrong) {
    let right = (0.01..=1e6).contains(&value);
    (right, (setting, value.to_string(), "must be 0.01 to 1,000,000"))
}

impl Segmented {
    fn fit(&self) -> bool {
        let shares = &self.proportions;
        (2..=8).contains(&shares.len())
            && shares.iter().all(|&share| share > 0.0)
            && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-6
    }
}
