//! `[net]`: listening, admission, limits.

pub(super) mod secret_file;
mod text;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use documented::DocumentedFields;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use self::secret_file::ReadableSecret;
use super::Class;
use super::secrets::{Files, Secrets};

/// `[net]`: settings of the transport. `Config::default()` listens on a free port of loopback, as
/// an ephemeral identity, without a secret.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Only nodes of the same name talk to each other.
    pub cluster_name: String,
    /// Where to listen: `0.0.0.0:4100`, `[::]:4100` or `/ip4/0.0.0.0/tcp/4100`.
    pub listen: Vec<Multiaddr>,
    /// What others dial, such as `a.example:4100` or `/dns4/a.example/tcp/4100`; empty: what is
    /// listened on, and in place of `0.0.0.0` and `::` the address of the default route. Members dial
    /// one of them: the one that is among the seeds, otherwise the first.
    pub advertise: Vec<Multiaddr>,
    /// Holds `identity.key` and the lock. Unset: a new identity at every start, nothing kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Shared by all nodes of the cluster; at least 32 bytes of full entropy, as `ostraca secret`
    /// makes one. Better kept in a file of its own.
    #[serde(rename = "cluster-secret", skip_serializing, deserialize_with = "text::secret")]
    pub secret: Option<Secrets>,
    /// The file that holds the cluster's secret, or up to four, one a line: this node dials with the
    /// first and accepts all. A running node reads the file every 2 s, so that secrets can be
    /// replaced without a restart (docs/operating.md). No other user may be able to write it.
    #[serde(rename = "cluster-secret-file", skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// The file that holds the secret of tools (`ostraca members --node ..`), or up to four, one a
    /// line. Its holder may ask nodes, and can neither join nor open a lane. A tool that has it uses
    /// it instead of the cluster's. Unset: tools use the cluster's secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_file: Option<PathBuf>,
    /// The encryption and multiplexing of connections: "own", "stock" (libp2p's crates) or "mixed"
    /// (own, and accepts and dials "stock" nodes).
    pub transport: Stack,
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
            client_secret_file: None,
            transport: Stack::Own,
            private_network: false,
            allowed_peers: Vec::new(),
            insecure: false,
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// Reads the files of secrets, if there are any: from then on `secret` has them, and the settings
    /// of the files are unset. Returns what to warn of.
    ///
    /// # Errors
    /// [`SecretError`] if a file can't be read, others may write it, or a secret is too short or given
    /// twice.
    pub fn read_secret(&mut self) -> Result<Vec<ReadableSecret>, SecretError> {
        if let (Some(_), Some(path)) = (&self.secret, &self.secret_file) {
            return Err(SecretError::Twice { path: path.clone() });
        }
        if self.secret_file.is_none() && self.client_secret_file.is_none() {
            return Ok(Vec::new());
        }
        let files = Files {
            cluster: self.secret_file.clone(),
            client: self.client_secret_file.clone(),
            private: self.private_network,
        };
        self.secret = Some(self.secret.clone().unwrap_or_default().read(files)?);
        let files =
            [("cluster", self.secret_file.take()), ("client", self.client_secret_file.take())];
        let readable = |(holder, path): (_, Option<PathBuf>)| secret_file::readable(&path?, holder);
        Ok(files.into_iter().filter_map(readable).collect())
    }
}

/// `net.transport`: the implementation of encryption and multiplexing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stack {
    /// Ostraca's own: with a secret, a handshake that refuses strangers before they cost or learn
    /// anything.
    #[default]
    Own,
    /// As `Own`; also connects with `Stock` nodes of the same secret, whose handshake tells strangers
    /// the node's peer id and lets them test guesses of the secret.
    Mixed,
    /// `libp2p-noise` and `yamux`.
    Stock,
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
    /// Inbound connections whose handshake is unfinished. Beyond that the least advanced one of the
    /// address with the most (IPv6: the /64 network) is closed for the new one; a quarter of the
    /// places is reserved for the addresses of members and seeds.
    pub handshakes: usize,
    /// Inbound connections of peers that have opened neither a lane nor a client's stream. Beyond
    /// that the oldest one of the address with the most is closed.
    pub unadmitted: usize,
    /// Clients at a time: tools that ask this node and are no nodes. 0: none.
    pub clients: usize,
    /// Inbound lanes of one peer, all classes and generations together.
    pub lanes_per_peer: usize,
    /// Bytes that a lane keeps: unsent and unacknowledged. Per class: control, data, user, bulk.
    #[serde(with = "text::lane_bytes")]
    pub lane_bytes_max: [usize; 4],
    /// Bytes under way on a lane that the receiver has not acknowledged.
    pub lane_window: usize,
    /// How long an inbound connection may take to send the first message of its handshake; one that
    /// sends nothing holds its place no longer. At most `handshake-within` has an effect.
    #[serde(with = "humantime_serde")]
    pub first_message_within: Duration,
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
            unadmitted: 32,
            clients: 16,
            lanes_per_peer: 16,
            lane_bytes_max: [16 * MIB, 16 * MIB, 16 * MIB, 64 * MIB],
            lane_window: 8 * MIB,
            first_message_within: Duration::from_secs(2),
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

/// A secret. Never printed; wiped from memory with its last clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Least length, in bytes.
    pub const BYTES_MIN: usize = 32;

    /// Takes a secret.
    ///
    /// # Errors
    /// [`ShortSecret`] below [`BYTES_MIN`](Self::BYTES_MIN) bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ShortSecret> {
        let bytes = Zeroizing::new(bytes.into());
        if bytes.len() < Self::BYTES_MIN {
            return Err(ShortSecret { len: bytes.len() });
        }
        Ok(Self(Arc::new(bytes)))
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
        path = secret_file::shown(path)
    )]
    Twice {
        /// The file.
        path: PathBuf,
    },
    /// The file can't be read.
    #[error(
        "net.{holder}-secret-file: {path} can't be read: make one with `ostraca secret --out {path}`, \
         the same on every node",
        path = path.display()
    )]
    Unreadable {
        /// Whose secrets: "cluster" or "client".
        holder: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It may be the secret, in place of the name of its file.
    #[error(
        "net.{holder}-secret-file has {len} characters that name no file. They are not shown, \
         because they may be the secret itself: keep it in a file (`ostraca secret --out FILE`) and \
         write that file's name here"
    )]
    NotAPath {
        /// Whose secrets: "cluster" or "client".
        holder: &'static str,
        /// The length of what is set, in bytes.
        len: usize,
    },
    /// Another user may have written it.
    #[error(
        "net.{holder}-secret-file: {path} has mode {mode:o}, so that other users may write the \
         secret: `chmod 600 {path}`, and make a new secret if somebody may have changed it",
        path = path.display()
    )]
    Writable {
        /// Whose secrets: "cluster" or "client".
        holder: &'static str,
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A secret in it can be guessed.
    #[error("net.{holder}-secret-file: {path}", path = path.display())]
    Short {
        /// Whose secrets: "cluster" or "client".
        holder: &'static str,
        /// The file.
        path: PathBuf,
        /// What is the matter.
        source: ShortSecret,
    },
    /// More secrets than any replacement needs.
    #[error(
        "net.{holder}-secret-file: {path} holds more than {max} secrets, one a line: drop those that \
         no node dials with any longer",
        path = path.display(), max = super::secrets::SECRETS_MAX
    )]
    TooMany {
        /// Whose secrets: "cluster" or "client".
        holder: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The holders of the clients' secret could join.
    #[error(
        "net.client-secret-file: {path} holds a secret of the cluster, with which tools could join: \
         make another one with `ostraca secret`",
        path = path.display()
    )]
    SameForClients {
        /// The file of the clients' secrets.
        path: PathBuf,
    },
    /// A private network has one key.
    #[error(
        "net.cluster-secret-file: {path} holds several secrets, and net.private-network has room for \
         one: leave one, or set net.private-network = false",
        path = path.display()
    )]
    SeveralInPrivateNetwork {
        /// The file of the cluster's secrets.
        path: PathBuf,
    },
}
