//! Well-formed inputs of each decoder, from which mutations start.

use std::collections::BTreeSet;

use libp2p::identity::Keypair;
use ostraca::cluster::gossip::wire::encode;
use ostraca::cluster::gossip::{ClusterId, Gossip};
use ostraca::cluster::member::{Address, Member};
use ostraca::cluster::wire::{ClusterMessage, ComparedSettings};
use ostraca::ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca::ddata::replicator::epoch::EpochId;
use ostraca::ddata::types::Term;
use ostraca::management::verbatim::Verbatim;
use ostraca::management::wire::{
    AdminRequest, AdminResponse, ConsistencyLevel, Data, MemberInfo as ManagedMember, Members,
    Packed, RegionInfo, Shards, ValueContent,
};
use ostraca::net::frame::{self, Field, kind};
use ostraca::net::noise::Credentials;
use ostraca::sharding::ids::{Generation, RegionId, ShardId};
use ostraca::sharding::wire::{HostShard, ShardRoute, ShardingMessage, ToCoordinator, ToRegion};
use serde::Serialize;

/// A node's address.
const ADDRESS: &str = "/ip4/10.0.0.1/tcp/7600";

/// Reads the inputs of a golden file: a name and hexadecimal digits per line.
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

/// Strips the length prefix of a frame.
pub(crate) fn openings() -> Vec<Vec<u8>> {
    let inputs = golden(include_str!("../golden/openings.hex"));
    inputs.into_iter().map(|input| input[4..].to_vec()).collect()
}

/// A yamux (version 0) conversation: opens a stream, sends data, grants window, pings and closes.
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

/// Payloads of Noise: identity and signature, in the opposite order, without a signature, with an
/// unknown field, and with an identity that is no key.
pub(crate) fn noise_payloads() -> Vec<Vec<u8>> {
    let pair = Keypair::ed25519_from_bytes([7; 32]).expect("32 bytes");
    let signature = pair.sign(b"a static key").expect("an ed25519 key signs");
    let payload = Credentials { identity: pair.public(), signature }.encode();
    let (identity, signature) = payload.split_at(2 + 36);
    vec![
        [signature, identity].concat(),
        identity.to_vec(),
        [&payload[..], &[26, 1, 0]].concat(),
        [&[10, 5, 8, 1, 18, 1, 0][..], signature].concat(),
        payload,
    ]
}

/// Inputs of the body `noise_messages`: the size of portions, a position of two bytes and a change,
/// then messages, each with a length of two bytes.
pub(crate) fn noise_messages() -> Vec<Vec<u8>> {
    let input = |start: [u8; 4], messages: &[&[u8]]| {
        let mut input = start.to_vec();
        for message in messages {
            let len = u16::try_from(message.len()).expect("a short message");
            input.extend(len.to_be_bytes());
            input.extend_from_slice(message);
        }
        input
    };
    let payloads = noise_payloads();
    let mut inputs: Vec<_> = payloads.iter().map(|it| input([255, 0, 9, 0], &[it])).collect();
    inputs.extend([
        input([255, 0, 0, 0], &[b"a piece", b"", &[9; 32]]),
        input([6, 0, 25, 1], &[b"one", b"two", b"three", &[9; 40]]),
        input([0, 0, 1, 2], &[b"abc", b"de"]),
        input([40, 0, 70, 128], &[&payloads[1], b"more"]),
        [&[0, 0, 0, 0, 16, 0][..], &[5; 300]].concat(),
        vec![20, 0, 0, 4, 0, 17, 1, 2, 3, 255, 255, 7],
    ]);
    inputs
}

pub(crate) fn cluster() -> Vec<Vec<u8>> {
    let node = NodeId { peer: PeerKey::new([7; 32]), incarnation: ReplicaId::new(3) };
    let address = Address::new(ADDRESS).expect("an address");
    let member = Member::joining(node, address.clone(), 1);
    let settings = ComparedSettings {
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
    vec![encode(&join), encode(&gossip)]
}

pub(crate) fn sharding() -> Vec<Vec<u8>> {
    let node = ReplicaId::new(3);
    let region = RegionId::new(node);
    let generation = Generation::new(Term { number: 2, owner: node }, 9);
    let shard = ShardId::new(5);
    let home = Some(region);
    let routes = [5, 6].map(|shard| ShardRoute { shard: ShardId::new(shard), generation, home });
    let epoch = EpochId { generation: 1, number: 3 };
    let after = [(region, generation)].into_iter().collect();
    let host = HostShard { shard, generation, after, epoch };
    let messages = [
        ShardingMessage::Coordinator(ToCoordinator::Stop(vec![(shard, 1)])),
        ShardingMessage::Coordinator(ToCoordinator::Hosted(vec![(shard, generation)])),
        ShardingMessage::Coordinator(ToCoordinator::GetShardHome(vec![shard])),
        ShardingMessage::Region(ToRegion::Announce(routes.into_iter().collect())),
        ShardingMessage::Region(ToRegion::Host(vec![host])),
    ];
    messages.iter().map(named).collect()
}

pub(crate) fn management() -> Vec<Vec<u8>> {
    let text = |text: &str| text.to_owned();
    let value = Packed::new(&(7, "on")).expect("a value of two levels");
    let requests = [
        AdminRequest::Members,
        AdminRequest::Shards { entity_type: text("counter"), within_ms: 3_000 },
        AdminRequest::Set {
            key: text("flags/a"),
            value: value.clone(),
            level: ConsistencyLevel::Local,
        },
    ];
    let region =
        RegionInfo { node: text("a1b2c3d4-7"), address: text(ADDRESS), shards: vec![(5, 2)] };
    let shards =
        Shards { entity_type: text("counter"), regions: vec![region], ..Shards::default() };
    let member = ManagedMember { node: text("a1b2c3d4-7"), ..ManagedMember::default() };
    let members = Members { me: text("a1b2c3d4-7"), members: vec![member], ..Members::default() };
    let content = Verbatim::of(&ValueContent::Elements(vec![value]));
    let answers = [
        AdminResponse::Members(members),
        AdminResponse::Shards(shards),
        AdminResponse::Keys(vec![text("flags/a"), text("flags/b")]),
        AdminResponse::Value(Some(Data { shape: text("or-set"), content })),
    ];
    let answers = answers.iter().map(named);
    requests.iter().map(named).chain(answers).collect()
}

fn named(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("a message encodes")
}
