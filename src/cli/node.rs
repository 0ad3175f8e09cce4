//! `ostraca node`: a node until a signal ends it.

use std::path::PathBuf;

use clap::Args;
use futures::FutureExt;
use ostraca::Node;
use ostraca::cluster::membership::port::StopReason;
use ostraca::node::shutdown::Reason;
use tokio::signal::unix::{SignalKind, signal};

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
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        let config = fit(self.config.as_deref())?;
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            // Signals that come while no node runs, between two starts, are held here.
            let mut signals = [SignalKind::terminate(), SignalKind::interrupt()]
                .map(signal)
                .into_iter()
                .collect::<std::io::Result<Vec<_>>>()?;
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
