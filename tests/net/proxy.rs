//! TCP proxy that breaks connections on command, to simulate a network between two nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use libp2p::Multiaddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A running proxy.
pub(crate) struct Proxy {
    pub(crate) address: Multiaddr,
    to: Arc<AtomicU16>,
    cut: watch::Sender<u64>,
    refuses: Arc<AtomicBool>,
}

impl Proxy {
    /// Listens on a port of its own, and forwards to the port set by [`lead_to`](Self::lead_to).
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("bound").port();
        let (cut, cuts) = watch::channel(0);
        let (to, refuses) = (Arc::new(AtomicU16::new(0)), Arc::new(AtomicBool::new(false)));
        let (target, refusing) = (to.clone(), refuses.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if !refusing.load(Ordering::Relaxed) {
                    tokio::spawn(pass(near, target.load(Ordering::Relaxed), cuts.clone()));
                }
            }
        });
        let address = format!("/ip4/127.0.0.1/tcp/{own}").parse().expect("an address");
        Self { address, to, cut, refuses }
    }

    /// Forwards to this port of loopback from now on.
    pub(crate) fn lead_to(&self, port: u16) {
        self.to.store(port, Ordering::Relaxed);
    }

    /// Breaks all open connections.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Refuses new connections from now on; open ones stay.
    pub(crate) fn refuse(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    /// Breaks all open connections, and refuses new ones from now on.
    pub(crate) fn close(&self) {
        self.refuse();
        self.cut();
    }

    pub(crate) fn open(&self) {
        self.refuses.store(false, Ordering::Relaxed);
    }
}

async fn pass(mut near: TcpStream, port: u16, mut cuts: watch::Receiver<u64>) {
    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (_, _) = (near.set_nodelay(true), far.set_nodelay(true)); // without it only slower
    cuts.mark_unchanged();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = cuts.changed() => {}
    }
}
