//! Which node a command asks, and how its answers come out.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use humantime::parse_duration;
use ostraca::Config;
use ostraca::management::client::{AskError, Client};
use ostraca::management::wire::{Answer, Level, Request, WITHIN_MAX};
use ostraca::net;
use ostraca::net::identity::Identity;
use ostraca::prelude::Multiaddr;

use super::{answer, printable};

/// How long a node that asks nobody else may take.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// How long the answer itself may take after the node has asked others for as long as it may.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// How long it may take, after that, to find out why there is no answer.
const PROBE: Duration = Duration::from_secs(1);

/// Which node to ask. Without any: the one that variables such as OSTRACA__NET__DATA_DIR name.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// The file of settings that the node runs with: its control socket is found there.
    #[arg(long, value_name = "FILE", help_heading = "Which node", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The node's control socket: `control.sock` in its data directory unless set otherwise.
    #[arg(long, value_name = "PATH", help_heading = "Which node")]
    socket: Option<PathBuf>,
    /// A node on another host, by an address that others dial, such as
    /// `/dns4/a.example/tcp/2551`. The settings (--config FILE) tell the cluster's name and its
    /// secret; the tool asks as a client, and never joins.
    #[arg(
        long = "node",
        value_name = "MULTIADDR",
        help_heading = "Which node",
        conflicts_with = "socket"
    )]
    elsewhere: Option<Multiaddr>,
    /// Where this tool keeps an identity of its own, for nodes with a list of who may talk to them
    /// (net.allowed-peers); made if there is none. Never a node's data directory.
    #[arg(long, value_name = "DIR", help_heading = "Which node", requires = "elsewhere")]
    identity: Option<PathBuf>,
}

/// Nobody is named.
#[derive(Debug, thiserror::Error)]
#[error(
    "which node? Name its settings (--config FILE), its control socket (--socket PATH) or its \
     address (--node MULTIADDR); these settings have neither net.data-dir nor \
     management.control-socket"
)]
pub(super) struct Unnamed;

/// Which node on this host to ask. Without any: the one that variables such as
/// OSTRACA__NET__DATA_DIR name.
#[derive(Debug, Args)]
pub(super) struct Here {
    /// The file of settings that the node runs with: its control socket is found there.
    #[arg(long, value_name = "FILE", help_heading = "Which node", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The node's control socket: `control.sock` in its data directory unless set otherwise.
    #[arg(long, value_name = "PATH", help_heading = "Which node")]
    socket: Option<PathBuf>,
}

impl Here {
    /// The same node as one that could be anywhere.
    pub(super) fn target(&self) -> Target {
        let (config, socket) = (self.config.clone(), self.socket.clone());
        Target { config, socket, elsewhere: None, identity: None }
    }
}

impl Target {
    /// A way to the node.
    pub(super) async fn connect(&self) -> Result<Client, Box<dyn Error>> {
        self.connect_within(SOON).await
    }

    async fn connect_within(&self, within: Duration) -> Result<Client, Box<dyn Error>> {
        if let Some(path) = &self.socket {
            return Ok(Client::connect(path).await?);
        }
        let config = match &self.config {
            Some(file) => Config::load(file)?,
            None => Config::from_env()?,
        };
        if let Some(node) = &self.elsewhere {
            let identity = Identity::load(self.identity.as_deref())?;
            let called = net::client::connect_as(&identity, &config.net, node, within).await?;
            return Ok(Client::over(called));
        }
        let path = config.management.socket(config.net.data_dir.as_deref()).ok_or(Unnamed)?;
        Ok(Client::connect(&path).await?)
    }

    /// Asks one thing. `patience`: how long the node may ask others; zero: it asks nobody. Bounds
    /// the whole call, connecting included.
    pub(super) async fn ask(
        &self,
        request: &Request,
        patience: Duration,
    ) -> Result<Answer, Box<dyn Error>> {
        let within = if patience.is_zero() { SOON } else { patience + ANSWER_WITHIN };
        let asked = async {
            let mut client = self.connect_within(within).await?;
            Ok(client.ask(request, within).await?)
        };
        match tokio::time::timeout(within + PROBE, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(AskError::Silent { within }.into()),
        }
    }
}

/// Which node to ask, and how its answers come out.
#[derive(Debug, Args)]
pub(super) struct Asking {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    pub(super) output: Output,
}

/// The same of a node that asks others before it answers.
#[derive(Debug, Args)]
pub(super) struct AskingAll {
    /// How long nodes may take to answer: `500ms`, `3s`.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
    #[command(flatten)]
    asking: Asking,
}

impl AskingAll {
    /// As the wire has it, in milliseconds.
    pub(super) fn within_ms(&self) -> u64 {
        milliseconds(self.timeout)
    }

    pub(super) async fn ask(&self, request: &Request) -> Result<Answer, Box<dyn Error>> {
        self.asking.target.ask(request, self.timeout).await
    }

    pub(super) const fn output(&self) -> &Output {
        &self.asking.output
    }
}

/// How answers come out.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// Prints JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Output {
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    /// Prints what was answered.
    pub(super) fn print(
        &self,
        json: &impl serde::Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Box<dyn Error>> {
        match self.json {
            true => answer(&printable::json(&(serde_json::to_string_pretty(json)? + "\n"))),
            false => answer(&text()),
        }
    }
}

/// How many replicas take part.
#[derive(Debug, Args)]
pub(super) struct Consistency {
    /// Asks a majority of the cluster, not only the node's own copy: what a majority has
    /// acknowledged is seen by every later majority read.
    #[arg(long)]
    majority: bool,
    /// How long a majority may take: `500ms`, `3s`. Twice at most.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
}

impl Consistency {
    pub(super) fn level(&self) -> Level {
        match self.majority {
            true => Level::Majority { within_ms: milliseconds(self.timeout) },
            false => Level::Local,
        }
    }

    /// How long the node may take: a majority is read and then written.
    pub(super) fn patience(&self) -> Duration {
        if self.majority { 2 * self.timeout } else { self.timeout }
    }
}

/// A time that a node may ask others for.
fn patience(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(span) if span <= WITHIN_MAX => Ok(span),
        Ok(_) => Err(format!("at most {WITHIN_MAX:?}")),
        Err(why) => Err(why.to_string()),
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Does what waits, on a thread of its own: this one.
pub(super) fn wait<T>(
    work: impl Future<Output = Result<T, Box<dyn Error>>>,
) -> Result<T, Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
