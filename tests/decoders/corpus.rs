//! Well-formed inputs of each decoder, which mutations start from.

use std::collections::BTreeSet;

use ostraca::cluster::gossip::wire::encode;
use ostraca::cluster::gossip::{ClusterId, Gossip};
use ostraca::cluster::member::{Address, Member};
use ostraca::cluster::wire::{ClusterMessage, Settings};
use ostraca::ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca::management::wire::Request;
use ostraca::net::frame::{self, Field, kind};
use ostraca::sharding::ids::ShardId;
use ostraca::sharding::wire::{ShardingMessage, ToCoordinator};
use serde::Serialize;

/// The inputs of a golden file: a name and hexadecimal digits on each line.
fn golden(text: &str) -> Vec<Vec<u8>> {
    let digits = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    let inputs: Vec<_> = digits.map(bytes_of).collect();
    assert!(!inputs.is_empty(), "the golden file has inputs");
    inputs
}

fn bytes_of(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut header = vec![2];
    frame::put_field(&mut header, Field::Define(0, "sharding"));
    frame::put_field(&mut header, Field::Literal("counter"));
    let whole = |kind, body: &[u8]| [&frame::begin(kind, body.len())[..], body].concat();
    let message = whole(kind::MESSAGE, &[&header[..], b"a body"].concat());
    let first = whole(kind::FIRST, &[&[0, 0, 0, 12][..], &header, b"a piece"].concat());
    let last = whole(kind::LAST, b"another");
    let ack = frame::ack(7).to_vec();
    vec![[&message[..], &first, &last].concat(), ack, message]
}

pub(crate) fn replicator() -> Vec<Vec<u8>> {
    let mut inputs = golden(include_str!("../../ddata/tests/golden/messages.hex"));
    inputs.extend(golden(include_str!("../../ddata/tests/golden/values.hex")));
    inputs
}

/// The bytes without the length before them.
pub(crate) fn openings() -> Vec<Vec<u8>> {
    let inputs = golden(include_str!("../golden/openings.hex"));
    inputs.into_iter().map(|input| input[4..].to_vec()).collect()
}

/// Opens a stream, sends data, grants window, pings and says goodbye; yamux, version 0.
pub(crate) fn muxer() -> Vec<Vec<u8>> {
    let header = |kind: u8, flags: u8, stream: u8, len: u8| {
        [0, kind, 0, flags, 0, 0, 0, stream, 0, 0, 0, len]
    };
    let mut input = vec![4, 2, 3, 1, 0];
    input.extend(header(1, 1, 1, 0));
    input.extend(header(0, 0, 1, 3));
    input.extend(b"abc");
    input.extend(header(1, 0, 1, 200));
    input.extend(header(2, 1, 0, 9));
    input.extend(header(0, 4, 1, 0));
    input.extend(header(3, 0, 0, 0));
    vec![input]
}

/// A Noise message: a length of two bytes and an ephemeral key.
pub(crate) fn noise() -> Vec<Vec<u8>> {
    vec![[&[0, 32][..], &[9; 32]].concat(), [&[0, 48][..], &[7; 48]].concat()]
}

pub(crate) fn cluster() -> Vec<Vec<u8>> {
    let node = NodeId { peer: PeerKey::new([7; 32]), incarnation: ReplicaId::new(3) };
    let address = Address::new("/ip4/10.0.0.1/tcp/7600").expect("an address");
    let member = Member::joining(node, address.clone(), 1);
    let settings = Settings {
        must: vec![("cluster-name".to_owned(), "shop".to_owned())],
        should: vec![("downing".to_owned(), "keep-majority".to_owned())],
    };
    let gossip = Gossip::found(ClusterId(7), member.clone()).expect("a founder");
    let join = ClusterMessage::InitJoin {
        member: Box::new(member),
        settings,
        seeds: BTreeSet::from([address]),
        cluster: Some(ClusterId(7)),
    };
    let stop = ShardingMessage::Coordinator(ToCoordinator::Stop(vec![(ShardId::new(5), 1)]));
    let requests =
        [Request::Members, Request::Shards { entity_type: "counter".to_owned(), within_ms: 3_000 }];
    let mut inputs = vec![encode(&join), encode(&gossip), named(&stop)];
    inputs.extend(requests.iter().map(named));
    inputs
}

fn named(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("a message encodes")
}
