//! [`Client`]: sends requests to a node and receives its answers, over the control socket or any
//! other stream.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_ddata::encoded::ValueError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::wire::{
    self, ANSWER_BYTES_MAX, AdminRequest, AdminResponse, Data, FrameError, REQUEST_BYTES_MAX,
    RequestRefusal,
};

/// Time limit for connecting to the control socket.
const CONNECTING_MAX: Duration = Duration::from_secs(5);

/// A stream to a node: its UNIX socket or a stream of the transport.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection to a node for requests of a tool, one at a time. Dropping it closes the connection.
///
/// # Example
/// ```
/// use ostraca::management::client::Client;
/// use ostraca::management::wire::{AdminRequest, AdminResponse};
/// use ostraca::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("control.sock");
/// let mut config = Config::default();
/// config.management.control_socket = Some(path.clone());
/// let node = Node::start(config).await?;
/// node.cluster().wait_until_up().await?;
/// let mut client = Client::connect(&path).await?;
/// let answer = client.ask(&AdminRequest::Members, secs(10)).await?;
/// let AdminResponse::Members(all) = answer else { panic!() };
/// assert_eq!(all.members.len(), 1);
/// node.stop().await;
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
pub struct Client {
    stream: Box<dyn Duplex>,
    /// Whether a request was sent and its answer was not received. That answer would be taken for
    /// the answer to the next request, so `ask` and `watch` then fail. Set before a request is
    /// written, also if the write fails; cleared only by an answer or a refusal in `ask`.
    is_answer_due: bool,
}

/// Why a client can't connect. No request was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminConnectError {
    /// There is no file at the path.
    #[error(
        "there is no control socket at {path}: is the node running, and on this host? Its log \
         names its socket (`management.listening`)",
        path = path.display()
    )]
    Nowhere {
        /// The path without a file.
        path: PathBuf,
    },
    /// No process of this host listens on the socket: its node has ended without removing the file,
    /// or runs on another host that shares the directory.
    #[error(
        "no process of this host listens on the socket {path}: its node has ended or runs on \
         another host",
        path = path.display()
    )]
    Dead {
        /// Path of the dead node's socket.
        path: PathBuf,
    },
    /// The path is not a socket.
    #[error(
        "{path} is not a socket: name the control socket of a node, `control.sock` in its data \
         directory unless set otherwise",
        path = path.display()
    )]
    NoSocket {
        /// Path of the other file.
        path: PathBuf,
    },
    /// This user may not connect to the socket, or not enter a directory above it.
    #[error(
        "this user may not connect to {path}: ask as the user that runs the node (`sudo -u USER \
         ostraca …`)",
        path = path.display()
    )]
    Forbidden {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The node accepts no connection in time, or too many connections wait to be accepted.
    #[error(
        "the node at {path} accepts no connection: it may be stopped (SIGSTOP, a debugger), stuck \
         or overloaded, see its log",
        path = path.display()
    )]
    Stuck {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The system reported another error.
    #[error("{path} can't be connected to: is it a node's control socket?", path = path.display())]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// Why a request was not answered as expected. The variants state whether the node may have
/// executed it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminRequestError {
    /// The node refused. The text states whether it has changed anything.
    #[error(transparent)]
    Refused(#[from] RequestRefusal),
    /// The request is too long and was not sent.
    #[error(
        "the request was not sent: it has {len} bytes, at most {REQUEST_BYTES_MAX} are allowed"
    )]
    TooLong {
        /// Length of the request, in bytes.
        len: usize,
    },
    /// Not sent, because an earlier request of this client has no answer, for any reason: this
    /// request could receive that answer. Connect again.
    #[error("the request was not sent: an earlier one has no answer yet; connect again")]
    Unanswered,
    /// The request could not be sent or was not answered in time. The node may have executed it.
    #[error(
        "no answer from the node within {within:?}: it may be stopped (SIGSTOP, a debugger) or \
         overloaded; it may still execute the request, see its log"
    )]
    Silent {
        /// Time for sending and for the answer together, as given to [`Client::ask`].
        within: Duration,
    },
    /// The node closed the connection between two answers, or before the request was written. It
    /// may have executed the request.
    #[error("the node closed the connection before it answered; it may have executed the request")]
    HungUp,
    /// The node ended the watch, for example because it has stopped or had refused the watch.
    #[error(
        "the node ended the watch: it may have stopped, or have refused the watch; watch again, or \
         on another node"
    )]
    Ended,
    /// The connection failed or ended within an answer, or the answer is longer than
    /// [`ANSWER_BYTES_MAX`]. The node may have executed the request.
    #[error("the connection to the node failed; it may have executed the request")]
    Frame(#[from] FrameError),
    /// The answer can't be decoded. The node has probably executed the request.
    #[error(
        "the answer can't be decoded, it may be of another release: use the ostraca tool of the \
         node's release"
    )]
    Foreign(#[from] ValueError),
    /// The answer belongs to another request. The node has probably executed the request.
    /// [`Client::ask`] never fails with it: its caller must compare the kind of the answer.
    #[error("the answer is for another request: use the ostraca tool of the node's release")]
    Unexpected,
}

impl Client {
    /// Connects to the control socket of a node on this host, within five seconds. The connection
    /// counts as idle until its first request, so the node may close it in favour of a new one; the
    /// request then fails with [`AdminRequestError::HungUp`] or [`AdminRequestError::Frame`].
    ///
    /// # Errors
    /// [`AdminConnectError`]; its text states what to do. After five seconds
    /// [`AdminConnectError::Stuck`]. A node without a free slot still accepts the connection; then
    /// the first request is refused as [`RefusalReason::Busy`](super::wire::RefusalReason::Busy).
    pub async fn connect(path: &Path) -> Result<Self, AdminConnectError> {
        let connected = timeout(CONNECTING_MAX, UnixStream::connect(path)).await;
        let path = || path.to_owned();
        let connected = connected.map_err(|_| AdminConnectError::Stuck { path: path() })?;
        connected.map(Self::over).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => AdminConnectError::Nowhere { path: path() },
            io::ErrorKind::ConnectionRefused if is_other_file(&path()) => {
                AdminConnectError::NoSocket { path: path() }
            }
            io::ErrorKind::ConnectionRefused => AdminConnectError::Dead { path: path() },
            io::ErrorKind::WouldBlock => AdminConnectError::Stuck { path: path() }, // too many wait
            io::ErrorKind::PermissionDenied => AdminConnectError::Forbidden { path: path() },
            _ => AdminConnectError::Io { path: path(), source },
        })
    }

    /// Creates a client on a stream to a node. Sends nothing.
    #[must_use]
    pub fn over(stream: impl Duplex + 'static) -> Self {
        Self { stream: Box::new(stream), is_answer_due: false }
    }

    /// Sends a request and receives its answer, both together within `within`. The client must not
    /// be used again after an error other than [`AdminRequestError::Refused`] and
    /// [`AdminRequestError::TooLong`], nor after the future was dropped before it completed. A
    /// failed write is reported as the missing answer, because the node may have sent a refusal
    /// before it closed the connection.
    ///
    /// # Errors
    /// [`AdminRequestError`]: `TooLong` first; then always [`AdminRequestError::Unanswered`] if the
    /// client must not be used again. Never `Ended` or `Unexpected`.
    pub async fn ask(
        &mut self,
        request: &AdminRequest,
        within: Duration,
    ) -> Result<AdminResponse, AdminRequestError> {
        let body = self.prepare(request)?;
        let asked = async {
            send(&mut self.stream, &body).await;
            receive(&mut self.stream).await
        };
        let answer = timeout(within, asked).await;
        let answer = answer.map_err(|_| AdminRequestError::Silent { within })?;
        self.is_answer_due = !matches!(answer, Ok(_) | Err(AdminRequestError::Refused(_)));
        answer
    }

    /// Watches a key. The client's connection serves only the watch from then on. Sending the
    /// request has no time limit. Waits for no answer: a refusal and a failed write show at the
    /// first [`KeyWatch::next`].
    ///
    /// # Errors
    /// [`AdminRequestError::TooLong`], checked first, or [`AdminRequestError::Unanswered`]; the
    /// request was not sent, and the connection is closed.
    pub async fn watch(mut self, key: &str) -> Result<KeyWatch, AdminRequestError> {
        let body = self.prepare(&AdminRequest::Watch { key: key.to_owned() })?;
        send(&mut self.stream, &body).await;
        Ok(KeyWatch { stream: self.stream })
    }

    /// Encodes a request that will be sent next. From then on its answer is due. Fails with
    /// `TooLong`, checked first and without that effect, or with `Unanswered` if one was due.
    fn prepare(&mut self, request: &AdminRequest) -> Result<Vec<u8>, AdminRequestError> {
        let body = wire::encode(request);
        if body.len() > REQUEST_BYTES_MAX {
            return Err(AdminRequestError::TooLong { len: body.len() });
        }
        if std::mem::replace(&mut self.is_answer_due, true) {
            return Err(AdminRequestError::Unanswered);
        }
        Ok(body)
    }
}

/// Distinguishes a file that is not a socket from a socket without a listener; the system refuses a
/// connection to either with the same error. Follows symbolic links; `false` if there is no file.
fn is_other_file(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|found| !found.file_type().is_socket())
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// A watch of a key. Dropping it closes the connection.
pub struct KeyWatch {
    stream: Box<dyn Duplex>,
}

impl KeyWatch {
    /// Waits without a limit for the next value of the key, first for the current one; `None` if
    /// the key holds nothing. Intermediate values may be skipped. Not cancel-safe.
    ///
    /// # Errors
    /// [`AdminRequestError::Refused`] for a refused watch, whose next call fails with
    /// [`AdminRequestError::Ended`], and for a value that can't be read or sent, whose watch goes
    /// on: the next call may return a value. `Ended` also when the node has stopped or closed the
    /// connection. `Unexpected` for an answer that is no value. `Frame` and `Foreign` as in `ask`.
    pub async fn next(&mut self) -> Result<Option<Data>, AdminRequestError> {
        match receive(&mut self.stream).await {
            Ok(AdminResponse::Value(value)) => Ok(value),
            Ok(_) => Err(AdminRequestError::Unexpected),
            Err(AdminRequestError::HungUp) => Err(AdminRequestError::Ended),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for KeyWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyWatch")
    }
}

/// Writes a request, without a time limit. A failed write is left for [`receive`] to report.
async fn send(stream: &mut Box<dyn Duplex>, body: &[u8]) {
    // Ignores a failed write: before it closed, the node may have sent the reason.
    let _ = wire::write_frame(stream, body).await;
}

/// Receives one answer, without a time limit. Fails with [`AdminRequestError::Refused`] for a
/// refusal, with [`AdminRequestError::HungUp`] if the node closed the connection before an answer,
/// with `Frame` if it ended within one, and with `Foreign` for one that can't be decoded; never
/// with another error. Not cancel-safe.
async fn receive(stream: &mut Box<dyn Duplex>) -> Result<AdminResponse, AdminRequestError> {
    let Some(body) = wire::read_frame(stream, ANSWER_BYTES_MAX).await? else {
        return Err(AdminRequestError::HungUp);
    };
    match wire::decode(&body)? {
        AdminResponse::Refused(why) => Err(why.into()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::DuplexStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn get(key: &str) -> AdminRequest {
        AdminRequest::Get { key: key.to_owned(), level: wire::ConsistencyLevel::Local }
    }

    /// Receives the next request on the node's side.
    async fn asked(node: &mut DuplexStream) -> AdminRequest {
        let frame = wire::read_frame(node, REQUEST_BYTES_MAX).await.expect("a frame");
        wire::decode(&frame.expect("a question")).expect("of this release")
    }

    async fn answer(node: &mut DuplexStream, answer: &AdminResponse) {
        wire::write_frame(node, &wire::encode(answer)).await.expect("the reader is open");
    }

    #[tokio::test]
    async fn path_of_another_kind_is_reported_as_no_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        for path in [dir.path(), &file] {
            let error = Client::connect(path).await.expect_err("no socket");
            assert!(matches!(error, AdminConnectError::NoSocket { .. }), "{path:?}: {error}");
        }
        let socket = dir.path().join("socket");
        drop(tokio::net::UnixListener::bind(&socket).expect("bound"));
        let error = Client::connect(&socket).await.expect_err("no listener");
        assert!(matches!(error, AdminConnectError::Dead { .. }), "{error}");
    }

    #[tokio::test]
    async fn request_never_gets_the_answer_of_another() {
        let (near, mut node) = tokio::io::duplex(1024);
        let mut client = Client::over(near);
        assert!(client.ask(&get("first"), LONG).now_or_never().is_none(), "its caller leaves");
        assert_eq!(asked(&mut node).await, get("first"));
        answer(&mut node, &AdminResponse::Value(None)).await;
        let second = client.ask(&get("second"), LONG).await;
        assert!(matches!(second, Err(AdminRequestError::Unanswered)), "{second:?}");
        assert!(asked(&mut node).now_or_never().is_none(), "nothing is sent");
        let watch = client.watch("third").await;
        assert!(matches!(watch, Err(AdminRequestError::Unanswered)), "{watch:?}");
    }

    #[tokio::test]
    async fn node_that_reads_no_request_is_silent() {
        let (near, _node) = tokio::io::duplex(64);
        let mut client = Client::over(near);
        let within = Duration::from_millis(1);
        let long = get(&"x".repeat(1_000)); // longer than the buffer, so that sending it waits
        let answer = timeout(LONG, client.ask(&long, within)).await.expect("it ends by itself");
        assert!(matches!(answer, Err(AdminRequestError::Silent { .. })), "{answer:?}");
        let second = client.ask(&get("second"), LONG).await;
        assert!(matches!(second, Err(AdminRequestError::Unanswered)), "{second:?}");
    }

    #[tokio::test]
    async fn client_is_usable_after_answer_refusal_and_long_request() {
        let (near, mut node) = tokio::io::duplex(1024);
        let mut client = Client::over(near);
        let refusal = RequestRefusal { why: wire::RefusalReason::Busy, text: "later".to_owned() };
        for said in
            [AdminResponse::Value(None), AdminResponse::Refused(refusal), AdminResponse::Done]
        {
            let long = client.ask(&get(&"x".repeat(REQUEST_BYTES_MAX)), LONG).await;
            assert!(matches!(long, Err(AdminRequestError::TooLong { .. })), "{long:?}");
            let question = get("key");
            let (heard, ()) = tokio::join!(client.ask(&question, LONG), async {
                assert_eq!(asked(&mut node).await, question);
                answer(&mut node, &said).await;
            });
            match heard {
                Ok(heard) => assert_eq!(heard, said),
                Err(AdminRequestError::Refused(why)) => {
                    assert_eq!(AdminResponse::Refused(why), said);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
