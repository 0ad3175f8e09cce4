//! Whole nodes under random faults: safety at every step, and one view of the cluster after every
//! heal.
//!
//! Real are membership, the Replicator with its configurations, and the guard with the lease.
//! Simulated are the transport (handshakes over links that break) and entities (a node drains after
//! some time). At every step [`Watch`](super::super::whole::Watch) checks: no two configurations
//! with one number and no second foundation (so at most one side of a split continues); no member
//! is Up or removed without a configuration; and no node holds a lease once a configuration without
//! it is installed anywhere.
//!
//! After each heal a supervisor restarts the stopped nodes, and all must agree within two minutes:
//! the same members, Up in every view, the same configuration, convergence, one leader. Three cases
//! cannot end so, and are counted: no quorum of the newest configuration is alive (counted
//! separately if sides without a quorum have stopped themselves, which is the default); the
//! founders failed before the cluster began; or too few seeds are left, so that other nodes cannot
//! find the cluster.
//!
//! `OSTRACA_SIM_SECONDS=600 cargo test -p ostraca --test cluster chaos:: -- --nocapture`

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca::cluster::config::DowningStrategyName;
use ostraca::cluster::leader::leader;
use ostraca::cluster::membership::port::OperatorNotice;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{AcceptedProposal, Epoch};
use ostraca_ddata::sim::{Failure, NodeIndex, RandomStream, Seed, Totals, on_all_cores};

use super::super::whole::{WholeNode, World};
use super::weather::{Weather, living, world};
use super::{SECOND, Sim, agree, at, calm};

/// Time in which the nodes must agree after a heal.
const SETTLE: Duration = Duration::from_secs(120);
/// Time in which changes that were in progress at the heal are decided.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// Whether the cluster can continue: a quorum of the newest configuration is alive, and a quorum of
/// the newest one known to living nodes. The latter is older if all nodes that had installed the
/// next one have failed.
pub(super) fn can_go_on(sim: &Sim) -> bool {
    let places = living(sim);
    let views = || places.iter().map(|place| at(sim, *place));
    let living: BTreeSet<ReplicaId> = views().map(|node| node.me().incarnation).collect();
    let known = views().filter_map(WholeNode::epoch).max_by_key(|epoch| epoch.id());
    let newest = sim.observer().installed.values().next_back();
    [newest, known].into_iter().flatten().all(|epoch| lives(epoch, &living))
        && known.is_none_or(|epoch| next_ballot_can_succeed(sim, epoch, &living))
}

/// Whether the cluster could continue if no node had stopped itself.
fn has_ended_itself(sim: &Sim) -> bool {
    let mut there: BTreeSet<ReplicaId> =
        living(sim).iter().map(|place| at(sim, *place).me().incarnation).collect();
    there.extend(&sim.observer().ended);
    sim.observer().installed.values().next_back().is_some_and(|epoch| lives(epoch, &there))
}

fn lives(epoch: &Epoch, living: &BTreeSet<ReplicaId>) -> bool {
    epoch.is_quorum(living, ostraca_ddata::fault_injection::FaultInjection::none())
}

/// Whether the proposal that the next ballot of `known` adopts can succeed. From the first Accept
/// on, the proposal needs a living quorum, too, unless a quorum exists without the voters that
/// accepted it.
fn next_ballot_can_succeed(sim: &Sim, known: &Epoch, living: &BTreeSet<ReplicaId>) -> bool {
    let places = super::weather::living(sim);
    let voters = places.into_iter().map(|place| at(sim, place));
    let of_known = voters.filter(|node| node.epoch().is_some_and(|epoch| epoch.id() == known.id()));
    let accepted: Vec<_> =
        of_known.filter_map(|node| Some((node.me().incarnation, node.accepted()?))).collect();
    let Some((_, highest)) = accepted.iter().max_by_key(|(_, (ballot, _))| *ballot) else {
        return true;
    };
    let holds =
        |(id, (ballot, _)): &(ReplicaId, &AcceptedProposal)| (*ballot == highest.0).then_some(*id);
    let holders: BTreeSet<ReplicaId> = accepted.iter().filter_map(holds).collect();
    let others = living.difference(&holders).copied().collect();
    lives(&highest.1, living) || lives(known, &others)
}

/// Whether the seeds agreed on a cluster, but too few founders survived to begin it, so that no
/// other cluster may be founded. The seeds report that, if all of them have restarted.
fn founders_are_lost(sim: &Sim, weather: &Weather) -> bool {
    let places = living(sim);
    let nodes = || places.iter().map(|place| at(sim, *place));
    let living: BTreeSet<ReplicaId> = nodes().map(|node| node.me().incarnation).collect();
    let is_said = |node: &WholeNode| {
        node.notices.iter().any(|notice| matches!(notice, OperatorNotice::FoundersLost { .. }))
    };
    let accepted = nodes().filter_map(|node| node.memory.founding.as_ref()?.accepted.as_ref());
    let highest = accepted.max_by_key(|(ballot, _)| *ballot);
    let is_lost = highest.is_some_and(|(_, founded)| !lives(&founded.epoch, &living));
    let knows = nodes().any(is_said) || (0..weather.seeds).any(|seed| weather.left.contains(&seed));
    is_lost && knows && nodes().all(|node| node.membership.gossip().is_none())
}

/// Whether all living nodes are Up in every view, with one configuration and one leader.
fn is_one(sim: &Sim) -> bool {
    let living = living(sim);
    let views = || living.iter().map(|place| at(sim, *place));
    let epochs: BTreeSet<_> = views().map(|node| node.epoch().map(|epoch| epoch.id())).collect();
    let leads = views().map(|node| leader(node.membership.gossip()?, node.me().incarnation));
    let leaders: BTreeSet<_> = leads.collect();
    !living.is_empty() && epochs.len() == 1 && leaders.len() == 1 && agree(sim, &living)
}

/// Result of a phase without faults; its name is the mark.
type Ending = &'static str;
const AGREED: Ending = "agreed";
const QUORUM_LOST: Ending = "quorum lost";
const ENDED: Ending = "quorum ended itself";
const FOUNDERS_LOST: Ending = "founders lost";
const NO_SEED: Ending = "too few seeds";

/// Whether a node outside of the cluster can find it: a seed is running or will start, as a member
/// or as an invited node. Before the cluster exists, a majority of the seeds is needed to found it.
fn has_seeds(sim: &Sim, weather: &Weather) -> bool {
    let living = living(sim);
    let is_begun = !sim.observer().installed.is_empty()
        || living.iter().any(|place| at(sim, *place).membership.gossip().is_some());
    let needed = if is_begun { 1 } else { weather.seeds / 2 + 1 };
    let comes = |place: &usize| living.contains(place) || !weather.left.contains(place);
    (0..weather.seeds).filter(comes).count() >= needed
}

/// Runs until all nodes agree or agreement is impossible. Returns the result.
fn settle(sim: &mut Sim, weather: &Weather) -> Result<Ending, Box<Failure>> {
    weather.heal(sim);
    let begun = sim.now();
    loop {
        weather.supervise(sim);
        sim.try_run_for(SECOND / 2)?;
        let rest = (0..weather.places).filter(|place| !weather.left.contains(place));
        let stopped = |place: usize| {
            sim.process(NodeIndex::new(place)).is_none_or(|node| node.over.is_some())
        };
        if !rest.clone().any(stopped) && is_one(sim) {
            return Ok(AGREED);
        }
        let passed = sim.now() - begun;
        if passed > UNDER_WAY && !can_go_on(sim) {
            return Ok(if has_ended_itself(sim) { ENDED } else { QUORUM_LOST });
        }
        if passed > UNDER_WAY && founders_are_lost(sim, weather) {
            return Ok(FOUNDERS_LOST);
        }
        if passed > UNDER_WAY && !has_seeds(sim, weather) {
            return Ok(NO_SEED);
        }
        if passed > SETTLE {
            let stories: String = sim.processes().map(|(_, node)| node.story()).collect();
            let newest = sim.observer().installed.values().next_back();
            let newest = newest.map(|epoch| (epoch.id(), epoch.members()));
            let what =
                format!("no agreement {SETTLE:?} after the heal, newest {newest:?}\n{stories}");
            return Err(Box::new(sim.failure(what)));
        }
    }
}

/// Alternates between faults and phases without faults.
fn run(
    seed: Seed,
    sizes: (u64, u64),
    strategies: &[DowningStrategyName],
) -> Result<Totals, Box<Failure>> {
    let mut draw = RandomStream::split(seed.value, "membership size", 0);
    let places = draw.between(sizes.0, sizes.1) as usize;
    let (mut sim, mut weather) = world(seed, places, strategies);
    let is_judged = strategies == [DowningStrategyName::KeepMajority];
    let mut endings = Vec::new();
    for _ in 0..draw.between(1, 4) {
        let every = draw.span(SECOND / 5, 8 * SECOND);
        for _ in 0..draw.between(2, 10) {
            sim.try_run_for(draw.span(SECOND / 100, every))?;
            weather.strike(&mut sim);
        }
        sim.try_run_for(draw.span(SECOND / 100, 20 * SECOND))?;
        if !is_judged {
            weather.heal(&mut sim);
            sim.try_run_for(20 * SECOND)?;
            continue;
        }
        let ending = settle(&mut sim, &weather)?;
        endings.push(ending);
        if ending != AGREED {
            break;
        }
    }
    let mut totals = sim.totals();
    endings.into_iter().for_each(|ending| totals.marks.hit(ending));
    (0..sim.observer().takeovers).for_each(|_| totals.marks.hit("takeover"));
    Ok(totals)
}

#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn all(
    name: &'static str,
    seeds: u64,
    sizes: (u64, u64),
    strategies: &[DowningStrategyName],
) -> Totals {
    let totals = on_all_cores(name, seeds, |seed| {
        run(seed, sizes, strategies).unwrap_or_else(|failure| panic!("{failure}"))
    });
    let Totals { runs, simulated, sent, crashes, marks, .. } = &totals;
    eprintln!(
        "{runs} seeds, {:.1} h simulated, {sent} messages, {crashes} crashes, {} takeovers, {} \
         heals followed by agreement, {} clusters that lost their quorum, {} that ended it, {} \
         without their founders, {} with too few seeds",
        simulated.as_secs_f64() / 3_600.0,
        marks.count("takeover"),
        marks.count(AGREED),
        marks.count(QUORUM_LOST),
        marks.count(ENDED),
        marks.count(FOUNDERS_LOST),
        marks.count(NO_SEED),
    );
    totals
}

/// Number of heals followed by agreement, and of clusters without a quorum.
fn agreed_and_lost(totals: &Totals) -> (u64, u64) {
    let count = |mark| totals.marks.count(mark);
    (count(AGREED), count(QUORUM_LOST) + count(ENDED))
}

#[test]
fn nodes_agree_after_every_heal_and_one_side_continues() {
    let name = "nodes_agree_after_every_heal_and_one_side_continues";
    let totals = all(name, 60, (3, 9), &[DowningStrategyName::KeepMajority]);
    totals.must_have_hit([AGREED, "takeover"]);
    let (agreed, lost) = agreed_and_lost(&totals);
    assert!(totals.runs == 1 || agreed > lost, "{agreed} agreed, {lost} lost their quorum");
}

#[test]
fn larger_clusters_agree_after_every_heal() {
    let name = "larger_clusters_agree_after_every_heal";
    all(name, 4, (10, 20), &[DowningStrategyName::KeepMajority]).must_have_hit([AGREED]);
}

const STRATEGIES: [DowningStrategyName; 9] = [
    DowningStrategyName::StaticQuorum,
    DowningStrategyName::KeepMajority,
    DowningStrategyName::KeepOldest,
    DowningStrategyName::DownAll,
    DowningStrategyName::Oldest,
    DowningStrategyName::QuorumLeader,
    DowningStrategyName::MajorityLeader,
    DowningStrategyName::AutoDown,
    DowningStrategyName::Manual,
];

#[test]
fn clusters_of_up_to_100_nodes_agree_after_every_heal() {
    let name = "clusters_of_up_to_100_nodes_agree_after_every_heal";
    all(name, 2, (50, 100), &[DowningStrategyName::KeepMajority]).must_have_hit([AGREED]);
}

#[test]
fn at_most_one_side_continues_under_every_strategy() {
    let name = "at_most_one_side_continues_under_every_strategy";
    all(name, 30, (3, 7), &STRATEGIES).must_have_hit(["takeover"]);
}

// ── regressions ──

fn holds(seed: u64, sizes: (u64, u64), strategies: &[DowningStrategyName]) -> Totals {
    run(seed.into(), sizes, strategies).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Three of eight voters were dead, and their leases still ran; two others were leaving. The batch
/// continued without the dead voters, but only three of the six remaining voters were alive. It was
/// abandoned for a configuration with the same members, in which all leases counted anew.
#[test]
fn waiting_removals_do_not_block_the_cluster() {
    holds(18_052_381_971_424, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// A paused leader removed a joiner that a configuration, decided during the pause, contained.
#[test]
fn paused_leader_does_not_remove_newer_members() {
    holds(18_052_378_732_191, (3, 7), &STRATEGIES);
}

/// Five minutes at 5 % loss, with pauses slightly shorter than the acceptable pause.
fn accused(seed: Seed) -> Result<Totals, Box<Failure>> {
    let mut draw = RandomStream::split(seed.value, "calm size", 0);
    let places = *draw.pick(&[3, 5, 10, 30]);
    let world = World::new(3);
    let loss = world.loss.clone();
    let mut sim = calm(seed, places, places, world);
    let everybody: Vec<usize> = (0..places).collect();
    sim.try_run_until(30 * SECOND, |sim| agree(sim, &everybody))?;
    loss.set(0.05);
    for _ in 0..30 {
        let node = NodeIndex::new(draw.index(places));
        sim.pause(node, draw.span(SECOND / 100, SECOND * 299 / 100));
        sim.try_run_for(10 * SECOND)?;
    }
    let accused = |place: &usize| at(&sim, *place).membership.stats().accusations;
    match everybody.iter().map(accused).sum::<u64>() {
        0 => Ok(sim.totals()),
        count => Err(Box::new(sim.failure(format!("{count} false unreachables")))),
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn five_percent_loss_and_short_pauses_accuse_no_node() {
    let name = "five_percent_loss_and_short_pauses_accuse_no_node";
    let totals =
        on_all_cores(name, 12, |seed| accused(seed).unwrap_or_else(|failure| panic!("{failure}")));
    let hours = totals.simulated.as_secs_f64() / 3_600.0;
    eprintln!("{} seeds, {hours:.1} h simulated, 0 false unreachables", totals.runs);
}

/// The older of two members was Exiting and only waited for the configuration; the other one failed
/// before. Only an Up or Leaving node could act on its strategy's decision, so the dead member was
/// never removed.
#[test]
fn exiting_node_removes_a_dead_last_member() {
    holds(77_507_126_550_111, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// A seed admitted a joiner, proposed it and crashed before its gossip reached another node. The
/// others completed the configuration; it contained a member that no gossip state listed.
#[test]
fn member_with_a_dead_admitter_is_listed() {
    holds(137_671_003_558_429, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// Several nodes proposed to remove the same dead member and waited for its lease. The first to
/// continue was overtaken by one whose slower clock still showed a running lease. That one was
/// sealed, so it proposed the same members, in which the lease counted anew.
#[test]
fn proposer_waiting_for_a_lease_does_not_overtake() {
    holds(56_333_212_298_647, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// Two members accused each other, and the one without the quorum stopped. In the view of the other
/// one both were indirectly connected, so it waited for a change that could not come.
#[test]
fn mutual_accusation_keeps_the_side_with_the_quorum() {
    holds(13_954_711_207_784, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// The member that admitted a joiner considered the only other member Down, and left. That member
/// removed it and did not know the joiner, which in turn ignored that member.
#[test]
fn orphaned_newcomer_searches_again() {
    holds(94_721_512_669_171, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// A half of four members, with the tiebreaker, decided the next configuration and failed with the
/// news. The other half is no quorum of the configuration that it knows: it cannot continue, and
/// did not.
#[test]
fn half_without_the_tiebreaker_does_not_continue() {
    holds(68_182_727_702_234, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// An Exiting node admitted no newcomers, not even members of the configuration. It voted with a
/// newcomer that it ignored, the newcomer never learned that it was leaving, and each proposed to
/// remove another member, for ever.
#[test]
fn exiting_node_accepts_gossip_of_all_configured_members() {
    holds(23_373_502_397_473, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// Two of four members were dead. The other two waited for their leases. One of them was leaving
/// and had not evaluated both, so it continued without the lease of the one that it had evaluated:
/// three members would have been left, of which one was alive. The same members were decided
/// instead, and all leases counted anew.
#[test]
fn batch_without_a_living_quorum_is_not_started() {
    holds(122_054_726_459_027, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// The only other voter proposed a configuration with a joiner, which the older voter accepted. The
/// two others were no quorum of the installed configuration and stopped, and the third could never
/// continue without them. Now they wait.
#[test]
fn side_needed_by_an_accepted_configuration_waits() {
    let totals = holds(11_433_649_308_674, (3, 9), &[DowningStrategyName::KeepMajority]);
    let (agreed, lost) = agreed_and_lost(&totals);
    assert!(agreed > 0 && lost == 0, "{agreed} agreed, {lost} lost their quorum");
}

/// The only remaining member was no seed, and no member dialled the restarted seeds. These waited
/// for one of theirs that had been admitted, but never added to a configuration, by a member that
/// had left.
#[test]
fn restarted_seeds_are_invited_by_a_cluster_without_seeds() {
    let totals = holds(21_582_765_724_264, (3, 9), &[DowningStrategyName::KeepMajority]);
    assert_eq!(totals.marks.count(AGREED), 2);
}

/// The only seed was invited and admitted, and then not invited again, but the message was lost.
#[test]
fn admitted_node_without_welcome_asks_again() {
    let totals = holds(128_510_586_678_087, (3, 9), &[DowningStrategyName::KeepMajority]);
    assert_eq!(totals.marks.count(AGREED), 4);
    holds(128_509_787_291_428, (10, 20), &[DowningStrategyName::KeepMajority]);
}

/// Two of three founders crashed after all had accepted and before any had begun.
#[test]
fn founders_lost_before_the_start_are_reported() {
    let totals = holds(130_013_618_332_806, (3, 9), &[DowningStrategyName::KeepMajority]);
    assert_eq!(totals.marks.count(FOUNDERS_LOST), 1);
    // Here one has left, and no longer reports anything.
    let totals = holds(46_179_657_215_121, (3, 9), &[DowningStrategyName::KeepMajority]);
    assert_eq!(totals.marks.count(FOUNDERS_LOST), 1);
}

/// Two seeds founded with a third, which did not learn of it and was a quorum of the first
/// configuration. They stopped, and knew the cluster after their restart, but not its foundation.
#[test]
fn uninformed_founder_is_informed_by_the_others() {
    let totals = holds(132_947_234_273_895, (3, 9), &[DowningStrategyName::KeepMajority]);
    assert_eq!((totals.marks.count(AGREED), totals.marks.count(QUORUM_LOST)), (3, 0));
}

/// Three members were leaving, and the oldest of the configuration was dead. The first of the three
/// was not in the configuration, so it could not have a member removed, and the other two left that
/// to it.
#[test]
fn exiting_node_without_a_vote_does_not_lead() {
    holds(12_155_013_743_333, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// The younger of two voters was dead, and had accused the older one and a newcomer. The older one
/// reached the newcomer, but considered all three indirectly connected because of the records of
/// the dead one, and waited.
#[test]
fn records_of_a_dead_member_do_not_prevent_its_removal() {
    holds(35_124_436_196_329, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// Two of four seeds left before a cluster was founded.
#[test]
fn cluster_needs_a_majority_of_its_seeds_to_begin() {
    let totals = holds(32_358_504_202_852, (3, 9), &[DowningStrategyName::KeepMajority]);
    assert_eq!(totals.marks.count(NO_SEED), 1);
}

/// An Exiting node was removed while it was disconnected, and all other members that it knew were
/// gone: it only learned that a later incarnation of one of them refuses it.
#[test]
fn forgotten_exiting_node_stops() {
    holds(44_827_469_016_819, (3, 9), &[DowningStrategyName::KeepMajority]);
}

/// The quorum overruled `auto-down`, which selected one member more than could be removed: that
/// member stayed due, and was evaluated again at once, for ever.
#[test]
fn overruled_auto_down_is_evaluated_again_later() {
    holds(97_444_414_697_868, (3, 7), &STRATEGIES);
}

/// A crashed member had accused two others before. For a moment one of the remaining members led,
/// and ordered the removal of all three. When the two were reachable again, it continued to propose
/// that in vain, and each time all leases that the leader waited for counted anew.
#[test]
fn outdated_removal_is_withdrawn() {
    holds(119_499_790_938_988, (3, 9), &[DowningStrategyName::KeepMajority]);
}
