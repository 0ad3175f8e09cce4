//! Identity of this node: its key, its incarnation, and the lock of its data directory, which
//! excludes a second process with the same identity.
//!
//! Certified incarnation (docs/protocol/transport.md#certified-incarnation): an incarnation is a
//! hash of the peer id and of a nonce that is drawn at each start and sent with every lane's
//! opening ([`incarnation`]). Lanes, dots and configurations name nodes by incarnation alone, so a
//! peer that claimed the incarnation of another node would receive the messages of that node. Peer
//! ids are authenticated, so a peer can claim only incarnations for which it has found a nonce. To
//! hit another node's incarnation takes about 2^64 hashes, within the lifetime of that incarnation.
//!
//! One process per data directory (docs/protocol/transport.md#one-process-per-data-directory): two
//! processes with one identity would answer for each other.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use libp2p::PeerId;
use libp2p::identity::{KeyType, Keypair};
use ostraca_ddata::id::ReplicaId;
use rand::TryRng;
use rand::rngs::{SysError, SysRng};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::NodeId;
use super::wire::IncarnationNonce;

const KEY: &str = "identity.key";
const LOCK: &str = "lock";
/// Maximum length of the file of the key, in bytes; the rest of a longer one is not read.
const KEY_BYTES_MAX: u64 = 1024;
/// Separates these hashes from any other hashes of the same bytes.
const INCARNATION_LABEL: &[u8] = b"ostraca incarnation 1";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identity of this node, valid as long as this value lives.
///
/// It holds the lock of the data directory. Drop it last, after everything else of the node has
/// stopped, because other nodes take the release of the lock as proof that this incarnation is
/// dead.
#[derive(Debug)]
pub struct Identity {
    keypair: Keypair,
    nonce: IncarnationNonce,
    boot: Option<String>, // of the time when it was loaded
    lock: Option<Lock>,   // `None` for an ephemeral identity
}

/// Computes the incarnation of a peer with this nonce: the first 64 bits, read as little-endian, of
/// SHA-256(label ‖ length of the peer id ‖ peer id ‖ nonce).
#[must_use]
pub fn incarnation(peer: &PeerId, nonce: &IncarnationNonce) -> ReplicaId {
    let peer = peer.to_bytes();
    let mut hash = Sha256::new_with_prefix(INCARNATION_LABEL);
    hash.update((peer.len() as u64).to_le_bytes());
    hash.update(peer);
    hash.update(nonce.0);
    let hash = hash.finalize();
    ReplicaId::new(u64::from_le_bytes(std::array::from_fn(|at| hash[at])))
}

/// Exclusive lock of a data directory, held until it is dropped or the process ends.
#[derive(Debug)]
struct Lock {
    device: u64,
    inode: u64,
    _held: File,
}

impl Identity {
    /// Loads the identity stored in `data_dir`, or creates and stores one at the first start;
    /// without a directory, creates an ephemeral one. Draws a new incarnation in any case. Creates
    /// the directory if necessary, and locks it before it reads the key.
    ///
    /// # Errors
    /// [`IdentityError`], whose text names the remedy; the lock is released then. The directory is
    /// judged first, then the lock, then the key. A key that exists but cannot be used is an error,
    /// and is never replaced. A missing boot id is no error.
    pub fn load(data_dir: Option<&Path>) -> Result<Self, IdentityError> {
        let lock = data_dir.map(Lock::take).transpose()?;
        let keypair = match data_dir {
            Some(dir) => load_or_create(dir)?,
            None => generate()?,
        };
        let nonce = IncarnationNonce(random()?);
        Ok(Self { keypair, nonce, boot: boot_id(), lock })
    }

    /// Id of this node with its current incarnation.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        let peer = self.keypair.public().to_peer_id();
        NodeId { incarnation: incarnation(&peer, &self.nonce), peer }
    }

    /// Nonce of the current incarnation, which peers are told.
    #[must_use]
    pub const fn incarnation_nonce(&self) -> IncarnationNonce {
        self.nonce
    }

    /// Key pair of this node.
    #[must_use]
    pub const fn keypair(&self) -> &Keypair {
        &self.keypair
    }

    /// Boot id of the host, if the system provides one.
    #[must_use]
    pub fn boot(&self) -> Option<&str> {
        self.boot.as_deref()
    }

    /// Device and inode of the held lock; `None` without a data directory.
    #[must_use]
    pub fn lock(&self) -> Option<(u64, u64)> {
        self.lock.as_ref().map(|lock| (lock.device, lock.inode))
    }
}

impl Lock {
    /// Creates the directory and its parents if necessary (mode 700; existing ones keep theirs),
    /// checks it, and locks the file `lock` in it without waiting; creates the file if necessary,
    /// and never removes it. Returns [`IdentityError::Held`] if another process, or another
    /// [`Identity`] of this one, has the lock, or if the file was replaced while it was being
    /// locked, and [`IdentityError::Lock`] if the file cannot be opened or locked at all.
    fn take(dir: &Path) -> Result<Self, IdentityError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|source| IdentityError::Directory { path: dir.to_owned(), source })?;
        check_directory(dir)?;
        let path = dir.join(LOCK);
        let failed = |source| IdentityError::Lock { path: path.clone(), source };
        let held = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(IdentityError::Held { path }),
            Err(errno) => return Err(failed(errno.into())),
        }
        let ours = held.metadata().map_err(failed)?;
        let named = std::fs::metadata(&path).map_err(failed)?;
        if (ours.dev(), ours.ino()) != (named.dev(), named.ino()) {
            return Err(IdentityError::Held { path }); // the file was replaced meanwhile
        }
        Ok(Self { device: ours.dev(), inode: ours.ino(), _held: held })
    }
}

/// Refuses a data directory in which another user could replace the files of this node. A directory
/// that belongs to root or is writable by a group, as Kubernetes creates it for `fsGroup`, is
/// accepted; a directory that a group may write in is logged as a warning. Follows symbolic links,
/// and does not judge the parent directories.
fn check_directory(dir: &Path) -> Result<(), IdentityError> {
    let about = std::fs::metadata(dir)
        .map_err(|source| IdentityError::Directory { path: dir.to_owned(), source })?;
    let (me, owner, mode) =
        (rustix::process::geteuid().as_raw(), about.uid(), about.mode() & 0o7777);
    if !is_trusted(me, owner, mode) {
        return Err(IdentityError::OpenDirectory { path: dir.to_owned(), me, owner, mode });
    }
    if mode & 0o020 != 0 {
        let (path, mode) = (dir.display(), format!("{mode:o}"));
        tracing::warn!(
            %path, %mode,
            "net.data_dir_open: the group of the data directory may write in it; forbid that with \
             `chmod g-w`"
        );
    }
    Ok(())
}

/// Whether only this user (`me`, the effective user id), root and a group can change the contents
/// of the directory. Others may read it. The sticky bit makes no difference.
const fn is_trusted(me: u32, owner: u32, mode: u32) -> bool {
    (owner == me || owner == 0) && mode & 0o002 == 0
}

/// Reads the stored key. Creates one only if the file does not exist; every other error is
/// returned.
fn load_or_create(dir: &Path) -> Result<Keypair, IdentityError> {
    let path = dir.join(KEY);
    match File::open(&path) {
        Ok(file) => read_key(&file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(dir),
        Err(source) => Err(IdentityError::Unreadable { path, source }),
    }
}

/// Reads the key from an open file. The file must belong to this user (root does not suffice), give
/// no permission to others or a group, and hold an ed25519 key; the errors are checked in this
/// order: [`Foreign`](IdentityError::Foreign), [`Exposed`](IdentityError::Exposed),
/// [`Malformed`](IdentityError::Malformed).
fn read_key(file: &File, path: PathBuf) -> Result<Keypair, IdentityError> {
    let unreadable = |source| IdentityError::Unreadable { path: path.clone(), source };
    let about = file.metadata().map_err(unreadable)?;
    let (me, owner, mode) =
        (rustix::process::geteuid().as_raw(), about.uid(), about.mode() & 0o7777);
    if owner != me {
        return Err(IdentityError::Foreign { path, me, owner });
    }
    if mode & 0o077 != 0 {
        return Err(IdentityError::Exposed { path, mode });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_BYTES_MAX as usize)); // never grows
    file.take(KEY_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    match Keypair::from_protobuf_encoding(&bytes) {
        Ok(keypair) if keypair.key_type() == KeyType::Ed25519 => Ok(keypair),
        _ => Err(IdentityError::Malformed { path }),
    }
}

/// Generates a key and stores it durably. Returns the key only if it was stored. After an error the
/// file may exist nevertheless, and the next start then uses its key.
fn create(dir: &Path) -> Result<Keypair, IdentityError> {
    let keypair = generate()?;
    let path = dir.join(KEY);
    let bytes = keypair.to_protobuf_encoding().expect("an ed25519 key always encodes");
    let bytes = Zeroizing::new(bytes);
    write_durably(dir, KEY, &bytes).map_err(|source| IdentityError::Unwritable { path, source })?;
    Ok(keypair)
}

/// Creates or replaces a file of the data directory, readable only by this user. Writes the file
/// `<name>.new` and renames it, so that after a crash the file has either the old or the new
/// contents. Returns when both the file and the directory are on disk.
///
/// On an error `<name>.new` may be left over, and the next call overwrites it; or the file has the
/// new contents already, but perhaps not yet on disk. The caller must hold the lock of the
/// directory, and must not write one file concurrently. The directory must exist.
pub(crate) fn write_durably(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = dir.join(format!("{name}.new"));
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
    file.set_permissions(Permissions::from_mode(0o600))?; // it may be left over from a crash
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, dir.join(name))?;
    File::open(dir)?.sync_all()
}

/// Generates a random ed25519 key. The seed is wiped from memory.
fn generate() -> Result<Keypair, IdentityError> {
    let mut seed = Zeroizing::new(random::<32>()?);
    Ok(Keypair::ed25519_from_bytes(&mut seed[..]).expect("any 32 bytes are an ed25519 seed"))
}

/// Draws bytes from the operating system's random generator.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Entropy> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(Entropy)?;
    Ok(bytes)
}

/// Reads the boot id of the host, without the line end. `None` if the file cannot be read or the id
/// does not have 36 bytes; nothing else of its form is checked.
fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string(BOOT_ID).ok()?;
    let id = text.trim();
    (id.len() == 36).then(|| id.to_owned())
}

/// The operating system's random generator failed.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gives no random bytes: is `getrandom` forbidden in this sandbox?")]
pub struct Entropy(#[source] SysError);

/// Why this node has no identity. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The data directory cannot be created or read.
    #[error(
        "cannot create the data directory {path:?}: name another, or let this user write there"
    )]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another user could replace files in the data directory.
    #[error(
        "the data directory {path:?} belongs to user {owner} and has mode {mode:o}: it must belong \
         to the user of this node ({me}) or to root, and others must not write there (`chown`, \
         `chmod 700`)"
    )]
    OpenDirectory {
        /// Path of the directory.
        path: PathBuf,
        /// User of this process.
        me: u32,
        /// Owner of the directory.
        owner: u32,
        /// Permission bits of the directory.
        mode: u32,
    },
    /// The key belongs to another user and may have been planted.
    #[error(
        "{path:?} belongs to user {owner}, who knows the key: it must belong to the user of this \
         node ({me}); `chown` it if that is your doing, or remove it, and the node becomes a new one"
    )]
    Foreign {
        /// Path of the key.
        path: PathBuf,
        /// User of this process.
        me: u32,
        /// Owner of the key.
        owner: u32,
    },
    /// Another process, or another [`Identity`] of this one, uses this data directory; or its lock
    /// was replaced while it was being taken.
    #[error(
        "another process holds {path:?}: a data directory belongs to one running node; stop the \
         other (`fuser {path:?}` names it) or set another data-dir"
    )]
    Held {
        /// Path of the lock.
        path: PathBuf,
    },
    /// The lock cannot be opened or taken, for another reason than a holder.
    #[error(
        "cannot lock {path:?}: data-dir must be writable and on a file system that knows locks"
    )]
    Lock {
        /// Path of the lock.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Other users can read or write the key.
    #[error(
        "{path:?} has mode {mode:o}, others may read or write the key: `chmod 600 {path:?}`; if \
         somebody may have read it, remove it instead, and the node becomes a new one"
    )]
    Exposed {
        /// Path of the key.
        path: PathBuf,
        /// Permission bits of the key.
        mode: u32,
    },
    /// The key exists, but cannot be opened or read.
    #[error("cannot read {path:?}: let the user that runs the node own it (`chown`)")]
    Unreadable {
        /// Path of the key.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file does not hold an ed25519 key.
    #[error(
        "{path:?} holds no ed25519 key: restore it from a backup, or remove it, and the node \
         becomes a new one"
    )]
    Malformed {
        /// Path of the key.
        path: PathBuf,
    },
    /// The key cannot be stored.
    #[error("cannot write {path:?}: make room, or let this user write there")]
    Unwritable {
        /// Path of the key.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The nonce or the key could not be drawn.
    #[error(transparent)]
    Entropy(#[from] Entropy),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_that_other_users_can_change_is_not_trusted() {
        let directories = [
            (7, 7, 0o700, true),
            (7, 7, 0o755, true),
            (7, 0, 0o2775, true), // a Kubernetes volume with `fsGroup`
            (7, 8, 0o700, false),
            (0, 8, 0o700, false),
            (7, 7, 0o777, false),
            (7, 7, 0o702, false),
            (7, 0, 0o1777, false), // like /tmp
        ];
        for (me, owner, mode, trusted) in directories {
            assert_eq!(is_trusted(me, owner, mode), trusted, "{me} {owner} {mode:o}");
        }
    }
}
