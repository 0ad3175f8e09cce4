//! Arbitrary bytes as the other end of the encrypted handshake: it fails on both sides without a panic.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Cursor, Read, Write};
use std::mem::discriminant;
use std::sync::LazyLock;

use futures::future::FutureExt;
use futures::io::AllowStdIo;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use ostraca::net::config::Secret;
use ostraca::net::noise::Noise;
use ostraca::net::secrets::{Keyring, Secrets};

/// A connection that yields these bytes and accepts every write.
struct Peer(Cursor<Vec<u8>>);

impl Read for Peer {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An open node and one with a secret. Keys are drawn once: that takes longer than a handshake.
static NODES: LazyLock<[Noise; 2]> = LazyLock::new(|| {
    let open = Noise::new(&Keypair::generate_ed25519()).expect("a key that signs");
    let secret = Secret::new(vec![7; 32]).expect("a secret of full length");
    let secrets = Secrets::new(vec![secret], Vec::new());
    let closed = open.clone().with_secrets(Keyring::new(Some(secrets))).with_stock_peers();
    [open, closed]
});

/// Returns a hash of the errors.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut outcome = DefaultHasher::new();
    let peer = || AllowStdIo::new(Peer(Cursor::new(bytes.to_vec())));
    for noise in &*NODES {
        for name in noise.protocol_info() {
            let inbound = noise.clone().upgrade_inbound(peer(), name.clone()).now_or_never();
            let outbound = noise.clone().upgrade_outbound(peer(), name).now_or_never();
            for handshake in [inbound, outbound] {
                let error = handshake.expect("the handshake waits for nothing").err();
                discriminant(&error.expect("no peer proves itself by chance")).hash(&mut outcome);
            }
        }
    }
    outcome.finish()
}
