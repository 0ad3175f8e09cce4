//! [`Server`]: answers the requests of tools, over any stream.
//!
//! A caller can't use unbounded resources: the number of connections
//! ([`connection_slots`](super::connection_slots)), the lengths of requests and answers, and the
//! times for which a connection may be idle or an answer unread are limited. An invalid request
//! affects only its own connection.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::key::KeyName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;

use super::access::RequestOrigin;
use super::answers::{self, Handles};
use super::config::Remote;
use super::connection_slots::{ConnectionSlot, ConnectionTable, SlotError};
use super::wire::{
    self, ANSWER_BYTES_MAX, AdminRequest, AdminResponse, FrameError, REQUEST_BYTES_MAX,
    RefusalReason, RequestRefusal,
};

/// Time limit for the next request on a connection: from its start or the previous answer until the
/// whole request has arrived.
pub const SILENT_MAX: Duration = Duration::from_secs(60);

/// Time limit for sending an answer or a refusal; the connection of a caller that does not read it
/// is closed. A watch has no such limit: its reader receives the latest value when it reads again.
pub const UNREAD_MAX: Duration = Duration::from_secs(30);

/// Time limit for sending a refusal to a connection that gets no slot.
const REFUSING_MAX: Duration = Duration::from_secs(1);

/// Answers requests of tools. Clones share the connection limit and the handles, also with the
/// server for the control socket. Two servers made by [`new`](Self::new) share nothing.
#[derive(Clone, Debug)]
pub struct Server {
    handles: Arc<Handles>,
    slots: ConnectionTable,
    origin: RequestOrigin,
}

/// Why the server closes a connection, other than by a refused request. Only a line in the log at
/// DEBUG tells it: the caller gets no message except for a request that is too long. `Slot` is only
/// an eviction; too many watches are a refusal.
#[derive(Debug, thiserror::Error)]
enum CloseReason {
    #[error("no request came for {SILENT_MAX:?}")]
    Silent,
    #[error("an answer was not read for {UNREAD_MAX:?}")]
    Unread,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Slot(#[from] SlotError),
}

impl Server {
    /// Creates a server for callers on other hosts. It accepts the requests that `remote` allows.
    #[must_use]
    pub fn new(handles: Handles, remote: Remote) -> Self {
        let origin = RequestOrigin::Network(remote);
        Self { handles: Arc::new(handles), slots: ConnectionTable::default(), origin }
    }

    /// Returns a clone for callers on the control socket, which may make every request.
    pub(crate) fn for_operators(&self) -> Self {
        Self { origin: RequestOrigin::ControlSocket, ..self.clone() }
    }

    /// Answers requests until the caller closes the stream, violates a limit, sends an invalid
    /// frame, has a watch refused, or the connection is evicted; then drops the stream. Once the
    /// node has stopped, requests are refused and watches end; the server itself does not end. The
    /// caller must have authenticated the peer of the stream, because the server answers every
    /// peer.
    ///
    /// The stream takes a slot and evicts an idle connection if all are taken. If it gets no slot,
    /// sends a refusal as [`RefusalReason::Busy`] within one second, without reading a request, and
    /// returns. If the future is dropped, the slot is freed and a request may still be executed.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(&self, mut stream: S) {
        let Some(slot) = self.slots.take() else {
            let _ = timeout(REFUSING_MAX, send(&mut stream, &busy())).await; // best effort
            return;
        };
        let result = tokio::select! {
            () = slot.evicted() => Err(SlotError::Evicted.into()),
            result = self.answer_requests(&mut stream, &slot) => result,
        };
        if let Err(why) = result {
            tracing::debug!(why = &why as &dyn Error, "management.hung_up");
        }
    }

    /// Answers one request after the other; returns `Ok` when the caller closes the stream between
    /// two requests, and when a watch has ended or was refused. A request that is unknown or not
    /// admitted is refused, and so is a watch beyond the limit; unless it is a watch, the next one
    /// is read then. The slot is *answering* from the arrival of a request until its answer is
    /// sent, so that no eviction can interrupt it.
    async fn answer_requests<S>(
        &self,
        stream: &mut S,
        slot: &ConnectionSlot,
    ) -> Result<(), CloseReason>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        loop {
            let Some(request) = receive(stream).await? else { return Ok(()) };
            slot.set_answering()?;
            let request = wire::decode::<AdminRequest>(&request);
            let is_watch = matches!(request, Ok(AdminRequest::Watch { .. }));
            let request = match request {
                Ok(request) => self.origin.admit(request).map_err(AdminResponse::Refused),
                Err(why) => Err(refused(RefusalReason::NotUnderstood, &why)),
            };
            let answer = match request {
                Ok(AdminRequest::Watch { key }) => match slot.set_watching() {
                    Ok(()) => return self.watch(stream, &key).await,
                    Err(why) => refused(RefusalReason::Busy, &why),
                },
                Ok(request) => answers::answer(&self.handles, request).await,
                Err(refusal) => refusal,
            };
            timeout(UNREAD_MAX, send(stream, &answer)).await.map_err(|_| CloseReason::Unread)??;
            if is_watch {
                return Ok(()); // it was refused, and its caller waits for nothing but changes
            }
            slot.set_idle()?;
        }
    }

    /// Sends the value of a key, then each change; a slow reader misses intermediate values. If the
    /// key holds nothing or can't be read, the first answer tells that, and the watch goes on. A
    /// value that is too long is sent as a refusal, and the watch goes on as well.
    ///
    /// Returns `Ok`, without a further answer, when the node has stopped, and when the caller
    /// closes the stream or sends any byte: a watch takes no further request. The stream is not
    /// read while an answer is being sent. Never times out. Fails only if an answer can't be sent.
    async fn watch<S>(&self, stream: &mut S, key: &str) -> Result<(), CloseReason>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let key = KeyName::new(key);
        let mut changes = self.handles.replicator.subscribe_value(&key);
        if let Some(answer) = answers::nothing_yet(&self.handles, &key).await {
            send(stream, &answer).await?;
        }
        let mut byte = [0];
        loop {
            tokio::select! {
                change = changes.next() => {
                    let Some(change) = change else { return Ok(()) }; // the node has ended
                    send(stream, &answers::value(change.value).await).await?;
                }
                _ = stream.read(&mut byte) => return Ok(()), // the end, an error or any byte
            }
        }
    }
}

/// Reads the next request; `None` if the caller closed the stream between two requests. Fails after
/// [`SILENT_MAX`], also within a request. A request that is too long is refused, within
/// [`UNREAD_MAX`], and then fails as well, because the rest of the stream can't be read. The slot
/// is idle meanwhile, so that an eviction can interrupt all of this.
async fn receive<S>(stream: &mut S) -> Result<Option<Vec<u8>>, CloseReason>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let received = timeout(SILENT_MAX, wire::read_frame(stream, REQUEST_BYTES_MAX)).await;
    let received = received.map_err(|_| CloseReason::Silent)?;
    if let Err(why @ FrameError::TooLong { .. }) = &received {
        let refusal = refused(RefusalReason::TooLong, why);
        timeout(UNREAD_MAX, send(stream, &refusal)).await.map_err(|_| CloseReason::Unread)??;
    }
    Ok(received?)
}

/// Sends an answer. One of more than [`ANSWER_BYTES_MAX`] is replaced by a refusal
/// ([`too_long`]), which is no error here. No time limit: the caller sets it.
async fn send<S: AsyncWrite + Unpin>(stream: &mut S, answer: &AdminResponse) -> io::Result<()> {
    let mut body = wire::encode(answer);
    if body.len() > ANSWER_BYTES_MAX {
        body = wire::encode(&too_long(body.len()));
    }
    wire::write_frame(stream, &body).await
}

/// Makes the refusal, as [`RefusalReason::TooLong`], for an answer of `bytes` that exceeds
/// [`ANSWER_BYTES_MAX`].
pub(super) fn too_long(bytes: usize) -> AdminResponse {
    let text = format!(
        "the answer has {bytes} bytes, at most {ANSWER_BYTES_MAX} are sent: read it in a program"
    );
    AdminResponse::Refused(RequestRefusal { why: RefusalReason::TooLong, text })
}

/// Makes the refusal, as [`RefusalReason::Busy`], for a connection that gets no slot.
fn busy() -> AdminResponse {
    let text =
        "all connections of this node wait for answers or watch keys: try again later".to_owned();
    AdminResponse::Refused(RequestRefusal { why: RefusalReason::Busy, text })
}

/// Makes a refusal with this reason. Its text is the error with its causes.
fn refused(why: RefusalReason, error: &dyn Error) -> AdminResponse {
    AdminResponse::Refused(RequestRefusal { why, text: answers::error_chain(error) })
}
