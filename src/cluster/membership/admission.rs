//! Admission of nodes: how a member answers a search, a join, and gossip of an unknown node
//! (docs/protocol/membership.md).

use std::sync::Arc;

use ostraca_ddata::clock::Now;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::NodeId;

use super::port::OperatorNotice;
use super::recovery::reached;
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::gossip::{ClusterId, Gossip, JoinRefused, Joined};
use crate::cluster::member::{Member, Status};
use crate::cluster::wire::{ClusterMessage, ComparedSettings, InitAnswer};

/// Tells a searching node whether it may ask this member to be let in: always sends one answer, and
/// changes nothing. `remembered` is the cluster in the data directory of the searching node: if it
/// is another one, the answer is `Member` of this cluster, with a notice, whatever the settings.
/// Otherwise, in this order: `Incompatible` (the notice about settings comes with any answer);
/// `Waits` (without a data directory) or `Remembers` if this node itself waits for a configuration;
/// `Member`, also if this node is Exiting or the cluster is full, because [`join`] refuses then.
pub(super) fn answer(
    core: &mut MembershipCore,
    now: Now,
    gossip: &Gossip,
    from: NodeId,
    settings: &ComparedSettings,
    remembered: Option<ClusterId>,
    out: &mut MembershipOutbox,
) {
    let what = match remembered {
        Some(theirs) if theirs != gossip.cluster() => {
            let ours = gossip.cluster();
            core.say(now, OperatorNotice::ForeignCluster { node: from, ours, theirs }, out);
            InitAnswer::Member(ours) // it compares the id, and joins no cluster with another one
        }
        _ if differs(core, now, from, settings, out) => InitAnswer::Incompatible,
        _ if waits_itself(core, gossip) && core.directory.is_none() => {
            InitAnswer::Waits(gossip.cluster())
        }
        // From its data directory this node may resume the cluster, so none may be founded instead.
        _ if waits_itself(core, gossip) => InitAnswer::Remembers(gossip.cluster()),
        _ => InitAnswer::Member(gossip.cluster()),
    };
    core.answer(from, what, out);
}

/// Whether this node is let in but in no configuration yet: Joining or WeaklyUp in `gossip`;
/// `false` if it leaves or is not listed. Such a node lets nobody in: if the members that let it in
/// are gone, it and its newcomers would be a group that no configuration will ever have
/// (docs/protocol/membership.md#waiting-members-admit-nobody).
fn waits_itself(core: &MembershipCore, gossip: &Gossip) -> bool {
    let own = gossip.member(core.me.incarnation);
    own.is_some_and(|own| matches!(own.status, Status::Joining | Status::WeaklyUp))
}

/// Whether settings that must agree differ. Also reports by a notice which ones differ: those that
/// must agree, or else those that should; no notice if none differ.
fn differs(
    core: &mut MembershipCore,
    now: Now,
    from: NodeId,
    settings: &ComparedSettings,
    out: &mut MembershipOutbox,
) -> bool {
    let (must, should) = core.differing(settings);
    let is_refused = !must.is_empty();
    let which = if is_refused { must } else { should };
    if !which.is_empty() {
        core.say(now, OperatorNotice::SettingsDiffer { node: from, which }, out);
    }
    is_refused
}

/// Whether a join or an adoption has changed the gossip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GossipChange {
    Unchanged,
    /// A node is new in it, or an earlier incarnation of the joining peer is now Down.
    Changed,
}

/// Lets a joining node in and sends it the new state, or answers with the reason of the refusal. A
/// node that is a member already is welcomed again, without a change, unless a check before
/// [`Gossip::admit_member`] refuses it. In the order of the checks:
/// - A description of another node than the sender is dropped without an answer, as nonsense.
/// - Refused with the hint to ask another member: while this node is Exiting or Down, was removed,
///   or waits for a configuration.
/// - Refused for good, with a notice: settings that must agree differ.
/// - Refused by `admit_member`, with a notice: for good, except for another incarnation of the peer
///   and the preparation for a shutdown. If that other incarnation is unreachable, it is marked
///   Down here, so that a later attempt succeeds.
///
/// The status, age and stamp that the node sent are replaced; its hosting is taken over.
pub(super) fn join(
    core: &mut MembershipCore,
    now: Now,
    gossip: &mut Gossip,
    (from, member, settings): (NodeId, Member, &ComparedSettings),
    out: &mut MembershipOutbox,
) -> GossipChange {
    let me = core.me.incarnation;
    if member.node != from {
        core.stats.nonsense += 1;
        return GossipChange::Unchanged;
    }
    // A node without an entry of its own was removed.
    if gossip.member(me).is_none_or(|own| own.status.is_going()) {
        let why = "the node that was asked is leaving; ask another one".to_owned();
        return refuse(core, from, why, true, out);
    }
    if waits_itself(core, gossip) {
        let why = "the node that was asked is in no configuration yet; ask another one".to_owned();
        return refuse(core, from, why, true, out);
    }
    if differs(core, now, from, settings, out) {
        let why = "settings that must agree differ; make them equal".to_owned();
        return refuse(core, from, why, false, out);
    }
    // The stamp orders this join and the removals known here. `admit_member` sets the status.
    let joiner = Member { since: gossip.next_stamp(), ..member };
    match gossip.admit_member(me, joiner) {
        Ok(joined) => {
            let welcome = ClusterMessage::Welcome { gossip: Arc::new(gossip.clone()) };
            core.send(from, welcome, out);
            if joined == Joined::Known {
                return GossipChange::Unchanged;
            }
            core.stats.let_in += 1;
            GossipChange::Changed
        }
        Err(why) => {
            // These obstacles disappear by themselves.
            let retry =
                matches!(why, JoinRefused::OtherIncarnation(_) | JoinRefused::PreparingForShutdown);
            refuse(core, from, why.to_string(), retry, out);
            let notice =
                OperatorNotice::JoinRefused { node: from, why: why.to_string(), passes: retry };
            core.say(now, notice, out);
            let JoinRefused::OtherIncarnation(old) = why else { return GossipChange::Unchanged };
            // An incarnation that answers is not displaced: perhaps two processes run with one key.
            let is_gone = gossip.unreachable_to(me).contains(&old);
            let is_downed = is_gone && gossip.move_to(me, old, Status::Down).unwrap_or(false);
            if is_downed { GossipChange::Changed } else { GossipChange::Unchanged }
        }
    }
}

/// Lets in a node that another member has let in before
/// (docs/protocol/membership.md#adoption-of-unknown-newcomers). The other member may have been
/// removed before its news of the node arrived here, and the node does not ask to join again,
/// because it was let in. The node must be Joining, WeaklyUp, Leaving or Exiting in `theirs`, which
/// does not count while this member waits for a configuration or is Exiting or Down; or it must be
/// listed in the installed configuration, whatever the status of both.
///
/// While this member reaches no quorum of its configuration, it also lets in a node that is Up:
/// that node may be in a newer configuration, which this member takes from let-in nodes only
/// (docs/protocol/configurations.md#sender-rule), and may be the only one that can tell of it.
/// `admit_member` refuses a node that was removed here, and one whose counters jump.
pub(super) fn adopt(
    core: &mut MembershipCore,
    gossip: &mut Gossip,
    from: NodeId,
    theirs: &Gossip,
) -> GossipChange {
    let me = core.me.incarnation;
    let Some(member) = theirs.member(from.incarnation) else { return GossipChange::Unchanged };
    let is_over = matches!(member.status, Status::Down | Status::Removed);
    let is_leaving = gossip.member(me).is_none_or(|own| own.status.is_going());
    // Other than in `waits_itself`, a leaving node counts as well.
    let waits = !is_over && member.status != Status::Up;
    // Two waiting nodes would take each other for a cluster.
    let lets_in = waits && !is_leaving && !waits_itself(core, gossip);
    let installed = core.installed.as_ref();
    // A node of the installed configuration votes whatever its status, also if this member leaves.
    let is_listed = installed.is_some_and(|epoch| epoch.is_member(from.incarnation));
    let is_cut_off = installed.is_some_and(|epoch| {
        epoch.is_member(me)
            && !epoch.is_quorum(&reached(core, epoch, gossip), FaultInjection::none())
    });
    if member.node != from || !(lets_in || is_listed || is_cut_off && !is_over) {
        return GossipChange::Unchanged;
    }
    match gossip.admit_member(me, Member::clone(member)) {
        Ok(Joined::Added) => {
            core.stats.let_in += 1;
            GossipChange::Changed
        }
        Ok(Joined::Known) | Err(_) => GossipChange::Unchanged,
    }
}

/// Sends a refusal and counts it; always `Unchanged`. `retry` only tells the node that the obstacle
/// may pass.
fn refuse(
    core: &mut MembershipCore,
    to: NodeId,
    why: String,
    retry: bool,
    out: &mut MembershipOutbox,
) -> GossipChange {
    core.stats.join_refused += 1;
    core.send(to, ClusterMessage::JoinRefused { why, retry }, out);
    GossipChange::Unchanged
}
