//! Commands that change members or shards: `leave`, `drain`, `down`, `stop-shards`, `rebalance`,
//! `prepare-shutdown`.

use std::time::Duration;

use clap::Args;
use ostraca::management::client::AdminRequestError;
use ostraca::management::wire::{AdminRequest, AdminResponse, DrainReport, MemberName};
use serde_json::json;

use super::confirmation::Confirmation;
use super::target::{NodeOptions, milliseconds, patience, run_blocking};
use super::{CommandResult, UnfinishedAction};

/// The member that leaves.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca leave --config node.toml\n  \
                        ostraca leave 10.0.0.2:4001 --config node.toml\n  \
                        ostraca leave 890bb1ab/00000000c0ffee01 --config node.toml --json")]
pub(super) struct Leave {
    /// Name, address or incarnation of the member; `ostraca members` lists them. Without it the
    /// asked node leaves.
    node: Option<String>,
    #[command(flatten)]
    asking: NodeOptions,
}

/// The member that is declared dead.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca down 10.0.0.2:4001 --config node.toml\n  \
                        ostraca down 890bb1ab/00000000c0ffee01 --yes --config node.toml")]
pub(super) struct Down {
    /// Name, address or incarnation of the member; `ostraca members` lists them.
    node: String,
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten)]
    asking: NodeOptions,
}

/// The node to drain.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca drain --config node.toml\n  \
                        ostraca drain --timeout 60s --socket /var/lib/shop/control.sock\n  \
                        ostraca drain --undo --config node.toml")]
pub(super) struct Drain {
    /// Lets the node host shards again.
    #[arg(long)]
    undo: bool,
    /// Time to wait until the node has no shards, 1ms to 60s; the node keeps draining after that.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = patience)]
    timeout: Duration,
    #[command(flatten)]
    asking: NodeOptions,
}

/// The shards to stop.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca stop-shards cart 412 --config node.toml\n  \
                        ostraca stop-shards cart --yes --socket /var/lib/shop/control.sock")]
pub(super) struct StopShards {
    /// The entity type, as its program has started it.
    #[arg(value_name = "TYPE")]
    entity_type: String,
    /// Numbers of shards. Without numbers: all shards of the type.
    #[arg(value_name = "SHARD")]
    shards: Vec<u32>,
    /// Time limit for stopping the shards, 1ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = patience)]
    timeout: Duration,
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten)]
    asking: NodeOptions,
}

/// The entity type to balance.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca rebalance cart --config node.toml\n  \
                        ostraca rebalance cart --node 10.0.0.2:4001 --config client.toml")]
pub(super) struct Rebalance {
    /// The entity type, as its program has started it.
    #[arg(value_name = "TYPE")]
    entity_type: String,
    #[command(flatten)]
    asking: NodeOptions,
}

/// The cluster to freeze.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca prepare-shutdown --config node.toml\n  \
                        ostraca prepare-shutdown --yes --socket /var/lib/shop/control.sock")]
pub(super) struct PrepareShutdown {
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten)]
    asking: NodeOptions,
}

impl Leave {
    /// Asks the member to leave, without a confirmation, and prints its name and address. Does not
    /// wait until it has left.
    pub(super) fn run(self) -> CommandResult {
        let Self { node, asking } = self;
        let what = "leave";
        run_blocking(async {
            let member = ordered(&asking, &AdminRequest::Leave { node }).await?;
            let MemberName { node, address } = &member;
            asking.output.print(&json!({ "ordered": what, "node": node, "address": address }), || {
                format!(
                    "{node} at {address} was asked to leave: it hands its shards over and stops; \
                     `ostraca members` shows its status\n"
                )
            })
        })
    }
}

impl Down {
    /// Demands a confirmation before it connects, so before the node has checked the name. Then
    /// declares the member dead and prints its name and address. Does not wait for its removal.
    pub(super) fn run(self) -> CommandResult {
        let Self { node, confirmation, asking } = self;
        confirmation
            .demand(&format!("{node} is removed from the cluster, and stops if it is alive"))?;
        run_blocking(async {
            let member = ordered(&asking, &AdminRequest::Down { node }).await?;
            let MemberName { node, address } = &member;
            asking.output.print(&json!({ "ordered": "down", "node": node, "address": address }), || {
                format!(
                    "{node} at {address} was declared dead: a quorum of the others removes it once \
                     its lease has expired; `ostraca members` shows its status\n"
                )
            })
        })
    }
}

/// Sends an order about a member and returns the name and address of that member. The node does not
/// wait until the order is carried out. An answer of another kind is an error.
async fn ordered(
    asking: &NodeOptions,
    request: &AdminRequest,
) -> Result<MemberName, Box<dyn std::error::Error>> {
    match asking.target.ask(request, Duration::ZERO).await? {
        AdminResponse::Ordered(member) => Ok(member),
        _ => Err(AdminRequestError::Unexpected.into()),
    }
}

impl Drain {
    /// Starts or ends the draining, without a confirmation, and prints the shards that the node
    /// still hosts. Fails with [`UnfinishedAction`], after the output, if the node drains and has
    /// shards left; so never with `--undo`.
    pub(super) fn run(self) -> CommandResult {
        let Self { undo, timeout, asking } = self;
        let request = AdminRequest::Drain { undo, within_ms: milliseconds(timeout) };
        run_blocking(async {
            let AdminResponse::Drained(drained) = asking.target.ask(&request, timeout).await?
            else {
                return Err(AdminRequestError::Unexpected.into());
            };
            asking.output.print(&drained, || drained_text(&drained))?;
            match drained.draining && !drained.shards.is_empty() {
                true => Err(UnfinishedAction(format!(
                    "shards are left after {timeout:?}: they continue to move, or no other node \
                     may host them; `ostraca shards TYPE` shows where they live"
                ))
                .into()),
                false => Ok(()),
            }
        })
    }
}

/// Describes a report in one line, with the number of shards of each type that are left.
fn drained_text(drained: &DrainReport) -> String {
    let DrainReport { node, draining, shards } = drained;
    let counted = shards.iter().map(|(name, count)| format!("{count} of {name}"));
    let counted = counted.collect::<Vec<_>>().join(", ");
    match (draining, shards.is_empty()) {
        (false, true) => format!("{node} may host shards again\n"),
        (false, false) => format!("{node} may host shards again; it hosts {counted}\n"),
        (true, true) => format!("{node} hosts no shards and gets none\n"),
        (true, false) => format!("{node} gets no shards; it still hosts {counted}\n"),
    }
}

impl StopShards {
    /// Demands a confirmation, stops the shards and prints how many were meant: those that did not
    /// run count, and a number that is named twice counts once (but twice in the confirmation). No
    /// numbers mean all shards; numbers are checked by the node. The node refuses with `NotStopped`
    /// if shards run after the time limit; that is exit code 5.
    pub(super) fn run(self) -> CommandResult {
        let Self { entity_type, shards, timeout, confirmation, asking } = self;
        let which = match shards.len() {
            0 => "all shards".to_owned(),
            1 => "a shard".to_owned(),
            count => format!("{count} shards"),
        };
        let consequence = "and the state of their entities in memory is lost";
        confirmation.demand(&format!("{which} of {entity_type} stop, {consequence}"))?;
        let name = entity_type.clone();
        let request =
            AdminRequest::StopShards { entity_type, shards, within_ms: milliseconds(timeout) };
        run_blocking(async {
            match asking.target.ask(&request, timeout).await? {
                AdminResponse::ShardsStopped(count) => {
                    asking.output.print(&json!({ "entity_type": name, "stopped": count }), || {
                        format!("{count} shards of {name} have stopped\n")
                    })
                }
                _ => Err(AdminRequestError::Unexpected.into()),
            }
        })
    }
}

impl Rebalance {
    /// Asks the coordinator for a check of the balance. Does not wait for moves, and does not tell
    /// whether any began.
    pub(super) fn run(self) -> CommandResult {
        let Self { entity_type, asking } = self;
        let json = json!({ "ordered": "rebalance", "entity_type": entity_type });
        let text = format!("the coordinator of {entity_type} checks the balance now\n");
        run_blocking(done(&asking, &AdminRequest::Rebalance { entity_type }, json, text))
    }
}

impl PrepareShutdown {
    /// Demands a confirmation and freezes the cluster. Stops no node: the user must do this.
    pub(super) fn run(self) -> CommandResult {
        let Self { confirmation, asking } = self;
        confirmation
            .demand("the whole cluster is frozen for good: no node joins, no shard moves")?;
        let json = json!({ "ordered": "prepare-shutdown" });
        let text = "the cluster is frozen: stop all nodes now\n".to_owned();
        run_blocking(done(&asking, &AdminRequest::PrepareForShutdown, json, text))
    }
}

/// Sends an order that the node answers with `Done`, and prints `json` or `text` then. An answer of
/// another kind is an error.
async fn done(
    asking: &NodeOptions,
    request: &AdminRequest,
    json: serde_json::Value,
    text: String,
) -> CommandResult {
    match asking.target.ask(request, Duration::ZERO).await? {
        AdminResponse::Done => asking.output.print(&json, || text),
        _ => Err(AdminRequestError::Unexpected.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_names_the_shards_that_are_left() {
        let drained = |draining, shards: &[(&str, u64)]| DrainReport {
            node: "n".to_owned(),
            draining,
            shards: shards.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        };
        let two = [("cart", 3), ("order", 1)];
        for (found, expected) in [
            (drained(true, &[]), "n hosts no shards and gets none\n"),
            (drained(true, &two), "n gets no shards; it still hosts 3 of cart, 1 of order\n"),
            (drained(false, &[]), "n may host shards again\n"),
            (drained(false, &two[..1]), "n may host shards again; it hosts 3 of cart\n"),
        ] {
            assert_eq!(drained_text(&found), expected);
        }
    }
}
