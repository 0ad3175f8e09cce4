//! Tests of the muxer, against itself and against the `yamux` crate with the same protocol.

mod half_closed;
mod peer;
mod rules;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures::future::{Either, join, join_all, select};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox, StreamMuxerExt, SubstreamBox};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use ostraca::net::muxer::{Muxer, Yamux};
use tokio::task::{JoinSet, LocalSet};
use tokio_util::compat::TokioAsyncReadCompatExt;

use self::peer::{FlushedSocket, Theirs};
use crate::lanes::cuts::{block_on, seeds};
use crate::lanes::pipe::{Chance, PipeEnd, pipe};
use crate::talk::{nature, said, say};
use crate::waits::soon;

const STREAMS_MAX: usize = 8;

fn dialling<C>(socket: C) -> Muxer<C>
where
    C: futures::AsyncRead + futures::AsyncWrite + Unpin,
{
    let Ok(muxer) = Yamux::new(STREAMS_MAX).upgrade_outbound(socket, "").into_inner();
    muxer
}

fn dialled<C>(socket: C) -> Muxer<C>
where
    C: futures::AsyncRead + futures::AsyncWrite + Unpin,
{
    let Ok(muxer) = Yamux::new(STREAMS_MAX).upgrade_inbound(socket, "").into_inner();
    muxer
}

/// Opens a stream while driving the muxer like libp2p does.
async fn open<M: StreamMuxer + Unpin>(muxer: &mut M) -> M::Substream
where
    M::Error: std::fmt::Debug,
{
    let opened = poll_fn(|cx| {
        if let Poll::Ready(Err(end)) = Pin::new(&mut *muxer).poll(cx) {
            return Poll::Ready(Err(end));
        }
        Pin::new(&mut *muxer).poll_outbound(cx)
    });
    opened.await.expect("a connection")
}

/// Drives the muxer to its end.
async fn drive<M: StreamMuxer + Unpin>(mut muxer: M) -> M::Error {
    let end = poll_fn(|cx| {
        let end = Pin::new(&mut muxer).poll(cx);
        end.map(|ended| match ended {
            Ok(moved) => panic!("its address does not change: {moved:?}"),
            Err(end) => end,
        })
    });
    end.await
}

/// Accepts streams and serves each, until the connection ends.
async fn serve<M, F>(mut muxer: M, serve: impl Fn(M::Substream) -> F)
where
    M: StreamMuxer + Unpin,
    F: Future<Output = ()> + 'static,
{
    let mut served = JoinSet::new();
    loop {
        let next = poll_fn(|cx| {
            if let Poll::Ready(Err(_ended)) = Pin::new(&mut muxer).poll(cx) {
                return Poll::Ready(None);
            }
            Pin::new(&mut muxer).poll_inbound(cx).map(Result::ok)
        });
        let Some(stream) = next.await else { break };
        served.spawn_local(serve(stream));
    }
    while served.join_next().await.is_some() {}
}

/// Sends back the received data, in other pieces, until its end.
async fn echo(stream: SubstreamBox, mut chance: Chance) {
    let (mut reader, mut writer) = stream.split();
    let mut bytes = vec![0; 100_000];
    loop {
        let most = chance.size(bytes.len());
        let len = reader.read(&mut bytes[..most]).await.expect("not reset");
        if len == 0 {
            break;
        }
        writer.write_all(&bytes[..len]).await.expect("not reset");
        writer.flush().await.expect("not reset");
    }
    writer.close().await.expect("not reset");
}

/// Reads to the end. `read_to_end` of futures zeroes all free space at each poll, which takes
/// minutes where a seed splits long data into bytes.
async fn all_of(reader: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 4_096]);
    loop {
        match reader.read(&mut piece).await.expect("not reset") {
            0 => return all,
            len => all.extend_from_slice(&piece[..len]),
        }
    }
}

/// Sends data, and asserts that the same data comes back.
async fn ask(stream: SubstreamBox, seed: u64, number: usize) {
    let said = said(seed, number);
    let (mut reader, writer) = stream.split();
    let write = say(writer, &said, Chance(seed.wrapping_add(number as u64)));
    let ((), heard) = join(write, all_of(&mut reader)).await;
    assert!(heard == said, "stream {number}: {} of {} bytes, or others", heard.len(), said.len());
}

/// Both ends open streams and echo those of the other.
fn talk(
    seed: u64,
    ends: impl Fn(FlushedSocket<PipeEnd>, FlushedSocket<PipeEnd>) -> [StreamMuxerBox; 2],
) {
    let mut chance = Chance(seed);
    let (near, far) = pipe(nature(&mut chance));
    let counts = [1 + chance.below(3), chance.below(3)];
    block_on(soon(LocalSet::new().run_until(async move {
        let mut asked = Vec::new();
        for (mut muxer, count) in
            ends(FlushedSocket::new(near), FlushedSocket::new(far)).into_iter().zip(counts)
        {
            for _ in 0..count {
                let stream = open(&mut muxer).await;
                asked.push(tokio::task::spawn_local(ask(stream, seed, asked.len())));
            }
            let seed = seed ^ count as u64;
            tokio::task::spawn_local(serve(muxer, move |stream| echo(stream, Chance(seed))));
        }
        for asked in join_all(asked).await {
            asked.expect("no panic");
        }
    })));
}

#[test]
fn every_stream_echoes_its_data() {
    seeds("muxer::every_stream_echoes_its_data", 60, |seed| {
        talk(seed, |near, far| {
            [StreamMuxerBox::new(dialling(near)), StreamMuxerBox::new(dialled(far))]
        });
    });
}

#[test]
fn dialler_interoperates_with_the_yamux_crate() {
    seeds("muxer::dialler_interoperates_with_the_yamux_crate", 60, |seed| {
        talk(seed, |near, far| {
            let theirs = Theirs::new(far, yamux::Mode::Server);
            [StreamMuxerBox::new(dialling(near)), StreamMuxerBox::new(theirs)]
        });
    });
}

#[test]
fn acceptor_interoperates_with_the_yamux_crate() {
    seeds("muxer::acceptor_interoperates_with_the_yamux_crate", 60, |seed| {
        talk(seed, |near, far| {
            let theirs = Theirs::new(near, yamux::Mode::Client);
            [StreamMuxerBox::new(theirs), StreamMuxerBox::new(dialled(far))]
        });
    });
}

/// Many threads write small pieces at once on one connection, some of them inline: none may be left
/// waiting.
#[test]
fn small_writes_of_many_threads_all_arrive() {
    const STREAMS: usize = 4;
    const ROUNDS: usize = 4_000;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(3).enable_all().build().expect("a runtime");
    runtime.block_on(soon(async {
        let (near, far) = tokio::io::duplex(16 * 1024);
        let (mut near, far) = (
            dialling(FlushedSocket::new(near.compat())),
            dialled(FlushedSocket::new(far.compat())),
        );
        let answered = Arc::<AtomicUsize>::default();
        let mut asking = JoinSet::new();
        for stream in 0..STREAMS {
            let (mut stream, answered, bytes) =
                (open(&mut near).await, Arc::clone(&answered), [stream as u8; 32]);
            asking.spawn(async move {
                for _ in 0..ROUNDS {
                    stream.write_all(&bytes).await.expect("it is open");
                    stream.flush().await.expect("it is open");
                    let mut back = [0; 32];
                    stream.read_exact(&mut back).await.expect("it answers");
                    assert_eq!(back, bytes);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        tokio::spawn(drive(near));
        let mut far = StreamMuxerBox::new(far);
        tokio::spawn(async move {
            loop {
                let next = poll_fn(|cx| {
                    let _ = far.poll_unpin(cx)?;
                    far.poll_inbound_unpin(cx)
                });
                let Ok(stream) = next.await else { return };
                tokio::spawn(echo(stream, Chance(7)));
            }
        });
        while let Some(asked) = asking.join_next().await {
            asked.expect("all is answered");
        }
        assert_eq!(answered.load(Ordering::Relaxed), STREAMS * ROUNDS);
    }));
}

/// The result of the future that finishes first; panics after a while.
async fn first<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> Either<A, B> {
    let (a, b) = (std::pin::pin!(a), std::pin::pin!(b));
    match soon(select(a, b)).await {
        Either::Left((a, _)) => Either::Left(a),
        Either::Right((b, _)) => Either::Right(b),
    }
}
