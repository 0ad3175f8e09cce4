//! The serialized form of the settings, and the floor under every majority.

use std::time::Duration;

use ostraca_ddata::key::{Group, Pattern};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, EpochConfig, EpochSettings, MembershipChange};
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::{
    ReadConsistency as Read, ReplicatorReply, ReplicatorRequest, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::Body;
use ostraca_ddata::types::Term;
use serde_json::Value as Json;

use crate::bare::{Bare, ack, epoch_id, get, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, millis, secs};

fn read(text: &str) -> Result<ReplicatorConfig, serde_json::Error> {
    serde_json::from_str(text)
}

#[test]
fn default_settings_round_trip() {
    let text = serde_json::to_string(&ReplicatorConfig::default()).unwrap();
    assert_eq!(read(&text).unwrap(), ReplicatorConfig::default());
    assert_eq!(
        read("{}").unwrap(),
        ReplicatorConfig::default(),
        "a missing setting has its default"
    );
}

#[test]
fn settings_have_the_documented_names() {
    let json: Json = serde_json::to_value(ReplicatorConfig::default()).unwrap();
    let at =
        |path: &str| json.pointer(path).unwrap_or_else(|| panic!("no {path} in {json}")).clone();
    let expected: [(&str, Json); 13] = [
        ("/gossip-interval", "1s".into()),
        ("/max-delta-elements", 500.into()),
        ("/direct-push-limit", 100.into()),
        ("/delta/enabled", true.into()),
        ("/notify-subscribers-interval", "0s".into()),
        ("/majority-min-cap", 0.into()),
        ("/durable/keys", Json::Array(vec![])),
        ("/expire-keys-after-inactivity", Json::Object(serde_json::Map::new())),
        ("/max-clock-skew", "1m".into()),
        ("/log-data-size-exceeding", (10 << 10).into()),
        ("/max-value-size", (16 << 20).into()),
        ("/max-pending-requests", 65_536.into()),
        ("/epoch/abandoned-after", "500ms".into()),
    ];
    for (path, value) in expected {
        assert_eq!(at(path), value, "{path}");
    }
    assert_eq!(json.pointer("/durable/write-behind-interval"), None, "no write-behind by default");
}

#[test]
fn custom_settings_round_trip_and_unknown_ones_are_refused() {
    let own = ReplicatorConfig {
        gossip_interval: millis(1_500),
        majority_min_cap: 3,
        delta_enabled: false,
        durable_keys: vec![Pattern::new("shard-*"), Pattern::new("one")],
        write_behind_interval: Some(millis(20)),
        expire_keys_after_inactivity: vec![(Pattern::new("session-*"), secs(3_600))],
        epoch: EpochConfig { sync_attempts: 9, ..EpochConfig::default() },
        ..ReplicatorConfig::default()
    };
    let text = serde_json::to_string(&own).unwrap();
    assert!(text.contains(r#""session-*":"1h""#), "{text}");
    assert_eq!(read(&text).unwrap(), own);
    for unknown in [
        r#"{"gosip-interval":"1s"}"#,
        r#"{"gossip_interval":"1s"}"#,
        r#"{"delta":{"enable":true}}"#,
        r#"{"durable":{"write-behind":"1s"}}"#,
        r#"{"epoch":{"patience":"1s"}}"#,
        r#"{"gossip-interval":1}"#,
    ] {
        assert!(read(unknown).is_err(), "{unknown}");
    }
}

#[test]
fn majority_floor_applies_to_reads_and_writes_not_fences() {
    let mut bare =
        Bare::with(5, ReplicatorConfig { majority_min_cap: 4, ..ReplicatorConfig::default() });
    let id = bare.ask(insert("k", "tea", WRITE_MAJORITY));
    let (push, _) = bare.push_to_all(5);
    bare.hear(1, ack(push));
    bare.hear(2, ack(push));
    assert_eq!(bare.answer(id), None, "three of five are a majority, but below the floor");
    bare.hear(3, ack(push));
    assert!(matches!(bare.answer(id), Some(Ok(_))));

    let id = bare.ask(get("k", READ_MAJORITY));
    let same = Body::ReadAnswer { request: id.0, counts: true, context: None, entry: None };
    bare.hear(1, same.clone());
    bare.hear(2, same.clone());
    assert_eq!(bare.answer(id), None);
    bare.hear(3, same);
    assert!(matches!(bare.answer(id), Some(Ok(_))));

    let term = Term { number: 1, owner: peer(0) };
    let id = bare.ask(ReplicatorRequest::Fence { group: Group::new("g-"), term, within: secs(1) });
    for from in [1, 2] {
        let (differing, entries) = (vec![], vec![]);
        bare.hear(from, Body::Promised { request: id.0, counts: true, differing, entries });
    }
    assert!(
        matches!(bare.answer(id), Some(Ok(ReplicatorReply::Fenced { .. }))),
        "a quorum promises"
    );
}

/// A time of [`Duration::MAX`] means "for ever": times of the clock saturate.
#[test]
fn endless_timeouts_and_intervals_do_not_overflow() {
    let endless = Duration::MAX;
    let epoch = EpochConfig {
        abandoned_after: endless,
        resend_most: endless,
        probe_wait: endless,
        source_patience: endless,
        ..EpochConfig::default()
    };
    let expiring = vec![(Pattern::new("*"), endless)];
    let mut bare = Bare::with(
        3,
        ReplicatorConfig {
            gossip_interval: endless,
            notify_subscribers_interval: endless,
            expire_keys_after_inactivity: expiring,
            max_clock_skew: endless,
            epoch,
            ..ReplicatorConfig::default()
        },
    );
    let group = Group::new("g-");
    let term = Term { number: 1, owner: peer(0) };
    let ids = [
        bare.ask(insert("k", "tea", To::All(endless))),
        bare.ask(get("k", Read::All(endless))),
        bare.ask(ReplicatorRequest::FlushChanges { within: endless }),
        bare.ask(ReplicatorRequest::Fence { group, term, within: endless }),
    ];
    bare.pass(secs(200)); // over rounds of gossip, resends and expiry
    bare.feed(ReplicatorInput::Propose(MembershipChange {
        join: vec![peer(3)],
        ..MembershipChange::default()
    }));
    assert!(bare.replicator.epochs().sealed());
    bare.pass(secs(200));
    for id in ids {
        assert_eq!(bare.answer(id), None, "it waits for the other members");
    }
}

#[test]
fn digest_seed_is_derived_if_the_founder_gave_none() {
    let seed = |ids: &[usize]| {
        let members = ids.iter().map(|n| peer(*n)).collect();
        Epoch::founding(epoch_id(), members, EpochSettings::default()).unwrap().digest_seed()
    };
    assert_ne!(seed(&[0, 1]), 0);
    assert_ne!(seed(&[0, 1]), seed(&[0, 2]));
    assert_eq!(seed(&[0, 1]), seed(&[0, 1]));
    let settings = EpochSettings { digest_seed: 7, ..EpochSettings::default() };
    let named = Epoch::founding(epoch_id(), vec![peer(0)], settings).unwrap();
    assert_eq!(named.digest_seed(), 7);
}
