//! Singleton machines on a network under the control of the test.

use std::collections::VecDeque;

use super::Candidacy::{Candidate, Never, NotNow};
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
    fn new(view: &[(u64, Candidacy)]) -> Self {
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
        self.nodes.insert(node, Singleton::new(id(node), RETRY, MembershipFaultInjection::none()));
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
        let running = self.nodes.values().filter(|one| one.running() != SingletonState::No);
        let running = running.filter(|one| one.running() != SingletonState::Finished).count();
        assert!(running <= 1, "two at once: {:?}", self.history);
    }

    fn sees(&mut self, node: u64, view: &[(u64, Candidacy)]) {
        let peers = view
            .iter()
            .map(|(of, candidacy)| SingletonMember { id: id(*of), candidacy: *candidacy });
        self.tell(node, SingletonInput::Members(peers.collect()));
    }

    fn all_see(&mut self, view: &[(u64, Candidacy)]) {
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
        let yes = |(_, one): &(&u64, &Singleton)| one.running() == SingletonState::Yes;
        self.nodes.iter().filter(yes).map(|(node, _)| *node).collect()
    }
}

const THREE: [(u64, Candidacy); 3] = [(1, Candidate), (2, Candidate), (3, Candidate)];

#[test]
fn instance_starts_on_the_oldest_candidate() {
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
fn older_unknown_member_is_asked_first() {
    let mut world = World::new(&[(1, NotNow), (2, Candidate)]);
    assert!(world.running().is_empty());
    world.flow();
    assert_eq!(world.running(), [2]);
}

#[test]
fn instance_needs_a_lease() {
    let mut world = World::new(&THREE);
    world.tell(1, SingletonInput::LeaseOver);
    assert_eq!(world.nodes[&1].running(), SingletonState::Stopping);
    world.stops(1);
    assert!(world.running().is_empty());
    world.tell(1, SingletonInput::LeaseHeld);
    assert_eq!(world.running(), [1]);
}

#[test]
fn leaving_oldest_hands_over_after_its_stop() {
    let mut world = World::new(&THREE);
    world.all_see(&[(1, NotNow), (2, Candidate), (3, Candidate)]);
    world.flow();
    assert!(world.running().is_empty(), "the old instance is stopping");
    assert_eq!(world.nodes[&1].running(), SingletonState::Stopping);
    world.stops(1);
    world.flow();
    assert_eq!(world.history, [(1, true), (1, false), (2, true)]);
}

#[test]
fn instance_moves_as_members_leave_one_by_one() {
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
fn known_failure_08_simultaneous_leaves_start_one_instance() {
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
fn known_failure_08_leaving_members_may_have_different_views() {
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
fn successor_waits_for_removal_of_a_crashed_oldest() {
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
fn successor_waits_for_removal_of_all_crashed_members() {
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
fn crash_during_handover_passes_to_the_next_candidate() {
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
fn rejoined_node_does_not_take_the_instance_back() {
    let mut world = World::new(&[(2, Candidate), (3, Candidate)]);
    world.join(1);
    world.all_see(&[(2, Candidate), (3, Candidate), (1, Candidate)]);
    world.flow();
    world.seconds(1);
    world.flow();
    assert_eq!((world.running(), world.stopping.len()), (vec![2], 0));
}

#[test]
fn older_new_candidate_takes_over() {
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
fn finished_instance_is_not_restarted_on_its_node() {
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
fn full_shutdown_freezes_starts_and_handovers() {
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
fn removed_node_stops_without_handover() {
    let mut world = World::new(&THREE);
    world.sees(1, &[(2, Candidate), (3, Candidate)]);
    assert_eq!(world.nodes[&1].running(), SingletonState::Stopping);
}

#[test]
fn younger_candidate_with_outdated_view_gets_no_answer() {
    let mut world = World::new(&THREE);
    world.sees(2, &[(1, NotNow), (2, Candidate), (3, Candidate)]);
    world.flow();
    world.seconds(1);
    world.flow();
    assert_eq!((world.running(), world.nodes[&1].stats().kept), (vec![1], 2));
}

#[test]
fn lost_request_and_lost_done_are_repeated() {
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
fn unwanted_requests_start_no_timer() {
    let (leaving, staying) = ([(1, NotNow), (2, Candidate)], [(1, Candidate), (2, Candidate)]);
    for is_older_candidate in [true, false] {
        let mut world = World::new(&leaving);
        world.net.clear(); // loses the request
        assert!(world.nodes[&2].next_deadline().is_some());
        if is_older_candidate {
            world.sees(2, &staying);
        } else {
            world.sees(2, &[(1, NotNow), (2, NotNow)]);
        }
        assert_eq!(world.nodes[&2].next_deadline(), None, "{is_older_candidate}");
        world.sees(2, &leaving);
        world.flow();
        assert_eq!(world.running(), [2], "the request is repeated at once");
    }
    let mut world = World::new(&leaving);
    world.tell(2, SingletonInput::Prepare);
    assert_eq!(world.nodes[&2].next_deadline(), None);
}

#[test]
fn retry_of_zero_makes_no_busy_loop() {
    let mut node = Singleton::new(id(2), Duration::ZERO, MembershipFaultInjection::none());
    let member = |of, candidacy| SingletonMember { id: id(of), candidacy };
    let members = vec![member(1, NotNow), member(2, Candidate)];
    node.handle(Now::default(), SingletonInput::Members(members), &mut Outbox::new());
    assert!(node.next_deadline() > Some(Now::default().mono));
}

#[test]
fn duplicated_and_late_done_gives_no_right() {
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
fn non_members_get_no_answer() {
    let mut world = World::new(&THREE);
    let message = SingletonMessage::HandOverToMe { number: 1 };
    world.net.clear();
    world.tell(1, SingletonInput::Message { from: id(9), message });
    assert!(world.net.is_empty());
    assert_eq!(world.nodes[&1].stats().strangers, 1);
}

#[test]
fn proxy_is_informed_when_it_asks_and_when_it_moves() {
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
