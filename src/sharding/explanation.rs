//! The explanation of a shard's home: the decisions that coordinators and regions remember, grouped
//! by decision (docs/protocol/sharding.md#queries-and-stops).
//!
//! A query collects [`DecisionReport`]s from the nodes; [`Explanation`] sorts and prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use humantime_serde::re::humantime;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

use super::decision_history::{DecisionHistory, Remembered};
use super::ids::{EntityId, EntityType, Generation, InvalidName, RegionId, ShardId};

/// Most decisions that each coordinator and each region reports: the newest.
pub const TOLD_MAX: usize = 64;

/// End of the year 9999, in milliseconds since 1970; later times of other nodes are printed as this
/// one.
const MILLIS_MAX: u64 = 253_402_300_799_999;

/// Subject of an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExplanationSubject {
    /// The home of a shard.
    Shard(ShardId),
    /// The home of an entity, which is the home of its shard.
    Entity(EntityId),
    /// The shards that came to a node and left it.
    Node(ReplicaId),
}

impl ExplanationSubject {
    /// Asks for the home of the entity with this id.
    ///
    /// # Errors
    /// [`InvalidName`] if the id is empty or too long.
    pub fn entity(id: &str) -> Result<Self, InvalidName> {
        EntityId::new(id).map(Self::Entity)
    }
}

impl fmt::Display for ExplanationSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

impl ExplanationSubject {
    /// Writes the subject with its kind: `shard 7`, `entity "alice"`, `node n1`.
    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        match self {
            Self::Shard(shard) => write!(f, "shard {shard}"),
            Self::Entity(id) => write!(f, "entity {:?}", id.as_str()),
            Self::Node(node) => write!(f, "node {}", name(*node)),
        }
    }
}

/// Function that returns the name of a node.
type NameOf<'a> = &'a dyn Fn(ReplicaId) -> String;

/// Names a node by its incarnation, where nothing else is known.
const BY_INCARNATION: NameOf<'static> = &|node| node.to_string();

/// Subject of a query to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Topic {
    /// Decisions about a shard.
    #[serde(rename = "s")]
    Shard(ShardId),
    /// Decisions that concern a region.
    #[serde(rename = "r")]
    Region(RegionId),
}

impl Topic {
    /// Returns whether the decision is about the shard, or names the region as old home, new home
    /// or predecessor.
    pub(super) fn covers(self, entry: &Remembered) -> bool {
        match self {
            Self::Shard(shard) => entry.shard == shard,
            Self::Region(region) => entry.concerns(region),
        }
    }
}

/// Part of a node that remembers decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecisionSource {
    /// A coordinator that runs there, or ran.
    Coordinator,
    /// The region of that node.
    Region,
}

impl fmt::Display for DecisionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Coordinator => "coordinator",
            Self::Region => "region",
        })
    }
}

/// A decision as one coordinator or region remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DecisionReport {
    /// Node of the coordinator or region.
    pub by: ReplicaId,
    /// Which part of that node.
    pub witness: DecisionSource,
    /// The decision that it remembers.
    pub remembered: Remembered,
}

/// Returns the decisions of a history that a topic covers, the entry added last first, at most
/// [`TOLD_MAX`]; perhaps none. `by` and `witness` state where the history is.
pub(super) fn newest_reports(
    by: ReplicaId,
    witness: DecisionSource,
    ring: &DecisionHistory,
    topic: Topic,
) -> Vec<DecisionReport> {
    let newest = ring.iter().rev().filter(|entry| topic.covers(entry)).take(TOLD_MAX);
    newest.map(|entry| DecisionReport { by, witness, remembered: entry.clone() }).collect()
}

/// A decision as all nodes that were asked remember it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExplainedDecision {
    /// Shard of the decision.
    pub shard: ShardId,
    /// Generation of the decision.
    pub generation: Generation,
    /// Accounts of coordinators first, then of regions.
    pub accounts: Vec<DecisionReport>, // 1 to 2 of each node
}

/// Answer to a question about a shard, an entity or a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Type of the entities.
    pub entity_type: EntityType,
    /// Subject of the question.
    pub about: ExplanationSubject,
    /// The shard, unless the question is about a node.
    pub shard: Option<ShardId>,
    /// Its home by the newest acknowledged decision known to this node.
    pub home: Option<RegionId>,
    /// The decision of the highest generation first. Some may be missing: histories are limited,
    /// and the history of a node that is gone is lost.
    pub decisions: Vec<ExplainedDecision>, // ≤ 2 × TOLD_MAX of each node
    /// Nodes that did not answer in time; their decisions are missing.
    pub unanswered: BTreeSet<RegionId>, // ≤ members
}

impl Explanation {
    /// Groups the accounts by generation and shard: the highest generation first, then the highest
    /// shard; in a decision coordinators before regions, each by the wall clock of their node.
    /// Leaves [`shard`](Self::shard) and [`home`](Self::home) empty; the caller sets them unless
    /// the question is about a node.
    #[must_use]
    pub fn new(
        entity_type: EntityType,
        about: ExplanationSubject,
        recalled: DecisionReports,
    ) -> Self {
        let DecisionReports { accounts, unanswered } = recalled;
        let mut by_decision: BTreeMap<(Generation, ShardId), Vec<DecisionReport>> = BTreeMap::new();
        for account in accounts {
            let Remembered { generation, shard, .. } = account.remembered;
            by_decision.entry((generation, shard)).or_default().push(account);
        }
        let explained = |((generation, shard), mut accounts): (_, Vec<DecisionReport>)| {
            accounts.sort_by_key(|account| (account.witness, account.remembered.at, account.by));
            ExplainedDecision { shard, generation, accounts }
        };
        let decisions = by_decision.into_iter().rev().map(explained).collect();
        Self { entity_type, about, shard: None, home: None, decisions, unanswered }
    }
}

/// Answers of the nodes to a query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DecisionReports {
    /// Accounts, in no particular order.
    pub accounts: Vec<DecisionReport>, // ≤ 2 × TOLD_MAX of each node
    /// Nodes that did not answer in time.
    pub unanswered: BTreeSet<RegionId>, // ≤ members
}

impl Explanation {
    /// Returns the text of [`Display`](fmt::Display) with the names of nodes that `name` returns.
    /// `Display` itself prints their incarnations.
    #[must_use]
    pub fn text(&self, name: impl Fn(ReplicaId) -> String) -> String {
        let mut text = String::new();
        let _ = self.write(&mut text, &name); // a String takes all
        text
    }

    /// Writes a first line with the subject and the shard's home, then the decisions, then a line
    /// for each node that has not answered; every line ends with a line feed. With a shard, the
    /// first line also states a missing home and the lack of decisions; without a shard, it states
    /// the number of decisions and no home.
    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        let Self { entity_type, about, shard, home, decisions, unanswered } = self;
        about.write(f, name)?;
        write!(f, " of {entity_type}")?;
        match (about, shard) {
            (ExplanationSubject::Entity(_), Some(shard)) => {
                write!(f, " is in shard {shard}, which")?;
            }
            (_, Some(_)) => {}
            (_, None) => write!(f, " had a part in {} decisions", decisions.len())?,
        }
        match (shard, home) {
            (Some(_), Some(home)) => write!(f, " lives on {}", name(home.replica()))?,
            (Some(_), None) => f.write_str(" has no home, as far as this node knows")?,
            (None, _) => {}
        }
        if decisions.is_empty() && shard.is_some() {
            f.write_str("; no node that answered remembers a decision")?;
        }
        writeln!(f)?;
        decisions.iter().try_for_each(|decision| decision.write(f, name))?;
        for node in unanswered {
            let node = name(node.replica());
            writeln!(f, "{node} has not answered: its decisions are missing")?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

impl ExplainedDecision {
    /// Writes a line with the time in UTC, generation, shard, old and new home (`to no node`
    /// without one), and an indented line for each account. Time and homes are those of the first
    /// account: of a coordinator, if one remembers the decision. Writes nothing if there is no
    /// account.
    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        let Some(DecisionReport { remembered: first, .. }) = self.accounts.first() else {
            return Ok(());
        };
        let at = Duration::from_millis(first.at.as_millis().min(MILLIS_MAX));
        let at = humantime::format_rfc3339_millis(UNIX_EPOCH + at);
        write!(f, "{at}  decision {}: shard {}", self.generation, self.shard)?;
        let called = |region: RegionId| name(region.replica());
        match (first.from.map(called), first.to.map(called)) {
            (Some(from), Some(to)) => writeln!(f, " from {from} to {to}")?,
            (None, Some(to)) => writeln!(f, " to {to}")?,
            (Some(from), None) => writeln!(f, " from {from} to no node")?,
            (None, None) => writeln!(f, " to no node")?,
        }
        self.accounts.iter().try_for_each(|account| {
            f.write_str("    ")?;
            account.write(f, name)?;
            writeln!(f)
        })
    }
}

impl fmt::Display for ExplainedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

impl DecisionReport {
    /// Writes source, node, reason, the time to each phase that is known, `not carried out` if the
    /// decision was neither settled nor drained, and the awaited regions, without a line end.
    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        let Remembered { why, queued, written, drained, settled, awaited, .. } = &self.remembered;
        write!(f, "{} on {}: {why}", self.witness, name(self.by))?;
        let phases = [("queued", queued), ("written", written), ("drained", drained)];
        for (phase, took) in phases.into_iter().chain([("settled", settled)]) {
            if let Some(took) = took {
                write!(f, ", {phase} after {took:?}")?;
            }
        }
        if !self.remembered.is_over() {
            f.write_str(", not carried out")?;
        }
        for (at, region) in awaited.iter().enumerate() {
            let before = if at == 0 { ", awaited" } else { " and" };
            write!(f, "{before} {}", name(region.replica()))?;
        }
        Ok(())
    }
}

impl fmt::Display for DecisionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::clock::{Instant, Now, WallTime};
    use ostraca_ddata::types::Term;

    use super::*;

    const SHARD: ShardId = ShardId::new(7);

    fn region(id: u64) -> RegionId {
        RegionId::new(ReplicaId::new(id))
    }

    fn account(by: u64, witness: DecisionSource, seq: u64, ms: u64) -> DecisionReport {
        let by = ReplicaId::new(by);
        let generation = Generation::new(Term { number: 4, owner: ReplicaId::new(9) }, seq);
        let wall = WallTime::from_millis(1_700_000_000_000 + ms);
        let now = Now { mono: Instant::default(), wall };
        let remembered = Remembered::new(now, SHARD, generation, "fewest shards".into());
        DecisionReport { by, witness, remembered }
    }

    fn millis(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    fn moved() -> Explanation {
        let mut first = account(9, DecisionSource::Coordinator, 1, 0);
        first.remembered = Remembered {
            to: Some(region(1)),
            written: millis(3),
            settled: millis(5),
            ..first.remembered
        };
        let mut second = account(9, DecisionSource::Coordinator, 2, 900);
        second.remembered = Remembered {
            from: Some(region(1)),
            to: Some(region(2)),
            queued: millis(1),
            awaited: vec![region(1)],
            ..second.remembered
        };
        let mut left = account(1, DecisionSource::Region, 2, 500); // its clock is behind
        left.remembered = Remembered {
            from: Some(region(1)),
            to: Some(region(2)),
            drained: millis(12),
            why: "told to release it".into(),
            ..left.remembered
        };
        let recalled = DecisionReports {
            accounts: vec![left, second, first],
            unanswered: BTreeSet::from([region(3)]),
        };
        let entity_type = EntityType::new("counter").expect("a name");
        let about = ExplanationSubject::entity("alice").expect("a name");
        let (shard, home) = (Some(SHARD), Some(region(2)));
        Explanation { shard, home, ..Explanation::new(entity_type, about, recalled) }
    }

    #[test]
    fn newest_decision_first_and_coordinator_before_regions() {
        let told: Vec<_> = moved()
            .decisions
            .iter()
            .map(|decision| {
                let by = decision.accounts.iter().map(|account| account.by.get());
                (decision.generation.seq, by.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(told, [(2, vec![9, 1]), (1, vec![9])]);
    }

    #[test]
    fn explanation_text_lists_decisions() {
        let expected = "\
entity \"alice\" of counter is in shard 7, which lives on 2
2023-11-14T22:13:20.900Z  decision 4.2: shard 7 from 1 to 2
    coordinator on 9: fewest shards, queued after 1ms, not carried out, awaited 1
    region on 1: told to release it, drained after 12ms
2023-11-14T22:13:20.000Z  decision 4.1: shard 7 to 1
    coordinator on 9: fewest shards, written after 3ms, settled after 5ms
3 has not answered: its decisions are missing
";
        assert_eq!(moved().text(|node| format!("{:x}", node.get())), expected);
        let by_incarnation = "lives on 0000000000000002\n";
        assert!(moved().to_string().contains(by_incarnation), "{}", moved());
    }

    #[test]
    fn any_remote_value_can_be_printed() {
        let mut strange = account(1, DecisionSource::Region, 1, 0);
        strange.remembered.at = WallTime::from_millis(u64::MAX);
        let recalled = DecisionReports { accounts: vec![strange], ..DecisionReports::default() };
        let about = ExplanationSubject::Node(ReplicaId::new(1));
        let entity_type = EntityType::new("counter").expect("a name");
        let text = Explanation::new(entity_type, about, recalled).to_string();
        assert!(
            text.starts_with(
                "node 0000000000000001 of counter had a part in 1 decisions\n9999-12-31"
            ),
            "{text}"
        );
    }

    #[test]
    fn node_explains_decisions_that_concern_it() {
        let of = |from: Option<u64>, to: Option<u64>, awaited: &[u64]| Remembered {
            from: from.map(region),
            to: to.map(region),
            awaited: awaited.iter().copied().map(region).collect(),
            ..account(9, DecisionSource::Coordinator, 1, 0).remembered
        };
        let topic = Topic::Region(region(1));
        let covered =
            [of(Some(1), None, &[]), of(None, Some(1), &[]), of(Some(2), Some(3), &[2, 1])];
        assert!(covered.iter().all(|entry| topic.covers(entry)));
        assert!(!topic.covers(&of(Some(2), Some(3), &[2])));
    }
}
