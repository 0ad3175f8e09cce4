//! `ostraca config`: the default settings, and whether a file is right.

use std::path::{Path, PathBuf};

use clap::Args;
use ostraca::Config;

use super::{Outcome, answer};

/// What to do with settings.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca config --defaults > node.toml\n  \
                        ostraca config --check node.toml")]
#[group(required = true, multiple = false)]
pub(super) struct Arguments {
    /// Prints every setting with its default and what it means, as a file to start from.
    #[arg(long)]
    defaults: bool,
    /// Checks a file, and the environment, as a node would at its start.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
}

impl Arguments {
    pub(super) fn run(self) -> Outcome {
        match self.check {
            Some(file) => check(&file),
            None => answer(&ostraca::config::documented()),
        }
    }
}

fn check(file: &Path) -> Outcome {
    let mut config = Config::load(file)?;
    config.net.read_secret()?;
    let mut text = String::new();
    for warning in config.check()? {
        text.push_str(&format!("warning: {warning}\n"));
    }
    answer(&format!("{text}{}: a node starts with these settings\n", file.display()))
}
