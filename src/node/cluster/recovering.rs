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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use ostraca_ddata::clock::Now;
    use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
    use ostraca_ddata::machine::{Machine as _, Outbox};
    use ostraca_ddata::replicator::epoch::{Change, EpochSettings};

    use super::*;
    use crate::cluster::bug::Canary;
    use crate::cluster::config::Cluster as Config;
    use crate::cluster::member::Address;
    use crate::cluster::membership::Membership;
    use crate::cluster::membership::port::{Input, Memory, Output, Setup};
    use crate::cluster::wire::Settings;
    use crate::node::clock::Clock;
    use crate::node::cluster::JoinsBy;
    use crate::node::cluster::watching::Watchers;
    use crate::node::control::machine::{ControlInbox, ControlOutput};
    use crate::node::inbox::{Appetite, InboxLimits, Item, Took};
    use crate::sharding::machines::Machines;

    /// Of five, this node among them.
    fn epoch() -> Arc<Epoch> {
        let members = (1..=5).map(ReplicaId::new).collect();
        let id = EpochId { generation: 1_000, number: 1 };
        Arc::new(Epoch::founding(id, members, EpochSettings::default()).expect("well formed"))
    }

    fn without(epoch: &Epoch, gone: impl IntoIterator<Item = u64>) -> Arc<Epoch> {
        let lost = gone.into_iter().map(ReplicaId::new).collect();
        Arc::new(epoch.next(&Change { lost, ..Change::default() }).expect("somebody is left"))
    }

    /// A node that is connected with nobody, and the handle of its program. Nothing runs by itself.
    struct Bench {
        handle: Cluster,
        control: Control,
        now: Now,
    }

    impl Bench {
        fn new() -> Self {
            let me = NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) };
            let membership = Membership::new(Setup {
                me,
                address: Address::new("/dns4/a/tcp/1").expect("short"),
                config: Config::default(),
                settings: Settings::default(),
                memory: Memory::default(),
                directory: None,
                seed: 1,
                canary: Canary::none(),
            });
            let control = Control::new(membership, Machines::new(me.incarnation, Duration::ZERO));
            let inbox = ControlInbox::new(InboxLimits::default());
            let clock = Clock::start();
            let handle = Cluster::new(me, inbox, Watchers::new(), JoinsBy::Itself, clock);
            let mut bench = Self { handle, control, now: Now::default() };
            for _ in 0..100 {
                if bench.control.membership().gossip().is_none() {
                    bench.tell(Input::Tick);
                }
            }
            assert!(bench.control.membership().gossip().is_some(), "it founds alone");
            bench.tell(Input::Installed(epoch()));
            bench
        }

        fn tell(&mut self, input: Input) {
            self.now.mono = self.now.mono + Duration::from_millis(100);
            let mut out = Outbox::new();
            self.control.handle(self.now, input.into(), &mut out);
            let is_persist = |output: &ControlOutput| {
                matches!(output, ControlOutput::Membership(Output::Persist(_)))
            };
            for _ in 0..out.drain().filter(is_persist).count() {
                self.tell(Input::Persisted);
            }
        }

        fn plan(&self) -> Recovery {
            let planned = self.control.membership().recovery(self.now.mono);
            planned.expect("one of five is no quorum")
        }

        /// What becomes of an order; `None`: that is not known yet, and it looks again.
        fn forced_after(
            &self,
            before: EpochId,
            refused: Option<(u64, NotRecovered)>,
        ) -> Option<Result<Arc<Epoch>, RecoverError>> {
            let mut forced = pin!(self.handle.forced_after(before, refused));
            let mut context = Context::from_waker(Waker::noop());
            assert!(forced.as_mut().poll(&mut context).is_pending(), "it asks");
            let mut asked = VecDeque::new();
            assert_eq!(self.handle.inbox.take(&mut asked, 8, Appetite::All), Took::Some);
            for item in asked {
                if let Item::Look(look) = item {
                    look(&self.control);
                }
            }
            match forced.as_mut().poll(&mut context) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            }
        }
    }

    // In a runtime, since it goes to sleep where nothing is known yet; nobody waits for that.

    #[tokio::test]
    async fn an_order_that_is_refused_after_the_plan_says_why_and_not_why_an_earlier_one_was() {
        let mut bench = Bench::new();
        let planned = bench.plan();
        bench.tell(Input::Installed(without(&epoch(), 2..=5))); // a quorum was there once more
        bench.tell(Input::Command(Command::Recover));
        let why = NotRecovered::Quorum { reached: 1, voters: 1 };
        let refused = Some(Err(RecoverError::Refused(why)));
        assert_eq!(bench.forced_after(planned.replaces, None), refused);
        let before = bench.control.membership().not_forced();
        assert_eq!(before, Some((1, why)));
        let answer = bench.forced_after(planned.replaces, before);
        assert_eq!(answer, None, "the next one is not ordered yet");
        bench.tell(Input::Command(Command::Recover));
        assert_eq!(bench.forced_after(planned.replaces, before), refused, "the same once more");
    }

    #[tokio::test]
    async fn only_a_configuration_of_a_later_generation_is_the_one_that_was_forced() {
        let mut bench = Bench::new();
        let planned = bench.plan();
        bench.tell(Input::Command(Command::Recover));
        assert_eq!(bench.forced_after(planned.replaces, None), None, "it is under way");
        bench.tell(Input::Installed(without(&epoch(), [5])));
        assert_eq!(bench.forced_after(planned.replaces, None), None, "a quorum's");
        let forced = epoch().forced(ReplicaId::new(1), &BTreeSet::new(), 9_000);
        let forced = Arc::new(forced.expect("a member"));
        bench.tell(Input::Installed(forced.clone()));
        assert_eq!(bench.forced_after(planned.replaces, None), Some(Ok(forced)));
    }
}
