//! `[net]` as it is written: sections, kebab-case, spans of time and addresses as text.

use std::path::PathBuf;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};

use super::{Config, Limits, Secret, ShortSecret};

/// See the module's page.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Text {
    cluster_name: String,
    listen: Vec<Multiaddr>,
    advertise: Vec<Multiaddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir: Option<PathBuf>,
    #[serde(skip_serializing)] // never printed
    cluster_secret: Option<GivenSecret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_secret_file: Option<PathBuf>,
    private_network: bool,
    allowed_peers: Vec<Peer>,
    insecure: bool,
    limits: LimitsText,
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct LimitsText {
    frame_bytes_max: usize,
    message_bytes_max: usize,
    connections_per_peer: usize,
    connections: usize,
    handshakes: usize,
    lanes_per_peer: usize,
    lane_bytes_max: LaneBytes,
    lane_window: usize,
    #[serde(with = "humantime_serde")]
    handshake_within: Duration,
    #[serde(with = "humantime_serde")]
    idle_timeout: Duration,
    #[serde(with = "humantime_serde")]
    control_undrained_max: Duration,
    #[serde(with = "humantime_serde")]
    link_down_max: Duration,
    #[serde(with = "humantime_serde")]
    tcp_user_timeout: Duration,
    back_off: BackOff,
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct LaneBytes {
    control: usize,
    data: usize,
    user: usize,
    bulk: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct BackOff {
    #[serde(with = "humantime_serde")]
    min: Duration,
    #[serde(with = "humantime_serde")]
    max: Duration,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct GivenSecret(Secret);

impl TryFrom<String> for GivenSecret {
    type Error = ShortSecret;

    fn try_from(text: String) -> Result<Self, ShortSecret> {
        Secret::new(text.trim()).map(Self)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Peer(PeerId);

impl Clone for Peer {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl TryFrom<String> for Peer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = |why| format!("`{text}` is no peer id, such as 12D3KooW…: {why}");
        text.parse().map(Self).map_err(refused)
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> Self {
        peer.0.to_string()
    }
}

impl Default for Text {
    fn default() -> Self {
        Config::default().into()
    }
}

impl Default for LimitsText {
    fn default() -> Self {
        Limits::default().into()
    }
}

impl Default for LaneBytes {
    fn default() -> Self {
        LimitsText::default().lane_bytes_max
    }
}

impl Default for BackOff {
    fn default() -> Self {
        LimitsText::default().back_off
    }
}

impl From<Limits> for LimitsText {
    fn from(limits: Limits) -> Self {
        let [control, data, user, bulk] = limits.lane_bytes_max;
        let (min, max) = limits.back_off;
        Self {
            frame_bytes_max: limits.frame_bytes_max,
            message_bytes_max: limits.message_bytes_max,
            connections_per_peer: limits.connections_per_peer,
            connections: limits.connections,
            handshakes: limits.handshakes,
            lanes_per_peer: limits.lanes_per_peer,
            lane_bytes_max: LaneBytes { control, data, user, bulk },
            lane_window: limits.lane_window,
            handshake_within: limits.handshake_within,
            idle_timeout: limits.idle_timeout,
            control_undrained_max: limits.control_undrained_max,
            link_down_max: limits.link_down_max,
            tcp_user_timeout: limits.tcp_user_timeout,
            back_off: BackOff { min, max },
        }
    }
}

impl From<LimitsText> for Limits {
    fn from(text: LimitsText) -> Self {
        let LaneBytes { control, data, user, bulk } = text.lane_bytes_max;
        Self {
            frame_bytes_max: text.frame_bytes_max,
            message_bytes_max: text.message_bytes_max,
            connections_per_peer: text.connections_per_peer,
            connections: text.connections,
            handshakes: text.handshakes,
            lanes_per_peer: text.lanes_per_peer,
            lane_bytes_max: [control, data, user, bulk],
            lane_window: text.lane_window,
            handshake_within: text.handshake_within,
            idle_timeout: text.idle_timeout,
            control_undrained_max: text.control_undrained_max,
            link_down_max: text.link_down_max,
            tcp_user_timeout: text.tcp_user_timeout,
            back_off: (text.back_off.min, text.back_off.max),
        }
    }
}

impl From<Config> for Text {
    fn from(config: Config) -> Self {
        Self {
            cluster_name: config.cluster_name,
            listen: config.listen,
            advertise: config.advertise,
            data_dir: config.data_dir,
            cluster_secret: config.secret.map(GivenSecret),
            cluster_secret_file: config.secret_file,
            private_network: config.private_network,
            allowed_peers: config.allowed_peers.into_iter().map(Peer).collect(),
            insecure: config.insecure,
            limits: config.limits.into(),
        }
    }
}

impl From<Text> for Config {
    fn from(text: Text) -> Self {
        Self {
            cluster_name: text.cluster_name,
            listen: text.listen,
            advertise: text.advertise,
            data_dir: text.data_dir,
            secret: text.cluster_secret.map(|given| given.0),
            secret_file: text.cluster_secret_file,
            private_network: text.private_network,
            allowed_peers: text.allowed_peers.into_iter().map(|peer| peer.0).collect(),
            insecure: text.insecure,
            limits: text.limits.into(),
        }
    }
}
