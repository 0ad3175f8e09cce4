//! Notices for operators, each kind at most once per minute, whatever its content: a notice about a
//! second node within that minute is dropped. Notices about seeds that stay silent are repeated at
//! growing intervals, because an operator may have accepted that a seed is gone.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::log_throttle::GrowingThrottle;

use super::MembershipOutbox;
use super::port::{MembershipOutput, OperatorNotice};
use crate::cluster::member::Address;

/// A cause that has not recurred for this long has ended, and is reported anew when it recurs. With
/// default settings membership raises a notice about a silent seed at least every 40 s.
const ENDED_AFTER: Duration = Duration::from_secs(120);

/// State of each kind of notice.
#[derive(Debug, Default)]
pub(super) struct Notices {
    kinds: BTreeMap<&'static str, KindState>, // ≤ kinds of notices
}

/// State of one kind of notice, from its first notice on.
#[derive(Debug)]
struct KindState {
    throttle: GrowingThrottle,
    /// Time at which such a notice was last raised, sent or not.
    raised_at: Instant,
    /// Seeds that were silent then.
    silent: Vec<Address>, // ≤ asked addresses
}

impl Notices {
    /// Sends the notice, or drops it if the last one of its kind was sent less than a minute ago.
    ///
    /// For `SeedsSilent` and `NoSeedInside` the pause doubles with each notice about the same
    /// cause, up to an hour. The cause is new if no such notice was raised for [`ENDED_AFTER`], or
    /// if a seed is silent that was not silent before; the pause is a minute again then, and the
    /// notice still waits for it.
    pub(super) fn say(&mut self, now: Instant, notice: OperatorNotice, out: &mut MembershipOutbox) {
        let silent = silent(&notice);
        match self.kinds.entry(kind(&notice)) {
            Entry::Vacant(vacant) => {
                let (throttle, silent) = (GrowingThrottle::with_first(now), silent.to_vec());
                vacant.insert(KindState { throttle, raised_at: now, silent });
            }
            Entry::Occupied(mut occupied) => {
                let state = occupied.get_mut();
                let grows = matches!(
                    notice,
                    OperatorNotice::SeedsSilent { .. } | OperatorNotice::NoSeedInside
                );
                let has_ended = now.saturating_since(state.raised_at) >= ENDED_AFTER;
                let is_other = || silent.iter().any(|seed| !state.silent.contains(seed));
                if !grows || has_ended || is_other() {
                    state.throttle.restart();
                }
                state.raised_at = now;
                state.silent = silent.to_vec();
                if !state.throttle.permit(now) {
                    return;
                }
            }
        }
        out.push(MembershipOutput::Notice(notice));
    }
}

/// The silent seeds of a `SeedsSilent` notice; empty for all other kinds.
fn silent(notice: &OperatorNotice) -> &[Address] {
    match notice {
        OperatorNotice::SeedsSilent { silent, .. } => silent,
        _ => &[],
    }
}

/// The kind under which a notice is limited: its variant. `Forced` and `NotForced` share one.
/// (Recoveries and resumptions are sent without [`Notices::say`].)
const fn kind(notice: &OperatorNotice) -> &'static str {
    match notice {
        OperatorNotice::SeedsSilent { .. } => "silent",
        OperatorNotice::OtherSeeds { .. } => "seeds",
        OperatorNotice::Remembers { .. } => "remembers",
        OperatorNotice::AllStopped { .. } => "stopped",
        OperatorNotice::Resumed { .. } => "resumed",
        OperatorNotice::NotResumed { .. } => "doubt",
        OperatorNotice::FoundersLost { .. } => "founders",
        OperatorNotice::OrphanRecovery => "orphan",
        OperatorNotice::NoSeedInside => "inside",
        OperatorNotice::JoinRefused { .. } => "refused",
        OperatorNotice::SettingsDiffer { .. } => "settings",
        OperatorNotice::ForeignCluster { .. } => "foreign",
        OperatorNotice::BadLink(_) => "link",
        OperatorNotice::Paused(_) => "paused",
        OperatorNotice::Downing(_) => "downing",
        OperatorNotice::Forced { .. } | OperatorNotice::NotForced(_) => "forced",
        OperatorNotice::WithoutQuorum { .. } => "quorum",
        OperatorNotice::AddressTaken { .. } => "address",
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::log_throttle::PAUSE;
    use ostraca_ddata::machine::Outbox;

    use super::*;

    fn sayer() -> impl FnMut(u64, OperatorNotice) -> usize {
        let (mut notices, mut out) = (Notices::default(), Outbox::new());
        move |second, notice| {
            notices.say(Instant::from_nanos(second * 1_000_000_000), notice, &mut out);
            out.drain().count()
        }
    }

    #[test]
    fn each_kind_of_notice_is_sent_once_per_minute() {
        let mut say = sayer();
        let paused = || OperatorNotice::Paused(PAUSE);
        let told: Vec<_> = [0, 59, 60, 61].into_iter().map(|at| say(at, paused())).collect();
        assert_eq!(told, [1, 0, 1, 0]);
        assert_eq!(say(61, OperatorNotice::Downing("so".into())), 1);
    }
    /// Seconds at which a notice is sent that is raised every 5 s from `from` until before `until`.
    fn sent(
        say: &mut impl FnMut(u64, OperatorNotice) -> usize,
        (from, until): (u64, u64),
        notice: &OperatorNotice,
    ) -> Vec<u64> {
        (from..until).step_by(5).filter(|at| say(*at, notice.clone()) == 1).collect()
    }

    fn silent(ports: &[u16]) -> OperatorNotice {
        let at = |port: &u16| Address::new(format!("/ip4/127.0.0.1/tcp/{port}")).expect("short");
        let silent = ports.iter().map(at).collect();
        OperatorNotice::SeedsSilent { silent, others_suffice: true }
    }

    #[test]
    fn dead_seed_is_reported_at_growing_intervals() {
        for notice in [silent(&[1]), OperatorNotice::NoSeedInside] {
            let mut say = sayer();
            let hours = sent(&mut say, (0, 4 * 3_600), &notice);
            assert_eq!(hours, [0, 60, 180, 420, 900, 1_860, 3_780, 7_380, 10_980], "{notice}");
            let later = sent(&mut say, (20_000, 20_200), &notice);
            assert_eq!(later, [20_000, 20_060, 20_180], "after it had answered: {notice}");
        }
        assert!(!silent(&[1]).is_warning(), "the other seeds suffice");
        let holds_up = OperatorNotice::SeedsSilent { silent: Vec::new(), others_suffice: false };
        assert!(holds_up.is_warning());
    }

    #[test]
    fn another_silent_seed_is_reported_within_a_minute() {
        let mut say = sayer();
        assert_eq!(sent(&mut say, (0, 3_700), &silent(&[1])).len(), 6);
        assert_eq!(sent(&mut say, (3_700, 3_900), &silent(&[1, 2])), [3_700, 3_760, 3_880]);
        assert_eq!(sent(&mut say, (3_900, 4_000), &silent(&[2])), [0; 0], "fewer than before");
    }
}
