//! Two writers of one lane: the later one has it.

use super::*;
use futures::AsyncReadExt;

#[tokio::test]
async fn a_superseded_writer_does_not_take_the_waker_of_its_successor() {
    let lane = lane(&Limits::default());
    let (there1, _here1) = pipe(Nature::default());
    let (there2, mut here2) = pipe(Nature::default());
    let first = tokio::spawn(writer::run(there1, lane.clone(), 0));
    tokio::task::yield_now().await;
    let _second = tokio::spawn(writer::run(there2, lane.clone(), 0));
    assert!(matches!(ended(first).await, Ended::Superseded));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    lane.send(&[], b"hello").expect("room");
    let mut byte = [0; 1];
    let read = tokio::time::timeout(Duration::from_secs(3), here2.read_exact(&mut byte)).await;
    assert!(read.is_ok(), "the second writer sleeps for ever: {:?}", lane.stats());
}
