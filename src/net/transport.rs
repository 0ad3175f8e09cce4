//! Composition of the network stack, from the socket to the muxer: TCP, optionally the private
//! network, Noise, yamux.
//!
//! Lanes see only `AsyncRead + AsyncWrite`, so another cipher or muxer is a change of this file.
//! All bytes that a stream may queue in the muxer (`muxer::pipe::PIECE`) fit into one message of
//! the cipher.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::Transport;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::Boxed;
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::pnet::{PnetConfig, PreSharedKey};
use libp2p::{PeerId, tcp};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::config::{NetConfig, NetLimits, Stack};
use super::muxer::Yamux;
use super::noise::{self, Noise};
use super::secrets::{Keyring, derived};
use super::stock::Stock;
use super::swarm::Observed;

/// TCP_NOTSENT_LOWAT, in bytes. Further bytes wait in the muxer, where streams take turns, because
/// in the kernel's queue a control message would wait behind all of them.
#[cfg(target_os = "linux")]
const NOT_SENT: u32 = 64 * 1024;

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// Builds the stack of a node: authenticated connections that carry streams. The swarm limits the
/// time and the number of unfinished handshakes. [`Stack::Stock`] selects the crates `libp2p-noise`
/// and `yamux`; [`Stack::Mixed`] also accepts and dials peers with the former. A connection carries
/// at most `streams_max` streams; with [`Stack::Stock`] at most twice as many and 4,096, the closed
/// ones that the crate has not removed yet included.
///
/// # Errors
/// [`noise::NoiseError`] if the identity cannot sign Noise's static key, or there is no randomness
/// for it.
///
/// # Panics
/// Not here, but at the first connection, if the settings have not passed
/// [`check`](super::admission::check): a private network needs a secret.
pub fn transport(
    config: &NetConfig,
    keyring: &Keyring,
    keypair: &Keypair,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, noise::NoiseError> {
    let streams = streams_max(&config.limits);
    let sockets = sockets(config, keyring).upgrade(Version::V1Lazy);
    // The stack of the crates `libp2p-noise` and `yamux`.
    if config.transport == Stack::Stock {
        let stock = Stock::new(keypair, keyring)?;
        let mut yamux = libp2p::yamux::Config::default();
        // Beyond this number the crate ends the connection, and it counts closed streams until it
        // has removed them. So the number is twice that of open ones.
        yamux.set_max_num_streams(streams.saturating_mul(2).min(STOCK_STREAMS_MAX));
        return Ok(sockets.authenticate(stock).multiplex(yamux).boxed());
    }
    let mut noise = Noise::new(keypair)?.with_secrets(keyring.clone());
    if config.transport == Stack::Mixed {
        noise = noise.with_stock_peers();
    }
    Ok(sockets.authenticate(noise).multiplex(Yamux::new(streams)).boxed())
}

/// TCP sockets, accepted and dialled, with the private network if it is set. Each socket gets
/// TCP_NODELAY and its [options](set_options), of which an error fails the connection, and reports
/// its first bytes to the acceptor. The handshake of the private network follows. Its key is
/// derived from the first secret of the cluster at the time of the connection; panics then if there
/// is none.
fn sockets(config: &NetConfig, keyring: &Keyring) -> Boxed<Box<dyn Wire>> {
    let limits = config.limits.clone();
    let private = config.private_network.then(|| keyring.clone());
    tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .and_then(move |socket: tcp::tokio::TcpStream, _| async move {
            set_options(&SockRef::from(&socket.0), &limits)?;
            let socket = Observed::new(socket); // tells the acceptor how far the handshake is
            let wire: Box<dyn Wire> = match private {
                None => Box::new(socket),
                Some(keyring) => {
                    // A private network has only one key: a file with more secrets is refused.
                    let secrets = keyring.secrets();
                    let secret = secrets.as_ref().and_then(|secrets| secrets.cluster().first());
                    let key =
                        derived(secret.expect("admission::check has found one"), "private-network");
                    let private = PnetConfig::new(PreSharedKey::new(*key)).handshake(socket);
                    Box::new(private.await.map_err(io::Error::other)?)
                }
            };
            Ok::<_, io::Error>(wire)
        })
        .boxed()
}

/// Maximum number of streams on one connection: `lanes-per-peer` in each direction. That setting
/// leaves room for substreams that were replaced and have not ended yet.
const fn streams_max(limits: &NetLimits) -> usize {
    limits.lanes_per_peer.saturating_mul(2)
}

/// Most streams that the crate `yamux` can be set to, because each may receive 256 KiB and a
/// connection 1 GiB. With more it panics.
const STOCK_STREAMS_MAX: usize = 4_096;

/// Longest TCP_KEEPIDLE and TCP_KEEPINTVL that Linux accepts.
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);

/// Longest TCP_USER_TIMEOUT that Linux accepts: 2^31 - 1 ms.
#[cfg(target_os = "linux")]
const USER_TIMEOUT_MAX: Duration = Duration::from_millis((1 << 31) - 1);

/// Sets the keepalive of a socket and, on Linux, TCP_USER_TIMEOUT and TCP_NOTSENT_LOWAT. Probes
/// begin after half of `tcp_user_timeout` without data, and follow each other after a tenth of it.
/// Times that the system does not accept are bounded, not refused: those of probes to 1 s and
/// [`KEEPALIVE_MAX`], the user timeout to `USER_TIMEOUT_MAX`. Ends at the first error, with the
/// options before it set.
fn set_options(socket: &SockRef<'_>, limits: &NetLimits) -> io::Result<()> {
    let span = |span: Duration| span.clamp(Duration::from_secs(1), KEEPALIVE_MAX);
    // On Linux the user timeout set below ends the connection at the fifth probe; other systems
    // send their own number of probes.
    let alive = TcpKeepalive::new()
        .with_time(span(limits.tcp_user_timeout / 2))
        .with_interval(span(limits.tcp_user_timeout / 10));
    socket.set_tcp_keepalive(&alive)?;
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(limits.tcp_user_timeout.min(USER_TIMEOUT_MAX)))?;
        socket.set_tcp_notsent_lowat(NOT_SENT)?;
    }
    Ok(())
}

/// Checks that a node could listen on this address, without listening there. The socket is closed
/// on return, so another process can still take the port. Port 0 is always free.
///
/// libp2p listens with SO_REUSEPORT, with which a second node of the same user would start without
/// an error and receive part of the first one's connections. Binding without that option detects
/// this (docs/protocol/transport.md#one-process-per-data-directory).
///
/// # Errors
/// The error of binding: `AddrInUse` if another process listens there. The address of all
/// interfaces conflicts with that of each single one, but an IPv6 address never with an IPv4 one.
/// Connections in TIME_WAIT do not conflict. Any other error has its own kind, such as
/// `AddrNotAvailable` for an address of another host.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // closed connections in TIME_WAIT do not matter
    if address.is_ipv6() {
        socket.set_only_v6(true)?; // as libp2p does: IPv4 is another listener
    }
    socket.bind(&address.into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn socket_options_bound_silence_and_queue() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let limits =
            NetLimits { tcp_user_timeout: Duration::from_secs(30), ..NetLimits::default() };
        let socket = SockRef::from(&stream);
        set_options(&socket, &limits).expect("set");
        assert_eq!(socket.tcp_user_timeout().expect("read"), Some(limits.tcp_user_timeout));
        assert_eq!(socket.tcp_notsent_lowat().expect("read"), NOT_SENT);
        assert!(socket.keepalive().expect("read"));
        assert_eq!(socket.tcp_keepalive_time().expect("read"), Duration::from_secs(15));
        assert_eq!(socket.tcp_keepalive_interval().expect("read"), Duration::from_secs(3));
        let forever = NetLimits { tcp_user_timeout: Duration::MAX, ..NetLimits::default() };
        set_options(&socket, &forever).expect("the longest times that the system accepts");
        assert_eq!(socket.tcp_user_timeout().expect("read"), Some(USER_TIMEOUT_MAX));
        assert_eq!(socket.tcp_keepalive_time().expect("read"), KEEPALIVE_MAX);
    }

    #[test]
    fn each_stack_accepts_any_number_of_lanes() {
        for stack in [Stack::Own, Stack::Mixed, Stack::Stock] {
            for lanes_per_peer in [4, STOCK_STREAMS_MAX, usize::MAX] {
                let limits = NetLimits { lanes_per_peer, ..NetLimits::default() };
                let config = NetConfig { transport: stack, limits, ..NetConfig::default() };
                let keypair = Keypair::generate_ed25519();
                let built = transport(&config, &Keyring::default(), &keypair);
                assert!(built.is_ok(), "{stack:?} with {lanes_per_peer}");
            }
        }
    }

    #[test]
    fn port_with_a_listener_is_detected_despite_reuseport() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("new");
        listener.set_reuse_address(true).expect("set");
        listener.set_reuse_port(true).expect("set"); // like libp2p
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
        listener.listen(1).expect("listening");
        let address = listener.local_addr().expect("bound").as_socket().expect("IP");
        let taken = check_free(address).expect_err("a socket listens");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let any = SocketAddr::from(([0, 0, 0, 0], address.port()));
        assert_eq!(check_free(any).expect_err("also").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        check_free(address).expect("free again");
    }
}
