//! Inputs that could make a decoder use much memory, and long messages as nodes encode them.

use std::io::Cursor;
use std::iter::repeat_n;

use libp2p::identity::Keypair;
use ostraca::cluster::gossip::wire::encode;
use ostraca::cluster::gossip::{ClusterId, Gossip};
use ostraca::cluster::member::{Address, Member};
use ostraca::cluster::reachability::ReachabilityStatus;
use ostraca::cluster::wire::ClusterMessage;
use ostraca::ddata::causal::{CausalContext, Dot};
use ostraca::ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca::ddata::key::{Group, KeyName};
use ostraca::ddata::replicator::epoch::{Epoch, EpochId, EpochMessage, EpochSettings};
use ostraca::ddata::replicator::wire::{
    AckScope, At, Body, ContextBytes, ENTRIES_MAX, Entry, EntryContent, KeyContext, Nack,
    QueryAnswer, ReplicatorMessage, WireGuard,
};
use ostraca::ddata::types::Term;
use ostraca::management::verbatim::Verbatim;
use ostraca::management::wire::{
    AdminRequest, AdminResponse, Data, Packed, RegionInfo, Shards, ValueContent,
};
use ostraca::sharding::ids::{Generation, RegionId, ShardId};
use ostraca::sharding::wire::{HostShard, ShardRoute, ShardingMessage, ToCoordinator, ToRegion};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// An input with its name.
pub(crate) type Shape = (String, Vec<u8>);

/// Number of elements in a lengthened list.
const ELEMENTS: u32 = 50_000;
/// Number of members of a large cluster, and of shards of a large type.
const MEMBERS: u64 = 1_000;
const SHARDS: u32 = 20_000;
/// Encodings of small values that can need much more memory than bytes.
const SMALL: [(&str, &[u8]); 8] = [
    ("nil", &[0xc0]),
    ("integers", &[7]),
    ("empty maps", &[0x80]),
    ("empty lists", &[0x90]),
    ("empty texts", &[0xa0]),
    ("empty byte strings", &[0xc4, 0]),
    ("pairs", &[0x92, 1, 1]),
    ("pairs of texts", &[0x92, 0xa0, 0xa0]),
];

/// Complete inputs that are not a message of any decoder.
pub(crate) fn hostile() -> Vec<Shape> {
    let mut shapes = vec![
        ("nested lists".to_owned(), vec![0x91; 1 << 20]),
        ("nested maps".to_owned(), [0x81, 0xa0].repeat(1 << 19)),
        ("zeros".to_owned(), vec![0; 1 << 20]),
    ];
    for marker in [0xdb, 0xc6, 0xdd, 0xdf] {
        shapes.push((
            format!("announced by {marker:x}"),
            [marker].into_iter().chain([0xff; 4]).collect(),
        ));
    }
    for (name, small) in SMALL {
        shapes.push((format!("a list of {name}"), list_of(small)));
    }
    shapes
}

fn list_of(element: &[u8]) -> Vec<u8> {
    let elements = element.repeat(ELEMENTS as usize);
    [&[0xdd][..], &ELEMENTS.to_be_bytes(), &elements].concat()
}

/// Returns variants of the input. In each, one list or map is filled with many copies of its own
/// first element or of small values, or is announced as longer than it is, or one text or byte
/// string is announced as longer.
pub(crate) fn grown(input: &[u8]) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (at, marker) in input.iter().enumerate() {
        let (before, behind) = (&input[..at], &input[at + 1..]);
        let mut push = |what: &str, list: &[u8]| {
            shapes.push((format!("byte {at}: {what}"), [before, list].concat()));
        };
        match marker {
            0x91..=0x9f => {
                push("its first element", &list_of(&behind[..value_len(behind)]));
                SMALL.iter().for_each(|(name, small)| push(name, &list_of(small)));
                push("announced", &[0xdd, 0xff, 0xff, 0xff, 0xff]);
            }
            0x81..=0x8f => {
                push("a map with numbers as keys", &map_of(|number| number.to_be_bytes().to_vec()));
                push("announced", &[0xdf, 0xff, 0xff, 0xff, 0xff]);
            }
            0xa0..=0xbf => push("announced", &[0xdb, 0xff, 0xff, 0xff, 0xff]),
            0xc4 => push("announced", &[0xc6, 0xff, 0xff, 0xff, 0xff]),
            _ => {}
        }
    }
    shapes
}

fn map_of(key: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let entries = (0..ELEMENTS).flat_map(|number| [vec![0xce], key(number), vec![7]].concat());
    [0xdf].into_iter().chain(ELEMENTS.to_be_bytes()).chain(entries).collect()
}

/// Returns the length of the MessagePack value at the start of the bytes; 0 if there is none.
fn value_len(bytes: &[u8]) -> usize {
    let mut decoder = rmp_serde::Deserializer::new(Cursor::new(bytes));
    let whole = IgnoredAny::deserialize(&mut decoder).is_ok();
    if whole { usize::try_from(decoder.position()).unwrap_or(0) } else { 0 }
}

/// Long messages that the decoder with this name must accept.
pub(crate) fn long(decoder: &str) -> Vec<Shape> {
    match decoder {
        "cluster" => cluster(),
        "sharding" => sharding(),
        "replicator" => replicator(),
        "request" => {
            let value = named(&repeat_n(7_u8, 1_000_000).collect::<Vec<_>>());
            let value = Packed::from(&ostraca::ddata::encoded::Encoded::from_bytes(&value));
            let level = ostraca::management::wire::ConsistencyLevel::Local;
            let request = AdminRequest::Set { key: "flags/a".to_owned(), value, level };
            vec![("a list of 1,000,000 integers".to_owned(), named(&request))]
        }
        "answer" => management(),
        "noise payload" => noise_payload(),
        // Their messages are short, or are long in other decoders' types only.
        "frame" | "noise message" | "lease" | "singleton" | "survey" | "greeting" | "hello"
        | "client hello" | "opening's answer" => Vec::new(),
        _ => panic!("no decoder is called {decoder}"),
    }
}

fn named(message: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(message).expect("a message encodes")
}

fn cluster() -> Vec<Shape> {
    let node = |number: u64| ReplicaId::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let member = |number: u64| {
        let mut peer = [0; 32];
        peer[..8].copy_from_slice(&number.to_le_bytes());
        let node = NodeId { peer: PeerKey::new(peer), incarnation: node(number) };
        let address = Address::new(format!("/ip4/10.0.0.1/tcp/{number}")).expect("an address");
        let mut member = Member::joining(node, address, number);
        member.roles = ["backend"].into_iter().collect();
        member.hosting.entity_types = ["cart", "order"].into_iter().collect();
        member
    };
    let mut gossip = Gossip::found(ClusterId(7), member(1)).expect("a founder");
    for number in 2..=MEMBERS {
        gossip.admit_member(node(1), member(number)).expect("a new member");
    }
    let status = gossip.status();
    let mut accused = gossip.clone();
    for number in 2..=MEMBERS {
        let unreachable = ReachabilityStatus::Unreachable;
        assert!(accused.accuse(node(number), node(1), unreachable), "each member has a row");
    }
    let accused = ClusterMessage::Gossip(accused.into());
    let gossip = ClusterMessage::Gossip(gossip.into());
    let status = ClusterMessage::GossipStatus(status);
    vec![
        (format!("a state of {MEMBERS} members"), encode(&gossip)),
        (format!("a state with {MEMBERS} rows"), encode(&accused)),
        (format!("a status of {MEMBERS} members"), encode(&status)),
    ]
}

fn sharding() -> Vec<Shape> {
    let node = ReplicaId::new(0x9e37_79b9_7f4a_7c15);
    let region = RegionId::new(node);
    let generation = Generation::new(Term { number: 2, owner: node }, 900);
    let shards = || (0..SHARDS).map(ShardId::new);
    let route = |shard| ShardRoute { shard, generation, home: Some(region) };
    let epoch = EpochId { generation: 1, number: 3 };
    let host = |shard| {
        let after = [(region, generation)].into_iter().collect();
        HostShard { shard, generation, after, epoch }
    };
    let coordinator = ShardingMessage::Coordinator;
    let messages = [
        ("stop", coordinator(ToCoordinator::Stop(shards().map(|shard| (shard, 1)).collect()))),
        (
            "hosted",
            coordinator(ToCoordinator::Hosted(shards().map(|it| (it, generation)).collect())),
        ),
        ("get home", coordinator(ToCoordinator::GetShardHome(shards().collect()))),
        ("announce", ShardingMessage::Region(ToRegion::Announce(shards().map(route).collect()))),
        ("host", ShardingMessage::Region(ToRegion::Host(shards().map(host).collect()))),
    ];
    let shape = |(name, message): &(&str, ShardingMessage)| ((*name).to_owned(), named(message));
    messages.iter().map(shape).collect()
}

/// The smallest entries and contexts that replicas write, as many as a message may have, and the
/// longest lists.
fn replicator() -> Vec<Shape> {
    let node = |number: u64| ReplicaId::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut context = CausalContext::new();
    context.insert(Dot { actor: node(1), counter: 1 });
    let context = ContextBytes::new(&context);
    let count = u32::try_from(ENTRIES_MAX).expect("a few thousand");
    let named = |index: u32| KeyName::new(&format!("{index:x}"));
    let write = |content: EntryContent, guard: Option<WireGuard>| {
        let entry = |index| Entry {
            index,
            key: named(index),
            shape: "flag".into(),
            guard: guard.clone(),
            content: content.clone(),
        };
        Body::Write { push: 16, whole: true, entries: (0..count).map(entry).collect() }
    };
    let bytes = || vec![1; 13].into();
    let term = Term { number: 1, owner: node(1) };
    let guard = WireGuard { group: Group::new("g"), term: Some(term) };
    let refused = |nack: &Nack| Body::Ack {
        push: 16,
        scope: AckScope::Only((0..count).collect()),
        counts: true,
        nacks: (0..count).map(|index| (index, nack.clone())).collect(),
    };
    let held = |keys: u32| {
        let key = |index| KeyContext { key: named(index), context: context.clone() };
        (0..keys).map(key).collect()
    };
    let answer = |answer| Body::Compared {
        session: 1,
        at: At::Live,
        answer: Box::new(answer),
        promises: vec![],
    };
    let members = (1..=10_000).map(node).collect();
    let epoch =
        Epoch::founding(EpochId { generation: 1, number: 1 }, members, EpochSettings::default())
            .expect("distinct members");
    let bodies = [
        ("small deltas", write(EntryContent::Delta(bytes()), None)),
        ("small states", write(EntryContent::Full(bytes()), None)),
        ("small probes", write(EntryContent::Probe(context.clone()), None)),
        ("small guarded states", write(EntryContent::Full(bytes()), Some(guard))),
        ("failed stores", refused(&Nack::StoreFailed)),
        ("fenced entries", refused(&Nack::Fenced(term))),
        ("lacking entries", refused(&Nack::Lack(context.clone()))),
        ("keys", answer(QueryAnswer::Keys { held: held(100_000), upto: 9 })),
        ("empty leaves", answer(QueryAnswer::Leaves(vec![(7, vec![0; 256]); 16]))),
        (
            "a large group",
            Body::Fence { request: 1, group: Group::new("g"), term, held: held(20_000) },
        ),
        ("uses", Body::Used((0..1_000).map(|index| (named(index), 9)).collect())),
        ("a large configuration", Body::Epoch(EpochMessage::Install { epoch: epoch.into() })),
    ];
    let message = |body| ReplicatorMessage { epoch: None, body }.encode();
    bodies.into_iter().map(|(name, body)| (name.to_owned(), message(body))).collect()
}

fn management() -> Vec<Shape> {
    let shards = (0..SHARDS).map(|shard| (shard, 7)).collect();
    let region = RegionInfo { node: "a1b2c3d4-7".to_owned(), address: String::new(), shards };
    let shards =
        Shards { entity_type: "cart".to_owned(), regions: vec![region], ..Shards::default() };
    let seven = Packed::from(&ostraca::ddata::encoded::Encoded::from_bytes(&[7]));
    let content = Verbatim::of(&ValueContent::Elements(vec![seven; SHARDS as usize]));
    let data = Data { shape: "or-set".to_owned(), content };
    let keys = (0..1_000).map(|key| format!("key-{key}")).collect();
    vec![
        ("shards".to_owned(), named(&AdminResponse::Shards(shards))),
        ("elements".to_owned(), named(&AdminResponse::Value(Some(data)))),
        ("keys".to_owned(), named(&AdminResponse::Keys(keys))),
    ]
}

/// Of a field that occurs more than once, protobuf takes the last. The decoder copies each.
fn noise_payload() -> Vec<Shape> {
    const LONG: usize = 500_000;
    let field = |key: u8, content: &[u8]| {
        let mut field = vec![key];
        prost::encode_length_delimiter(content.len(), &mut field).expect("a Vec grows");
        field.extend_from_slice(content);
        field
    };
    let pair = Keypair::ed25519_from_bytes([7; 32]).expect("32 bytes");
    let identity = pair.public().encode_protobuf();
    let whole = |signature: &[u8]| [field(10, &identity), field(18, signature)].concat();
    let (long, longer) = (vec![7; LONG], vec![7; LONG + 1]);
    let long_key = [field(18, &long), field(18, &longer), identity.clone()].concat();
    let short = repeat_n(whole(&[7; 64]), 1_000).collect::<Vec<_>>();
    vec![
        ("a long signature".to_owned(), whole(&long)),
        ("two long signatures".to_owned(), [whole(&long), whole(&longer)].concat()),
        (
            "two long identities".to_owned(),
            [field(10, &long), field(10, &longer), whole(&[])].concat(),
        ),
        ("an identity with two long keys".to_owned(), field(10, &long_key)),
        ("many short fields".to_owned(), short.concat()),
    ]
}
