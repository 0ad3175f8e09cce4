//! Tests of streams that were closed and dropped here while the peer's half is open.

use tokio::io::AsyncWriteExt as _;

use super::peer::{ACK, DATA, FIN, RST, SYN, WINDOW, data, frame};
use super::rules::{FIRST, arrived, by_hand, found, nothing_more, opened, read, run, write};
use super::*;

/// Bytes of several windows.
const PLENTY: usize = 4 << 20;

/// Lets the far end open a stream and write `before` bytes that are not read here. Closes and
/// drops the stream here, and returns what came of writing [`PLENTY`] more.
async fn write_to_dropped<M>(
    mut near: Muxer<FlushedSocket<PipeEnd>>,
    mut far: M,
    before: usize,
) -> std::io::Result<()>
where
    M: StreamMuxer<Substream = yamux::Stream> + Unpin + 'static,
    M::Error: std::fmt::Debug,
{
    let mut stream = open(&mut far).await;
    tokio::task::spawn_local(drive(far));
    let (dropped, is_dropped) = tokio::sync::oneshot::channel();
    tokio::task::spawn_local(async move {
        let arrived = poll_fn(|cx| {
            assert!(Pin::new(&mut near).poll(cx).is_pending());
            Pin::new(&mut near).poll_inbound(cx)
        });
        let mut stream = arrived.await.expect("the connection is open");
        stream.write_all(b"answer").await.expect("the stream is open");
        stream.close().await.expect("the stream is open");
        let end = tokio::task::spawn_local(drive(near));
        tokio::task::yield_now().await;
        drop(stream);
        dropped.send(()).expect("the writer waits");
        end.await.expect("no panic");
    });
    stream.write_all(&vec![1; before]).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    assert_eq!(answer, b"answer", "data before the end is read");
    is_dropped.await.expect("it is dropped");
    let write = async {
        stream.write_all(&vec![2; PLENTY]).await?;
        stream.flush().await
    };
    soon(write).await
}

/// The peer has credit left, or has used up its window before the stream is dropped.
#[test]
fn yamux_writer_to_dropped_stream_fails() {
    for before in [1, 1_000, FIRST] {
        for mode in [yamux::Mode::Client, yamux::Mode::Server] {
            seeds("muxer::half_closed::yamux_writer_to_dropped_stream_fails", 10, |seed| {
                let (near, far) = pipe(nature(&mut Chance(seed)));
                let far = Theirs::new(FlushedSocket::new(far), mode);
                let near = match mode {
                    yamux::Mode::Client => dialled(FlushedSocket::new(near)),
                    yamux::Mode::Server => dialling(FlushedSocket::new(near)),
                };
                let written =
                    async { LocalSet::new().run_until(write_to_dropped(near, far, before)).await };
                let error = block_on(soon(written)).expect_err("the stream is not read");
                assert_ne!(error.kind(), std::io::ErrorKind::TimedOut);
            });
        }
    }
}

#[tokio::test]
async fn dropped_stream_answers_data_with_one_reset() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    far.write_all(&data(SYN, 1, b"hello")).await.expect("room");
    assert!(run(&mut muxer).is_none());
    let mut stream = arrived(&mut muxer).expect("it has arrived");
    stream.close().await.expect("it is open");
    drop(stream);
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, ACK | FIN, 1, 0));
    far.write_all(&frame(WINDOW, 0, 1, 100)).await.expect("room");
    assert!(run(&mut muxer).is_none());
    nothing_more(&mut far);
    for _ in 0..3 {
        far.write_all(&data(0, 1, b"more")).await.expect("room");
        assert!(run(&mut muxer).is_none());
    }
    assert_eq!(found(&mut far, 12).await, frame(DATA, RST, 1, 0));
    nothing_more(&mut far);
}

#[tokio::test]
async fn data_on_unknown_streams_is_not_answered() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    for id in [1, 2, 77, 78] {
        far.write_all(&data(0, id, b"lost")).await.expect("room");
        assert!(run(&mut muxer).is_none());
    }
    nothing_more(&mut far);
}

/// The peer's FIN comes before, with or after the drop; a frame after both ends have closed is not
/// answered.
#[tokio::test]
async fn stream_closed_by_both_ends_is_never_reset() {
    for (with_data, is_late) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut muxer, mut far) = by_hand(1 << 20);
        let mut stream = opened(&mut muxer).expect("there is room");
        assert_eq!(write(&mut stream, b"ask"), 3);
        stream.close().await.expect("it is open");
        let end = if with_data { data(FIN, 2, b"answer") } else { frame(DATA, FIN, 2, 0) };
        if is_late {
            drop(stream);
            assert!(run(&mut muxer).is_none());
            far.write_all(&end).await.expect("room");
            assert!(run(&mut muxer).is_none());
        } else {
            far.write_all(&end).await.expect("room");
            assert!(run(&mut muxer).is_none());
            drop(stream);
            assert!(run(&mut muxer).is_none());
        }
        far.write_all(&data(0, 2, b"late")).await.expect("room");
        far.write_all(&frame(WINDOW, 0, 2, 9)).await.expect("room");
        assert!(run(&mut muxer).is_none());
        assert_eq!(found(&mut far, 15).await, data(SYN | FIN, 2, b"ask"));
        nothing_more(&mut far);
    }
}

/// FIN is announced by a header; its data arrives after the stream was dropped.
#[tokio::test]
async fn stream_dropped_amid_last_frame_is_never_reset() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    let mut stream = opened(&mut muxer).expect("there is room");
    stream.close().await.expect("it is open");
    let end = data(FIN, 2, &vec![5; FIRST]);
    let (half, rest) = end.split_at(1_000);
    far.write_all(half).await.expect("room");
    assert!(run(&mut muxer).is_none());
    drop(stream);
    assert!(run(&mut muxer).is_none());
    far.write_all(rest).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, SYN | FIN, 2, 0));
    nothing_more(&mut far);
}

#[tokio::test]
async fn peer_without_credit_is_reset_on_drop() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    let mut stream = opened(&mut muxer).expect("there is room");
    stream.close().await.expect("it is open");
    far.write_all(&data(ACK, 2, &vec![5; FIRST])).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, SYN | FIN, 2, 0));
    nothing_more(&mut far);
    drop(stream);
    assert!(run(&mut muxer).is_none());
    assert_eq!(found(&mut far, 12).await, frame(DATA, RST, 2, 0));
    nothing_more(&mut far);
}

/// 300 half-closed streams: the 256 newest are remembered, the others are reset when evicted.
#[tokio::test]
async fn half_closed_streams_are_bounded_by_early_resets() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    for n in 0..300 {
        tokio::task::yield_now().await; // renews the coop budget
        let mut stream = opened(&mut muxer).expect("there is room");
        stream.close().await.expect("it is open");
        drop(stream);
        assert!(run(&mut muxer).is_none());
        assert_eq!(found(&mut far, 12).await, frame(DATA, SYN | FIN, 2 + 2 * n, 0));
        if n >= 256 {
            assert_eq!(found(&mut far, 12).await, frame(DATA, RST, 2 + 2 * (n - 256), 0));
        }
        nothing_more(&mut far);
    }
}

/// Requests and answers of several windows: each end closes, and drops once it has read all that
/// it wants.
#[test]
fn orderly_ends_between_own_muxers_stay_orderly() {
    seeds("muxer::half_closed::orderly_ends_between_own_muxers_stay_orderly", 40, |seed| {
        let mut chance = Chance(seed);
        let (near, far) = pipe(nature(&mut chance));
        let (near, far) = (dialling(FlushedSocket::new(near)), dialled(FlushedSocket::new(far)));
        let len = chance.size(1_000_000);
        block_on(soon(LocalSet::new().run_until(ask_and_drop(near, far, len))));
    });
}

/// One end sends a request of `len` bytes, closes and drops the stream unread. The other end reads
/// the request to its end and closes.
async fn ask_and_drop(
    mut near: Muxer<FlushedSocket<PipeEnd>>,
    far: Muxer<FlushedSocket<PipeEnd>>,
    len: usize,
) {
    let mut stream = open(&mut near).await;
    let (done, is_done) = tokio::sync::oneshot::channel();
    let done = Arc::new(parking_lot::Mutex::new(Some(done)));
    tokio::task::spawn_local(serve(far, move |mut stream| {
        let done = Arc::clone(&done);
        async move {
            let mut request = Vec::new();
            let read = stream.read_to_end(&mut request).await;
            let closed = stream.close().await;
            let done = done.lock().take().expect("one stream");
            done.send(read.and_then(|_| closed.map(|()| request.len()))).expect("it waits");
        }
    }));
    tokio::task::spawn_local(drive(near));
    stream.write_all(&vec![3; len]).await.expect("it is open");
    stream.close().await.expect("it is open");
    drop(stream);
    let served = is_done.await.expect("it was served");
    assert_eq!(served.expect("an orderly end"), len);
}

/// A writer that is reset still reads what had arrived, and then the end.
#[tokio::test]
async fn reset_after_fin_leaves_received_data_readable() {
    let (mut muxer, mut far) = by_hand(1 << 20);
    far.write_all(&data(SYN | FIN, 1, b"request")).await.expect("room");
    assert!(run(&mut muxer).is_none());
    let mut stream = arrived(&mut muxer).expect("it has arrived");
    assert_eq!(write(&mut stream, b"unwanted"), 8);
    stream.flush().await.expect("it is open");
    far.write_all(&frame(DATA, RST, 1, 0)).await.expect("room");
    assert!(run(&mut muxer).is_none());
    assert!(matches!(read(&mut stream, 99), Poll::Ready(Ok(bytes)) if bytes == b"request"));
    assert!(matches!(read(&mut stream, 99), Poll::Ready(Ok(bytes)) if bytes.is_empty()));
    assert!(stream.write(b"more").await.is_err());
}
