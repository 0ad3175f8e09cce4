//! Peak heap of each decoder. The bound is [`BUDGET_BYTES`] plus [`BUDGET_FACTOR`] bytes per byte
//! of input, for any input.
//!
//! A counting allocator measures the whole process, so this binary has only one test, which
//! measures one decoder after the other: `cargo test --test decoder_memory`. Inputs: the corpus of
//! the fuzz bodies, mutations of it (`OSTRACA_SIM_SECONDS` and `OSTRACA_SEED` as for every seeded
//! test), long messages as nodes encode them, and inputs whose announced or repeated elements need
//! more memory than bytes. The fuzz bodies are the tests in `main.rs` and the targets of `fuzz/`.

#[expect(dead_code, reason = "shared with the fuzz bodies, which have more inputs")]
mod corpus;
#[expect(dead_code, reason = "shared with the fuzz bodies")]
mod mutation;
mod shapes;

use std::hint::black_box;

use futures::future::FutureExt;
use ostraca::cluster::gossip::wire::{decode, encode};
use ostraca::cluster::lease::{Heartbeat, LeaseMessage};
use ostraca::cluster::wire::ClusterMessage;
use ostraca::ddata::encoded::{BUDGET_BYTES, BUDGET_FACTOR, from_peer};
use ostraca::ddata::id::ReplicaId;
use ostraca::ddata::replicator::epoch::EpochId;
use ostraca::ddata::replicator::wire::ReplicatorMessage;
use ostraca::ddata::sim::seeds;
use ostraca::management::wire::{AdminRequest, AdminResponse};
use ostraca::net::frame::{FRAME_BYTES, Frame, cut};
use ostraca::net::handshake::{decode_answer, decode_client_answer};
use ostraca::net::noise::{Credentials, receive_framed};
use ostraca::net::wire::{ClientHello, Greeting, Hello, OPENING_BYTES_MAX};
use ostraca::node::routes::sharding::{CLUSTER_QUERY, SHARDING, SINGLETON, decode as decode_part};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// A decoder of peers' input.
struct Decoder {
    /// Name in findings, by which [`shapes::long`] finds its long messages.
    name: &'static str,
    /// Inputs to start from; related decoders share a corpus, of which each refuses a part.
    corpus: fn() -> Vec<Vec<u8>>,
    /// Decodes the bytes and returns whether they were valid.
    accepts: fn(&[u8]) -> bool,
}

const DECODERS: [Decoder; 15] = [
    Decoder { name: "frame", corpus: corpus::frames, accepts: cuts_frames },
    Decoder {
        name: "cluster",
        corpus: corpus::cluster,
        accepts: |bytes| black_box(decode::<ClusterMessage>(bytes)).is_ok(),
    },
    Decoder {
        name: "lease",
        corpus: leases,
        accepts: |bytes| black_box(decode::<LeaseMessage>(bytes)).is_ok(),
    },
    Decoder { name: "sharding", corpus: corpus::sharding, accepts: |bytes| hears(SHARDING, bytes) },
    Decoder {
        name: "singleton",
        corpus: corpus::sharding,
        accepts: |bytes| hears(SINGLETON, bytes),
    },
    Decoder {
        name: "survey",
        corpus: corpus::sharding,
        accepts: |bytes| hears(CLUSTER_QUERY, bytes),
    },
    Decoder {
        name: "replicator",
        corpus: corpus::replicator,
        accepts: |bytes| black_box(ReplicatorMessage::decode(bytes)).is_ok(),
    },
    Decoder {
        name: "request",
        corpus: corpus::management,
        accepts: |bytes| black_box(from_peer::<AdminRequest>(bytes)).is_ok(),
    },
    Decoder {
        name: "answer",
        corpus: corpus::management,
        accepts: |bytes| black_box(from_peer::<AdminResponse>(bytes)).is_ok(),
    },
    Decoder {
        name: "greeting",
        corpus: corpus::openings,
        accepts: |bytes| opens(bytes, |bytes| black_box(from_peer::<Greeting>(bytes)).is_ok()),
    },
    Decoder {
        name: "hello",
        corpus: corpus::openings,
        accepts: |bytes| opens(bytes, |bytes| black_box(from_peer::<Hello>(bytes)).is_ok()),
    },
    Decoder {
        name: "client hello",
        corpus: corpus::openings,
        accepts: |bytes| opens(bytes, |bytes| black_box(from_peer::<ClientHello>(bytes)).is_ok()),
    },
    Decoder {
        name: "opening's answer",
        corpus: corpus::openings,
        accepts: |bytes| {
            opens(bytes, |bytes| {
                // `|`, not `||`: both decoders are measured.
                black_box(decode_answer(bytes)).is_ok()
                    | black_box(decode_client_answer(bytes)).is_ok()
            })
        },
    },
    Decoder { name: "noise message", corpus: corpus::noise, accepts: cuts_noise_messages },
    Decoder {
        name: "noise payload",
        corpus: corpus::noise_payloads,
        accepts: |bytes| black_box(Credentials::decode(bytes)).is_ok(),
    },
];

fn cuts_noise_messages(mut bytes: &[u8]) -> bool {
    while let Some(Ok(message)) = receive_framed(&mut bytes).now_or_never() {
        black_box(message);
    }
    bytes.is_empty()
}

fn cuts_frames(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Ok(ostraca::net::frame::FrameParseResult::Frame(frame, len)) = cut(rest, FRAME_BYTES)
    {
        if let Frame::Message { header, .. } | Frame::First { header, .. } = frame {
            black_box(header.fields().count());
        }
        rest = &rest[len..];
    }
    rest.is_empty()
}

fn leases() -> Vec<Vec<u8>> {
    let epoch = EpochId { generation: 1, number: 3 };
    let beat = LeaseMessage::Beat(Heartbeat { epoch, number: 9 });
    vec![encode(&beat), encode(&LeaseMessage::Release { number: 9 })]
}

/// Decodes a message of peer 2 for this part of the node and the type `counter`.
fn hears(part: &str, bytes: &[u8]) -> bool {
    black_box(decode_part(ReplicaId::new(2), (part, "counter"), bytes)).is_ok()
}

/// The transport refuses longer openings (the messages of an admission) before it decodes them.
fn opens(bytes: &[u8], decode: impl Fn(&[u8]) -> bool) -> bool {
    bytes.len() <= OPENING_BYTES_MAX && decode(bytes)
}

/// Measures a decoder's peak heap above the level before, in bytes, and whether it accepts the
/// input.
fn peak(decoder: &Decoder, bytes: &[u8]) -> (usize, bool) {
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let accepted = (decoder.accepts)(bytes);
    (HEAP.peak_usage() - before, accepted)
}

/// Violations of the bound, and long messages that were refused.
#[derive(Default)]
struct Findings(Vec<String>);

impl Findings {
    /// Notes a violation of the bound. Returns whether the decoder accepts the input.
    fn measure(&mut self, decoder: &Decoder, what: &str, bytes: &[u8]) -> bool {
        let (peak, accepted) = peak(decoder, bytes);
        let bound = BUDGET_FACTOR * bytes.len() + BUDGET_BYTES;
        if peak > bound {
            self.0.push(format!(
                "{}: {what}: {} bytes take {peak} bytes of heap, above {bound}; they begin {:02x?}",
                decoder.name,
                bytes.len(),
                &bytes[..bytes.len().min(40)]
            ));
        }
        accepted
    }
}

#[test]
fn peak_heap_of_each_decoder_is_bounded() {
    let shapes = shapes::hostile();
    let mut findings = Findings::default();
    for decoder in &DECODERS {
        let corpus = (decoder.corpus)();
        for (number, input) in corpus.iter().enumerate() {
            findings.measure(decoder, &format!("corpus {number}"), input);
            for (what, grown) in shapes::grown(input) {
                findings.measure(decoder, &format!("corpus {number}, {what}"), &grown);
            }
        }
        for (what, input) in &shapes {
            findings.measure(decoder, what, input);
        }
        for (what, input) in shapes::long(decoder.name) {
            if !findings.measure(decoder, &what, &input) {
                findings.0.push(format!("{}: {what}: refused", decoder.name));
            }
        }
        for seed in seeds("peak_heap_of_each_decoder_is_bounded", 100) {
            for input in mutation::inputs(&corpus, seed.value) {
                findings.measure(decoder, &format!("seed {}", seed.value), &input);
            }
        }
    }
    let first: Vec<_> = findings.0.iter().take(20).collect();
    assert!(first.is_empty(), "{} findings, the first: {first:#?}", findings.0.len());
}
