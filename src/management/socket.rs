//! The control socket: a UNIX socket that only the node's own user and root may connect to.
//!
//! The file has mode 0600, in a directory where no other user may write, and the server checks the
//! user of each connection. A process that serves the socket holds a lock on a file beside it
//! (`.lock`), which is never removed. A socket that a killed node left behind refuses connections
//! and is replaced; a socket that is served remains.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use super::config::{self, LongPath};
use super::server::Server;

/// Time limit of the probe of an existing socket, and separately of the wait for the lock. A socket
/// whose probe or lock is not over in time counts as served.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Interval between attempts to take the lock.
const AGAIN: Duration = Duration::from_millis(20);

/// Pause after the system could not accept a connection, for example because too many files are
/// open.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the node has no control socket. An existing file at the path is unchanged, except that a
/// stale socket may have been removed. The file of the lock may have been created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The path is too long for a socket.
    #[error(transparent)]
    Long(#[from] LongPath),
    /// The properties of the directory can't be read; mostly it does not exist.
    #[error(
        "the directory of the control socket {path:?} can't be read: create it, or set \
         management.control-socket to another path, or to \"\" for none"
    )]
    Directory {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory belongs to another user than the node's, even if that is root, or other users
    /// may write to it, so they could replace the socket.
    #[error(
        "the control socket {path:?} needs a directory that belongs to user {me} and where no \
         other user may write; this one belongs to user {owner} and has mode {mode:o}: \
         `chmod go-w` it, or set management.control-socket to another path, or to \"\" for none"
    )]
    Open {
        /// Path of the socket.
        path: PathBuf,
        /// User id of the node.
        me: u32,
        /// User id of the directory's owner.
        owner: u32,
        /// Permission bits of the directory.
        mode: u32,
    },
    /// Another process, or another node of this process, serves the socket.
    #[error(
        "another node or process serves the control socket {path:?} (`fuser {path:?}` names the \
         process): stop it, or set management.control-socket to another path"
    )]
    Served {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path holds a file that is not a socket, or a symbolic link.
    #[error(
        "{path:?} is not a socket: set management.control-socket to an unused path, or \
         remove what is there"
    )]
    NoSocket {
        /// Path of the other file.
        path: PathBuf,
    },
    /// The system reported another error, for the lock, the probe, the removal of a stale socket or
    /// the new socket.
    #[error(
        "the control socket {path:?} can't be created: check that this user may write there, or \
         set management.control-socket to another path, or to \"\" for none"
    )]
    Unmade {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A control socket that is not served yet. Connections wait until [`serve`](Self::serve). Dropping
/// it closes them, removes the file and releases the lock.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    file: Owned,
}

/// A control socket that is served. Dropping it closes all connections, also while a request is
/// being answered, removes the file and releases the lock.
#[derive(Debug)]
pub struct Serving {
    /// The task of [`accept`], which owns the connections.
    accepting: AbortHandle,
    _file: Owned,
}

/// The file of a socket. Dropping it removes the file unless another process has replaced it, and
/// then releases the lock. The lock's own file stays.
#[derive(Debug)]
struct Owned {
    path: PathBuf,
    device: u64,
    inode: u64,
    _lock: File, // so that of two nodes that start at once only one may replace a stale socket
}

impl BoundSocket {
    /// Creates the socket, and replaces one that a killed node left behind. May wait two seconds
    /// for another process that stops, one for its lock and one for its socket. Must be called on a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`SocketError`]; its text states what to do. Checked in this order: the length of the path,
    /// its directory, the lock, a file that is there, and last the creation of the socket.
    pub async fn make(path: &Path) -> Result<Self, SocketError> {
        config::check_length(path)?;
        check_directory(path)?;
        let lock = lock(path).await?;
        clear(path).await?;
        let unmade = |source| SocketError::Unmade { path: path.to_owned(), source };
        let listener = UnixListener::bind(path).map_err(unmade)?;
        let made = fs::symlink_metadata(path).map_err(unmade)?;
        let (device, inode) = (made.dev(), made.ino());
        let file = Owned { path: path.to_owned(), device, inode, _lock: lock };
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(unmade)?;
        Ok(Self { listener, file })
    }

    /// Serves all connections in a background task, also those that wait already. `server` decides
    /// which requests are admitted. Must be called on a tokio runtime, on which the task runs until
    /// the result is dropped.
    #[must_use]
    pub fn serve(self, server: Server) -> Serving {
        let Self { listener, file } = self;
        let accepting = tokio::spawn(accept(listener, server)).abort_handle();
        Serving { accepting, _file: file }
    }
}

/// Accepts connections for ever and serves each in a task of its own; dropping the future closes
/// all of them. Connections of other users are closed with a warning each, without an answer. After
/// a failed accept it warns, pauses for [`PAUSE`] and continues. A connection whose task panics
/// ends alone.
async fn accept(listener: UnixListener, server: Server) {
    let mut connections = JoinSet::new(); // ≤ the slots, and connections that are being refused
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if is_ours(&stream) => {
                    let server = server.clone();
                    connections.spawn(async move { server.serve(stream).await });
                }
                Ok(_) => tracing::warn!("management.stranger: refused a process of another user"),
                Err(error) => {
                    tracing::warn!(%error, "management.no_connection: accepting one failed");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {} // its errors are logged there
        }
    }
}

/// Whether the process at the other end runs as the node's effective user or as root; `false` if
/// the system does not tell. The check is needed although the file has mode 0600: another user
/// might have connected between the creation of the file and the change of its mode.
fn is_ours(stream: &UnixStream) -> bool {
    let me = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == me || peer.uid() == 0)
}

/// Checks that the directory of a socket belongs to the node's effective user, and not to root, and
/// that neither its group nor others may write there, also with the sticky bit. Follows symbolic
/// links; the directories above are not checked. A path without a directory means the current one.
///
/// Fails with [`SocketError::Directory`] if the directory can't be read, otherwise with
/// [`SocketError::Open`].
fn check_directory(path: &Path) -> Result<(), SocketError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.unwrap_or(Path::new("."));
    let found = fs::metadata(dir)
        .map_err(|source| SocketError::Directory { path: path.to_owned(), source })?;
    let (me, mode) = (rustix::process::geteuid().as_raw(), found.mode() & 0o7777);
    if found.uid() == me && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(SocketError::Open { path: path.to_owned(), me, owner: found.uid(), mode })
}

/// Takes the lock of the socket, and creates its file (`.lock` behind the path) if there is none.
/// Waits up to [`PROBE_MAX`], because a stopping node may still hold it, and so may a child process
/// between fork and exec, which inherits its parent's files. Then fails with
/// [`SocketError::Served`]; any other error fails without a wait ([`SocketError::Unmade`]). The
/// lock excludes nodes of the same process as well, and ends with the returned file.
async fn lock(path: &Path) -> Result<File, SocketError> {
    let unmade = |source| SocketError::Unmade { path: path.to_owned(), source };
    let mut name = path.to_owned().into_os_string();
    name.push(".lock");
    let mut options = File::options();
    let lock = options.create(true).truncate(false).write(true).mode(0o600).open(name);
    let lock = lock.map_err(unmade)?;
    let until = tokio::time::Instant::now() + PROBE_MAX;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(Errno::WOULDBLOCK) => return Err(SocketError::Served { path: path.to_owned() }),
            Err(error) => return Err(unmade(error.into())),
        }
    }
}

/// Removes the socket of a killed node, which refuses connections, and logs that. Does nothing if
/// there is no file at the path, or none by the time of the probe. Must be called with the lock
/// held.
///
/// Fails with [`SocketError::NoSocket`] if the path holds anything else, and with
/// [`SocketError::Served`] if a connection succeeds, is not answered within [`PROBE_MAX`], or finds
/// too many others waiting. Any other error of the probe leaves the file as it is
/// ([`SocketError::Unmade`]).
async fn clear(path: &Path) -> Result<(), SocketError> {
    let unmade = |source| SocketError::Unmade { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unmade(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NoSocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match tokio::time::timeout(PROBE_MAX, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "management.stale_socket: replaced");
            fs::remove_file(path).map_err(unmade)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()), // removed by now
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(unmade(error)),
        Ok(_) | Err(_) => Err(SocketError::Served { path: path.to_owned() }),
    }
}

impl Drop for Serving {
    /// Aborts the accepting task with all its connections, without waiting for their end. Then its
    /// file is dropped, so the lock may be released before the last connection is closed.
    fn drop(&mut self) {
        self.accepting.abort(); // drops its connections as well
    }
}

impl Drop for Owned {
    /// Removes the file if it is still the one that this process created, and only then releases
    /// the lock. Ignores errors: a file that remains is recognized as stale by the next start.
    fn drop(&mut self) {
        let is_ours = |found: fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = fs::remove_file(&self.path); // a file that remains is recognized as stale
        }
    }
}
