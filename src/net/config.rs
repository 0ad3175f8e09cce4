//! Configuration section `[net]`: listening, admission and limits.

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
use super::TrafficClass;
use super::secrets::{Files, Secrets};

/// Settings of the transport. `NetConfig::default()` listens on a free port of loopback, with an
/// ephemeral identity and without a secret.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetConfig {
    /// Name of the cluster, 1 to 128 bytes. Nodes with different names refuse each other.
    pub cluster_name: String,
    /// Addresses to listen on: `0.0.0.0:4100`, `[::]:4100` or `/ip4/0.0.0.0/tcp/4100`. No names.
    /// Port 0: a free port. May be empty only if `advertise` is set.
    pub listen: Vec<Multiaddr>,
    /// Addresses that other nodes dial, such as `a.example:4100` or `/dns4/a.example/tcp/4100`;
    /// neither `0.0.0.0` nor `::` nor port 0.
    /// Empty: the listen addresses, with `0.0.0.0` and `::` replaced by the address of the default
    /// route. Members dial only one of them: the one that is among their own `cluster.seeds`,
    /// otherwise the first.
    pub advertise: Vec<Multiaddr>,
    /// Directory of `identity.key` and its lock. Unset: a new identity at every start, and nothing
    /// is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Secret shared by all nodes of the cluster: at least 32 bytes of full entropy, such as
    /// `ostraca secret` makes. Prefer a file (`cluster-secret-file`).
    // Also holds the clients' secrets once `read_secret` has read the files.
    #[serde(rename = "cluster-secret", skip_serializing, deserialize_with = "text::secret")]
    pub secret: Option<Secrets>,
    /// File with the cluster's secret, or up to four, one per line: this node dials with the first
    /// one and accepts all of them. A running node reads the file every 2 s, so that secrets can be
    /// replaced without a restart (docs/operating.md). No other user may have write access to it.
    #[serde(rename = "cluster-secret-file", skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<PathBuf>,
    /// File with the secret of tools (`ostraca members --node ..`), or up to four, one per line. It
    /// admits a tool as a client, but neither to the cluster nor to a lane. A tool that has it uses
    /// it instead of the cluster's secret. Unset: tools use the cluster's secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_file: Option<PathBuf>,
    /// Implementation of encryption and multiplexing: "own", "stock" (libp2p's crates) or "mixed"
    /// ("own", but also connects with "stock" nodes).
    pub transport: Stack,
    /// Adds libp2p's private network below Noise, so that strangers do not even learn the protocol.
    /// Costs a third to two thirds of the throughput.
    pub private_network: bool,
    /// Allow-list of peer ids. If it is not empty, only these peers are admitted, whether or not a
    /// secret is set as well.
    #[serde(serialize_with = "text::write_peers", deserialize_with = "text::read_peers")]
    pub allowed_peers: Vec<PeerId>,
    /// Allows to listen beyond loopback with neither a secret nor an allow-list.
    pub insecure: bool,
    /// Limits of connections, lanes and handshakes.
    pub limits: NetLimits,
}

impl Default for NetConfig {
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
            limits: NetLimits::default(),
        }
    }
}

impl NetConfig {
    /// Reads the files of secrets, if any are set: afterwards `secret` holds the secrets and the
    /// paths, which a running node reads again, and both file settings are unset. Returns a warning
    /// for each file that every user may read, the cluster's first. Changes nothing if no file is
    /// set; so a second call has no effect and returns no warnings.
    ///
    /// # Errors
    /// The first reason not to use the files; the settings are then unchanged.
    /// [`SecretError::Twice`] first, if both `secret` and the cluster's file are set; `secret` and
    /// the clients' file together are accepted. Then the faults of the cluster's file, of the
    /// clients' file, `SameForClients` and `SeveralInPrivateNetwork`. A `secret` without a file is
    /// not checked.
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
            private: self.private_network, // then only one secret is allowed
        };
        self.secret = Some(self.secret.clone().unwrap_or_default().read(files)?);
        let mut warnings = Vec::new();
        if let Some(path) = self.secret_file.take() {
            warnings.extend(secret_file::readable(&path, "cluster"));
        }
        if let Some(path) = self.client_secret_file.take() {
            warnings.extend(secret_file::readable(&path, "client"));
        }
        Ok(warnings)
    }
}

/// Implementation of encryption and multiplexing (`net.transport`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stack {
    /// Ostraca's own. With a secret, its handshake refuses strangers before they cost or learn
    /// anything.
    #[default]
    Own,
    /// Like `Own`, but also connects with `Stock` nodes of the same secret. The handshake of those
    /// tells strangers the node's peer id and lets them test guesses of the secret.
    Mixed,
    /// The crates `libp2p-noise` and `yamux`.
    Stock,
}

/// Limits on what strangers and peers may use (`[net.limits]`). A metric counts the violations of
/// each. `Config::check` refuses values out of range; durations are at most ten years.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetLimits {
    /// Maximum length of a frame that this node accepts, in bytes, 8 KiB to 4 GiB. Peers are told
    /// and send no longer ones.
    pub frame_bytes_max: usize,
    /// Maximum length of a message, in bytes, 8 KiB to 4 GiB; the sender refuses longer ones, by
    /// the smaller limit of both sides. Also called `max-message-size`.
    #[serde(alias = "max-message-size")]
    pub message_bytes_max: usize,
    /// Maximum number of connections with one peer, at least 1. Both sides may dial at once, and
    /// each may open one for bulk. Beyond it, the oldest one is closed.
    pub connections_per_peer: usize,
    /// Maximum number of connections in total, at least 1. Beyond it, new ones are refused.
    pub connections: usize,
    /// Maximum number of inbound connections with an unfinished handshake, at least 1. Beyond it, a
    /// new one replaces another: of the address that has most of them (IPv6: the /64 network), the
    /// one whose handshake has advanced least. A quarter of the slots is reserved for addresses of
    /// members and seeds.
    pub handshakes: usize,
    /// Maximum number of inbound connections whose peer has opened neither a lane nor a client's
    /// stream, at least 1. Beyond it, the oldest one of the address that has most of them is
    /// closed.
    pub unadmitted: usize,
    /// Maximum number of concurrent clients, such as command-line tools. Beyond it, new ones are
    /// refused. 0: all are refused.
    pub clients: usize,
    /// Maximum number of inbound substreams of lanes of one peer, at least 4: one for each of four
    /// classes, and those that were replaced and have not ended yet. Beyond it, new ones are
    /// refused.
    pub lanes_per_peer: usize,
    /// Maximum number of bytes that a lane buffers, unsent and unacknowledged, per class: control,
    /// data, user, bulk. At least 1 each. A full lane rejects further messages.
    #[serde(with = "text::lane_bytes")]
    pub lane_bytes_max: [usize; 4],
    /// Maximum number of bytes in flight on a lane, sent but not acknowledged by the receiver. At
    /// least 1.
    pub lane_window: usize,
    /// Timeout for the first handshake message of an inbound connection, so that a silent
    /// connection does not hold its slot. Above zero; values above `handshake-within` have no
    /// effect.
    #[serde(with = "humantime_serde")]
    pub first_message_within: Duration,
    /// Timeout of a handshake, of a dial with its handshake, and of the opening of a lane. Above
    /// zero.
    #[serde(with = "humantime_serde")]
    pub handshake_within: Duration,
    /// How long a connection without a lane or a client's stream is kept open. Above zero.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// Maximum time for which a peer may read nothing from a control lane with queued messages, or
    /// from a client's stream with unwritten bytes. Then the peer is disconnected, or writing to
    /// the client's stream fails. Above zero.
    #[serde(with = "humantime_serde")]
    pub control_undrained_max: Duration,
    /// How long unacknowledged messages are kept for a node that is unreachable or refuses their
    /// lane. A stopping node waits for acknowledgements no longer than that. 0: they are lost at
    /// once.
    #[serde(with = "humantime_serde")]
    pub link_down_max: Duration,
    /// TCP_USER_TIMEOUT: the kernel closes a connection whose peer acknowledges nothing for this
    /// long. At most 12 hours, because keepalives begin after half of it, for which Linux accepts
    /// at most 9 hours.
    #[serde(with = "humantime_serde")]
    pub tcp_user_timeout: Duration,
    /// First and longest pause between attempts to reconnect. The first one must be above zero and
    /// not above the longest one.
    #[serde(with = "text::back_off")]
    pub back_off: (Duration, Duration),
}

impl Default for NetLimits {
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

impl NetLimits {
    /// Returns the buffer limit of a lane of this class, in bytes.
    #[must_use]
    pub const fn lane_bytes_max(&self, class: TrafficClass) -> usize {
        self.lane_bytes_max[class as usize]
    }
}

/// A secret. Its `Debug` output hides the bytes, which are wiped from memory with the last clone.
/// The comparison by `==` is not in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    /// Minimum length, in bytes; there is no maximum.
    pub const BYTES_MIN: usize = 32;

    /// Creates a secret of these bytes. Neither trims nor decodes them, nor estimates their
    /// entropy; a refused secret is wiped from memory as well.
    ///
    /// # Errors
    /// [`ShortSecret`] if it is shorter than [`BYTES_MIN`](Self::BYTES_MIN).
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, ShortSecret> {
        let bytes = Zeroizing::new(bytes.into());
        if bytes.len() < Self::BYTES_MIN {
            return Err(ShortSecret { len: bytes.len() });
        }
        Ok(Self(Arc::new(bytes)))
    }

    /// Returns the bytes of the secret.
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

/// A secret that is too short, so that it could be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret has {len} bytes, at least {min} random ones are needed: make one with \
     `ostraca secret`",
    min = Secret::BYTES_MIN
)]
pub struct ShortSecret {
    /// Length of the given secret, in bytes.
    pub len: usize,
}

/// Why the configured secrets could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret of the cluster is set both directly and by a file.
    // The file was not opened, so `shown` hides a path that may be the secret itself.
    #[error(
        "both net.cluster-secret and net.cluster-secret-file ({path}) are set: drop one of them",
        path = secret_file::shown(path)
    )]
    Twice {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file cannot be opened or read, or is longer than 16 KiB.
    #[error(
        "net.{holder}-secret-file: {path} can't be read: make one with `ostraca secret --out {path}`, \
         the same on every node",
        path = path.display()
    )]
    Unreadable {
        /// Owner of the secrets: "cluster" or "client".
        holder: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The setting names no file; it may be the secret itself, written in place of the file's name.
    #[error(
        "net.{holder}-secret-file has {len} bytes that name no file. They are not shown, \
         because they may be the secret itself: keep it in a file (`ostraca secret --out FILE`) and \
         write that file's name here"
    )]
    NotAPath {
        /// Owner of the secrets: "cluster" or "client".
        holder: &'static str,
        /// Length of the setting, in bytes.
        len: usize,
    },
    /// The group or other users may write to the file.
    #[error(
        "net.{holder}-secret-file: {path} has mode {mode:o}, so that other users may write the \
         secret: `chmod 600 {path}`, and make a new secret if somebody may have changed it",
        path = path.display()
    )]
    Writable {
        /// Owner of the secrets: "cluster" or "client".
        holder: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Another user owns the file and could have written it.
    #[error(
        "net.{holder}-secret-file: {path} belongs to user {owner}, who may write the secret: it must \
         belong to the user of this process ({me}) or to root (`chown`); make a new secret if that \
         user may have changed it",
        path = path.display()
    )]
    Foreign {
        /// Owner of the secrets: "cluster" or "client".
        holder: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// User of this process.
        me: u32,
        /// Owner of the file.
        owner: u32,
    },
    /// A secret in the file is too short, or the file holds none (0 bytes).
    #[error("net.{holder}-secret-file: {path}", path = path.display())]
    Short {
        /// Owner of the secrets: "cluster" or "client".
        holder: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of that secret.
        source: ShortSecret,
    },
    /// The file holds more than four different secrets, more than a replacement needs.
    #[error(
        "net.{holder}-secret-file: {path} holds more than {max} secrets, one a line: drop those that \
         no node dials with any longer",
        path = path.display(), max = super::secrets::SECRETS_MAX
    )]
    TooMany {
        /// Owner of the secrets: "cluster" or "client".
        holder: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// The clients and the cluster share a secret, so that clients could join.
    #[error(
        "net.client-secret-file and net.cluster-secret-file: {path} holds a secret of both, with which \
         tools could join: make another one with `ostraca secret`",
        path = path.display()
    )]
    SameForClients {
        /// Path of the file that was read: the clients', or the cluster's if the clients' secret
        /// came through a pipe.
        path: PathBuf,
    },
    /// A private network has only one key, but the file holds several secrets.
    #[error(
        "net.cluster-secret-file: {path} holds several secrets, and net.private-network has room for \
         one: leave one, or set net.private-network = false",
        path = path.display()
    )]
    SeveralInPrivateNetwork {
        /// Path of the file of the cluster's secrets.
        path: PathBuf,
    },
}
