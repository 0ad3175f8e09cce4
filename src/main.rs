//! The `ostraca` tool: runs nodes, sends requests to running nodes, checks settings, generates
//! secrets. `ostraca help` lists the commands.

mod cli;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command of the command line. An error is printed to stderr with its causes and decides
/// the exit code (`cli::exit_code`); 0 without one. Invalid arguments, `--help` and `--version` end
/// the process while the arguments are parsed, with exit code 2 or 0.
fn main() -> ExitCode {
    match cli::Ostraca::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::print_error(&*error);
            cli::exit_code(&*error)
        }
    }
}
