//! `[management]`: where a node listens for `ostraca members`, `ostraca data` and the like.

use std::path::{Path, PathBuf};

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The longest path of a socket, in bytes: 108 on Linux, with the zero behind it.
pub const PATH_BYTES_MAX: usize = 107;

/// The socket in a data directory.
const NAME: &str = "control.sock";

/// `[management]`: where tools ask this node. `Management::default()` is a socket in the data
/// directory, where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Management {
    /// The UNIX socket at which `ostraca members`, `data` and `shards` ask this node; only its own
    /// user may. At most 107 bytes, in a directory that the user owns. Unset: `control.sock` in
    /// `net.data-dir`, or none without a data directory. Empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_socket: Option<PathBuf>,
    /// Requests that this node takes from tools on other hosts (`--node`), which prove the
    /// cluster's secret or the one for tools. `"off"`: none. `"read"`: those that change nothing.
    /// `"all"`: changes as well, except `recover`, which needs the control socket. The control
    /// socket itself always takes all.
    pub remote: Remote,
}

/// Requests that a node takes over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// None: every request is refused.
    Off,
    /// Those that change nothing.
    #[default]
    Read,
    /// All except `recover`.
    All,
}

impl Remote {
    /// As the settings spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::All => "all",
        }
    }
}

/// A path that can't be a socket's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "management.control-socket: {path} has {len} bytes and the system takes {PATH_BYTES_MAX}: \
     choose a shorter one, such as /run/ostraca/control.sock",
    path = path.display()
)]
pub struct LongPath {
    /// The path.
    pub path: PathBuf,
    /// Its length, in bytes.
    pub len: usize,
}

/// Where a node's socket is to be, and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The settings name it: without it the node does not start.
    Set(PathBuf),
    /// In the data directory: without it the node warns and starts.
    Beside(PathBuf),
}

impl Management {
    /// Where the socket of a node with this data directory is, if it has one.
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
            Place::Set(path) | Place::Beside(path) => path,
        })
    }

    pub(crate) fn place(&self, data_dir: Option<&Path>) -> Option<Place> {
        match &self.control_socket {
            Some(path) if path.as_os_str().is_empty() => None,
            Some(path) => Some(Place::Set(path.clone())),
            None => data_dir.map(|dir| Place::Beside(dir.join(NAME))),
        }
    }

    /// Checks the path that is set.
    ///
    /// # Errors
    /// [`LongPath`].
    pub fn check(&self) -> Result<(), LongPath> {
        self.control_socket.as_deref().map_or(Ok(()), check_length)
    }
}

/// Whether a socket can be called so.
pub(super) fn check_length(path: &Path) -> Result<(), LongPath> {
    let len = path.as_os_str().len();
    if len > PATH_BYTES_MAX { Err(LongPath { path: path.to_owned(), len }) } else { Ok(()) }
}
