//! `[management]`: the control socket of a node, which `ostraca members`, `ostraca data` and other
//! commands connect to, and the requests that the node accepts over the network.

use std::path::{Path, PathBuf};

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// Maximum length of a socket's path, in bytes. Linux allows 108 with the terminating zero.
pub const PATH_BYTES_MAX: usize = 107;

/// File name of the socket in the data directory.
const NAME: &str = "control.sock";

/// `[management]`: the interfaces for tools. By default the control socket is in the data
/// directory; without a data directory there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Management {
    /// Path of the UNIX socket for `ostraca members`, `data`, `shards` and other commands. Only the
    /// node's own user and root may connect. At most 107 bytes; the user must own the directory,
    /// and no other user may write there. Unset: `control.sock` in `net.data-dir`, or no socket
    /// without a data directory. Empty: no socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_socket: Option<PathBuf>,
    /// Requests that this node accepts from tools on other hosts (`--node`). These tools prove the
    /// cluster's secret or the secret for tools. `"off"`: none. `"read"`: requests that change
    /// nothing. `"all"`: changes as well, except `recover`, which needs the control socket. The
    /// control socket itself accepts all requests.
    pub remote: Remote,
}

/// Requests that a node accepts over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// No requests; the node refuses all of them.
    Off,
    /// Requests that change nothing.
    #[default]
    Read,
    /// All requests except `recover`.
    All,
}

impl Remote {
    /// Returns the value as settings spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::All => "all",
        }
    }
}

/// The configured path is too long for a socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "management.control-socket: {path} has {len} bytes and the system takes {PATH_BYTES_MAX}: \
     choose a shorter one, such as /run/ostraca/control.sock",
    path = path.display()
)]
pub struct LongPath {
    /// The configured path of the socket.
    pub path: PathBuf,
    /// Length of the path, in bytes.
    pub len: usize,
}

/// Path of a node's socket, and whether the settings name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketPath {
    /// The settings name the path. The node does not start if it can't make the socket.
    Set(PathBuf),
    /// The path is the default one in the data directory. The node warns and starts without the
    /// socket if it can't make it.
    Beside(PathBuf),
}

impl Management {
    /// Returns the path of the socket for a node with this data directory; `None` if it has no
    /// socket, because the configured path is empty, or neither path nor data directory is set. The
    /// length of the path is not checked.
    ///
    /// # Example
    /// ```
    /// use std::path::{Path, PathBuf};
    ///
    /// use ostraca::management::config::Management;
    ///
    /// let mut settings = Management::default();
    /// let data_dir = Some(Path::new("/var/lib/orders"));
    /// let beside = PathBuf::from("/var/lib/orders/control.sock");
    /// assert_eq!(settings.socket(data_dir), Some(beside));
    /// assert_eq!(settings.socket(None), None);
    /// settings.control_socket = Some("/run/orders.sock".into());
    /// assert_eq!(settings.socket(None), Some("/run/orders.sock".into()));
    /// settings.control_socket = Some("".into());
    /// assert_eq!(settings.socket(data_dir), None);
    /// ```
    #[must_use]
    pub fn socket(&self, data_dir: Option<&Path>) -> Option<PathBuf> {
        self.place(data_dir).map(|place| match place {
            SocketPath::Set(path) | SocketPath::Beside(path) => path,
        })
    }

    /// Like [`socket`](Self::socket), and tells whether the settings name the path. A path that the
    /// settings name is not relative to the data directory.
    pub(crate) fn place(&self, data_dir: Option<&Path>) -> Option<SocketPath> {
        match &self.control_socket {
            Some(path) if path.as_os_str().is_empty() => None,
            Some(path) => Some(SocketPath::Set(path.clone())),
            None => data_dir.map(|dir| SocketPath::Beside(dir.join(NAME))),
        }
    }

    /// Checks the length of the configured path; an unset or empty one is accepted. The default
    /// path, in the data directory, is checked only when the socket is made.
    ///
    /// # Errors
    /// [`LongPath`] if it exceeds [`PATH_BYTES_MAX`].
    pub fn check(&self) -> Result<(), LongPath> {
        self.control_socket.as_deref().map_or(Ok(()), check_length)
    }
}

/// Checks the length of a socket's path. Accepts exactly [`PATH_BYTES_MAX`] bytes.
pub(super) fn check_length(path: &Path) -> Result<(), LongPath> {
    let len = path.as_os_str().len();
    if len > PATH_BYTES_MAX { Err(LongPath { path: path.to_owned(), len }) } else { Ok(()) }
}
