//! Going on without a majority that is lost for good, by an operator's word.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::replicator::epoch::{Epoch, EpochId};

use super::error::RecoverError;
use super::{Cluster, Command};
use crate::cluster::membership::recovering::{NotRecovered, Recovery};
use crate::node::control::machine::Control;

/// How long the forced configuration may take to be installed here. Nobody else is asked.
const WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Who goes on, and who was given up for ever.
    pub recovery: Recovery,
    /// The forced configuration.
    pub configuration: EpochId,
    /// How many of its members decide.
    pub voters: usize,
}

impl Cluster {
    /// Who would go on, and who would be given up, by [`recover_by_force`](Self::recover_by_force).
    /// Changes nothing.
    ///
    /// # Errors
    /// [`RecoverError`]: there is nothing to recover, or not here.
    pub async fn recovery(&self) -> Result<Recovery, RecoverError> {
        let clock = self.clock;
        let look = move |control: &Control| control.membership().recovery(clock.mono());
        Ok(self.look(look).await??)
    }

    /// Goes on with this node and the members that it reaches now, without a majority that is lost
    /// for good. Everybody else is given up for ever.
    ///
    /// **This gives the guarantees up.** No node can tell the dead from those whom it does not reach.
    /// If they live, even as a healthy majority, both sides act until they hear of it, if they ever do;
    /// then they end themselves, and what they did is lost. What was acknowledged by a majority and is on no
    /// survivor is lost as well. docs/operating.md says when to use it.
    ///
    /// # Errors
    /// [`RecoverError`]; [`Late`](RecoverError::Late) only if it may be done all the same.
    pub async fn recover_by_force(&self) -> Result<Recovered, RecoverError> {
        let refused = self.look(|control: &Control| control.membership().not_forced()).await?;
        let planned = self.recovery().await?;
        self.order(Command::Recover).await?;
        let forced = self.forced_after(planned.replaces, refused);
        let late = |_| RecoverError::Late { within: WITHIN };
        let forced = tokio::time::timeout(WITHIN, forced).await.map_err(late)??;
        let members = forced.members();
        let mut before = [planned.kept, planned.given_up].concat();
        before.sort_by_key(|id| members.iter().position(|member| member == id));
        let (kept, given_up) = before.into_iter().partition(|id| members.contains(id));
        let recovery = Recovery { replaces: planned.replaces, kept, given_up };
        let (configuration, voters) = (forced.id(), forced.voters().len());
        Ok(Recovered { recovery, configuration, voters })
    }

    /// The first configuration of a later generation that is installed here, or why there is none: a
    /// quorum may have come back since it was planned.
    async fn forced_after(
        &self,
        before: EpochId,
        refused: Option<(u64, NotRecovered)>,
    ) -> Result<Arc<Epoch>, RecoverError> {
        loop {
            let look = |control: &Control| {
                let membership = control.membership();
                (membership.configuration().cloned(), membership.not_forced())
            };
            let (installed, refused_now) = self.look(look).await?;
            let is_later = |id: EpochId| id.generation > before.generation;
            if let Some(epoch) = installed.filter(|epoch| is_later(epoch.id())) {
                return Ok(epoch);
            }
            if let Some((_, why)) = refused_now.filter(|_| refused_now != refused) {
                return Err(why.into());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
