//! `ostraca node`: a node until a signal ends it.

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use futures::FutureExt;
use ostraca::Node;
use ostraca::cluster::membership::port::StopReason;
use ostraca::node::shutdown::Reason;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::Outcome;
use super::config::fit;

/// The node ended although nobody asked for it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Ended(pub(super) Reason);

/// How the node is set up.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca node\n  ostraca node --config node.toml\n  \
                        OSTRACA__CLUSTER__SEEDS='[\"/ip4/10.0.0.1/tcp/4001\"]' ostraca node")]
pub(super) struct Arguments {
    /// A TOML file of settings; `ostraca config --defaults` prints one. Without it: defaults, and
    /// variables such as OSTRACA__NET__LISTEN.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How the log is written, to stderr; RUST_LOG chooses what, such as `RUST_LOG=ostraca=debug`.
    #[arg(long, value_enum, default_value_t = Log::Text)]
    log: Log,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Log filter without RUST_LOG: the events of a node, under names that stay.
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

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        begin_log(self.log);
        let config = fit(self.config.as_deref())?;
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            // Signals that come while no node runs, between two starts, are held here.
            let mut signals = [SignalKind::terminate(), SignalKind::interrupt()]
                .map(signal)
                .into_iter()
                .collect::<io::Result<Vec<_>>>()?;
            loop {
                let node = Node::start(config.clone()).await?;
                if signals.iter_mut().any(|signal| signal.recv().now_or_never().is_some()) {
                    node.shutdown().begin(Reason::Signal);
                }
                let reason = node.run_until_signal().await?;
                tracing::info!(%reason, "node.ended");
                // A node that nothing remembers and no configuration had: a new one takes its place.
                if reason != Reason::Membership(StopReason::Orphaned) {
                    return if reason.exit_code() == 0 {
                        Ok(())
                    } else {
                        Err(Ended(reason).into())
                    };
                }
            }
        })
    }
}
