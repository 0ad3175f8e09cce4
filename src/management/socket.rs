//! The control socket: a UNIX socket of the node's own user, and who may take its place.
//!
//! The file has mode 0600 in a directory where nobody else may write, and whoever connects must be
//! the same user, or root. A lock beside it (`.lock`) is held as long as it is served. What a killed node left behind takes no connection and is replaced; a
//! socket that somebody serves is left alone.

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

/// How long a socket that is there may take to take a connection: then somebody serves it.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Between two looks at a lock that is held.
const AGAIN: Duration = Duration::from_millis(20);

/// Between two tries when the system gives no connection: too many files are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no control socket. Whatever was there is untouched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// No socket can be called so.
    #[error(transparent)]
    Long(#[from] LongPath),
    /// There is no such directory.
    #[error(
        "the directory of the control socket {path:?} can't be looked at: make it, or set \
         management.control-socket to another path, or to \"\" for none"
    )]
    Directory {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could put their own socket there.
    #[error(
        "the control socket {path:?} needs a directory that belongs to user {me} and where nobody \
         else may write; this one belongs to user {owner} and has mode {mode:o}: `chmod go-w` it, \
         or set management.control-socket to another path, or to \"\" for none"
    )]
    Open {
        /// The socket.
        path: PathBuf,
        /// The node's user.
        me: u32,
        /// The directory's user.
        owner: u32,
        /// The directory's permissions.
        mode: u32,
    },
    /// Another process serves it.
    #[error(
        "another process serves the control socket {path:?} (`fuser {path:?}` names it): stop it, \
         or set management.control-socket to another path"
    )]
    Served {
        /// The socket.
        path: PathBuf,
    },
    /// Something else stands there.
    #[error(
        "{path:?} is no socket: set management.control-socket to a path where nothing is, or \
         remove what is there"
    )]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system says no.
    #[error(
        "the control socket {path:?} can't be made: let this user write there, or set \
         management.control-socket to another path, or to \"\" for none"
    )]
    Unmade {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A control socket that nobody is served at yet: who connects waits.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    file: Owned,
}

/// A control socket that is served. Dropping it hangs up, and removes the file.
#[derive(Debug)]
pub struct Serving {
    accepting: AbortHandle,
    _file: Owned,
}

/// The file of a socket; removed when dropped, unless somebody has replaced it.
#[derive(Debug)]
struct Owned {
    path: PathBuf,
    device: u64,
    inode: u64,
    _lock: File, // of two that start at once only one looks whether the socket is stale
}

impl Bound {
    /// Makes the socket. On a tokio runtime.
    ///
    /// # Errors
    /// [`SocketError`], whose sentences say what to do.
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

    /// Serves whoever connects. On a tokio runtime.
    #[must_use]
    pub fn serve(self, server: Server) -> Serving {
        let Self { listener, file } = self;
        let accepting = tokio::spawn(accept(listener, server)).abort_handle();
        Serving { accepting, _file: file }
    }
}

async fn accept(listener: UnixListener, server: Server) {
    let mut connections = JoinSet::new(); // ≤ seats, and who is just told that there is none
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if is_ours(&stream) => {
                    let server = server.clone();
                    connections.spawn(async move { server.serve(stream).await });
                }
                Ok(_) => tracing::warn!("management.stranger: another user was turned away"),
                Err(error) => {
                    tracing::warn!(%error, "management.no_connection: the system gives none");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {} // what it said is logged
        }
    }
}

/// Between the making of the file and its mode others might have connected.
fn is_ours(stream: &UnixStream) -> bool {
    let me = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == me || peer.uid() == 0)
}

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

/// Removes what a killed node left behind.
/// Waits a little for who is just leaving, and for children of this process between their birth and
/// their own program: until then they hold whatever it holds.
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
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()), // gone meanwhile
        Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(unmade(error)),
        Ok(_) | Err(_) => Err(SocketError::Served { path: path.to_owned() }),
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort(); // its connections go with it
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let is_ours = |found: fs::Metadata| (found.dev(), found.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = fs::remove_file(&self.path); // what is left is stale, and known for that
        }
    }
}
