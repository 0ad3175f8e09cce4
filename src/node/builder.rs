//! [`NodeBuilder`]: gives a node what settings cannot express, such as user types and a lease.

use std::sync::Arc;

use ostraca_ddata::data::Registry;

use super::downing_lease::DowningLease;
use super::{Node, StartError};
use crate::config::Config;

/// Builder of a node, returned by [`Node::builder`].
#[must_use = "nothing starts before `start` is called and awaited"]
pub struct NodeBuilder {
    config: Config,
    types: Registry,
    downing_lease: Option<Arc<dyn DowningLease>>,
}

impl NodeBuilder {
    pub(super) fn new(config: Config) -> Self {
        Self { config, types: Registry::new(), downing_lease: None }
    }

    /// Registers the program's own data types, in place of those of an earlier call. This node
    /// rejects updates of types that are not registered, but stores and replicates data of every
    /// type.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    /// struct HighScore(u64);
    ///
    /// impl ReplicatedData for HighScore {
    ///     const NAME: &'static str = "high-score";
    ///     fn merge(&mut self, other: &Self) {
    ///         self.0 = self.0.max(other.0);
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut types = Registry::new();
    /// types.register::<HighScore>()?;
    /// let node = Node::builder(Config::default()).types(types).start().await?;
    /// node.cluster().wait_until_up().await?;
    /// let best = Key::<User<HighScore>>::new("best");
    /// let within = secs(3);
    /// let majority = WriteMajority::within(within);
    /// let beaten = |best: &mut Edit<'_, User<HighScore>>| {
    ///     best.change_with(|score| Ok(score.0 = score.0.max(7)))
    /// };
    /// node.replicator().update(&best, majority, beaten).await?;
    /// let read = node.replicator().get(&best, ReadMajority::within(within)).await?;
    /// assert_eq!(read.expect("it was written").get()?, HighScore(7));
    /// node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn types(mut self, types: Registry) -> Self {
        self.types = types;
        self
    }

    /// Sets the lease that the downing strategy `lease-majority` acquires, in place of that of an
    /// earlier call. With this strategy a node without a lease does not start; other strategies do
    /// not use it.
    pub fn downing_lease(mut self, lease: Arc<dyn DowningLease>) -> Self {
        self.downing_lease = Some(lease);
        self
    }

    /// Starts the node as [`Node::start`] does.
    ///
    /// # Errors
    /// [`StartError`], whose messages say what to do.
    pub async fn start(self) -> Result<Node, StartError> {
        Node::start_with(self.config, self.types, self.downing_lease).await
    }
}
