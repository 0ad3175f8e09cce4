//! A node process, which hosts entities. At each input line it reports to its parent, as a line of
//! JSON, and it ends with its parent.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use ostraca::cluster::member::Address;
use ostraca::node::sharding::TypeView;
use ostraca::prelude::*;
use ostraca::sharding::passivation::settings::PassivationStrategy;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::Failed;
use crate::entities::{Regions, TYPES};

/// About ten or more on each node of typical clusters of this example.
const SHARDS: u32 = 60;

/// Arguments of a node process.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The file that holds the cluster's secret.
    #[arg(long)]
    pub(crate) secret_file: PathBuf,
    /// A node to join by; without one, it founds the cluster.
    #[arg(long = "seed")]
    pub(crate) seeds: Vec<String>,
}

/// Report of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NodeReport {
    /// Incarnation of the node.
    pub(crate) node: u64,
    /// Address at which other nodes dial it.
    pub(crate) address: String,
    /// Number of shards that live on it, by entity type.
    pub(crate) shards: BTreeMap<String, usize>,
    /// Number of dead letters that it has counted, by reason.
    pub(crate) dead_letters: BTreeMap<String, u64>,
    /// Number of entity states that were lost in moves.
    pub(crate) lost_states: u64,
    /// Number of messages that were given up unacknowledged.
    pub(crate) given_up: u64,
    /// Number of panics of entities.
    pub(crate) failures: u64,
}

/// The settings of all nodes, including the feeder.
pub(crate) fn settings(arguments: &Arguments) -> Result<Config, Failed> {
    let mut config = Config::default();
    config.net.secret_file = Some(arguments.secret_file.clone());
    config.cluster.seeds = arguments.seeds.iter().map(Address::new).collect::<Result<_, _>>()?;
    config.sharding.number_of_shards = SHARDS;
    // The entities keep their state in memory, so a passivated entity would lose it.
    config.sharding.passivation.strategy = PassivationStrategy::None;
    Ok(config)
}

/// Runs the node process until a signal ends it, or its parent has ended.
pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failed> {
    let node = Node::start(settings(arguments)?).await?;
    let (sharding, id) = (node.sharding(), node.cluster().me().incarnation.get());
    let regions = Regions::start(&sharding).await?;
    for name in TYPES {
        sharding.wait_until_registered(name).await?;
    }
    let address = node.addresses().first().map(ToString::to_string).unwrap_or_default();
    let net = node.net().clone();
    let report = async || {
        let types = sharding.types().await.unwrap_or_default(); // fails once the node has stopped
        let shards = |view: &TypeView| (view.entity_type.to_string(), view.shards.len());
        NodeReport {
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
            biased; // signal handlers are installed before the first report
            reason = &mut runs => {
                tracing::info!(reason = %reason?, "flights.node_ended");
                return say(&report().await);
            }
            () = async {}, if !is_said => {
                is_said = true;
                say(&report().await)?;
            }
            line = asked.next_line() => match line? {
                Some(_) => say(&report().await)?,
                None => return Ok(()), // the parent has ended
            },
        }
    }
}

fn say(report: &NodeReport) -> Result<(), Failed> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(report)?)?;
    Ok(out.flush()?)
}
