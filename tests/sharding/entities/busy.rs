//! Full mailboxes: which limits apply, how a remote sender learns by a busy notice that an entity's
//! mailbox is full, how long that notice holds, and that a lost or outdated notice blocks no sender
//! for ever (docs/protocol/message-order.md#mailbox-limits-and-busy-notices).

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::entity_ref::{AskError, TellError};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::mailbox::Measure;
use ostraca::sharding::reply::Reply;
use ostraca_ddata::sim::{RandomStream, seeds};
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Lanes, Nodes, Plan, node};

/// Shared by all instances of a test: a door at which handlers wait, and the numbers handled.
#[derive(Default)]
struct Office {
    door: Door,
    log: Mutex<Vec<u64>>,
}

impl Office {
    fn handled(&self) -> Vec<u64> {
        self.log.lock().expect("nobody panicked").clone()
    }
}

struct Clerk(Arc<Office>);

#[derive(Serialize, Deserialize)]
enum Paper {
    Note(u64),
    Long(Vec<u8>),
    Wait,
    Burn,
    Count(Reply<u64>),
    /// Tell `Note(u64)` to this other entity.
    For(String, u64),
}

impl Entity for Clerk {
    type Message = Paper;

    async fn handle(&mut self, paper: Paper, cx: &mut Context<'_, Self>) {
        match paper {
            Paper::Note(number) => self.0.log.lock().expect("nobody panicked").push(number),
            Paper::Long(_) => {}
            Paper::Wait => self.0.door.pass().await,
            Paper::Burn => {
                self.0.door.pass().await;
                panic!("planned by the test");
            }
            Paper::Count(reply) => reply.send(self.0.handled().len() as u64),
            Paper::For(other, number) => {
                let told = cx.entity(&other).tell_wait(Paper::Note(number)).await;
                told.expect("there is room some time");
            }
        }
    }
}

/// Three nodes; shard 0 with the entity `c` is hosted on node 0.
struct Desks {
    nodes: Nodes<Clerk>,
    office: Arc<Office>,
}

impl Desks {
    fn new(settings: ShardingConfig, supervision: Supervision) -> Self {
        let plan = Plan { nodes: 3, settings, supervision, ..Plan::default() };
        let mut desks = Self::empty(&plan);
        desks.nodes.host(0, 0);
        desks
    }

    fn empty(plan: &Plan) -> Self {
        let office = Arc::<Office>::default();
        let nodes = Nodes::new(plan, |_, _| {
            let office = Arc::clone(&office);
            move |_: &EntityId| Clerk(Arc::clone(&office))
        });
        Self { nodes, office }
    }

    fn of(mailbox_size: usize) -> Self {
        let settings = ShardingConfig { mailbox_size, ..Plan::default().settings };
        Self::new(settings, Supervision::Restart)
    }

    /// The mailbox of `c` is full, and a further message of node 1 was refused: node 1 has a busy
    /// notice.
    fn full(mailbox_size: usize) -> Self {
        let mut desks = Self::of(mailbox_size);
        desks.tell(1, Paper::Wait).expect("there is room");
        desks.nodes.settle();
        for number in 1..=mailbox_size as u64 {
            desks.tell(1, Paper::Note(number)).expect("there is room");
        }
        desks.tell(1, Paper::Note(99)).expect("no notice has come yet");
        desks.nodes.settle();
        assert_eq!(desks.nodes.lost(DeadLetterReason::MailboxFull), 1);
        desks
    }

    fn tell(&self, from: usize, paper: Paper) -> Result<(), TellError> {
        self.nodes.nodes[from].region.entity("c").tell(paper)
    }

    fn count(&mut self, from: usize) -> Result<u64, AskError> {
        let clerk = self.nodes.nodes[from].region.entity("c");
        self.nodes.wait_for(async move { clerk.ask(Paper::Count).await })
    }

    fn remind(&mut self) {
        self.nodes.advance(Duration::from_secs(2));
        for node in &self.nodes.nodes {
            node.hosting.remind();
        }
    }

    /// Takes the next frame off a lane, so that it does not arrive.
    fn intercept(&mut self, from: usize, to: usize) -> Vec<u8> {
        loop {
            let found = {
                let mut lanes = self.nodes.lanes.lock().expect("nobody panicked");
                let lane = lanes.frames.get_mut(&(node(from), node(to)));
                lane.and_then(VecDeque::pop_front)
            };
            if let Some(frame) = found {
                return frame;
            }
            let step = *self.nodes.possible().first().expect("something is sent");
            self.nodes.step(step, 0);
        }
    }

    fn drop_all_frames(&self) {
        self.nodes.lanes.lock().expect("nobody panicked").frames.clear();
    }

    /// Drops the busy and room notices on all lanes, and returns how many there were.
    fn drop_notices(&self) -> usize {
        let mut lanes = self.nodes.lanes.lock().expect("nobody panicked");
        let on_lanes = |lanes: &Lanes| lanes.frames.values().map(VecDeque::len).sum::<usize>();
        let before = on_lanes(&lanes);
        lanes.frames.values_mut().for_each(|lane| lane.retain(|frame| frame[0] < BUSY));
        before - on_lanes(&lanes)
    }

    /// Starts a task on a node that tells `EACH` messages to `c`, waiting for room each time.
    /// Returns the number of messages told so far.
    fn teller(&self, from: usize) -> Arc<AtomicUsize> {
        let (clerk, told) = (self.nodes.nodes[from].region.entity("c"), Arc::default());
        let counts: Arc<AtomicUsize> = Arc::clone(&told);
        self.nodes.executor.spawn(Box::pin(async move {
            for number in 1..=EACH as u64 {
                let note = Paper::Note(1_000 * from as u64 + number);
                clerk.tell_wait(note).await.expect("there is room some time");
                counts.fetch_add(1, Ordering::SeqCst);
                others_turn().await;
            }
        }));
        told
    }
}

async fn others_turn() {
    let mut yielded = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Frame kind of a busy notice, the lowest one of the frames about mailboxes.
const BUSY: u8 = 8;
const FREE: u8 = 9;

/// Number of messages of each teller.
const EACH: usize = 40;

fn busy() -> Result<(), TellError> {
    Err(TellError::Busy { home: node(0) })
}

#[test]
fn refused_remote_sender_is_told_and_waits_for_room() {
    let mut desks = Desks::full(4);
    assert_eq!(desks.tell(1, Paper::Note(5)), busy());
    assert_eq!(desks.tell(2, Paper::Note(99)), Ok(()), "node 2 has no notice yet");
    let asked = desks.count(1);
    assert!(matches!(asked, Err(AskError::NotSent(TellError::Busy { .. }))), "{asked:?}");
    let (told, clerk) = (Arc::<AtomicUsize>::default(), desks.nodes.nodes[1].region.entity("c"));
    let counts = Arc::clone(&told);
    desks.nodes.executor.spawn(Box::pin(async move {
        for number in 5..=40 {
            clerk.tell_wait(Paper::Note(number)).await.expect("there is room some time");
            counts.fetch_add(1, Ordering::SeqCst);
        }
    }));
    desks.nodes.settle();
    assert_eq!((told.load(Ordering::SeqCst), desks.nodes.nodes[1].region.callers()), (0, 1));
    desks.office.door.open();
    desks.nodes.settle();
    assert_eq!(told.load(Ordering::SeqCst), 36);
    // Messages that were under way when the mailbox filled again are lost and counted.
    let handled = desks.office.handled();
    let lost = desks.nodes.lost(DeadLetterReason::MailboxFull) as usize;
    assert!(handled.is_sorted() && handled[..4] == [1, 2, 3, 4], "{handled:?}");
    assert_eq!(handled.len() + lost, 40 + 2, "{handled:?}");
    assert_eq!((desks.tell(1, Paper::Note(50)), desks.tell(2, Paper::Note(50))), (Ok(()), Ok(())));
}

#[test]
fn a_notice_ends_with_the_home_that_gave_it() {
    let mut desks = Desks::full(2);
    let clerk = desks.nodes.nodes[1].region.entity("c");
    let told = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&told);
    desks.nodes.executor.spawn(Box::pin(async move {
        clerk.tell_wait(Paper::Note(3)).await.expect("there is room elsewhere");
        counts.fetch_add(1, Ordering::SeqCst);
    }));
    desks.nodes.settle();
    assert_eq!(told.load(Ordering::SeqCst), 0);
    desks.nodes.decide(ShardId::new(0), Some(2));
    desks.nodes.settle();
    assert_eq!(told.load(Ordering::SeqCst), 1, "during the move the message waits at the gate");
    desks.office.door.open();
    desks.nodes.settle();
    assert_eq!(desks.office.handled(), [1, 2, 3]);
    assert_eq!(desks.nodes.all_lost(), 1);
}

#[test]
fn a_notice_ends_with_its_node() {
    let mut desks = Desks::full(2);
    assert_eq!(desks.tell(1, Paper::Note(3)), busy());
    desks.nodes.crash(0);
    assert_eq!(desks.tell(1, Paper::Note(3)), Ok(()));
    desks.nodes.settle();
    assert_eq!(desks.office.handled(), [3]);
}

/// A lost room notice must not block a waiting caller for ever.
#[test]
fn lost_room_notice_is_queried_and_then_the_send_retried() {
    for answers in [true, false] {
        let mut desks = Desks::full(2);
        desks.office.door.open();
        while desks.nodes.executor.ready() > 0 {
            desks.nodes.executor.step(0);
        }
        desks.drop_all_frames(); // the room notice among them
        assert_eq!(desks.tell(1, Paper::Note(3)), busy());
        let clerk = desks.nodes.nodes[1].region.entity("c");
        let waits = async move { clerk.tell_wait(Paper::Note(3)).await };
        let told = Arc::<AtomicUsize>::default();
        let counts = Arc::clone(&told);
        desks.nodes.executor.spawn(Box::pin(async move {
            waits.await.expect("there is room");
            counts.fetch_add(1, Ordering::SeqCst);
        }));
        desks.nodes.settle();
        desks.remind();
        if !answers {
            desks.drop_all_frames();
        }
        desks.nodes.settle();
        assert_eq!(told.load(Ordering::SeqCst), usize::from(answers));
        desks.remind();
        desks.nodes.settle();
        assert_eq!((told.load(Ordering::SeqCst), desks.office.handled()), (1, vec![1, 2, 3]));
    }
}

#[test]
fn queried_busy_notice_is_renewed_without_further_losses() {
    let mut desks = Desks::full(2);
    for _ in 0..5 {
        desks.remind();
        desks.nodes.settle();
        assert_eq!(desks.tell(1, Paper::Note(3)), busy());
    }
    assert_eq!(desks.nodes.lost(DeadLetterReason::MailboxFull), 1);
}

#[test]
fn late_busy_notice_of_an_earlier_home_is_ignored() {
    let mut desks = Desks::full(2);
    desks.tell(2, Paper::Note(98)).expect("node 2 has no notice yet");
    let late = desks.intercept(0, 2);
    assert_eq!(late[0], BUSY, "{late:?}");
    desks.office.door.open();
    desks.nodes.host(0, 1);
    desks.nodes.nodes[2].hosting.arrived(node(0), &late).expect("a frame");
    assert_eq!(desks.tell(2, Paper::Note(3)), Ok(()));
}

#[test]
fn only_the_home_that_said_busy_says_free() {
    let mut desks = Desks::full(2);
    desks.tell(2, Paper::Note(98)).expect("node 2 has no notice yet");
    let mut free = desks.intercept(0, 2);
    assert_eq!(std::mem::replace(&mut free[0], FREE), BUSY, "{free:?}");
    let hosting = Arc::clone(&desks.nodes.nodes[1].hosting);
    hosting.arrived(node(2), &free).expect("a frame");
    assert_eq!(desks.tell(1, Paper::Note(3)), busy());
    hosting.arrived(node(0), &free).expect("a frame");
    assert_eq!(desks.tell(1, Paper::Note(3)), Ok(()));
}

#[test]
fn caller_waiting_at_the_old_home_continues_after_the_move() {
    let mut desks = Desks::full(2);
    let (clerk, told) = (desks.nodes.nodes[0].region.entity("c"), Arc::<AtomicUsize>::default());
    let counts = Arc::clone(&told);
    desks.nodes.executor.spawn(Box::pin(async move {
        clerk.tell_wait(Paper::Note(3)).await.expect("there is room elsewhere");
        counts.fetch_add(1, Ordering::SeqCst);
    }));
    desks.nodes.settle();
    desks.nodes.decide(ShardId::new(0), Some(2));
    desks.nodes.settle();
    assert_eq!(told.load(Ordering::SeqCst), 0, "the handler still runs");
    desks.office.door.open();
    desks.nodes.settle();
    assert_eq!((told.load(Ordering::SeqCst), desks.office.handled()), (1, vec![1, 2, 3]));
}

/// The waiting entity and the full one are in one shard, and then in two.
#[test]
fn draining_handler_waiting_for_room_holds_up_no_move() {
    for shards in [1, 50] {
        let settings = ShardingConfig { mailbox_size: 2, ..Plan::default().settings };
        let mut desks = Desks::empty(&Plan { nodes: 2, shards, settings, ..Plan::default() });
        let region = |desks: &Desks| desks.nodes.nodes[0].region.clone();
        let [c, d] = ["c", "d"].map(|id| region(&desks).entity(id));
        assert_eq!(shards == 1, c.shard() == d.shard());
        let moving = BTreeSet::from([c.shard(), d.shard()]);
        moving.iter().for_each(|shard| desks.nodes.host(shard.get(), 0));
        d.tell(Paper::Wait).unwrap();
        desks.nodes.settle();
        (1..=2).for_each(|number| d.tell(Paper::Note(number)).unwrap());
        c.tell(Paper::For("d".to_owned(), 3)).unwrap();
        desks.nodes.settle();
        assert_eq!(region(&desks).callers(), 1);
        for shard in [c.shard(), d.shard()].into_iter().take(moving.len()) {
            desks.nodes.decide(shard, Some(1));
            desks.nodes.settle();
        }
        assert_eq!(region(&desks).callers(), 0, "a draining mailbox blocks no caller");
        desks.office.door.open();
        desks.nodes.settle();
        assert_eq!((desks.office.handled(), desks.nodes.all_lost()), (vec![1, 2, 3], 0));
        assert_eq!(region(&desks).entities(), 0, "the shards have left before any timeout");
    }
}

#[test]
fn entity_stopped_after_failure_ends_its_busy_notice() {
    let settings = ShardingConfig { mailbox_size: 2, ..Plan::default().settings };
    let mut desks = Desks::new(settings, Supervision::Stop);
    desks.tell(1, Paper::Burn).unwrap();
    desks.nodes.settle();
    for number in 0..4 {
        desks.tell(1, Paper::Note(number)).unwrap();
    }
    desks.nodes.settle();
    assert_eq!(desks.tell(1, Paper::Note(9)), busy());
    desks.office.door.open();
    desks.nodes.settle();
    assert_eq!(desks.tell(1, Paper::Note(9)), Ok(()));
}

#[test]
fn mailbox_is_limited_in_bytes_but_fits_one_long_message() {
    let settings = ShardingConfig { mailbox_bytes_max: 1_000, ..Plan::default().settings };
    let mut desks = Desks::new(settings, Supervision::Restart);
    desks.tell(0, Paper::Wait).unwrap();
    desks.nodes.settle();
    let long = |length| Paper::Long(vec![7; length]);
    desks.tell(1, long(2_000)).unwrap();
    desks.nodes.settle();
    let full = desks.tell(0, Paper::Note(1)).expect_err("its bytes are too many");
    assert!(
        matches!(full, TellError::MailboxFull { limit: 1_000, of: Measure::Bytes, .. }),
        "{full}"
    );
    assert!(full.to_string().contains("bytes wait for the entity, at most 1000 may"), "{full}");
    desks.tell(1, long(1)).unwrap();
    desks.nodes.settle();
    assert_eq!(
        (desks.nodes.lost(DeadLetterReason::MailboxFull), desks.tell(1, long(1))),
        (1, busy())
    );
    desks.office.door.open();
    desks.nodes.settle();
    assert_eq!((desks.tell(1, long(1)), desks.tell(0, long(1))), (Ok(()), Ok(())));
}

/// Random schedules under which the shard keeps moving. The only lost messages are those that a
/// full mailbox refused.
#[test]
fn all_waiting_senders_succeed_despite_moves_and_lost_notices() {
    let test = "all_waiting_senders_succeed_despite_moves_and_lost_notices";
    let (mut runs, mut refused, mut dropped) = (0, 0, 0);
    for seed in seeds(test, 100) {
        let mut chance = RandomStream::split(seed.value, "busy", 0);
        let mut desks = Desks::of(1 + chance.index(4));
        let shard = ShardId::new(0);
        let told = [0, 1, 2].map(|from| desks.teller(from));
        let pause = *chance.pick(&[20, 500]); // mean number of steps between two moves
        for _ in 0..500 {
            let steps = desks.nodes.possible();
            match chance.below(30) {
                0 if chance.chance(30.0 / f64::from(pause)) => {
                    desks.nodes.decide(shard, Some(chance.index(3)));
                }
                1 if chance.chance(0.2) => desks.remind(),
                2 | 3 => dropped += desks.drop_notices(),
                _ if steps.is_empty() => {}
                _ => desks.nodes.step(*chance.pick(&steps), chance.index(1 << 20)),
            }
        }
        for _ in 0..2 * EACH {
            desks.nodes.send_orders(shard);
            desks.nodes.settle();
            desks.remind();
        }
        desks.nodes.settle();
        let told = told.map(|told| told.load(Ordering::SeqCst));
        assert_eq!(told, [EACH; 3], "{}", seed.replay_command());
        let handled = desks.office.handled();
        let lost = desks.nodes.lost(DeadLetterReason::MailboxFull) as usize;
        let of = |from: u64| handled.iter().filter(move |number| **number / 1_000 == from);
        assert!((0..3).all(|from| of(from).is_sorted()), "{}", seed.replay_command());
        let unique = handled.iter().collect::<BTreeSet<_>>().len();
        let missing = 3 * EACH - handled.len();
        let discarded = desks.nodes.lost(DeadLetterReason::Discarded);
        assert!(
            unique == handled.len() && missing == lost && discarded == 0,
            "{missing} messages missing, {lost} refused, {discarded} discarded without a crash\n{}",
            seed.replay_command()
        );
        (runs, refused) = (runs + 1, refused + lost);
    }
    assert!(refused > runs && dropped > runs, "{refused} refused, {dropped} notices lost");
}

/// A planned move loses nothing, however small the mailboxes at the next home are.
#[test]
fn messages_waiting_for_a_move_are_exempt_from_mailbox_limit() {
    let mut desks = Desks::of(2);
    desks.tell(0, Paper::Wait).unwrap();
    desks.nodes.settle();
    desks.nodes.decide(ShardId::new(0), Some(1));
    desks.nodes.settle(); // the handler still runs
    (1..=9).for_each(|number| desks.tell(2, Paper::Note(number)).unwrap());
    desks.nodes.settle();
    desks.office.door.open();
    desks.nodes.settle();
    assert_eq!((desks.office.handled(), desks.nodes.all_lost()), ((1..=9).collect(), 0));
}

/// Six shards hold messages until the region's limit (480) is used up; the last two get only the
/// floor of 100 messages that each shard has.
#[test]
fn held_messages_have_a_region_limit_and_a_floor_per_shard() {
    let settings = ShardingConfig { held_size: 480, ..Plan::default().settings };
    let mut desks = Desks::empty(&Plan { nodes: 2, shards: 50, settings, ..Plan::default() });
    let mut shards = BTreeSet::new();
    let clerks = (0..).map(|number| desks.nodes.nodes[1].region.entity(&format!("c{number}")));
    let clerks: Vec<_> = clerks.filter(|clerk| shards.insert(clerk.shard())).take(6).collect();
    clerks.iter().for_each(|clerk| desks.nodes.decide(clerk.shard(), Some(0)));
    desks.nodes.announce(1); // before the home itself learns of it
    for clerk in &clerks {
        (0..130).for_each(|number| clerk.tell(Paper::Note(number)).unwrap());
        desks.nodes.settle_without_control();
    }
    let held = 4 * 120 + 2 * 100; // four shards hold a quarter of the limit each
    let lost = desks.nodes.lost(DeadLetterReason::HeldFull);
    assert_eq!((desks.nodes.nodes[0].region.held(), lost), (held, 4 * 10 + 2 * 30));
    desks.nodes.settle();
    assert_eq!((desks.nodes.nodes[0].region.held(), desks.office.handled().len()), (0, held));
}

/// A planned move loses nothing, however low the limit of held messages at the next home is.
#[test]
fn messages_that_waited_for_a_home_are_held_beyond_the_limit() {
    let settings = ShardingConfig { held_size: 4, ..Plan::default().settings };
    let mut desks = Desks::empty(&Plan { nodes: 2, settings, ..Plan::default() });
    (1..=9).for_each(|number| desks.tell(1, Paper::Note(number)).unwrap());
    desks.nodes.decide(ShardId::new(0), Some(0));
    desks.nodes.announce(1); // before the home itself learns of it
    desks.nodes.settle_without_control();
    assert_eq!((desks.nodes.nodes[0].region.held(), desks.nodes.all_lost()), (9, 0));
    desks.tell(1, Paper::Note(10)).unwrap(); // it did not wait for the home, so the limit applies
    desks.nodes.settle();
    assert_eq!(
        (desks.office.handled(), desks.nodes.lost(DeadLetterReason::HeldFull)),
        ((1..=9).collect(), 1)
    );
    assert_eq!(desks.nodes.nodes[0].region.held(), 0);
}
