//! Tests of the encryption, against itself, against `libp2p-noise` with the same protocol, and
//! against an attacker that modifies the bytes in transit.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::{join, join3};
use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::PeerId;
use libp2p::core::upgrade::{
    InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version,
};
use libp2p::identity::Keypair;
use multistream_select::{dialer_select_proto, listener_select_proto};
use ostraca::net::noise::{Channel, Noise, NoiseError, PLAIN_MAX};
use proptest::prelude::*;

use crate::lanes::cuts::{block_on, seeds};
use crate::lanes::pipe::{Chance, Nature, PipeEnd, pipe};
use crate::talk::{nature, said, say};

const PROLOGUE: &[u8] = b"what both know";

/// Protocol names of the handshakes: with the cipher of libp2p, and with AES.
const NAMES: [&str; 2] = ["/noise", "/ostraca/noise-aesgcm/1"];

fn ours(identity: &Keypair) -> Noise {
    Noise::new(identity).expect("a key that signs").with_prologue(PROLOGUE)
}

fn theirs(identity: &Keypair) -> libp2p_noise::Config {
    let config = libp2p_noise::Config::new(identity).expect("a key that signs");
    config.with_prologue(PROLOGUE.to_vec())
}

/// Two channels of this crate that have authenticated each other.
async fn channels(
    name: &'static str,
    near: PipeEnd,
    far: PipeEnd,
) -> (Channel<PipeEnd>, Channel<PipeEnd>) {
    let identity = Keypair::generate_ed25519();
    let near = ours(&identity).upgrade_outbound(near, name.into());
    let (near, far) = join(near, ours(&identity).upgrade_inbound(far, name.into())).await;
    (near.expect("a handshake").1, far.expect("a handshake").1)
}

/// Sends data in pieces, and reads that of the other end.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, seed: u64, end: usize) {
    let (mut reader, writer) = stream.split();
    let said_here = said(seed, end);
    let write = say(writer, &said_here, Chance(seed.wrapping_add(end as u64)));
    let mut heard = Vec::new();
    let read = async {
        let mut chance = Chance(!seed);
        let mut bytes = vec![0; 150_000];
        loop {
            let most = chance.size(bytes.len());
            let len = reader.read(&mut bytes[..most]).await.expect("it is not modified");
            heard.extend_from_slice(&bytes[..len]);
            if len == 0 {
                break;
            }
        }
    };
    join(write, read).await;
    assert!(heard == said(seed, 1 - end), "end {end} hears {} bytes, or others", heard.len());
}

/// A conversation over connections of any behaviour between two ends that authenticate each other.
fn talk<N, F, C, D>(
    name: &'static str,
    seed: u64,
    dial: impl Fn(&Keypair) -> N,
    answer: impl Fn(&Keypair) -> F,
) where
    N: OutboundConnectionUpgrade<PipeEnd, Output = (PeerId, C)>,
    F: InboundConnectionUpgrade<PipeEnd, Output = (PeerId, D)>,
    N::Info: From<&'static str>,
    F::Info: From<&'static str>,
    N::Error: std::fmt::Debug,
    F::Error: std::fmt::Debug,
    C: AsyncRead + AsyncWrite + Unpin,
    D: AsyncRead + AsyncWrite + Unpin,
{
    let (near, far) = pipe(nature(&mut Chance(seed)));
    let identities = [Keypair::generate_ed25519(), Keypair::generate_ed25519()];
    let [me, you] = identities.each_ref().map(|identity| identity.public().to_peer_id());
    block_on(async {
        let (near, far) = join(
            dial(&identities[0]).upgrade_outbound(near, name.into()),
            answer(&identities[1]).upgrade_inbound(far, name.into()),
        )
        .await;
        let ((is_you, near), (is_me, far)) =
            (near.expect("a handshake"), far.expect("a handshake"));
        assert_eq!((is_me, is_you), (me, you));
        join(converse(near, seed, 0), converse(far, seed, 1)).await;
    });
}

#[test]
fn messages_reach_the_authenticated_peer() {
    seeds("noise::messages_reach_the_authenticated_peer", 60, |seed| {
        for name in NAMES {
            talk(name, seed, ours, ours);
        }
    });
}

#[test]
fn dialler_interoperates_with_libp2p_noise() {
    seeds("noise::dialler_interoperates_with_libp2p_noise", 60, |seed| {
        talk(NAMES[0], seed, ours, theirs);
    });
}

#[test]
fn acceptor_interoperates_with_libp2p_noise() {
    seeds("noise::acceptor_interoperates_with_libp2p_noise", 60, |seed| {
        talk(NAMES[0], seed, theirs, ours);
    });
}

#[test]
fn another_prologue_fails_at_both_ends() {
    block_on(async {
        let (near, far) = pipe(Nature::default());
        let identity = Keypair::generate_ed25519();
        let other = Noise::new(&identity).expect("it signs").with_prologue(b"something else");
        let far = ours(&identity).upgrade_inbound(far, "/noise".into());
        let (near, far) = join(other.upgrade_outbound(near, "/noise".into()), far).await;
        assert!(matches!(near.expect_err("refused"), NoiseError::Handshake(_)));
        assert!(matches!(far.expect_err("it has hung up"), NoiseError::Io(_)));
    });
}

#[test]
fn ends_with_different_ciphers_fail() {
    for (here, there) in [(NAMES[0], NAMES[1]), (NAMES[1], NAMES[0])] {
        let (near, far) = pipe(Nature::default());
        let identity = Keypair::generate_ed25519();
        let near = ours(&identity).upgrade_outbound(near, here.into());
        let (near, far) = block_on(join(near, ours(&identity).upgrade_inbound(far, there.into())));
        assert!(matches!(near.expect_err("refused"), NoiseError::Handshake(_)));
        assert!(matches!(far.expect_err("it has hung up"), NoiseError::Io(_)));
    }
}

/// The negotiated name, after a conversation with it. The dialler prefers its first name.
fn agree(dials: &[&'static str], listens: &[&'static str]) -> &'static str {
    let (near, far) = pipe(Nature::default());
    let identity = Keypair::generate_ed25519();
    block_on(async {
        let near = async {
            let near = dialer_select_proto(near, dials.to_vec(), Version::V1Lazy).await;
            let (name, near) = near.expect("one in common");
            let (_, near) =
                ours(&identity).upgrade_outbound(near, name.into()).await.expect("a handshake");
            converse(near, 7, 0).await;
            name
        };
        let far = async {
            let (name, far) = listener_select_proto(far, listens.to_vec()).await.expect("the same");
            let (_, far) =
                ours(&identity).upgrade_inbound(far, name.into()).await.expect("a handshake");
            converse(far, 7, 1).await;
            name
        };
        let (near, far) = join(near, far).await;
        assert_eq!(near, far);
        near
    })
}

#[test]
fn fastest_common_cipher_is_negotiated() {
    let identity = Keypair::generate_ed25519();
    let of_libp2p: Vec<_> = theirs(&identity).protocol_info().collect();
    let [chacha, aes] = NAMES;
    assert_eq!(of_libp2p, [chacha]);
    assert_eq!(agree(&[aes, chacha], &[aes, chacha]), aes);
    assert_eq!(agree(&[aes, chacha], &of_libp2p), chacha);
    assert_eq!(agree(&of_libp2p, &[aes, chacha]), chacha);
    let here: Vec<_> = ours(&identity).protocol_info().collect();
    assert!(here == [aes, chacha] || here == [chacha], "{here:?}");
    let known = [aes, chacha].into_iter().filter(|name| here.contains(&(*name).into()));
    let here: Vec<&'static str> = known.collect();
    assert_eq!(agree(&here, &here), here[0]);
}

#[test]
fn unknown_protocol_name_is_refused() {
    let (near, _far) = pipe(Nature::default());
    let refused =
        block_on(ours(&Keypair::generate_ed25519()).upgrade_outbound(near, "/plaintext".into()));
    assert!(matches!(refused, Err(NoiseError::Unknown(name)) if name == "/plaintext"));
}

// ── An attacker between two ends ──

/// The messages that one end sends, as on the wire.
async fn captured(
    channel: &mut Channel<PipeEnd>,
    far: &mut PipeEnd,
    said: &[&[u8]],
) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    for said in said {
        channel.write_all(said).await.expect("there is room");
        channel.flush().await.expect("there is room");
        let mut message = vec![0; 2 + said.len() + 16];
        far.read_exact(&mut message).await.expect("it was flushed");
        messages.push(message);
    }
    messages
}

/// Sends data through a channel, and returns the data that the other end receives after `between`
/// has modified the messages.
fn through(
    name: &'static str,
    said: &[&[u8]],
    between: impl Fn(Vec<Vec<u8>>) -> Vec<u8>,
) -> (Vec<u8>, io::Result<()>) {
    let mut heard = Vec::new();
    let mut end = Ok(());
    block_on(async {
        // Each end is connected to the attacker, which forwards the handshake.
        let (near, mut to_near) = pipe(Nature::default());
        let (mut to_far, far) = pipe(Nature::default());
        let relay = async {
            for turn in 0..3 {
                let (from, to) = if turn == 1 {
                    (&mut to_far, &mut to_near)
                } else {
                    (&mut to_near, &mut to_far)
                };
                let mut prefix = [0; 2];
                from.read_exact(&mut prefix).await.expect("a message");
                let mut message = vec![0; usize::from(u16::from_be_bytes(prefix))];
                from.read_exact(&mut message).await.expect("a message");
                to.write_all(&[&prefix[..], &message].concat()).await.expect("there is room");
            }
        };
        let identity = Keypair::generate_ed25519();
        let (near, far, ()) = join3(
            ours(&identity).upgrade_outbound(near, name.into()),
            ours(&identity).upgrade_inbound(far, name.into()),
            relay,
        )
        .await;
        let (mut near, mut far) = (near.expect("a handshake").1, far.expect("a handshake").1);
        let messages = captured(&mut near, &mut to_near, said).await;
        to_far.write_all(&between(messages)).await.expect("there is room");
        to_far.close().await.expect("open");
        end = far.read_to_end(&mut heard).await.map(|_| ());
    });
    (heard, end)
}

#[test]
fn unmodified_messages_are_received() {
    for name in NAMES {
        let (heard, end) = through(name, &[b"one", b"two"], |messages| messages.concat());
        assert_eq!(heard, b"onetwo");
        end.expect("in order");
    }
}

#[test]
fn any_flipped_bit_ends_the_connection_unread() {
    const SAID: &[u8] = b"ten bytes!";
    let bytes = 0..SAID.len() + 2 + 16;
    for (byte, name) in bytes.flat_map(|byte| NAMES.map(|name| (byte, name))) {
        let (heard, end) = through(name, &[b"before", SAID, b"after"], |mut messages| {
            messages[1][byte] ^= 1;
            messages.concat()
        });
        assert_eq!(heard, b"before", "byte {byte}, {name}");
        let kind = end.expect_err("it was changed").kind();
        assert!(matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof));
    }
}

#[test]
fn replayed_or_reordered_message_is_refused() {
    let said: [&[u8]; 3] = [b"one", b"two", b"three"];
    let orders: [(&[usize], &[u8]); 4] =
        [(&[0, 0, 1], b"one"), (&[0, 2], b"one"), (&[1, 0, 2], b""), (&[0, 1, 0], b"onetwo")];
    for ((order, expected), name) in orders.iter().flat_map(|of| NAMES.map(|name| (of, name))) {
        let (heard, end) = through(name, &said, |messages| {
            order.iter().flat_map(|at| messages[*at].clone()).collect()
        });
        assert_eq!(&heard, expected, "{order:?}, {name}");
        assert_eq!(end.expect_err("out of order").kind(), io::ErrorKind::InvalidData);
    }
}

#[test]
fn end_within_a_message_is_an_error() {
    for name in NAMES {
        let (heard, end) = through(name, &[b"one"], |messages| messages.concat());
        assert_eq!(heard, b"one");
        end.expect("between two");
        for cut in 1..2 + 3 + 16 {
            let said: [&[u8]; 2] = [b"one", b"two"];
            let (heard, end) =
                through(name, &said, |messages| [&messages[0], &messages[1][..cut]].concat());
            assert_eq!(heard, b"one");
            assert_eq!(end.expect_err("cut").kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_in_the_handshake_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..300), framed in any::<bool>(),
        name in prop::sample::select(&NAMES),
    ) {
        block_on(async {
            for dials in [false, true] {
                let (near, mut far) = pipe(Nature::default());
                let frame = u16::try_from(bytes.len()).expect("short").to_be_bytes();
                if framed {
                    far.write_all(&frame).await.expect("there is room");
                }
                far.write_all(&bytes).await.expect("there is room");
                far.close().await.expect("open");
                let identity = Keypair::generate_ed25519();
                let got = if dials {
                    ours(&identity).upgrade_outbound(near, name.into()).await
                } else {
                    ours(&identity).upgrade_inbound(near, name.into()).await
                };
                assert!(got.is_err());
            }
        });
    }

    #[test]
    fn arbitrary_bytes_after_the_handshake_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 1..3_000), name in prop::sample::select(&NAMES),
    ) {
        let (heard, end) = through(name, &[], |_| bytes.clone());
        prop_assert!(heard.is_empty());
        prop_assert!(end.is_err());
    }
}

// ── Buffering ──

#[test]
fn full_message_is_sent_without_a_flush() {
    block_on(async {
        let (near, far) = pipe(Nature { capacity: 1 << 20, ..Nature::default() });
        let (mut near, mut far) = channels(NAMES[1], near, far).await;
        near.write_all(&vec![7; PLAIN_MAX + 5]).await.expect("there is room");
        let mut heard = vec![0; PLAIN_MAX];
        far.read_exact(&mut heard).await.expect("a full message");
        assert!(poll_once(&mut far, &mut [0; 9]).is_pending());
        near.flush().await.expect("there is room");
        far.read_exact(&mut heard[..5]).await.expect("the rest");
        assert!(heard.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn unread_channel_buffers_two_messages() {
    block_on(async {
        let (near, far) = pipe(Nature { capacity: 1_000, ..Nature::default() });
        let (mut near, mut far) = channels(NAMES[1], near, far).await;
        let bytes = vec![7; 100_000];
        let mut taken = 0;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(len) = Pin::new(&mut near).poll_write(&mut cx, &bytes) {
            taken += len.expect("it is open");
        }
        assert_eq!(taken, 2 * PLAIN_MAX);
        let close = near.close();
        let mut heard = Vec::new();
        let (closed, read) = join(close, far.read_to_end(&mut heard)).await;
        closed.expect("heard");
        read.expect("in order");
        assert_eq!(heard.len(), taken);
    });
}

fn poll_once<S: AsyncRead + Unpin>(stream: &mut S, out: &mut [u8]) -> Poll<io::Result<usize>> {
    Pin::new(stream).poll_read(&mut Context::from_waker(std::task::Waker::noop()), out)
}
