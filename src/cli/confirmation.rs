//! The confirmation that a dangerous command needs.

use std::error::Error;
use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use super::{Usage, printable};

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Confirmation {
    /// Does it without asking. Needed where stdin is no terminal.
    #[arg(long)]
    yes: bool,
}

/// The user did not confirm.
#[derive(Debug, thiserror::Error)]
#[error("not confirmed: nothing was done")]
struct Declined;

impl Confirmation {
    /// Asks on a terminal, unless `--yes` was given.
    pub(super) fn demand(self, consequence: &str) -> Result<(), Box<dyn Error>> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            let text = format!("{consequence}; stdin is no terminal to confirm it: pass --yes");
            return Err(Usage(text).into());
        }
        let mut terminal = io::stderr();
        write!(terminal, "{}. Go on? [y/N] ", printable::word(consequence))?;
        terminal.flush()?;
        let mut reply = String::new();
        io::stdin().lock().read_line(&mut reply)?;
        match reply.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Declined.into()),
        }
    }
}
