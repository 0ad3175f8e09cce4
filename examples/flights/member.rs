//! A node: a process of its own, in which the entities live. Reports to whoever started it, line by
//! line in JSON, when it is asked to, and ends with it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use ostraca::cluster::member::Address;
use ostraca::node::sharding::TypeView;
use ostraca::prelude::*;
use ostraca::sharding::passivation::settings::Strategy;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::Failed;
use crate::entities::{Regions, TYPES};

/// About ten on each node of the clusters that this is for.
const SHARDS: u32 = 60;

/// How a node is started.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The file that holds the cluster's secret.
    #[arg(long)]
    pub(crate) secret_file: PathBuf,
    /// A node to join by; without one, it founds the cluster.
    #[arg(long = "seed")]
    pub(crate) seeds: Vec<String>,
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Word {
    /// Its incarnation: the name of this life of it.
    pub(crate) node: u64,
    /// Where others dial it.
    pub(crate) address: String,
    /// Shards that live on it, by entity type.
    pub(crate) shards: BTreeMap<String, usize>,
    /// Messages that nobody handled, as it knows, by reason.
    pub(crate) dead_letters: BTreeMap<String, u64>,
    /// States of entities that a move was to carry, and that nobody took.
    pub(crate) lost_states: u64,
    /// Messages that were given up on their way, unacknowledged.
    pub(crate) given_up: u64,
    /// Panics of entities.
    pub(crate) failures: u64,
}

/// The settings that all nodes have, the feeder too.
pub(crate) fn settings(arguments: &Arguments) -> Result<Config, Failed> {
    let mut config = Config::default();
    config.net.secret_file = Some(arguments.secret_file.clone());
    config.cluster.seeds = arguments.seeds.iter().map(Address::new).collect::<Result<_, _>>()?;
    config.sharding.number_of_shards = SHARDS;
    // What an entity knows is in memory: one that is stopped to save room would begin anew.
    config.sharding.passivation.strategy = Strategy::None;
    Ok(config)
}

/// The process: until a signal ends it, or its parent is gone.
pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failed> {
    let node = Node::start(settings(arguments)?).await?;
    let (sharding, id) = (node.sharding(), node.cluster().me().incarnation.get());
    let regions = Regions::start(&sharding).await?;
    for name in TYPES {
        sharding.registered(name).await?;
    }
    let address = node.addresses().first().map(ToString::to_string).unwrap_or_default();
    let net = node.net().clone();
    let word = async || {
        let types = sharding.types().await.unwrap_or_default(); // none once it has stopped
        let shards = |view: &TypeView| (view.entity_type.to_string(), view.shards.len());
        Word {
            node: id,
            address: address.clone(),
            shards: types.iter().map(shards).collect(),
            dead_letters: regions.dead_letters(),
            lost_states: regions.lost_states(),
            given_up: net.stats().await.given_up,
            failures: regions.failures(),
        }
    };
    let mut asked = BufReader::new(tokio::io::stdin()).lines();
    let runs = node.run_until_signal();
    tokio::pin!(runs);
    let mut is_said = false;
    loop {
        tokio::select! {
            biased; // signals are listened to before the first word is said
            reason = &mut runs => {
                tracing::info!(reason = %reason?, "flights.node_ended");
                return say(&word().await);
            }
            () = async {}, if !is_said => {
                is_said = true;
                say(&word().await)?;
            }
            line = asked.next_line() => match line? {
                Some(_) => say(&word().await)?,
                None => return Ok(()), // the parent is gone
            },
        }
    }
}

fn say(word: &Word) -> Result<(), Failed> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(word)?)?;
    Ok(out.flush()?)
}
