//! `ostraca completions` and `ostraca man`: texts that are generated from the command definitions.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::target::OutputOptions;
use super::{CommandResult, Ostraca, Usage};

/// Name of the program in generated texts.
const NAME: &str = "ostraca";

/// The shell for which completions are printed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca completions bash > \
                        ~/.local/share/bash-completion/completions/ostraca\n  \
                        ostraca completions fish > ~/.config/fish/completions/ostraca.fish")]
pub(super) struct Completions {
    /// The shell that reads the completions.
    #[arg(value_enum)]
    shell: Shell,
}

/// Output of man pages.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca man | man -l -\n  \
                        ostraca man --out ~/.local/share/man/man1")]
pub(super) struct Man {
    /// Writes a page for each command into this directory. Creates the directory if it is missing
    /// and replaces existing pages.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Completions {
    /// Prints the completions of all commands for the shell to stdout.
    pub(super) fn run(&self) -> CommandResult {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Ostraca::command(), NAME, &mut text);
        write(&text)
    }
}

impl Man {
    /// Without `--out` prints the page of `ostraca` itself, not of its commands; with `--json` that
    /// is an error of usage. With `--out` writes the pages of all commands and prints the
    /// directory. An I/O error names the directory, and pages written before it remain.
    pub(super) fn run(self) -> CommandResult {
        let Some(dir) = self.out else {
            if self.output.is_json() {
                let text = "a man page has no form in JSON: leave out --json, or pass --out DIR";
                return Err(Usage(text.to_owned()).into());
            }
            let mut text = Vec::new();
            clap_mangen::Man::new(Ostraca::command()).render(&mut text)?;
            return write(&text);
        };
        let unwritten =
            |why: io::Error| format!("man pages can't be written to {}: {why}", dir.display());
        fs::create_dir_all(&dir).map_err(unwritten)?;
        clap_mangen::generate_to(Ostraca::command(), &dir).map_err(unwritten)?;
        let json = serde_json::json!({ "directory": dir.to_string_lossy() });
        self.output.print(&json, || format!("man pages of all commands are in {}\n", dir.display()))
    }
}

/// Writes a text to stdout unchanged, control characters included. A closed pipe is not an error.
fn write(text: &[u8]) -> CommandResult {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
