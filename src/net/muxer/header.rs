//! Frame header of yamux: twelve bytes in front of each frame, all fields big-endian. Source: the
//! [specification](https://github.com/hashicorp/yamux/blob/master/spec.md).

use super::MuxerViolation;

/// Length of a frame header, in bytes.
pub(super) const HEADER_BYTES: usize = 12;

/// Initial window of a stream, in each direction, in bytes.
pub(super) const WINDOW_FIRST: u32 = 256 * 1024;

/// Go-away code of a normal termination.
pub(super) const GO_AWAY_NORMAL: u32 = 0;

/// Go-away code of a protocol error of the peer.
pub(super) const GO_AWAY_VIOLATION: u32 = 1;

const VERSION: u8 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// Data frame: `len` bytes follow.
    Data,
    /// Window update: the receiver may send `len` more bytes on the stream.
    Window,
    /// Ping: `len` is an opaque value that the answer repeats.
    Ping,
    /// Go away: the connection ends; `len` is the reason.
    GoAway,
}

/// Flags of a frame: state changes of its stream, or the direction of a ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u16);

impl Flags {
    /// Opens the stream; in a ping, requests an answer.
    pub(super) const SYN: Self = Self(1);
    /// Accepts the stream; in a ping, marks the answer.
    pub(super) const ACK: Self = Self(2);
    /// Ends the sender's half of the stream.
    pub(super) const FIN: Self = Self(4);
    /// Resets the stream in both directions.
    pub(super) const RST: Self = Self(8);

    /// Whether at least one of the bits of `flag` is set.
    pub(super) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// Returns the flags of both.
    pub(super) const fn and(self, flag: Self) -> Self {
        Self(self.0 | flag.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) flags: Flags,
    pub(super) stream: u32,
    pub(super) len: u32,
}

impl FrameHeader {
    /// Encodes the header as version 0: version, kind, flags, stream id, `len`.
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            FrameKind::Data => 0,
            FrameKind::Window => 1,
            FrameKind::Ping => 2,
            FrameKind::GoAway => 3,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = kind;
        bytes[2..4].copy_from_slice(&self.flags.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.stream.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes a header, and checks its version first, then its kind. Unknown flags are kept, and
    /// have no meaning; neither the stream id nor `len` is checked.
    pub(super) fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, MuxerViolation> {
        let [version, kind, f0, f1, s0, s1, s2, s3, l0, l1, l2, l3] = bytes;
        if version != VERSION {
            return Err(MuxerViolation::Version(version));
        }
        let kind = match kind {
            0 => FrameKind::Data,
            1 => FrameKind::Window,
            2 => FrameKind::Ping,
            3 => FrameKind::GoAway,
            other => return Err(MuxerViolation::Kind(other)),
        };
        let flags = Flags(u16::from_be_bytes([f0, f1]));
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        Ok(Self { kind, flags, stream, len: u32::from_be_bytes([l0, l1, l2, l3]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_the_bytes_of_the_specification() {
        let flags = Flags::SYN.and(Flags::FIN);
        let header =
            FrameHeader { kind: FrameKind::Window, flags, stream: 0x0102_0304, len: 0x0506_0708 };
        let bytes = [0, 1, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(header.encode(), bytes);
        assert_eq!(FrameHeader::decode(bytes), Ok(header));
        let kinds = [FrameKind::Data, FrameKind::Window, FrameKind::Ping, FrameKind::GoAway];
        for (kind, byte) in kinds.into_iter().zip(0..) {
            assert_eq!(FrameHeader { kind, ..header }.encode()[1], byte);
        }
        let flags = [Flags::SYN, Flags::ACK, Flags::FIN, Flags::RST];
        for (flags, bit) in flags.into_iter().zip(0..) {
            assert_eq!(FrameHeader { flags, ..header }.encode()[2..4], [0, 1 << bit]);
        }
    }

    #[test]
    fn malformed_headers_are_named() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[1] = 4;
        assert_eq!(FrameHeader::decode(bytes), Err(MuxerViolation::Kind(4)));
        bytes[0] = 1;
        assert_eq!(FrameHeader::decode(bytes), Err(MuxerViolation::Version(1)));
    }
}
