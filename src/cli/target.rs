//! Options for the node that a command asks, for time limits and for the output format.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use humantime::parse_duration;
use ostraca::Config;
use ostraca::management::client::{AdminRequestError, Client};
use ostraca::management::wire::{
    AdminRequest, AdminResponse, ConsistencyLevel, RefusalReason, RequestRefusal, WITHIN_MAX,
};
use ostraca::net;
use ostraca::net::address;
use ostraca::net::identity::Identity;
use ostraca::prelude::Multiaddr;

use super::{Usage, print_answer, printable};

/// Time limit of a request for which the node asks no other node.
pub(super) const SOON: Duration = Duration::from_secs(15);

/// Time for the answer itself, after the time that the node may wait for other nodes.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Time after that for finding out why there is no answer.
const PROBE: Duration = Duration::from_secs(1);

/// Maximum time that a command takes beyond its `--timeout`.
pub(super) const MARGIN: Duration = ANSWER_WITHIN.saturating_add(PROBE);

/// The node to ask. Without options: the node that OSTRACA_CONFIG (a settings file), OSTRACA_SOCKET
/// (a control socket), or variables such as OSTRACA__NET__DATA_DIR name.
#[derive(Debug, Args)]
pub(super) struct NodeTarget {
    #[command(flatten)]
    here: LocalNode,
    /// A node on another host, by an address that other nodes dial, such as `a.example:2551`,
    /// `10.0.0.1:2551`, `[::1]:2551` or `/dns4/a.example/tcp/2551`. The settings (--config FILE,
    /// OSTRACA_CONFIG) contain the cluster's name and secret. The tool connects as a client and
    /// never joins.
    #[arg(
        long = "node",
        value_name = "ADDRESS",
        help_heading = "Which node",
        conflicts_with = "socket",
        value_parser = address::parse
    )]
    elsewhere: Option<Multiaddr>,
    /// Directory with an identity for this tool, for nodes that restrict their peers
    /// (net.allowed-peers). Created if it is missing. Never a node's data directory.
    #[arg(long, value_name = "DIR", help_heading = "Which node", requires = "elsewhere")]
    identity: Option<PathBuf>,
}

/// Returns the error if the settings lead to no control socket. The text tells whether they turn
/// it off or lack the settings that name one.
fn no_socket(config: &Config) -> Usage {
    let reason = match &config.management.control_socket {
        Some(_) => "these settings turn the control socket off (management.control-socket = \"\")",
        None => "these settings have neither net.data-dir nor management.control-socket",
    };
    Usage(format!(
        "which node? Name its settings (--config FILE), its control socket (--socket PATH) or its \
         address (--node HOST:PORT); {reason}"
    ))
}

/// A node on this host. Without options: the node that OSTRACA_CONFIG (a settings file),
/// OSTRACA_SOCKET (a control socket), or variables such as OSTRACA__NET__DATA_DIR name.
#[derive(Clone, Debug, Args)]
pub(super) struct LocalNode {
    /// The node's settings file; it leads to the control socket.
    #[arg(long, value_name = "FILE", help_heading = "Which node", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The node's control socket: `control.sock` in its data directory unless set otherwise.
    #[arg(long, value_name = "PATH", help_heading = "Which node")]
    socket: Option<PathBuf>,
}

/// Variable that names the settings file for commands that ask a node.
const CONFIG_VARIABLE: &str = "OSTRACA_CONFIG";

/// Variable that names the control socket for commands that ask a node.
const SOCKET_VARIABLE: &str = "OSTRACA_SOCKET";

/// The source of a node's address: a control socket, or settings that name one and the cluster.
#[derive(Debug, PartialEq, Eq)]
enum TargetSource {
    Socket(PathBuf),
    /// A settings file; `None`: the environment only.
    Settings(Option<PathBuf>),
}

impl LocalNode {
    /// Returns this node as a [`NodeTarget`].
    pub(super) fn target(&self) -> NodeTarget {
        NodeTarget { here: self.clone(), elsewhere: None, identity: None }
    }

    /// Chooses the source. Options override variables, and with neither the source is the
    /// environment. Fails if both variables are set, unless an option was given. For a node on
    /// another host (`is_elsewhere`) the variable of the socket is ignored.
    fn source(
        &self,
        is_elsewhere: bool,
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<TargetSource, Usage> {
        if let Some(socket) = &self.socket {
            return Ok(TargetSource::Socket(socket.clone()));
        }
        if let Some(config) = &self.config {
            return Ok(TargetSource::Settings(Some(config.clone())));
        }
        let socket = variable(SOCKET_VARIABLE).filter(|_| !is_elsewhere);
        match (variable(CONFIG_VARIABLE), socket) {
            (Some(_), Some(_)) => Err(Usage(format!(
                "both {CONFIG_VARIABLE} and {SOCKET_VARIABLE} are set, and they may name different \
                 nodes: unset one of them, or choose with --config, --socket or --node"
            ))),
            (None, Some(socket)) => Ok(TargetSource::Socket(socket)),
            (config, None) => Ok(TargetSource::Settings(config)),
        }
    }
}

/// Returns the path in an environment variable; an empty one counts as unset.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The node refused a request that releases before it did not know.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}; nodes of older releases do not know this request: update the node, or use the ostraca \
     tool of its release"
)]
pub(super) struct NotKnownThere(pub(super) RequestRefusal);

/// Whether the first release with the management protocol knows this request.
const fn is_of_first_release(request: &AdminRequest) -> bool {
    matches!(
        request,
        AdminRequest::Members
            | AdminRequest::Shards { .. }
            | AdminRequest::Explain { .. }
            | AdminRequest::Get { .. }
            | AdminRequest::Set { .. }
            | AdminRequest::Watch { .. }
            | AdminRequest::Recover { .. }
            | AdminRequest::Keys { .. }
    )
}

impl NodeTarget {
    /// Connects to the node. The limit is 15 s for a node on another host and that of
    /// [`Client::connect`] for a socket.
    pub(super) async fn connect(&self) -> Result<Client, Box<dyn Error>> {
        self.connect_within(SOON).await
    }

    /// Connects to the node: at its address if `--node` was given, otherwise over a control socket.
    /// Loads the settings unless a socket is named, and does not check them. `--node` ignores a
    /// control socket in the settings, and without `--identity` connects with a new identity each
    /// time. The limit applies to a connection over the network only. Fails with [`Usage`] if
    /// neither options nor settings name a node, or if both variables do.
    async fn connect_within(&self, within: Duration) -> Result<Client, Box<dyn Error>> {
        let config = match self.here.source(self.elsewhere.is_some(), variable)? {
            TargetSource::Socket(path) => return Ok(Client::connect(&path).await?),
            TargetSource::Settings(file) => settings(file.as_deref())?,
        };
        if let Some(node) = &self.elsewhere {
            let identity = Identity::load(self.identity.as_deref())?;
            let called = net::client::connect_as(&identity, &config.net, node, within).await?;
            return Ok(Client::over(called));
        }
        let path = config.management.socket(config.net.data_dir.as_deref());
        let path = path.ok_or_else(|| no_socket(&config))?;
        Ok(Client::connect(&path).await?)
    }

    /// Sends one request over a new connection. `patience` is the time that the node may wait for
    /// other nodes; the whole call, with connecting, ends at most [`MARGIN`] after it. Zero means
    /// that the node asks no other node: the limit of the answer is then [`SOON`], and the whole
    /// call ends at most [`PROBE`] after it.
    pub(super) async fn ask(
        &self,
        request: &AdminRequest,
        patience: Duration,
    ) -> Result<AdminResponse, Box<dyn Error>> {
        let within = if patience.is_zero() { SOON } else { patience + ANSWER_WITHIN };
        self.ask_within(request, within).await
    }

    /// Like [`ask`](Self::ask); `within` is the time limit of connecting over the network and of
    /// the answer, each. The whole call ends at most [`PROBE`] after `within`, with
    /// [`AdminRequestError::Silent`]. A refusal of a request that older releases do not know
    /// becomes [`NotKnownThere`].
    pub(super) async fn ask_within(
        &self,
        request: &AdminRequest,
        within: Duration,
    ) -> Result<AdminResponse, Box<dyn Error>> {
        let asked = async {
            let mut client = self.connect_within(within).await?;
            match client.ask(request, within).await {
                Err(AdminRequestError::Refused(why))
                    if why.why == RefusalReason::NotUnderstood && !is_of_first_release(request) =>
                {
                    Err(NotKnownThere(why).into())
                }
                answer => Ok(answer?),
            }
        };
        match tokio::time::timeout(within + PROBE, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(AdminRequestError::Silent { within }.into()),
        }
    }
}

/// Loads the settings of a file and the environment, or of the environment only. Does not check
/// them.
fn settings(file: Option<&Path>) -> Result<Config, Box<dyn Error>> {
    Ok(match file {
        Some(file) => Config::load(file)?,
        None => Config::from_env()?,
    })
}

/// Options for the node to ask and for the output.
#[derive(Debug, Args)]
pub(super) struct NodeOptions {
    #[command(flatten)]
    pub(super) target: NodeTarget,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

/// The options of [`NodeOptions`] for a query, with its time limit.
#[derive(Debug, Args)]
pub(super) struct QueryOptions {
    /// Time limit for the answers of nodes, 1ms to 60s. The command ends at most 2 s later.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
    #[command(flatten)]
    asking: NodeOptions,
}

impl QueryOptions {
    /// Returns the time limit in milliseconds, for requests.
    pub(super) fn within_ms(&self) -> u64 {
        milliseconds(self.timeout)
    }

    /// Sends one request; the node may wait for other nodes until the time limit.
    pub(super) async fn ask(
        &self,
        request: &AdminRequest,
    ) -> Result<AdminResponse, Box<dyn Error>> {
        self.asking.target.ask(request, self.timeout).await
    }

    pub(super) const fn patience(&self) -> Duration {
        self.timeout
    }

    pub(super) const fn target(&self) -> &NodeTarget {
        &self.asking.target
    }

    pub(super) const fn output(&self) -> OutputOptions {
        self.asking.output
    }
}

/// Options for the output.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct OutputOptions {
    /// Prints JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl OutputOptions {
    pub(super) const fn is_json(self) -> bool {
        self.json
    }

    /// Prints a value as indented JSON with a line end, or else the text, which must bring its own
    /// line end; `text` is not called for JSON. A closed pipe is not an error.
    pub(super) fn print(
        self,
        json: &impl serde::Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Box<dyn Error>> {
        match self.json {
            true => print_answer(&printable::json(&(serde_json::to_string_pretty(json)? + "\n"))),
            false => print_answer(&text()),
        }
    }
}

/// Options for the consistency of a read or write.
#[derive(Debug, Args)]
pub(super) struct Consistency {
    /// Asks a majority of the cluster, not only the node's own copy. A majority read sees every
    /// write that a majority has acknowledged.
    #[arg(long)]
    majority: bool,
    /// Time limit for replicas, 1ms to 60s. The command ends at most 2 s later.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
}

impl Consistency {
    /// Returns the level of a change.
    pub(super) fn level(&self) -> ConsistencyLevel {
        self.level_within(self.timeout)
    }

    /// Returns the level of a read. The value may have to be written back to replicas that lack it
    /// before the answer, so reading and writing back each get half of the time.
    pub(super) fn level_of_read(&self) -> ConsistencyLevel {
        self.level_within(self.timeout / 2)
    }

    /// Returns the level with this limit, at least 1 ms; local reads and writes have no limit.
    fn level_within(&self, within: Duration) -> ConsistencyLevel {
        match self.majority {
            true => ConsistencyLevel::Majority { within_ms: milliseconds(within).max(1) },
            false => ConsistencyLevel::Local,
        }
    }

    /// Name of the level in JSON.
    pub(super) const fn name(&self) -> &'static str {
        if self.majority { "majority" } else { "local" }
    }

    /// Returns the time limit for replicas.
    pub(super) const fn patience(&self) -> Duration {
        self.timeout
    }
}

/// Minimum of a time limit: requests carry limits in milliseconds, and a limit of zero would mean
/// none to [`NodeTarget::ask`].
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Parses the value of `--timeout`, 1ms to 60s; the error names the allowed range.
pub(super) fn patience(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(span) if (TIMEOUT_MIN..=WITHIN_MAX).contains(&span) => Ok(span),
        Ok(_) => Err(format!("must be {TIMEOUT_MIN:?} to {WITHIN_MAX:?}")),
        Err(why) => Err(format!("{why}: write 500ms, 3s or 1m")),
    }
}

/// Converts to whole milliseconds, rounded down; less than one becomes 0. Saturates.
pub(super) fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Runs a future to its end on this thread. Abandons blocking tasks that still run, such as a DNS
/// lookup.
pub(super) fn run_blocking<T>(
    work: impl Future<Output = Result<T, Box<dyn Error>>>,
) -> Result<T, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background(); // a blocked DNS resolver must not delay the exit
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(
        config: Option<&str>,
        socket: Option<&str>,
        set: [Option<&str>; 2],
    ) -> Option<TargetSource> {
        let here = LocalNode { config: config.map(Into::into), socket: socket.map(Into::into) };
        let variable = |name: &str| set[usize::from(name == SOCKET_VARIABLE)].map(PathBuf::from);
        here.source(false, variable).ok()
    }

    /// Regression: settings that turn the socket off were said to have no data directory.
    #[test]
    fn error_without_a_socket_names_the_settings_at_fault() {
        let mut config = Config::default();
        assert!(
            no_socket(&config).0.ends_with("neither net.data-dir nor management.control-socket")
        );
        config.net.data_dir = Some("data".into());
        config.management.control_socket = Some("".into());
        assert_eq!(config.management.socket(config.net.data_dir.as_deref()), None);
        assert!(no_socket(&config).0.ends_with("socket off (management.control-socket = \"\")"));
    }

    #[test]
    fn options_override_the_variables_that_name_a_node() {
        let settings = |path: &str| Some(TargetSource::Settings(Some(path.into())));
        let socket = |path: &str| Some(TargetSource::Socket(path.into()));
        assert_eq!(source(None, None, [None, None]), Some(TargetSource::Settings(None)));
        assert_eq!(source(None, None, [Some("c"), None]), settings("c"));
        assert_eq!(source(None, None, [None, Some("s")]), socket("s"));
        assert_eq!(source(None, None, [Some("c"), Some("s")]), None, "which of the two?");
        assert_eq!(source(Some("a"), None, [Some("c"), Some("s")]), settings("a"));
        assert_eq!(source(None, Some("a"), [Some("c"), Some("s")]), socket("a"));
        let here = LocalNode { config: None, socket: None };
        let elsewhere = here.source(true, |name| Some(name.into())).ok();
        assert_eq!(elsewhere, settings(CONFIG_VARIABLE), "a node elsewhere has no socket here");
    }
}
