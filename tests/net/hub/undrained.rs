//! Tests of lanes whose receiver reads nothing, or closes them each time.

use super::*;
use crate::nodes::{self, Node, Seen};

#[test]
fn a_control_lane_keeps_16_mib() {
    assert_eq!(NetLimits::default().lane_bytes_max(TrafficClass::Control), 16 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_control_reader_is_disconnected_and_loss_counted() {
    let idle_timeout = SOON; // must not be the reason to close it
    let limits = NetLimits { lane_bytes_max: [64 * 1024; 4], idle_timeout, ..quick().limits };
    let config = NetConfig { limits, ..quick() };
    let (mut a, b) = pair_with_room(&config, 0).await;
    a.net.release(b.id().peer); // it could be back before its old connection is gone
    let to = b.id().incarnation;
    let lane = a.net.lane(to, TrafficClass::Control).expect("known");
    let mut sent = 0_u64;
    while lane.send(&[], &[&sent.to_be_bytes()[..], &[0; 92]].concat()).is_ok() {
        sent += 1;
    }
    let (mut lost, mut closed) = (None, false);
    let both = a.event("it is counted, and disconnected", |event| {
        match event {
            NetEvent::LaneBroken { class: TrafficClass::Control, messages, .. } => {
                lost = Some(messages);
            }
            NetEvent::Closed { .. } => closed = true,
            NetEvent::LaneBroken { .. } => panic!("only control is given up"),
            _ => {}
        }
        lost.filter(|_| closed)
    });
    assert_eq!(both.await, sent, "none was accepted");
    a.keep(&b);
    b.inbox.room.store(1_000, Ordering::SeqCst);
    eventually("the next lane has room, and is read", async || {
        let lane = a.net.lane(to, TrafficClass::Control).expect("known");
        let _ = lane.send(&[], b"anew"); // refused while the old one is not yet given up
        b.inbox.take().iter().any(|(_, _, body)| body == b"anew")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_control_reader_is_disconnected_without_loss() {
    let limits = NetLimits {
        control_undrained_max: Duration::from_millis(500),
        link_down_max: SOON,
        idle_timeout: SOON, // must not be the reason to close it
        ..quick().limits
    };
    let config = NetConfig { limits, ..quick() };
    let (mut a, b) = pair_with_room(&config, 0).await;
    a.net.release(b.id().peer); // it could be back before its old connection is gone
    for n in 0..100_u64 {
        a.send(b.id().incarnation, TrafficClass::Control, &n.to_be_bytes());
    }
    let closed = a.event("it is disconnected", |event| match event {
        NetEvent::Closed { node } => Some(node),
        NetEvent::LaneBroken { .. } => panic!("nothing is given up: {event:?}"),
        _ => None,
    });
    assert_eq!(closed.await, b.id());
    a.keep(&b);
    b.inbox.room.store(usize::MAX / 2, Ordering::SeqCst);
    receives_in_order(&b, 100).await;
    while let Ok(event) = a.events.try_recv() {
        assert!(!matches!(event, NetEvent::LaneBroken { .. }), "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_data_lane_does_not_disconnect() {
    let limits = NetLimits { lane_bytes_max: [64 * 1024; 4], ..quick().limits };
    let config = NetConfig { limits, ..quick() };
    let (mut a, b) = pair_with_room(&config, 0).await;
    let to = b.id().incarnation;
    let lane = a.net.lane(to, TrafficClass::Data).expect("known");
    let mut sent = 0_u64;
    while lane.send(&[], &sent.to_be_bytes()).is_ok() {
        sent += 1;
    }
    // A control lane that overflows is detected within two checks; this one must not be.
    tokio::time::sleep(Duration::from_secs(3)).await;
    b.inbox.room.store(usize::MAX / 2, Ordering::SeqCst);
    receives_in_order(&b, sent).await;
    while let Ok(event) = a.events.try_recv() {
        assert!(
            !matches!(event, NetEvent::Closed { .. } | NetEvent::LaneBroken { .. }),
            "{event:?}"
        );
    }
}

/// The peer accepts a lane and drops it at once.
#[tokio::test(flavor = "multi_thread")]
async fn lane_that_always_breaks_is_abandoned_and_counted() {
    // Between two attempts the connection has no lane, and must not be closed as idle.
    let limits = NetLimits { idle_timeout: SOON, ..quick().limits };
    let config = NetConfig { secret: Some(nodes::secret(1)), limits, ..quick() };
    let mut host = TestNode::start(&config).await;
    let mut node = Node::start(nodes::config()).await;
    host.net.keep(node.peer(), vec![node.address.clone()]);
    let id = host.up().await;
    let lane = host.net.lane(id.incarnation, TrafficClass::User).expect("known");
    for _ in 0..3 {
        lane.send(&[], &[7; 60_000]).expect("room");
    }
    let drops = async {
        loop {
            node.next("a lane", |seen| matches!(seen, Seen::Lane(_)).then_some(())).await;
        }
    };
    let given_up = host.event("it is given up", |event| match event {
        NetEvent::LaneBroken { node, class, messages } => Some((node, class, messages)),
        NetEvent::Closed { .. } => panic!("the connection is as good as before"),
        _ => None,
    });
    let given_up = tokio::select! {
        given_up = given_up => given_up,
        () = drops => unreachable!("it never ends"),
    };
    assert_eq!(given_up, (id, TrafficClass::User, 3));
    let resent = lane.stats().resent;
    assert!(resent <= 3 * 6, "{resent} messages sent again"); // and with pauses in between
    let next = host.net.lane(id.incarnation, TrafficClass::User).expect("known");
    assert!(next.next_generation() > lane.next_generation());
    next.send(&[], b"anew").expect("room");
    assert_eq!(host.net.stats().await.given_up, 3);
}

/// A node with a low limit announces it to its peers, and accepts that their limit is higher.
#[tokio::test(flavor = "multi_thread")]
async fn announced_frame_limit_is_respected() {
    let small = NetConfig { limits: NetLimits { frame_bytes_max: 1, ..quick().limits }, ..quick() };
    let (mut a, mut b) = (TestNode::start(&quick()).await, TestNode::start(&small).await);
    a.keep(&b);
    assert_eq!((a.up().await, b.up().await), (b.id(), a.id()));
    for (from, to) in [(&a, &b), (&b, &a)] {
        for class in TrafficClass::ALL {
            from.send(to.id().incarnation, class, &[7; 60_000]);
        }
        eventually("all arrive", async || to.inbox.got.lock().expect("not poisoned").len() == 4)
            .await;
        assert!(to.inbox.take().iter().all(|(_, _, body)| body.len() == 60_000));
    }
    for host in [&a, &b] {
        assert_eq!(host.net.stats().await.violations, 0);
    }
}
