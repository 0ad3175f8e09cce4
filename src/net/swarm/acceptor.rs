//! Acceptor: a transport that limits inbound handshakes in number and time.
//!
//! libp2p cannot abort an inbound connection with an unfinished handshake, but dropping the future
//! that a listener yields closes the socket. [`Acceptor`] wraps that future. It ends early if the
//! [table](UnfinishedHandshakes) evicts it, or if the first message of the cipher has not arrived
//! in time. Handshakes of dialled connections only have a time limit.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncWrite, FutureExt};
use libp2p::Multiaddr;
use libp2p::core::Transport;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::unfinished_handshakes::{HandshakeId, HandshakeProgress, UnfinishedHandshakes};
use crate::net::address;

/// Minimum number of bytes that a dialler sends until the first message of the cipher is complete:
/// the header of multistream-select (20 bytes), the shortest name of a cipher (8), and the message
/// itself with its length (34).
const FIRST_MESSAGE_BYTES: usize = 62;

/// Number of connections accepted between two pauses, however long that takes, and the pause.
/// Without the pause a flood could fill the table before the runtime has read the first bytes of
/// any connection, so that honest connections would look as silent as the flood.
const ACCEPTED_AT_ONCE: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);

tokio::task_local! {
    /// Signal of the handshake that is being polled.
    static CURRENT: Arc<Signal>;
}

/// Progress of a running handshake, and the signal to evict it.
#[derive(Debug, Default)]
pub(in crate::net) struct Signal {
    received: AtomicUsize, // bytes, counted up to FIRST_MESSAGE_BYTES
    evicted: Notify,
}

impl Signal {
    /// Counts received bytes, up to `FIRST_MESSAGE_BYTES`. Only one caller at a time may count,
    /// because the counter is not updated atomically.
    pub(super) fn received(&self, bytes: usize) {
        let sum = self.received.load(Ordering::Relaxed).saturating_add(bytes);
        self.received.store(sum.min(FIRST_MESSAGE_BYTES), Ordering::Relaxed); // one reader
    }

    /// Progress by the counted bytes alone: `Spoken` from `FIRST_MESSAGE_BYTES`.
    pub(super) fn progress(&self) -> HandshakeProgress {
        match self.received.load(Ordering::Relaxed) {
            0 => HandshakeProgress::Silent,
            FIRST_MESSAGE_BYTES.. => HandshakeProgress::Spoken,
            _ => HandshakeProgress::Begun,
        }
    }

    /// Wakes the handshake's task, which then ends the handshake. The signal is stored if the task
    /// was not polled yet. A handshake that completes in the same poll succeeds nevertheless.
    pub(super) fn evict(&self) {
        self.evicted.notify_one(); // stored if the task does not wait yet
    }
}

/// Why the acceptor ended a handshake. It is the innermost cause of the swarm's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::net) enum HandshakeEnd {
    /// A newer handshake took its slot.
    #[error("the connection limit is reached (limits.handshakes): evicted for a newer connection")]
    Evicted,
    /// Too many evicted handshakes are still open.
    #[error(
        "refused: the connection limit is reached (limits.handshakes), and evicted ones are still open"
    )]
    Refused,
    /// The first message did not arrive in time.
    #[error("no message within {0:?} (limits.first-message-within)")]
    NoFirstMessage(Duration),
    /// The handshake did not finish in time.
    #[error("the handshake was not finished within {0:?} (limits.handshake-within)")]
    TimedOut(Duration),
}

/// Finds an error of that type among the causes of another, also within `io::Error`s. The error
/// itself counts as well. `None` if there is none among the first 16.
pub(in crate::net) fn find_cause<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    const DEPTH_MAX: usize = 16;
    let mut next = Some(error);
    for _ in 0..DEPTH_MAX {
        let error = next?;
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an `io::Error` is the source of what it holds, not what it holds.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn std::error::Error + 'static)).or(error.source());
    }
    None
}

/// The table, shared by the acceptor and the behaviour.
pub(super) type SharedTable = Arc<Mutex<UnfinishedHandshakes>>;

/// A slot in the table, released on drop.
struct TableSlot {
    number: HandshakeId,
    table: SharedTable,
}

impl Drop for TableSlot {
    fn drop(&mut self) {
        self.table.lock().end(self.number);
    }
}

/// Transport wrapper that applies the limits to the handshakes of `inner`.
pub(super) struct Acceptor<O> {
    inner: Boxed<O>,
    table: SharedTable,
    times: TimeLimits,
    accepted: usize, // since the last pause: ≤ ACCEPTED_AT_ONCE
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
}

/// Time limits of handshakes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    /// For the first message of an inbound handshake.
    pub(super) first_message: Duration,
    /// For the whole handshake, inbound or outbound; for a dial with TCP's connect.
    pub(super) handshake: Duration,
}

impl<O: Send + 'static> Acceptor<O> {
    pub(super) const fn new(inner: Boxed<O>, table: SharedTable, times: TimeLimits) -> Self {
        Self { inner, table, times, accepted: 0, pause: None }
    }

    /// Registers an inbound handshake in the table within this call, which may evict another one.
    /// The returned future applies the time limits, counted from its first poll, and an eviction.
    /// The slot is free once the future ends or is dropped. A handshake that finishes in the poll
    /// that notices its eviction or the end of its time succeeds.
    ///
    /// If the table refuses the handshake ([`UnfinishedHandshakes::begin`]), the socket is closed
    /// in this call, and the future fails with [`HandshakeEnd::Refused`]. `from` is `None` for a
    /// dialler without an IP address, which counts as an unknown one.
    fn limited(&self, upgrade: Upgrade<O>, from: Option<IpAddr>) -> Upgrade<O> {
        let signal = Arc::new(Signal::default());
        let Ok(number) = self.table.lock().begin(from, Arc::clone(&signal)) else {
            return async { Err(io::Error::other(HandshakeEnd::Refused)) }.boxed();
        };
        let place = TableSlot { number, table: Arc::clone(&self.table) };
        let times = self.times;
        async move {
            let _place = place;
            let ended = ended(&signal, times.first_message);
            let upgrade = within(times.handshake, upgrade);
            tokio::select! {
                biased;
                done = CURRENT.scope(Arc::clone(&signal), upgrade) => done,
                ended = ended => Err(io::Error::other(ended)),
            }
        }
        .boxed()
    }
}

/// Handshake of a connection, as a listener or a dial yields it. Dropping it closes the socket.
type Upgrade<O> = BoxFuture<'static, io::Result<O>>;

/// Fails with [`HandshakeEnd::TimedOut`] if the handshake takes longer than `time`, counted from
/// the first poll. The future of a dial includes TCP's connect.
async fn within<O>(
    time: Duration,
    handshake: impl Future<Output = io::Result<O>>,
) -> io::Result<O> {
    let too_late = |_| Err(io::Error::other(HandshakeEnd::TimedOut(time)));
    tokio::time::timeout(time, handshake).await.unwrap_or_else(too_late)
}

/// Resolves when the handshake must end: when it is evicted, or the first message has not arrived
/// within `first_within`, counted from the first poll and checked once, at its end. If it has
/// arrived by then, only an eviction ends the handshake here; [`within`] limits the rest.
async fn ended(signal: &Signal, first_within: Duration) -> HandshakeEnd {
    let evicted = signal.evicted.notified();
    tokio::pin!(evicted);
    match tokio::time::timeout(first_within, &mut evicted).await {
        Err(_) if signal.progress() < HandshakeProgress::Spoken => {
            HandshakeEnd::NoFirstMessage(first_within)
        }
        Err(_) => {
            evicted.await;
            HandshakeEnd::Evicted
        }
        Ok(()) => HandshakeEnd::Evicted,
    }
}

impl<O: Send + 'static> Transport for Acceptor<O> {
    type Output = O;
    type Error = io::Error;
    type ListenerUpgrade = Upgrade<O>;
    type Dial = Upgrade<O>;

    fn listen_on(
        &mut self,
        id: ListenerId,
        address: Multiaddr,
    ) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    /// Dials with one time limit for TCP's connect and the handshake together. Needs no slot in the
    /// table and sets no signal, so it is never evicted and needs no first message in time.
    fn dial(
        &mut self,
        address: Multiaddr,
        opts: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        let dial = self.inner.dial(address, opts)?;
        Ok(within(self.times.handshake, dial).boxed())
    }

    /// Passes on the events of the inner transport; inbound handshakes get their limits. The pause
    /// begins when the last of `ACCEPTED_AT_ONCE` inbound connections is passed on. Until its end
    /// all events of the inner transport wait, also those of listeners; dials that began continue.
    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let event = std::task::ready!(Pin::new(&mut self.inner).poll(cx));
        let from = match &event {
            TransportEvent::Incoming { send_back_addr, .. } => address::host(send_back_addr),
            _ => None,
        };
        if matches!(event, TransportEvent::Incoming { .. }) {
            self.accepted += 1;
            if self.accepted == ACCEPTED_AT_ONCE {
                self.accepted = 0;
                self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
            }
        }
        Poll::Ready(event.map_upgrade(|upgrade| self.limited(upgrade.boxed(), from)))
    }
}

/// A socket that reports the first bytes of an inbound handshake to the [`Acceptor`].
#[derive(Debug)]
pub(in crate::net) struct Observed<S> {
    socket: S,
    signal: Option<Arc<Signal>>, // `None` once enough has arrived, and if dialled
}

impl<S> Observed<S> {
    /// Wraps a socket. Must be called while the handshake is polled, in order to find its signal.
    /// Without one, as in a dial, nothing is reported.
    pub(in crate::net) fn new(socket: S) -> Self {
        Self { socket, signal: CURRENT.try_with(Arc::clone).ok() }
    }

    /// Reports received bytes, until there are as many as the first message has, and then forgets
    /// the signal. Reads after that, and those of a dial, report nothing.
    fn received(&mut self, bytes: usize) {
        if let Some(signal) = &self.signal {
            signal.received(bytes);
            if signal.progress() == HandshakeProgress::Spoken {
                self.signal = None;
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = std::task::ready!(Pin::new(&mut self.socket).poll_read(cx, out));
        if let Ok(bytes) = read {
            self.received(bytes);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx)
    }
}
