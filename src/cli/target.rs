//! The node that a command asks, the time that it may take, and the form of its answer.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use humantime::parse_duration;
use ostraca::Config;
use ostraca::management::client::{AskError, Client};
use ostraca::management::wire::{Answer, Level, Refusal, Request, WITHIN_MAX, Why};
use ostraca::net;
use ostraca::net::address;
use ostraca::net::identity::Identity;
use ostraca::prelude::Multiaddr;

use super::{Usage, answer, printable};

/// How long a node that asks nobody else may take.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// How long the answer itself may take after the node has asked others for as long as it may.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// How long it may take, after that, to find out why there is no answer.
const PROBE: Duration = Duration::from_secs(1);

/// A command ends at its `--timeout` and this at the latest.
pub(super) const MARGIN: Duration = ANSWER_WITHIN.saturating_add(PROBE);

/// The node to ask. Without any option: the one that OSTRACA_CONFIG (a file of settings) or
/// OSTRACA_SOCKET (a control socket) names, or variables such as OSTRACA__NET__DATA_DIR.
#[derive(Debug, Args)]
pub(super) struct Target {
    #[command(flatten)]
    here: Here,
    /// A node on another host, by an address that others dial, such as `a.example:2551`,
    /// `10.0.0.1:2551`, `[::1]:2551` or `/dns4/a.example/tcp/2551`. The settings (--config FILE,
    /// OSTRACA_CONFIG) tell the cluster's name and its secret; the tool asks as a client, and never
    /// joins.
    #[arg(
        long = "node",
        value_name = "ADDRESS",
        help_heading = "Which node",
        conflicts_with = "socket",
        value_parser = address::parse
    )]
    elsewhere: Option<Multiaddr>,
    /// Where this tool keeps an identity of its own, for nodes with a list of who may talk to them
    /// (net.allowed-peers); made if there is none. Never a node's data directory.
    #[arg(long, value_name = "DIR", help_heading = "Which node", requires = "elsewhere")]
    identity: Option<PathBuf>,
}

/// No node is named.
#[derive(Debug, thiserror::Error)]
#[error(
    "which node? Name its settings (--config FILE), its control socket (--socket PATH) or its \
     address (--node HOST:PORT); these settings have neither net.data-dir nor \
     management.control-socket"
)]
pub(super) struct Unnamed;

/// A node on this host. Without any option: the one that OSTRACA_CONFIG (a file of settings) or
/// OSTRACA_SOCKET (a control socket) names, or variables such as OSTRACA__NET__DATA_DIR.
#[derive(Clone, Debug, Args)]
pub(super) struct Here {
    /// The file of settings that the node runs with: its control socket is found there.
    #[arg(long, value_name = "FILE", help_heading = "Which node", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The node's control socket: `control.sock` in its data directory unless set otherwise.
    #[arg(long, value_name = "PATH", help_heading = "Which node")]
    socket: Option<PathBuf>,
}

/// Names the file of settings for commands that ask a node.
const CONFIG_VARIABLE: &str = "OSTRACA_CONFIG";

/// Names the control socket for commands that ask a node.
const SOCKET_VARIABLE: &str = "OSTRACA_SOCKET";

/// Where the way to a node begins.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Socket(PathBuf),
    /// A file of settings; `None`: only the environment has some.
    Settings(Option<PathBuf>),
}

impl Here {
    /// The same node as one that could be anywhere.
    pub(super) fn target(&self) -> Target {
        Target { here: self.clone(), elsewhere: None, identity: None }
    }

    /// Options override the variables. A node elsewhere (`is_elsewhere`) has no socket here.
    fn place(
        &self,
        is_elsewhere: bool,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<Place, Usage> {
        if let Some(socket) = &self.socket {
            return Ok(Place::Socket(socket.clone()));
        }
        if let Some(config) = &self.config {
            return Ok(Place::Settings(Some(config.clone())));
        }
        let socket = variable(SOCKET_VARIABLE).filter(|_| !is_elsewhere);
        match (variable(CONFIG_VARIABLE), socket) {
            (Some(_), Some(_)) => Err(Usage(format!(
                "both {CONFIG_VARIABLE} and {SOCKET_VARIABLE} are set, and they may name different \
                 nodes: unset one of them, or choose with --config, --socket or --node"
            ))),
            (None, Some(socket)) => Ok(Place::Socket(socket)),
            (config, None) => Ok(Place::Settings(config)),
        }
    }
}

/// The path that a variable of the environment holds; an empty one counts as unset.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The node refuses a request that older releases do not know.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; nodes of older releases do not know this request: update the node, or use the ostraca \
     tool of its release"
)]
struct NotKnownThere(Refusal);

/// Whether the first release with a management wire knows this request.
const fn is_of_first_release(request: &Request) -> bool {
    matches!(
        request,
        Request::Members
            | Request::Shards { .. }
            | Request::Explain { .. }
            | Request::Get { .. }
            | Request::Set { .. }
            | Request::Watch { .. }
            | Request::Recover { .. }
            | Request::Keys { .. }
    )
}

impl Target {
    /// A way to the node.
    pub(super) async fn connect(&self) -> Result<Client, Box<dyn Error>> {
        self.connect_within(SOON).await
    }

    async fn connect_within(&self, within: Duration) -> Result<Client, Box<dyn Error>> {
        let config = match self.here.place(self.elsewhere.is_some(), variable)? {
            Place::Socket(path) => return Ok(Client::connect(&path).await?),
            Place::Settings(file) => settings(file.as_deref())?,
        };
        if let Some(node) = &self.elsewhere {
            let identity = Identity::load(self.identity.as_deref())?;
            let called = net::client::connect_as(&identity, &config.net, node, within).await?;
            return Ok(Client::over(called));
        }
        let path = config.management.socket(config.net.data_dir.as_deref()).ok_or(Unnamed)?;
        Ok(Client::connect(&path).await?)
    }

    /// Asks one thing. `patience`: how long the node may ask others; zero: it asks nobody. The whole
    /// call, connecting included, ends at `patience` and [`MARGIN`] at the latest.
    pub(super) async fn ask(
        &self,
        request: &Request,
        patience: Duration,
    ) -> Result<Answer, Box<dyn Error>> {
        let within = if patience.is_zero() { SOON } else { patience + ANSWER_WITHIN };
        self.ask_within(request, within).await
    }

    /// As [`ask`](Self::ask); the node has `within` for its answer.
    pub(super) async fn ask_within(
        &self,
        request: &Request,
        within: Duration,
    ) -> Result<Answer, Box<dyn Error>> {
        let asked = async {
            let mut client = self.connect_within(within).await?;
            match client.ask(request, within).await {
                Err(AskError::Refused(why))
                    if why.why == Why::NotUnderstood && !is_of_first_release(request) =>
                {
                    Err(NotKnownThere(why).into())
                }
                answer => Ok(answer?),
            }
        };
        match tokio::time::timeout(within + PROBE, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(AskError::Silent { within }.into()),
        }
    }
}

fn settings(file: Option<&Path>) -> Result<Config, Box<dyn Error>> {
    Ok(match file {
        Some(file) => Config::load(file)?,
        None => Config::from_env()?,
    })
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
    /// How long nodes may take to answer: `500ms`, `3s`. The command ends 2 s later at the latest.
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

    pub(super) const fn patience(&self) -> Duration {
        self.timeout
    }

    pub(super) const fn target(&self) -> &Target {
        &self.asking.target
    }

    pub(super) const fn output(&self) -> Output {
        self.asking.output
    }
}

/// How answers come out.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Output {
    /// Prints JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl Output {
    pub(super) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints what was answered.
    pub(super) fn print(
        self,
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
    /// How long replicas may take in all: `500ms`, `3s`. The command ends 2 s later at the latest.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
}

impl Consistency {
    /// For a change.
    pub(super) fn level(&self) -> Level {
        self.level_within(self.timeout)
    }

    /// For a read. Its value may have to be written back to replicas that lack it before it is
    /// answered, so reading and writing have half of the time each.
    pub(super) fn level_of_read(&self) -> Level {
        self.level_within(self.timeout / 2)
    }

    fn level_within(&self, within: Duration) -> Level {
        match self.majority {
            true => Level::Majority { within_ms: milliseconds(within).max(1) },
            false => Level::Local,
        }
    }

    /// As JSON names the level.
    pub(super) const fn name(&self) -> &'static str {
        if self.majority { "majority" } else { "local" }
    }

    /// How long the node may take.
    pub(super) const fn patience(&self) -> Duration {
        self.timeout
    }
}

/// A time that a node may ask others for.
pub(super) fn patience(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(span) if span <= WITHIN_MAX => Ok(span),
        Ok(_) => Err(format!("at most {WITHIN_MAX:?}")),
        Err(why) => Err(why.to_string()),
    }
}

pub(super) fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Does what waits, on a thread of its own: this one.
pub(super) fn wait<T>(
    work: impl Future<Output = Result<T, Box<dyn Error>>>,
) -> Result<T, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background(); // a resolver that does not answer must not delay the exit
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(config: Option<&str>, socket: Option<&str>, set: [Option<&str>; 2]) -> Option<Place> {
        let here = Here { config: config.map(Into::into), socket: socket.map(Into::into) };
        let variable = |name: &str| set[usize::from(name == SOCKET_VARIABLE)].map(PathBuf::from);
        here.place(false, variable).ok()
    }

    #[test]
    fn options_override_the_variables_that_name_a_node() {
        let settings = |path: &str| Some(Place::Settings(Some(path.into())));
        let socket = |path: &str| Some(Place::Socket(path.into()));
        assert_eq!(place(None, None, [None, None]), Some(Place::Settings(None)));
        assert_eq!(place(None, None, [Some("c"), None]), settings("c"));
        assert_eq!(place(None, None, [None, Some("s")]), socket("s"));
        assert_eq!(place(None, None, [Some("c"), Some("s")]), None, "which of the two?");
        assert_eq!(place(Some("a"), None, [Some("c"), Some("s")]), settings("a"));
        assert_eq!(place(None, Some("a"), [Some("c"), Some("s")]), socket("a"));
        let here = Here { config: None, socket: None };
        let elsewhere = here.place(true, |name| Some(name.into())).ok();
        assert_eq!(elsewhere, settings(CONFIG_VARIABLE), "a node elsewhere has no socket here");
    }
}
