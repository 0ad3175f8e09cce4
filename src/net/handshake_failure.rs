//! Classifies failed handshakes of connections by the swarm's error.
//!
//! A peer that is stopped or overloaded, a peer with another secret, and a peer that closed the
//! connection need different actions, so logs and errors of clients must not mix them up.

use std::io;
use std::time::Duration;

use libp2p::TransportError;
use libp2p::swarm::{DialError, ListenError};

use super::noise;
use super::swarm::{HandshakeEnd, find_cause};

/// Cause of a failed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeFailure {
    /// This node ended it because of a limit or its allow-list, and has already logged it.
    Refused,
    /// The peer did not finish it within this time.
    TimedOut(Duration),
    /// The cipher's handshake failed, in most cases because the peer's message could not be
    /// decrypted: it has another secret, or none.
    Secret,
    /// The peer closed or reset the connection, without a reason.
    Closed,
    /// The connection leads to this node itself.
    Own,
    /// Another cause: the peer speaks another protocol or is another one than was expected, no
    /// connection was established, or the attempt was aborted.
    Other,
}

impl HandshakeFailure {
    /// Classifies the failure of an accepted connection. An aborted one, and one with a peer that
    /// was not expected, is [`Other`](Self::Other).
    pub(super) fn of_inbound(error: &ListenError) -> Self {
        match error {
            ListenError::Denied { .. } => Self::Refused,
            ListenError::LocalPeerId { .. } => Self::Own,
            ListenError::Transport(error) => Self::of_transport(error),
            _ => Self::Other,
        }
    }

    /// Classifies the failure of a dialled connection. If several addresses were tried, the last
    /// one counts; [`Other`](Self::Other) if none was tried, or another peer answered.
    pub(super) fn of_dial(error: &DialError) -> Self {
        match error {
            DialError::Denied { .. } => Self::Refused,
            DialError::LocalPeerId { .. } => Self::Own,
            DialError::Transport(errors) => {
                errors.last().map_or(Self::Other, |(_, error)| Self::of_transport(error))
            }
            _ => Self::Other,
        }
    }

    /// Classifies an error of the transport by the first cause that applies: an end by this node's
    /// acceptor, a failure of the cipher's handshake, then the kind of the innermost I/O error: the
    /// end of the stream, a reset, an abort or a broken pipe is [`Closed`](Self::Closed).
    /// Everything else is [`Other`](Self::Other), also a refused TCP connection and an I/O error of
    /// the kind `TimedOut`.
    fn of_transport(error: &TransportError<io::Error>) -> Self {
        let TransportError::Other(error) = error else { return Self::Other };
        match find_cause(error) {
            Some(HandshakeEnd::Evicted | HandshakeEnd::Refused) => return Self::Refused,
            Some(HandshakeEnd::NoFirstMessage(within) | HandshakeEnd::TimedOut(within)) => {
                return Self::TimedOut(*within);
            }
            None => {}
        }
        if let Some(noise::NoiseError::Handshake(_)) = find_cause(error) {
            return Self::Secret;
        }
        match find_cause::<io::Error>(error).map(innermost).map(io::Error::kind) {
            Some(
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe,
            ) => Self::Closed,
            _ => Self::Other,
        }
    }
}

/// Returns the innermost `io::Error` of a chain of causes; the outer ones only wrap it. Returns
/// `outer` itself if it wraps none, and stops after 16 of them.
fn innermost(outer: &io::Error) -> &io::Error {
    const DEPTH_MAX: usize = 16;
    let mut innermost = outer;
    for _ in 0..DEPTH_MAX {
        let inner = innermost.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
        let within = |error| find_cause::<io::Error>(error);
        let source = || std::error::Error::source(innermost).and_then(within);
        match inner.and_then(within).or_else(source) {
            Some(error) => innermost = error,
            None => break,
        }
    }
    innermost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(error: io::Error) -> HandshakeFailure {
        // The swarm wraps the error twice.
        let error = io::Error::other(io::Error::other(error));
        HandshakeFailure::of_inbound(&ListenError::Transport(TransportError::Other(error)))
    }

    #[test]
    fn handshake_failures_are_classified() {
        let second = Duration::from_secs(1);
        for (error, failure) in [
            (io::Error::other(HandshakeEnd::Evicted), HandshakeFailure::Refused),
            (io::Error::other(HandshakeEnd::TimedOut(second)), HandshakeFailure::TimedOut(second)),
            (
                io::Error::other(HandshakeEnd::NoFirstMessage(second)),
                HandshakeFailure::TimedOut(second),
            ),
            (
                io::Error::other(noise::NoiseError::Handshake(snow::Error::Decrypt)),
                HandshakeFailure::Secret,
            ),
            (
                io::Error::other(noise::NoiseError::Io(io::ErrorKind::UnexpectedEof.into())),
                HandshakeFailure::Closed,
            ),
            (io::ErrorKind::ConnectionReset.into(), HandshakeFailure::Closed),
            (io::ErrorKind::ConnectionRefused.into(), HandshakeFailure::Other),
        ] {
            let text = error.to_string();
            assert_eq!(of(error), failure, "{text}");
        }
    }
}
