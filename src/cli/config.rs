//! `ostraca config`: prints the default settings or checks a settings file.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use ostraca::Config;

use super::CommandResult;
use super::target::OutputOptions;

/// Options of `ostraca config`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca config --defaults > node.toml\n  \
                        ostraca config --check node.toml\n  \
                        ostraca config --check --json node.toml | jq .warnings\n  \
                        ostraca config --defaults --json | jq .cluster.lease")]
pub(super) struct ConfigArguments {
    #[command(flatten)]
    mode: Mode,
    /// The settings file to check.
    #[arg(value_name = "FILE", required_unless_present = "defaults", conflicts_with = "defaults")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Mode {
    /// Prints all settings with defaults and explanations, as a file to start from.
    #[arg(long)]
    defaults: bool,
    /// Checks FILE, the environment and files of secrets as a node does when it starts. Does not
    /// check the data directory, ports and other nodes.
    #[arg(long)]
    check: bool,
}

impl ConfigArguments {
    /// Prints the defaults, or checks the file if one is given; the flags themselves are not looked
    /// at, because the parser has refused every other combination of arguments.
    pub(super) fn run(self) -> CommandResult {
        let Self { mode: Mode { defaults: _, check: _ }, file, output } = self;
        match file {
            Some(file) => check(&file, output), // the parser demands FILE with --check only
            None => defaults(output),
        }
    }
}

/// Prints the defaults as TOML with explanations, or as JSON without them. The environment does not
/// matter.
fn defaults(output: OutputOptions) -> CommandResult {
    let text = ostraca::config::documented();
    let table: toml::Table = text.parse()?;
    output.print(&table, || text)
}

/// Checks a file and prints its warnings, then that a node starts with it, all on stdout; as JSON,
/// the file and the warnings. Warnings do not make the command fail. Fails with the errors of
/// [`read`], and prints no warnings then.
fn check(file: &Path, output: OutputOptions) -> CommandResult {
    let (_, warnings) = read(file)?;
    let json = serde_json::json!({ "file": file.to_string_lossy(), "warnings": warnings });
    output.print(&json, || {
        let text = warnings.iter().map(|warning| format!("warning: {warning}\n"));
        format!(
            "{}{}: a node starts with these settings\n",
            text.collect::<String>(),
            file.display()
        )
    })
}

/// Reads the settings of a file and of the environment, reads the secrets and checks the settings:
/// see [`read`]. Warnings are dropped, except for those in the log. Without a file, reads the
/// environment only: neither checks the settings nor reads the secrets; the start of the node does.
pub(super) fn load_checked(file: Option<&Path>) -> Result<Config, Box<dyn Error>> {
    match file {
        Some(file) => Ok(read(file)?.0),
        None => Ok(Config::from_env()?),
    }
}

/// Reads and checks the settings of a file, overridden by the environment, with its secrets;
/// returns warnings as well. Each file is read only once. The first step that fails ends it: the
/// load (all unknown keys and types together), the secrets (the first fault), the check (all
/// findings together). Errors of the last two get the name of the settings file, those of the load
/// have it.
fn read(file: &Path) -> Result<(Config, Vec<String>), Box<dyn Error>> {
    let mut config = Config::load(file)?;
    match checked(&mut config) {
        Ok(warnings) => Ok((config, warnings)),
        Err(why) => Err(InvalidFile { file: file.to_owned(), why }.into()),
    }
}

/// Reads the secrets into the settings, then checks them; an unreadable secret prevents the check.
/// Returns warnings: first those about secrets that every user can read, which are logged as well,
/// even if the check then fails, then those of the check.
fn checked(config: &mut Config) -> Result<Vec<String>, Box<dyn Error>> {
    let readable = config.net.read_secret()?;
    for warning in &readable {
        tracing::warn!("net.secret_readable: {warning}"); // only `ostraca node` has a log
    }
    let warnings = config.check()?;
    let warnings = warnings.iter().map(ToString::to_string);
    Ok(readable.iter().map(ToString::to_string).chain(warnings).collect())
}

/// An error of settings, with the file's name. Its source is that of the inner error, whose text is
/// part of this one.
#[derive(Debug)]
struct InvalidFile {
    file: PathBuf,
    why: Box<dyn Error>,
}

impl fmt::Display for InvalidFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.why)
    }
}

impl Error for InvalidFile {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.why.source()
    }
}
