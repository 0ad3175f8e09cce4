//! Restart of the only member of a cluster: its successor resumes the cluster alone.
//!
//! A configuration with one member is its own quorum. When the member's process has ended and its
//! successor holds the lock of the same data directory, the successor may decide the next
//! configuration alone: itself, without its predecessor. Three rules keep that safe.
//!
//! - *Sole evidence*: [`SoleMemberEvidence`] is on disk only while no configuration with other
//!   members can exist. It is written when a configuration of this node alone is installed, by a
//!   lone founder already with its vote, and removed durably before the node proposes one with
//!   others (`MembershipCore::prepare_for_others`). A crash in between leaves a node that waits,
//!   never a second cluster.
//! - *Same directory*: the evidence names the inode of the directory's lock. A copied or restored
//!   directory has another one, so two copies do not both resume; an operator decides
//!   (`recover --force`). A snapshot of a whole volume keeps the inode: never run two of them.
//! - *New generation, durable first*: the predecessor's memory (replicated data, terms and
//!   generations of shards) is lost, so the successor raises the cluster's generation, and writes
//!   the new configuration to disk before it acts in it. Fencing tokens never decrease, however
//!   often it crashes.
//!
//! Before it resumes the cluster it asks its seeds and the stored members, for [`ASK_FOR`] at most.
//! If a member answers, it joins as a newcomer instead. That covers a directory that was restored
//! from a backup in place.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::NodeId;
use ostraca_ddata::replicator::epoch::EpochId;

use super::cluster_search::lease_settings;
use super::port::{Memory, OperatorNotice, ResumeRefusal, SoleMemberEvidence};
use super::{MembershipCore, MembershipOutbox};
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::wire::Foundation;

/// How long silent addresses may delay the successor.
const ASK_FOR: Duration = Duration::from_secs(1);

/// Completes the memory of a node that founded a cluster alone and was killed before it stored
/// that: adds the cluster, and removes the vote. Returns the memory unchanged without an accepted
/// vote or sole-member evidence, with a known cluster, or unless the only founder is an earlier
/// incarnation of this node. Its vote is decided, because it is the only seed and no other node was
/// a founder. The evidence was written with the vote, so it names the directory in which the node
/// voted: a copy of that directory is detected. No other member can exist, because the evidence is
/// removed before every proposal with other members.
pub(super) fn completed(memory: Memory, me: NodeId) -> Memory {
    let accepted = memory.founding.as_ref().and_then(|votes| votes.accepted.as_ref());
    let Some((_, foundation)) = accepted else { return memory };
    let mut founders = foundation.gossip.members();
    let (founder, others) = (founders.next(), founders.count());
    let is_predecessor = founder.is_some_and(|it| it.peer() == me.peer && it.node != me);
    if memory.cluster.is_some() || memory.sole.is_none() || !is_predecessor || others > 0 {
        return memory;
    }
    let cluster = Some(foundation.gossip.cluster());
    Memory { cluster, founding: None, ..memory }
}

/// The restart of a cluster's only member, until it resumes the cluster or joins other members.
/// Only the search of a starting node has one. It resumes unless there is a *doubt*, a reason that
/// an operator must judge; it is *prepared* once the write of the new configuration was ordered.
#[derive(Debug)]
pub(super) struct Succession {
    cluster: ClusterId,
    /// The evidence that this process found at its start.
    sole: SoleMemberEvidence,
    /// Time from which the resumption may be prepared, unless there is a doubt.
    due: Instant,
    /// The last reason not to resume automatically, in place of earlier ones. Only an operator
    /// removes it.
    doubt: Option<ResumeRefusal>,
    /// An operator ordered to resume: later doubts are ignored, except `NoSuccessor`.
    is_ordered: bool,
    /// The configuration to resume with, and the number of the write that makes it durable.
    prepared: Option<(u64, Foundation)>,
}

impl Succession {
    /// Begins the succession, due after [`ASK_FOR`], with a doubt and its notice if the evidence is
    /// of another directory. `None`, without a notice, if this node was not the only member,
    /// remembers no cluster, or has no data directory. Orders no write.
    pub(super) fn new(
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<Self> {
        let (cluster, sole) = (core.memory.cluster?, core.memory.sole.clone()?);
        let directory = core.directory?;
        let due = now.mono + ASK_FOR;
        let mut succession =
            Self { cluster, due, doubt: None, is_ordered: false, prepared: None, sole };
        if succession.sole.directory != directory {
            succession.doubt(core, now, ResumeRefusal::Copied, out);
        }
        Some(succession)
    }

    /// The evidence with the configuration that would be replaced.
    pub(super) const fn sole(&self) -> &SoleMemberEvidence {
        &self.sole
    }

    /// Time at which [`prepare_or_resume`](Self::prepare_or_resume) prepares the resumption. `None`
    /// while there is a doubt, and once the resumption is prepared: the caller calls again when a
    /// write is durable.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.doubt.is_none() && self.prepared.is_none()).then_some(self.due)
    }

    /// Whether the write of the new configuration was ordered, durable or not: the node asks no
    /// member to let it in from then on. `false` again after a doubt.
    pub(super) const fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Records a reason not to resume automatically, in place of an earlier one, and abandons a
    /// prepared resumption; the configuration that it wrote stays in the memory. Raises a notice
    /// each time, of which the log gets one per minute. Ignored after the order of an operator.
    pub(super) fn doubt(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        because: ResumeRefusal,
        out: &mut MembershipOutbox,
    ) {
        if !self.is_ordered {
            self.doubt = Some(because);
            self.prepared = None;
            core.say(now, OperatorNotice::NotResumed { cluster: self.cluster, because }, out);
        }
    }

    /// All addresses have answered or refused: due now, if not before. A doubt remains.
    pub(super) fn hasten(&mut self, now: Now) {
        self.due = self.due.min(now.mono);
    }

    /// An operator orders to resume the cluster: drops all doubts, also later ones, and the wait. A
    /// prepared resumption continues. [`ResumeRefusal::NoSuccessor`] is found again, and ends the
    /// order.
    pub(super) fn insist(&mut self, now: Now) {
        self.is_ordered = true;
        self.doubt = None;
        self.hasten(now);
    }

    /// The foundation to resume with, once it is due and durable. The first call after `due`
    /// without a doubt prepares it: orders the write of the new configuration, and returns `None`
    /// like all calls until that write is durable. Then each call returns it. If no configuration
    /// can succeed the stored one, the call records the doubt [`ResumeRefusal::NoSuccessor`].
    pub(super) fn prepare_or_resume(
        &mut self,
        core: &mut MembershipCore,
        now: Now,
        out: &mut MembershipOutbox,
    ) -> Option<Foundation> {
        if let Some((ordered, foundation)) = &self.prepared {
            return (core.durable >= *ordered).then(|| foundation.clone());
        }
        if self.doubt.is_some() || now.mono < self.due {
            return None;
        }
        let (Some(foundation), Some(directory)) = (self.foundation(core, now), core.directory)
        else {
            self.is_ordered = false; // not even an order makes it possible
            let because = ResumeRefusal::NoSuccessor(self.sole.epoch.id());
            self.doubt(core, now, because, out);
            return None;
        };
        core.memory.sole = Some(SoleMemberEvidence { epoch: foundation.epoch.clone(), directory });
        core.persist(out);
        self.prepared = Some((core.ordered, foundation));
        None
    }

    /// The next generation with this node as its only member, and a new gossip state with it Up,
    /// with the settings of the lease and the roles of this process. Counted from the evidence
    /// found at the start, also after an abandoned preparation. `None` if the stored configuration
    /// has no valid successor, for example because it has other members.
    fn foundation(&self, core: &MembershipCore, now: Now) -> Option<Foundation> {
        let (me, wall) = (core.me.incarnation, now.wall.as_millis());
        let epoch = self.sole.epoch.succeeded(me, lease_settings(core), wall).ok()?;
        let mut member = core.member();
        member.since = 1;
        let mut gossip = Gossip::found(self.cluster, member).ok()?;
        gossip.promote(me, &super::configuration_proposals::ages(&epoch));
        Some(Foundation { gossip: Arc::new(gossip), epoch: Arc::new(epoch) })
    }

    /// The notice with the reason why the node does not resume automatically; `None` if there is
    /// no doubt.
    pub(super) fn doubts(&self) -> Option<OperatorNotice> {
        self.doubt.map(|because| OperatorNotice::NotResumed { cluster: self.cluster, because })
    }

    /// The notice about the resumed cluster, with its former configuration and this new one.
    pub(super) fn notice(&self, configuration: EpochId) -> OperatorNotice {
        OperatorNotice::Resumed {
            cluster: self.cluster,
            before: self.sole.epoch.id(),
            configuration,
        }
    }
}
