//! Forced recovery (docs/protocol/configurations.md#forced-recovery): on an operator's order the
//! cluster continues without a majority that is lost.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::replicator::epoch::{Epoch, EpochId};

use super::error::RecoverError;
use super::{Cluster, MembershipCommand};
use crate::cluster::membership::recovery::{NotRecovered, RecoveryPlan};
use crate::node::control::machine::Control;

/// Maximum time from the queued order until the forced configuration is installed on this node. The
/// wait for a place in the inbox before is not limited. No other node is involved.
const WITHIN: Duration = Duration::from_secs(5);
/// Pause between two looks at the machine while the order is pending.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Result of a forced recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryResult {
    /// The members that continue, and those that were abandoned: the planned ones, divided by
    /// whether the forced configuration contains them. `replaces` is that of the plan.
    pub recovery: RecoveryPlan,
    /// Id of the forced configuration.
    pub configuration: EpochId,
    /// Number of its voters.
    pub voters: usize,
}

impl Cluster {
    /// Returns which members [`recover_by_force`](Self::recover_by_force) would keep and which it
    /// would abandon, if it were called now. Changes nothing.
    ///
    /// # Errors
    /// [`RecoverError::Refused`] if there is nothing to recover, or this node cannot do it;
    /// [`RecoverError::Stopped`] if the node has stopped.
    pub async fn recovery(&self) -> Result<RecoveryPlan, RecoverError> {
        let clock = self.clock;
        let look = move |control: &Control| control.membership().recovery(clock.mono());
        Ok(self.look(look).await??)
    }

    /// Continues the cluster with this node and the members that it reaches now, without a majority
    /// that is lost permanently. All other members are abandoned for ever.
    ///
    /// **This gives up the guarantees.** No node can distinguish dead members from unreachable
    /// ones. If the abandoned members are alive, even as a healthy majority, both sides act until
    /// the abandoned members hear of the recovery, which may never happen. They then stop, and
    /// their writes since then are lost. Writes that a majority acknowledged but that no kept
    /// member holds are lost as well. docs/operating.md explains when to use this.
    ///
    /// Returns when the forced configuration is installed on this node. The result lists the
    /// members by that configuration, because the order applies to the state at its time, not to
    /// an earlier [plan](Self::recovery). If the future is dropped, an order that was queued is
    /// carried out nevertheless.
    ///
    /// # Errors
    /// [`RecoverError`]. [`Refused`](RecoverError::Refused) comes from a plan that is made before
    /// the order, or from membership, which checks again when it handles the order; in both cases
    /// nothing was changed. After [`Late`](RecoverError::Late), 5 s after the order, the recovery
    /// may still be completed, and after [`Stopped`](RecoverError::Stopped) it may have been.
    pub async fn recover_by_force(&self) -> Result<RecoveryResult, RecoverError> {
        let refused = self.look(|control: &Control| control.membership().not_forced()).await?;
        let clock = self.clock;
        let look = move |control: &Control| {
            let membership = control.membership();
            let planned = membership.recovery(clock.mono());
            planned.map(|planned| (planned, membership.configuration().cloned()))
        };
        let (planned, replaced) = self.look(look).await??;
        self.order(MembershipCommand::Recover).await?;
        let forced = self.forced_after(planned.replaces, refused);
        let late = |_| RecoverError::Late { within: WITHIN };
        let forced = tokio::time::timeout(WITHIN, forced).await.map_err(late)??;
        let recovery = carried_out(planned, replaced.as_deref(), &forced);
        let (configuration, voters) = (forced.id(), forced.voters().len());
        Ok(RecoveryResult { recovery, configuration, voters })
    }

    /// Waits for an installed configuration of a later generation than `before`, which is the
    /// forced one (or one forced later, perhaps by another node), and returns it; one with the same
    /// generation was decided by a quorum and does not count. Looks immediately and then every
    /// [`LOOK_AGAIN`]. Has no time limit: the caller sets one.
    ///
    /// # Errors
    /// The reason of a refusal other than `refused`, the last one before the order, even if another
    /// caller's order was refused: a quorum may have returned since the plan was made. An installed
    /// configuration counts before a refusal. [`RecoverError::Stopped`] if membership ends.
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

/// The plan as the forced configuration carried it out: a member that was reached when the plan was
/// made may be abandoned. Both lists have the order of `replaced`, the configuration of the plan,
/// whose members are oldest first; the order of the plan if it is `None`, because this node was in
/// no configuration. Members that the plan does not name are left out.
fn carried_out(plan: RecoveryPlan, replaced: Option<&Epoch>, forced: &Epoch) -> RecoveryPlan {
    let mut before = [plan.kept, plan.given_up].concat();
    before.sort_by_key(|id| replaced?.members().iter().position(|member| member == id));
    let (kept, given_up) = before.into_iter().partition(|id| forced.is_member(*id));
    RecoveryPlan { replaces: plan.replaces, kept, given_up }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use ostraca_ddata::clock::Now;
    use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
    use ostraca_ddata::machine::{Machine as _, Outbox};
    use ostraca_ddata::replicator::epoch::{EpochSettings, MembershipChange};

    use super::*;
    use crate::cluster::config::ClusterConfig as Config;
    use crate::cluster::fault_injection::MembershipFaultInjection;
    use crate::cluster::member::Address;
    use crate::cluster::membership::Membership;
    use crate::cluster::membership::port::{
        MembershipInput, MembershipOutput, MembershipSetup, Memory,
    };
    use crate::cluster::wire::ComparedSettings;
    use crate::node::clock::Clock;
    use crate::node::cluster::JoinsBy;
    use crate::node::cluster::watchers::Watchers;
    use crate::node::control::machine::{ControlInbox, ControlOutput};
    use crate::node::inbox::{InboxEntry, InboxLimits, TakePolicy, TakeResult};
    use crate::sharding::machines::Machines;

    /// A configuration of five members, one of which is this node.
    fn epoch() -> Arc<Epoch> {
        let members = (1..=5).map(ReplicaId::new).collect();
        let id = EpochId { generation: 1_000, number: 1 };
        Arc::new(Epoch::founding(id, members, EpochSettings::default()).expect("well formed"))
    }

    fn without(epoch: &Epoch, gone: impl IntoIterator<Item = u64>) -> Arc<Epoch> {
        let lost = gone.into_iter().map(ReplicaId::new).collect();
        Arc::new(
            epoch
                .next(&MembershipChange { lost, ..MembershipChange::default() })
                .expect("somebody is left"),
        )
    }

    /// A node without peers and its program's handle. Machines run only when the test calls them.
    struct Bench {
        handle: Cluster,
        control: Control,
        now: Now,
    }

    impl Bench {
        fn new() -> Self {
            let me = NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) };
            let membership = Membership::new(MembershipSetup {
                me,
                address: Address::new("/dns4/a/tcp/1").expect("short"),
                config: Config::default(),
                settings: ComparedSettings::default(),
                memory: Memory::default(),
                directory: None,
                seed: 1,
                fault_injection: MembershipFaultInjection::none(),
            });
            let control = Control::new(membership, Machines::new(me.incarnation, Duration::ZERO));
            let inbox = ControlInbox::new(InboxLimits::default());
            let clock = Clock::start();
            let handle = Cluster::new(me, inbox, Watchers::new(), JoinsBy::Itself, clock);
            let mut bench = Self { handle, control, now: Now::default() };
            for _ in 0..100 {
                if bench.control.membership().gossip().is_none() {
                    bench.tell(MembershipInput::Tick);
                }
            }
            assert!(
                bench.control.membership().gossip().is_some(),
                "the node founds a cluster alone"
            );
            bench.tell(MembershipInput::Installed(epoch()));
            bench
        }

        fn tell(&mut self, input: MembershipInput) {
            self.now.mono = self.now.mono + Duration::from_millis(100);
            let mut out = Outbox::new();
            self.control.handle(self.now, input.into(), &mut out);
            let is_persist = |output: &ControlOutput| {
                matches!(output, ControlOutput::Membership(MembershipOutput::Persist(_)))
            };
            for _ in 0..out.drain().filter(is_persist).count() {
                self.tell(MembershipInput::Persisted);
            }
        }

        fn plan(&self) -> RecoveryPlan {
            let planned = self.control.membership().recovery(self.now.mono);
            planned.expect("one of five is no quorum")
        }

        /// Outcome of an order after one look at the machine; `None` while it is pending.
        fn forced_after(
            &self,
            before: EpochId,
            refused: Option<(u64, NotRecovered)>,
        ) -> Option<Result<Arc<Epoch>, RecoverError>> {
            let mut forced = pin!(self.handle.forced_after(before, refused));
            let mut context = Context::from_waker(Waker::noop());
            assert!(forced.as_mut().poll(&mut context).is_pending(), "the look is queued");
            let mut asked = VecDeque::new();
            assert_eq!(self.handle.inbox.take(&mut asked, 8, TakePolicy::All), TakeResult::Some);
            for item in asked {
                if let InboxEntry::Look(look) = item {
                    look(&self.control);
                }
            }
            match forced.as_mut().poll(&mut context) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            }
        }
    }

    // These tests need a runtime, because a pending `forced_after` creates a timer.

    #[tokio::test]
    async fn refused_recovery_reports_its_own_reason_not_an_earlier_one() {
        let mut bench = Bench::new();
        let planned = bench.plan();
        bench.tell(MembershipInput::Installed(without(&epoch(), 2..=5))); // a quorum has returned
        bench.tell(MembershipInput::Command(MembershipCommand::Recover));
        let why = NotRecovered::Quorum { reached: 1, voters: 1 };
        let refused = Some(Err(RecoverError::Refused(why)));
        assert_eq!(bench.forced_after(planned.replaces, None), refused);
        let before = bench.control.membership().not_forced();
        assert_eq!(before, Some((1, why)));
        let answer = bench.forced_after(planned.replaces, before);
        assert_eq!(answer, None, "the second order was not given yet");
        bench.tell(MembershipInput::Command(MembershipCommand::Recover));
        assert_eq!(bench.forced_after(planned.replaces, before), refused, "the second refusal");
    }

    #[tokio::test]
    async fn forced_configuration_has_a_later_generation() {
        let mut bench = Bench::new();
        let planned = bench.plan();
        bench.tell(MembershipInput::Command(MembershipCommand::Recover));
        assert_eq!(bench.forced_after(planned.replaces, None), None, "the order is pending");
        bench.tell(MembershipInput::Installed(without(&epoch(), [5])));
        assert_eq!(bench.forced_after(planned.replaces, None), None, "decided by a quorum");
        let forced = epoch().forced(ReplicaId::new(1), &BTreeSet::new(), 9_000);
        let forced = Arc::new(forced.expect("a member"));
        bench.tell(MembershipInput::Installed(forced.clone()));
        assert_eq!(bench.forced_after(planned.replaces, None), Some(Ok(forced)));
    }

    #[test]
    fn result_lists_abandoned_members_oldest_first() {
        let ids = |numbers: &[u64]| numbers.iter().copied().map(ReplicaId::new).collect::<Vec<_>>();
        let plan =
            RecoveryPlan { replaces: epoch().id(), kept: ids(&[1, 3, 4]), given_up: ids(&[2, 5]) };
        let kept = ids(&[3]).into_iter().collect();
        let forced = epoch().forced(ReplicaId::new(1), &kept, 9_000).expect("a member");
        let replaced = Some(epoch());
        let done = carried_out(plan, replaced.as_deref(), &forced);
        assert_eq!((done.kept, done.given_up), (ids(&[1, 3]), ids(&[2, 4, 5])));
    }
}
