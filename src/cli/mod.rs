//! The command line: what can be asked, and how errors are told.

mod config;
mod confirmation;
mod curve;
mod data;
mod explain;
mod generated;
mod health;
mod members;
mod node;
mod orders;
mod printable;
mod recover;
mod secret;
mod shards;
mod shown;
mod sim;
mod table;
mod target;
mod watching;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ostraca::management::client::{AskError, ConnectError};
use ostraca::management::wire::Why;
use ostraca::net;

/// What a command ends with.
pub(crate) type Outcome = Result<(), Box<dyn Error>>;

/// Sharded, stateful entities on a cluster that needs no external store.
///
/// `ostraca node` runs a node. Most other commands ask a running node, yours or `ostraca node`, over
/// its control socket or, on another host, by its address. OSTRACA_CONFIG or OSTRACA_SOCKET name the
/// node for all of them.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_long_help = "\
    Exit codes:\n  \
    0  it is done\n  \
    1  it failed, or was refused: nothing was changed unless the error says otherwise;\n     \
       `ostraca health`: the node is not healthy\n  \
    2  the arguments make no sense\n  \
    3  there is no such key, or the node knows no such entity type\n  \
    4  no node answers there\n  \
    5  not finished in time: a write stays and will spread, shards go on moving or stopping\n  \
    6  `ostraca node` was removed from its cluster, or found none in time: start it again\n  \
    130  `ostraca node`: a second signal ended it at once"
)]
pub(crate) struct Ostraca {
    #[command(subcommand)]
    command: Command,
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
    /// Checks whether a node lives and is ready to serve: exit code 0 or 1, for probes.
    ///
    /// A node is live if it answers. It is ready if it is Up in a cluster and the coordinators know
    /// its regions, as `node.sharding().ready()` tells a program.
    Health(health::Arguments),
    /// Asks a member to leave in order: it gives away its shards, and ends.
    ///
    /// Without NODE the asked node leaves. The command does not wait: `ostraca members --watch` shows
    /// when the member is gone.
    Leave(orders::Leave),
    /// Gives away all shards of the asked node, which stays a member.
    ///
    /// No shard is allocated to it from then on, and coordinators that run there move. Shards that no
    /// other node may host stay. It lasts until `--undo` or a restart of the node.
    Drain(orders::Drain),
    /// Declares a member dead, so that a quorum of the others removes it.
    ///
    /// Only for a member that is dead for sure and that the downing strategy leaves alone: if it lives
    /// it ends itself. It is removed once its lease has run out.
    Down(orders::Down),
    /// Stops shards of an entity type, wherever they live: their entities end.
    ///
    /// Their state in memory is lost. They start again with the next message for them.
    StopShards(orders::StopShards),
    /// Has the coordinator of an entity type look at the balance of shards now.
    ///
    /// Its allocation strategy decides what moves, within its limits. Only the node that coordinates
    /// the type can be asked; another one names it.
    Rebalance(orders::Rebalance),
    /// Freezes members and shards of the whole cluster, ahead of a stop of all nodes.
    ///
    /// Nothing joins, moves or is handed over from then on. It is not to be undone: stop all nodes.
    PrepareShutdown(orders::PrepareShutdown),
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
    /// Reads, sets, deletes and watches replicated data of a running node.
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
    /// Prints the completions of a shell.
    Completions(generated::Completions),
    /// Prints a man page, or writes those of all commands.
    Man(generated::Man),
}

impl Ostraca {
    /// Does what was asked.
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Node(arguments) => arguments.run(),
            Command::Config(arguments) => arguments.run(),
            Command::Members(arguments) => arguments.run(),
            Command::Shards(arguments) => arguments.run(),
            Command::Explain(arguments) => arguments.run(),
            Command::Health(arguments) => arguments.run(),
            Command::Leave(arguments) => arguments.run(),
            Command::Drain(arguments) => arguments.run(),
            Command::Down(arguments) => arguments.run(),
            Command::StopShards(arguments) => arguments.run(),
            Command::Rebalance(arguments) => arguments.run(),
            Command::PrepareShutdown(arguments) => arguments.run(),
            Command::Recover(arguments) => arguments.run(),
            Command::Data(arguments) => arguments.run(),
            Command::Secret(arguments) => arguments.run(),
            Command::Sim(arguments) => arguments.run(),
            Command::Completions(arguments) => arguments.run(),
            Command::Man(arguments) => arguments.run(),
        }
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

/// Arguments that make no sense, found after they were parsed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// What was ordered has not finished in time, and goes on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unfinished(String);

/// What was asked for is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Missing(String);

/// What the process ends with; `ostraca --help` lists the codes.
pub(crate) fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    let code = if let Some(node::Ended(reason)) = error.downcast_ref() {
        reason.exit_code()
    } else if error.is::<Usage>() {
        2
    } else if error.is::<Missing>() {
        3
    } else if error.is::<Unfinished>() {
        5
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
            Why::TooFew | Why::NotStopped => 5,
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
