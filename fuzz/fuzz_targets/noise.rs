//! Any bytes as the other end of the cipher: the handshake fails, whoever dialled, without a panic.
#![no_main]

use std::io::{Cursor, Read, Write};

use futures::future::FutureExt;
use futures::io::AllowStdIo;
use libfuzzer_sys::fuzz_target;
use libp2p_core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p_identity::Keypair;
use ostraca::net::noise::Noise;

/// Says these bytes, and takes whatever comes.
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

fuzz_target!(|bytes: Vec<u8>| {
    let noise = Noise::new(&Keypair::generate_ed25519()).expect("a key that signs");
    let peer = || AllowStdIo::new(Peer(Cursor::new(bytes.clone())));
    for name in ["/noise", "/ostraca/noise-aesgcm/1"] {
        let dialled = noise.clone().upgrade_inbound(peer(), name.into()).now_or_never();
        let dialling = noise.clone().upgrade_outbound(peer(), name.into()).now_or_never();
        for shaken in [dialled, dialling] {
            assert!(shaken.expect("nothing is waited for").is_err());
        }
    }
});
