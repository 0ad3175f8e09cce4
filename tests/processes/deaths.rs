//! Transport between processes on one host: a peer is killed, or paused.

use std::time::{Duration, Instant};

use crate::peer::Peer;
use crate::served::Order;

/// Starts two connected peers with an open lane between them; the first one has dialled.
async fn pair(order: &Order) -> (Peer, Peer) {
    let mut one = Peer::start(&[], order).await;
    let mut other = Peer::start(&[], order).await;
    one.keeps(&mut other).await;
    one.order(&format!("send {} 1 8", other.id)).await;
    other.becomes("the lane is open", |other| other.received == 1).await;
    one.becomes("and all is acknowledged", |one| one.unacknowledged == 0).await;
    (one, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_peer_is_detected_by_its_closed_connection() {
    // The timeout is longer than this test waits, so that it cannot be the cause.
    let long = Duration::from_secs(3_600);
    let (mut one, other) = pair(&Order { user_timeout: long, ..Order::default() }).await;
    let (id, killed_at) = (other.id, Instant::now());
    other.kill().await;
    one.tells(&format!("closed {id}")).await;
    eprintln!("a SIGKILL was detected after {:?} (goal: < 100 ms)", killed_at.elapsed());
    one.tells("dial-refused").await; // the port is closed
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_messages_of_a_killed_peer_are_counted() {
    let order = Order { link_down: Duration::from_millis(500), ..Order::default() };
    let (mut one, mut other) = pair(&order).await;
    one.order(&format!("send {} 500 100", other.id)).await;
    one.becomes("all is acknowledged", |one| one.unacknowledged == 0).await;
    assert_eq!(other.status().await.received, 501);
    other.pause().await; // it acknowledges no further message
    one.order(&format!("send {} 321 100", other.id)).await;
    one.tells("sent 822").await; // the sum, with earlier messages
    assert_eq!(one.status().await.unacknowledged, 321);
    other.kill().await;
    assert_eq!(one.tells("broken User").await, "321");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_peer_proves_the_death_of_its_old_incarnation() {
    let directory = tempfile::tempdir().expect("a directory");
    let data_dir = Some(directory.path().to_owned());
    let mut one = Peer::start(&[], &Order::default()).await;
    let mut other =
        Peer::start(&[], &Order { data_dir: data_dir.clone(), ..Order::default() }).await;
    other.keeps(&mut one).await;
    let id = other.id;
    other.kill().await;
    let mut again = Peer::start(&[], &Order { data_dir, ..Order::default() }).await;
    assert_eq!(again.id, id, "the same key");
    again.order(&format!("keep {}", one.address)).await;
    assert_eq!(one.tells(&format!("reborn {id}")).await, "true", "the lock proves the death");
    one.tells(&format!("up {id}")).await;
    one.order(&format!("send {id} 10 8")).await;
    again.becomes("the new incarnation receives", |again| again.received == 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_breaks_no_lane_and_loses_nothing() {
    let long = Duration::from_secs(3_600);
    let (mut one, mut other) = pair(&Order { user_timeout: long, ..Order::default() }).await;
    other.pause().await;
    // More than the lane and all buffers hold, so that the lane is full during the pause.
    const MESSAGES: u64 = 40_000;
    one.order(&format!("send {} {MESSAGES} 1000", other.id)).await;
    one.tells("full").await;
    // Seconds of silence, during which the connection must not be given up.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let paused = one.status().await;
    assert_eq!((paused.linked, paused.resent), (1, 0), "the connection remains: {paused:?}");
    other.go_on();
    one.tells(&format!("sent {}", MESSAGES + 1)).await;
    let other = other.becomes("all has come", |other| other.received == MESSAGES + 1).await;
    assert_eq!(other.disordered, 0);
    let one = one.becomes("all is acknowledged", |one| one.unacknowledged == 0).await;
    assert_eq!((one.linked, one.resent), (1, 0), "on the same connection as before");
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_user_timeout_detects_a_pause_with_full_buffers() {
    let link_down = Duration::from_secs(3_600);
    let order = Order { user_timeout: Duration::from_secs(1), link_down, ..Order::default() };
    let (mut one, mut other) = pair(&order).await;
    other.pause().await;
    const MESSAGES: u64 = 40_000;
    let paused_at = Instant::now();
    one.order(&format!("send {} {MESSAGES} 1000", other.id)).await;
    one.tells(&format!("closed {}", other.id)).await;
    eprintln!(
        "a pause with full buffers was detected after {:?} (bound: 1 s)",
        paused_at.elapsed()
    );
    other.go_on();
    one.tells(&format!("sent {}", MESSAGES + 1)).await;
    let status = other.becomes("all has come", |other| other.received == MESSAGES + 1).await;
    assert_eq!(status.disordered, 0);
    let status = one.becomes("all is acknowledged", |one| one.unacknowledged == 0).await;
    assert!(status.resent > 0, "sent again on another connection: {status:?}");
}
