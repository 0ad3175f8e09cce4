//! Readiness check: a node is ready once its regions have registered with their coordinators.
//!
//! A coordinator that fails later does not make the node unready, because the node continues to
//! serve shards whose homes are known
//! (docs/protocol/sharding.md#known-homes-outlive-the-coordinator).

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::hostings::Progress;
use super::{NotReady, Sharding};
use crate::cluster::member::Status;
use crate::sharding::ids::EntityType;

impl Sharding {
    /// Waits until the region of every entity type in `healthcheck.names` (if empty: of every type
    /// that was started on this node) has been registered once. Once ready, the node stays ready.
    /// Meant for the readiness probe of an orchestrator.
    ///
    /// The check always succeeds from `healthcheck.disabled-after` after it first saw this node Up,
    /// so that a first deployment does not wait for a type that no program starts.
    ///
    /// # Errors
    /// [`NotReady`] after `healthcheck.timeout`, with the types that are not registered.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # struct Bell;
    /// # impl Entity for Bell {
    /// #     type Message = Reply<()>;
    /// #     async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
    /// #         ring.send(());
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::start(Config::default()).await?;
    /// node.sharding().start("bell", |_id| Bell).await?;
    /// node.sharding().ready().await?;
    /// # node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ready(&self) -> Result<(), NotReady> {
        let check = &self.0.settings.healthcheck;
        let mut progress = self.0.hostings.progress();
        let missing = |progress: &Progress| missing(&self.names(), progress);
        if !progress.borrow().ended && !missing(&progress.borrow()).is_empty() {
            if self.was_up_for_long().await {
                return Ok(());
            }
            let is_settled = |progress: &Progress| progress.ended || missing(progress).is_empty();
            let _ = tokio::time::timeout(check.timeout, progress.wait_for(is_settled)).await;
        }
        let progress = progress.borrow();
        let types = missing(&progress);
        match (progress.ended, types.is_empty()) {
            (true, _) => Err(NotReady::Stopped),
            (false, true) => Ok(()),
            (false, false) => Err(NotReady::Unregistered { types }),
        }
    }

    fn names(&self) -> BTreeSet<EntityType> {
        let names = &self.0.settings.healthcheck.names;
        if names.is_empty() {
            self.started().keys().cloned().collect()
        } else {
            names.iter().cloned().collect()
        }
    }

    /// Whether this node has been Up for `healthcheck.disabled-after`, counted from the first check
    /// that saw it Up.
    async fn was_up_for_long(&self) -> bool {
        let me = self.0.me.replica();
        let is_up = self.look(move |control| {
            let state = control.membership().state();
            let member = state.and_then(|state| state.members.get(&me).cloned());
            member.is_some_and(|member| member.status == Status::Up)
        });
        if is_up.await != Ok(true) {
            return false;
        }
        let since = *self.0.seen_up.get_or_init(Instant::now);
        since.elapsed() >= self.0.settings.healthcheck.disabled_after
    }
}

/// The types of `names` whose region has not been registered yet.
fn missing(names: &BTreeSet<EntityType>, progress: &Progress) -> BTreeSet<EntityType> {
    names.difference(&progress.registered).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_type_is_no_longer_missing() {
        let [one, two] = ["one", "two"].map(|name| EntityType::new(name).expect("a name"));
        let names = BTreeSet::from([one.clone(), two.clone()]);
        let mut progress = Progress::default();
        assert_eq!(missing(&names, &progress), names);
        progress.registered.insert(one);
        let left = missing(&names, &progress);
        assert_eq!(left, BTreeSet::from([two.clone()]));
        let error = NotReady::Unregistered { types: left };
        let text = "no coordinator has registered the region of two on this node yet";
        assert_eq!(error.to_string(), text);
        progress.registered.insert(two);
        assert_eq!(missing(&names, &progress), BTreeSet::new());
    }
}
