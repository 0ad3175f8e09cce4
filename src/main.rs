//! The `ostraca` tool: runs nodes, sends requests to running nodes, checks settings, generates
//! secrets. `ostraca help` lists the commands.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Ostraca::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::print_error(&*error);
            cli::exit_code(&*error)
        }
    }
}
