//! `ostraca explain`: why a shard, or an entity, lives where it lives.

use std::time::Duration;

use clap::{Args, Subcommand};
use ostraca::management::client::AskError;
use ostraca::management::wire::{About, Answer, Request};

use super::target::{Output, Target, milliseconds, patience, wait};
use super::{Outcome, shown};

/// What to explain.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Why a shard lives where it lives.
    #[command(after_help = "Examples:\n  ostraca explain shard cart 412 --config node.toml")]
    Shard {
        /// The entity type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The shard's number.
        shard: u32,
        #[command(flatten)]
        how: How,
    },
    /// Why an entity lives where it lives.
    #[command(after_help = "Examples:\n  ostraca explain entity cart alice --config node.toml")]
    Entity {
        /// The entity type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The entity's id.
        id: String,
        #[command(flatten)]
        how: How,
    },
    /// What came to a node and left it.
    #[command(after_help = "Examples:\n  ostraca explain node cart /ip4/10.0.0.2/tcp/4001 \
                            --config node.toml")]
    Node {
        /// The entity type.
        #[arg(value_name = "TYPE")]
        entity_type: String,
        /// The node: its name, its address, or its incarnation; `ostraca members` lists them.
        node: String,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Debug, Args)]
struct How {
    /// How long nodes may take to answer: `500ms`, `3s`.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    output: Output,
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        let (entity_type, about, how) = match self.what {
            What::Shard { entity_type, shard, how } => (entity_type, About::Shard(shard), how),
            What::Entity { entity_type, id, how } => (entity_type, About::Entity(id), how),
            What::Node { entity_type, node, how } => (entity_type, About::Node(node), how),
        };
        let How { timeout, target, output } = how;
        let request = Request::Explain { entity_type, about, within_ms: milliseconds(timeout) };
        wait(async {
            match target.ask(&request, timeout).await? {
                Answer::Explained(why) => {
                    output.print(&shown::unpacked(&why.detail), || why.text.clone())
                }
                _ => Err(AskError::Unexpected.into()),
            }
        })
    }
}
