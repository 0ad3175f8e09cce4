//! What a user writes: an entity, which handles one message at a time (spec/sharding.md §9).

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;

/// A stateful thing with an id, of which the cluster keeps at most one instance alive.
///
/// Started by the first message for it. Its state is in memory only: a new instance begins with
/// what the type's factory makes.
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
    fn handle(
        &mut self,
        message: Self::Message,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = ()> + Send;

    /// The last message of an instance that is to stop, because it is passivated or its shard
    /// moves. `None`: it stops after the message that it is handling.
    #[must_use]
    fn stop_message() -> Option<Self::Message> {
        None
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
