//! Eligibility of each member to run the coordinator of a type. It is a pure function of membership
//! and the type's settings, so nodes with the same view that have started the type agree. Other
//! nodes never run its coordinator: they only consent to one. Reachability does not matter here.
//!
//! A member *hosts* a type if it announces it; a proxy, or a node whose settings differ, does not.
//! A member *stays* if it is Up and does not drain.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::Epoch;

use crate::cluster::events::ClusterState;
use crate::cluster::member::{Member, Status};
use crate::cluster::singleton::{Candidacy, SingletonMember};
use crate::sharding::config::ShardingConfig as Settings;
use crate::sharding::ids::EntityType;

/// Lists every member of the configuration, oldest first as it lists them, with its candidacy
/// (docs/protocol/sharding.md#coordinator-runs-where-the-type-is-hosted):
/// - `Never`: lacks the role of the type or of its coordinator.
/// - `Candidate`: hosts the type and stays. If no member with the roles does, every host that is Up
///   or Leaving is a candidate, draining ones included, so that the last nodes stop in order.
/// - `NotNow`: any other member, also one without membership data. So a draining node gives the
///   coordinator away at once while another host stays.
///
/// `settings` is `None` if the type is not started here: the required roles are then unknown, and
/// every member counts as having them, so that none is passed over.
pub(super) fn peers(
    state: &ClusterState,
    epoch: &Epoch,
    entity_type: &EntityType,
    settings: Option<&Settings>,
) -> Vec<SingletonMember> {
    let member = |id| state.members.get(&id).map(AsRef::as_ref);
    let is_of_role = |member: &Member| settings.is_none_or(|settings| has_roles(member, settings));
    let hosts = |member: &Member| is_of_role(member) && offers(member, entity_type);
    let stays = |member: &Member| hosts(member) && member.stays();
    let is_leaving_host =
        |member: &Member| hosts(member) && matches!(member.status, Status::Up | Status::Leaving);
    let some_stay = epoch.members().iter().any(|id| member(*id).is_some_and(stays));
    let candidacy_of = |member: &Member| match member {
        member if !is_of_role(member) => Candidacy::Never, // its consent is not needed
        member if stays(member) || (!some_stay && is_leaving_host(member)) => Candidacy::Candidate,
        _ => Candidacy::NotNow,
    };
    let peer =
        |id| SingletonMember { id, candidacy: member(id).map_or(Candidacy::NotNow, candidacy_of) };
    epoch.members().iter().copied().map(peer).collect()
}

/// Whether members of the configuration other than `me` host the type and stay, so that they could
/// take over its shards. They need the role of the type, but not the one of its coordinator.
/// Unreachable ones count; members without membership data do not.
pub(super) fn has_heirs(
    me: ReplicaId,
    state: &ClusterState,
    epoch: &Epoch,
    entity_type: &EntityType,
    settings: &Settings,
) -> bool {
    let is_heir = |member: &Member| {
        member.stays() && offers(member, entity_type) && member.has_role(settings.role.as_deref())
    };
    let mut others = epoch.members().iter().filter(|id| **id != me);
    others.any(|id| state.members.get(id).is_some_and(|member| is_heir(member)))
}

/// Whether a member hosts shards of the type, by its own announcement.
pub(super) fn offers(member: &Member, entity_type: &EntityType) -> bool {
    member.hosting.entity_types.contains(entity_type.as_str())
}

/// Whether a member has the role of the type and the one of its coordinator. A role that is not
/// set is held by every member.
fn has_roles(member: &Member, settings: &Settings) -> bool {
    member.has_role(settings.role.as_deref())
        && member.has_role(settings.coordinator_role.as_deref())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
    use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings};

    use super::*;
    use crate::cluster::member::{Address, HostedTypes};
    use Candidacy::{Candidate, Never, NotNow};
    use Status::{Exiting, Leaving, Up};

    struct Is {
        status: Status,
        hosts: bool,
        draining: bool,
        role: &'static str,
    }

    const GOOD: Is = Is { status: Up, hosts: true, draining: false, role: "backend" };

    /// Candidacies of `members` in a configuration that lists one more member, without membership
    /// data, which is always `NotNow`. `role` is the required role of the coordinator.
    fn candidacies<const N: usize>(members: [Is; N], role: Option<&str>) -> Vec<Candidacy> {
        let ids = 1..=N as u64;
        let member = |(number, is): (u64, Is)| {
            let id = ReplicaId::new(number);
            let node = NodeId { peer: PeerKey::new([number as u8; 32]), incarnation: id };
            let types = is.hosts.then_some("counter").into_iter().collect();
            let hosting = HostedTypes { revision: 1, draining: is.draining, entity_types: types };
            let address = Address::new("/ip4/10.0.0.1/tcp/1").expect("short");
            let joining = Member::joining(node, address, 0);
            let roles = [is.role].into_iter().collect();
            (id, Arc::new(Member { status: is.status, hosting, roles, ..joining }))
        };
        let members = ids.clone().zip(members).map(member).collect();
        let state = ClusterState { members, ..ClusterState::default() };
        let id = EpochId { generation: 1, number: 1 };
        // One more member, without membership data.
        let all = ids.chain([99]).map(ReplicaId::new).collect();
        let epoch = Epoch::founding(id, all, EpochSettings::default()).expect("distinct");
        let entity_type = EntityType::new("counter").expect("a name");
        let settings =
            Settings { coordinator_role: role.map(str::to_owned), ..Settings::default() };
        let peers = peers(&state, &epoch, &entity_type, Some(&settings));
        assert_eq!(peers.last().map(|peer| peer.candidacy), Some(NotNow));
        peers[..N].iter().map(|peer| peer.candidacy).collect()
    }

    #[test]
    fn staying_host_of_the_type_is_a_candidate() {
        let others = [
            GOOD,
            Is { hosts: false, ..GOOD },
            Is { draining: true, ..GOOD },
            Is { status: Leaving, ..GOOD },
            Is { status: Exiting, ..GOOD },
        ];
        assert_eq!(candidacies(others, None), [Candidate, NotNow, NotNow, NotNow, NotNow]);
    }

    #[test]
    fn member_without_role_is_never_a_candidate() {
        let members = [Is { role: "web", ..GOOD }, GOOD];
        assert_eq!(candidacies(members, Some("backend")), [Never, Candidate]);
    }

    #[test]
    fn leaving_hosts_are_candidates_if_all_leave() {
        let members = [
            Is { status: Exiting, ..GOOD },
            Is { status: Leaving, ..GOOD },
            Is { draining: true, ..GOOD },
            Is { hosts: false, ..GOOD },
        ];
        assert_eq!(candidacies(members, None), [NotNow, Candidate, Candidate, NotNow]);
    }
}
