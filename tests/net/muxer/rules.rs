//! Tests of streams, limits and violations. The other end reads and writes frames by hand.

use futures::FutureExt;
use futures::io::{AsyncRead, AsyncWrite};
use futures::task::noop_waker;
use ostraca::net::muxer::{MuxerError, MuxerViolation, Stream};
use proptest::prelude::*;
use std::io::ErrorKind;
use std::task::Context;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_util::compat::Compat;

use super::peer::{
    ACK, DATA, Deaf, FIN, FlushedSocket, GOODBYE, PING, RST, SYN, WINDOW, data, frame,
};
use super::*;

pub(super) const FIRST: usize = 256 * 1024;
const MAX: usize = 1024 * 1024;

pub(super) type TestSocket = FlushedSocket<Compat<DuplexStream>>;

/// A muxer on the accepting side, and the bare socket of the other end.
pub(super) fn by_hand(capacity: usize) -> (Muxer<TestSocket>, DuplexStream) {
    let (near, far) = tokio::io::duplex(capacity);
    (dialled(FlushedSocket::new(near.compat())), far)
}

/// Polls the muxer until nothing more happens. Returns its end, if it ended.
pub(super) fn run(muxer: &mut Muxer<TestSocket>) -> Option<MuxerError> {
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    for _ in 0..100 {
        if let Poll::Ready(ended) = Pin::new(&mut *muxer).poll(&mut cx) {
            return ended.err();
        }
    }
    None
}

pub(super) fn arrived(muxer: &mut Muxer<TestSocket>) -> Option<Stream<TestSocket>> {
    let waker = noop_waker();
    match Pin::new(muxer).poll_inbound(&mut Context::from_waker(&waker)) {
        Poll::Ready(stream) => Some(stream.expect("the connection is open")),
        Poll::Pending => None,
    }
}

pub(super) fn opened(muxer: &mut Muxer<TestSocket>) -> Option<Stream<TestSocket>> {
    let waker = noop_waker();
    match Pin::new(muxer).poll_outbound(&mut Context::from_waker(&waker)) {
        Poll::Ready(stream) => Some(stream.expect("the connection is open")),
        Poll::Pending => None,
    }
}

/// Reads the bytes that are available now.
pub(super) fn read(stream: &mut Stream<TestSocket>, most: usize) -> Poll<std::io::Result<Vec<u8>>> {
    let waker = noop_waker();
    let mut bytes = vec![0; most];
    let read = Pin::new(stream).poll_read(&mut Context::from_waker(&waker), &mut bytes);
    read.map_ok(|len| bytes[..len].to_vec())
}

/// Writes as much as is accepted at once, and returns the number of bytes.
pub(super) fn write(stream: &mut Stream<TestSocket>, bytes: &[u8]) -> usize {
    let waker = noop_waker();
    let written = Pin::new(stream).poll_write(&mut Context::from_waker(&waker), bytes);
    match written {
        Poll::Ready(len) => len.expect("it is open"),
        Poll::Pending => 0,
    }
}

fn flush(stream: &mut Stream<TestSocket>) {
    stream.flush().now_or_never().expect("at once").expect("it is open");
}

/// Reads this many bytes at the other end.
pub(super) async fn found(far: &mut DuplexStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    soon(far.read_exact(&mut bytes)).await.expect("so much is there");
    bytes
}

pub(super) fn nothing_more(far: &mut DuplexStream) {
    let mut bytes = [0; 64];
    let more = far.read(&mut bytes).now_or_never();
    assert!(more.is_none(), "there is more: {more:?} {bytes:?}");
}

#[tokio::test]
async fn stream_frames_match_the_specification() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    far.write_all(&data(SYN, 1, b"hello")).await.expect("room");
    assert!(run(&mut muxer).is_none());
    let mut theirs = arrived(&mut muxer).expect("it has arrived");
    assert!(matches!(read(&mut theirs, 9), Poll::Ready(Ok(bytes)) if bytes == b"hello"));
    assert_eq!(write(&mut theirs, b"yes"), 3);
    flush(&mut theirs);
    assert_eq!(found(&mut far, 15).await, data(ACK, 1, b"yes"));
    far.write_all(&data(FIN, 1, b"bye")).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert!(matches!(read(&mut theirs, 9), Poll::Ready(Ok(bytes)) if bytes == b"bye"));
    assert!(matches!(read(&mut theirs, 9), Poll::Ready(Ok(bytes)) if bytes.is_empty()));
    theirs.close().await.expect("it is open");
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, FIN, 1, 0));
    drop(theirs);
    assert!(run(&mut muxer).is_none());
    nothing_more(&mut far);

    let mut ours = opened(&mut muxer).expect("there is room");
    assert_eq!(write(&mut ours, b"ah"), 2);
    flush(&mut ours);
    assert_eq!(found(&mut far, 14).await, data(SYN, 2, b"ah"));
    drop(ours);
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, RST, 2, 0));
    let unsaid = opened(&mut muxer).expect("there is room");
    drop(unsaid);
    assert!(run(&mut muxer).is_none());
    nothing_more(&mut far);
}

#[tokio::test]
async fn flush_writes_without_polling_the_connection() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    assert!(run(&mut muxer).is_none());
    let mut stream = opened(&mut muxer).expect("there is room");
    assert_eq!(write(&mut stream, b"now"), 3);
    nothing_more(&mut far);
    flush(&mut stream);
    assert_eq!(found(&mut far, 15).await, data(SYN, 2, b"now"));
}

#[tokio::test]
async fn written_data_is_sent_after_its_stream_is_dropped() {
    // The socket is full, so that the data waits.
    for (flags, end) in [(SYN, RST), (SYN | FIN, FIN)] {
        let (mut muxer, mut far) = by_hand(64 * 1024);
        far.write_all(&data(flags, 1, b"why?")).await.expect("room");
        assert!(run(&mut muxer).is_none());
        let mut stream = arrived(&mut muxer).expect("it has arrived");
        let mut filling = opened(&mut muxer).expect("room");
        while write(&mut filling, &[7; 64 * 1024]) > 0 {
            assert!(run(&mut muxer).is_none());
        }
        assert_eq!(write(&mut stream, b"because"), 7);
        flush(&mut stream);
        drop(stream);
        let mut heard = Vec::new();
        let mut bytes = vec![0; 64 * 1024];
        for _ in 0..100 {
            tokio::task::yield_now().await; // renews the coop budget
            assert!(run(&mut muxer).is_none());
            if let Some(len) = far.read(&mut bytes).now_or_never() {
                heard.extend_from_slice(&bytes[..len.expect("it is open")]);
            }
        }
        let last = match end {
            RST => [data(ACK, 1, b"because"), frame(DATA, RST, 1, 0)].concat(),
            _ => data(ACK | FIN, 1, b"because"),
        };
        assert!(heard.ends_with(&last), "{:?}", &heard[heard.len() - 40..]);
    }
}

#[tokio::test]
async fn credit_is_sent_without_a_flush() {
    let (mut muxer, mut stream, mut sender) = sending().await;
    sender.send(FIRST).await;
    assert!(run(&mut muxer).is_none());
    let is_woken = polled(&mut muxer);
    assert_eq!(write(&mut stream, b"later"), 5);
    assert!(!is_woken(), "a flush is to follow");
    while read(&mut stream, FIRST).is_ready() {}
    assert!(is_woken());
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut sender.far, 12).await[..4], [0, WINDOW, 0, ACK]);
}

struct CountingWaker(AtomicUsize);

impl std::task::Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls the muxer once. The returned function tells whether it was woken since then.
fn polled(muxer: &mut Muxer<TestSocket>) -> impl Fn() -> bool + use<> {
    let woken = Arc::new(CountingWaker(AtomicUsize::new(0)));
    let waker = Arc::clone(&woken).into();
    assert!(Pin::new(muxer).poll(&mut Context::from_waker(&waker)).is_pending());
    move || woken.0.load(Ordering::Relaxed) > 0
}

#[tokio::test]
async fn writer_stops_at_the_window_and_resumes_on_credit() {
    let (mut muxer, mut far) = by_hand(8 << 20);
    let mut stream = opened(&mut muxer).expect("there is room");
    let plenty = vec![7; 2 << 20];
    let mut sent = 0;
    loop {
        match write(&mut stream, &plenty) {
            0 => break,
            len => sent += len,
        }
        assert!(run(&mut muxer).is_none());
    }
    assert_eq!(sent, FIRST);
    far.write_all(&frame(WINDOW, ACK, 2, 1000)).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert_eq!(write(&mut stream, &plenty), 1000);
    assert_eq!(write(&mut stream, &plenty), 0);
}

/// Sends as much as its credit allows, and keeps count of the credit.
struct CreditSender {
    far: DuplexStream,
    credit: usize,
    heard: Vec<u8>,
}

impl CreditSender {
    async fn send(&mut self, len: usize) {
        self.credit -= len;
        self.far.write_all(&data(0, 1, &vec![3; len])).await.expect("room");
    }

    fn listen(&mut self) {
        let mut bytes = [0; 4096];
        while let Some(len) = self.far.read(&mut bytes).now_or_never() {
            self.heard.extend(&bytes[..len.expect("it is open")]);
        }
        while let Some(frame) = self.heard.first_chunk::<12>().copied() {
            self.heard.drain(..12);
            assert_eq!(frame[1], WINDOW);
            let len = u32::from_be_bytes([frame[8], frame[9], frame[10], frame[11]]);
            self.credit += len as usize;
        }
    }
}

async fn sending() -> (Muxer<TestSocket>, Stream<TestSocket>, CreditSender) {
    let (mut muxer, mut far) = by_hand(8 << 20);
    far.write_all(&frame(WINDOW, SYN, 1, 0)).await.expect("room");
    assert!(run(&mut muxer).is_none());
    let stream = arrived(&mut muxer).expect("it has arrived");
    (muxer, stream, CreditSender { far, credit: FIRST, heard: Vec::new() })
}

/// Sends up to `most` bytes and reads them all at once; then the sender receives its credit.
async fn pass(
    muxer: &mut Muxer<TestSocket>,
    stream: &mut Stream<TestSocket>,
    sender: &mut CreditSender,
    most: usize,
) {
    let len = sender.credit.min(most);
    assert!(len > 0, "it may always go on");
    sender.send(len).await;
    assert!(run(muxer).is_none());
    while let Poll::Ready(Ok(bytes)) = read(stream, 1 << 20) {
        assert!(!bytes.is_empty());
    }
    assert!(run(muxer).is_none());
    sender.listen();
}

#[tokio::test]
async fn window_grows_for_slow_and_shrinks_for_fast_readers() {
    let (mut muxer, mut stream, mut sender) = sending().await;
    let (mut unread, mut most) = (0, 0);
    // Before each read, the sender has used all of its credit.
    for _ in 0..200 {
        unread += sender.credit;
        let all = sender.credit;
        sender.send(all).await;
        assert!(run(&mut muxer).is_none());
        most = most.max(unread);
        if let Poll::Ready(Ok(bytes)) = read(&mut stream, 40_000) {
            unread -= bytes.len();
        }
        assert!(run(&mut muxer).is_none());
        sender.listen();
    }
    // The last buffer, which the reader holds but has not consumed, does not count.
    assert!((MAX..=MAX + 64 * 1024).contains(&most), "{most}");
    while let Poll::Ready(Ok(bytes)) = read(&mut stream, 1 << 20) {
        unread -= bytes.len();
    }
    assert_eq!(unread, 0);
    assert!(run(&mut muxer).is_none());
    sender.listen();
    for _ in 0..40_000 {
        pass(&mut muxer, &mut stream, &mut sender, 8 * 1024).await;
    }
    assert!(sender.credit <= FIRST, "{}", sender.credit);
    assert!(sender.credit > FIRST / 2 - 8 * 1024, "{}", sender.credit);
}

#[tokio::test]
async fn window_stays_for_a_fast_reader() {
    let (mut muxer, mut stream, mut sender) = sending().await;
    for _ in 0..4_000 {
        pass(&mut muxer, &mut stream, &mut sender, 32 * 1024).await;
        assert!(sender.credit <= FIRST, "{}", sender.credit);
    }
}

#[tokio::test]
async fn stalled_reader_does_not_block_other_streams() {
    let (mut muxer, _unread, mut sender) = sending().await;
    sender.send(FIRST).await;
    let mut far = sender.far;
    far.write_all(&data(SYN, 3, b"beside it")).await.expect("room");
    assert!(run(&mut muxer).is_none());
    let mut other = arrived(&mut muxer).expect("it has arrived");
    assert!(matches!(read(&mut other, 99), Poll::Ready(Ok(bytes)) if bytes == b"beside it"));
    far.write_all(&data(0, 1, b"!")).await.expect("room");
    let end = run(&mut muxer);
    let expected = MuxerViolation::Window { granted: 0, sent: 1 };
    assert!(matches!(end, Some(MuxerError::Violation(what)) if what == expected), "{end:?}");
}

#[tokio::test]
async fn pings_are_answered_without_blocking_reads() {
    let (mut muxer, mut far) = by_hand(12 * 20);
    far.write_all(&frame(PING, SYN, 0, 77)).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(PING, ACK, 0, 77));
    // Unread answers fill the socket; incoming data must still be read.
    for n in 0..1000 {
        tokio::task::yield_now().await; // renews the coop budget
        far.write_all(&frame(PING, SYN, 0, n)).now_or_never().expect("it is read").expect("so");
        assert!(run(&mut muxer).is_none());
    }
    far.write_all(&data(SYN, 1, b"still")).now_or_never().expect("it is read").expect("so");
    assert!(run(&mut muxer).is_none());
    let mut stream = arrived(&mut muxer).expect("it has arrived");
    assert!(matches!(read(&mut stream, 99), Poll::Ready(Ok(bytes)) if bytes == b"still"));
}

#[tokio::test]
async fn stream_beyond_the_limit_is_reset_alone() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    let mut streams = Vec::new();
    for n in 0..STREAMS_MAX as u32 {
        far.write_all(&data(SYN, 1 + 2 * n, b"hello")).await.expect("room");
        assert!(run(&mut muxer).is_none());
        streams.push(arrived(&mut muxer).expect("there is room"));
    }
    far.write_all(&data(SYN, 99, b"me too")).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert!(arrived(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, ACK | RST, 99, 0));
    assert!(opened(&mut muxer).is_none(), "ours waits");
    let last = streams.last_mut().expect("there are some");
    assert!(matches!(read(last, 99), Poll::Ready(Ok(bytes)) if bytes == b"hello"));
    drop(streams.pop());
    assert!(run(&mut muxer).is_none());
    assert!(opened(&mut muxer).is_some(), "there is room again");
}

#[tokio::test]
async fn waiting_open_is_woken_when_a_stream_ends() {
    let (near, _far) = tokio::io::duplex(64 * 1024);
    let mut muxer = dialling(near.compat());
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        streams.push(open(&mut muxer).await);
    }
    let last = streams.pop();
    let freed = async {
        tokio::task::yield_now().await;
        drop(last);
        std::future::pending::<()>().await;
    };
    assert!(matches!(first(open(&mut muxer), freed).await, Either::Left(_)));
}

#[tokio::test]
async fn reset_fails_io_after_received_data_is_read() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    far.write_all(&data(SYN, 1, b"last words")).await.expect("room");
    far.write_all(&frame(DATA, RST, 1, 0)).await.expect("room");
    assert!(run(&mut muxer).is_none());
    let mut stream = arrived(&mut muxer).expect("it has arrived");
    assert!(matches!(read(&mut stream, 99), Poll::Ready(Ok(bytes)) if bytes == b"last words"));
    let after = read(&mut stream, 99);
    assert!(matches!(&after, Poll::Ready(Err(e)) if e.kind() == ErrorKind::ConnectionReset));
    let written = stream.write(b"x").now_or_never().expect("at once");
    assert_eq!(written.expect_err("it is reset").kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn connection_end_wakes_readers_and_writers() {
    for ends in [
        |muxer: Muxer<TestSocket>| drop(muxer),
        |mut muxer: Muxer<TestSocket>| {
            let waker = noop_waker();
            let _ = Pin::new(&mut muxer).poll_close(&mut Context::from_waker(&waker));
            std::mem::forget(muxer); // like one whose go-away waits to be written
        },
    ] {
        let (mut muxer, _far) = by_hand(16);
        let (mut reads, mut writes) =
            (opened(&mut muxer).expect("room"), opened(&mut muxer).expect("room"));
        let reading = tokio::spawn(async move { reads.read(&mut [0; 9]).await });
        let writing = tokio::spawn(async move { writes.write_all(&vec![0; 2 * FIRST]).await });
        for _ in 0..10 {
            tokio::task::yield_now().await;
            assert!(run(&mut muxer).is_none());
        }
        assert!(!reading.is_finished() && !writing.is_finished());
        ends(muxer);
        let read = soon(reading).await.expect("no panic");
        assert_eq!(read.expect_err("no end").kind(), ErrorKind::ConnectionAborted);
        assert!(soon(writing).await.expect("no panic").is_err());
    }
}

#[tokio::test]
async fn close_sends_written_data_then_go_away() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    let mut stream = opened(&mut muxer).expect("room");
    assert_eq!(write(&mut stream, b"to the end"), 10);
    soon(poll_fn(|cx| Pin::new(&mut muxer).poll_close(cx))).await.expect("closed");
    assert_eq!(found(&mut far, 22).await, data(SYN, 2, b"to the end"));
    assert_eq!(found(&mut far, 12).await, frame(GOODBYE, 0, 0, 0));
    assert_eq!(soon(far.read(&mut [0; 9])).await.expect("closed"), 0);
}

/// A muxer whose other end sends these pieces and reads nothing, and the stream that it has opened.
fn deaf(says: &[Vec<u8>], writing: fn() -> std::io::Result<usize>) -> (Muxer<Deaf>, Stream<Deaf>) {
    let says = says.iter().cloned().collect();
    let mut muxer = dialled(Deaf { says, pauses: false, writing });
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut muxer).poll(&mut cx).is_pending());
    let Poll::Ready(Ok(stream)) = Pin::new(&mut muxer).poll_inbound(&mut cx) else {
        panic!("it has arrived")
    };
    (muxer, stream)
}

#[tokio::test]
async fn received_data_is_read_after_the_peer_stops_reading() {
    let says = [data(SYN, 1, b"one "), data(0, 1, b"two "), frame(GOODBYE, 0, 0, 0)];
    let (muxer, mut stream) = deaf(&says, || Err(ErrorKind::BrokenPipe.into()));
    stream.write_all(b"?").await.expect("there is room");
    stream.flush().await.expect("the connection reports its end");
    assert!(matches!(soon(drive(muxer)).await, MuxerError::Closed));
    let mut heard = Vec::new();
    let end = stream.read_to_end(&mut heard).await.expect_err("no end was received");
    assert_eq!((&heard[..], end.kind()), (&b"one two "[..], ErrorKind::ConnectionAborted));

    let (muxer, mut stream) = deaf(&says[..2], || Err(ErrorKind::BrokenPipe.into()));
    stream.write_all(b"?").await.expect("there is room");
    stream.flush().await.expect("the connection reports its end");
    let end = soon(drive(muxer)).await;
    assert!(matches!(&end, MuxerError::Io(why) if why.kind() == ErrorKind::BrokenPipe), "{end:?}");
}

#[tokio::test]
async fn panic_in_an_inline_write_ends_the_connection() {
    let (muxer, mut stream) = deaf(&[data(SYN, 1, b"hello")], || panic!("as planned"));
    stream.write_all(b"?").await.expect("there is room");
    let driven = tokio::spawn(drive(muxer));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(driven.is_finished(), "its own task has written, and panicked");
    assert!(driven.await.is_err());
    let end = stream.read_to_end(&mut Vec::new()).await.expect_err("no end was received");
    assert_eq!(end.kind(), ErrorKind::ConnectionAborted);

    let (mut muxer, mut stream) = deaf(&[data(SYN, 1, b"hello")], || panic!("as planned"));
    stream.write_all(b"?").await.expect("there is room");
    let is_woken = {
        let woken = Arc::new(CountingWaker(AtomicUsize::new(0)));
        let waker = Arc::clone(&woken).into();
        let inbound = Pin::new(&mut muxer).poll_inbound(&mut Context::from_waker(&waker));
        assert!(inbound.is_pending());
        move || woken.0.load(Ordering::Relaxed) > 0
    };
    let flushed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = stream.flush().now_or_never();
    }));
    assert!(flushed.is_err() && is_woken());
    assert!(matches!(soon(drive(muxer)).await, MuxerError::Closed));
    let end = stream.read_to_end(&mut Vec::new()).await.expect_err("no end was received");
    assert_eq!(end.kind(), ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn go_away_and_closed_socket_end_the_connection() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    far.write_all(&frame(GOODBYE, 0, 0, 0)).await.expect("room");
    assert!(matches!(run(&mut muxer), Some(MuxerError::Closed)));
    let (mut muxer, far) = by_hand(1 << 20);
    drop(far);
    assert!(matches!(run(&mut muxer), Some(MuxerError::Closed)));
    let (mut muxer, mut far) = by_hand(1 << 20);
    far.write_all(&[0, 0, 0]).await.expect("room");
    drop(far);
    let end = run(&mut muxer);
    assert!(
        matches!(&end, Some(MuxerError::Io(e)) if e.kind() == ErrorKind::UnexpectedEof),
        "{end:?}"
    );
}

#[tokio::test]
async fn violation_is_answered_with_go_away() {
    let open = frame(WINDOW, SYN, 1, 0);
    let cases: [(Vec<Vec<u8>>, MuxerViolation); 10] = [
        (vec![vec![1; 12]], MuxerViolation::Version(1)),
        (vec![frame(9, 0, 0, 0)], MuxerViolation::Kind(9)),
        (vec![frame(DATA, SYN, 2, 0)], MuxerViolation::Id(2)),
        (vec![frame(WINDOW, SYN, 0, 0)], MuxerViolation::Id(0)),
        (vec![open.clone(), open.clone()], MuxerViolation::OpenedTwice(1)),
        // A stream that was reset is in use until its user drops it.
        (vec![open.clone(), frame(DATA, RST, 1, 0), open.clone()], MuxerViolation::OpenedTwice(1)),
        (vec![frame(WINDOW, SYN, 1, u32::MAX)], MuxerViolation::Credit),
        (vec![open.clone(), frame(WINDOW, 0, 1, u32::MAX)], MuxerViolation::Credit),
        (
            vec![frame(DATA, SYN, 1, FIRST as u32 + 1)],
            MuxerViolation::Window { granted: FIRST as u32, sent: FIRST as u32 + 1 },
        ),
        (
            vec![open, frame(DATA, 0, 1, u32::MAX)],
            MuxerViolation::Window { granted: FIRST as u32, sent: u32::MAX },
        ),
    ];
    for (frames, expected) in cases {
        let (mut muxer, mut far) = by_hand(1 << 20);
        far.write_all(&frames.concat()).await.expect("room");
        let end = run(&mut muxer);
        assert!(matches!(&end, Some(MuxerError::Violation(what)) if *what == expected), "{end:?}");
        assert_eq!(found(&mut far, 12).await, frame(GOODBYE, 0, 0, 1), "{expected}");
    }
}

#[tokio::test]
async fn peer_that_ignores_refusals_is_cut_off() {
    let (mut muxer, mut far) = by_hand(64);
    let mut id = 1;
    let end = loop {
        tokio::task::yield_now().await; // renews the coop budget
        far.write_all(&frame(WINDOW, SYN, id, 0)).now_or_never().expect("it is read").expect("so");
        if let Some(end) = run(&mut muxer) {
            break end;
        }
        id += 2;
        assert!(id < 20_000, "it is never cut off");
    };
    assert!(matches!(end, MuxerError::Violation(MuxerViolation::Insists)), "{end:?}");
    assert!(id > 2 * 256, "{id}");
}

/// Frames with known kinds and few streams, most of them wrong in some way.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let one = (0..5_u8, 0..16_u8, 0..60_u32, prop_oneof![8 => 0..40_u32, 1 => any::<u32>()]);
    let some = proptest::collection::vec(one, 0..60);
    some.prop_map(|frames| {
        let bytes = frames.into_iter().flat_map(|(kind, flags, stream, len)| {
            let mut bytes = frame(kind, flags, stream, len);
            if kind == DATA && len < 40 {
                bytes.extend(std::iter::repeat_n(5, len as usize));
            }
            bytes
        });
        bytes.collect()
    })
}

proptest! {
    /// Any input is read or ends the connection, and the number of streams stays within the limit.
    #[test]
    fn any_bytes_are_read_or_end_the_connection(
        bytes in prop_oneof![frames(), proptest::collection::vec(any::<u8>(), 0..400)],
        cut in 1..200_usize,
    ) {
        let (mut muxer, mut far) = by_hand(1 << 20);
        let mut streams = Vec::new();
        for piece in bytes.chunks(cut) {
            far.write_all(piece).now_or_never().expect("room").expect("it is open");
            if run(&mut muxer).is_some() {
                break;
            }
            while let Some(stream) = arrived(&mut muxer) {
                streams.push(stream);
            }
            prop_assert!(streams.len() <= STREAMS_MAX);
            let Some(mut stream) = streams.pop() else { continue };
            let _ = read(&mut stream, 10);
            let _ = stream.write(&piece[..piece.len() / 2]).now_or_never();
            match piece[0] % 4 {
                0 => {}
                1 => {
                    let _ = stream.close().now_or_never();
                    streams.push(stream);
                }
                _ => streams.push(stream),
            }
        }
    }
}
