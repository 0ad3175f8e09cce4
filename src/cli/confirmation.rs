//! The confirmation of a dangerous command.

use std::error::Error;
use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use super::{Usage, printable};

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Confirmation {
    /// Does not ask for confirmation. Required if stdin is not a terminal.
    #[arg(long)]
    yes: bool,
}

/// The user gave another reply than yes, or ended the input.
#[derive(Debug, thiserror::Error)]
#[error("not confirmed: nothing was done")]
struct Declined;

impl Confirmation {
    /// Asks for confirmation on a terminal, unless `--yes` was given: then returns without output.
    /// `consequence` is the beginning of the question, without punctuation at its end; harmful
    /// characters in it are escaped. The caller acts only after `Ok`.
    ///
    /// Asks on stderr and waits for one line, without a time limit. Only `y`, `Y` and `yes`
    /// confirm, blanks around them aside; any other reply, also an empty one, `YES` or the end of
    /// the input, fails with [`Declined`] (exit code 1). Fails with [`Usage`] (exit code 2) without
    /// asking if stdin is not a terminal; stderr need not be one.
    pub(super) fn demand(self, consequence: &str) -> Result<(), Box<dyn Error>> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            let text = format!(
                "{consequence}; stdin is not a terminal, so it can't be confirmed there: pass --yes"
            );
            return Err(Usage(text).into());
        }
        let mut terminal = io::stderr();
        write!(terminal, "{}. Go on? [y/N] ", printable::one_line(consequence))?;
        terminal.flush()?;
        let mut reply = String::new();
        io::stdin().lock().read_line(&mut reply)?;
        match reply.trim() {
            "y" | "Y" | "yes" => Ok(()),
            _ => Err(Declined.into()),
        }
    }
}
