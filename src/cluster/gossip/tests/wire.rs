//! Encoding of gossip: golden bytes, compatibility with adjacent releases, and malformed input.

use std::fmt::Write as _;

use ostraca_ddata::sim::seeds;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::super::delta::{BASES_MAX, GossipDelta};
use super::super::exchange::{GossipDigest, GossipSeen, GossipStatus};
use super::super::wire::{COUNTER_MAX, GOSSIP_BYTES_MAX, GossipDecodeError, decode, encode};
use super::super::{MEMBERS_MAX, TOMBSTONES_MAX};
use super::history::any_state;
use super::*;
use crate::cluster::member::HostedTypes;
use crate::cluster::name_set::NameSet;
use crate::cluster::wire::{ClusterMessage, ComparedSettings, FoundingBallot};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String succeeds");
        text
    })
}

/// A state that uses every field.
fn full() -> Gossip {
    let mut gossip = state("A Bl Cj; seen A C; A>B C>>B; role r A");
    let member = Arc::make_mut(gossip.content.members.get_mut(&id('A')).unwrap());
    member.app_version = "1.2".into();
    member.hosting =
        HostedTypes { revision: 3, draining: true, entity_types: ["t"].into_iter().collect() };
    gossip.content.tombstones.insert(ReplicaId::new(300), 9);
    gossip.content.forgotten = 8;
    gossip.content.preparing_for_shutdown = true;
    gossip.content.version.dots.insert(id('A'), 5);
    gossip
}

/// The encoded key of the node with this number.
fn key(number: u8) -> String {
    format!("dc0020{}", hex(&[number; 32]))
}

#[test]
fn state_has_golden_bytes() {
    let address = |n: u8| format!("b5{}", hex(format!("/dns4/n{n:05}/tcp/7000").as_bytes()));
    let golden = [
        "88a163ccc1",                                               // cluster 0xC1
        "a16d93",                                                   // 3 members:
        &format!("88a16e82a170{}a16901a161{}", key(1), address(1)), // A, its address,
        "a173a175a17291a172a17501a176a3312e32a16201",               // Up, roles, age 1, 1.2, since,
        "a16883a16e03a164c3a17491a174",                             // hosting
        &format!("86a16e82a170{}a16902a161{}", key(2), address(2)), // B
        "a173a16ca17502a16202a16881a16e00",                         // Leaving, age 2
        &format!("85a16e82a170{}a16903a161{}", key(3), address(3)), // C
        "a173a16aa16203a16881a16e00",                               // Joining, no age
        "a17292",                                                   // 2 rows:
        "83a16f01a16e01a1759102",                                   // A reports B unreachable
        "83a16f03a16e01a1749102",                                   // C reports B terminated
        "a1749192cd012c09a16608a170c3", // tombstone, forgotten, preparing
        "a176919201 05a173920103",      // version, seen
    ];
    let golden = golden.concat().replace(' ', "");
    assert_eq!(hex(&encode(&full())), golden);
}

#[test]
fn status_and_seen_set_have_golden_bytes() {
    let version = VClock { dots: BTreeMap::from([(id('A'), 5)]) };
    let status = GossipStatus { cluster: CLUSTER, version, content: 7, seen: 8 };
    assert_eq!(hex(&encode(&status)), "84a163ccc1a17691920105a16407a17308");
    let nodes = BTreeSet::from([id('A'), id('B')]);
    let seen = GossipSeen { cluster: CLUSTER, content: 7, nodes };
    assert_eq!(hex(&encode(&seen)), "83a163ccc1a16407a16e920102");
    assert_eq!(decode::<GossipStatus>(&encode(&status)).unwrap(), status);
    assert_eq!(decode::<GossipSeen>(&encode(&seen)).unwrap(), seen);
}

#[test]
fn digest_and_delta_have_golden_bytes() {
    let digest = GossipDigest { cluster: CLUSTER, content: 7, seen: Some(8) };
    assert_eq!(hex(&encode(&digest)), "83a163ccc1a16407a17308");
    assert_eq!(decode::<GossipDigest>(&encode(&digest)).unwrap(), digest);
    let unasked = GossipDigest { seen: None, ..digest };
    assert_eq!(hex(&encode(&unasked)), "82a163ccc1a16407");
    assert_eq!(decode::<GossipDigest>(&encode(&unasked)).unwrap(), unasked);

    let base = state("A B C; seen A");
    let mut changed = base.clone();
    assert!(changed.accuse(id('A'), id('C'), ReachabilityStatus::Unreachable));
    let delta = changed.delta(&base, vec![7]).unwrap();
    let delta = GossipDelta { content: 8, ..delta };
    let golden = [
        "86a163ccc1a1629107a16408",     // cluster, bases, digest
        "a1729183a16f01a16e01a1759103", // A reports C unreachable
        "a17691920101a1739101",         // A's first change; seen by A
    ];
    assert_eq!(hex(&encode(&delta)), golden.concat());
    assert_eq!(decode::<GossipDelta>(&encode(&delta)).unwrap(), delta);
}

#[test]
fn invalid_delta_is_refused() {
    let base = state("A B C D; seen A");
    let mut changed = base.clone();
    assert!(changed.remove(id('A'), &[id('C')]));
    let sound = changed.delta(&base, vec![7]).unwrap();
    let refused = |change: fn(&mut GossipDelta)| {
        let mut delta = sound.clone();
        change(&mut delta);
        decode::<GossipDelta>(&encode(&delta)).is_err()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|delta| delta.bases = vec![7; BASES_MAX + 1]));
    assert!(refused(|delta| {
        delta.members.insert(id('C'), Arc::new(joiner(3, 3)));
    }));
    assert!(refused(|delta| {
        delta.version.dots.insert(id('A'), COUNTER_MAX + 1);
    }));
}

/// Different releases agree on equal states only if their digests agree.
#[test]
fn state_has_golden_digests() {
    let status = full().status();
    assert_eq!(
        (status.content, status.seen),
        (8_752_972_393_850_217_602, 9_705_551_295_886_742_107)
    );
}

#[test]
fn any_state_survives_encoding() {
    for seed in seeds("any_state_survives_encoding", 1_000) {
        let gossip = any_state(&mut SmallRng::seed_from_u64(seed.value));
        let back: Gossip = decode(&encode(&gossip)).unwrap();
        assert_eq!(back, gossip);
        assert_eq!(back.digest(), gossip.digest());
    }
}

/// A state of the next release: every structure has an additional field.
#[derive(Serialize)]
struct Tomorrow {
    c: u64,
    m: Vec<TomorrowMember>,
    v: Vec<(u64, u64)>,
    s: Vec<u64>,
    new: BTreeMap<&'static str, Vec<u8>>,
}

#[derive(Serialize)]
struct TomorrowMember {
    new: (u8, &'static str),
    n: NodeId,
    a: &'static str,
    s: &'static str,
    b: u64,
    h: BTreeMap<&'static str, u64>,
}

#[test]
fn additional_and_missing_fields_decode() {
    let member = TomorrowMember {
        new: (1, "x"),
        n: node(1),
        a: "/dns4/a/tcp/1",
        s: "u",
        b: 4,
        h: BTreeMap::from([("n", 2), ("new", 3)]),
    };
    let new = BTreeMap::from([("deep", vec![1, 2, 3])]);
    let tomorrow = Tomorrow { c: 0xC1, m: vec![member], v: vec![(1, 1)], s: vec![1], new };
    let bytes = rmp_serde::to_vec_named(&tomorrow).unwrap();
    let gossip: Gossip = decode(&bytes).unwrap();
    let member = gossip.member(id('A')).unwrap();
    assert_eq!((member.status, member.since, member.hosting.revision), (Status::Up, 4, 2));
    assert_eq!((gossip.forgotten(), gossip.tombstones().len()), (0, 0), "omitted fields are empty");
}

/// A state of this release, as the previous release decodes it: without later fields.
#[derive(Deserialize)]
struct Yesterday {
    c: u64,
    s: Vec<u64>,
}

#[test]
fn previous_release_decodes_known_fields() {
    let Yesterday { c, s } = rmp_serde::from_slice(&encode(&full())).unwrap();
    assert_eq!((c, s), (0xC1, vec![1, 3]));
}

type Spoil = fn(&mut Gossip);

const FAR: u64 = COUNTER_MAX + 1;

#[test]
fn malformed_state_is_refused() {
    let spoils: [(&str, Spoil); 9] = [
        ("seen by a stranger", |g| assert!(g.seen.insert(id('Z')))),
        ("versions of a stranger", |g| count(g, 'Z', 1)),
        ("a version of 0", |g| count(g, 'B', 0)),
        ("a version from the far future", |g| count(g, 'A', FAR)),
        ("accused by a stranger", |g| accuse(g, 'Z', 'A')),
        ("a stranger accused", |g| accuse(g, 'A', 'Z')),
        ("a member's tombstone", |g| bury(g, 'A', 9)),
        ("a forgotten tombstone", |g| bury(g, 'Z', 8)),
        ("a stamp from the far future", |g| g.content.forgotten = FAR),
    ];
    for (name, spoil) in spoils {
        refused(name, spoil);
    }
    assert!(decode::<Gossip>(&encode(&full())).is_ok());
}

/// Members that no node may send, each with the reason.
fn malformed_members() -> [(&'static str, Member); 8] {
    let many = |count: u64| (0..count).map(|n| n.to_string()).collect::<NameSet>();
    [
        ("since the far future", Member { since: FAR, ..first() }),
        ("an age from the far future", Member { up_number: Some(FAR), ..first() }),
        ("removed", Member { status: Status::Removed, ..first() }),
        ("a role without a name", Member { roles: [""].into_iter().collect(), ..first() }),
        ("too many roles", Member { roles: many(65), ..first() }),
        ("an endless app version", Member { app_version: "1".repeat(129), ..first() }),
        (
            "too many entity types",
            hosting(HostedTypes { entity_types: many(1_025), ..first().hosting }),
        ),
        (
            "a revision from the far future",
            hosting(HostedTypes { revision: FAR, ..first().hosting }),
        ),
    ]
}

#[test]
fn malformed_member_is_refused() {
    for (name, member) in malformed_members() {
        refused(name, |gossip| {
            gossip.content.members.insert(id('A'), Arc::new(member.clone()));
        });
    }
}

/// Messages with a member that is in no gossip state.
fn messages_with(member: &Member) -> [ClusterMessage; 3] {
    let member = || Box::new(member.clone());
    let settings = ComparedSettings::default;
    let ballot = FoundingBallot { number: 1, proposer: id('B') };
    [
        ClusterMessage::InitJoin {
            member: member(),
            settings: settings(),
            seeds: BTreeSet::new(),
            cluster: None,
        },
        ClusterMessage::Join { member: member(), settings: settings() },
        ClusterMessage::FoundingPromise { ballot, member: member(), accepted: None },
    ]
}

#[test]
fn malformed_member_of_any_message_is_refused() {
    for (name, member) in malformed_members() {
        for message in messages_with(&member) {
            let decoded = decode::<ClusterMessage>(&encode(&message));
            assert!(matches!(decoded, Err(GossipDecodeError::Malformed { .. })), "{name}");
        }
    }
    for message in messages_with(&first()) {
        assert_eq!(decode::<ClusterMessage>(&encode(&message)).unwrap(), message);
    }
}

fn refused(name: &str, spoil: impl Fn(&mut Gossip)) {
    let mut gossip = full();
    spoil(&mut gossip);
    let decoded = decode::<Gossip>(&encode(&gossip));
    assert!(matches!(decoded, Err(GossipDecodeError::Malformed { .. })), "{name}");
}

fn first() -> Member {
    Member::clone(full().member(id('A')).expect("A is a member"))
}

fn hosting(hosting: HostedTypes) -> Member {
    Member { hosting, ..first() }
}

fn count(gossip: &mut Gossip, name: char, counter: u64) {
    gossip.content.version.dots.insert(id(name), counter);
}

fn accuse(gossip: &mut Gossip, observer: char, subject: char) {
    gossip.content.reachability.accuse(id(observer), id(subject), ReachabilityStatus::Unreachable);
}

fn bury(gossip: &mut Gossip, name: char, stamp: u64) {
    gossip.content.tombstones.insert(id(name), stamp);
}

#[test]
fn duplicate_entries_and_self_accusation_are_refused() {
    #[derive(Serialize)]
    struct Loose {
        c: u64,
        m: Vec<Arc<Member>>,
        r: Vec<Row>,
        v: Vec<(u64, u64)>,
        s: Vec<u64>,
    }
    #[derive(Clone, Serialize)]
    struct Row {
        o: u64,
        n: u64,
        u: Vec<u64>,
        t: Vec<u64>,
    }
    let members: Vec<_> = full().members().cloned().collect();
    let row = |o, n, u: &[u64], t: &[u64]| Row { o, n, u: u.into(), t: t.into() };
    let loose = |twice: &[usize], r: Vec<Row>, v: &[(u64, u64)]| {
        let again = twice.iter().map(|at| Arc::clone(&members[*at]));
        let m = members.iter().cloned().chain(again).collect();
        let bytes = rmp_serde::to_vec_named(&Loose { c: 1, m, r, v: v.into(), s: vec![1, 1] });
        decode::<Gossip>(&bytes.unwrap()).map_err(|error| {
            std::error::Error::source(&error).map_or_else(String::new, ToString::to_string)
        })
    };
    assert!(loose(&[], vec![row(1, 1, &[2], &[3])], &[(1, 1)]).is_ok());
    let table = [
        ("listed twice", loose(&[0], vec![], &[])),
        ("listed twice", loose(&[], vec![row(1, 1, &[2], &[]); 2], &[])),
        ("listed twice", loose(&[], vec![row(1, 1, &[2], &[2])], &[])),
        ("listed twice", loose(&[], vec![], &[(1, 1), (1, 2)])),
        ("accuses itself", loose(&[], vec![row(1, 1, &[1], &[])], &[])),
        ("out of range", loose(&[], vec![row(1, COUNTER_MAX + 1, &[2], &[])], &[])),
    ];
    for (expected, decoded) in table {
        let reason = decoded.expect_err(expected);
        assert!(reason.contains(expected), "{reason}, not {expected}");
    }
    assert!(loose(&[], vec![row(1, 0, &[2], &[])], &[]).is_err(), "a row that never changed");
}

#[test]
fn arbitrary_gossip_bytes_never_panic() {
    let whole = encode(&full());
    let (mut refused, mut taken) = (0, 0);
    for seed in seeds("arbitrary_gossip_bytes_never_panic", 20_000) {
        let rng = &mut SmallRng::seed_from_u64(seed.value);
        let mut bytes = whole.clone();
        match seed.value % 3 {
            0 => bytes = (0..rng.random_range(0..200)).map(|_| rng.random()).collect(),
            1 => bytes.truncate(rng.random_range(0..whole.len())),
            _ => {
                for _ in 0..rng.random_range(1..4) {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = rng.random();
                }
            }
        }
        match decode::<Gossip>(&bytes) {
            Ok(gossip) => {
                taken += 1;
                let mut ours = Gossip { seen: BTreeSet::new(), ..full() };
                let _ = ours.receive(id('A'), id('B'), &gossip);
                assert_eq!(decode::<Gossip>(&encode(&ours)).unwrap(), ours);
            }
            Err(_) => refused += 1,
        }
        let _ = decode::<GossipStatus>(&bytes);
        let _ = decode::<GossipSeen>(&bytes);
    }
    assert!(refused + taken < 100 || taken > 100, "hardly anything decoded: {taken} of {refused}");
}

#[test]
fn huge_lists_and_deep_nesting_are_refused() {
    // A list that claims 4,294,967,295 members but contains none.
    let mut endless = encode(&BTreeMap::from([("c", 1)]));
    endless[0] = 0x82;
    endless.extend([0xa1, b'm', 0xdd, 0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(decode::<Gossip>(&endless), Err(GossipDecodeError::Malformed { .. })));
    let bottomless = [&[0x81, 0xa1, b'x'][..], &[0x91; 100_000]].concat();
    assert!(matches!(decode::<Gossip>(&bottomless), Err(GossipDecodeError::Malformed { .. })));
    let len = GOSSIP_BYTES_MAX + 1;
    let long = decode::<Gossip>(&vec![0; len]);
    assert!(matches!(long, Err(GossipDecodeError::TooLong { len: found }) if found == len));
}

#[test]
fn state_with_the_maximum_of_members_fits_the_limit() {
    let mut gossip = state("");
    let up = |n| Member { status: Status::Up, up_number: Some(n), ..joiner(n, n) };
    let random = |n: u64| (n + 1) << 40; // incarnations of maximum encoded length
    let member = |n: u64| {
        let mut member = Member { roles: ["backend"].into_iter().collect(), ..up(n) };
        member.node = NodeId { peer: PeerKey::new([255; 32]), incarnation: random(n).into() };
        member.hosting.entity_types = (0..3).map(|n| format!("entity-type-{n}")).collect();
        Arc::new(member)
    };
    gossip.content.members =
        (0..MEMBERS_MAX as u64).map(|n| (random(n).into(), member(n))).collect();
    gossip.content.tombstones =
        (0..TOMBSTONES_MAX as u64).map(|n| (ReplicaId::new(n + 1), n + 1)).collect();
    gossip.content.version.dots = gossip.content.members.keys().map(|id| (*id, 1_000)).collect();
    gossip.seen = gossip.content.members.keys().copied().collect();
    let bytes = encode(&gossip);
    assert!(bytes.len() <= GOSSIP_BYTES_MAX, "{} bytes", bytes.len());
    assert_eq!(decode::<Gossip>(&bytes).unwrap(), gossip);

    gossip.content.members.insert(ReplicaId::new(5), Arc::new(up(5)));
    gossip.content.tombstones.clear();
    assert!(matches!(decode::<Gossip>(&encode(&gossip)), Err(GossipDecodeError::Malformed { .. })));
}
