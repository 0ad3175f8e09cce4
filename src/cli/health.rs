//! `ostraca health`: exit code 0 or 1 for whether a node is live or ready.

use std::error::Error;
use std::time::Duration;

use clap::Args;
use ostraca::management::client::AdminRequestError;
use ostraca::management::wire::{AdminRequest, AdminResponse, Health, RefusalReason};
use serde_json::json;

use super::target::{NodeOptions, NotKnownThere, milliseconds, patience, run_blocking};
use super::{CommandResult, Usage};

/// Options of `ostraca health`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca health --ready --config node.toml\n  \
                        ostraca health --live --socket /var/lib/shop/control.sock\n  \
                        ostraca health --json --node 10.0.0.2:4001 --config client.toml")]
pub(super) struct HealthArguments {
    /// Checks only that the node answers.
    #[arg(long, conflicts_with = "ready")]
    live: bool,
    /// Checks that the node serves: it is Up, its entity types are registered, and it is not
    /// stopping. The default.
    #[arg(long)]
    ready: bool,
    /// Time limit for the answer and for becoming ready, 1ms to 60s. The command ends at most 2 s
    /// later.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = patience)]
    timeout: Duration,
    #[command(flatten)]
    asking: NodeOptions,
}

/// The node is not healthy: exit code 1 for every reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unhealthy(String);

/// Result of the check, also if the node did not answer.
struct HealthResult {
    /// The node answered with its health, or refused for another reason than its shutdown.
    live: bool,
    /// State of the node; only `reason` is set if it did not answer with its health.
    health: Health,
}

impl HealthArguments {
    /// Asks the node for its health, prints the result and fails with [`Unhealthy`] if the check
    /// does not hold. Without `--live` the node may wait up to the time limit to become ready; with
    /// `--live` it answers immediately, and the limit applies to the answer only. With `--json` an
    /// unhealthy result is printed to stdout as well; without it only the error is.
    pub(super) fn run(self) -> CommandResult {
        let Self { live, ready: _, timeout, asking } = self;
        let within_ms = if live { 0 } else { milliseconds(timeout) };
        let request = AdminRequest::Health { within_ms };
        run_blocking(async {
            let asked = asking.target.ask(&request, timeout).await;
            let found = found(asked)?;
            let text = found.text(live);
            if found.is(live) {
                return asking.output.print(&found.json(), || text + "\n");
            }
            asking.output.print(&found.json(), String::new)?;
            Err(Unhealthy(text).into())
        })
    }
}

/// Turns the answer or the error into a result. Only [`Usage`] errors are returned; any other
/// error, such as an unreadable settings file, becomes a result with the error as its reason and an
/// unknown readiness. Such a result is live only if the node refused the request for another reason
/// than its shutdown, or as [`NotKnownThere`]; an answer of another kind is not live.
fn found(asked: Result<AdminResponse, Box<dyn Error>>) -> Result<HealthResult, Box<dyn Error>> {
    let error = match asked {
        Ok(AdminResponse::Health(health)) => return Ok(HealthResult { live: true, health }),
        Ok(_) => AdminRequestError::Unexpected.into(),
        Err(error) if error.is::<Usage>() => return Err(error),
        Err(error) => error,
    };
    // A node that refuses is live, unless it is stopping.
    let refused = |error: &AdminRequestError| matches!(error, AdminRequestError::Refused(why) if why.why != RefusalReason::Stopped);
    let live = error.is::<NotKnownThere>() || error.downcast_ref().is_some_and(refused);
    Ok(HealthResult {
        live,
        health: Health { reason: Some(error_chain(&*error)), ..Health::default() },
    })
}

/// Formats an error with its causes in one line, separated by colons.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl HealthResult {
    /// Whether the wanted check holds: only liveness if `live`, otherwise liveness and readiness.
    /// An unknown readiness counts as not ready.
    fn is(&self, live: bool) -> bool {
        self.live && (live || self.health.ready == Some(true))
    }

    /// Returns the result as JSON, for both checks: `live` and `ready` with the facts about the
    /// node. Unknown values are `null`, also the name of a node that did not answer.
    fn json(&self) -> serde_json::Value {
        let Health { node, cluster, status, ready, reason } = &self.health;
        let node = Some(node).filter(|node| !node.is_empty());
        json!({
            "live": self.live, "ready": ready, "node": node, "cluster": cluster, "status": status,
            "reason": reason,
        })
    }

    /// Describes the result of the wanted check in one line without a line end. A check that fails
    /// names the reason: of not being live if the node is not live, otherwise of not being ready.
    /// An unknown readiness reads "not known to be ready", unlike a known `false`.
    fn text(&self, live: bool) -> String {
        let Health { node, cluster, status, ready, reason } = &self.health;
        let name = if node.is_empty() { "the node" } else { node };
        let reason = reason.as_deref().unwrap_or("it does not tell the reason");
        match (self.is(live), live) {
            (true, true) => format!("{name} is live"),
            (true, false) => {
                let status = status.as_deref().unwrap_or("no member");
                let cluster = cluster.as_deref().unwrap_or("no cluster");
                format!("{name} is ready: {status} in {cluster}")
            }
            (false, _) if !self.live => format!("{name} is not known to be live: {reason}"),
            (false, _) if ready.is_none() => format!("{name} is not known to be ready: {reason}"),
            (false, _) => format!("{name} is not ready: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca::management::wire::RequestRefusal;

    use super::*;

    #[test]
    fn node_that_refuses_is_live_unless_it_is_stopping() {
        let refusal = |why| RequestRefusal { why, text: "refused".to_owned() };
        let older = NotKnownThere(refusal(RefusalReason::NotUnderstood));
        let errors: [(Box<dyn Error>, bool); 4] = [
            (older.into(), true),
            (AdminRequestError::Refused(refusal(RefusalReason::Busy)).into(), true),
            (AdminRequestError::Refused(refusal(RefusalReason::Stopped)).into(), false),
            (AdminRequestError::HungUp.into(), false),
        ];
        for (error, is_live) in errors {
            let text = error.to_string();
            let found = found(Err(error)).expect("a result of the check");
            assert_eq!((found.is(true), found.is(false)), (is_live, false), "{text}");
            let unknown = if is_live { "ready" } else { "live" };
            let expected = format!("the node is not known to be {unknown}: ");
            assert!(found.text(false).starts_with(&expected), "{text}");
        }
    }
}
