//! The muxer: the `yamux` crate behind libp2p's traits, with its windows held.
//!
//! libp2p-yamux has no knob for windows, and by itself doubles a lane's window whenever its reader
//! keeps up: a busy lane of 2 MiB then delays the control lane beside it by as much. With a
//! connection window of exactly 256 KiB a stream nothing can grow (spec/reference/libp2p.md §3.4).
//!
//! Known limitation, of yamux 0.14.1: while the answer to a ping waits to be written, the
//! connection reads nothing. Both ends ping every 10 s, from their beginning on. If each reads the
//! other's ping while its own socket is full, neither reads any more until the kernel gives the
//! connection up (`tcp-user-timeout`, 10 s). Lanes then go on over another one and nothing is lost,
//! but for so long no heartbeat comes through. It takes two nodes that are saturated both ways over
//! sockets with less room than the windows of their lanes (three times 256 KiB); it was read in the
//! code, never seen.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready as ready_or_pending};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use yamux::{Connection, ConnectionError, Mode};

const WINDOW: usize = 256 * 1024;

/// A lane writes no more at once. The connection flushes after each piece: what goes in one is one
/// call of the system, where pieces of 16 KiB, as by default, are four.
const PIECE: usize = 64 * 1024;

/// Makes muxers; the same wire protocol as libp2p's.
#[derive(Clone)]
pub(super) struct Yamux {
    config: yamux::Config,
    waiting: usize,
}

impl Yamux {
    /// At most `streams` at once on a connection, both directions together: one more ends it.
    pub(super) fn new(streams: usize) -> Self {
        let mut config = yamux::Config::default();
        config.set_max_connection_receive_window(None);
        config.set_max_num_streams(streams);
        config.set_split_send_size(PIECE);
        config.set_max_connection_receive_window(Some(WINDOW.saturating_mul(streams)));
        Self { config, waiting: streams }
    }
}

impl UpgradeInfo for Yamux {
    type Info = &'static str;
    type InfoIter = iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once("/yamux/1.0.0")
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> InboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<Muxer<C>, Infallible>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(socket, self, Mode::Server)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<Muxer<C>, Infallible>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(socket, self, Mode::Client)))
    }
}

pub(super) struct Muxer<C> {
    connection: Connection<C>,
    arrived: VecDeque<yamux::Stream>, // ≤ waiting; further ones are reset
    waiting: usize,
    taker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Muxer<C> {
    fn new(socket: C, settings: Yamux, mode: Mode) -> Self {
        let connection = Connection::new(socket, settings.config, mode);
        Self { connection, arrived: VecDeque::new(), waiting: settings.waiting, taker: None }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<C> {
    type Substream = yamux::Stream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<yamux::Stream, ConnectionError>> {
        if let Some(stream) = self.arrived.pop_front() {
            return Poll::Ready(Ok(stream));
        }
        // `poll` drives the connection, and libp2p calls it before this each time: driving it here as
        // well would do everything twice.
        self.taker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<yamux::Stream, ConnectionError>> {
        self.connection.poll_new_outbound(cx)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        self.connection.poll_close(cx)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        // The one call that moves anything on the connection.
        let next = ready_or_pending!(self.connection.poll_next_inbound(cx));
        let stream = next.unwrap_or(Err(ConnectionError::Closed))?;
        if self.arrived.len() < self.waiting {
            self.arrived.push_back(stream);
            if let Some(taker) = self.taker.take() {
                taker.wake();
            }
        }
        cx.waker().wake_by_ref(); // there may be more
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    use futures::future::{Either, select};
    use futures::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;

    /// As libp2p's connections do it, and no other way: `poll`, then what has arrived.
    #[tokio::test]
    async fn streams_that_come_at_once_are_all_taken() {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let mut here = Muxer::new(near.compat(), Yamux::new(8), Mode::Client);
        let mut there = Muxer::new(far.compat(), Yamux::new(8), Mode::Server);
        let mut streams = Vec::new();
        for name in 0..5_u8 {
            let mut stream =
                poll_fn(|cx| Pin::new(&mut here).poll_outbound(cx)).await.expect("open");
            stream.write_all(&[name]).await.expect("it has room");
            streams.push(stream);
        }
        let mut taken = pin!(async {
            let mut names = BTreeSet::new();
            for _ in 0..5 {
                let next = poll_fn(|cx| {
                    let _ = Pin::new(&mut there).poll(cx)?;
                    Pin::new(&mut there).poll_inbound(cx)
                });
                let mut name = [0];
                next.await.expect("a stream").read_exact(&mut name).await.expect("its name");
                names.insert(name[0]);
            }
            names
        });
        let driven = poll_fn(|cx| Pin::new(&mut here).poll(cx));
        let both = select(taken.as_mut(), driven);
        match tokio::time::timeout(Duration::from_secs(10), both).await {
            Ok(Either::Left((names, _))) => assert_eq!(names, (0..5).collect()),
            Ok(Either::Right((ended, _))) => panic!("the connection ended: {ended:?}"),
            Err(_) => panic!("streams are left"),
        }
    }
}
