//! Configurations as values: successors, forced generations, and the checks of decoded data.

use super::*;

/// Encodes `epoch`, replaces the ids of one field, and decodes the result.
fn tampered(epoch: &Epoch, field: &str, value: Vec<u64>) -> Result<Epoch, String> {
    with_field(epoch, field, Any::Ids(value))
}

/// Encodes `epoch` with this record of a forced beginning, and decodes the result.
fn forced_so(epoch: &Epoch, number: u64, kept: Vec<u64>) -> Result<Epoch, String> {
    let fields = [("n", Any::Number(number)), ("k", Any::Ids(kept))];
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    with_field(epoch, "o", Any::Struct(fields.into()))
}

fn with_field(epoch: &Epoch, field: &str, value: Any) -> Result<Epoch, String> {
    let bytes = rmp_serde::to_vec_named(epoch).unwrap();
    let mut fields: std::collections::BTreeMap<String, Any> =
        rmp_serde::from_slice(&bytes).unwrap();
    fields.insert(field.to_owned(), value);
    let bytes = rmp_serde::to_vec_named(&fields).unwrap();
    rmp_serde::from_slice(&bytes).map_err(|error| error.to_string())
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum Any {
    Number(u64),
    Ids(Vec<u64>),
    Struct(std::collections::BTreeMap<String, Any>),
    Bool(bool),
    Nothing(Option<()>),
}

#[test]
fn configuration_survives_encoding() {
    let epoch = after(&first([1, 2, 3]), &MembershipChange { leave: ids([1]), ..join([9]) });
    let bytes = rmp_serde::to_vec_named(&epoch).unwrap();
    assert_eq!(rmp_serde::from_slice::<Epoch>(&bytes).unwrap(), *epoch);
    assert!(bytes.len() < 160, "{} bytes", bytes.len());
}

#[test]
fn only_forced_configuration_encodes_forced_record() {
    let base = first([1, 2, 3]);
    let forced = base.forced(id(2), &ids([3]).into_iter().collect(), 5).unwrap();
    let fields = |epoch: &Epoch| {
        let bytes = rmp_serde::to_vec_named(epoch).unwrap();
        assert_eq!(rmp_serde::from_slice::<Epoch>(&bytes).unwrap(), *epoch);
        rmp_serde::from_slice::<std::collections::BTreeMap<String, Any>>(&bytes).unwrap()
    };
    assert!(
        !fields(&base).contains_key("o"),
        "an unforced configuration encodes as in earlier releases"
    );
    assert!(fields(&forced).contains_key("o"));
    assert_eq!(base.forced(id(9), &ids([1]).into_iter().collect(), 5), Err(NotForced::NoMember));
}

/// Both clocks show 0, so that only the numbers differ.
#[test]
fn successors_of_forced_configuration_keep_forced_record() {
    let base = first([1, 2, 3, 4]);
    let force = |by, kept: [u64; 1]| {
        Arc::new(base.forced(id(by), &ids(kept).into_iter().collect(), 0).unwrap())
    };
    let [one, other] = [force(1, [3]), force(2, [3])];
    assert_eq!(one.id().generation, other.id().generation);
    assert_eq!(
        [one.origin(), other.origin(), base.origin()],
        [Some(one.id()), Some(other.id()), None]
    );
    assert!(one.id().number.abs_diff(other.id().number) > 0 && one.id().number > 10_000);
    let next = after(&after(&one, &join([9])), &leave([3]));
    assert_eq!((next.origin(), next.kept()), (Some(one.id()), &ids([1, 3])[..]));
    assert!(
        one.is_forced_after(&base) && one.is_forced_after(&other) && next.is_forced_after(&base)
    );
    assert!(!next.is_forced_after(&one) && !base.is_forced_after(&base));
    // A proposal with another record of how the generation began is refused.
    let theirs = forced_so(&after(&one, &join([9])), 1, vec![1, 3]).unwrap();
    assert_eq!(one.admits(&theirs), Err(ProposalMismatch::Forced));
    for (number, kept, says) in [
        (one.id().number + 1, vec![1], "can have reached"),
        (1, vec![1, 1], "listed twice"),
        (1, (0..10_001).collect(), "at most 10000"),
    ] {
        let error = forced_so(&one, number, kept).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

/// Such an id is reached only if a founder or a peer chose it on purpose.
#[test]
fn force_fails_without_higher_generation_or_number() {
    let kept: std::collections::BTreeSet<_> = ids([3]).into_iter().collect();
    let at = |generation, number| {
        let first = EpochId { generation, number };
        Epoch::founding(first, ids([1, 2, 3]), EpochSettings::default()).unwrap()
    };
    let highest = u64::MAX / 2;
    for base in [at(highest, 1), at(1, highest), at(1, highest - 10_000)] {
        assert_eq!(base.forced(id(2), &kept, 9_000), Err(NotForced::NoNumber), "{}", base.id());
    }
    let forced = at(highest - 1, 1).forced(id(2), &kept, 9_000).unwrap();
    assert_eq!((forced.id().generation, forced.members()), (highest, &ids([2, 3])[..]));
}

#[test]
fn only_sole_member_is_succeeded() {
    let lease = LeaseSettings { drift_ppm: 7, ..LeaseSettings::default() };
    let base = after(&first([1, 2]), &leave([2]));
    let next = base.succeeded(id(9), lease.clone(), 5_000).unwrap();
    assert_eq!(
        (next.members(), next.voters(), next.tiebreaker()),
        (&ids([9])[..], &ids([9])[..], id(9))
    );
    assert_eq!(next.left(), &ids([2, 1])[..], "neither may return");
    assert!(next.id().generation == 5_000 && next.id() > base.id());
    assert!(next.is_forced_after(&base) && next.lease() == &lease);
    // The clock went back. Another successor at the same time is another configuration.
    let third = next.succeeded(id(10), lease.clone(), 3).unwrap();
    assert_eq!(third.id().generation, 5_001);
    assert_ne!(next.succeeded(id(11), lease.clone(), 3).unwrap().id(), third.id());
    let two = first([1, 2]).succeeded(id(9), lease.clone(), 5);
    assert_eq!(two, Err(NotForced::NotAlone { members: 2 }));
    for returned in [9, 1] {
        assert_eq!(next.succeeded(id(returned), lease.clone(), 5), Err(NotForced::NoMember));
    }
    let bytes = rmp_serde::to_vec_named(&next).unwrap();
    assert_eq!(rmp_serde::from_slice::<Epoch>(&bytes).unwrap(), next);
}

#[test]
fn malformed_configuration_does_not_decode() {
    let epoch = after(&first([1, 2, 3]), &leave([3]));
    assert!(tampered(&epoch, "m", vec![1, 2]).is_ok());
    for (field, value, says) in [
        ("m", vec![], "without members"),
        ("m", vec![1, 2, 2], "listed twice"),
        ("m", vec![1, 2, 3], "never returns"),
        ("m", (0..10_001).collect(), "at most 10000"),
        ("v", vec![], "order of their age"),
        ("v", vec![2, 1], "order of their age"),
        ("v", vec![1, 7], "order of their age"),
        ("v", vec![2], "not the oldest voter"),
        ("v", vec![1, 1], "listed twice"),
        ("g", vec![3, 3], "listed twice"),
        ("g", (100..17_000).collect(), "at most 16384"),
        ("r", (100..17_000).collect(), "at most 16384"),
    ] {
        let error = tampered(&epoch, field, value.clone()).unwrap_err();
        assert!(error.contains(says), "{field} {value:?}: {error}");
    }
}

#[test]
fn joiners_are_youngest_and_oldest_voter_breaks_ties() {
    let epoch = after(&first([5, 3, 4]), &MembershipChange { leave: ids([5]), ..join([1, 2]) });
    assert_eq!(epoch.members(), ids([3, 4, 1, 2]));
    assert_eq!((epoch.voters(), epoch.tiebreaker()), (epoch.members(), id(3)));
    assert_eq!(epoch.left(), ids([5]));
    assert_eq!(epoch.id(), EpochId { generation: 1, number: 2 });
}

#[test]
fn nine_oldest_vote_above_voter_limit() {
    let members: Vec<_> = (1..=100).map(id).collect();
    let hundred = Epoch::founding(EpochId::default(), members, EpochSettings::default()).unwrap();
    assert_eq!(hundred.voters().len(), 100);
    let more = hundred.next(&join([101])).unwrap();
    assert_eq!((more.members().len(), more.voters().to_vec()), (101, (1..=9).map(id).collect()));
    assert_eq!(more.next(&leave([4])).unwrap().voters().len(), 100);
}

#[test]
fn repeated_changes_have_no_effect() {
    let epoch = after(&first([1, 2, 7, 8]), &leave([7, 8]));
    let next = epoch
        .next(&MembershipChange { join: ids([2, 2]), leave: ids([7]), lost: ids([8]) })
        .unwrap();
    assert_eq!(next.members(), epoch.members());
    assert_eq!(next.left(), epoch.left());
}

#[test]
fn removed_non_member_is_barred() {
    let epoch = first([1, 2, 3]);
    let change = MembershipChange { join: ids([6, 9]), leave: ids([7, 3, 7]), lost: ids([9]) };
    let next = after(&epoch, &change);
    assert_eq!((next.members(), next.left()), (&ids([1, 2, 6])[..], &ids([3, 7, 9])[..]));
    assert_eq!(epoch.admits(&next), Ok(()));
    assert_eq!(next.next(&join([9])), Err(ChangeError::Returned(id(9))));
}

#[test]
fn impossible_changes_are_refused_with_reason() {
    let epoch = after(&first([1, 2]), &leave([2]));
    assert_eq!(epoch.next(&join([2])), Err(ChangeError::Returned(id(2))));
    assert_eq!(epoch.next(&lost([1])), Err(ChangeError::NobodyLeft));
    let many =
        MembershipChange { join: (10..20_000).map(id).collect(), ..MembershipChange::default() };
    assert_eq!(epoch.next(&many), Err(ChangeError::TooMany { len: 19_991 }));
}

#[test]
fn list_of_departed_is_bounded_by_count() {
    let mut epoch = Epoch::clone(&first([1]));
    for round in 0..9 {
        let many: Vec<_> = (0..2_000).map(|n| id(10 + round * 2_000 + n)).collect();
        epoch = epoch
            .next(&MembershipChange { join: many.clone(), ..MembershipChange::default() })
            .unwrap();
        epoch =
            epoch.next(&MembershipChange { leave: many, ..MembershipChange::default() }).unwrap();
    }
    assert_eq!(epoch.left().len(), LEFT_MAX);
    assert_eq!(epoch.left().last(), Some(&id(18_009)));
    assert_eq!(
        epoch.left()[0],
        id(18_010 - LEFT_MAX as u64),
        "the earliest departure is dropped first"
    );
}

#[test]
fn only_well_formed_successor_is_admitted() {
    let base = after(&first([1, 2, 3]), &leave([3]));
    assert_eq!(base.admits(&after(&base, &join([4]))), Ok(()));
    let skipped = after(&after(&base, &join([4])), &join([5]));
    assert_eq!(base.admits(&skipped), Err(ProposalMismatch::Id(skipped.id())));
    assert_eq!(base.admits(&base), Err(ProposalMismatch::Id(base.id())));
    let founded = |members: Vec<ReplicaId>| {
        Epoch::founding(base.id().next(), members, EpochSettings::default()).unwrap()
    };
    assert_eq!(base.admits(&founded(ids([1, 2, 3]))), Err(ProposalMismatch::Returned(id(3))));
    assert_eq!(base.admits(&founded(ids([2, 1]))), Err(ProposalMismatch::Order));
    assert_eq!(base.admits(&founded(ids([4, 1, 2]))), Err(ProposalMismatch::Order));
    assert_eq!(base.admits(&founded(ids([1, 2]))), Err(ProposalMismatch::Left));
}

#[test]
fn departed_then_removed_then_barred_order_is_required() {
    let base = after(&first([1, 2, 3]), &leave([3]));
    for (left, expected) in [
        (vec![3, 2], Ok(())),
        (vec![3, 2, 8, 7], Ok(())),
        (vec![3, 8, 2], Err(ProposalMismatch::Left)),
        (vec![2, 3], Err(ProposalMismatch::Left)),
        (vec![3, 8], Err(ProposalMismatch::Left)),
        (vec![2, 8], Err(ProposalMismatch::Left)),
    ] {
        let next = tampered(&after(&base, &leave([2])), "g", left.clone()).unwrap();
        assert_eq!(base.admits(&next), expected, "{left:?}");
    }
}

#[test]
fn epochs_order_by_generation_and_ballots_by_number() {
    let epoch = |generation, number| EpochId { generation, number };
    assert!(epoch(2, 1) > epoch(1, 9) && epoch(1, 9) > epoch(1, 8));
    assert!(ballot(2, 1) > ballot(1, 9) && ballot(1, 9) > ballot(1, 8));
}
