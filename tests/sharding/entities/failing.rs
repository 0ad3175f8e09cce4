//! Failures: entities that panic under each supervision, malformed frames, full mailboxes, aborted
//! handlers, and what a caller is told in each case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::entity_ref::{AskError, TellError};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::mailbox::Measure;
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan, node};
use super::waits::logged;

#[derive(Default)]
struct Fragile {
    handled: u64,
}

#[derive(Serialize, Deserialize)]
enum Blow {
    Soft,
    Hard,
    HardAsked(Reply<u64>),
    Count(Reply<u64>),
    Sleep(Reply<u64>),
}

impl Entity for Fragile {
    type Message = Blow;

    async fn handle(&mut self, blow: Blow, _: &mut Context<'_, Self>) {
        match blow {
            Blow::Soft => self.handled += 1,
            Blow::Hard => panic!("planned by the test"),
            Blow::HardAsked(_reply) => panic!("planned by the test"),
            Blow::Count(reply) => reply.send(self.handled),
            Blow::Sleep(_reply) => std::future::pending().await,
        }
    }
}

fn nodes(supervision: Supervision) -> (Nodes<Fragile>, Arc<AtomicUsize>) {
    let plan = Plan { supervision, ..Plan::default() };
    let made = Arc::new(AtomicUsize::new(0));
    let mut nodes = Nodes::new(&plan, |_, _| {
        let made = Arc::clone(&made);
        move |_: &EntityId| {
            made.fetch_add(1, Ordering::SeqCst);
            Fragile::default()
        }
    });
    nodes.host(0, 0);
    (nodes, made)
}

/// Two nodes whose mailboxes hold `mailbox_size` messages.
fn narrow(mailbox_size: usize) -> Nodes<Fragile> {
    let settings = ShardingConfig { mailbox_size, ..Plan::default().settings };
    let plan = Plan { settings, ..Plan::default() };
    let mut nodes = Nodes::new(&plan, |_, _| |_: &EntityId| Fragile::default());
    nodes.host(0, 0);
    nodes
}

fn count(nodes: &mut Nodes<Fragile>, from: usize) -> Result<u64, AskError> {
    let fragile = nodes.nodes[from].region.entity("f");
    nodes.wait_for(async move { fragile.ask(Blow::Count).await })
}

#[test]
fn panicked_entity_restarts_after_a_pause_with_its_mailbox() {
    let (mut nodes, made) = nodes(Supervision::Restart);
    let fragile = nodes.nodes[1].region.entity("f");
    for blow in [Blow::Soft, Blow::Hard, Blow::Soft, Blow::Soft] {
        fragile.tell(blow).unwrap();
    }
    nodes.settle();
    assert_eq!(made.load(Ordering::SeqCst), 1, "the restart waits");
    nodes.advance(Duration::from_millis(199));
    nodes.settle();
    assert_eq!(made.load(Ordering::SeqCst), 1);
    nodes.advance(Duration::from_millis(1));
    assert_eq!(count(&mut nodes, 1).unwrap(), 2, "a new instance, with the waiting messages");
    assert_eq!((made.load(Ordering::SeqCst), nodes.lost(DeadLetterReason::EntityFailed)), (2, 1));
}

#[test]
fn panicked_entity_resumes_or_stops_as_supervised() {
    for (supervision, counted, lost) in [(Supervision::Resume, 2, 1), (Supervision::Stop, 0, 2)] {
        let (mut nodes, _) = nodes(supervision);
        let fragile = nodes.nodes[0].region.entity("f");
        for blow in [Blow::Soft, Blow::Hard, Blow::Soft] {
            fragile.tell(blow).unwrap();
        }
        nodes.settle();
        assert_eq!(count(&mut nodes, 0).unwrap(), counted, "{supervision:?}");
        assert_eq!(nodes.all_lost(), lost, "{supervision:?}");
    }
}

#[test]
fn an_ask_that_makes_its_entity_panic_fails_at_once_and_says_so() {
    let (mut nodes, _) = nodes(Supervision::Restart);
    for from in [0, 1] {
        let fragile = nodes.nodes[from].region.entity(&format!("f{from}"));
        let start = nodes.executor.now();
        let asked = nodes.wait_for(async move { fragile.ask(Blow::HardAsked).await });
        let why = asked.unwrap_err();
        assert!(
            matches!(why, AskError::Refused { why: DeadLetterReason::EntityFailed, .. }),
            "{why}"
        );
        let text = why.to_string();
        for part in [format!("journal/f{from}").as_str(), "Blow", "0ns", "failed while"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(nodes.executor.now(), start);
    }
}

#[test]
fn back_off_is_interrupted_by_a_drain_and_its_messages_move() {
    let (mut nodes, _) = nodes(Supervision::Restart);
    let fragile = nodes.nodes[0].region.entity("f");
    for blow in [Blow::Hard, Blow::Soft, Blow::Soft] {
        fragile.tell(blow).unwrap();
    }
    nodes.settle();
    nodes.host(0, 1);
    assert_eq!(count(&mut nodes, 0).unwrap(), 2);
    assert_eq!((nodes.nodes[0].region.entities(), nodes.nodes[1].region.entities()), (0, 1));
    assert_eq!(nodes.all_lost(), 1);
}

#[test]
fn ask_error_names_entity_message_and_timeout() {
    let (mut nodes, _) = nodes(Supervision::Restart);
    let fragile = nodes.nodes[1].region.entity("f");
    let asked = fragile.ask_within(Duration::from_millis(300), Blow::Sleep);
    let text = nodes.wait_for(asked).unwrap_err().to_string();
    for part in ["journal/f", "Blow", "300ms", "may have handled"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(nodes.nodes[1].asks.waiting(), 0, "the ask is forgotten");
    let none = fragile.ask_within(Duration::ZERO, Blow::Count);
    assert!(matches!(nodes.wait_for(none), Err(AskError::NoTime)));
}

#[test]
fn full_mailbox_refuses_local_tells_and_remote_asks() {
    let mut nodes = narrow(2);
    let here = nodes.nodes[0].region.entity("f");
    let forever = here.ask(Blow::Sleep);
    nodes.settle();
    assert_eq!((here.tell(Blow::Soft), here.tell(Blow::Soft)), (Ok(()), Ok(())));
    let full = TellError::MailboxFull { waiting: 2, limit: 2, of: Measure::Messages };
    assert_eq!(here.tell(Blow::Soft), Err(full));
    let there = nodes.nodes[1].region.entity("f");
    let asked = there.ask(Blow::Count);
    there.tell(Blow::Soft).unwrap();
    nodes.settle();
    assert_eq!(nodes.lost(DeadLetterReason::MailboxFull), 2, "the tell and the ask are counted");
    let asked = nodes.wait_for(asked);
    assert!(matches!(asked, Err(AskError::Refused { why: DeadLetterReason::MailboxFull, .. })));
    drop(forever);
}

#[test]
fn a_caller_that_waits_for_room_goes_on_when_there_is_some() {
    let mut nodes = narrow(2);
    let here = nodes.nodes[0].region.entity("f");
    let teller = here.clone();
    nodes.wait_for(async move {
        for _ in 0..50 {
            teller.tell_wait(Blow::Soft).await.unwrap();
        }
    });
    assert_eq!(count(&mut nodes, 0).unwrap(), 50);
}

#[test]
fn malformed_frames_are_refused_and_bad_bodies_counted() {
    let (mut nodes, _) = nodes(Supervision::Restart);
    let hosting = Arc::clone(&nodes.nodes[0].hosting);
    for bad in [&[][..], &[99], &[1, 0], &[2, 0xff, 0xff, 0xff, 0xff, 0xff]] {
        assert!(hosting.arrived(node(1), bad).is_err(), "{bad:?}");
    }
    let away = [2, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert!(hosting.arrived(node(1), &away).is_err(), "there is no shard 7");
    let fragile = nodes.nodes[1].region.entity("f");
    fragile.tell(Blow::Soft).unwrap();
    nodes.settle();
    nodes.nodes[1].region.entity("f").tell(Blow::Soft).unwrap();
    for lane in nodes.lanes.lock().expect("nobody panicked").frames.values_mut() {
        for frame in lane.iter_mut() {
            *frame.last_mut().unwrap() = 0xc1; // never valid in MessagePack
        }
    }
    nodes.settle();
    assert_eq!(nodes.lost(DeadLetterReason::Undecodable), 1);
    assert_eq!(count(&mut nodes, 1).unwrap(), 1);
}

#[test]
fn handler_dropped_with_its_executor_leaves_no_instance() {
    let (mut nodes, _) = nodes(Supervision::Restart);
    let fragile = nodes.nodes[0].region.entity("f");
    let asked = fragile.ask(Blow::Sleep);
    nodes.settle();
    nodes.executor.end();
    assert_eq!(nodes.nodes[0].region.entities(), 0);
    assert!(matches!(nodes.wait_for(asked), Err(AskError::Refused { .. })));
}

#[test]
fn caller_at_a_full_mailbox_continues_after_the_move() {
    let mut nodes = narrow(2);
    let here = nodes.nodes[0].region.entity("f");
    let forever = here.ask(Blow::Sleep);
    nodes.settle();
    let told = Arc::new(AtomicUsize::new(0));
    let (teller, count) = (here.clone(), Arc::clone(&told));
    nodes.executor.spawn(Box::pin(async move {
        for _ in 0..4 {
            teller.tell_wait(Blow::Soft).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    }));
    nodes.settle();
    assert_eq!(told.load(Ordering::SeqCst), 2, "the mailbox is full");
    nodes.host(0, 1);
    nodes.advance(Duration::from_secs(16)); // the sleeping handler is aborted
    nodes.settle();
    assert_eq!(told.load(Ordering::SeqCst), 4);
    drop(forever);
}

#[test]
fn caller_waiting_for_room_has_one_waker_until_it_is_dropped() {
    let mut nodes = narrow(1);
    let here = nodes.nodes[0].region.entity("f");
    let forever = here.ask(Blow::Sleep);
    nodes.settle();
    here.tell(Blow::Soft).unwrap();
    let mut waits = Box::pin(here.tell_wait(Blow::Soft));
    for _ in 0..100 {
        // Polled from another task each time, as by a select in a loop.
        let waker = Waker::from(Arc::new(Nobody));
        assert!(waits.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
        assert_eq!(nodes.nodes[0].region.callers(), 1);
    }
    drop(waits);
    assert_eq!(nodes.nodes[0].region.callers(), 0);
    drop(forever);
}

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn start_waits_for_the_factory_and_moves_with_the_shard() {
    let made = Arc::new(AtomicUsize::new(0));
    let mut nodes = Nodes::new(&Plan::default(), |_, _| {
        let made = Arc::clone(&made);
        move |_: &EntityId| {
            assert!(made.fetch_add(1, Ordering::SeqCst) > 0, "planned by the test");
            Fragile::default()
        }
    });
    nodes.host(0, 0);
    let started = nodes.nodes[0].region.start_entity("f");
    nodes.settle();
    assert_eq!(made.load(Ordering::SeqCst), 1, "the first factory call panicked");
    nodes.host(0, 1);
    assert_eq!(nodes.nodes[1].region.entities(), 1, "the next home starts it");
    nodes.wait_for(started).expect("it started");
    assert_eq!(nodes.all_lost(), 0);
}

#[test]
fn asker_of_an_aborted_handler_learns_the_reason() {
    for (crashes, expected) in
        [(false, DeadLetterReason::Aborted), (true, DeadLetterReason::HandlerStopped)]
    {
        let (mut nodes, _) = nodes(Supervision::Restart);
        let asked = nodes.nodes[0].region.entity("f").ask(Blow::Sleep);
        nodes.settle();
        if crashes {
            nodes.crash(0);
        } else {
            nodes.decide(ShardId::new(0), Some(1));
            nodes.settle();
            nodes.advance(Duration::from_secs(16));
        }
        nodes.settle();
        let why = nodes.wait_for(asked).unwrap_err();
        assert!(matches!(&why, AskError::Refused { why, .. } if *why == expected), "{why}");
    }
}

#[test]
fn failure_is_logged_with_the_message_of_the_panic() {
    let lines = logged(|| {
        let (mut nodes, _) = nodes(Supervision::Restart);
        nodes.nodes[0].region.entity("f").tell(Blow::Hard).unwrap();
        nodes.settle();
        let made = Nodes::new(&Plan::default(), |_, _| {
            |id: &EntityId| -> Fragile { panic!("planned by the test: no {id}") }
        });
        fail_to_start(made);
    });
    let failed: Vec<&String> =
        lines.iter().filter(|line| line.contains("sharding.entity_failed")).collect();
    assert_eq!(failed.len(), 2, "{lines:?}");
    for part in ["entity=f ", "failures=1", "why=\"planned by the test\""] {
        assert!(failed[0].contains(part), "{part}: {}", failed[0]);
    }
    assert!(failed[1].contains("why=\"planned by the test: no f\""), "{}", failed[1]);
}

fn fail_to_start(mut nodes: Nodes<Fragile>) {
    nodes.host(0, 0);
    nodes.nodes[0].region.entity("f").tell(Blow::Soft).expect("there is room");
    nodes.settle();
}

#[test]
fn pause_before_a_restart_doubles_up_to_its_maximum() {
    let millis = Duration::from_millis;
    let settings = ShardingConfig {
        restart_backoff_min: millis(200),
        restart_backoff_max: millis(300),
        ..Plan::default().settings
    };
    let plan = Plan { settings, supervision: Supervision::Restart, ..Plan::default() };
    let made = Arc::new(AtomicUsize::new(0));
    let mut nodes = Nodes::new(&plan, |_, _| {
        let made = Arc::clone(&made);
        move |_: &EntityId| {
            made.fetch_add(1, Ordering::SeqCst);
            Fragile::default()
        }
    });
    nodes.host(0, 0);
    let fragile = nodes.nodes[0].region.entity("f");
    for blow in [Blow::Hard, Blow::Hard, Blow::Hard, Blow::Soft] {
        fragile.tell(blow).unwrap();
    }
    for (instance, pause) in [(1, 200), (2, 300), (3, 300)] {
        nodes.settle();
        nodes.advance(millis(pause - 1));
        nodes.settle();
        assert_eq!(made.load(Ordering::SeqCst), instance, "the restart waits for {pause} ms");
        nodes.advance(millis(1));
    }
    nodes.settle();
    assert_eq!(made.load(Ordering::SeqCst), 4);
}

/// An entity without a waiting message is not kept for the count of its failures.
#[test]
fn failures_of_lone_messages_pause_for_the_minimum() {
    let (mut nodes, made) = nodes(Supervision::Restart);
    let fragile = nodes.nodes[0].region.entity("f");
    for instances in 1..=3 {
        fragile.tell(Blow::Hard).unwrap();
        nodes.settle();
        nodes.advance(Duration::from_millis(199));
        nodes.settle();
        assert_eq!(nodes.nodes[0].region.entities(), 1, "it pauses");
        nodes.advance(Duration::from_millis(1));
        nodes.settle();
        assert_eq!(nodes.nodes[0].region.entities(), 0, "after 200 ms");
        assert_eq!(made.load(Ordering::SeqCst), instances);
    }
}

#[test]
fn ask_without_a_time_of_its_own_has_the_configured_one() {
    let settings =
        ShardingConfig { ask_timeout: Duration::from_millis(300), ..Plan::default().settings };
    let plan = Plan { settings, ..Plan::default() };
    let mut nodes = Nodes::new(&plan, |_, _| |_: &EntityId| Fragile::default());
    nodes.host(0, 0);
    let fragile = nodes.nodes[1].region.entity("f");
    let text = nodes.wait_for(async move { fragile.ask(Blow::Sleep).await }).unwrap_err();
    assert!(text.to_string().contains("300ms"), "{text}");
}
