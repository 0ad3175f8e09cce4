//! Tests of settings that only change how much, or how often, the Replicator sends or accepts.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::clock::WallTime;
use ostraca_ddata::key::KeyName;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::request::WriteConsistency as To;
use ostraca_ddata::replicator::wire::{
    At, Body, ContextBytes, ENTRIES_MAX, KeyContext, Query, QueryAnswer,
};

use crate::bare::{Bare, START, insert, peer};
use crate::cluster::{millis, secs};
use crate::input::{other, pushed, set};

const NEVER: Duration = Duration::from_secs(1_000_000);

/// Sessions of anti-entropy in the messages sent since the last call.
fn sessions(bare: &mut Bare) -> BTreeSet<u64> {
    let session = |(_, body)| match body {
        Body::Compare { session, .. } => Some(session),
        _ => None,
    };
    bare.sent().into_iter().filter_map(session).collect()
}

/// Number of comparisons that a node begins within this time, a minute after its start.
fn comparisons(config: ReplicatorConfig, change: bool, within: Duration) -> usize {
    let mut bare = Bare::with(2, config);
    bare.pass(secs(60)); // the first ones stay unanswered and are given up
    let earlier = sessions(&mut bare);
    if change {
        assert!(bare.now(insert("k", "tea", To::Local)).is_ok());
    }
    bare.pass(within);
    sessions(&mut bare).difference(&earlier).count()
}

#[test]
fn replicas_are_compared_at_the_gossip_interval() {
    let config =
        |gossip_interval| ReplicatorConfig { gossip_interval, ..ReplicatorConfig::default() };
    assert_eq!(comparisons(config(secs(1_000)), false, secs(100)), 0);
    assert!(comparisons(config(secs(1)), false, secs(100)) > 0);
}

#[test]
fn change_brings_the_next_comparison_forward() {
    let config = |busy_gossip_interval| ReplicatorConfig {
        gossip_interval: NEVER,
        busy_gossip_interval,
        ..ReplicatorConfig::default()
    };
    assert_eq!(comparisons(config(NEVER), true, millis(900)), 0);
    assert_eq!(comparisons(config(millis(100)), false, millis(900)), 0);
    assert!(comparisons(config(millis(100)), true, millis(900)) > 0);
}

#[test]
fn message_has_at_most_max_delta_elements() {
    for (max_delta_elements, messages) in [(500, 1), (3, 4)] {
        let config = ReplicatorConfig { max_delta_elements, ..ReplicatorConfig::default() };
        let mut bare = Bare::with(2, config);
        bare.sent();
        bare.batch((0..10).map(|n| insert(&format!("k{n}"), "tea", To::Local)).collect());
        let pushes = bare.pushes();
        assert_eq!(pushes.len(), messages, "{max_delta_elements}");
        assert!(
            pushes
                .iter()
                .all(|(to, _, entries)| { *to == peer(1) && entries.len() <= max_delta_elements })
        );
        assert_eq!(pushes.iter().map(|(_, _, entries)| entries.len()).sum::<usize>(), 10);
    }
}

/// A decoder refuses a message with more of the smallest entries.
#[test]
fn comparison_repairs_at_most_entries_max_keys_at_once() {
    let config = ReplicatorConfig {
        max_delta_elements: 2 * ENTRIES_MAX,
        frame_bytes_max: 1 << 20,
        ..ReplicatorConfig::default()
    };
    let mut bare = Bare::with(2, config);
    let keys = || (0..=ENTRIES_MAX).map(|n| format!("k{n}"));
    bare.batch(keys().map(|key| insert(&key, "tea", To::Local)).collect());
    bare.sent();
    let context = ContextBytes::new(&CausalContext::new());
    let want = |key: String| KeyContext { key: KeyName::new(&key), context: context.clone() };
    let query = Query::Want(keys().map(want).collect());
    bare.hear(1, Body::Compare { session: 1, at: At::Live, query });
    let repairs = |(_, body)| match body {
        Body::Compared { answer, .. } => match *answer {
            QueryAnswer::Entries { entries, .. } => Some(entries.len()),
            _ => None,
        },
        _ => None,
    };
    assert_eq!(bare.sent().into_iter().filter_map(repairs).collect::<Vec<_>>(), [ENTRIES_MAX]);
}

#[test]
fn stamp_beyond_max_clock_skew_is_not_adopted() {
    for (max_clock_skew, impossible) in [(secs(60), 0), (secs(10), 1)] {
        let mut bare =
            Bare::with(3, ReplicatorConfig { max_clock_skew, ..ReplicatorConfig::default() });
        let mut ahead = other(1);
        ahead.now.wall = WallTime::from_millis(START + 30_000);
        let entries = pushed(&mut ahead, set("k", "from the future"));
        bare.hear(1, Body::Write { push: 9, whole: true, entries: entries.into() });
        assert_eq!(bare.replicator.stats().impossible_clocks, impossible, "{max_clock_skew:?}");
    }
}
