//! Tests of a lane's outbound queue: the number of bytes ahead of a short message is bounded, and a
//! lane without a connection can refuse messages.

use super::*;

const LONG_BODY: usize = 100_000;

/// Creates a lane, and the turn of its writer.
fn lane(class: TrafficClass) -> (OutboundQueue, u64) {
    let mut lane = OutboundQueue::new(class, &NetLimits::default());
    let turn = lane.resume(0).expect("nothing was accepted");
    (lane, turn)
}

fn append(lane: &mut OutboundQueue, bytes: usize) -> bool {
    match lane.append(&["type"], &vec![7; bytes]) {
        Ok(_) => true,
        Err(SendError::Full { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Appends messages of this length until one is rejected. Returns how many were accepted.
fn fill(lane: &mut OutboundQueue, bytes: usize) -> usize {
    std::iter::from_fn(|| append(lane, bytes).then_some(())).count()
}

/// Makes the writer send one chunk. Returns whether callers waiting for room may try again.
fn send_chunk(lane: &mut OutboundQueue, turn: u64) -> bool {
    let taken = lane.take(turn, &mut Vec::new());
    assert!(matches!(taken, WriterStep::Chunk(..) | WriterStep::Copied), "{taken:?}");
    lane.room_again()
}

#[test]
fn short_message_has_bounded_bytes_ahead() {
    let (mut lane, turn) = lane(TrafficClass::User);
    let first = fill(&mut lane, LONG_BODY);
    assert_eq!(first, 3, "until more than {AHEAD_OF_LONG} bytes are unsent");
    assert!(lane.unsent_bytes() <= AHEAD_OF_LONG + LONG_BODY + 1_000);
    assert!(append(&mut lane, 100), "a short one passes");
    assert!(!lane.has_room());
    while !send_chunk(&mut lane, turn) {}
    assert!(lane.has_room() && lane.unsent_bytes() <= AHEAD_OF_LONG);
    assert!(append(&mut lane, LONG_BODY), "its turn has come");
}

#[test]
fn short_messages_cannot_keep_a_long_one_waiting() {
    let (mut lane, turn) = lane(TrafficClass::User);
    fill(&mut lane, LONG_BODY);
    let passed = fill(&mut lane, 1_000);
    let most = PASSING_MAX / 1_000;
    assert!((most - most / 20..=most).contains(&passed), "{passed} messages passed");
    assert!(!append(&mut lane, 1_000) && !append(&mut lane, LONG_BODY));
    while !send_chunk(&mut lane, turn) {}
    assert!(append(&mut lane, LONG_BODY));
    assert!(append(&mut lane, 1_000), "both have room again");
}

#[test]
fn abandoned_lane_forgets_a_rejected_long_message() {
    let (mut lane, turn) = lane(TrafficClass::User);
    let accepted = fill(&mut lane, LONG_BODY);
    let taken = lane.take(turn, &mut Vec::new());
    assert!(matches!(taken, WriterStep::Chunk(..)), "its bytes are in flight: {taken:?}");
    assert_eq!(lane.give_up(), accepted as u64);
    let last = lane.take(turn, &mut Vec::new());
    assert!(matches!(last, WriterStep::Superseded), "{last:?}");
    assert!(!lane.room_again(), "the abandoned lane has notified the waiting callers");
    assert!(lane.has_room());
}

#[test]
fn answers_and_other_lanes_take_long_messages_behind_many_bytes() {
    let (mut user, _turn) = lane(TrafficClass::User);
    fill(&mut user, LONG_BODY);
    assert!(user.append_answer(&["type"], &vec![7; LONG_BODY]).is_ok());
    let (mut data, _turn) = lane(TrafficClass::Data);
    assert!(fill(&mut data, LONG_BODY) > 100);
}

#[test]
fn lane_without_a_writer_refuses_only_connected_messages() {
    let mut lane = OutboundQueue::new(TrafficClass::User, &NetLimits::default());
    let send = |lane: &mut OutboundQueue| lane.append_connected(&["type"], b"body").map(drop);
    assert!(lane.has_room());
    assert_eq!(send(&mut lane), Err(SendError::Unconnected));
    assert!(!lane.has_room(), "callers wait for a connection");
    assert!(append(&mut lane, 10) && lane.append_answer(&["type"], b"answer").is_ok());
    assert_eq!(lane.stats().unacknowledged, 2, "the refused one is in no queue");

    let first = lane.resume(0).expect("nothing was accepted");
    assert!(lane.has_room());
    assert_eq!(send(&mut lane), Ok(()));
    let second = lane.resume(0).expect("nothing was accepted");
    lane.disconnect(first);
    assert_eq!(send(&mut lane), Ok(()), "the second writer has a connection");
    lane.disconnect(second);
    assert_eq!(send(&mut lane), Err(SendError::Unconnected));
    let too_long = vec![0; NetLimits::default().message_bytes_max + 1];
    let refused = lane.append_connected(&["type"], &too_long);
    assert!(matches!(refused, Err(SendError::TooLong { .. })), "no connection helps it");

    assert_eq!(lane.give_up(), 4);
    assert!(lane.has_room(), "nobody waits for a lane that has ended");
    assert_eq!(send(&mut lane), Err(SendError::Broken));
}
