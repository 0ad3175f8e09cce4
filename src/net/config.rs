//! `[net]`: listening, admission, limits.

mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use documented::DocumentedFields;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};

use super::Class;

/// `[net]`: settings of the transport. `Config::default()` listens on a free port of loopback, as
/// an ephemeral identity, without a secret.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Only nodes of the same name talk to each other.
    pub cluster_name: String,
    /// Where to listen.
    pub listen: Vec<Multiaddr>,
    /// What others dial; empty: what is listened on, and in place of `0.0.0.0` and `::` the address
    /// of the default route.
    pub advertise: Vec<Multiaddr>,
    /// Holds `identity.key` and the lock. Unset: a new identity at every start, nothing kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Shared by all nodes of the cluster; at least 32 bytes of full entropy, as `ostraca secret`
    /// makes one. Better kept in a file of its own.
    #[serde(rename = "cluster-secret", skip_serializing, deserialize_with = "text::secret")]
    pub secret: Option<Secret>,
    /// The file that holds the secret; white space around it does not count.
    #[serde(rename = "cluster-secret-file", skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// Adds libp2p's private network below Noise: strangers do not even learn the protocol.
    /// Costs a third to two thirds of the throughput.
    pub private_network: bool,
    /// If not empty: only these may talk, secret or not.
    #[serde(serialize_with = "text::write_peers", deserialize_with = "text::read_peers")]
    pub allowed_peers: Vec<PeerId>,
    /// Listens beyond loopback with neither a secret nor a list.
    pub insecure: bool,
    /// Limits.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_name: "ostraca".to_owned(),
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("a constant")],
            advertise: Vec::new(),
            data_dir: None,
            secret: None,
            secret_file: None,
            private_network: false,
            allowed_peers: Vec::new(),
            insecure: false,
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// Takes the secret out of its file, if it is in one.
    ///
    /// # Errors
    /// [`SecretError`] if it can't be read, is too short, or is given twice.
    pub fn read_secret(&mut self) -> Result<(), SecretError> {
        let Some(path) = self.secret_file.take() else { return Ok(()) };
        if self.secret.is_some() {
            return Err(SecretError::Twice { path });
        }
        self.secret = Some(Secret::read(&path)?);
        Ok(())
    }
}

/// `[net.limits]`: what strangers and peers may use up. Each has a counter of its violations.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// The longest frame that this node takes, in bytes, 8 KiB at least; peers are told.
    pub frame_bytes_max: usize,
    /// A message's length, in bytes; longer ones are refused at the sender. Also called
    /// `max-message-size`.
    #[serde(alias = "max-message-size")]
    pub message_bytes_max: usize,
    /// Connections with one peer: crossing dials, and one for bulk from each side.
    pub connections_per_peer: usize,
    /// Connections in all.
    pub connections: usize,
    /// Inbound connections whose handshake is under way; as many clients that have connected and
    /// not said hello.
    pub handshakes: usize,
    /// Clients at a time: tools that ask this node and are no nodes. 0: none.
    pub clients: usize,
    /// Inbound lanes of one peer, all classes and generations together.
    pub lanes_per_peer: usize,
    /// Bytes that a lane keeps: unsent and unacknowledged. Per class: control, data, user, bulk.
    #[serde(with = "text::lane_bytes")]
    pub lane_bytes_max: [usize; 4],
    /// Bytes under way on a lane that the receiver has not acknowledged.
    pub lane_window: usize,
    /// How long a handshake, and the opening of a lane, may take.
    #[serde(with = "humantime_serde")]
    pub handshake_within: Duration,
    /// How long a connection without a lane is kept.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// How long a control lane may hold messages, or a client's stream bytes, that nobody takes.
    #[serde(with = "humantime_serde")]
    pub control_undrained_max: Duration,
    /// How long what is unacknowledged is kept for a node that cannot be reached.
    #[serde(with = "humantime_serde")]
    pub link_down_max: Duration,
    /// After how long the kernel gives up on a connection whose peer acknowledges nothing.
    #[serde(with = "humantime_serde")]
    pub tcp_user_timeout: Duration,
    /// Reconnecting: the first pause, and the longest.
    #[serde(with = "text::back_off")]
    pub back_off: (Duration, Duration),
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            frame_bytes_max: 64 * 1024,
            message_bytes_max: 4 * MIB,
            connections_per_peer: 4,
            connections: 1_024,
            handshakes: 64,
            clients: 16,
            lanes_per_peer: 16,
            lane_bytes_max: [16 * MIB, 16 * MIB, 16 * MIB, 64 * MIB],
            lane_window: 8 * MIB,
            handshake_within: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(10),
            control_undrained_max: Duration::from_secs(10),
            link_down_max: Duration::from_secs(5),
            tcp_user_timeout: Duration::from_secs(10),
            back_off: (Duration::from_millis(50), Duration::from_secs(5)),
        }
    }
}

impl Limits {
    /// Bytes that a lane of this class keeps.
    #[must_use]
    pub const fn lane_bytes_max(&self, class: Class) -> usize {
        self.lane_bytes_max[class as usize]
    }
}

/// The cluster's secret. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Least length, in bytes.
    pub const BYTES_MIN: usize = 32;

    /// Takes a secret.
    ///
    /// # Errors
    /// [`ShortSecret`] below [`BYTES_MIN`](Self::BYTES_MIN) bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ShortSecret> {
        let bytes = bytes.into();
        if bytes.len() < Self::BYTES_MIN {
            return Err(ShortSecret { len: bytes.len() });
        }
        Ok(Self(bytes))
    }

    /// The secret in a file, without the white space around it.
    fn read(path: &Path) -> Result<Self, SecretError> {
        let bytes = fs::read(path)
            .map_err(|source| SecretError::Unreadable { path: path.to_owned(), source })?;
        Self::new(bytes.trim_ascii())
            .map_err(|source| SecretError::Short { path: path.to_owned(), source })
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret that can be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster secret has {len} bytes, at least {min} random ones are needed: make one with \
     `ostraca secret`",
    min = Secret::BYTES_MIN
)]
pub struct ShortSecret {
    /// What was given, in bytes.
    pub len: usize,
}

/// Why a node has no secret although one is set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Which of the two?
    #[error(
        "both net.cluster-secret and net.cluster-secret-file ({path}) are set: drop one of them",
        path = path.display()
    )]
    Twice {
        /// The file.
        path: PathBuf,
    },
    /// The file can't be read.
    #[error(
        "net.cluster-secret-file: {path} can't be read: make one with `ostraca secret > {path}`, \
         the same on every node",
        path = path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What it holds can be guessed.
    #[error("net.cluster-secret-file: {path}", path = path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// What is the matter.
        source: ShortSecret,
    },
}
