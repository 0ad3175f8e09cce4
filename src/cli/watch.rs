//! `--watch`: prints the answer to a request again whenever it changes.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use ostraca::management::wire::{AdminRequest, AdminResponse};
use serde::Serialize;

use super::target::{NodeTarget, OutputOptions};
use super::{CommandResult, printable};

/// Interval of the requests to the node.
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct WatchOption {
    /// Prints the answer again whenever it changes, until Ctrl-C; with --json one object per line.
    #[arg(long)]
    watch: bool,
}

impl WatchOption {
    /// Sends the request once or, with `--watch`, a second after each answer until Ctrl-C, and
    /// prints each answer whose output differs from the previous one. An empty line separates
    /// answers as text. Each request uses a new connection and gets `patience`, see
    /// [`NodeTarget::ask`]. The first error of a request or of `read` ends the watch, also if the
    /// node is only gone for a moment. Ctrl-C and a closed pipe end it successfully; a pipe closed
    /// by its reader is noticed only at the next change.
    pub(super) async fn print<A, J: Serialize>(
        self,
        target: &NodeTarget,
        (request, patience): (&AdminRequest, Duration),
        output: OutputOptions,
        read: impl Fn(AdminResponse) -> Result<A, Box<dyn std::error::Error>>,
        show: impl Fn(&A) -> (J, String),
    ) -> CommandResult {
        if !self.watch {
            let (json, text) = show(&read(target.ask(request, patience).await?)?);
            return output.print(&json, || text);
        }
        let watching = async {
            let mut last = None;
            loop {
                let (json, text) = show(&read(target.ask(request, patience).await?)?);
                let line = match output.is_json() {
                    true => printable::json(&serde_json::to_string(&json)?).into_owned() + "\n",
                    false => text,
                };
                if last.as_ref() != Some(&line) {
                    let is_first = last.is_none();
                    let gap = if is_first || output.is_json() { "" } else { "\n" };
                    match write(&format!("{gap}{line}")) {
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                        written => written?,
                    }
                    last = Some(line);
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        tokio::select! {
            ended = watching => ended,
            stop = tokio::signal::ctrl_c() => Ok(stop?),
        }
    }
}

/// Writes a text to stdout with harmful characters escaped. Unlike `print_answer` it reports a
/// closed pipe, which ends the watch.
fn write(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(printable::lines(text).as_bytes())
}
