//! What a program brings to its node beside the settings.

use std::sync::Arc;

use ostraca_ddata::data::Registry;

use super::downing::DowningLease;
use super::{Node, StartError};
use crate::config::Config;

/// A node that is about to start; from [`Node::builder`].
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

    /// The program's own data types: updates of a type that is not registered are refused on this
    /// node. Data of any type are replicated, and kept, by all.
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
    /// node.cluster().up().await?;
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

    /// The lease that the downing strategy `lease-majority` asks for. With another strategy nobody
    /// asks for it.
    pub fn downing_lease(mut self, lease: Arc<dyn DowningLease>) -> Self {
        self.downing_lease = Some(lease);
        self
    }

    /// Starts it as [`Node::start`] does.
    ///
    /// # Errors
    /// [`StartError`], whose sentences say what to do.
    pub async fn start(self) -> Result<Node, StartError> {
        Node::start_with(self.config, self.types, self.downing_lease).await
    }
}
