//! What a user writes: an entity, which handles one message at a time (spec/sharding.md §9).

use std::error::Error;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;

/// Any error, for what a type of the user's may say.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A stateful thing with an id, of which the cluster keeps at most one instance alive.
///
/// Started by the first message for it. Its state is in memory: a new instance begins with what the
/// type's factory makes and, after a planned move, with what the last one [handed
/// over](Self::hand_over).
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
    /// What it understands. Travels between nodes by its serde form, with the names of fields:
    /// variants and fields with a default may be added while nodes of two releases run.
    type Message: Serialize + DeserializeOwned + Send + 'static;

    /// Handles a message; the next one begins after it has ended. May await: that delays nobody
    /// but this entity, and a move of its shard, at most for `handoff-timeout`. A future that is
    /// aborted then is dropped at an await.
    ///
    /// What blocks its thread takes that from all entities of the node, and may hold up those that
    /// wait for some milliseconds: `tokio::task::block_in_place` or `spawn_blocking` is for that.
    fn handle(
        &mut self,
        message: Self::Message,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = ()> + Send;

    /// The bytes that a message counts with against `mailbox-bytes-max` if it is told on the entity's own
    /// node. There it is not encoded, so its length is unknown; a message from another node counts with
    /// its encoded length.
    ///
    /// Default: the size of the type, without what that points to. Types that own large buffers should
    /// add those, or a mailbox holds up to `mailbox-size` of them. At most 4 GiB count. Called by the
    /// sender for each message: it should be cheap, and the same for equal messages.
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

    /// The last message of an instance that is to stop, because it is passivated or its shard
    /// moves. `None`: it stops after the message that it is handling.
    #[must_use]
    fn stop_message() -> Option<Self::Message> {
        None
    }

    /// What the entity's next instance is to go on with. Called once, when a planned move takes the
    /// shard to another node (a drain of this one is such a move): after the last handler, and
    /// after the [stop message](Self::stop_message). `None`: the next one begins as new.
    ///
    /// It goes ahead of the messages that wait, and is [taken over](Self::take_over) at most once.
    /// Until the entity gets a message it waits, through further moves if there are any, and is
    /// passivated as an idle instance would be. A shard starts when all that moves with it has
    /// come, so keep it small; a state has at most about `net.limits.message-bytes-max` bytes.
    ///
    /// Only planned moves ask for it: whoever is passivated, restarted by supervision, aborted
    /// after `handoff-timeout`, or lives on a node that crashes, is removed, or has no hosting lease
    /// for long, hands nothing over.
    /// So does an instance that an abort finds before its stop message.
    /// What was handed over and is lost is counted:
    /// [`lost_states`](super::shard_region::ShardRegion::lost_states). How many states a payload
    /// held behind the place where it is cut short is not known: that counts as one dead letter,
    /// [`Lost::Undecodable`](super::dead_letters::Lost::Undecodable).
    ///
    /// If it panics, there is no state. It holds up the move of its shard, and may run without the
    /// hosting lease: no place for effects outside.
    #[must_use]
    fn hand_over(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Goes on with what the entity's last instance [handed over](Self::hand_over). Called on a fresh
    /// instance of the factory, before its first message.
    ///
    /// As it stands here it refuses: that is for nodes of two releases.
    ///
    /// # Errors
    /// Whatever keeps it from that, a panic included: the state is lost and counted, and
    /// [`Supervision`] decides how the entity goes on, as after a handler that panicked.
    fn take_over(&mut self, state: &[u8]) -> Result<(), BoxError> {
        Err(format!("this release of the type takes no state over ({} bytes)", state.len()).into())
    }
}

/// What happens to an entity whose handler panicked. The message is lost and counted, and an ask
/// in it fails at once; nobody else is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Supervision {
    /// A fresh instance goes on with the mailbox, after a pause: `restart-backoff-min`, twice as
    /// long each time in a row, at most `restart-backoff-max`.
    #[default]
    Restart,
    /// The same instance goes on with the next message. Its state may be half changed.
    Resume,
    /// The instance stops. What waited for it is lost and counted; a later message starts
    /// another one.
    Stop,
}
