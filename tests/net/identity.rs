//! Tests of the identity across starts, and of its exclusive use by one process.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use libp2p::PeerId;
use ostraca::ddata::id::ReplicaId;
use ostraca::net::identity::{Identity, IdentityError, incarnation};
use ostraca::net::wire::IncarnationNonce;

use crate::nodes::fresh_dir;

#[test]
fn the_key_outlives_the_process_and_the_incarnation_does_not() {
    let dir = fresh_dir("the_key_outlives");
    let first = Identity::load(Some(&dir)).expect("a first start");
    let (was, lock) = (first.node_id(), first.lock());
    drop(first);
    let second = Identity::load(Some(&dir)).expect("a second start");
    assert_eq!(second.node_id().peer, was.peer);
    assert_ne!(second.node_id().incarnation, was.incarnation);
    assert_eq!(second.lock(), lock, "the same lock, as proof that the first is dead");
}

#[test]
fn incarnation_follows_from_peer_and_nonce() {
    let identity = Identity::load(None).expect("an identity");
    let (node, nonce) = (identity.node_id(), identity.incarnation_nonce());
    assert_eq!(incarnation(&node.peer, &nonce), node.incarnation);
    let IncarnationNonce(mut other) = nonce;
    other[15] ^= 1;
    assert_ne!(incarnation(&node.peer, &IncarnationNonce(other)), node.incarnation);
    assert_ne!(incarnation(&PeerId::random(), &nonce), node.incarnation);
    // All nodes must compute the same value.
    let peer = PeerId::from_bytes(&[0, 1, 9]).expect("an identity hash");
    let fixed = incarnation(&peer, &IncarnationNonce([7; 16]));
    assert_eq!(fixed, ReplicaId::new(0xe42a_dfa2_a199_00c4));
}

#[test]
fn only_the_owner_may_read_the_key() {
    let dir = fresh_dir("only_the_owner");
    let _identity = Identity::load(Some(&dir)).expect("a first start");
    let mode = |name: &str| fs::metadata(dir.join(name)).expect(name).mode() & 0o7777;
    assert_eq!(mode("identity.key"), 0o600);
    assert_eq!(mode("lock"), 0o600);
    assert_eq!(mode(""), 0o700);
    assert!(!dir.join("identity.key.new").exists());
}

#[test]
fn data_directory_admits_one_node_at_a_time() {
    let dir = fresh_dir("a_second_node");
    let first = Identity::load(Some(&dir)).expect("a first start");
    let error = Identity::load(Some(&dir)).expect_err("held");
    assert!(matches!(error, IdentityError::Held { .. }), "{error}");
    assert!(error.to_string().contains("stop the other"), "{error}");
    drop(first);
    Identity::load(Some(&dir)).expect("free again");
}

#[test]
fn readable_key_is_refused_with_the_fixing_command() {
    let dir = fresh_dir("others_can_read");
    drop(Identity::load(Some(&dir)).expect("a first start"));
    let key = dir.join("identity.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("chmod");
    let error = Identity::load(Some(&dir)).expect_err("exposed");
    assert!(matches!(error, IdentityError::Exposed { mode: 0o640, .. }), "{error}");
    assert!(error.to_string().contains("chmod 600"), "{error}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("chmod");
    Identity::load(Some(&dir)).expect("mended");
}

#[test]
fn data_directory_that_others_may_write_is_refused() {
    let dir = fresh_dir("others_may_write");
    drop(Identity::load(Some(&dir)).expect("a first start"));
    for (mode, refused) in [(0o777, true), (0o702, true), (0o1777, true), (0o770, false)] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).expect("chmod");
        match Identity::load(Some(&dir)) {
            Err(error) => {
                assert!(refused, "{mode:o}: {error}");
                assert!(error.to_string().contains(&format!("has mode {mode:o}")), "{error}");
            }
            Ok(_) => assert!(!refused, "{mode:o}"),
        }
    }
}

/// Only root can give files away; other users can only check that their own key is accepted.
#[test]
fn key_of_another_user_is_refused() {
    let dir = fresh_dir("another_user");
    drop(Identity::load(Some(&dir)).expect("a first start"));
    let key = dir.join("identity.key");
    let given_away = std::os::unix::fs::chown(&key, Some(12_345), None).is_ok();
    match Identity::load(Some(&dir)) {
        Err(IdentityError::Foreign { owner: 12_345, .. }) => assert!(given_away),
        other => assert!(other.is_ok() && !given_away, "{:?}", other.err()),
    }
}

#[test]
fn malformed_key_file_is_never_overwritten() {
    let dir = fresh_dir("no_key");
    drop(Identity::load(Some(&dir)).expect("a first start"));
    for content in [&b""[..], b"garbage", &[0xff; 5000]] {
        fs::write(dir.join("identity.key"), content).expect("written");
        let error = Identity::load(Some(&dir)).expect_err("malformed");
        assert!(matches!(error, IdentityError::Malformed { .. }), "{error}");
        assert_eq!(fs::read(dir.join("identity.key")).expect("still there"), content);
    }
}

#[test]
fn directory_in_place_of_the_key_is_reported() {
    let dir = fresh_dir("a_directory");
    fs::create_dir_all(dir.join("identity.key")).expect("made");
    fs::set_permissions(dir.join("identity.key"), fs::Permissions::from_mode(0o700))
        .expect("chmod");
    let error = Identity::load(Some(&dir)).expect_err("unreadable");
    assert!(matches!(error, IdentityError::Unreadable { .. }), "{error}");
}

#[test]
fn crash_while_writing_the_key_is_harmless() {
    let dir = fresh_dir("died_while_writing");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("identity.key.new"), b"hal").expect("written");
    fs::set_permissions(dir.join("identity.key.new"), fs::Permissions::from_mode(0o644))
        .expect("chmod");
    let identity = Identity::load(Some(&dir)).expect("a start");
    assert!(!dir.join("identity.key.new").exists());
    let mode = fs::metadata(dir.join("identity.key")).expect("the key").mode() & 0o7777;
    assert_eq!(mode, 0o600);
    let peer = identity.node_id().peer;
    drop(identity);
    assert_eq!(Identity::load(Some(&dir)).expect("again").node_id().peer, peer);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named_in_the_error() {
    let dir = fresh_dir("cannot_be_made");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("file"), b"").expect("written");
    let error = Identity::load(Some(&dir.join("file/data"))).expect_err("not a directory");
    assert!(matches!(error, IdentityError::Directory { .. }), "{error}");
    assert!(error.to_string().contains("file/data"), "{error}");
}

#[test]
fn ephemeral_identity_is_always_new_and_holds_no_lock() {
    let [one, two] =
        [Identity::load(None), Identity::load(None)].map(|id| id.expect("an identity"));
    assert_ne!(one.node_id().peer, two.node_id().peer);
    assert_ne!(one.node_id().incarnation, two.node_id().incarnation);
    assert_eq!(one.lock(), None);
    assert_eq!(one.boot(), two.boot(), "one host, one boot");
}
