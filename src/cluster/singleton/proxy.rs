//! The singleton proxy: finds the instance from any node, and buffers messages while it moves
//! (docs/protocol/membership.md#proxy-buffers-while-the-singleton-moves).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};

use super::{Candidacy, SingletonMember, SingletonMessage, at_least_minimum, oldest};

/// Input of a [`Proxy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyInput {
    /// A deadline may have passed.
    Tick,
    /// The members, oldest first, as for [`Singleton`](super::Singleton). They replace all former
    /// ones. A target that is still a candidate is kept, even if another one is now the oldest.
    Members(Vec<SingletonMember>),
    /// A message of a user for the singleton: delivered to the target, or buffered without one.
    Send(Bytes),
    /// A message about the location of the instance; other messages are for the machine and have no
    /// effect here. `Here` counts only from a candidate, `Gone` only from the present target.
    Message {
        /// Incarnation of the sender.
        from: ReplicaId,
        /// Either `Here` or `Gone`.
        message: SingletonMessage,
    },
    /// A node that the proxy considered the instance's node denies it: a `Gone`, or a `Here` of
    /// another node, was lost. Ignored if it is the oldest candidate: the instance is just starting
    /// or stopping there.
    Denied {
        /// Incarnation of the denying node.
        from: ReplicaId,
    },
    /// A delivered message was returned: the instance is not there. Returned messages keep their
    /// order, and precede the buffered ones. If the instance is known to be on another node, the
    /// message is delivered there at once; if the target was the returning node, it is lost.
    Returned {
        /// Incarnation of the returning node.
        from: ReplicaId,
        /// The message that was returned.
        payload: Bytes,
    },
}

/// Output of a [`Proxy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyOutput {
    /// Send [`SingletonMessage::Identify`] to a node.
    Identify {
        /// Incarnation of the receiver.
        to: ReplicaId,
    },
    /// Deliver a message to the instance on this node.
    Deliver {
        /// The node of the instance.
        to: ReplicaId,
        /// The message to deliver.
        payload: Bytes,
    },
    /// The buffer was full and the oldest message, first of the returned ones, was dropped. It is
    /// counted.
    Dropped {
        /// The message that was dropped.
        payload: Bytes,
    },
}

/// Counters of a [`Proxy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    /// Messages ordered to be delivered to the instance's node; a returned message counts again.
    pub delivered: u64,
    /// Messages dropped because the buffer was full.
    pub dropped: u64,
    /// Number of returned messages.
    pub returned: u64,
}

/// The singleton proxy of one node.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Maximum number of buffered messages, the returned ones included; recommended: 1,000. With 0,
    /// messages are dropped while no instance is known.
    buffer_size: usize,
    retry: Duration,
    members: Vec<SingletonMember>,
    /// The candidate on which the instance runs, as far as known. Both buffers are empty then.
    target: Option<ReplicaId>,
    returned: VecDeque<Bytes>, // with `buffer` ≤ buffer_size
    buffer: VecDeque<Bytes>,
    /// Time of the next `Identify`, unless the target is known; `None` without a candidate.
    ask_at: Option<Instant>,
    stats: ProxyStats,
}

impl Proxy {
    /// Creates a proxy without members, which repeats requests after `retry` (recommended: 1 s; a
    /// shorter time than 1 ms counts as 1 ms).
    #[must_use]
    pub const fn new(buffer_size: usize, retry: Duration) -> Self {
        Self {
            buffer_size,
            retry: at_least_minimum(retry),
            members: Vec::new(),
            target: None,
            returned: VecDeque::new(),
            buffer: VecDeque::new(),
            ask_at: None,
            stats: ProxyStats { delivered: 0, dropped: 0, returned: 0 },
        }
    }

    /// The node of the instance, if known.
    #[must_use]
    pub const fn target(&self) -> Option<ReplicaId> {
        self.target
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> &ProxyStats {
        &self.stats
    }

    /// Whether a node is a member and a candidate now.
    fn candidate(&self, id: ReplicaId) -> bool {
        self.members.iter().any(|peer| peer.id == id && peer.candidacy == Candidacy::Candidate)
    }

    /// The instance runs on the node `at`: delivers all buffered messages there, the returned ones
    /// first, and stops asking. Replaces another target. Ignored if the node is not a candidate; it
    /// need not be the oldest one. No effect if it is the target already.
    fn found(&mut self, at: ReplicaId, out: &mut Outbox<ProxyOutput>) {
        if !self.candidate(at) {
            return; // it leaves, or this view is outdated: it is asked again
        }
        self.target = Some(at);
        self.ask_at = None;
        let waiting: Vec<_> = self.returned.drain(..).chain(self.buffer.drain(..)).collect();
        waiting.into_iter().for_each(|payload| self.deliver(at, payload, out));
    }

    /// Orders a delivery and counts it. `to` need not be the target.
    fn deliver(&mut self, to: ReplicaId, payload: Bytes, out: &mut Outbox<ProxyOutput>) {
        self.stats.delivered += 1;
        out.push(ProxyOutput::Deliver { to, payload });
    }

    /// The instance no longer runs on the node `at`; has an effect only on the present target. The
    /// `search` of the same input then asks anew.
    fn lost(&mut self, at: ReplicaId) {
        if self.target == Some(at) {
            self.target = None;
        }
    }

    /// Drops the oldest messages, first the returned ones, until both buffers together hold at most
    /// `buffer_size`. With an output and counted for each, so a returned message may be dropped in
    /// favour of a newer one.
    fn make_room(&mut self, out: &mut Outbox<ProxyOutput>) {
        while self.returned.len() + self.buffer.len() > self.buffer_size {
            let oldest = self.returned.pop_front().or_else(|| self.buffer.pop_front());
            if let Some(payload) = oldest {
                self.stats.dropped += 1;
                out.push(ProxyOutput::Dropped { payload });
            }
        }
    }

    /// Asks the oldest candidate while the target is unknown: at once if `anew`, because the target
    /// was lost or the oldest candidate changed, then after each `retry`. Without a candidate, it
    /// waits for one.
    fn search(&mut self, now: Now, anew: bool, out: &mut Outbox<ProxyOutput>) {
        if self.target.is_some() {
            return;
        }
        if anew || self.ask_at.is_none_or(|at| at <= now.mono) {
            let asked = oldest(&self.members);
            self.ask_at = asked.map(|_| now.mono + self.retry);
            out.extend(asked.map(|to| ProxyOutput::Identify { to }));
        }
    }
}

impl Machine for Proxy {
    type Input = ProxyInput;
    type Output = ProxyOutput;

    /// Handles one input, then drops messages beyond the buffer's size, then asks for the instance
    /// if that is due. A target that is no candidate among new members is lost, and the oldest
    /// candidate is asked in the same call. A message is never delivered before a `Here`.
    fn handle(&mut self, now: Now, input: ProxyInput, out: &mut Outbox<ProxyOutput>) {
        let (before, asked) = (self.target, oldest(&self.members));
        match input {
            ProxyInput::Members(members) => {
                self.members = members;
                self.target = self.target.filter(|at| self.candidate(*at));
            }
            ProxyInput::Send(payload) => match self.target {
                Some(at) => self.deliver(at, payload, out),
                None => self.buffer.push_back(payload),
            },
            ProxyInput::Message { from, message: SingletonMessage::Here } => self.found(from, out),
            ProxyInput::Message { from, message: SingletonMessage::Gone } => self.lost(from),
            ProxyInput::Denied { from } if asked != Some(from) => self.lost(from),
            ProxyInput::Tick | ProxyInput::Message { .. } | ProxyInput::Denied { .. } => {}
            ProxyInput::Returned { from, payload } => {
                self.stats.returned += 1;
                self.lost(from);
                match self.target {
                    Some(at) => self.deliver(at, payload, out), // the instance has moved
                    None => self.returned.push_back(payload),
                }
            }
        }
        self.make_room(out);
        let anew = before != self.target || asked != oldest(&self.members);
        self.search(now, anew, out);
    }

    /// The next `Identify`; `None` while the target is known, and before the first input.
    fn next_deadline(&self) -> Option<Instant> {
        self.ask_at.filter(|_| self.target.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Now {
        let mono = Instant::from_nanos(seconds * 1_000_000_000);
        Now { mono, ..Now::default() }
    }

    const fn id(id: u64) -> ReplicaId {
        ReplicaId::new(id)
    }

    fn peers(candidacies: &[(u64, Candidacy)]) -> Vec<SingletonMember> {
        candidacies
            .iter()
            .map(|(of, candidacy)| SingletonMember { id: id(*of), candidacy: *candidacy })
            .collect()
    }

    struct TestProbe {
        proxy: Proxy,
        out: Vec<ProxyOutput>,
    }

    impl TestProbe {
        fn new(buffer_size: usize) -> Self {
            let proxy = Proxy::new(buffer_size, Duration::from_secs(1));
            let mut probe = Self { proxy, out: Vec::new() };
            probe.members(&[(1, Candidacy::Candidate), (2, Candidacy::Candidate)]);
            probe
        }

        fn tell(&mut self, now: Now, input: ProxyInput) {
            let mut out = Outbox::new();
            self.proxy.handle(now, input, &mut out);
            self.out.extend(out.drain());
        }

        fn members(&mut self, candidacies: &[(u64, Candidacy)]) {
            self.tell(s(0), ProxyInput::Members(peers(candidacies)));
        }

        fn send(&mut self, text: &'static str) {
            self.tell(s(0), ProxyInput::Send(Bytes::from_static(text.as_bytes())));
        }

        fn says(&mut self, from: u64, message: SingletonMessage) {
            self.tell(s(0), ProxyInput::Message { from: id(from), message });
        }

        fn returned(&mut self, from: u64, text: &'static str) {
            let payload = Bytes::from_static(text.as_bytes());
            self.tell(s(0), ProxyInput::Returned { from: id(from), payload });
        }

        /// Messages delivered to a node, in order.
        fn delivered(&self, to: u64) -> Vec<&[u8]> {
            let to = id(to);
            let payload = |output| match output {
                &ProxyOutput::Deliver { to: at, ref payload } if at == to => Some(payload.as_ref()),
                _ => None,
            };
            self.out.iter().filter_map(payload).collect()
        }

        fn identified(&self) -> Vec<ReplicaId> {
            let to = |output: &ProxyOutput| match output {
                ProxyOutput::Identify { to } => Some(*to),
                _ => None,
            };
            self.out.iter().filter_map(to).collect()
        }
    }

    #[test]
    fn messages_wait_for_the_instance_in_order() {
        let mut probe = TestProbe::new(10);
        probe.send("a");
        probe.send("b");
        assert!(probe.delivered(1).is_empty());
        probe.says(1, SingletonMessage::Here);
        probe.send("c");
        assert_eq!(probe.delivered(1), [b"a", b"b", b"c"]);
        assert_eq!(probe.proxy.stats().delivered, 3);
    }

    #[test]
    fn oldest_candidate_is_asked_until_it_answers() {
        let mut probe = TestProbe::new(10);
        assert_eq!(probe.identified(), [id(1)]);
        probe.tell(s(0), ProxyInput::Tick);
        assert_eq!(probe.identified().len(), 1);
        assert_eq!(probe.proxy.next_deadline(), Some(s(1).mono));
        probe.tell(s(1), ProxyInput::Tick);
        assert_eq!(probe.identified().len(), 2);
        probe.says(1, SingletonMessage::Here);
        assert_eq!(probe.proxy.next_deadline(), None);
    }

    #[test]
    fn proxy_without_a_candidate_waits_without_a_timer() {
        let mut probe = TestProbe::new(10);
        probe.members(&[(1, Candidacy::NotNow)]);
        assert_eq!(probe.proxy.next_deadline(), None);
        probe.members(&[(1, Candidacy::NotNow), (2, Candidacy::Candidate)]);
        assert_eq!(probe.identified(), [id(1), id(2)]);
        assert_eq!(probe.proxy.next_deadline(), Some(s(1).mono));
    }

    #[test]
    fn retry_of_zero_makes_no_busy_loop() {
        let mut proxy = Proxy::new(10, Duration::ZERO);
        let members = peers(&[(1, Candidacy::Candidate)]);
        proxy.handle(s(0), ProxyInput::Members(members), &mut Outbox::new());
        assert!(proxy.next_deadline() > Some(s(0).mono));
    }

    #[test]
    fn full_buffer_drops_the_oldest_message() {
        let mut probe = TestProbe::new(2);
        for text in ["a", "b", "c"] {
            probe.send(text);
        }
        let dropped = ProxyOutput::Dropped { payload: Bytes::from_static(b"a") };
        assert!(probe.out.contains(&dropped));
        probe.says(1, SingletonMessage::Here);
        assert_eq!((probe.delivered(1), probe.proxy.stats().dropped), (vec![&b"b"[..], b"c"], 1));
    }

    #[test]
    fn buffer_of_size_zero_drops_messages() {
        let mut probe = TestProbe::new(0);
        probe.send("a");
        assert_eq!(probe.proxy.stats().dropped, 1);
        probe.says(1, SingletonMessage::Here);
        probe.send("b");
        assert_eq!((probe.delivered(1), probe.proxy.stats().dropped), (vec![&b"b"[..]], 1));
    }

    #[test]
    fn next_candidate_is_asked_when_the_oldest_leaves() {
        let mut probe = TestProbe::new(10);
        probe.says(1, SingletonMessage::Here);
        probe.members(&[(1, Candidacy::NotNow), (2, Candidacy::Candidate)]);
        probe.send("a");
        assert_eq!(probe.identified(), [id(1), id(2)]);
        probe.says(1, SingletonMessage::Here);
        assert!(probe.delivered(1).is_empty(), "a leaving node is not trusted");
        probe.says(2, SingletonMessage::Here);
        assert_eq!(probe.delivered(2), [b"a"]);
    }

    #[test]
    fn denial_is_accepted_except_from_the_oldest() {
        let mut probe = TestProbe::new(10);
        probe.says(2, SingletonMessage::Here);
        probe.tell(s(0), ProxyInput::Denied { from: id(1) });
        assert_eq!(probe.proxy.target(), Some(id(2)), "it was not the target");
        probe.tell(s(0), ProxyInput::Denied { from: id(2) });
        assert_eq!((probe.proxy.target(), probe.identified()), (None, vec![id(1), id(1)]));
        probe.says(1, SingletonMessage::Here);
        probe.tell(s(0), ProxyInput::Denied { from: id(1) });
        assert_eq!((probe.proxy.target(), probe.identified().len()), (Some(id(1)), 2));
    }

    #[test]
    fn stopped_instance_gets_no_messages() {
        let mut probe = TestProbe::new(10);
        probe.says(1, SingletonMessage::Here);
        probe.says(2, SingletonMessage::Gone);
        assert_eq!(probe.proxy.target(), Some(id(1)), "another node's Gone has no effect");
        probe.says(1, SingletonMessage::Gone);
        probe.send("a");
        assert!(probe.delivered(1).is_empty());
    }

    #[test]
    fn returned_messages_precede_later_ones() {
        let mut probe = TestProbe::new(10);
        probe.says(1, SingletonMessage::Here);
        for text in ["a", "b"] {
            probe.send(text);
        }
        probe.returned(1, "a");
        probe.send("c");
        probe.returned(1, "b");
        probe.says(2, SingletonMessage::Here);
        assert_eq!(probe.delivered(2), [b"a", b"b", b"c"]);
        assert_eq!(probe.proxy.stats().returned, 2);
    }

    #[test]
    fn non_member_cannot_claim_the_instance() {
        let mut probe = TestProbe::new(10);
        probe.says(9, SingletonMessage::Here);
        assert_eq!(probe.proxy.target(), None);
    }
}
