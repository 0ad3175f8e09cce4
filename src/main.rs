//! `ostraca`: runs nodes, checks settings, makes secrets. `ostraca help` says how.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Ostraca::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::complain(&*error);
            ExitCode::FAILURE
        }
    }
}
