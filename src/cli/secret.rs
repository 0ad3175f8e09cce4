//! `ostraca secret`: generates a random secret of 256 bits.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use rand::TryRng;
use rand::rngs::SysRng;
use serde_json::json;

use super::CommandResult;
use super::target::OutputOptions;

/// Length of a secret: 256 bits from the system's random source.
const BYTES: usize = 32;

/// Options of `ostraca secret`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ostraca secret --out cluster.secret\n  \
                        ostraca secret | kubectl create secret generic cluster \
                        --from-file=secret=/dev/stdin")]
pub(super) struct SecretArguments {
    /// Writes the secret to a new file that only this user may read (mode 600). An existing file is
    /// not changed. Without this option the secret is printed to stdout.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

/// The secret was not written.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error("{} exists already and was left alone: name a new file", .0.display())]
    Exists(PathBuf),
    #[error("{} can't be written", path.display())]
    Failed { path: PathBuf, source: io::Error },
}

impl SecretArguments {
    /// Generates a secret, as 64 hexadecimal digits, and prints it or writes it with a line end to
    /// the new file. With a file it prints nothing, or with `--json` the path.
    pub(super) fn run(self) -> CommandResult {
        let mut bytes = [0; BYTES];
        SysRng.try_fill_bytes(&mut bytes)?;
        let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let Some(path) = self.out else {
            return self.output.print(&json!({ "secret": text }), || format!("{text}\n"));
        };
        text.push('\n');
        write(&path, &text)?;
        self.output.print(&json!({ "file": path.to_string_lossy() }), String::new)
    }
}

/// Writes the text to a new file of mode 600 and syncs the file, not its directory. Fails if the
/// path exists or its directory is missing. Removes the file again if writing or syncing fails.
fn write(path: &Path, text: &str) -> Result<(), Unwritten> {
    let failed = |source| Unwritten::Failed { path: path.to_owned(), source };
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => Unwritten::Exists(path.to_owned()),
        _ => failed(source),
    })?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|source| {
        let _ = std::fs::remove_file(path); // it may hold a part of the secret
        failed(source)
    })
}
