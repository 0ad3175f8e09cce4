//! Singleton machines on a network under the control of the test.

use std::collections::VecDeque;

use super::Standing::{Candidate, Never, NotNow};
use super::*;

const RETRY: Duration = Duration::from_secs(1);

const fn id(id: u64) -> ReplicaId {
    ReplicaId::new(id)
}

/// Nodes that share one view unless a test sets another.
struct World {
    nodes: BTreeMap<u64, Singleton>,
    now: Now,
    net: VecDeque<(u64, u64, SingletonMessage)>,
    /// Events in order: (node, started).
    history: Vec<(u64, bool)>,
    /// Nodes that were told to stop and have not stopped yet.
    stopping: Vec<u64>,
}

impl World {
    fn new(view: &[(u64, Standing)]) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            now: Now::default(),
            net: VecDeque::new(),
            history: Vec::new(),
            stopping: Vec::new(),
        };
        for (node, _) in view {
            world.join(*node);
        }
        world.all_see(view);
        world
    }

    fn join(&mut self, node: u64) {
        self.nodes.insert(node, Singleton::new(id(node), RETRY, Canary::none()));
        self.tell(node, SingletonInput::LeaseHeld);
    }

    fn tell(&mut self, node: u64, input: SingletonInput) {
        let mut out = Outbox::new();
        let Some(machine) = self.nodes.get_mut(&node) else { return };
        machine.handle(self.now, input, &mut out);
        for output in out.drain() {
            match output {
                SingletonOutput::Send { to, message } => {
                    self.net.push_back((node, to.get(), message));
                }
                SingletonOutput::Start => {
                    self.history.push((node, true));
                }
                SingletonOutput::Stop => self.stopping.push(node),
            }
        }
        let running = self.nodes.values().filter(|one| one.running() != Running::No);
        let running = running.filter(|one| one.running() != Running::Finished).count();
        assert!(running <= 1, "two at once: {:?}", self.history);
    }

    fn sees(&mut self, node: u64, view: &[(u64, Standing)]) {
        let peers = view.iter().map(|(of, standing)| Peer { id: id(*of), standing: *standing });
        self.tell(node, SingletonInput::Members(peers.collect()));
    }

    fn all_see(&mut self, view: &[(u64, Standing)]) {
        for (node, _) in view {
            self.sees(*node, view);
        }
    }

    /// Delivers all messages, including those that follow. Instances stop only in [`World::stops`].
    fn flow(&mut self) {
        while let Some((from, to, message)) = self.net.pop_front() {
            self.tell(to, SingletonInput::Message { from: id(from), message });
        }
    }

    fn stops(&mut self, node: u64) {
        let at = self.stopping.iter().position(|stopping| *stopping == node);
        self.stopping.remove(at.expect("a stop was ordered"));
        self.history.push((node, false));
        self.tell(node, SingletonInput::Stopped);
    }

    fn crash(&mut self, node: u64) {
        self.nodes.remove(&node);
        self.stopping.retain(|stopping| *stopping != node);
    }

    fn seconds(&mut self, seconds: u64) {
        self.now.mono = self.now.mono + Duration::from_secs(seconds);
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.tell(node, SingletonInput::Tick);
        }
    }

    fn running(&self) -> Vec<u64> {
        let yes = |(_, one): &(&u64, &Singleton)| one.running() == Running::Yes;
        self.nodes.iter().filter(yes).map(|(node, _)| *node).collect()
    }
}

const THREE: [(u64, Standing); 3] = [(1, Candidate), (2, Candidate), (3, Candidate)];

#[test]
fn it_starts_on_the_oldest_candidate() {
    let world = World::new(&THREE);
    assert_eq!((world.running(), world.history), (vec![1], vec![(1, true)]));
}

#[test]
fn members_of_another_role_are_neither_started_nor_asked() {
    let mut world = World::new(&[(1, Never), (2, Candidate), (3, Candidate)]);
    assert_eq!(world.running(), [2], "without a message");
    assert_eq!(world.nodes[&2].stats().asked, 0);
    world.flow();
    assert_eq!(world.running(), [2]);
}

#[test]
fn an_older_member_of_whom_nothing_is_known_is_asked_first() {
    let mut world = World::new(&[(1, NotNow), (2, Candidate)]);
    assert!(world.running().is_empty());
    world.flow();
    assert_eq!(world.running(), [2]);
}

#[test]
fn nothing_starts_without_a_lease_and_a_lost_lease_stops_it() {
    let mut world = World::new(&THREE);
    world.tell(1, SingletonInput::LeaseOver);
    assert_eq!(world.nodes[&1].running(), Running::Stopping);
    world.stops(1);
    assert!(world.running().is_empty());
    world.tell(1, SingletonInput::LeaseHeld);
    assert_eq!(world.running(), [1]);
}

#[test]
fn the_oldest_that_leaves_hands_over_and_the_next_starts_when_it_has_stopped() {
    let mut world = World::new(&THREE);
    world.all_see(&[(1, NotNow), (2, Candidate), (3, Candidate)]);
    world.flow();
    assert!(world.running().is_empty(), "the old instance is stopping");
    assert_eq!(world.nodes[&1].running(), Running::Stopping);
    world.stops(1);
    world.flow();
    assert_eq!(world.history, [(1, true), (1, false), (2, true)]);
}

#[test]
fn one_after_the_other_leaves_until_the_last_stops_it() {
    let mut view = THREE;
    let mut world = World::new(&view);
    for leaving in [1, 2, 3] {
        view[leaving - 1].1 = NotNow;
        world.all_see(&view);
        world.flow();
        world.stops(leaving as u64);
        world.flow();
    }
    let expected = [(1, true), (1, false), (2, true), (2, false), (3, true), (3, false)];
    assert_eq!(world.history, expected);
}

#[test]
fn known_failure_08_several_that_leave_at_once_start_no_second_instance() {
    let mut world = World::new(&THREE);
    // 3 learns first that 2 leaves, then that 1 leaves; 2 has nothing to hand over.
    world.all_see(&[(1, NotNow), (2, NotNow), (3, Candidate)]);
    world.flow();
    assert!(world.running().is_empty(), "2 is done, but 1 is stopping");
    world.seconds(1);
    world.flow();
    assert!(world.running().is_empty());
    world.stops(1);
    world.flow();
    assert_eq!(world.history, [(1, true), (1, false), (3, true)]);
}

#[test]
fn known_failure_08_the_views_of_those_who_leave_may_differ() {
    let mut world = World::new(&THREE);
    // Only 2 knows that 1 leaves; only 3 knows that 2 leaves.
    let (one, two) = ([(1, NotNow), (2, Candidate), (3, Candidate)], [(2, NotNow)]);
    world.sees(1, &one);
    world.sees(2, &one);
    world.sees(3, &[(1, Candidate), two[0], (3, Candidate)]);
    world.flow();
    world.stops(1);
    world.flow();
    assert_eq!(world.running(), [2], "it does not know that it leaves");
    world.all_see(&[(1, NotNow), (2, NotNow), (3, Candidate)]);
    world.flow();
    world.stops(2);
    world.flow();
    assert_eq!(world.running(), [3]);
}

#[test]
fn after_a_crash_the_next_starts_only_once_the_oldest_is_out_of_the_configuration() {
    let mut world = World::new(&THREE);
    world.crash(1);
    world.all_see(&[(1, NotNow), (2, Candidate), (3, Candidate)]);
    for _ in 0..5 {
        world.flow();
        world.seconds(1);
        assert!(world.running().is_empty(), "it may be alive but disconnected");
    }
    world.all_see(&[(2, Candidate), (3, Candidate)]);
    assert_eq!(world.running(), [2]);
}

#[test]
fn after_a_crash_of_the_three_oldest_the_fourth_waits_for_all_of_them() {
    let four = [(1, Candidate), (2, Candidate), (3, Candidate), (4, Candidate)];
    let mut world = World::new(&four);
    [1, 2, 3].into_iter().for_each(|node| world.crash(node));
    world.sees(4, &[(3, NotNow), (4, Candidate)]);
    world.flow();
    assert!(world.running().is_empty());
    world.sees(4, &[(4, Candidate)]);
    assert_eq!(world.running(), [4]);
}

#[test]
fn a_new_oldest_that_crashes_in_mid_hand_over_is_followed_by_the_next() {
    let mut world = World::new(&THREE);
    world.all_see(&[(1, NotNow), (2, Candidate), (3, Candidate)]);
    world.flow();
    world.crash(2);
    world.stops(1);
    world.flow();
    for node in [1, 3] {
        world.sees(node, &[(1, NotNow), (3, Candidate)]);
    }
    world.seconds(1);
    world.flow();
    assert_eq!(world.running(), [3]);
}

#[test]
fn who_joins_later_takes_nothing_away_though_it_ran_it_in_an_earlier_life() {
    let mut world = World::new(&[(2, Candidate), (3, Candidate)]);
    world.join(1);
    world.all_see(&[(2, Candidate), (3, Candidate), (1, Candidate)]);
    world.flow();
    world.seconds(1);
    world.flow();
    assert_eq!((world.running(), world.stopping.len()), (vec![2], 0));
}

#[test]
fn an_older_member_that_becomes_a_candidate_takes_over() {
    let mut world = World::new(&[(1, NotNow), (2, Candidate)]);
    world.flow();
    assert_eq!(world.running(), [2]);
    world.all_see(&[(1, Candidate), (2, Candidate)]);
    world.flow();
    world.stops(2);
    world.flow();
    assert_eq!(world.history, [(2, true), (2, false), (1, true)]);
}

#[test]
fn an_instance_that_stops_by_itself_is_not_started_again_while_its_node_is_the_oldest() {
    let mut world = World::new(&THREE);
    world.tell(1, SingletonInput::Stopped);
    world.seconds(5);
    world.flow();
    assert!(world.running().is_empty());
    world.all_see(&[(1, NotNow), (2, Candidate), (3, Candidate)]);
    world.flow();
    assert_eq!(world.running(), [2]);
}

#[test]
fn while_the_cluster_prepares_to_stop_nothing_starts_and_nothing_is_handed_over() {
    let mut world = World::new(&THREE);
    for node in [1, 2, 3] {
        world.tell(node, SingletonInput::Prepare);
    }
    // 2 has an outdated view and requests the right.
    let number = 1;
    let message = SingletonMessage::HandOverToMe { number };
    world.tell(1, SingletonInput::Message { from: id(2), message });
    assert_eq!(world.running(), [1]);
    world.crash(1);
    world.all_see(&[(2, Candidate), (3, Candidate)]);
    world.flow();
    assert!(world.running().is_empty());
}

#[test]
fn a_removed_node_stops_without_hand_over() {
    let mut world = World::new(&THREE);
    world.sees(1, &[(2, Candidate), (3, Candidate)]);
    assert_eq!(world.nodes[&1].running(), Running::Stopping);
}

#[test]
fn a_younger_candidate_with_a_wrong_view_gets_no_answer() {
    let mut world = World::new(&THREE);
    world.sees(2, &[(1, NotNow), (2, Candidate), (3, Candidate)]);
    world.flow();
    world.seconds(1);
    world.flow();
    assert_eq!((world.running(), world.nodes[&1].stats().kept), (vec![1], 2));
}

#[test]
fn a_lost_request_and_a_lost_done_are_made_good_within_a_second() {
    let mut world = World::new(&[(1, NotNow), (2, Candidate)]);
    world.net.clear(); // loses the request
    world.seconds(1);
    let request = world.net.pop_front().expect("a repeated request");
    world.tell(1, SingletonInput::Message { from: id(2), message: request.2 });
    world.net.clear(); // loses the Done
    world.seconds(1);
    world.flow();
    assert_eq!(world.running(), [2]);
}

#[test]
fn a_done_that_comes_twice_or_late_gives_no_right() {
    let mut world = World::new(&[(1, NotNow), (2, Candidate)]);
    world.flow();
    assert_eq!(world.running(), [2]);
    world.all_see(&[(1, Candidate), (2, Candidate)]);
    world.flow();
    world.stops(2);
    world.flow();
    assert_eq!(world.running(), [1]);
    let late = SingletonMessage::HandOverDone { number: 1 };
    world.tell(2, SingletonInput::Message { from: id(1), message: late });
    world.sees(2, &[(1, NotNow), (2, Candidate)]);
    assert_eq!((world.running(), world.nodes[&2].stats().stale), (vec![1], 1));
}

#[test]
fn strangers_are_not_answered() {
    let mut world = World::new(&THREE);
    let message = SingletonMessage::HandOverToMe { number: 1 };
    world.net.clear();
    world.tell(1, SingletonInput::Message { from: id(9), message });
    assert!(world.net.is_empty());
    assert_eq!(world.nodes[&1].stats().strangers, 1);
}

#[test]
fn a_proxy_hears_where_the_instance_is_when_it_asks_and_when_it_moves() {
    let mut world = World::new(&THREE);
    assert!(world.net.contains(&(1, 3, SingletonMessage::Here)));
    world.net.clear();
    let message = SingletonMessage::Identify;
    world.tell(2, SingletonInput::Message { from: id(3), message });
    assert!(world.net.is_empty(), "the instance is not there");
    world.tell(1, SingletonInput::Message { from: id(3), message });
    assert_eq!(world.net.pop_front(), Some((1, 3, SingletonMessage::Here)));
    world.all_see(&[(1, NotNow), (2, Candidate), (3, Candidate)]);
    assert!(world.net.contains(&(1, 3, SingletonMessage::Gone)));
}

#[test]
fn messages_survive_the_wire() {
    use SingletonMessage as M;
    let number = 300;
    let all = [
        (M::HandOverToMe { number }, "81a17481a16ecd012c"),
        (M::HandOverInProgress { number }, "81a17081a16ecd012c"),
        (M::HandOverDone { number }, "81a16481a16ecd012c"),
        (M::Identify, "a177"),
        (M::Here, "a168"),
        (M::Gone, "a167"),
    ];
    for (message, golden) in all {
        let bytes = rmp_serde::to_vec_named(&message).expect("plain data");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(rmp_serde::from_slice::<M>(&bytes).ok(), Some(message));
    }
}
