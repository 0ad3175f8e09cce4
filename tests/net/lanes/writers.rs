//! Tests of the writers of a lane: the later of two, and senders that write inline for an idle one.

use super::*;
use futures::AsyncReadExt;
use ostraca::net::lane::SendError;

/// A writer without anything to write.
async fn resting(lane: &Lane) -> (JoinHandle<LaneEnd>, PipeEnd) {
    let (there, here) = pipe(Nature::default());
    let writer = tokio::spawn(writer::run(there, lane.clone(), 0));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    (writer, here)
}

#[tokio::test]
async fn lone_message_is_written_inline_and_many_are_batched() {
    let lane = lane(&NetLimits::default());
    let (_writer, mut here) = resting(&lane).await;
    lane.send(&[], b"alone").expect("room");
    assert_eq!((lane.stats().unsent, lane.stats().batches), (0, 1), "no other task has run");
    let mut byte = [0; 1];
    here.read_exact(&mut byte).await.expect("it is flushed");
    for _ in 0..1_000 {
        lane.send(&[], b"one of many").expect("room");
    }
    until(|| lane.stats().unsent == 0).await;
    assert!(lane.stats().batches < 20, "each was written alone: {:?}", lane.stats());
}

/// Each burst is sent without an await, like the responses of an entity to messages from its
/// mailbox. The writer learns that messages rarely come alone.
#[tokio::test]
async fn short_bursts_are_written_together() {
    for length in [2, 3, 5, 8, 9, 16] {
        let lane = lane(&NetLimits::default());
        let (_writer, mut here) = resting(&lane).await;
        tokio::spawn(async move { here.read_to_end(&mut Vec::new()).await });
        for _ in 0..200 {
            (0..length).for_each(|_| lane.send(&[], b"one of a few").expect("room"));
            until(|| lane.stats().unsent == 0).await;
        }
        let batches = lane.stats().batches;
        assert!(batches < 250, "{length} at a time: {batches} writes for 200 bursts");
    }
}

#[tokio::test]
async fn no_inline_write_after_the_writer_ended() {
    let lane = lane(&NetLimits::default());
    let (writer, mut here) = resting(&lane).await;
    writer.abort();
    assert!(writer.await.expect_err("aborted").is_cancelled());
    lane.send(&[], b"kept").expect("room");
    assert_eq!(lane.stats().unsent, 1);
    assert_eq!(lane.send_connected(&[], b"refused"), Err(SendError::Unconnected));
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), here.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "its substream has ended with it");
    assert_eq!(rest, b"");
    let (_writer, mut here) = resting(&lane).await;
    let mut byte = [0; 1];
    here.read_exact(&mut byte).await.expect("the next one has written it");
    lane.send(&[], b"alone").expect("room");
    assert_eq!(lane.stats().unsent, 0, "and senders write inline for it");
}

#[tokio::test]
async fn a_superseded_writer_does_not_take_the_waker_of_its_successor() {
    let lane = lane(&NetLimits::default());
    let (there1, _here1) = pipe(Nature::default());
    let (there2, mut here2) = pipe(Nature::default());
    let first = tokio::spawn(writer::run(there1, lane.clone(), 0));
    tokio::task::yield_now().await;
    let _second = tokio::spawn(writer::run(there2, lane.clone(), 0));
    assert!(matches!(ended(first).await, LaneEnd::Superseded));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    lane.send(&[], b"hello").expect("room");
    let mut byte = [0; 1];
    let read = tokio::time::timeout(Duration::from_secs(3), here2.read_exact(&mut byte)).await;
    assert!(read.is_ok(), "the second writer sleeps for ever: {:?}", lane.stats());
}
