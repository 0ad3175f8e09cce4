//! Why shards live where they live: what coordinators and regions remember of decisions, put
//! together by decision (spec/sharding.md §13).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use humantime_serde::re::humantime;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

use super::ids::{EntityId, EntityType, Generation, InvalidName, RegionId, ShardId};
use super::remembered::{Remembered, Ring};

/// Decisions that each coordinator and each region tells of: the newest.
pub const TOLD_MAX: usize = 64;

/// The end of the year 9999, in milliseconds since 1970: what others say is later is not printed.
const MILLIS_MAX: u64 = 253_402_300_799_999;

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    /// Where a shard lives.
    Shard(ShardId),
    /// Where an entity lives: its shard is.
    Entity(EntityId),
    /// What came to a node and left it.
    Node(ReplicaId),
}

impl About {
    /// Where the entity called `id` lives.
    ///
    /// # Errors
    /// [`InvalidName`] if none can be called that.
    pub fn entity(id: &str) -> Result<Self, InvalidName> {
        EntityId::new(id).map(Self::Entity)
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

impl About {
    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        match self {
            Self::Shard(shard) => write!(f, "shard {shard}"),
            Self::Entity(id) => write!(f, "entity {:?}", id.as_str()),
            Self::Node(node) => write!(f, "node {}", name(*node)),
        }
    }
}

/// Gives the name of a node.
type NameOf<'a> = &'a dyn Fn(ReplicaId) -> String;

/// The name of a node of which only the incarnation is known.
const BY_INCARNATION: NameOf<'static> = &|node| node.to_string();

/// What nodes are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Topic {
    /// Decisions about a shard.
    #[serde(rename = "s")]
    Shard(ShardId),
    /// Decisions in which a region has a part.
    #[serde(rename = "r")]
    Region(RegionId),
}

impl Topic {
    pub(super) fn covers(self, entry: &Remembered) -> bool {
        match self {
            Self::Shard(shard) => entry.shard == shard,
            Self::Region(region) => entry.concerns(region),
        }
    }
}

/// Which part of a node remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Witness {
    /// A coordinator that runs there, or ran.
    Coordinator,
    /// The region.
    Region,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Coordinator => "coordinator",
            Self::Region => "region",
        })
    }
}

/// What one of them remembers of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Account {
    /// On which node.
    pub by: ReplicaId,
    /// Which part of it.
    pub witness: Witness,
    /// What it remembers.
    pub remembered: Remembered,
}

/// The newest that a ring has of a topic.
pub(super) fn accounts(by: ReplicaId, witness: Witness, ring: &Ring, topic: Topic) -> Vec<Account> {
    let newest = ring.iter().rev().filter(|entry| topic.covers(entry)).take(TOLD_MAX);
    newest.map(|entry| Account { by, witness, remembered: entry.clone() }).collect()
}

/// A decision, as everybody who was asked remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Explained {
    /// About which shard.
    pub shard: ShardId,
    /// Which decision.
    pub generation: Generation,
    /// Coordinators first, then regions.
    pub accounts: Vec<Account>, // 1 to 2 of each node
}

/// Why things are where they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Of which type.
    pub entity_type: EntityType,
    /// What was asked.
    pub about: About,
    /// Its shard, unless a node was asked about.
    pub shard: Option<ShardId>,
    /// Where that lives, by the newest acknowledged decision that this node has heard of.
    pub home: Option<RegionId>,
    /// The newest first. Rings are limited, and a node that is gone took its own along.
    pub decisions: Vec<Explained>, // ≤ 2 × TOLD_MAX of each node
    /// Nodes that have not answered in time; what they remember is missing.
    pub unanswered: BTreeSet<RegionId>, // ≤ members
}

impl Explanation {
    /// Puts together what was told.
    #[must_use]
    pub fn new(entity_type: EntityType, about: About, recalled: Recalled) -> Self {
        let Recalled { accounts, unanswered } = recalled;
        let mut by_decision: BTreeMap<(Generation, ShardId), Vec<Account>> = BTreeMap::new();
        for account in accounts {
            let Remembered { generation, shard, .. } = account.remembered;
            by_decision.entry((generation, shard)).or_default().push(account);
        }
        let explained = |((generation, shard), mut accounts): (_, Vec<Account>)| {
            accounts.sort_by_key(|account| (account.witness, account.remembered.at, account.by));
            Explained { shard, generation, accounts }
        };
        let decisions = by_decision.into_iter().rev().map(explained).collect();
        Self { entity_type, about, shard: None, home: None, decisions, unanswered }
    }
}

/// What nodes have told of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recalled {
    /// In no order.
    pub accounts: Vec<Account>, // ≤ 2 × TOLD_MAX of each node
    /// Who has told nothing in time.
    pub unanswered: BTreeSet<RegionId>, // ≤ members
}

impl Explanation {
    /// The text of [`Display`](fmt::Display), in which `name` gives the names of nodes. `Display`
    /// itself knows only their incarnations.
    #[must_use]
    pub fn text(&self, name: impl Fn(ReplicaId) -> String) -> String {
        let mut text = String::new();
        let _ = self.write(&mut text, &name); // a String takes all
        text
    }

    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        let Self { entity_type, about, shard, home, decisions, unanswered } = self;
        about.write(f, name)?;
        write!(f, " of {entity_type}")?;
        match (about, shard) {
            (About::Entity(_), Some(shard)) => write!(f, " is in shard {shard}, which")?,
            (_, Some(_)) => {}
            (_, None) => write!(f, " had a part in {} decisions", decisions.len())?,
        }
        match (shard, home) {
            (Some(_), Some(home)) => write!(f, " lives on {}", name(home.replica()))?,
            (Some(_), None) => f.write_str(" lives nowhere, as far as this node knows")?,
            (None, _) => {}
        }
        if decisions.is_empty() && shard.is_some() {
            f.write_str("; nobody who answered remembers a decision")?;
        }
        writeln!(f)?;
        decisions.iter().try_for_each(|decision| decision.write(f, name))?;
        for node in unanswered {
            let node = name(node.replica());
            writeln!(f, "{node} has not answered: what it remembers is missing")?;
        }
        Ok(())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

impl Explained {
    fn write(&self, f: &mut dyn fmt::Write, name: NameOf<'_>) -> fmt::Result {
        let Some(Account { remembered: first, .. }) = self.accounts.first() else {
            return Ok(());
        };
        let at = Duration::from_millis(first.at.as_millis().min(MILLIS_MAX));
        let at = humantime::format_rfc3339_millis(UNIX_EPOCH + at);
        write!(f, "{at}  decision {}: shard {}", self.generation, self.shard)?;
        let called = |region: RegionId| name(region.replica());
        match (first.from.map(called), first.to.map(called)) {
            (Some(from), Some(to)) => writeln!(f, " from {from} to {to}")?,
            (None, Some(to)) => writeln!(f, " to {to}")?,
            (Some(from), None) => writeln!(f, " from {from} to nowhere")?,
            (None, None) => writeln!(f, " to nowhere")?,
        }
        self.accounts.iter().try_for_each(|account| {
            f.write_str("    ")?;
            account.write(f, name)?;
            writeln!(f)
        })
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, BY_INCARNATION)
    }
}

impl Account {
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

impl fmt::Display for Account {
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

    fn account(by: u64, witness: Witness, seq: u64, ms: u64) -> Account {
        let by = ReplicaId::new(by);
        let generation = Generation::new(Term { number: 4, owner: ReplicaId::new(9) }, seq);
        let wall = WallTime::from_millis(1_700_000_000_000 + ms);
        let now = Now { mono: Instant::default(), wall };
        let remembered = Remembered::new(now, SHARD, generation, "fewest shards".into());
        Account { by, witness, remembered }
    }

    fn millis(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    fn moved() -> Explanation {
        let mut first = account(9, Witness::Coordinator, 1, 0);
        first.remembered = Remembered {
            to: Some(region(1)),
            written: millis(3),
            settled: millis(5),
            ..first.remembered
        };
        let mut second = account(9, Witness::Coordinator, 2, 900);
        second.remembered = Remembered {
            from: Some(region(1)),
            to: Some(region(2)),
            queued: millis(1),
            awaited: vec![region(1)],
            ..second.remembered
        };
        let mut left = account(1, Witness::Region, 2, 500); // its clock is behind
        left.remembered = Remembered {
            from: Some(region(1)),
            to: Some(region(2)),
            drained: millis(12),
            why: "told to release it".into(),
            ..left.remembered
        };
        let recalled = Recalled {
            accounts: vec![left, second, first],
            unanswered: BTreeSet::from([region(3)]),
        };
        let entity_type = EntityType::new("counter").expect("a name");
        let about = About::entity("alice").expect("a name");
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
    fn it_reads_as_a_story() {
        let expected = "\
entity \"alice\" of counter is in shard 7, which lives on 2
2023-11-14T22:13:20.900Z  decision 4.2: shard 7 from 1 to 2
    coordinator on 9: fewest shards, queued after 1ms, not carried out, awaited 1
    region on 1: told to release it, drained after 12ms
2023-11-14T22:13:20.000Z  decision 4.1: shard 7 to 1
    coordinator on 9: fewest shards, written after 3ms, settled after 5ms
3 has not answered: what it remembers is missing
";
        assert_eq!(moved().text(|node| format!("{:x}", node.get())), expected);
        let by_incarnation = "lives on 0000000000000002\n";
        assert!(moved().to_string().contains(by_incarnation), "{}", moved());
    }

    #[test]
    fn whatever_others_say_can_be_printed() {
        let mut strange = account(1, Witness::Region, 1, 0);
        strange.remembered.at = WallTime::from_millis(u64::MAX);
        let recalled = Recalled { accounts: vec![strange], ..Recalled::default() };
        let about = About::Node(ReplicaId::new(1));
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
            ..account(9, Witness::Coordinator, 1, 0).remembered
        };
        let topic = Topic::Region(region(1));
        let covered =
            [of(Some(1), None, &[]), of(None, Some(1), &[]), of(Some(2), Some(3), &[2, 1])];
        assert!(covered.iter().all(|entry| topic.covers(entry)));
        assert!(!topic.covers(&of(Some(2), Some(3), &[2])));
    }
}
