//! What is on its way to one peer: when it counts as lost, and when a silent peer is asked.
//!
//! As TCP's RACK-TLP (RFC 8985) and QUIC (RFC 9002) do it: what was sent before something that has
//! arrived, and waits for longer than answers take, is lost and goes again at once. While nothing
//! arrives only the oldest sending is repeated, ever more rarely; the first answer tells which of
//! the rest are lost. Every sending has a number that its acknowledgement brings back, so that
//! round trips are measured on what was sent again too. Knows ids of pushes, not what they bring.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::pace::RoundTrips;
use crate::clock::Instant;

/// Sendings of one push that are told apart; later ones bear the last number and measure nothing.
pub(super) const SENDINGS: u64 = 16;

/// A push that was sent once.
#[derive(Clone, Copy, Debug)]
struct Sent {
    push: u64,
    at: Instant,
    over: bool, // it was acknowledged, or is sent again
}

/// A push that was sent more than once.
#[derive(Clone, Debug)]
struct Again {
    at: SmallVec<[Instant; 2]>, // of each sending ≤ SENDINGS
    due: Instant,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    trips: RoundTrips,
    once: VecDeque<Sent>, // in their order ≤ 2 × open pushes + SLACK, of which:
    over: usize,
    again: BTreeMap<u64, Again>,   // ≤ open pushes
    due: BTreeSet<(Instant, u64)>, // of `again`
    arrived: Option<Instant>,      // when the latest of what is known to have arrived was sent
    unanswered: u32,               // questions since the last answer
    ask_at: Instant,               // while there are such
    next: Option<Instant>,         // when something is due: asked for far more often than it moves
}

/// Acknowledged pushes that may stand between others before the list is tidied.
const SLACK: usize = 64;

/// What a line's time has come for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Due {
    /// To be sent again.
    pub(super) pushes: Vec<u64>,
    /// The peer has not answered so many questions.
    pub(super) unanswered: u32,
}

impl Line {
    /// A push leaves for the first time.
    pub(super) fn sent(&mut self, push: u64, now: Instant) {
        if self.unanswered > 0 && self.is_idle() {
            self.ask_at = now + self.trips.patience(self.unanswered);
        }
        if self.over > SLACK && self.over > self.once.len() / 2 {
            self.once.retain(|sent| !sent.over);
            self.over = 0;
        }
        self.once.push_back(Sent { push, at: now, over: false });
        self.reckon();
    }

    /// Something of a push leaves once more; the number of this sending.
    pub(super) fn sent_again(&mut self, push: u64, now: Instant) -> u64 {
        let first = self.take_once(push);
        let again = self.again.entry(push).or_insert_with(|| Again {
            at: first.map_or_else(SmallVec::new, |at| smallvec![at]),
            due: now,
        });
        self.due.remove(&(again.due, push));
        let number = (again.at.len() as u64).min(SENDINGS - 1);
        if again.at.len() + 1 < SENDINGS as usize {
            again.at.push(now);
        }
        again.due = now + self.trips.patience(u32::try_from(number).unwrap_or(u32::MAX));
        self.due.insert((again.due, push));
        self.reckon();
        number
    }

    /// An acknowledgement of one sending: how long it took, if that is known.
    pub(super) fn answered(&mut self, push: u64, number: u64, now: Instant) -> Option<Duration> {
        let took = self.measure(push, number, now);
        self.reckon();
        took
    }

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

    /// How long an answer is waited for after so many questions.
    pub(super) fn patience(&self, tries: u32) -> Duration {
        self.trips.patience(tries)
    }

    /// Nothing of a push is owed any more.
    pub(super) fn done(&mut self, push: u64) {
        if let Some(again) = self.again.remove(&push) {
            self.due.remove(&(again.due, push));
        }
        self.take_once(push);
        self.reckon();
    }

    /// The peer may have lost everything: it is asked anew, as one that answers.
    pub(super) fn renewed(&mut self) {
        self.unanswered = 0;
        self.reckon();
    }

    fn place(&self, push: u64) -> Option<usize> {
        if self.once.front()?.push == push {
            return Some(0);
        }
        let at = self.once.binary_search_by_key(&push, |sent| sent.push).ok()?;
        (!self.once[at].over).then_some(at)
    }

    /// Takes a push off the list of those sent once; when that was.
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

    fn is_idle(&self) -> bool {
        self.once.is_empty() && self.again.is_empty()
    }

    /// Everything that is owed, the oldest first.
    pub(super) fn owed(&self) -> BTreeSet<u64> {
        let once = self.once.iter().filter(|sent| !sent.over).map(|sent| sent.push);
        once.chain(self.again.keys().copied()).collect()
    }

    /// When something is lost or the peer is to be asked.
    #[inline]
    pub(super) const fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Finds out anew what is due next, after every change.
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

    /// What goes again now.
    pub(super) fn take_due(&mut self, now: Instant) -> Due {
        if self.due().is_none_or(|at| at > now) {
            return Due::default();
        }
        let (mut pushes, mut oldest) = (Vec::new(), None);
        if self.unanswered == 0 {
            let patience = self.trips.patience(0);
            let once = self.once.iter().take_while(|sent| sent.at + patience <= now);
            let once = once.filter(|sent| !sent.over).map(|sent| (sent.push, sent.at));
            let again = self.due.iter().take_while(|(due, _)| *due <= now);
            let last = |push: &u64| self.again.get(push).and_then(|again| again.at.last().copied());
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
        Due { pushes, unanswered: self.unanswered }
    }

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

    /// A line whose answers took 10 ms: patience 20 ms.
    fn quick() -> Line {
        let mut line = Line::default();
        line.sent(1, at(0));
        assert_eq!(line.answered(1, 0, at(10)), Some(Duration::from_millis(10)));
        line.done(1);
        assert_eq!(line.due(), None);
        line
    }

    #[test]
    fn what_was_sent_before_something_that_arrived_is_lost_when_it_is_late() {
        let mut line = quick();
        line.sent(2, at(100));
        line.sent(3, at(101));
        line.sent(4, at(102));
        line.answered(3, 0, at(111));
        line.done(3);
        assert_eq!(line.due(), Some(at(120)));
        assert_eq!(line.take_due(at(119)), Due::default());
        assert_eq!(line.take_due(at(120)), Due { pushes: vec![2], unanswered: 0 });
        assert_eq!(line.sent_again(2, at(120)), 1);
        assert_eq!(line.due(), Some(at(122)), "4 is owed still");
    }

    #[test]
    fn a_silent_peer_is_asked_for_the_oldest_only_and_ever_more_rarely() {
        let mut line = quick();
        (2..1_000).for_each(|push| line.sent(push, at(100)));
        let (mut asked, mut when) = (0, Vec::new());
        for now in (100..10_000).map(at) {
            let due = line.take_due(now);
            for push in due.pushes {
                assert_eq!(push, 2);
                line.sent_again(push, now);
                asked += 1;
                assert_eq!(due.unanswered, asked);
                when.push(now);
            }
        }
        assert_eq!(when[..5], [120, 160, 240, 400, 720].map(at));
        assert!(asked < 12, "2 s apart at most: {asked}");
    }

    #[test]
    fn the_first_answer_after_silence_brings_all_that_was_lost_at_once() {
        let mut line = quick();
        (2..100).for_each(|push| line.sent(push, at(100)));
        assert_eq!(line.take_due(at(120)).pushes, [2]);
        assert_eq!(line.sent_again(2, at(120)), 1);
        line.sent(100, at(125));
        line.answered(2, 1, at(130));
        line.done(2);
        assert_eq!(line.due(), Some(at(120)), "at once");
        let due = line.take_due(at(130));
        assert_eq!(due, Due { pushes: (3..100).collect(), unanswered: 0 });
    }

    #[test]
    fn a_round_trip_above_all_patience_is_learned_from_what_was_sent_again() {
        let mut line = quick();
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
                line.answered(push, number, now);
                line.done(push);
            }
            for push in line.take_due(now).pushes {
                again += 1;
                answers.insert((at(millis + 500), push, line.sent_again(push, now)));
            }
            if millis.is_multiple_of(100) {
                line.sent(millis, now);
                answers.insert((at(millis + 500), millis, 0));
            }
        }
        assert!(again < 10, "{again} resends of 200 pushes");
    }

    #[test]
    fn what_is_sent_again_in_vain_goes_ever_more_rarely() {
        let mut line = quick();
        line.sent(2, at(100));
        let mut again = Vec::new();
        for millis in 100..3_000 {
            let now = at(millis);
            // All but one push are answered.
            let push = 1_000 + millis;
            line.sent(push, now);
            line.answered(push, 0, now + Duration::from_millis(1));
            line.done(push);
            for push in line.take_due(now).pushes {
                line.sent_again(push, now);
                again.push(millis);
            }
        }
        assert_eq!(again.len(), 9, "{again:?}");
    }

    #[test]
    fn an_acknowledgement_of_nothing_measures_nothing() {
        let mut line = quick();
        line.sent(2, at(100));
        assert_eq!(line.answered(9, 0, at(110)), None);
        assert_eq!(line.answered(2, 7, at(110)), None);
        line.sent_again(2, at(110));
        assert_eq!(line.answered(2, 2, at(120)), None);
        assert_eq!(line.answered(2, u64::MAX, at(120)), None);
        assert_eq!(line.answered(2, 0, at(120)), Some(Duration::from_millis(20)));
    }

    #[test]
    fn the_list_holds_little_more_than_what_is_owed() {
        let mut line = quick();
        line.sent(2, at(100));
        for push in 3..10_000 {
            line.sent(push, at(100));
            line.done(push);
            assert!(line.once.len() <= 2 * SLACK + 4);
        }
        assert_eq!(line.owed(), BTreeSet::from([2]));
    }
}
