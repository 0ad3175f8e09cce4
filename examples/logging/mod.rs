//! The log of an example: on stderr, what `RUST_LOG` asks for (nothing unless it is set), as text
//! or, with `--log json`, an object a line.

use std::io::{IsTerminal, Write};
use std::process::exit;

use tracing_subscriber::EnvFilter;

/// Begins to log; the arguments that are left.
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
            let _ = writeln!(std::io::stderr(), "error: --log is text or json"); // it may be closed
            exit(2);
        }
    }
    arguments
}

/// The arguments that make a process that an example starts log alike.
#[allow(dead_code, reason = "not every example starts processes")]
pub(crate) fn passed_on() -> Vec<String> {
    std::env::args().skip_while(|argument| argument != "--log").take(2).collect()
}
