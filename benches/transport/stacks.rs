//! The compared network stacks: two connected streams, or two transports, each end on its own
//! runtime.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::io::{AsyncRead, AsyncWrite};
use libp2p::Multiaddr;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p::identity::Keypair;
use libp2p::swarm::{Swarm, SwarmEvent};
use libp2p::tcp::tokio::TcpStream;
use ostraca::net::config::NetConfig;
use ostraca::net::handle::{Net, NetEvent};
use ostraca::net::identity::Identity;
use ostraca::net::lane::Lane;
use ostraca::net::swarm::{self, CountedSubstream, LaneBehaviour};
use ostraca::net::{Receiver, TrafficClass};
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{mpsc, oneshot};

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}
pub(crate) type Boxed = Box<dyn ByteStream>;
/// Creates a connected pair, one end on each runtime.
pub(crate) type StackSetup = fn(Handle, Handle) -> BoxFuture<'static, (Boxed, Boxed)>;

/// Two runtimes, like those of two processes.
pub(crate) struct Sides {
    pub(crate) near: Runtime,
    pub(crate) far: Runtime,
}

impl Sides {
    pub(crate) fn new() -> Self {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(2).enable_all().build().expect("a runtime")
        };
        Self { near: runtime(), far: runtime() }
    }

    pub(crate) fn connect(&self, stack: StackSetup) -> (Boxed, Boxed) {
        self.near.block_on(stack(self.near.handle().clone(), self.far.handle().clone()))
    }

    /// Starts two connected transports with these receivers.
    pub(crate) fn nets(&self, near: Arc<dyn Receiver>, far: Arc<dyn Receiver>) -> [BenchNode; 2] {
        let far = self.far.block_on(BenchNode::start(far));
        let mut near = self.near.block_on(BenchNode::start(near));
        let address = far.net.addresses()[0].clone();
        near.net.keep(far.net.me().peer, vec![address]);
        let mut far = far;
        self.near.block_on(near.up());
        self.far.block_on(far.up());
        [near, far]
    }
}

// ── Raw TCP ──

async fn sockets(near: &Handle, far: &Handle) -> (TcpStream, TcpStream) {
    let (told, address) = oneshot::channel();
    let accepting = far.spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let _ = told.send(listener.local_addr().expect("bound")); // never fails: it is awaited
        listener.accept().await.expect("it connects").0
    });
    let address = address.await.expect("told");
    let connecting = near
        .spawn(async move { tokio::net::TcpStream::connect(address).await.expect("connected") });
    let (here, there) = tokio::join!(connecting, accepting);
    let (here, there) = (here.expect("no panic"), there.expect("no panic"));
    for stream in [&here, &there] {
        stream.set_nodelay(true).expect("a socket option");
    }
    (TcpStream(here), TcpStream(there))
}

/// Plain TCP.
pub(crate) fn tcp(near: Handle, far: Handle) -> BoxFuture<'static, (Boxed, Boxed)> {
    async move {
        let (here, there) = sockets(&near, &far).await;
        (Box::new(here) as Boxed, Box::new(there) as Boxed)
    }
    .boxed()
}

/// TCP with Noise: encrypted, one stream per socket.
pub(crate) fn noise(near: Handle, far: Handle) -> BoxFuture<'static, (Boxed, Boxed)> {
    async move {
        let (here, there) = sockets(&near, &far).await;
        let cipher =
            || libp2p_noise::Config::new(&Keypair::generate_ed25519()).expect("a key that signs");
        let here = near.spawn(cipher().upgrade_outbound(here, "/noise"));
        let there = far.spawn(cipher().upgrade_inbound(there, "/noise"));
        let (here, there) = tokio::join!(here, there);
        let here = here.expect("no panic").expect("a handshake").1;
        let there = there.expect("no panic").expect("a handshake").1;
        (Box::new(here) as Boxed, Box::new(there) as Boxed)
    }
    .boxed()
}

// ── Bare libp2p ──

/// A substream of this crate's libp2p stack, as used by a lane.
pub(crate) fn substream(near: Handle, far: Handle) -> BoxFuture<'static, (Boxed, Boxed)> {
    async move {
        let (told, address) = oneshot::channel();
        let (give, mut take) = mpsc::channel(1);
        far.spawn(async move {
            let mut swarm = bare_swarm();
            let address = listening(&mut swarm).await;
            let _ = told.send(address); // never fails: it is awaited
            loop {
                if let SwarmEvent::Behaviour(swarm::BehaviourEvent::Inbound { stream, .. }) =
                    swarm.select_next_some().await
                {
                    let _ = give.send(stream).await; // an error: the bench has ended
                }
            }
        });
        let address = address.await.expect("told");
        let (give_near, near_end) = oneshot::channel();
        near.spawn(async move {
            let mut swarm = bare_swarm();
            swarm.dial(swarm::dial(None, address)).expect("a dial");
            let connection = loop {
                if let SwarmEvent::ConnectionEstablished { connection_id, .. } =
                    swarm.select_next_some().await
                {
                    break connection_id;
                }
            };
            let (reply, line) = oneshot::channel();
            swarm.behaviour_mut().open(connection, TrafficClass::User, reply);
            let mut line = std::pin::pin!(line);
            let line: CountedSubstream = loop {
                tokio::select! {
                    line = &mut line => break line.expect("answered").expect("a substream"),
                    _ = swarm.select_next_some() => {}
                }
            };
            let _ = give_near.send(line); // never fails: it is awaited
            loop {
                swarm.select_next_some().await;
            }
        });
        let mut here = near_end.await.expect("a substream");
        // The protocol's name is sent with the first bytes.
        futures::AsyncWriteExt::flush(&mut here).await.expect("flushed");
        let there = take.recv().await.expect("the other end");
        (Box::new(here) as Boxed, Box::new(there) as Boxed)
    }
    .boxed()
}

fn bare_swarm() -> Swarm<LaneBehaviour> {
    swarm::swarm(&NetConfig::default(), &Keypair::generate_ed25519()).expect("a free port")
}

async fn listening(swarm: &mut Swarm<LaneBehaviour>) -> Multiaddr {
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return address;
        }
    }
}

// ── Whole transports ──

/// A transport with its events and identity.
pub(crate) struct BenchNode {
    pub(crate) net: Net,
    events: mpsc::UnboundedReceiver<NetEvent>,
    _identity: Identity,
}

impl BenchNode {
    async fn start(receiver: Arc<dyn Receiver>) -> Self {
        let identity = Identity::load(None).expect("an identity");
        let started = Net::start(&NetConfig::default(), &identity, receiver).await;
        let (net, events) = started.expect("a free port");
        Self { net, events, _identity: identity }
    }

    async fn up(&mut self) {
        while !matches!(self.events.recv().await.expect("it runs"), NetEvent::Up { .. }) {}
    }

    /// The lane to another host.
    pub(crate) fn lane(&self, other: &Self, class: TrafficClass) -> Lane {
        self.net.lane(other.net.me().incarnation, class).expect("it is up")
    }
}
