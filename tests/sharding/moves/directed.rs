//! Directed traces of moves that random walks find seldom or never. Each runs twice: with the rule
//! left out by a fault injection, which must violate an invariant, and with all rules, which must
//! end well.

use ostraca::sharding::bug::Bug;
use ostraca::sharding::coordinator::Phase;
use ostraca::sharding::region::Run;
use ostraca::sharding::wire::{ToCoordinator, ToRegion};

use super::limits::{Limits, Outside, Step};
use super::world::{Fact, World, region};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// A world that is led along one trace. After the first violation, further steps are ignored.
struct Led {
    world: World,
    seen: Option<String>,
}

impl Led {
    fn new(limits: Limits) -> Self {
        let mut led = Self { world: World::new(limits), seen: None };
        led.go(Step::Gossip(0, 2)); // now all three replicas hold the first decision
        led
    }

    fn go(&mut self, step: Step) {
        if self.seen.is_none() {
            self.seen = self.world.apply(step).err();
        }
    }

    fn all(&mut self, steps: impl IntoIterator<Item = Step>) {
        steps.into_iter().for_each(|step| self.go(step));
    }

    /// A move that a quorum acknowledges.
    fn moves(&mut self, seat: usize, to: usize) {
        self.all([Step::Move(seat, Some(to)), Step::WriteAt(seat, 0), Step::WriteAt(seat, 1)]);
    }

    /// A takeover by coordinator `seat` that reads these two replicas and writes to them.
    fn takes_over(&mut self, seat: usize, [one, other]: [usize; 2]) {
        self.all([Step::Start(seat), Step::FenceAt(seat, one), Step::FenceAt(seat, other)]);
        self.all([Step::BackAt(seat, one), Step::BackAt(seat, other)]);
        self.all([Step::WriteAt(seat, one), Step::WriteAt(seat, other)]);
    }

    /// Delivers the message of the newest decision that matches.
    fn comes(&mut self, matches: impl Fn(&Fact) -> bool) {
        if let Some(fact) = self.world.find(matches) {
            self.go(Step::Deliver(fact));
        }
    }

    fn host(&mut self, to: usize) {
        self.comes(|fact| matches!(fact, Fact::ToRegion(at, _, ToRegion::Host(_)) if *at == to));
    }

    fn release(&mut self, to: usize) {
        self.comes(|fact| matches!(fact, Fact::ToRegion(at, _, ToRegion::Release(_)) if *at == to));
    }

    fn released(&mut self, to: usize) {
        let matches =
            |fact: &Fact| matches!(fact, Fact::ToRegion(at, _, ToRegion::Released(_)) if *at == to);
        self.comes(matches);
    }

    fn hosted(&mut self, seat: usize) {
        let matches = |fact: &Fact| matches!(fact, Fact::ToCoordinator(at, _, ToCoordinator::Hosted(_)) if *at == seat);
        self.comes(matches);
    }

    /// A whole move, from the write to the confirmation.
    fn carried_out(&mut self, seat: usize, from: usize, to: usize) {
        self.moves(seat, to);
        self.host(to);
        self.release(from);
        self.go(Step::Drained(from));
        self.released(to);
        self.hosted(seat);
    }

    /// Delivers all messages and ends all drains until nothing changes.
    fn settles(&mut self) {
        loop {
            let before = self.world.digest();
            let drained = (0..self.world.places.len()).map(Step::Drained);
            let sent = self.world.steps().into_iter();
            let sent = sent.filter(|step| matches!(step, Step::Deliver(_)));
            self.all(sent.chain(drained).collect::<Vec<_>>());
            if self.world.digest() == before {
                return;
            }
        }
    }

    fn hosting(&self) -> Vec<usize> {
        let up = (0..self.world.places.len()).filter(|place| self.world.places[*place].up);
        up.filter(|place| matches!(self.world.run(*place), Run::Hosting(_))).collect()
    }

    #[track_caller]
    fn saw_two_hosts(&self) {
        let seen = self.seen.as_deref().unwrap_or("nothing");
        assert!(seen.starts_with("two hosts"), "{seen}");
    }

    #[track_caller]
    fn ends_with(&self, host: usize) {
        assert_eq!((self.seen.as_deref(), self.hosting()), (None, vec![host]));
    }
}

/// Two decisions of two terms, each on a single replica. Neither coordinator has read the other's
/// decision, so neither decision lists the other's home as a predecessor. The trace needs about 25
/// steps and four coordinators; three are not enough.
fn unseen_decisions_of_two_terms(limits: Limits) -> Led {
    let mut led = Led::new(limits);
    led.all([Step::Move(0, Some(B)), Step::WriteAt(0, 0)]);
    led.takes_over(1, [1, 2]);
    led.all([Step::Move(1, Some(C)), Step::WriteAt(1, 1)]);
    led.takes_over(2, [0, 2]);
    led.host(B);
    led.release(A);
    led.go(Step::Drained(A));
    led.released(B);
    led.takes_over(3, [1, 2]);
    led.host(C);
    led.release(A);
    led.released(C);
    led
}

#[test]
fn takeover_rewrites_all_homes_before_it_sends_orders() {
    let limits = Limits::of(4, 4, 0);
    unseen_decisions_of_two_terms(limits.with(Bug::NoRewrite)).saw_two_hosts();
    let mut led = unseen_decisions_of_two_terms(limits);
    led.settles();
    led.ends_with(A);
}

/// A takeover reads a decision that only one replica holds, and its region starts. The next
/// coordinator must read that decision too. The trace has 19 steps and three coordinators.
fn a_value_seen_on_one_replica_only(limits: Limits) -> Led {
    let mut led = Led::new(limits);
    led.all([Step::Move(0, Some(B)), Step::WriteAt(0, 0)]);
    led.takes_over(1, [0, 1]);
    led.host(B);
    led.release(A);
    led.go(Step::Drained(A));
    led.released(B);
    led.takes_over(2, [1, 2]);
    led.all([Step::Move(2, Some(C)), Step::WriteAt(2, 1), Step::WriteAt(2, 2)]);
    led.host(C);
    led.release(A);
    led.released(C);
    led
}

#[test]
fn decision_read_by_a_takeover_is_never_lost() {
    let limits = Limits::of(3, 3, 0);
    let weak = limits.with(Bug::NoRewrite).without(Outside::NoRecoveryWrite);
    a_value_seen_on_one_replica_only(weak).saw_two_hosts();
    let mut led = a_value_seen_on_one_replica_only(limits);
    led.settles();
    led.ends_with(C);
}

/// A move is cancelled and the old home crashes. An early version of the adoption rule gave two
/// hosts in 26 steps here; none of 100,000 random walks found that.
fn a_move_is_cancelled_and_the_old_home_dies(limits: Limits) -> Led {
    let mut led = Led::new(limits);
    led.moves(0, B);
    led.host(B);
    led.moves(0, A);
    led.host(A);
    led.hosted(0);
    led.moves(0, C);
    led.host(C);
    led.all([Step::Crash(A), Step::Remove(A)]);
    led
}

#[test]
fn adoption_waits_for_predecessors_like_a_start() {
    let limits = Limits::of(1, 3, 1);
    let weak = limits.with(Bug::AdoptUnguarded).hosts_only();
    a_move_is_cancelled_and_the_old_home_dies(weak).saw_two_hosts();
    let mut led = a_move_is_cancelled_and_the_old_home_dies(limits);
    led.settles();
    led.ends_with(C);
}

fn there_back_and_there_again(limits: Limits) -> Led {
    let mut led = Led::new(limits);
    led.carried_out(0, A, B);
    let first = led.world.find(|fact| matches!(fact, Fact::ToRegion(B, _, ToRegion::Released(_))));
    led.carried_out(0, B, A);
    led.moves(0, B);
    led.host(B);
    first.into_iter().for_each(|fact| led.go(Step::Deliver(fact)));
    led
}

#[test]
fn released_of_an_earlier_tenure_does_not_count() {
    let limits = Limits::of(1, 3, 0);
    there_back_and_there_again(limits.with(Bug::AnyReleased)).saw_two_hosts();
    let mut led = there_back_and_there_again(limits);
    assert_eq!(led.hosting(), [A]);
    led.settles();
    led.ends_with(B);
}

fn a_region_moves_on_before_a_node_knows_its_home(limits: Limits) -> Led {
    let mut led = Led::new(Limits { lag: true, ..limits });
    led.all([Step::InstallAtCoordinator(0), Step::InstallAtRegion(A), Step::InstallAtRegion(C)]);
    led.carried_out(0, A, C);
    led.moves(0, B);
    led.host(B);
    led
}

#[test]
fn absence_from_an_older_configuration_is_no_removal() {
    let limits = Limits::of(1, 2, 0);
    let weak = limits.with(Bug::AbsentIsRemoved);
    a_region_moves_on_before_a_node_knows_its_home(weak).saw_two_hosts();
    let mut led = a_region_moves_on_before_a_node_knows_its_home(limits);
    assert_eq!(led.hosting(), [C]);
    led.go(Step::InstallAtRegion(B));
    led.settles();
    led.ends_with(B);
}

// ── Late, lost and repeated messages ──

fn a_late_release_of_a_cancelled_move(limits: Limits) -> Led {
    let mut led = Led::new(limits);
    led.moves(0, B);
    let late = led.world.find(|fact| matches!(fact, Fact::ToRegion(A, _, ToRegion::Release(_))));
    led.moves(0, A);
    led.host(A);
    led.release(B);
    led.released(A);
    late.into_iter().for_each(|fact| led.go(Step::Deliver(fact)));
    led.settles();
    led
}

#[test]
fn a_late_release_stops_nothing() {
    let limits = Limits::of(1, 2, 0);
    let weak = a_late_release_of_a_cancelled_move(limits.with(Bug::LateReleaseStops));
    assert_eq!((weak.seen.as_deref(), weak.hosting()), (None, vec![]));
    a_late_release_of_a_cancelled_move(limits).ends_with(A);
}

#[test]
fn a_region_that_never_hosted_answers_a_release() {
    let limits = Limits::of(1, 2, 0);
    let deaf = |fact: &Fact| matches!(fact, Fact::ToRegion(B, _, ToRegion::Host(_)));
    for (limits, hosts) in [(limits.with(Bug::IdleIgnoresRelease), vec![]), (limits, vec![C])] {
        let mut led = Led::new(limits);
        led.moves(0, B);
        led.world.lose(deaf);
        led.moves(0, C);
        led.settles();
        assert_eq!((led.seen.as_deref(), led.hosting()), (None, hosts));
    }
}

#[test]
fn a_repeated_release_is_answered_again() {
    let limits = Limits::of(1, 1, 0);
    for (limits, hosts) in [(limits.with(Bug::RepeatUnanswered), vec![]), (limits, vec![B])] {
        let mut led = Led::new(limits);
        led.moves(0, B);
        led.release(A);
        led.go(Step::Drained(A));
        led.world.lose(|fact| matches!(fact, Fact::ToRegion(B, _, ToRegion::Released(_))));
        led.settles();
        assert_eq!((led.seen.as_deref(), led.hosting()), (None, hosts));
    }
}

#[test]
fn every_possible_host_is_told_to_release() {
    let limits = Limits::of(1, 2, 0);
    for (limits, hosts) in [(limits.with(Bug::ReleaseLastHomeOnly), A), (limits, C)] {
        let mut led = Led::new(limits);
        led.moves(0, B);
        led.world.lose(|fact| matches!(fact, Fact::ToRegion(A, _, ToRegion::Release(_))));
        led.moves(0, C);
        led.settles();
        led.ends_with(hosts);
    }
}

#[test]
fn two_moves_in_quick_succession_end_at_the_last_home() {
    let mut led = Led::new(Limits::of(1, 2, 0));
    led.moves(0, B);
    led.moves(0, C);
    led.settles();
    led.ends_with(C);
}

#[test]
fn a_frozen_former_coordinator_that_wakes_is_refused_and_silent() {
    let mut led = Led::new(Limits::of(2, 3, 0));
    led.all([Step::Move(0, Some(B)), Step::WriteAt(0, 0)]);
    led.takes_over(1, [1, 2]);
    led.all([Step::Move(1, Some(C)), Step::WriteAt(1, 1), Step::WriteAt(1, 2)]);
    led.go(Step::WriteAt(0, 2));
    assert_eq!(led.world.seats[0].machine.phase(), Phase::Down);
    led.settles();
    led.ends_with(C);
}

// ── Payloads ──

/// The old home A sends its payload to the third region C and crashes. B takes A's tenure for over
/// because A was removed, and starts without a payload. From then on, C holds an outdated payload.
fn the_old_home_dies_after_its_word(limits: Limits) -> Led {
    let mut led = Led::new(limits);
    led.moves(0, B);
    led.host(B);
    led.moves(0, C);
    led.host(C);
    led.release(A);
    led.go(Step::Drained(A));
    led.released(C);
    led.all([Step::Crash(A), Step::Remove(A)]);
    assert!(led.seen.is_some() || led.hosting() == [B]);
    led.all([Step::Crash(B), Step::Remove(B)]);
    led
}

#[test]
fn removed_region_does_not_vouch_for_later_hosts() {
    let limits = Limits::of(1, 2, 2);
    let weak = the_old_home_dies_after_its_word(limits.with(Bug::RemovedVouches));
    let seen = weak.seen.as_deref().unwrap_or("nothing");
    assert_eq!(seen, "2 takes the payload of tenure 1 after tenure 2");
    let mut led = the_old_home_dies_after_its_word(limits);
    led.settles();
    led.ends_with(C);
}

// ── Leaving regions ──

impl Led {
    /// The node at `place` leaves. The only message to it is the coordinator's answer, `MayLeave`.
    fn leaves(&mut self, place: usize) {
        self.go(Step::Leave(place));
        self.says(place, |word| *word == ToCoordinator::Leaving);
        self.comes(
            |fact| matches!(fact, Fact::ToRegion(at, _, ToRegion::MayLeave(_)) if *at == place),
        );
    }

    /// Delivers the message of the region at `place` to a coordinator that matches.
    fn says(&mut self, place: usize, matches: impl Fn(&ToCoordinator) -> bool) {
        let me = region(place).replica();
        self.comes(|fact| match fact {
            Fact::ToCoordinator(_, from, word) => *from == me && matches(word),
            Fact::ToRegion(..) => false,
        });
    }

    fn has_left(&self, place: usize) -> bool {
        self.world.places[place].has_left()
    }
}

/// B was named as the next home but never hosted, and then home `None` was decided. B is leaving.
/// The coordinator waits for no region, but a later home of the shard must still hear from B.
fn named_in_vain_for_a_shard_that_is_stopped(limits: Limits) -> Led {
    let mut led = Led::new(Limits { leaves: 1, nowhere: true, ..limits });
    led.moves(0, B);
    led.release(A);
    led.go(Step::Drained(A));
    led.all([Step::Move(0, None), Step::WriteAt(0, 0), Step::WriteAt(0, 1)]);
    for place in [A, B] {
        led.release(place);
        led.says(place, |word| matches!(word, ToCoordinator::Drained(_)));
    }
    led.leaves(B);
    led
}

#[test]
fn leaver_named_for_a_stopped_shard_waits_for_its_next_home() {
    let limits = Limits::of(1, 3, 0);
    let mut weak = named_in_vain_for_a_shard_that_is_stopped(limits.with(Bug::LeavesUnconfirmed));
    assert!(weak.has_left(B));
    weak.go(Step::Remove(B));
    weak.moves(0, C);
    weak.settles();
    assert_eq!(weak.seen.as_deref(), Some("2 starts without the payload of tenure 1 at 0"));

    let mut led = named_in_vain_for_a_shard_that_is_stopped(limits);
    assert!(!led.has_left(B), "a later home could take the payload that A keeps");
    led.settles(); // B asks for a home
    led.all([Step::Place(0, C), Step::WriteAt(0, 0), Step::WriteAt(0, 1)]);
    led.settles();
    led.ends_with(C);
    assert!(led.has_left(B));
}

/// The next home C hosts the shard and tells the coordinator, but crashes before it has told the
/// leaving region A. The coordinator must tell A instead.
#[test]
fn coordinator_reports_hosted_to_leaver_for_a_dead_next_home() {
    let mut led = Led::new(Limits { leaves: 1, ..Limits::of(1, 1, 1) });
    led.moves(0, C);
    led.release(A);
    led.go(Step::Leave(A));
    led.go(Step::Drained(A));
    led.host(C);
    led.released(C);
    led.hosted(0);
    assert_eq!(led.hosting(), [C]);
    led.world.lose(|fact| matches!(fact, Fact::ToRegion(A, _, ToRegion::Hosted(_))));
    led.all([Step::Crash(C), Step::Remove(C)]);
    led.all([Step::Place(0, B), Step::WriteAt(0, 0), Step::WriteAt(0, 1)]);
    led.settles();
    led.ends_with(B);
    assert!(led.has_left(A), "A still keeps a payload that C has taken");
}
