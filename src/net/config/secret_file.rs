//! Opens files of secrets. A file is refused if its group or others may write to it, or if neither
//! the user of this process nor root owns it. Each file is opened only once, so that it may be a
//! pipe.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::SecretError;

/// Minimum length from which a setting that names no file is treated as a possible secret.
const GUESSED_MIN: usize = 32;

/// Permission bits of the group and of others to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Permission bit of others to read. The group may read a secret without a warning.
const READABLE_BY_ALL: u32 = 0o004;

/// Warning about a secret that every user of this host can read. A node starts nevertheless,
/// because secrets that Kubernetes mounts have mode 644 unless `defaultMode` is set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "net.{holder}-secret-file: {path} has mode {mode:o}, so that every user of this host can read \
     the secret: `chmod 600 {path}`",
    path = path.display()
)]
pub struct ReadableSecret {
    /// Owner of the secrets: "cluster" or "client".
    pub holder: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// Permission bits of the file.
    pub mode: u32,
}

/// Opens a file of secrets for reading, also behind a symbolic link. `holder` is "cluster" or
/// "client", for the error. Reads nothing; opening a pipe waits for its writer.
///
/// Fails with [`SecretError::Foreign`] if neither the user of this process nor root owns a regular
/// file, and with [`SecretError::Writable`] if its group or others may write to it; a pipe or a
/// device is taken with any owner and mode. A file that can't be opened fails with
/// [`SecretError::NotAPath`], without its name, if the setting may be the secret itself, otherwise
/// with [`SecretError::Unreadable`].
pub(in crate::net) fn open(path: &Path, holder: &'static str) -> Result<File, SecretError> {
    let unreadable = |source| match is_no_path(path) {
        true => SecretError::NotAPath { holder, len: path.as_os_str().len() },
        false => SecretError::Unreadable { holder, path: path.to_owned(), source },
    };
    let file = File::open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if about.is_file() {
        let me = rustix::process::geteuid().as_raw();
        check_writers(path, holder, me, about.uid(), about.mode() & 0o7777)?;
    }
    Ok(file)
}

/// Checks that only the user of this process (`me`) and root can change the file. Fails with
/// [`SecretError::Foreign`], checked first, if another user owns it, whatever its mode is, because
/// the owner can change the mode; and with [`SecretError::Writable`] if its group or others may
/// write. Looks at these values only: `path` and `holder` are for the error.
fn check_writers(
    path: &Path,
    holder: &'static str,
    me: u32,
    owner: u32,
    mode: u32,
) -> Result<(), SecretError> {
    if owner != me && owner != 0 {
        return Err(SecretError::Foreign { holder, path: path.to_owned(), me, owner });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(SecretError::Writable { holder, path: path.to_owned(), mode });
    }
    Ok(())
}

/// Returns a warning if every user may read the file, although a directory above may prevent it.
/// `None` as well if there is no regular file at the path, or its mode can't be read. Looks at the
/// path again, not at the file that [`open`] has opened.
pub(super) fn readable(path: &Path, holder: &'static str) -> Option<ReadableSecret> {
    let about = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mode = about.mode() & 0o7777;
    let is_readable = mode & READABLE_BY_ALL != 0;
    is_readable.then(|| ReadableSecret { holder, path: path.to_owned(), mode })
}

/// Formats the path for an error. Of a text that may be a secret ([`is_no_path`]) only the length
/// is shown.
pub(super) fn shown(path: &Path) -> String {
    match is_no_path(path) {
        true => format!("{} bytes that name no file", path.as_os_str().len()),
        false => path.display().to_string(),
    }
}

/// Whether the setting names no file and may be the secret itself: it has at least [`GUESSED_MIN`]
/// bytes and no dot, nothing exists at this path, and its directory, if it names one, does not
/// exist either. `true` also for such a path that is only mistyped.
fn is_no_path(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    text.len() >= GUESSED_MIN
        && !path.exists()
        && !text.contains('.')
        && directory.is_none_or(|directory| !directory.is_dir())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::super::{NetConfig, Secret};
    use super::*;

    fn file(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("cluster.secret");
        std::fs::write(&path, "k7".repeat(32)).expect("it is written");
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
        (dir, path)
    }

    fn secret() -> Secret {
        Secret::new("k7".repeat(32)).expect("long enough")
    }

    fn load(path: PathBuf) -> Result<Vec<ReadableSecret>, SecretError> {
        let mut config = NetConfig { secret_file: Some(path), ..NetConfig::default() };
        let warnings = config.read_secret()?;
        assert_eq!(config.secret.expect("it is read").cluster(), [secret()]);
        Ok(warnings)
    }

    #[test]
    fn secret_file_that_others_may_write_is_refused() {
        for mode in [0o620, 0o602, 0o666] {
            let (_dir, path) = file(mode);
            let error = load(path).expect_err("any user may have written it").to_string();
            assert!(error.contains(&format!("has mode {mode:o}")), "{error}");
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn secret_file_of_another_user_is_refused() {
        for (me, owner, trusted) in
            [(7, 7, true), (7, 0, true), (0, 0, true), (7, 8, false), (0, 8, false)]
        {
            for mode in [0o400, 0o600, 0o644] {
                let checked = check_writers(Path::new("secret"), "cluster", me, owner, mode);
                match checked {
                    Ok(()) => assert!(trusted, "{me} {owner} {mode:o}"),
                    Err(SecretError::Foreign { .. }) => assert!(!trusted, "{me} {owner} {mode:o}"),
                    Err(error) => panic!("{me} {owner} {mode:o}: {error}"),
                }
            }
        }
    }

    #[test]
    fn secret_file_that_all_may_read_is_warned_of() {
        for (mode, warned) in [(0o600, false), (0o400, false), (0o640, false), (0o644, true)] {
            let (_dir, path) = file(mode);
            let warnings = load(path).expect("readable");
            let modes: Vec<u32> = warnings.iter().map(|warning| warning.mode).collect();
            assert_eq!(modes, warned.then_some(mode).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn secret_in_place_of_its_file_is_not_shown() {
        let misplaced = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let in_place = NetConfig { secret_file: Some(misplaced.into()), ..NetConfig::default() };
        let both = NetConfig { secret: Some(secret().into()), ..in_place.clone() };
        for mut config in [in_place, both] {
            let error = config.read_secret().expect_err("it is no file").to_string();
            assert!(!error.contains(&misplaced[..8]), "{error}");
            assert!(error.contains("64 bytes"), "{error}");
        }
        let missing = "/nowhere/cluster.secret";
        let error = load(missing.into()).expect_err("it is no file").to_string();
        assert!(error.contains(missing), "{error}");
    }
}
