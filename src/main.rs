//! `ostraca`: runs nodes, asks them, checks settings, makes secrets. `ostraca help` says how.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Ostraca::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::complain(&*error);
            cli::exit_code(&*error)
        }
    }
}
