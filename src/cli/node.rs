//! `ostraca node`: runs a node until a signal stops it.

use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use futures::FutureExt;
use ostraca::Node;
use ostraca::cluster::membership::port::StopReason;
use ostraca::node::shutdown::Reason;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::CommandResult;
use super::config::load_checked;

/// The node ended with a reason whose exit code is not 0, such as its removal from the cluster.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NodeEnded(pub(super) Reason);

/// Options of `ostraca node`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca node\n  ostraca node --config node.toml\n  \
                        OSTRACA__CLUSTER__SEEDS='[\"/ip4/10.0.0.1/tcp/4001\"]' ostraca node")]
pub(super) struct NodeArguments {
    /// A TOML file of settings; `ostraca config --defaults` prints one. Without this option:
    /// defaults, and variables such as OSTRACA__NET__LISTEN.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Format of the log on stderr. RUST_LOG selects the events, such as `RUST_LOG=ostraca=debug`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Lines of text for people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Log filter unless RUST_LOG is set: events from INFO on, of libp2p_swarm from WARN on.
const LOGGED: &str = "info,libp2p_swarm=warn";

/// Installs the log of the process on stderr; panics if there is one already. An empty RUST_LOG
/// counts as unset, and invalid parts of it are ignored. Text is coloured only on a terminal.
fn init_log(log: LogFormat) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|wanted| !wanted.is_empty());
    let wanted = wanted.unwrap_or_else(|| LOGGED.to_owned());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(wanted))
        .with_writer(io::stderr)
        .with_target(false)
        .log_internal_errors(false); // a closed stderr must not end the node
    match log {
        LogFormat::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
}

impl NodeArguments {
    /// Runs a node until it ends, and returns the error [`NodeEnded`] unless its exit code is 0.
    /// Installs the log before it loads the settings. A node that ended as orphaned is replaced by
    /// a new one with the same settings, which are not read again, as often as this happens. A
    /// failed start is returned as it is, also of a replacement.
    ///
    /// A signal during a start, or while a node ran that ended as orphaned, shuts the node down
    /// that has just started. Such signals are not counted: two further ones during this shutdown
    /// end the process immediately.
    pub(super) fn run(self) -> CommandResult {
        init_log(self.log);
        let config = load_checked(self.config.as_deref())?;
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            // Records signals that arrive while no node runs, between two starts.
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
                // An orphaned node never was in a configuration, so a new one may replace it.
                if reason != Reason::Membership(StopReason::Orphaned) {
                    return if reason.exit_code() == 0 {
                        Ok(())
                    } else {
                        Err(NodeEnded(reason).into())
                    };
                }
            }
        })
    }
}
