//! The retransmission state of one peer: which pushes count as lost, and when a silent peer is
//! asked.
//!
//! Loss detection follows RACK-TLP (RFC 8985) and QUIC (RFC 9002). A push is lost, and resent at
//! once, if it was sent before another one that has arrived and has waited for longer than the
//! patience. While nothing is answered, only the oldest push is resent, with growing intervals; the
//! first answer then shows which of the others are lost
//! (docs/protocol/replication.md#a-silent-peer-is-asked-for-the-oldest-push). Every sending has a
//! number that its acknowledgement returns, so that resent pushes can be measured, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::pace::RoundTrips;
use crate::clock::Instant;

/// Number of sendings of one push that are distinguished. The 16th and all later ones share the
/// number 15 and measure no round trip.
pub(super) const SENDINGS: u64 = 16;

/// A push that was sent once.
#[derive(Clone, Copy, Debug)]
struct SentPush {
    push: u64,
    at: Instant,
    over: bool, // it was acknowledged or given up, or has moved to `again`
}

/// A push that was sent more than once.
#[derive(Clone, Debug)]
struct ResentPush {
    at: SmallVec<[Instant; 2]>, // time of each distinguished sending; < SENDINGS
    last: Instant,              // time of the latest sending
    due: Instant,
}

/// The retransmission state of one peer, by numbers of pushes.
///
/// A push is *open* here from its first sending until [`done`](Self::done): the peer lacks a part
/// of it. A *question* is a resend that must make a silent peer answer. The peer counts as *silent*
/// from the first question (`unanswered` > 0) until any acknowledgement of it arrives, or a new
/// link to it. Meanwhile no push counts as lost, and the only deadline is that of the next
/// question.
#[derive(Clone, Debug, Default)]
pub(super) struct Retransmitter {
    trips: RoundTrips,
    once: VecDeque<SentPush>, // pushes sent once, in order; ≤ 2 × open pushes + SLACK
    over: usize,              // number of `once` that are over; the front is never over
    again: BTreeMap<u64, ResentPush>, // ≤ open pushes
    due: BTreeSet<(Instant, u64)>, // deadlines of `again`
    arrived: Option<Instant>, // latest time of sending of anything known to have arrived
    unanswered: u32,          // questions since the last answer
    ask_at: Instant,          // time of the next question; only if `unanswered` > 0
    next: Option<Instant>,    // the next deadline, cached: read more often than it changes
}

/// Number of finished pushes kept in the list before it is compacted.
const SLACK: usize = 64;

/// The result of an expired deadline.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DueResends {
    /// The pushes that must be sent again, in ascending order.
    pub(super) pushes: Vec<u64>,
    /// Number of questions that the peer has not answered, including the one in `pushes`; 0 before
    /// the deadline, even for a silent peer.
    pub(super) unanswered: u32,
}

impl Retransmitter {
    /// Records that a push is sent for the first time, as sending number 0. Numbers of pushes must
    /// ascend. The peer stays silent if it is; only if no push was open, the time of the next
    /// question is set anew.
    pub(super) fn sent(&mut self, push: u64, now: Instant) {
        if self.unanswered > 0 && self.is_idle() {
            self.ask_at = now + self.trips.patience(self.unanswered);
        }
        if self.over > SLACK && self.over > self.once.len() / 2 {
            self.once.retain(|sent| !sent.over);
            self.over = 0;
        }
        self.once.push_back(SentPush { push, at: now, over: false });
        self.reckon();
    }

    /// Records that part of a push is sent again, and returns the number of this sending, at most
    /// 15. The push is due again after a patience that doubles with this number. The questions, and
    /// the time of the next one, stay.
    ///
    /// A push that is not open here (already acknowledged, or never sent to this peer) is opened
    /// again, with this sending as number 0.
    pub(super) fn sent_again(&mut self, push: u64, now: Instant) -> u64 {
        let first = self.take_once(push);
        let again = self.again.entry(push).or_insert_with(|| ResentPush {
            at: first.map_or_else(SmallVec::new, |at| smallvec![at]),
            last: now,
            due: now,
        });
        self.due.remove(&(again.due, push));
        let number = (again.at.len() as u64).min(SENDINGS - 1);
        if again.at.len() + 1 < SENDINGS as usize {
            again.at.push(now);
        }
        again.last = now;
        again.due = now + self.trips.patience(u32::try_from(number).unwrap_or(u32::MAX));
        self.due.insert((again.due, push));
        self.reckon();
        number
    }

    /// Processes an acknowledgement of one sending, and returns the round-trip time, which is noted
    /// here, too. `None` if the push is not open here or the sending has no such number; the peer
    /// is no longer silent all the same. The push stays open: the caller calls [`done`](Self::done)
    /// once the peer holds all of it.
    pub(super) fn answered(&mut self, push: u64, number: u64, now: Instant) -> Option<Duration> {
        let took = self.measure(push, number, now);
        self.reckon();
        took
    }

    /// Notes the round trip of a sending, that the peer answers, and that what was sent up to the
    /// time of this sending has arrived or is lost. Returns `None` if the sending is not known;
    /// then it only notes that the peer answers.
    fn measure(&mut self, push: u64, number: u64, now: Instant) -> Option<Duration> {
        self.unanswered = 0;
        let at = match (number, self.again.get(&push)) {
            (_, Some(again)) => *again.at.get(usize::try_from(number).ok()?)?,
            (0, None) => self.once.get(self.place(push)?)?.at,
            (_, None) => return None,
        };
        self.arrived = self.arrived.max(Some(at));
        self.trips.note(now - at);
        Some(now - at)
    }

    /// How long to wait for an answer after this many questions: the patience of this peer, doubled
    /// for each, at most 2 s.
    pub(super) fn patience(&self, tries: u32) -> Duration {
        self.trips.patience(tries)
    }

    /// Removes a push, because the peer has acknowledged it or it is left to anti-entropy. A silent
    /// peer stays silent. Does nothing if the push is not open here.
    pub(super) fn done(&mut self, push: u64) {
        if let Some(again) = self.again.remove(&push) {
            self.due.remove(&(again.due, push));
        }
        self.take_once(push);
        self.reckon();
    }

    /// Treats the peer as one that answers again, because a new link to it came up. The deadlines
    /// of its open pushes apply again; round trips and patience stay.
    pub(super) fn renewed(&mut self) {
        self.unanswered = 0;
        self.reckon();
    }

    /// The index in `once` of a push that was sent exactly once and is open; otherwise `None`.
    fn place(&self, push: u64) -> Option<usize> {
        if self.once.front()?.push == push {
            return Some(0);
        }
        let at = self.once.binary_search_by_key(&push, |sent| sent.push).ok()?;
        (!self.once[at].over).then_some(at)
    }

    /// Removes a push from the list of those sent once, and returns when it was sent; `None` if it
    /// is not in that list. Its entry stays, marked as over, until it is the first of the list or
    /// [`sent`](Self::sent) compacts the list.
    fn take_once(&mut self, push: u64) -> Option<Instant> {
        let place = self.place(push)?;
        let sent = &mut self.once[place];
        sent.over = true;
        let at = sent.at;
        self.over += 1;
        while self.once.front().is_some_and(|sent| sent.over) {
            self.once.pop_front();
            self.over -= 1;
        }
        Some(at)
    }

    /// Whether no push is open here. Then nothing is due, also from a silent peer.
    fn is_idle(&self) -> bool {
        self.once.is_empty() && self.again.is_empty()
    }

    /// The numbers of all open pushes, in ascending order.
    pub(super) fn owed(&self) -> BTreeSet<u64> {
        let once = self.once.iter().filter(|sent| !sent.over).map(|sent| sent.push);
        once.chain(self.again.keys().copied()).collect()
    }

    /// When [`take_due`](Self::take_due) has something to resend; `None` if no push is open.
    #[inline]
    pub(super) const fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Recomputes the next deadline: that of the next question if the peer is silent, otherwise the
    /// earliest one of a push. Must be called after every change.
    fn reckon(&mut self) {
        self.next = if self.is_idle() {
            None
        } else if self.unanswered > 0 {
            Some(self.ask_at)
        } else {
            let once = self.once.front().map(|sent| sent.at + self.trips.patience(0));
            let again = self.due.first().map(|(at, _)| *at);
            [once, again].into_iter().flatten().min()
        };
    }

    /// Returns the pushes that must be resent now. Those are, of the pushes that have waited for
    /// their patience, the lost ones (something sent at the same time or later has arrived) and the
    /// oldest of the others, as a question. Of a silent peer only the oldest open push is resent,
    /// whenever it was sent. Empty before the deadline.
    ///
    /// A question is counted here, and sets the time of the next one. The caller must call
    /// [`sent_again`](Self::sent_again) or [`done`](Self::done) for each, otherwise it stays due.
    pub(super) fn take_due(&mut self, now: Instant) -> DueResends {
        if self.due().is_none_or(|at| at > now) {
            return DueResends::default();
        }
        let (mut pushes, mut oldest) = (Vec::new(), None);
        if self.unanswered == 0 {
            let patience = self.trips.patience(0);
            let once = self.once.iter().take_while(|sent| sent.at + patience <= now);
            let once = once.filter(|sent| !sent.over).map(|sent| (sent.push, sent.at));
            let again = self.due.iter().take_while(|(due, _)| *due <= now);
            let last = |push: &u64| self.again.get(push).map(|again| again.last);
            let again = again.filter_map(|(_, push)| Some((*push, last(push)?)));
            for (push, at) in once.chain(again) {
                if self.arrived.is_some_and(|arrived| at <= arrived) {
                    pushes.push(push);
                } else {
                    oldest = Some(oldest.map_or(push, |oldest: u64| oldest.min(push)));
                }
            }
        } else {
            oldest = self.oldest();
        }
        if let Some(oldest) = oldest {
            self.unanswered += 1;
            self.ask_at = now + self.trips.patience(self.unanswered);
            pushes.push(oldest);
        }
        pushes.sort_unstable();
        self.reckon();
        DueResends { pushes, unanswered: self.unanswered }
    }

    /// The open push with the lowest number; `None` if there is none.
    fn oldest(&self) -> Option<u64> {
        let once = self.once.front().map(|sent| sent.push);
        let again = self.again.keys().next().copied();
        [once, again].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// A peer whose answers took 10 ms: patience 20 ms.
    fn quick() -> Retransmitter {
        let mut retransmitter = Retransmitter::default();
        retransmitter.sent(1, at(0));
        assert_eq!(retransmitter.answered(1, 0, at(10)), Some(Duration::from_millis(10)));
        retransmitter.done(1);
        assert_eq!(retransmitter.due(), None);
        retransmitter
    }

    #[test]
    fn late_push_sent_before_an_arrived_one_is_lost() {
        let mut retransmitter = quick();
        retransmitter.sent(2, at(100));
        retransmitter.sent(3, at(101));
        retransmitter.sent(4, at(102));
        retransmitter.answered(3, 0, at(111));
        retransmitter.done(3);
        assert_eq!(retransmitter.due(), Some(at(120)));
        assert_eq!(retransmitter.take_due(at(119)), DueResends::default());
        assert_eq!(retransmitter.take_due(at(120)), DueResends { pushes: vec![2], unanswered: 0 });
        assert_eq!(retransmitter.sent_again(2, at(120)), 1);
        assert_eq!(retransmitter.due(), Some(at(122)), "push 4 is still not acknowledged");
    }

    #[test]
    fn silent_peer_is_asked_for_the_oldest_with_backoff() {
        let mut retransmitter = quick();
        (2..1_000).for_each(|push| retransmitter.sent(push, at(100)));
        let (mut asked, mut when) = (0, Vec::new());
        for now in (100..10_000).map(at) {
            let due = retransmitter.take_due(now);
            for push in due.pushes {
                assert_eq!(push, 2);
                retransmitter.sent_again(push, now);
                asked += 1;
                assert_eq!(due.unanswered, asked);
                when.push(now);
            }
        }
        assert_eq!(when[..5], [120, 160, 240, 400, 720].map(at));
        assert!(asked < 12, "intervals grow up to 2 s, so there are few questions: {asked}");
    }

    #[test]
    fn first_answer_after_silence_resends_all_lost_at_once() {
        let mut retransmitter = quick();
        (2..100).for_each(|push| retransmitter.sent(push, at(100)));
        assert_eq!(retransmitter.take_due(at(120)).pushes, [2]);
        assert_eq!(retransmitter.sent_again(2, at(120)), 1);
        retransmitter.sent(100, at(125));
        retransmitter.answered(2, 1, at(130));
        retransmitter.done(2);
        assert_eq!(retransmitter.due(), Some(at(120)), "the deadline has passed already");
        let due = retransmitter.take_due(at(130));
        assert_eq!(due, DueResends { pushes: (3..100).collect(), unanswered: 0 });
    }

    #[test]
    fn round_trips_longer_than_the_patience_are_learned() {
        let mut retransmitter = quick();
        let mut again = 0;
        // One push every 100 ms, each sending answered after 500 ms.
        let mut answers: BTreeSet<(Instant, u64, u64)> = BTreeSet::new();
        for millis in 100..20_000 {
            let now = at(millis);
            while let Some((when, push, number)) = answers.first().copied() {
                if when > now {
                    break;
                }
                answers.pop_first();
                retransmitter.answered(push, number, now);
                retransmitter.done(push);
            }
            for push in retransmitter.take_due(now).pushes {
                again += 1;
                answers.insert((at(millis + 500), push, retransmitter.sent_again(push, now)));
            }
            if millis.is_multiple_of(100) {
                retransmitter.sent(millis, now);
                answers.insert((at(millis + 500), millis, 0));
            }
        }
        assert!(again < 10, "{again} resends of 200 pushes");
    }

    #[test]
    fn repeatedly_lost_push_is_resent_with_backoff() {
        let mut retransmitter = quick();
        retransmitter.sent(2, at(100));
        let mut again = Vec::new();
        for millis in 100..3_000 {
            let now = at(millis);
            // All but one push are answered.
            let push = 1_000 + millis;
            retransmitter.sent(push, now);
            retransmitter.answered(push, 0, now + Duration::from_millis(1));
            retransmitter.done(push);
            for push in retransmitter.take_due(now).pushes {
                retransmitter.sent_again(push, now);
                again.push(millis);
            }
        }
        assert_eq!(again.len(), 9, "{again:?}");
    }

    #[test]
    fn loss_is_judged_by_the_latest_of_many_sendings() {
        let mut retransmitter = quick();
        retransmitter.sent(2, at(100));
        for sending in 1..SENDINGS {
            assert_eq!(retransmitter.sent_again(2, at(100 + 1_000 * sending)), sending);
        }
        // Sent before the latest sending of push 2, but after the one before.
        retransmitter.sent(3, at(14_600));
        retransmitter.answered(3, 0, at(14_610));
        retransmitter.done(3);
        let due = retransmitter.take_due(at(60_000));
        assert_eq!(due, DueResends { pushes: vec![2], unanswered: 1 }, "a question, not a loss");
    }

    #[test]
    fn acknowledgement_of_unknown_sending_measures_nothing() {
        let mut retransmitter = quick();
        retransmitter.sent(2, at(100));
        assert_eq!(retransmitter.answered(9, 0, at(110)), None);
        assert_eq!(retransmitter.answered(2, 7, at(110)), None);
        retransmitter.sent_again(2, at(110));
        assert_eq!(retransmitter.answered(2, 2, at(120)), None);
        assert_eq!(retransmitter.answered(2, u64::MAX, at(120)), None);
        assert_eq!(retransmitter.answered(2, 0, at(120)), Some(Duration::from_millis(20)));
    }

    #[test]
    fn list_of_sent_pushes_is_compacted() {
        let mut retransmitter = quick();
        retransmitter.sent(2, at(100));
        for push in 3..10_000 {
            retransmitter.sent(push, at(100));
            retransmitter.done(push);
            assert!(retransmitter.once.len() <= 2 * SLACK + 4);
        }
        assert_eq!(retransmitter.owed(), BTreeSet::from([2]));
    }
}
