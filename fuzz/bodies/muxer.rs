//! Arbitrary bytes as the other end of a muxed connection: they are read or end the connection,
//! without a panic, and the number of streams stays within its limit.
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::FutureExt;
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures::task::noop_waker;
use libp2p::core::muxing::StreamMuxer;
use libp2p::core::upgrade::InboundConnectionUpgrade;
use ostraca::net::muxer::Yamux;

const STREAMS_MAX: usize = 8;

/// A connection that yields these bytes a few at a time and accepts every write.
struct Peer<'a> {
    bytes: &'a [u8],
}

impl AsyncRead for Peer<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let len = self.bytes.len().min(into.len()).min(7);
        let (now, later) = self.bytes.split_at(len);
        into[..len].copy_from_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(len))
    }
}

impl AsyncWrite for Peer<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The first byte says how many bytes behind it choose the actions of the streams' owners.
///
/// Returns a hash of the numbers of streams in the course of the connection.
pub(crate) fn run(input: &[u8]) -> u64 {
    let mut outcome = 0_u64;
    let Some((&count, rest)) = input.split_first() else { return outcome };
    let (choices, bytes) = rest.split_at(rest.len().min(usize::from(count)));
    let upgrade = Yamux::new(STREAMS_MAX).upgrade_inbound(Peer { bytes }, "");
    let Some(Ok(mut muxer)) = upgrade.now_or_never() else {
        unreachable!("the upgrade waits for nothing")
    };
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    let mut streams = Vec::new();
    let mut choices = choices.iter();
    loop {
        let ended = Pin::new(&mut muxer).poll(&mut cx).is_ready();
        while let Poll::Ready(Ok(stream)) = Pin::new(&mut muxer).poll_inbound(&mut cx) {
            streams.push(stream);
        }
        assert!(streams.len() <= STREAMS_MAX);
        outcome = outcome.wrapping_mul(31).wrapping_add(2 * streams.len() as u64);
        outcome = outcome.wrapping_add(u64::from(ended));
        let (Some(choice), Some(mut stream)) = (choices.next(), streams.pop()) else {
            return outcome;
        };
        match choice % 4 {
            0 => drop(stream),
            1 => {
                let _ = stream.close().now_or_never();
                streams.push(stream);
            }
            2 => {
                let _ = stream.read(&mut [0; 99]).now_or_never();
                streams.insert(0, stream);
            }
            _ => {
                let _ = stream.write(&[7; 300]).now_or_never();
                let _ = stream.flush().now_or_never();
                streams.insert(0, stream);
            }
        }
        if ended && streams.is_empty() {
            return outcome;
        }
    }
}
