//! Log of an example: on stderr, filtered by `RUST_LOG` (off if it is not set), as text or, with
//! `--log json`, one JSON object per line.

use std::io::{IsTerminal, Write};
use std::process::exit;

use tracing_subscriber::EnvFilter;

/// Starts the log. Returns the remaining command-line arguments.
pub(crate) fn begin() -> Vec<String> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let format: Vec<String> = match arguments.iter().position(|argument| argument == "--log") {
        Some(at) => arguments.drain(at..arguments.len().min(at + 2)).skip(1).collect(),
        None => vec!["text".to_owned()],
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false); // a closed stderr must not end the program
    match format.first().map(String::as_str) {
        Some("text") => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        Some("json") => builder.json().init(),
        _ => {
            // Fails if stderr is closed.
            let _ = writeln!(std::io::stderr(), "error: --log must be text or json");
            exit(2);
        }
    }
    arguments
}

/// The arguments by which a child process of an example gets the same log settings.
#[allow(dead_code, reason = "not every example starts processes")]
pub(crate) fn passed_on() -> Vec<String> {
    std::env::args().skip_while(|argument| argument != "--log").take(2).collect()
}
