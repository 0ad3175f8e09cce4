//! `ostraca explain`: prints why a shard or an entity lives where it lives.

use clap::{Args, Subcommand};
use ostraca::management::client::AdminRequestError;
use ostraca::management::wire::{AdminRequest, AdminResponse, ExplainSubject};

use super::target::{QueryOptions, run_blocking};
use super::{CommandResult, shown};

/// The subject of the explanation.
#[derive(Debug, Args)]
pub(super) struct ExplainArguments {
    #[command(subcommand)]
    subject: ExplainCommand,
}

#[derive(Debug, Subcommand)]
enum ExplainCommand {
    /// Why a shard lives where it lives.
    #[command(after_help = "Examples:\n  ostraca explain shard cart 412 --config node.toml")]
    Shard {
        /// The entity type, as its program has started it.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// Number of the shard, from 0.
        shard: u32,
        #[command(flatten)]
        how: QueryOptions,
    },
    /// Why an entity lives where it lives.
    #[command(after_help = "Examples:\n  ostraca explain entity cart alice --config node.toml")]
    Entity {
        /// The entity type, as its program has started it.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// Id of the entity within its type.
        id: String,
        #[command(flatten)]
        how: QueryOptions,
    },
    /// Which shards came to a node and left it.
    #[command(after_help = "Examples:\n  ostraca explain node cart /ip4/10.0.0.2/tcp/4001 \
                            --config node.toml")]
    Node {
        /// The entity type, as its program has started it.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The node: its name, its address, or its incarnation; `ostraca members` lists them.
        node: String,
        #[command(flatten)]
        how: QueryOptions,
    },
}

impl ExplainArguments {
    /// Asks the node for the explanation and prints it: the text of the node, or with `--json` its
    /// `detail` decoded to JSON; a `detail` that can't be decoded is printed as a text with its
    /// length, and that is no error. The node refuses an unknown type or subject; an answer of
    /// another kind is the error `Unexpected`.
    pub(super) fn run(self) -> CommandResult {
        let (entity_type, about, how) = match self.subject {
            ExplainCommand::Shard { entity_type, shard, how } => {
                (entity_type, ExplainSubject::Shard(shard), how)
            }
            ExplainCommand::Entity { entity_type, id, how } => {
                (entity_type, ExplainSubject::Entity(id), how)
            }
            ExplainCommand::Node { entity_type, node, how } => {
                (entity_type, ExplainSubject::Node(node), how)
            }
        };
        let request = AdminRequest::Explain { entity_type, about, within_ms: how.within_ms() };
        run_blocking(async {
            match how.ask(&request).await? {
                AdminResponse::Explained(why) => {
                    how.output().print(&shown::unpacked(&why.detail), || why.text.clone())
                }
                _ => Err(AdminRequestError::Unexpected.into()),
            }
        })
    }
}
