//! [`Client`]: asks a node, over whatever stream leads to it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostraca_ddata::encoded::ValueError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::wire::{
    self, ANSWER_BYTES_MAX, Answer, Data, FrameError, REQUEST_BYTES_MAX, Refusal, Request,
};

/// How long a node may take to take a connection.
const CONNECTING_MAX: Duration = Duration::from_secs(5);

/// What leads to a node: a UNIX socket, or a stream of the transport.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// Asks a node.
///
/// # Example
/// ```
/// use ostraca::management::client::Client;
/// use ostraca::management::wire::{Answer, Request};
/// use ostraca::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("control.sock");
/// let mut config = Config::default();
/// config.management.control_socket = Some(path.clone());
/// let node = Node::start(config).await?;
/// node.cluster().up().await?;
/// let mut client = Client::connect(&path).await?;
/// let Answer::Members(all) = client.ask(&Request::Members, secs(10)).await? else { panic!() };
/// assert_eq!(all.members.len(), 1);
/// node.stop().await;
/// assert!(!path.exists());
/// # Ok(())
/// # }
/// ```
pub struct Client {
    stream: Box<dyn Duplex>,
    /// A question was begun, and its answer is not heard: the next one would get that.
    owes: bool,
}

/// Why a node can't be asked. Nothing was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nothing is there.
    #[error(
        "there is no control socket at {path}: is the node running, and on this host? Its log \
         names its socket (`management.listening`)",
        path = path.display()
    )]
    Nowhere {
        /// The path.
        path: PathBuf,
    },
    /// The node has ended and has left its socket behind.
    #[error(
        "no node listens at {path}: it was killed and has left its socket behind; start it again",
        path = path.display()
    )]
    Dead {
        /// The path.
        path: PathBuf,
    },
    /// The path names a file of another kind.
    #[error(
        "{path} is not a socket: name the control socket of a node, `control.sock` in its data \
         directory unless set otherwise",
        path = path.display()
    )]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// It belongs to somebody else.
    #[error(
        "{path} belongs to another user: ask as the user that runs the node (`sudo -u USER \
         ostraca …`)",
        path = path.display()
    )]
    Forbidden {
        /// The path.
        path: PathBuf,
    },
    /// Nobody takes the connection.
    #[error(
        "the node at {path} has not taken the connection within {CONNECTING_MAX:?}: it is stopped \
         or stuck, see its log",
        path = path.display()
    )]
    Stuck {
        /// The path.
        path: PathBuf,
    },
    /// The system says no.
    #[error("{path} can't be connected to: is it a node's control socket?", path = path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The node says why. Whether anything was changed its text says.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Not sent.
    #[error("the request has {len} bytes, at most {REQUEST_BYTES_MAX} are taken; not sent")]
    TooLong {
        /// Its length, in bytes.
        len: usize,
    },
    /// Not sent: an earlier question, of which nobody waited for the answer, is open, or there was
    /// an error. Its answer would be taken for that to this one.
    #[error("an earlier question has no answer yet; this one was not sent: connect anew")]
    Unanswered,
    /// Sent, and perhaps done.
    #[error(
        "no answer from the node within {within:?}, though it took the connection: it may be \
         stopped (SIGSTOP, a debugger) or overloaded; a change that was asked for may still be \
         made, see its log"
    )]
    Silent {
        /// How long it had.
        within: Duration,
    },
    /// Sent, and perhaps done.
    #[error("the node hung up before it answered; what was asked may be done")]
    HungUp,
    /// There will be no further changes.
    #[error("the node has ended, and with it the watch: watch another one")]
    Ended,
    /// Sent, and perhaps done.
    #[error("the connection to the node failed; what was asked may be done")]
    Frame(#[from] FrameError),
    /// Done, as far as can be told.
    #[error("the node's answer is of another release: use the ostraca tool of the node's release")]
    Foreign(#[from] ValueError),
    /// Done, as far as can be told.
    #[error("the node's answer is to another question: use the ostraca tool of the node's release")]
    Unexpected,
}

impl Client {
    /// Connects to the control socket of a node on this host.
    ///
    /// # Errors
    /// [`ConnectError`], whose sentences say what to do.
    pub async fn connect(path: &Path) -> Result<Self, ConnectError> {
        let connected = timeout(CONNECTING_MAX, UnixStream::connect(path)).await;
        let path = || path.to_owned();
        let connected = connected.map_err(|_| ConnectError::Stuck { path: path() })?;
        connected.map(Self::over).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ConnectError::Nowhere { path: path() },
            io::ErrorKind::ConnectionRefused if !is_socket(&path()) => {
                ConnectError::NoSocket { path: path() }
            }
            io::ErrorKind::ConnectionRefused => ConnectError::Dead { path: path() },
            io::ErrorKind::WouldBlock => ConnectError::Stuck { path: path() }, // too many wait
            io::ErrorKind::PermissionDenied => ConnectError::Forbidden { path: path() },
            _ => ConnectError::Io { path: path(), source },
        })
    }

    /// Asks over a stream that leads to a node.
    #[must_use]
    pub fn over(stream: impl Duplex + 'static) -> Self {
        Self { stream: Box::new(stream), owes: false }
    }

    /// Asks, and waits for the answer at most `within`. After an error that is no refusal, and
    /// after a future that was dropped before its end, the client is of no further use.
    ///
    /// # Errors
    /// [`AskError`]; [`AskError::Unanswered`] from a client of no further use.
    pub async fn ask(&mut self, request: &Request, within: Duration) -> Result<Answer, AskError> {
        self.say(request).await?;
        let answer = timeout(within, hear(&mut self.stream)).await;
        let answer = answer.map_err(|_| AskError::Silent { within })?;
        self.owes = !matches!(answer, Ok(_) | Err(AskError::Refused(_)));
        answer
    }

    /// Watches a key.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn watch(mut self, key: &str) -> Result<Watch, AskError> {
        self.say(&Request::Watch { key: key.to_owned() }).await?;
        Ok(Watch { stream: self.stream })
    }

    async fn say(&mut self, request: &Request) -> Result<(), AskError> {
        let body = wire::encode(request);
        if body.len() > REQUEST_BYTES_MAX {
            return Err(AskError::TooLong { len: body.len() });
        }
        if std::mem::replace(&mut self.owes, true) {
            return Err(AskError::Unanswered);
        }
        // A node that has hung up may have said why before.
        let _ = wire::write_frame(&mut self.stream, &body).await;
        Ok(())
    }
}

/// Connecting to a file of another kind is refused as if a socket had no owner.
fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|found| found.file_type().is_socket())
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// What a key holds, now and whenever that changes. Dropping it hangs up.
pub struct Watch {
    stream: Box<dyn Duplex>,
}

impl Watch {
    /// What the key holds; `None`: nothing. Values in between may have been skipped. Not
    /// cancel-safe.
    ///
    /// # Errors
    /// [`AskError`]; [`AskError::Ended`] when the node has.
    pub async fn next(&mut self) -> Result<Option<Data>, AskError> {
        match hear(&mut self.stream).await {
            Ok(Answer::Value(value)) => Ok(value),
            Ok(_) => Err(AskError::Unexpected),
            Err(AskError::HungUp) => Err(AskError::Ended),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

async fn hear(stream: &mut Box<dyn Duplex>) -> Result<Answer, AskError> {
    let Some(body) = wire::read_frame(stream, ANSWER_BYTES_MAX).await? else {
        return Err(AskError::HungUp);
    };
    match wire::decode(&body)? {
        Answer::Refused(why) => Err(why.into()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::DuplexStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn get(key: &str) -> Request {
        Request::Get { key: key.to_owned(), level: wire::Level::Local }
    }

    /// The next question that comes to a node.
    async fn asked(node: &mut DuplexStream) -> Request {
        let frame = wire::read_frame(node, REQUEST_BYTES_MAX).await.expect("a frame");
        wire::decode(&frame.expect("a question")).expect("of this release")
    }

    async fn answer(node: &mut DuplexStream, answer: &Answer) {
        wire::write_frame(node, &wire::encode(answer)).await.expect("somebody listens");
    }

    #[tokio::test]
    async fn path_of_another_kind_is_reported_as_no_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        for path in [dir.path(), &file] {
            let error = Client::connect(path).await.expect_err("no socket");
            assert!(matches!(error, ConnectError::NoSocket { .. }), "{path:?}: {error}");
        }
        let socket = dir.path().join("socket");
        drop(tokio::net::UnixListener::bind(&socket).expect("bound"));
        let error = Client::connect(&socket).await.expect_err("nobody listens");
        assert!(matches!(error, ConnectError::Dead { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_question_is_never_answered_with_the_answer_to_another() {
        let (near, mut node) = tokio::io::duplex(1024);
        let mut client = Client::over(near);
        assert!(client.ask(&get("first"), LONG).now_or_never().is_none(), "its caller leaves");
        assert_eq!(asked(&mut node).await, get("first"));
        answer(&mut node, &Answer::Value(None)).await;
        let second = client.ask(&get("second"), LONG).await;
        assert!(matches!(second, Err(AskError::Unanswered)), "{second:?}");
        assert!(asked(&mut node).now_or_never().is_none(), "nothing is sent");
        let watch = client.watch("third").await;
        assert!(matches!(watch, Err(AskError::Unanswered)), "{watch:?}");
    }

    #[tokio::test]
    async fn a_client_goes_on_after_an_answer_a_refusal_and_what_was_too_long() {
        let (near, mut node) = tokio::io::duplex(1024);
        let mut client = Client::over(near);
        let refusal = Refusal { why: wire::Why::Busy, text: "later".to_owned() };
        for said in [Answer::Value(None), Answer::Refused(refusal), Answer::Done] {
            let long = client.ask(&get(&"x".repeat(REQUEST_BYTES_MAX)), LONG).await;
            assert!(matches!(long, Err(AskError::TooLong { .. })), "{long:?}");
            let question = get("key");
            let (heard, ()) = tokio::join!(client.ask(&question, LONG), async {
                assert_eq!(asked(&mut node).await, question);
                answer(&mut node, &said).await;
            });
            match heard {
                Ok(heard) => assert_eq!(heard, said),
                Err(AskError::Refused(why)) => assert_eq!(Answer::Refused(why), said),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
