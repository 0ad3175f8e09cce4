//! The trait that a user implements: an entity, which handles one message at a time.
//!
//! The runtime of a region (`runtime.rs`) creates an instance on the first message for an id, calls
//! [`Entity::handle`] for each message, and applies [`Supervision`] after a panic. See
//! docs/protocol/sharding.md#entities.

use std::error::Error;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;

/// Boxed error of user code, for example of [`Entity::import_state`].
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A stateful object with an id. The cluster keeps at most one instance of it alive.
///
/// The first message for an id starts the entity. Its state is in memory: a new instance begins
/// with the value that the type's factory returns and, after a planned move, with the state that
/// the last instance [exported](Self::export_state). A factory that panics is called again after
/// the pauses of [`Supervision::Restart`], whatever the supervision; meanwhile the messages wait.
///
/// # Example
/// ```
/// use ostraca::sharding::context::Context;
/// use ostraca::sharding::entity::Entity;
/// use ostraca::sharding::reply::Reply;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Default)]
/// struct Counter {
///     value: i64,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// enum Command {
///     Add(i64),
///     Get(Reply<i64>),
/// }
///
/// impl Entity for Counter {
///     type Message = Command;
///
///     async fn handle(&mut self, command: Command, _: &mut Context<'_, Self>) {
///         match command {
///             Command::Add(n) => self.value += n,
///             Command::Get(reply) => reply.send(self.value),
///         }
///     }
/// }
/// ```
pub trait Entity: Sized + Send + 'static {
    /// The messages of the entity. They travel between nodes as MessagePack with named fields, so
    /// variants and fields with a default may be added while nodes of two releases run.
    type Message: Serialize + DeserializeOwned + Send + 'static;

    /// Handles a message. The next message begins after the returned future has completed. The
    /// future may await; meanwhile only this entity's other messages wait, and a move of its shard,
    /// for at most `handoff-timeout`. A future that is aborted at that bound is dropped at an
    /// await, as it is when the node stops hosting or has no lease for long; its message is lost
    /// and counted.
    ///
    /// A handler that blocks its thread takes the thread from all entities of the node and may
    /// delay waiting entities by some milliseconds. Use `tokio::task::block_in_place` or
    /// `spawn_blocking` for blocking work.
    fn handle(
        &mut self,
        message: Self::Message,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = ()> + Send;

    /// Returns the bytes that a message counts against `mailbox-bytes-max` if it is sent on the
    /// entity's own node. There the message is not encoded, so its length is unknown. A message
    /// from another node counts with its encoded length.
    ///
    /// Default: the size of the type, without memory that it points to. A type that owns large
    /// buffers should add their length; otherwise a mailbox holds up to `mailbox-size` of them. At
    /// most 4 GiB count. The sender calls this for each message, so it should be cheap, and return
    /// the same for equal messages.
    ///
    /// # Example
    /// ```
    /// use ostraca::sharding::context::Context;
    /// use ostraca::sharding::entity::Entity;
    ///
    /// struct Store;
    ///
    /// impl Entity for Store {
    ///     type Message = Vec<u8>;
    ///
    ///     fn message_bytes(blob: &Vec<u8>) -> usize {
    ///         size_of::<Vec<u8>>() + blob.len()
    ///     }
    ///
    ///     async fn handle(&mut self, _blob: Vec<u8>, _: &mut Context<'_, Self>) {}
    /// }
    /// ```
    #[must_use]
    fn message_bytes(message: &Self::Message) -> usize {
        size_of_val(message)
    }

    /// Returns the stop message: the last message of an instance that is stopped because of
    /// passivation or a move of its shard. `None`: the instance stops after the message that it is
    /// handling. An instance that ends by supervision or by the loss of the lease gets none. A stop
    /// message that is aborted, as at `handoff-timeout`, counts as a dead letter. Called when the
    /// type starts and for each instance that stops; whether it returns `Some` must not change.
    #[must_use]
    fn stop_message() -> Option<Self::Message> {
        None
    }

    /// Returns the state with which the entity's next instance continues, or `None` if the next
    /// instance begins as new. Called once, after the last handler and after the [stop
    /// message](Self::stop_message), when a planned move (also a drain of this node, or a requested
    /// stop of the shard) ends the shard on this node.
    ///
    /// The state travels ahead of the waiting messages and is [imported](Self::import_state) at
    /// most once. It waits until the entity gets a message, through further moves if there are any,
    /// and is passivated as an idle instance would be. A shard starts only after its whole payload
    /// has arrived, so the state should be small; at most about `net.limits.message-bytes-max`
    /// bytes.
    ///
    /// Only planned moves call this method. No state is exported by an entity that is passivated,
    /// restarted by supervision, or aborted after `handoff-timeout` (also before its stop message),
    /// or that lives on a node that crashes, is removed, or has no hosting lease for long. Exported
    /// states that are lost are counted in
    /// [`lost_states`](super::shard_region::ShardRegion::lost_states). If a payload is cut short,
    /// the number of states behind the cut is unknown; that counts as one dead letter,
    /// [`DeadLetterReason::Undecodable`](super::dead_letters::DeadLetterReason::Undecodable).
    ///
    /// A panic in this method loses the state, which is counted. The method delays the move of its
    /// shard and may run without the hosting lease, so it must have no effects outside the entity.
    #[must_use]
    fn export_state(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Continues with the state that the entity's last instance [exported](Self::export_state).
    /// Called on a fresh instance of the factory, before its first message.
    ///
    /// The default implementation rejects the state, so that a cluster of two releases fails
    /// visibly instead of losing it silently.
    ///
    /// # Errors
    /// Any error, also a panic, means that the state was not imported: it is lost and counted, and
    /// [`Supervision`] decides how the entity continues, as after a handler that panicked. The next
    /// instance begins as new; with [`Supervision::Resume`] this one continues.
    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        Err(format!("this release of the type takes no state over ({} bytes)", state.len()).into())
    }
}

/// Decides how an entity continues after its handler panicked. In every case the message is lost
/// and counted, and an ask in it fails at once; other entities are not affected. Also decides after
/// a failed [import](Entity::import_state), which loses the state and by itself no message. An
/// instance whose stop message panics ends by every supervision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Supervision {
    /// Creates a fresh instance, which continues with the mailbox after a pause of
    /// `restart-backoff-min`. The pause doubles with each consecutive failure, up to
    /// `restart-backoff-max`. It is the shortest one again after a handled message. If no message
    /// waits at the end of the pause, the entity stops, and its failures are forgotten.
    #[default]
    Restart,
    /// Continues with the same instance and the next message. Its state may be half changed.
    Resume,
    /// Stops the instance, without its stop message. Its waiting messages are lost and counted; a
    /// later message starts a new instance.
    Stop,
}
