//! Any bytes as the other end of a muxer: they are read or end the connection, without a panic, and
//! streams stay within their limit whatever their users do.
#![no_main]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::FutureExt;
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures::task::noop_waker;
use libfuzzer_sys::fuzz_target;
use libp2p_core::muxing::StreamMuxer;
use libp2p_core::upgrade::InboundConnectionUpgrade;
use ostraca::net::muxer::Yamux;

const STREAMS_MAX: usize = 8;

/// Says these bytes, some at a time, and takes whatever comes.
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

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (bytes, choices) = input;
    let upgrade = Yamux::new(STREAMS_MAX).upgrade_inbound(Peer { bytes: &bytes }, "");
    let Some(Ok(mut muxer)) = upgrade.now_or_never() else { unreachable!("it is ready") };
    let waker = noop_waker();
    let mut cx = Context::from_waker(&waker);
    let mut streams = Vec::new();
    let mut choices = choices.into_iter();
    loop {
        let ended = Pin::new(&mut muxer).poll(&mut cx).is_ready();
        while let Poll::Ready(Ok(stream)) = Pin::new(&mut muxer).poll_inbound(&mut cx) {
            streams.push(stream);
        }
        assert!(streams.len() <= STREAMS_MAX);
        let (Some(choice), Some(mut stream)) = (choices.next(), streams.pop()) else { return };
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
            return;
        }
    }
});
