//! Between the coordinator and the Replicator: what it asks as requests on the guarded group
//! `sharding/<type>/homes`, and the replies as facts (spec/safety.md §2). The group has three keys:
//! the homes, and beneath them `settings`, what all nodes must agree on (§13), and `recovered`, the
//! last forced configuration whose survivors were asked what runs (spec/safety.md §1).
//!
//! A register's stamp says who wrote it last; the generation inside says which decision it is. A
//! decision that is written again, by its own coordinator after a timeout or by the next one after
//! its fencing read, gets a new stamp and keeps its generation: from then on no write of a lower
//! term can win, and no region notices. Knows no shard's history.

use std::time::Duration;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::{Group, Key, KeyName};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::replicator::request::{
    Guard, MinCap, Reply, Request, RequestError, Update, WriteConsistency,
};
use ostraca_ddata::types::edit::Edit;
use ostraca_ddata::types::{LWWRegister, ORMap, Term};
use serde::{Deserialize, Serialize};

use super::agreed::Agreed;
use super::bug::{Bug, Canary};
use super::config::MajorityPlus;
use super::home::ShardHome;
use super::ids::{EntityType, ShardId};

/// What the replicated map of homes holds.
pub type Homes = ORMap<ShardId, LWWRegister<ShardHome>>;

/// What the coordinator asks of the Replicator. At most one at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Takes a term and reads every cell.
    Fence {
        /// The term.
        term: Term,
        /// How long to wait.
        within: Duration,
    },
    /// Writes cells under the term.
    Write {
        /// The term.
        term: Term,
        /// The stamp of the write: rises within a term.
        seq: u64,
        /// What is written.
        cells: Vec<(ShardId, ShardHome)>, // ≤ BATCH_MAX
        /// How long to wait.
        within: Duration,
    },
    /// Writes under the term that the homes hold all that survived a recovery by force.
    Recover {
        /// Of which configuration; the term that it is written under.
        recovered: Recovered,
        /// The stamp of the write.
        seq: u64,
        /// How long to wait.
        within: Duration,
    },
    /// Writes under the term what all nodes must agree on.
    Agree {
        /// The term.
        term: Term,
        /// The stamp of the write.
        seq: u64,
        /// What is written.
        agreed: Agreed,
        /// How long to wait.
        within: Duration,
    },
}

/// That the homes hold all that survived a recovery by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recovered {
    /// The configuration that was forced.
    #[serde(rename = "o")]
    pub origin: EpochId,
    /// Whose count that was. What was decided below it counts nowhere.
    #[serde(rename = "t")]
    pub term: Term,
}

/// What became of an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The term is taken; a quorum holds these cells, this of the settings, and of which forced
    /// configuration the homes hold what survived.
    Fenced(Vec<(ShardId, ShardHome)>, Option<Agreed>, Option<Recovered>),
    /// A quorum holds what was written.
    Written,
    /// Somebody holds a higher term.
    Refused {
        /// The highest term heard of.
        current: Term,
    },
    /// Too few answered in time; a write may have been made. Ask again at once.
    Late,
    /// Nothing was done. Ask again after a while.
    NotNow {
        /// What is the matter.
        why: String,
    },
    /// This node was removed, or the term is lost in a way that must not happen: stop.
    Over {
        /// What is the matter.
        why: String,
    },
}

/// Where the homes of one entity type are kept.
#[derive(Clone, Debug)]
pub struct HomesKey {
    key: Key<Homes>,
    settings: Key<LWWRegister<Agreed>>,
    recovered: Key<LWWRegister<Recovered>>,
    group: Group,
    level: MajorityPlus,
    canary: Canary,
}

impl HomesKey {
    /// The homes of a type, written at `level`.
    #[must_use]
    pub fn new(entity_type: &EntityType, level: MajorityPlus) -> Self {
        let name = format!("sharding/{entity_type}/homes");
        let settings = Key::new(&format!("{name}/settings"));
        let recovered = Key::new(&format!("{name}/recovered"));
        let (key, group, canary) = (Key::new(&name), Group::new(&name), Canary::none());
        Self { key, settings, recovered, group, level, canary }
    }

    /// The same, with a rule left out.
    #[must_use]
    pub fn with_canary(self, canary: Canary) -> Self {
        Self { canary, ..self }
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key<Homes> {
        &self.key
    }

    /// The request that carries out what is asked.
    #[must_use]
    pub fn request(&self, ask: Ask) -> Request {
        let group = self.group.clone();
        match ask {
            Ask::Fence { term, within } => Request::Fence { group, term, within },
            Ask::Write { term, seq, cells, within } => {
                let consistency = self.consistency(within);
                let write = move |homes: &mut Edit<'_, Homes>| {
                    cells.iter().try_for_each(|(shard, home)| {
                        homes.update(shard, |register| register.set_at(seq, home))
                    })
                };
                let update = Update::new(&self.key, consistency, write);
                Request::Update(update.guarded(Guard { group, term }))
            }
            Ask::Recover { recovered, seq, within } => {
                let (consistency, term) = (self.consistency(within), recovered.term);
                let write = move |register: &mut Edit<'_, LWWRegister<Recovered>>| {
                    register.set_at(seq, &recovered)
                };
                let update = Update::new(&self.recovered, consistency, write);
                Request::Update(update.guarded(Guard { group, term }))
            }
            Ask::Agree { term, seq, agreed, within } => {
                let consistency = self.consistency(within);
                let write = move |register: &mut Edit<'_, LWWRegister<Agreed>>| {
                    register.set_at(seq, &agreed)
                };
                let update = Update::new(&self.settings, consistency, write);
                Request::Update(update.guarded(Guard { group, term }))
            }
        }
    }

    const fn consistency(&self, within: Duration) -> WriteConsistency {
        match self.level {
            MajorityPlus::Some(0) => WriteConsistency::majority(within),
            MajorityPlus::Some(more) => WriteConsistency::MajorityPlus(more, MinCap(0), within),
            MajorityPlus::All(_) => WriteConsistency::All(within),
        }
    }

    /// What a reply says.
    #[must_use]
    pub fn answer(&self, reply: Result<Reply, RequestError>) -> Answer {
        match reply {
            Ok(Reply::Updated { .. }) => Answer::Written,
            Ok(Reply::Fenced { values, .. }) => match self.read(&values) {
                Ok((cells, agreed, recovered)) => Answer::Fenced(cells, agreed, recovered),
                Err(why) => Answer::NotNow { why },
            },
            Ok(_) => Answer::NotNow { why: "the reply is to another request".into() },
            Err(RequestError::Fenced { current, .. }) => Answer::Refused { current },
            Err(RequestError::Timeout(_) | RequestError::StoreFailure { .. }) => Answer::Late,
            Err(error @ (RequestError::Excluded { .. } | RequestError::Stale(_))) => {
                Answer::Over { why: error.to_string() }
            }
            Err(error) => Answer::NotNow { why: error.to_string() },
        }
    }
}

impl HomesKey {
    /// What the group holds, or why it can't be read: nothing can be built on a part of it.
    fn read(&self, values: &[(KeyName, Value)]) -> Result<Read, String> {
        let of = |name: &KeyName| values.iter().find(|(key, _)| key == name);
        let other = |name: &KeyName| format!("`{name}` holds other data");
        let homes = of(self.key.name()).map(|(name, value)| {
            let homes = value.get::<Homes>().ok_or_else(|| other(name))?;
            cells(&homes)
        });
        let agreed = of(self.settings.name()).map(|(name, value)| {
            let register = value.get::<LWWRegister<Agreed>>().ok_or_else(|| other(name))?;
            register.get().map_err(|why| format!("`{name}`: {why}"))
        });
        let recovered = of(self.recovered.name()).map(|(name, value)| {
            let register = value.get::<LWWRegister<Recovered>>().ok_or_else(|| other(name))?;
            register.get().map_err(|why| format!("`{name}`: {why}"))
        });
        let mut cells = homes.transpose()?.unwrap_or_default();
        if self.canary.has(Bug::HomeKeyRemoved) {
            cells.retain(|(_, home)| home.region.is_some());
        }
        Ok((cells, agreed.transpose()?.flatten(), recovered.transpose()?.flatten()))
    }
}

type Cells = Vec<(ShardId, ShardHome)>;

/// The three values of the group.
type Read = (Cells, Option<Agreed>, Option<Recovered>);

/// Every cell, or which of them can't be read: nothing can be built on a part of them.
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
