//! Tests of paused readers, full lanes, long messages and orderly ends.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use ostraca::net::lane::SendError;

use super::*;

#[tokio::test]
async fn paused_reader_fills_the_lane_then_all_arrives_in_order() {
    let limits = NetLimits { lane_bytes_max: [300_000; 4], ..NetLimits::default() };
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    inbox.pause();
    let (_writer, _reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    let mut sent = 0_u32;
    let refused = loop {
        match lane.send(&["tell"], &sent.to_le_bytes()) {
            Ok(()) => sent += 1,
            Err(refused) => break refused,
        }
        if sent.is_multiple_of(1_000) {
            tokio::task::yield_now().await;
        }
    };
    assert!(matches!(refused, SendError::Full { kept: 299_900..=300_000, max: 300_000 }));
    until(|| inbox.refused() == 1).await; // it was offered once, and not again before ready()
    let stats = lane.stats();
    assert_eq!((stats.unacknowledged, stats.acknowledged), (u64::from(sent), 0));
    assert!(stats.undrained_since.is_some());
    let mut room = Box::pin(lane.room());
    assert!(futures::poll!(&mut room).is_pending());

    inbox.go_on();
    room.await;
    lane.send(&["tell"], &sent.to_le_bytes()).expect("there is room again");
    inbox.holds(sent as usize + 1).await;
    until(|| lane.stats().unacknowledged == 0).await;
    let expected: Vec<Vec<u8>> = (0..=sent).map(|number| number.to_le_bytes().to_vec()).collect();
    assert!(inbox.bodies() == expected);
    assert_eq!(lane.stats().undrained_since, None);
    assert_eq!((inbound.stats().busy, inbound.stats().accepted), (1, u64::from(sent) + 1));
}

#[tokio::test]
async fn waiting_messages_are_written_together() {
    let limits = NetLimits::default();
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    for _ in 0..10_000 {
        lane.send(&["tell"], &[1; 100]).expect("there is room");
    }
    let (_writer, _reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    inbox.holds(10_000).await;
    assert_eq!(lane.stats().batches, (10_000 * 108_u64).div_ceil(65_536));
}

#[tokio::test]
async fn window_bounds_unacknowledged_bytes() {
    let limits = NetLimits { lane_window: 200_000, ..NetLimits::default() };
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    inbox.pause();
    for _ in 0..10_000 {
        lane.send(&[], &[1; 94]).expect("there is room");
    }
    let wide = Nature { capacity: 1 << 30, ..Nature::default() };
    let (_writer, _reader) = connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, wide).await;
    until(|| inbox.refused() == 1).await;
    let sent = lane.stats().sent;
    assert!((2_000..2_000 + 656).contains(&sent), "{sent} messages of 100 bytes");
    inbox.go_on();
    inbox.holds(10_000).await;
}

#[tokio::test]
async fn known_failure_17_a_message_longer_than_a_frame_arrives_whole() {
    for frame_bytes_max in [8_192, 65_536] {
        let limits = NetLimits { frame_bytes_max, ..NetLimits::default() };
        let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
        let (_writer, _reader) =
            connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
        let around = |len: usize| len - 30..len + 30;
        let lens = around(frame_bytes_max).chain(around(2 * frame_bytes_max));
        let lens: Vec<usize> = lens.chain(around(65_536)).chain([4 << 20]).collect();
        for (at, &len) in lens.iter().enumerate() {
            let body: Vec<u8> = (0..len).map(|byte| (byte / 251 + at) as u8).collect();
            while lane.send(&["state", &format!("key-{at}")], &body).is_err() {
                lane.room().await;
            }
            inbox.holds(at + 1).await;
            let (fields, got) = inbox.taken.lock().expect("no panic inside").messages[at].clone();
            assert_eq!(fields, ["state".to_owned(), format!("key-{at}")]);
            assert!(got == body, "{len} bytes in frames of {frame_bytes_max}");
        }
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_where_it_is_sent() {
    let lane = lane(&NetLimits::default());
    let max = 4 << 20;
    let body = vec![0; max + 1];
    assert_eq!(lane.send(&["a"], &body), Err(SendError::TooLong { len: max + 1, max }));
    lane.send(&["a"], &body[..max]).expect("exactly the limit");
    lane.limit_messages(1_000);
    assert_eq!(lane.send(&[], &body[..1_001]), Err(SendError::TooLong { len: 1_001, max: 1_000 }));
    lane.limit_messages(2_000);
    assert_eq!(lane.send(&[], &body[..1_001]), Err(SendError::TooLong { len: 1_001, max: 1_000 }));
    assert_eq!(lane.send(&["a"; 5], b""), Err(SendError::Header));
    assert_eq!(lane.stats().appended, 1);
}

#[tokio::test]
async fn message_longer_than_the_lane_is_sent_alone() {
    let limits = NetLimits { lane_bytes_max: [1_000; 4], lane_window: 1, ..NetLimits::default() };
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    lane.send(&[], &[1; 500_000]).expect("it is alone");
    assert!(matches!(lane.send(&[], b""), Err(SendError::Full { .. })));
    let (_writer, _reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    lane.room().await;
    lane.send(&[], &[2; 500_000]).expect("it is alone again");
    inbox.holds(2).await;
}

#[tokio::test]
async fn a_lane_ends_in_order_only_when_all_was_acknowledged() {
    let limits = NetLimits::default();
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    inbox.pause();
    lane.send(&[], b"last").expect("there is room");
    let (writer, reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    lane.finish();
    assert_eq!(lane.send(&[], b"later"), Err(SendError::Broken));
    until(|| inbox.refused() == 1).await;
    assert!(!writer.is_finished() && !reader.is_finished());
    inbox.go_on();
    assert!(matches!(ended(writer).await, LaneEnd::Finished));
    assert!(matches!(ended(reader).await, LaneEnd::Finished));
    assert_eq!(inbox.bodies(), [b"last"]);
    assert_eq!(lane.break_off(), 0);
}

#[tokio::test]
async fn later_writer_continues_and_earlier_one_ends() {
    let limits = NetLimits::default();
    let (lane, inbound, inbox) = (lane(&limits), InboundLane::new(), Inbox::new());
    let (first, _reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    tokio::task::yield_now().await;
    let (_second, _reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&inbox) as _, Nature::default()).await;
    let end = ended(first).await;
    assert!(matches!(end, LaneEnd::Superseded | LaneEnd::Broken(_)), "{end:?}");
    lane.send(&[], b"on").expect("there is room");
    inbox.holds(1).await;
}

// ── No deadlock ──

/// Answers every request on the lane back, and counts the answers to its own requests.
struct EchoReceiver {
    back: Lane,
    requests: Mutex<u64>,
    answers: Mutex<u64>,
}

impl Receiver for EchoReceiver {
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy> {
        if message.fields.is_empty() {
            *self.answers.lock().expect("no panic inside") += 1;
            return Ok(());
        }
        // Production code drops and counts a rejected answer; here the test would fail.
        match self.back.answer(&[], message.body) {
            Ok(()) => *self.requests.lock().expect("no panic inside") += 1,
            Err(SendError::Full { .. }) => return Err(Busy),
            Err(cause) => panic!("{cause}"),
        }
        Ok(())
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        self.back.room().boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_failure_30_saturated_nodes_never_deadlock() {
    const REQUESTS: u64 = 100_000;
    const IN_FLIGHT: u64 = 5_000;
    let limits =
        NetLimits { lane_bytes_max: [200_000; 4], lane_window: 100_000, ..NetLimits::default() };
    let lanes = [lane(&limits), lane(&limits)];
    let nodes = [1, 0].map(|back: usize| {
        let back = lanes[back].clone();
        Arc::new(EchoReceiver { back, requests: Mutex::new(0), answers: Mutex::new(0) })
    });
    let narrow = Nature { capacity: 10_000, ..Nature::default() };
    let mut senders = Vec::new();
    for at in 0..2 {
        // The lane from one node to the other, where it is read; the requests are sent from this
        // node.
        let (lane, here) = (lanes[at].clone(), Arc::clone(&nodes[1 - at]));
        let there = Arc::clone(&nodes[at]);
        let inbound = InboundLane::new();
        connect(&lane, &inbound, &limits, there, narrow.clone()).await;
        senders.push(tokio::spawn(async move {
            for made in 0..REQUESTS {
                while made - *here.answers.lock().expect("no panic inside") >= IN_FLIGHT {
                    tokio::task::yield_now().await;
                }
                while lane.send(&["ask"], &[5; 60]).is_err() {
                    lane.room().await;
                }
            }
        }));
    }
    let all = async {
        for sender in senders {
            sender.await.expect("the sender ends well");
        }
        let answered = |node: &Arc<EchoReceiver>| *node.answers.lock().expect("no panic inside");
        until(|| nodes.iter().all(|node| answered(node) == REQUESTS)).await;
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("no deadlock");
    let requests = nodes.map(|node| *node.requests.lock().expect("no panic inside"));
    assert_eq!(requests, [REQUESTS; 2]);
}

/// Measures how many messages arrive without another task running in between. Each has this weight.
struct Heavy {
    weight: usize,
    others: Arc<AtomicU64>,     // polls of another task
    since: Mutex<(u64, usize)>, // that number at the last message, and messages since
    most: Mutex<usize>,         // messages at once
}

impl Receiver for Heavy {
    fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
        let mut since = self.since.lock().expect("no panic inside");
        let polls = self.others.load(Ordering::Relaxed);
        *since = if since.0 == polls { (polls, since.1 + 1) } else { (polls, 1) };
        let mut most = self.most.lock().expect("no panic inside");
        *most = since.1.max(*most);
        Ok(())
    }

    fn weight(&self, _: &Inbound<'_>) -> usize {
        self.weight
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

#[tokio::test(flavor = "current_thread")]
async fn reader_yields_by_message_weight() {
    for (weight, at_once) in [(1, 128), (4, 32), (1_000, 1)] {
        let (limits, others) = (NetLimits::default(), Arc::<AtomicU64>::default());
        let heavy = Heavy {
            weight,
            others: Arc::clone(&others),
            since: Mutex::default(),
            most: Mutex::default(),
        };
        let (lane, heavy) = (lane(&limits), Arc::new(heavy));
        (0..1_000).for_each(|_| lane.send(&[], b"heavy").expect("there is room"));
        lane.finish();
        let busy = tokio::spawn(poll_fn(move |cx| {
            others.fetch_add(1, Ordering::Relaxed);
            cx.waker().wake_by_ref(); // at the end of the queue
            Poll::<()>::Pending
        }));
        let inbound = InboundLane::new();
        let (writer, reader) =
            connect(&lane, &inbound, &limits, Arc::clone(&heavy) as _, Nature::default()).await;
        assert!(matches!(ended(writer).await, LaneEnd::Finished));
        assert!(matches!(ended(reader).await, LaneEnd::Finished));
        assert_eq!(*heavy.most.lock().expect("no panic inside"), at_once, "of weight {weight}");
        busy.abort();
    }
}

/// Is busy for long, but reports that it is ready.
struct Hasty {
    others: Arc<AtomicU64>, // polls of another task
    tries: Mutex<Vec<u64>>, // that number at each offer
}

impl Receiver for Hasty {
    fn receive(&self, _: Inbound<'_>) -> Result<(), Busy> {
        let mut tries = self.tries.lock().expect("no panic inside");
        tries.push(self.others.load(Ordering::Relaxed));
        if tries.len() < 1_000 { Err(Busy) } else { Ok(()) }
    }

    fn ready(&self, _: TrafficClass) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

#[tokio::test(flavor = "current_thread")]
async fn falsely_ready_receiver_does_not_block_other_tasks() {
    let (limits, others) = (NetLimits::default(), Arc::<AtomicU64>::default());
    let hasty = Arc::new(Hasty { others: Arc::clone(&others), tries: Mutex::default() });
    let (lane, inbound) = (lane(&limits), InboundLane::new());
    lane.send(&[], b"at last").expect("there is room");
    lane.finish();
    let busy = tokio::spawn(poll_fn(move |cx| {
        others.fetch_add(1, Ordering::Relaxed);
        cx.waker().wake_by_ref(); // at the end of the queue
        Poll::<()>::Pending
    }));
    let (writer, reader) =
        connect(&lane, &inbound, &limits, Arc::clone(&hasty) as _, Nature::default()).await;
    assert!(matches!(ended(writer).await, LaneEnd::Finished));
    assert!(matches!(ended(reader).await, LaneEnd::Finished));
    let tries = hasty.tries.lock().expect("no panic inside");
    assert_eq!(tries.len(), 1_000);
    let mut others_since = tries[1..].windows(2).map(|two| two[1] - two[0]);
    assert!(others_since.all(|polls| polls > 0), "{tries:?}");
    busy.abort();
}
