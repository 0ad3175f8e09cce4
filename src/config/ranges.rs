//! Allowed ranges of the numbers, times and addresses of `[net]` and `[ddata]`, where the types
//! allow other values, too. With a value outside its range a node could not make progress or could
//! not be dialled. Comparisons of two settings are in `contradictions.rs`, upper bounds of
//! durations in `durations.rs`.

use std::time::Duration;

use humantime_serde::re::humantime;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use ostraca_ddata::replicator::config as ddata;
use ostraca_ddata::replicator::wire::ENTRIES_MAX;

use super::{Config, HostKind, InvalidConfig, host_kind};
use crate::net::address;
use crate::net::config::NetLimits;
use crate::net::frame::FRAME_BYTES_MIN;

/// Minimum of `ddata.frame-bytes-max`. In smaller frames the header of each message would take most
/// of the space.
const DATA_FRAME_BYTES_MIN: usize = 1_024;

/// A setting, its value, and the end of the error: the allowed range. The functions below return it
/// with a flag before it: `true` if the value is in that range.
type CheckedSetting = (&'static str, String, &'static str);

/// Returns an error for each setting that is out of range: `listen`, `advertise`, then times,
/// counts and sizes. Of a list of addresses only the first wrong one is reported.
pub(super) fn check(config: &Config) -> Vec<InvalidConfig> {
    let net = &config.net;
    let addresses = [
        check_addresses("net.listen", &net.listen, AddressUse::Listen),
        check_addresses("net.advertise", &net.advertise, AddressUse::Advertise),
    ];
    let checked = times(config).into_iter().chain(counts(config));
    let checked = checked.chain(sizes(&net.limits, &config.ddata));
    let wrong = checked.filter(|(is_right, _)| !is_right);
    let wrong =
        wrong.map(|(_, (setting, value, must))| InvalidConfig::OutOfRange { setting, value, must });
    addresses.into_iter().filter_map(Result::err).chain(wrong).collect()
}

/// Use of a list of addresses, which determines the accepted ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AddressUse {
    /// IP addresses only, also unspecified ones (`0.0.0.0`) and port 0.
    Listen,
    /// IP addresses and names that other nodes can dial: no unspecified address, no port 0.
    Advertise,
}

/// Refuses the first address that is wrong for its use, and names the accepted forms. An empty list
/// is fine here, and so are loopback addresses and parts behind the port, such as a peer id.
fn check_addresses(
    setting: &'static str,
    all: &[Multiaddr],
    address_use: AddressUse,
) -> Result<(), InvalidConfig> {
    let must = match address_use {
        AddressUse::Listen => "must be /ip4|ip6/ADDRESS/tcp/PORT",
        AddressUse::Advertise => {
            "must be what others dial: /ip4|ip6/ADDRESS/tcp/PORT or /dns|dns4|dns6/NAME/tcp/PORT"
        }
    };
    let is_right = |at: &&Multiaddr| match (host_kind(at), address_use) {
        (Some(HostKind::Ip), AddressUse::Listen)
        | (Some(HostKind::Name), AddressUse::Advertise) => true,
        (Some(HostKind::Ip), AddressUse::Advertise) => {
            address::host(at).is_some_and(|host| !host.is_unspecified())
        }
        (Some(HostKind::Name), AddressUse::Listen) | (None, _) => false,
    };
    // Port 0 lets the system choose a port to listen on; it cannot be dialled.
    let has_right_port = |at: &Multiaddr| {
        address_use == AddressUse::Listen || at.iter().all(|part| part != Protocol::Tcp(0))
    };
    match all.iter().find(|at| !is_right(at) || !has_right_port(at)) {
        Some(at) => Err(InvalidConfig::OutOfRange { setting, value: at.to_string(), must }),
        None => Ok(()),
    }
}

/// The times that must not be zero; of `expire-keys-after-inactivity`, the shortest one of all
/// patterns. Times that are not listed, such as `link-down-max`, may be zero. Right ones are
/// returned, too, with `true`.
fn times(config: &Config) -> Vec<(bool, CheckedSetting)> {
    let (limits, ddata, epoch) = (&config.net.limits, &config.ddata, &config.ddata.epoch);
    let positive = [
        ("net.limits.first-message-within", limits.first_message_within),
        ("net.limits.handshake-within", limits.handshake_within),
        ("net.limits.idle-timeout", limits.idle_timeout),
        ("net.limits.control-undrained-max", limits.control_undrained_max),
        ("net.limits.back-off.min", limits.back_off.0),
        ("ddata.gossip-interval", ddata.gossip_interval),
        ("ddata.busy-gossip-interval", ddata.busy_gossip_interval),
        ("ddata.epoch.abandoned-after", epoch.abandoned_after),
        ("ddata.epoch.resend-first", epoch.resend_first),
        ("ddata.epoch.source-patience", epoch.source_patience),
    ];
    let positive = positive
        .map(|(setting, it)| (!it.is_zero(), (setting, time(it), "must be greater than zero")));
    let expires = ddata.expire_keys_after_inactivity.iter().map(|(_, after)| *after).min();
    let expires = (
        expires != Some(Duration::ZERO),
        (
            "ddata.expire-keys-after-inactivity",
            time(Duration::ZERO), // the only wrong value
            "must be greater than zero for every pattern",
        ),
    );
    positive.into_iter().chain([expires]).collect()
}

/// The numbers that must be at least 1, the lanes per peer, of which each of four classes needs
/// one, and the upper bound of `max-delta-elements`, [`ENTRIES_MAX`]. Right ones are returned, too,
/// with `true`.
fn counts(config: &Config) -> Vec<(bool, CheckedSetting)> {
    let (limits, ddata) = (&config.net.limits, &config.ddata);
    let [control, data, user, bulk] = limits.lane_bytes_max;
    let positive = [
        ("net.limits.connections-per-peer", limits.connections_per_peer),
        ("net.limits.connections", limits.connections),
        ("net.limits.handshakes", limits.handshakes),
        ("net.limits.unadmitted", limits.unadmitted),
        ("net.limits.lane-bytes-max.control", control),
        ("net.limits.lane-bytes-max.data", data),
        ("net.limits.lane-bytes-max.user", user),
        ("net.limits.lane-bytes-max.bulk", bulk),
        ("net.limits.lane-window", limits.lane_window),
        ("ddata.max-delta-elements", ddata.max_delta_elements),
        ("ddata.max-value-size", ddata.max_value_size),
        ("ddata.max-pending-requests", ddata.max_pending_requests),
        ("ddata.epoch.sync-attempts", ddata.epoch.sync_attempts as usize),
    ];
    let positive =
        positive.map(|(setting, it)| (it >= 1, (setting, it.to_string(), "must be at least 1")));
    let lanes = limits.lanes_per_peer;
    let must = "must be at least 4: one of each class";
    let lanes = (lanes >= 4, ("net.limits.lanes-per-peer", lanes.to_string(), must));
    let elements = ddata.max_delta_elements;
    let must = "must be at most 2000: a peer refuses messages with more keys";
    let elements =
        (elements <= ENTRIES_MAX, ("ddata.max-delta-elements", elements.to_string(), must));
    positive.into_iter().chain([lanes, elements]).collect()
}

/// The sizes of frames and messages. The transport's have a minimum and the maximum that 32 bits
/// can express; of `[ddata]`, `frame-bytes-max` has only a minimum here and `assembly-bytes-max`
/// only that maximum: `contradictions.rs` compares them with other settings.
fn sizes(limits: &NetLimits, ddata: &ddata::ReplicatorConfig) -> [(bool, CheckedSetting); 4] {
    // The Replicator cuts its messages into frames of its own, which are messages of the transport.
    let (frame, message, data_frame, assembly) = (
        limits.frame_bytes_max,
        limits.message_bytes_max,
        ddata.frame_bytes_max,
        ddata.assembly_bytes_max,
    );
    [
        (
            (FRAME_BYTES_MIN..=u32::MAX as usize).contains(&frame),
            ("net.limits.frame-bytes-max", frame.to_string(), "must be 8192 bytes to 4 GiB"),
        ),
        (
            (FRAME_BYTES_MIN..=u32::MAX as usize).contains(&message),
            ("net.limits.message-bytes-max", message.to_string(), "must be 8192 bytes to 4 GiB"),
        ),
        (
            data_frame >= DATA_FRAME_BYTES_MIN,
            ("ddata.frame-bytes-max", data_frame.to_string(), "must be at least 1024 bytes"),
        ),
        (
            // The length of a message that is assembled from frames is sent as 32 bits.
            assembly <= u32::MAX as usize,
            ("ddata.assembly-bytes-max", assembly.to_string(), "must be at most 4 GiB"),
        ),
    ]
}

fn time(value: Duration) -> String {
    humantime::format_duration(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that makes a setting wrong, and a part of the expected error. Some make a pair of
    /// settings contradictory, which other files of this module check.
    type BrokenSetting = (fn(&mut Config), &'static str);

    const SECOND: Duration = Duration::from_secs(1);
    const BROKEN: [BrokenSetting; 38] = [
        (|c| c.net.limits.first_message_within = Duration::ZERO, "first-message-within is 0s"),
        (|c| c.net.limits.unadmitted = 0, "net.limits.unadmitted is 0"),
        (|c| c.net.limits.handshake_within = Duration::ZERO, "net.limits.handshake-within is 0s"),
        (|c| c.net.limits.idle_timeout = Duration::ZERO, "net.limits.idle-timeout is 0s"),
        (|c| c.net.limits.control_undrained_max = Duration::ZERO, "control-undrained-max is 0s"),
        (|c| c.net.limits.back_off.0 = Duration::ZERO, "net.limits.back-off.min is 0s"),
        (
            |c| c.net.limits.back_off = (2 * SECOND, SECOND),
            "back-off.max is 1s, and net.limits.back",
        ),
        (|c| c.net.limits.connections_per_peer = 0, "net.limits.connections-per-peer is 0"),
        (|c| c.net.limits.connections = 0, "net.limits.connections is 0"),
        (|c| c.net.limits.handshakes = 0, "net.limits.handshakes is 0"),
        (|c| c.net.limits.lanes_per_peer = 3, "net.limits.lanes-per-peer is 3: must be at least 4"),
        (|c| c.net.limits.lane_bytes_max[0] = 0, "net.limits.lane-bytes-max.control is 0"),
        (|c| c.net.limits.lane_bytes_max[1] = 0, "net.limits.lane-bytes-max.data is 0"),
        (|c| c.net.limits.lane_bytes_max[2] = 0, "net.limits.lane-bytes-max.user is 0"),
        (|c| c.net.limits.lane_bytes_max[3] = 0, "net.limits.lane-bytes-max.bulk is 0"),
        (|c| c.net.limits.lane_window = 0, "net.limits.lane-window is 0"),
        (|c| c.net.limits.frame_bytes_max = 8_191, "frame-bytes-max is 8191: must be 8192 bytes"),
        (|c| c.net.limits.message_bytes_max = 10, "net.limits.message-bytes-max is 10: must be"),
        (|c| c.net.listen = at(&["/dns4/a.example/tcp/1"]), "net.listen is /dns4/a.example/tcp/1"),
        (|c| c.net.listen = at(&["/ip4/127.0.0.1/udp/1"]), "must be /ip4|ip6/ADDRESS/tcp/PORT"),
        (|c| c.net.advertise = at(&["/ip4/0.0.0.0/tcp/1"]), "net.advertise is /ip4/0.0.0.0/tcp/1"),
        (|c| c.net.advertise = at(&["/memory/1"]), "must be what others dial"),
        (|c| c.net.advertise = at(&["/ip4/10.0.0.1/tcp/0"]), "must be what others dial"),
        (|c| c.ddata.gossip_interval = Duration::ZERO, "ddata.gossip-interval is 0s"),
        (|c| c.ddata.busy_gossip_interval = Duration::ZERO, "ddata.busy-gossip-interval is 0s"),
        (|c| c.ddata.max_delta_elements = 2_001, "is 2001: must be at most 2000"),
        (|c| c.ddata.max_delta_elements = 0, "ddata.max-delta-elements is 0"),
        (|c| c.ddata.max_value_size = 0, "ddata.max-value-size is 0"),
        (|c| c.ddata.max_pending_requests = 0, "ddata.max-pending-requests is 0"),
        (|c| c.ddata.frame_bytes_max = 5 << 20, "and net.limits.message-bytes-max is"),
        (|c| c.ddata.frame_bytes_max = 1_000, "ddata.frame-bytes-max is 1000: must be at least"),
        (|c| c.ddata.assembly_bytes_max = 1 << 20, "make the former at least twice the latter"),
        (|c| c.ddata.assembly_bytes_max = usize::MAX, "must be at most 4 GiB"),
        (|c| c.ddata.epoch.abandoned_after = Duration::ZERO, "ddata.epoch.abandoned-after is 0s"),
        (|c| c.ddata.epoch.resend_first = Duration::ZERO, "ddata.epoch.resend-first is 0s"),
        (
            |c| c.ddata.epoch.resend_most = Duration::ZERO,
            "resend-most is 0s, and ddata.epoch.resend",
        ),
        (|c| c.ddata.epoch.source_patience = Duration::ZERO, "ddata.epoch.source-patience is 0s"),
        (|c| c.ddata.epoch.sync_attempts = 0, "ddata.epoch.sync-attempts is 0"),
    ];

    fn at(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn out_of_range_net_or_ddata_setting_is_refused_by_name() {
        for (breaks, said) in BROKEN {
            let mut config = Config::default();
            breaks(&mut config);
            let error = config.check().expect_err(said).to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_key_that_expires_at_once_is_refused() {
        let text = "{ \"expire-keys-after-inactivity\": { \"session-*\": \"0s\" } }";
        let ddata = serde_json::from_str(text).expect("settings");
        let error = Config { ddata, ..Config::default() }.check().expect_err("at once").to_string();
        assert!(error.starts_with("ddata.expire-keys-after-inactivity is 0s: "), "{error}");
    }
}
