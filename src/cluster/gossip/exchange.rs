//! What two nodes say to each other about their states: a short status where they probably agree,
//! the state where they do not, and who has seen it where only that differs.
//!
//! Pure answers to what arrives. Who sends when is the business of the membership machine, to whom
//! of `targets.rs`. Spec: spec/membership.md, *Gossip*; after Akka's gossip protocol (reference
//! §2.3), but that a state is always merged, and that sets of who has seen it travel alone.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crdts::VClock;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::merge::Merged;
use super::{ClusterId, Content, Gossip, MEMBERS_MAX};
use crate::cluster::member::{Member, Status};
use crate::cluster::reachability::Verdict;

/// A state in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipStatus {
    /// Which cluster.
    pub cluster: ClusterId,
    /// How many changes of each member the state contains.
    pub version: VClock<ReplicaId>, // ≤ MEMBERS_MAX
    /// Digest of the state without who has seen it.
    pub content: u64,
    /// Digest of who has seen it.
    pub seen: u64,
}

/// A state in the fewest bytes: whoever does not know it asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GossipDigest {
    /// Which cluster.
    #[serde(rename = "c")]
    pub cluster: ClusterId,
    /// Digest of the state without who has seen it.
    #[serde(rename = "d")]
    pub content: u64,
    /// Digest of who has seen it, if the sender wants to know.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
}

/// Who has seen the state with this digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipSeen {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Digest of the state without who has seen it.
    pub content: u64,
    /// Incarnations.
    pub nodes: BTreeSet<ReplicaId>, // ≤ MEMBERS_MAX
}

/// What to send back to whom something came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: both know the same.
    Nothing,
    /// [`Gossip::status`]: the peer is ahead and will send its state.
    Status,
    /// The state: the peer lacks something.
    State,
    /// [`Gossip::who_has_seen`]: the peer lacks only that.
    Seen,
}

/// What a message has changed, and what to send back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How the two states stood to each other.
    pub merged: Merged,
    /// Whether the set of who has seen our state is another now.
    pub seen_changed: bool,
    /// What to send back.
    pub answer: Answer,
}

/// Why a message was not taken over. Count it; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GossipRefused {
    /// Clusters formed apart never merge: log it, on both sides.
    #[error("gossip of cluster {theirs}; this node belongs to cluster {ours}")]
    ForeignCluster {
        /// This node's.
        ours: ClusterId,
        /// The sender's.
        theirs: ClusterId,
    },
    /// The sender is no member here, or Down.
    #[error("gossip from replica {0}, which is no living member here")]
    Stranger(ReplicaId),
    /// The sender was removed and does not know it: send it this state, so that it stops.
    #[error("gossip from replica {0}, which was removed from the cluster")]
    SenderRemoved(ReplicaId),
    /// This incarnation was removed: the node must stop.
    #[error("replica {0}, this node, was removed from the cluster; restart it")]
    Removed(ReplicaId),
    /// The merged state would have more members than are supported.
    #[error("the merged state would have {len} members, at most {MEMBERS_MAX} are supported")]
    TooManyMembers {
        /// Members that there would be.
        len: usize,
    },
    /// A counter lies so far above the one held here that no honest node can have raised it.
    #[error("a counter of {number}; from what is held here, at most {limit} can have been reached")]
    Jump {
        /// The sender's.
        number: u64,
        /// The highest that is taken.
        limit: u64,
    },
}

impl Gossip {
    /// This state in short.
    #[must_use]
    pub fn status(&self) -> GossipStatus {
        GossipStatus {
            cluster: self.cluster(),
            version: self.version().clone(),
            content: self.digest(),
            seen: digest_of(&self.seen),
        }
    }

    /// A status that knows of no change: whoever gets it sends its whole state.
    #[must_use]
    pub fn ask_for_all(&self) -> GossipStatus {
        GossipStatus { version: VClock::new(), ..self.status() }
    }

    /// Digest of who has seen this state.
    #[must_use]
    pub fn seen_digest(&self) -> u64 {
        digest_of(&self.seen)
    }

    /// Who has seen this state, as far as this node knows.
    #[must_use]
    pub fn who_has_seen(&self) -> GossipSeen {
        let cluster = self.cluster();
        GossipSeen { cluster, content: self.digest(), nodes: self.seen.clone() }
    }

    /// That `me` has seen this state: for the leader, straight.
    #[must_use]
    pub fn i_have_seen(&self, me: ReplicaId) -> GossipSeen {
        let cluster = self.cluster();
        GossipSeen { cluster, content: self.digest(), nodes: BTreeSet::from([me]) }
    }

    /// Digest of everything but who has seen it: equal states have equal digests, on every
    /// release, whatever fields their wire form has.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.content.digest()
    }

    /// What a peer needs that says that its state is `status`.
    ///
    /// # Errors
    /// [`GossipRefused`] if it is of another cluster, or from nobody who may gossip.
    pub fn compare(&self, from: ReplicaId, status: &GossipStatus) -> Result<Answer, GossipRefused> {
        self.admit(from, status.cluster, None)?;
        let same = status.content == self.digest();
        if same && status.version == *self.version() {
            let agreed = status.seen == digest_of(&self.seen);
            return Ok(if agreed { Answer::Nothing } else { Answer::Seen });
        }
        Ok(match self.version().partial_cmp(&status.version) {
            Some(Ordering::Less) => Answer::Status,
            // Concurrent, or equal by version only: the peer merges and sends the merge back.
            Some(Ordering::Equal | Ordering::Greater) | None => Answer::State,
        })
    }

    /// What a peer needs whose state has this digest; as for
    /// [`receive_delta`](Self::receive_delta). Who holds this very state has seen it.
    ///
    /// # Errors
    /// If it is of another cluster, or from nobody who may gossip.
    pub fn receive_digest(
        &mut self,
        from: ReplicaId,
        digest: &GossipDigest,
        own: u64,
        knows: impl Fn(u64) -> bool,
    ) -> Result<Received, GossipRefused> {
        self.admit(from, digest.cluster, None)?;
        let mut received =
            Received { merged: Merged::Same, seen_changed: false, answer: Answer::Nothing };
        if digest.content == own {
            received.seen_changed = self.see(from);
            if digest.seen.is_some_and(|seen| seen != self.seen_digest()) {
                received.answer = Answer::Seen;
            }
        } else {
            let is_behind = knows(digest.content);
            received.answer = if is_behind { Answer::State } else { Answer::Status };
        }
        Ok(received)
    }

    /// Merges a state that came, and marks the result as seen by `me`.
    ///
    /// # Errors
    /// [`GossipRefused`]: it was not merged; [`Removed`](GossipRefused::Removed) means that this
    /// node must stop.
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
        self.is_near_state(state)?;
        let before = self.seen.clone();
        let merged = self.merge(state);
        if merged != Merged::OursNewer {
            self.shed(me);
        }
        self.see(me);
        let answer = if self.content != state.content {
            Answer::State
        } else if self.seen != state.seen {
            Answer::Seen
        } else {
            Answer::Nothing
        };
        Ok(Received { merged, seen_changed: before != self.seen, answer })
    }

    /// Takes over who has seen a state, if it is ours.
    ///
    /// # Errors
    /// [`GossipRefused`] if it is of another cluster, or from nobody who may gossip.
    pub fn receive_seen(
        &mut self,
        from: ReplicaId,
        seen: &GossipSeen,
    ) -> Result<Received, GossipRefused> {
        self.admit(from, seen.cluster, None)?;
        let mut received =
            Received { merged: Merged::Same, seen_changed: false, answer: Answer::Nothing };
        if seen.content != self.digest() {
            // Of an earlier or a later state: says nothing about this one. A status will tell.
            return Ok(received);
        }
        let members = &self.content.members;
        let before = self.seen.len();
        self.seen.extend(seen.nodes.iter().filter(|id| members.contains_key(id)));
        received.seen_changed = self.seen.len() > before;
        if self.seen.len() > seen.nodes.len() {
            received.answer = Answer::Seen;
        }
        Ok(received)
    }

    /// Whether gossip from `from` is listened to. `since` tells of a removal that is forgotten.
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

impl Content {
    pub(super) fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        digest.number(self.cluster.0);
        digest.list(&self.members, |digest, (_, member)| digest.member(member));
        digest.list(self.reachability.rows(), |digest, (observer, row)| {
            digest.number(observer.get());
            digest.number(row.version);
            digest.list(&row.verdicts, |digest, (subject, verdict)| {
                digest.number(subject.get());
                digest.number(u64::from(*verdict == Verdict::Terminated));
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

/// Bytes that are hashed at a time.
const GATHERED: usize = 4_096;

/// A hash of fields, by hand: independent of the wire form, so that releases agree. Some are gathered
/// first, which is several times faster than to feed the hash number by number.
struct Digest {
    gathered: Vec<u8>, // not much above GATHERED
    hash: Xxh3,
}

impl Digest {
    fn new() -> Self {
        Self { gathered: Vec::new(), hash: Xxh3::new() }
    }

    fn number(&mut self, number: u64) {
        self.gathered.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.gathered.extend_from_slice(text.as_bytes());
    }

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

    fn member(&mut self, member: &Member) {
        let Member { node, address, status, roles, up_number, app_version, since, hosting } =
            member;
        self.number(node.incarnation.get());
        self.gathered.extend_from_slice(node.peer.as_bytes());
        self.text(address.as_str());
        self.number(*status as u64);
        self.list(roles, |digest, role| digest.text(role));
        self.number(up_number.unwrap_or(u64::MAX));
        self.text(app_version);
        self.number(*since);
        self.number(hosting.revision);
        self.number(u64::from(hosting.draining));
        self.list(&hosting.entity_types, |digest, name| digest.text(name));
    }

    fn finish(mut self) -> u64 {
        self.hash.update(&self.gathered);
        self.hash.digest()
    }
}
