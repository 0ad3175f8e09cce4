//! The singleton: one instance in the cluster, on the oldest candidate, handed over when the oldest
//! candidate changes (docs/protocol/membership.md#pairwise-rights).
//!
//! [`Singleton`] runs on every node that may host the instance or is asked about it; [`Proxy`]
//! finds the instance from any node. Neither depends on a clock, a socket, or the work of the
//! instance. The caller ensures that the instance begins a message only while the hosting lease is
//! valid ([`LeaseHolder::serves`](super::lease::LeaseHolder::serves)).
//!
//! # Why there are never two instances
//! Between each two nodes there is one *right*, which the older node holds at first. A node may
//! start the instance if it holds the rights towards all other members of its installed
//! configuration. `HandOverDone` gives the sender's right away; a node sends it only while it runs
//! no instance. A Done counts only for the request that it answers, and a request gets a new number
//! once a right was given away, so late and duplicated messages do no harm. A node outside of the
//! installed configuration is not asked, because its lease has ended. So if several nodes leave at
//! once, their successor waits for *all* nodes that may still run the instance, not only for the
//! next older one.
//!
//! Source: Chandy and Misra, *The Drinking Philosophers Problem* (1984), for the rights between
//! pairs. The message names are those of Akka.

mod proxy;

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use serde::{Deserialize, Serialize};

pub use self::proxy::{Proxy, ProxyInput, ProxyOutput, ProxyStats};
use super::fault_injection::{MembershipFault, MembershipFaultInjection};

/// Minimum time between two requests, so that a time of 0 makes no busy loop.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// Messages about one singleton; the caller adds its name. A node that is asked about an unknown
/// singleton creates a machine in which it is not a candidate, and keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SingletonMessage {
    /// A candidate → a node that may run the instance: requests the right.
    #[serde(rename = "t")]
    HandOverToMe {
        /// Number of the request.
        #[serde(rename = "n")]
        number: u64,
    },
    /// Answer: the instance is being stopped here. Has no effect at the receiver, which repeats its
    /// request until the Done.
    #[serde(rename = "p")]
    HandOverInProgress {
        /// Number of the request.
        #[serde(rename = "n")]
        number: u64,
    },
    /// Answer: nothing runs here, and nothing will before the receiver gives the right back.
    #[serde(rename = "d")]
    HandOverDone {
        /// Number of the request.
        #[serde(rename = "n")]
        number: u64,
    },
    /// A proxy → the oldest candidate: asks whether the instance runs there. There is no answer if
    /// it does not run there, or is being stopped.
    #[serde(rename = "w")]
    Identify,
    /// The instance runs on the sender. Sent to all members when it starts, and as answer.
    #[serde(rename = "h")]
    Here,
    /// The instance is being stopped on the sender, or has stopped by itself. Sent to all members.
    #[serde(rename = "g")]
    Gone,
}

/// Whether a member is a candidate for a singleton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Candidacy {
    /// Up, with the required role (or hosting the type), not leaving.
    Candidate,
    /// It has another role, which never changes: its right is never requested or needed.
    Never,
    /// Any other member: leaving, Down, not hosting the type now, or unknown.
    NotNow,
}

/// A member of the installed configuration, or one that
/// [`DepartedMembers`](super::lease::DepartedMembers) still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingletonMember {
    /// Incarnation of the member.
    pub id: ReplicaId,
    /// Whether it is a candidate.
    pub candidacy: Candidacy,
}

/// Input of a [`Singleton`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SingletonInput {
    /// A deadline may have passed.
    Tick,
    /// The members of the installed configuration, including this node if it is one, oldest first.
    /// They replace all former ones.
    Members(Vec<SingletonMember>),
    /// A message of a peer.
    Message {
        /// Incarnation of the sender.
        from: ReplicaId,
        /// The message of the sender.
        message: SingletonMessage,
    },
    /// The hosting lease is held. Does not cancel a stop that was ordered before.
    LeaseHeld,
    /// The hosting lease has been lapsed for so long that the instance must stop.
    LeaseOver,
    /// The instance has stopped, by an order or by itself. Ignored while none runs here.
    Stopped,
    /// The cluster prepares for a full shutdown, for ever: nothing is started or requested, and a
    /// running instance is not handed over. It still stops without the lease, or when this node is
    /// no candidate. A node without an instance still gives its rights away.
    Prepare,
}

/// Output of a [`Singleton`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SingletonOutput {
    /// Send to a peer.
    Send {
        /// Incarnation of the receiver.
        to: ReplicaId,
        /// The message to send.
        message: SingletonMessage,
    },
    /// Start the instance on this node.
    Start,
    /// Stop the instance, and report [`SingletonInput::Stopped`] when it has stopped.
    Stop,
}

/// State of the instance on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingletonState {
    /// It does not run here.
    No,
    /// It runs on this node.
    Yes,
    /// It was told to stop and has not stopped yet.
    Stopping,
    /// It stopped by itself. It is not started again here until this node has ceased to be a
    /// candidate, nor elsewhere while this node is the oldest candidate. This node requests no
    /// rights, but gives one away if an older candidate requests it.
    Finished,
}

/// Counters of a [`Singleton`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SingletonStats {
    /// Number of instances started here.
    pub started: u64,
    /// Requests sent, including repetitions.
    pub asked: u64,
    /// Requests that this node left unanswered, because it is an older candidate, or because it
    /// runs the instance while the cluster prepares for a full shutdown. Each repetition counts.
    pub kept: u64,
    /// Received Dones that answer no open request.
    pub stale: u64,
    /// Messages of nodes that are not members, and of this node itself.
    pub strangers: u64,
}

/// The right between this node and another one. Both nodes may lack it for a while, because a Done
/// was lost or is in transit, but never do both hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Right {
    /// This node holds the right, and has no open request.
    mine: bool,
    /// Number of this node's open request. It remains, without repetition, while the right is not
    /// wanted any longer; its Done still counts.
    asked: Option<u64>,
    /// Highest number of the other node's requests that wait for the instance to stop.
    wanted: Option<u64>,
}

/// One singleton on one node.
#[derive(Clone, Debug)]
pub struct Singleton {
    me: ReplicaId,
    /// Time between two requests.
    retry: Duration,
    fault_injection: MembershipFaultInjection,
    members: Vec<SingletonMember>, // oldest first; ≤ members of the configuration and departed ones
    rights: BTreeMap<ReplicaId, Right>, // one for each other member
    running: SingletonState,
    leased: bool,
    preparing: bool, // for a full shutdown; never reset
    number: u64,     // of the newest request
    /// Time at which the open requests that are still wanted are repeated; `None` without any.
    retry_at: Option<Instant>,
    stats: SingletonStats,
}

impl Singleton {
    /// Creates the machine of incarnation `me`, which repeats requests after `retry` (recommended:
    /// 1 s; a shorter time than 1 ms counts as 1 ms). `fault_injection` injects faults in tests;
    /// otherwise pass [`MembershipFaultInjection::none`].
    #[must_use]
    pub const fn new(
        me: ReplicaId,
        retry: Duration,
        fault_injection: MembershipFaultInjection,
    ) -> Self {
        Self {
            me,
            retry: at_least_minimum(retry),
            fault_injection,
            members: Vec::new(),
            rights: BTreeMap::new(),
            running: SingletonState::No,
            leased: false,
            preparing: false,
            number: 0,
            retry_at: None,
            stats: SingletonStats { started: 0, asked: 0, kept: 0, stale: 0, strangers: 0 },
        }
    }

    /// State of the instance on this node.
    #[must_use]
    pub const fn running(&self) -> SingletonState {
        self.running
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> &SingletonStats {
        &self.stats
    }

    /// Index of a member in the order of age, 0 for the oldest; `None` if it is not a member.
    fn age(&self, id: ReplicaId) -> Option<usize> {
        self.members.iter().position(|peer| peer.id == id)
    }

    fn is_candidate(&self) -> bool {
        let candidate =
            |peer: &SingletonMember| peer.id == self.me && peer.candidacy == Candidacy::Candidate;
        self.members.iter().any(candidate)
    }

    fn is_oldest(&self) -> bool {
        oldest(&self.members) == Some(self.me)
    }

    /// Replaces the members. Rights and requests with members that stay are kept, whatever their
    /// new age or candidacy, also if this node is no member; those of removed ones are dropped,
    /// without an answer. A new right belongs to the older of the two, and to the other one if this
    /// node is not a member. After a change the `follow` of the same input repeats the open
    /// requests.
    fn on_members(&mut self, now: Now, members: Vec<SingletonMember>) {
        if self.members != members {
            self.retry_at = Some(now.mono); // a member that refused by another view may agree now
        }
        self.members = members;
        let mine = self.age(self.me).unwrap_or(usize::MAX);
        let kept = std::mem::take(&mut self.rights);
        for (age, peer) in self.members.iter().enumerate().filter(|(_, peer)| peer.id != self.me) {
            let new = Right { mine: mine < age, asked: None, wanted: None };
            self.rights.insert(peer.id, kept.get(&peer.id).copied().unwrap_or(new));
        }
    }

    /// Handles a message of a peer; one of a node that is not a member is only counted. A Done
    /// takes effect only with the number of the open request, and is counted as stale otherwise.
    /// `Identify` is answered only while the instance runs here, not while it stops. A repeated
    /// request is answered again. `HandOverInProgress`, `Here` and `Gone` have no effect.
    fn receive(
        &mut self,
        from: ReplicaId,
        message: SingletonMessage,
        out: &mut Outbox<SingletonOutput>,
    ) {
        use SingletonMessage as M;
        let Some(right) = self.rights.get_mut(&from) else {
            self.stats.strangers += 1;
            return;
        };
        match message {
            M::HandOverToMe { number } => {
                right.wanted = Some(right.wanted.map_or(number, |before| before.max(number)));
                self.asked_by(from, out);
            }
            M::HandOverDone { number } => {
                if right.asked == Some(number) || self.fault_injection.has(MembershipFault::AnyDone)
                {
                    (right.mine, right.asked) = (true, None);
                } else {
                    self.stats.stale += 1;
                }
            }
            M::Identify if self.running == SingletonState::Yes => send(from, M::Here, out),
            // For the proxy, or without effect: this node's request is repeated until it is
            // answered.
            M::HandOverInProgress { .. } | M::Identify | M::Here | M::Gone => {}
        }
    }

    /// Whether this node keeps the right requested by `from`: it is a candidate and older, whether
    /// or not `from` is a candidate. It need not hold the right.
    fn keeps(&self, from: ReplicaId) -> bool {
        self.is_candidate() && self.age(self.me) < self.age(from)
    }

    /// Answers the recorded request of `from`. An older candidate, and a node that runs the
    /// instance while the cluster prepares for a full shutdown, drops the request without an
    /// answer, and counts it as `kept`. Otherwise stops a running instance; while it stops, answers
    /// `HandOverInProgress` and keeps the request, which `stopped` answers. If none runs here,
    /// gives the right away, even if this node does not hold it.
    fn asked_by(&mut self, from: ReplicaId, out: &mut Outbox<SingletonOutput>) {
        if self.keeps(from) || (self.preparing && self.running == SingletonState::Yes) {
            self.stats.kept += 1;
            self.forget_wish(from);
            return;
        }
        if self.running == SingletonState::Yes {
            self.stop(out);
        }
        if self.running == SingletonState::Stopping
            && !self.fault_injection.has(MembershipFault::DoneBeforeStopped)
        {
            let number = self.rights.get(&from).and_then(|right| right.wanted);
            let answer = number.map(|number| SingletonMessage::HandOverInProgress { number });
            answer.into_iter().for_each(|answer| send(from, answer, out));
        } else {
            self.give(from, out);
        }
    }

    /// Drops the recorded request of `from`, if there is one.
    fn forget_wish(&mut self, from: ReplicaId) {
        if let Some(right) = self.rights.get_mut(&from) {
            right.wanted = None;
        }
    }

    /// Gives the right away by a Done, because nothing runs here; the recorded request of `to` is
    /// answered then. The own open request is dropped, so that the next one gets a new number; the
    /// `follow` of the same input may send it. Does nothing if `to` has no recorded request.
    fn give(&mut self, to: ReplicaId, out: &mut Outbox<SingletonOutput>) {
        if let Some(right) = self.rights.get_mut(&to)
            && let Some(number) = right.wanted.take()
        {
            (right.mine, right.asked) = (false, None);
            send(to, SingletonMessage::HandOverDone { number }, out);
        }
    }

    /// The instance has stopped. After an order, the state is `No`, and all waiting requests are
    /// answered as by `asked_by`, which may also drop them. Without an order, it is `Finished`, the
    /// others learn that it is gone, and no right is given away. Ignored if no instance ran here.
    fn stopped(&mut self, out: &mut Outbox<SingletonOutput>) {
        match self.running {
            SingletonState::Yes => {
                self.running = SingletonState::Finished;
                self.say_to_all(SingletonMessage::Gone, out);
            }
            SingletonState::Stopping => {
                self.running = SingletonState::No;
                let wishes = self.rights.iter().filter(|(_, right)| right.wanted.is_some());
                for id in wishes.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.asked_by(id, out);
                }
            }
            SingletonState::No | SingletonState::Finished => {}
        }
    }

    /// Orders the running instance to stop, and tells the others that it is gone. Must be called
    /// only while it runs (`Yes`), which is not checked.
    fn stop(&mut self, out: &mut Outbox<SingletonOutput>) {
        self.running = SingletonState::Stopping;
        out.push(SingletonOutput::Stop);
        self.say_to_all(SingletonMessage::Gone, out);
    }

    /// Sends a message to all other members, candidates or not.
    fn say_to_all(&self, message: SingletonMessage, out: &mut Outbox<SingletonOutput>) {
        self.rights.keys().for_each(|id| send(*id, message, out));
    }

    /// Stops, requests rights and starts the instance, as the present facts require. Runs after
    /// each input.
    ///
    /// Stops the instance without the lease, or when this node is no candidate. A finished instance
    /// becomes startable when this node is no candidate. Schedules the repetition of requests as
    /// long as a wanted one is open.
    fn follow(&mut self, now: Now, out: &mut Outbox<SingletonOutput>) {
        if self.running == SingletonState::Yes && !(self.leased && self.is_candidate()) {
            self.stop(out);
        }
        if self.running == SingletonState::Finished && !self.is_candidate() {
            self.running = SingletonState::No;
        }
        if self.may_start() {
            self.running = SingletonState::Yes;
            self.stats.started += 1;
            out.push(SingletonOutput::Start);
            self.say_to_all(SingletonMessage::Here, out);
        }
        let due = self.retry_at.is_none_or(|at| at <= now.mono);
        let waits = self.ask(due, out);
        match self.retry_at {
            _ if !waits => self.retry_at = None,
            Some(at) if at > now.mono => {}
            _ => self.retry_at = Some(now.mono + self.retry),
        }
    }

    /// Whether the instance may start here: none runs here, stops or has finished, the lease is
    /// held, no shutdown is prepared, this node is the oldest candidate, and it holds the rights
    /// towards all other members that can ever be candidates.
    fn may_start(&self) -> bool {
        let idle = self.running == SingletonState::No && self.leased && !self.preparing;
        if !idle || !self.is_oldest() {
            return false;
        }
        let asked = self.members.iter().filter(|peer| peer.candidacy != Candidacy::Never);
        let mine =
            |peer: &SingletonMember| self.rights.get(&peer.id).is_none_or(|right| right.mine);
        if self.fault_injection.has(MembershipFault::OnlyTheNextOlder) {
            let older = asked.take_while(|peer| peer.id != self.me);
            return older.last().is_none_or(mine);
        }
        let mut asked = asked;
        asked.all(mine)
    }

    /// Requests every missing right, except from older candidates, which hold it legitimately: from
    /// members that are no candidates now, and from the other candidates only if this node is the
    /// oldest. Repeats the open requests, under their numbers, if that is `due`. Returns whether a
    /// right is missing that must be requested.
    ///
    /// Does nothing unless this node is a candidate, the state is `No`, and no shutdown is
    /// prepared; open requests remain open. The lease is not needed.
    fn ask(&mut self, due: bool, out: &mut Outbox<SingletonOutput>) -> bool {
        let wants = self.is_candidate() && !self.preparing && self.running == SingletonState::No;
        let oldest = self.is_oldest();
        let mut waits = false;
        for peer in &self.members {
            let Some(right) = self.rights.get_mut(&peer.id) else { continue };
            let askable = match peer.candidacy {
                Candidacy::Candidate => oldest, // all others are younger then
                Candidacy::NotNow => true,
                Candidacy::Never => false,
            };
            if right.mine || !wants || !askable {
                continue; // an open request keeps its number: its Done may be in transit
            }
            waits = true;
            if right.asked.is_none() || due {
                if right.asked.is_none() {
                    self.number += 1;
                }
                let number = *right.asked.get_or_insert(self.number);
                self.stats.asked += 1;
                send(peer.id, SingletonMessage::HandOverToMe { number }, out);
            }
        }
        waits
    }
}

const fn at_least_minimum(retry: Duration) -> Duration {
    if retry.as_nanos() < RETRY_MIN.as_nanos() { RETRY_MIN } else { retry }
}

/// The oldest candidate of `members`, which are sorted by age; `None` if there is none.
fn oldest(members: &[SingletonMember]) -> Option<ReplicaId> {
    members.iter().find(|peer| peer.candidacy == Candidacy::Candidate).map(|peer| peer.id)
}

fn send(to: ReplicaId, message: SingletonMessage, out: &mut Outbox<SingletonOutput>) {
    out.push(SingletonOutput::Send { to, message });
}

impl Machine for Singleton {
    type Input = SingletonInput;
    type Output = SingletonOutput;

    /// Records the input, and then stops, requests rights and starts as the present facts require.
    fn handle(&mut self, now: Now, input: SingletonInput, out: &mut Outbox<SingletonOutput>) {
        match input {
            SingletonInput::Tick => {}
            SingletonInput::Members(members) => self.on_members(now, members),
            SingletonInput::Message { from, message } => self.receive(from, message, out),
            SingletonInput::LeaseHeld => self.leased = true,
            SingletonInput::LeaseOver => self.leased = false,
            SingletonInput::Stopped => self.stopped(out),
            SingletonInput::Prepare => self.preparing = true,
        }
        self.follow(now, out);
    }

    /// The next repetition of the open requests; `None` if there are none.
    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }
}

#[cfg(test)]
mod tests;
