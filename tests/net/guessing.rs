//! A stranger without the secret that speaks for itself, without this library: it must learn neither
//! the node's identity nor anything that tests guesses of the secret. Not over the stock transport,
//! whose handshake answers everybody.

use std::time::Duration;

use libp2p::PeerId;
use ostraca::net::address::socket_address;
use ostraca::net::config::{NetConfig, NetLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::nodes::{Node, config, serves};
use crate::waits::soon;

/// Header of multistream-select, and the names of libp2p's Noise and of the node's own.
const HEADER: &[u8] = b"\x13/multistream/1.0.0\n";
const STOCK: &[u8] = b"\x07/noise\n";
const OWN: &[u8] = b"\x15/ostraca/noise-psk/1\n";

/// Everything that the node sends until it closes the connection.
async fn heard(node: &Node, said: &[u8]) -> Vec<u8> {
    let to = socket_address(&node.address).expect("an address of TCP");
    let mut stream = soon(TcpStream::connect(to)).await.expect("it listens");
    stream.write_all(said).await.expect("sent");
    let mut heard = Vec::new();
    let end = async {
        let mut part = [0; 4096];
        loop {
            match stream.read(&mut part).await {
                Ok(0) | Err(_) => return,
                Ok(count) => heard.extend_from_slice(&part[..count]),
            }
        }
    };
    soon(end).await;
    heard
}

/// The public key in a peer id.
fn key(peer: PeerId) -> Vec<u8> {
    let id = peer.to_bytes();
    id[id.len() - 32..].to_vec()
}

/// The answer of a responder to a first message of Noise has 96 bytes or more: its ephemeral key, and
/// its static key and identity with a tag each, by which a guess of the secret can be tested offline.
#[tokio::test]
async fn first_message_of_a_stranger_is_answered_nothing() {
    let limits = NetLimits { handshake_within: Duration::from_secs(5), ..NetLimits::default() };
    let node = Node::start(NetConfig { limits, ..config() }).await;
    for (name, lengths) in [(STOCK, [32_u8, 48, 96]), (OWN, [32, 48, 96])] {
        for length in lengths {
            let message: Vec<u8> = (0..length).map(|byte| byte + 1).collect();
            let said = [HEADER, name, &[0, length], &message].concat();
            let heard = heard(&node, &said).await;
            let negotiation = HEADER.len() + OWN.len();
            assert!(heard.len() <= negotiation, "{} bytes: {heard:x?}", heard.len());
            let key = key(node.peer());
            assert!(!heard.windows(key.len()).any(|part| part == key), "{heard:x?}");
        }
    }
    serves(&node).await;
}
