//! The command line: its commands, the output of answers and errors, and the exit codes.

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
mod watch;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ostraca::management::client::{AdminConnectError, AdminRequestError};
use ostraca::management::wire::RefusalReason;
use ostraca::net;

/// Result of a command.
pub(crate) type CommandResult = Result<(), Box<dyn Error>>;

/// Sharded, stateful entities on a cluster that needs no external store.
///
/// `ostraca node` runs a node. Most other commands ask a running node, one of a program of yours or
/// `ostraca node`: over its control socket or, on another host, at its address. The variables
/// OSTRACA_CONFIG and OSTRACA_SOCKET name the node for all of them.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_long_help = "\
    Exit codes:\n  \
    0  success\n  \
    1  failure or refusal: nothing was changed unless the error says otherwise;\n     \
       `ostraca health`: the node is not healthy\n  \
    2  the arguments are invalid\n  \
    3  the key holds nothing, or the node has not started the entity type\n  \
    4  no node answers\n  \
    5  not finished in time: a write will still spread, shards continue to move or stop\n  \
    6  `ostraca node` was removed from its cluster, or found none in time: restart it\n  \
    130  `ostraca node`: a second signal ended it immediately"
)]
pub(crate) struct Ostraca {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Runs a node without entities of its own: it stores replicated data and votes.
    ///
    /// On SIGTERM or Ctrl-C the node leaves the cluster, stops and exits with 0; a second signal
    /// ends it immediately (130). A node that was removed from its cluster exits with 6: let its
    /// supervisor restart it.
    Node(node::NodeArguments),
    /// Prints the default settings, or checks a settings file.
    Config(config::ConfigArguments),
    /// Prints the members of the cluster, as a running node sees them.
    ///
    /// Prints addresses, states and roles, the leader, unreachable members, and the configuration
    /// that decides about replicated data. Nodes may differ for a moment: ask another one with
    /// --node.
    Members(members::MembersArguments),
    /// Prints where the shards of an entity type live and how many entities each node hosts.
    ///
    /// Asks a node that has started the type. This node asks all hosts of the type and names those
    /// that do not answer in time.
    Shards(shards::ShardsArguments),
    /// Prints why a shard or an entity lives where it lives, or which shards came to a node and
    /// left it.
    ///
    /// Asks a node that has started the type. This node asks all hosts of the type for the
    /// decisions that they remember; a stopped node remembers nothing.
    Explain(explain::ExplainArguments),
    /// Checks whether a node is live and ready: exit code 0 or 1, for probes.
    ///
    /// A node is live if it answers. It is ready if it is Up in a cluster, the coordinators have
    /// registered its regions, and its shutdown has not begun.
    Health(health::HealthArguments),
    /// Asks a member to leave the cluster: it hands its shards over and stops.
    ///
    /// Without NODE the asked node leaves. The command does not wait for the end: `ostraca members
    /// --watch` shows when the member is gone.
    Leave(orders::Leave),
    /// Moves all shards away from the asked node, which remains a member.
    ///
    /// From then on no shard is allocated to it, and coordinators that run on it move. Shards that
    /// no other node may host stay. The node drains until `--undo` or its restart.
    Drain(orders::Drain),
    /// Declares a member dead; a quorum of the others then removes it.
    ///
    /// Only for a member that is certainly dead and that the downing strategy does not remove. If
    /// the member is alive, it stops itself. It is removed once its lease has expired.
    Down(orders::Down),
    /// Stops shards of an entity type on all nodes; their entities stop.
    ///
    /// Their state in memory is lost. A shard starts again with the next message for it.
    StopShards(orders::StopShards),
    /// Makes the coordinator of an entity type check the balance of shards now.
    ///
    /// The allocation strategy decides which shards move, within its limits. Only the node that
    /// runs the coordinator can do this; another node names it.
    Rebalance(orders::Rebalance),
    /// Freezes members and shards of the whole cluster, before all nodes stop.
    ///
    /// From then on no node joins and no shard moves. This can't be undone: stop all nodes.
    PrepareShutdown(orders::PrepareShutdown),
    /// Continues without a majority of the cluster that is lost for good. Gives up guarantees.
    ///
    /// Run it on ONE surviving node, on that node's host. Without --force it changes nothing: it
    /// prints the members that would be kept (this node, and the members that it reaches now) and
    /// those that would be given up.
    ///
    /// By default the survivors of a lost majority stop within seconds, and then no node is left to
    /// run this on. Set cluster.downing.wait-without-quorum = "30min" beforehand to make them wait.
    ///
    /// A node can't distinguish a dead member from one that it does not reach. Make sure that all
    /// members to be given up are stopped and will not restart on their own. If they are alive,
    /// even as a healthy majority that only this node is cut off from, both sides act: an entity
    /// may run twice, and replicated data diverge. A given-up member that learns of the recovery
    /// stops, WHATEVER THEIR NUMBER, and its changes since then are lost. A member that refuses
    /// connections from the survivors never learns of it and continues until you stop it.
    ///
    /// Replicated data that only given-up members held are lost, acknowledged or not, and so are
    /// the entities there. Shards on survivors stay. A given-up member never returns: when its host
    /// starts the node again, it joins as a new member. If two survivors are forced at the same
    /// time, the later configuration wins and they end as one cluster. If a kept member turns out
    /// to be dead, run the command again.
    Recover(recover::RecoverArguments),
    /// Reads, sets, deletes and watches replicated data of a running node.
    Data(data::DataArguments),
    /// Generates a secret for a cluster: `ostraca secret --out cluster.secret`, the same file on
    /// all nodes.
    ///
    /// Set `net.cluster-secret-file` to this file. Every holder of the secret may join the cluster.
    Secret(secret::SecretArguments),
    /// Simulates a cluster and measures how fast changes reach every replica.
    ///
    /// Runs real Replicators in virtual time. Prints time, one-way trips, messages and bytes beside
    /// lower bounds that hold for every protocol, and draws a plot.
    Sim(sim::SimArguments),
    /// Prints completions for a shell.
    Completions(generated::Completions),
    /// Prints a man page, or writes the pages of all commands.
    Man(generated::Man),
}

impl Ostraca {
    /// Executes the command that the user gave.
    pub(crate) fn run(self) -> CommandResult {
        match self.command {
            CliCommand::Node(arguments) => arguments.run(),
            CliCommand::Config(arguments) => arguments.run(),
            CliCommand::Members(arguments) => arguments.run(),
            CliCommand::Shards(arguments) => arguments.run(),
            CliCommand::Explain(arguments) => arguments.run(),
            CliCommand::Health(arguments) => arguments.run(),
            CliCommand::Leave(arguments) => arguments.run(),
            CliCommand::Drain(arguments) => arguments.run(),
            CliCommand::Down(arguments) => arguments.run(),
            CliCommand::StopShards(arguments) => arguments.run(),
            CliCommand::Rebalance(arguments) => arguments.run(),
            CliCommand::PrepareShutdown(arguments) => arguments.run(),
            CliCommand::Recover(arguments) => arguments.run(),
            CliCommand::Data(arguments) => arguments.run(),
            CliCommand::Secret(arguments) => arguments.run(),
            CliCommand::Sim(arguments) => arguments.run(),
            CliCommand::Completions(arguments) => arguments.run(),
            CliCommand::Man(arguments) => arguments.run(),
        }
    }
}

/// Prints an answer to stdout, without a line end of its own. Escapes harmful characters of other
/// nodes, but no line ends and tabs. A closed pipe, as after `head`, is not an error.
fn print_answer(text: &str) -> CommandResult {
    match io::stdout().lock().write_all(printable::lines(text).as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Invalid arguments that the parser can't detect; exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// An action was started but has not finished in time; it continues. Exit code 5.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UnfinishedAction(String);

/// The key holds nothing; exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct MissingKey(String);

/// Returns the exit code of the process for a failed command; `ostraca --help` lists the codes.
/// Looks only at the error itself, not at its sources; an error of another type is 1, also
/// [`NotKnownThere`](target::NotKnownThere). Every failed connection to a control socket is 4; one
/// over the network only if [`is_unreachable`], otherwise 1.
pub(crate) fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    let code = if let Some(node::NodeEnded(reason)) = error.downcast_ref() {
        reason.exit_code()
    } else if error.is::<Usage>() {
        2
    } else if error.is::<MissingKey>() {
        3
    } else if error.is::<UnfinishedAction>() {
        5
    } else if error.is::<AdminConnectError>() || error.downcast_ref().is_some_and(is_unreachable) {
        4
    } else {
        error.downcast_ref().map_or(1, code_of)
    };
    ExitCode::from(code)
}

/// Whether no node answers at the address. A node that refuses the connection as a peer is present,
/// so this is `false`.
const fn is_unreachable(error: &net::client::ConnectError) -> bool {
    use net::client::ConnectError::{NoAnswer, NobodyListens, Silent};
    matches!(error, NoAnswer { .. } | NobodyListens { .. } | Silent { .. })
}

/// Returns the exit code for a request without a usable answer. A refusal is 3 for an unknown type,
/// 5 if too few replicas answered or shards still run, 4 if the node is stopping, otherwise 1. A
/// missing answer, an ended watch and a broken connection are 4. A request that was not sent, and
/// an answer that can't be decoded or is of another kind, are 1.
fn code_of(error: &AdminRequestError) -> u8 {
    match error {
        AdminRequestError::Refused(refusal) => match refusal.why {
            RefusalReason::UnknownType => 3,
            RefusalReason::Stopped => 4,
            RefusalReason::TooFew | RefusalReason::NotStopped => 5,
            _ => 1,
        },
        AdminRequestError::Silent { .. }
        | AdminRequestError::HungUp
        | AdminRequestError::Ended
        | AdminRequestError::Frame(_) => 4,
        _ => 1,
    }
}

/// Prints an error to stderr, each of its sources on a line of its own. Escapes harmful characters,
/// but no line ends and tabs. Ignores a failed write.
pub(crate) fn print_error(error: &dyn Error) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(behind) = cause {
        text.push_str(&format!("\n  because: {behind}"));
        cause = behind.source();
    }
    let _ = writeln!(io::stderr(), "{}", printable::lines(&text)); // stderr may be closed
}
