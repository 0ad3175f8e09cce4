//! Expiry of unused keys: the choice of the one member that decides over a key.
//!
//! Rule "One owner expires a key" (docs/protocol/replication.md#one-owner-expires-a-key). The owner
//! of a key, chosen by rendezvous hashing over the members, *deletes* what it has seen of an unused
//! key. The other members only report how long ago they used it. So ages are compared on one clock
//! only, and a concurrent use survives.
//!
//! Rendezvous hashing: Thaler, Ravishankar, *Using Name-Based Mappings to Increase Hit Rates*
//! (1998).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::id::ReplicaId;
use crate::key::KeyName;

/// The member that decides when a key expires: the same at all members with the same list, whatever
/// its order. A member that leaves moves only the keys that it owned. `None` without members.
pub(super) fn owner(key: &KeyName, members: &[ReplicaId]) -> Option<ReplicaId> {
    let weight = |id: &ReplicaId| (xxh3_64_with_seed(key.as_str().as_bytes(), id.get()), *id);
    members.iter().copied().max_by_key(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaving_member_moves_only_its_own_keys() {
        let members: Vec<ReplicaId> = (1..=5).map(ReplicaId::new).collect();
        let keys: Vec<KeyName> = (0..500).map(|n| KeyName::new(&format!("k{n}"))).collect();
        let mut owned = [0; 5];
        for key in &keys {
            let before = owner(key, &members).unwrap();
            owned[usize::try_from(before.get()).unwrap() - 1] += 1;
            let after = owner(key, &members[..4]).unwrap();
            assert!(before == after || before == members[4]);
        }
        assert!(owned.iter().all(|count| (60..140).contains(count)), "uneven: {owned:?}");
    }
}
