//! Exchange of gossip between two nodes: a digest to compare the states, a status to ask for a
//! state that is missing here, a state or a delta (`delta.rs`), and the seen set if only that
//! differs.
//!
//! The functions compute answers to received messages. The membership machine determines the time
//! and `targets.rs` the receivers. The protocol follows Akka's gossip
//! (docs/protocol/membership.md#digest-before-state), with two differences: a received state is
//! always merged, and seen sets are sent separately.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crdts::VClock;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::merge::MergeRelation;
use super::{ClusterId, Gossip, GossipContent, MEMBERS_MAX};
use crate::cluster::member::{Member, Status};
use crate::cluster::reachability::ReachabilityStatus;

/// The versions and digests of a gossip state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipStatus {
    /// The cluster of the sender.
    pub cluster: ClusterId,
    /// Number of changes by each member that the state contains.
    pub version: VClock<ReplicaId>, // ≤ MEMBERS_MAX
    /// Digest of the state without the seen set.
    pub content: u64,
    /// Digest of the seen set.
    pub seen: u64,
}

/// The digest of a gossip state. A node that does not know the state asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GossipDigest {
    /// The cluster of the sender.
    #[serde(rename = "c")]
    pub cluster: ClusterId,
    /// Digest of the state without the seen set.
    #[serde(rename = "d")]
    pub content: u64,
    /// Digest of the seen set, if the sender wants to compare it.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
}

/// The seen set of the state with this digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipSeen {
    /// The cluster of the sender.
    pub cluster: ClusterId,
    /// Digest of the state without the seen set.
    pub content: u64,
    /// Incarnations that have seen the state.
    pub nodes: BTreeSet<ReplicaId>, // ≤ MEMBERS_MAX
}

/// The answer to send to the sender of a message. Each method documents which one it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GossipAnswer {
    /// No answer. The states need not be equal: a delta that was merged, or is older than this
    /// state, and a seen set of another state are not answered either.
    Nothing,
    /// [`Gossip::status`]: the peer has a state that this node lacks, and will send it.
    Status,
    /// The state: the peer lacks a part of it, perhaps. The caller may send a delta instead.
    State,
    /// [`Gossip::seen_set`]: the states are equal, and the seen sets differ.
    Seen,
}

/// Effect of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Relation of the two states before the merge. Always `Same` for a digest or a seen set, which
    /// carry no state, even if the states differ. `OursNewer` also for a delta that was not merged.
    pub relation: MergeRelation,
    /// Whether the seen set of this state changed, also as a result of a merge.
    pub seen_changed: bool,
    /// The answer to send.
    pub answer: GossipAnswer,
}

/// Reason why a message was rejected. Nothing was changed; the caller counts it.
///
/// Every method first checks the cluster, then the sender (`SenderRemoved` or `Stranger`). Only
/// states and deltas are then checked for `Removed`, `TooManyMembers` and `Jump`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipRefused {
    /// The sender belongs to another cluster. Clusters never merge; both sides log it.
    #[error("gossip of cluster {theirs}; this node belongs to cluster {ours}")]
    ForeignCluster {
        /// The cluster of this node.
        ours: ClusterId,
        /// The cluster of the sender.
        theirs: ClusterId,
    },
    /// The sender is not a member of this state (and not known as removed), or is Down.
    #[error("gossip from replica {0}, which is not a member here or is Down")]
    Stranger(ReplicaId),
    /// The sender was removed and does not know it: the caller informs it, so that it stops.
    #[error("gossip from replica {0}, which was removed from the cluster")]
    SenderRemoved(ReplicaId),
    /// This incarnation was removed: the node must stop.
    #[error("replica {0}, this node, was removed from the cluster; restart it")]
    Removed(ReplicaId),
    /// The merged state could have more than [`MEMBERS_MAX`] members.
    #[error("the merged state would have {len} members, at most {MEMBERS_MAX} are supported")]
    TooManyMembers {
        /// Number of members here plus members of the message that are not members here. Includes
        /// those that the merge would remove.
        len: usize,
    },
    /// A counter exceeds the one held here by more than an honest node can have raised it.
    #[error("counter {number} exceeds {limit}, the most that is plausible by the local state")]
    Jump {
        /// Counter of the sender.
        number: u64,
        /// Highest value that is accepted.
        limit: u64,
    },
}

impl Gossip {
    /// The status of this state, with the digest of its present seen set.
    #[must_use]
    pub fn status(&self) -> GossipStatus {
        GossipStatus {
            cluster: self.cluster(),
            version: self.version().clone(),
            content: self.digest(),
            seen: digest_of(&self.seen),
        }
    }

    /// A status without changes: its receiver answers with its whole state, also if both states are
    /// equal.
    #[must_use]
    pub fn ask_for_all(&self) -> GossipStatus {
        GossipStatus { version: VClock::new(), ..self.status() }
    }

    /// Digest of the seen set.
    #[must_use]
    pub fn seen_digest(&self) -> u64 {
        digest_of(&self.seen)
    }

    /// The seen set of this state, as known to this node.
    #[must_use]
    pub fn seen_set(&self) -> GossipSeen {
        let cluster = self.cluster();
        GossipSeen { cluster, content: self.digest(), nodes: self.seen.clone() }
    }

    /// A seen set that contains only `me`, to be sent directly to the leader. Does not add `me` to
    /// the seen set here.
    #[must_use]
    pub fn i_have_seen(&self, me: ReplicaId) -> GossipSeen {
        let cluster = self.cluster();
        GossipSeen { cluster, content: self.digest(), nodes: BTreeSet::from([me]) }
    }

    /// Digest of the state without the seen set, cached until the next change. Equal states have
    /// equal digests in every release, independent of the fields of their wire format.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.content.digest()
    }

    /// The answer to a peer that has sent `status`; changes nothing, and does not add the sender to
    /// the seen set. `Status`, which asks for the state, if the peer's version is newer. `State` if
    /// the peer is behind, if each side has something new, or if only the contents differ: the peer
    /// then merges and sends the result back. `Seen` if only the seen sets differ, otherwise
    /// `Nothing`.
    ///
    /// # Errors
    /// [`GossipRefused`] if it is of another cluster, or the sender must not gossip.
    pub fn compare(
        &self,
        from: ReplicaId,
        status: &GossipStatus,
    ) -> Result<GossipAnswer, GossipRefused> {
        self.admit(from, status.cluster, None)?;
        let same = status.content == self.digest();
        if same && status.version == *self.version() {
            let agreed = status.seen == digest_of(&self.seen);
            return Ok(if agreed { GossipAnswer::Nothing } else { GossipAnswer::Seen });
        }
        Ok(match self.version().partial_cmp(&status.version) {
            Some(Ordering::Less) => GossipAnswer::Status,
            // Concurrent, or equal by version only: the peer merges and sends the merge back.
            Some(Ordering::Equal | Ordering::Greater) | None => GossipAnswer::State,
        })
    }

    /// The answer to a peer that has sent the digest of its state; the arguments are those of
    /// [`receive_delta`](Self::receive_delta). Changes at most the seen set.
    ///
    /// If the digest is that of this state, the sender (not this node) is added to the seen set;
    /// then the answer is `Seen` if the peer sent a digest of its seen set that differs from the
    /// present one, else `Nothing`. Otherwise the answer is `State` if this state contains that of
    /// the peer, else `Status`, which asks for it.
    ///
    /// # Errors
    /// [`GossipRefused`] if it is of another cluster, or the sender must not gossip.
    pub fn receive_digest(
        &mut self,
        from: ReplicaId,
        digest: &GossipDigest,
        own: u64,
        knows: impl Fn(u64) -> bool,
    ) -> Result<Received, GossipRefused> {
        self.admit(from, digest.cluster, None)?;
        let mut received = Received {
            relation: MergeRelation::Same,
            seen_changed: false,
            answer: GossipAnswer::Nothing,
        };
        if digest.content == own {
            received.seen_changed = self.see(from);
            if digest.seen.is_some_and(|seen| seen != self.seen_digest()) {
                received.answer = GossipAnswer::Seen;
            }
        } else {
            let is_behind = knows(digest.content);
            received.answer = if is_behind { GossipAnswer::State } else { GossipAnswer::Status };
        }
        Ok(received)
    }

    /// Merges a received state, and marks the result as seen by `me`, also if nothing changed. The
    /// answer is the state if the sender lacks a part of the result, the seen set if it lacks only
    /// that, else `Nothing`. If the merge changed something, drops the oldest tombstones beyond
    /// their maximum, as a change of `me`.
    ///
    /// # Errors
    /// [`GossipRefused`], in the order described there, if it was not merged.
    /// [`Removed`](GossipRefused::Removed) means that this node must stop: the state records its
    /// removal, or neither state contains `me`.
    pub fn receive(
        &mut self,
        me: ReplicaId,
        from: ReplicaId,
        state: &Self,
    ) -> Result<Received, GossipRefused> {
        self.admit(from, state.cluster(), state.member(from).map(|sender| sender.since))?;
        let since = self.member(me).map_or(0, |member| member.since);
        if state.is_removed(me, since) {
            return Err(GossipRefused::Removed(me));
        }
        let new = state.members().filter(|member| !self.contains(member.incarnation())).count();
        if self.len() + new > MEMBERS_MAX {
            return Err(GossipRefused::TooManyMembers { len: self.len() + new });
        }
        self.check_jumps_of_state(state)?;
        let before = self.seen.clone();
        let merged = self.merge(state);
        if merged != MergeRelation::OursNewer {
            self.shed(me);
        }
        self.see(me);
        let answer = if self.content != state.content {
            GossipAnswer::State
        } else if self.seen != state.seen {
            GossipAnswer::Seen
        } else {
            GossipAnswer::Nothing
        };
        Ok(Received { relation: merged, seen_changed: before != self.seen, answer })
    }

    /// Merges a received seen set if it belongs to this state; otherwise changes and answers
    /// nothing. Ignores nodes that are not members, and adds neither `from` nor this node by
    /// itself. Answers `Seen` if the own set now has more nodes than the received one, which counts
    /// those ignored; else `Nothing`.
    ///
    /// # Errors
    /// [`GossipRefused`] if it is of another cluster, or the sender must not gossip.
    pub fn receive_seen(
        &mut self,
        from: ReplicaId,
        seen: &GossipSeen,
    ) -> Result<Received, GossipRefused> {
        self.admit(from, seen.cluster, None)?;
        let mut received = Received {
            relation: MergeRelation::Same,
            seen_changed: false,
            answer: GossipAnswer::Nothing,
        };
        if seen.content != self.digest() {
            // It belongs to an earlier or a later state and tells nothing about this one.
            return Ok(received);
        }
        let members = &self.content.members;
        let before = self.seen.len();
        self.seen.extend(seen.nodes.iter().filter(|id| members.contains_key(id)));
        received.seen_changed = self.seen.len() > before;
        if self.seen.len() > seen.nodes.len() {
            received.answer = GossipAnswer::Seen;
        }
        Ok(received)
    }

    /// Checks whether gossip of `from` is accepted: it is of this cluster (checked first), and the
    /// sender is a member that is not Down; an Exiting one is accepted. A Down one is a stranger.
    /// `since` is needed to detect a removal whose tombstone was forgotten; with `None` such a
    /// sender is a stranger.
    pub(super) fn admit(
        &self,
        from: ReplicaId,
        theirs: ClusterId,
        since: Option<u64>,
    ) -> Result<(), GossipRefused> {
        let ours = self.cluster();
        if ours != theirs {
            return Err(GossipRefused::ForeignCluster { ours, theirs });
        }
        match self.member(from) {
            Some(member) if member.status != Status::Down => Ok(()),
            None if self.is_removed(from, since.unwrap_or(u64::MAX)) => {
                Err(GossipRefused::SenderRemoved(from))
            }
            _ => Err(GossipRefused::Stranger(from)),
        }
    }
}

/// Digest of a set of incarnations.
fn digest_of(nodes: &BTreeSet<ReplicaId>) -> u64 {
    let mut digest = Digest::new();
    digest.list(nodes, |digest, node| digest.number(node.get()));
    digest.finish()
}

impl GossipContent {
    /// Hashes all fields in a fixed order. A change of a field or of the order makes releases
    /// disagree.
    pub(super) fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        digest.number(self.cluster.0);
        digest.list(&self.members, |digest, (_, member)| digest.member(member));
        digest.list(self.reachability.rows(), |digest, (observer, row)| {
            digest.number(observer.get());
            digest.number(row.version);
            digest.list(row.verdicts.iter(), |digest, (subject, verdict)| {
                digest.number(subject.get());
                digest.number(u64::from(verdict == ReachabilityStatus::Terminated));
            });
        });
        digest.list(&self.tombstones, |digest, (id, stamp)| {
            digest.number(id.get());
            digest.number(*stamp);
        });
        digest.number(self.forgotten);
        digest.number(u64::from(self.preparing_for_shutdown));
        digest.list(&self.version.dots, |digest, (id, counter)| {
            digest.number(id.get());
            digest.number(*counter);
        });
        digest.finish()
    }
}

/// Number of bytes that are collected before they are hashed.
const GATHERED: usize = 4_096;

/// Hash of fields in a fixed order. It does not depend on the wire format, so that different
/// releases agree. Bytes are collected first, which is several times faster than hashing each
/// number.
struct Digest {
    gathered: Vec<u8>, // slightly longer than GATHERED at most
    hash: Xxh3,
}

impl Digest {
    fn new() -> Self {
        Self { gathered: Vec::new(), hash: Xxh3::new() }
    }

    fn number(&mut self, number: u64) {
        self.gathered.extend_from_slice(&number.to_le_bytes());
    }

    /// Adds the length of the text and its bytes.
    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.gathered.extend_from_slice(text.as_bytes());
    }

    /// Adds the number of items and each item, and hashes the collected bytes after each item that
    /// brings them to [`GATHERED`]. Only lists hash before [`finish`](Self::finish).
    fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        each: impl Fn(&mut Self, T),
    ) {
        let items = items.into_iter();
        self.number(items.len() as u64);
        for item in items {
            each(self, item);
            if self.gathered.len() >= GATHERED {
                self.hash.update(&self.gathered);
                self.gathered.clear();
            }
        }
    }

    /// Adds all fields of a member. An age that is missing counts as `u64::MAX`, and a status as
    /// its position in the enum, so a new order of the variants makes releases disagree.
    fn member(&mut self, member: &Member) {
        let Member { node, address, status, roles, up_number, app_version, since, hosting } =
            member;
        self.number(node.incarnation.get());
        self.gathered.extend_from_slice(node.peer.as_bytes());
        self.text(address.as_str());
        self.number(*status as u64);
        self.list(roles, Digest::text);
        self.number(up_number.unwrap_or(u64::MAX));
        self.text(app_version);
        self.number(*since);
        self.number(hosting.revision);
        self.number(u64::from(hosting.draining));
        self.list(&hosting.entity_types, Digest::text);
    }

    /// Hashes the remaining bytes and returns the digest.
    fn finish(mut self) -> u64 {
        self.hash.update(&self.gathered);
        self.hash.digest()
    }
}
