//! The command line: what can be asked, and how errors are told.

mod config;
mod curve;
mod data;
mod explain;
mod members;
mod node;
mod printable;
mod recover;
mod secret;
mod shards;
mod shown;
mod sim;
mod table;
mod target;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use ostraca::management::client::{AskError, ConnectError};
use ostraca::management::wire::Why;
use ostraca::net;
use tracing_subscriber::EnvFilter;

/// What a command ends with.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Sharded, stateful entities on a cluster that needs no external store.
///
/// `ostraca node` runs a node; `members`, `shards`, `explain` and `data` ask one that runs, yours or
/// `ostraca node`, over its control socket or, elsewhere, by its address.
///
/// Logs go to stderr and are chosen by RUST_LOG, such as `RUST_LOG=ostraca=debug`.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_long_help = "\
    Exit codes:\n  \
    0  it is done\n  \
    1  it failed, or was refused: nothing was changed unless the error says otherwise\n  \
    2  the arguments make no sense\n  \
    3  there is no such key, or the node knows no such entity type\n  \
    4  no node answers there\n  \
    5  too few nodes answered in time: a write stays and will spread\n  \
    6  `ostraca node` was removed from its cluster, or found none in time: start it again\n  \
    130  `ostraca node`: a second signal ended it at once"
)]
pub(crate) struct Ostraca {
    /// How logs are written.
    #[arg(long, global = true, value_enum, default_value_t = Log::Text)]
    log: Log,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a node without entities of its own: a replica of the cluster's data, and a vote.
    ///
    /// It leaves the cluster in order when it gets SIGTERM or Ctrl-C, and exits with 0; a second
    /// signal ends it at once (130). A node that was removed from its cluster exits with 6: let its
    /// supervisor start it again.
    Node(node::Arguments),
    /// Prints the default settings, or checks a file of settings.
    Config(config::Arguments),
    /// Prints who belongs to the cluster, as a running node sees it.
    ///
    /// Who is there and where they stand, who leads, who has lost whom, and which configuration
    /// decides about replicated data. Nodes may see it differently for a moment: ask another one.
    Members(members::Arguments),
    /// Prints where the shards of an entity type live, and how many entities are in them.
    ///
    /// Asks a node that has started the type, which asks all that host it. Who does not answer in
    /// time is named.
    Shards(shards::Arguments),
    /// Prints why a shard or an entity lives where it lives, or what came to a node and left it.
    ///
    /// Asks a node that has started the type, which asks all that host it what they remember of
    /// decisions. A node that ends takes what it remembers along.
    Explain(explain::Arguments),
    /// Goes on without a majority of the cluster that is lost for good. Gives guarantees up.
    ///
    /// Ask it of ONE survivor, on its own host. Without --force it changes nothing: it prints who would
    /// be kept (this node, and the members that it reaches now) and who would be given up.
    ///
    /// Survivors of a majority end themselves within seconds by default, and nobody is left to ask. Set
    /// cluster.downing.wait-without-quorum = "30min" beforehand, and they wait for you.
    ///
    /// No node can tell the dead from those whom it does not reach. Be sure that those who are given up
    /// are stopped, every one of them, and will not start again on their own. If they live, even as a
    /// healthy majority that this node is merely cut off from, both sides act at once: the same entity
    /// may live twice, and data go two ways. Whoever of them hears of it ends itself, WHATEVER THEIR
    /// NUMBER, and what they did since is lost; who refuses to talk with the survivors never hears, and
    /// goes on until you stop it.
    ///
    /// Replicated data that only those who are given up held is lost, acknowledged or not, and so are
    /// entities that lived there. Survivors' shards stay where they are. What is given up never returns:
    /// its host starts the node again, and it joins as a new one. Two survivors that were told so at
    /// once end as one cluster, that of the later configuration; if a member that was kept turns out to
    /// be dead, run it again.
    Recover(recover::Arguments),
    /// Reads, sets and watches replicated data of a running node.
    Data(data::Arguments),
    /// Makes a secret for a cluster: `ostraca secret --out cluster.secret`, the same file on all nodes.
    ///
    /// Name the file in `net.cluster-secret-file`. Every holder of the secret may join the cluster.
    Secret(secret::Arguments),
    /// Simulates a cluster, and measures how fast changes reach every replica.
    ///
    /// Real Replicators on virtual time: prints time, one-way trips, messages and bytes beside what
    /// no protocol does better than, and draws a plot.
    Sim(sim::Arguments),
}

impl Ostraca {
    /// Does what was asked.
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Node(arguments) => {
                begin_log(self.log);
                arguments.run()
            }
            Command::Config(arguments) => arguments.run(),
            Command::Members(arguments) => arguments.run(),
            Command::Shards(arguments) => arguments.run(),
            Command::Explain(arguments) => arguments.run(),
            Command::Recover(arguments) => arguments.run(),
            Command::Data(arguments) => arguments.run(),
            Command::Secret(arguments) => arguments.run(),
            Command::Sim(arguments) => arguments.run(),
        }
    }
}

/// Unless RUST_LOG says otherwise: what a node tells of itself, under names that stay.
const LOGGED: &str = "info,libp2p_swarm=warn";

fn begin_log(log: Log) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|wanted| !wanted.is_empty());
    let wanted = wanted.unwrap_or_else(|| LOGGED.to_owned());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(wanted))
        .with_writer(io::stderr)
        .with_target(false)
        .log_internal_errors(false); // a closed stderr must not end the node
    match log {
        Log::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
        Log::Json => builder.json().init(),
    }
}

/// Prints an answer, without control characters that came from elsewhere. A reader of only its
/// beginning, as `head` is, is no error.
fn answer(text: &str) -> Outcome {
    match io::stdout().lock().write_all(printable::lines(text).as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// What was asked for is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Missing(String);

/// What the process ends with; `ostraca --help` lists the codes.
pub(crate) fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    let code = if let Some(node::Ended(reason)) = error.downcast_ref() {
        reason.exit_code()
    } else if error.is::<Missing>() {
        3
    } else if error.is::<ConnectError>() || error.downcast_ref().is_some_and(is_nobody_there) {
        4
    } else {
        error.downcast_ref().map_or(1, code_of)
    };
    ExitCode::from(code)
}

/// Whoever refuses is there.
const fn is_nobody_there(error: &net::client::ConnectError) -> bool {
    use net::client::ConnectError::{NoAnswer, NobodyListens, Silent};
    matches!(error, NoAnswer { .. } | NobodyListens { .. } | Silent { .. })
}

fn code_of(error: &AskError) -> u8 {
    match error {
        AskError::Refused(refusal) => match refusal.why {
            Why::UnknownType => 3,
            Why::Stopped => 4,
            Why::TooFew => 5,
            _ => 1,
        },
        AskError::Silent { .. } | AskError::HungUp | AskError::Ended | AskError::Frame(_) => 4,
        _ => 1,
    }
}

/// Tells an error and what is behind it.
pub(crate) fn complain(error: &dyn Error) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(behind) = cause {
        text.push_str(&format!("\n  because: {behind}"));
        cause = behind.source();
    }
    let _ = writeln!(io::stderr(), "{}", printable::lines(&text)); // it may be closed
}
