//! Notices for operators, each kind at most once per minute.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::Out;
use super::port::{Notice, Output};

const PAUSE: Duration = Duration::from_secs(60);

/// Time of the last notice of each kind.
#[derive(Debug, Default)]
pub(super) struct Notices {
    said: BTreeMap<&'static str, Instant>, // ≤ kinds of notices
}

impl Notices {
    pub(super) fn say(&mut self, now: Instant, notice: Notice, out: &mut Out) {
        let kind = kind(&notice);
        if self.said.get(kind).is_none_or(|at| now.saturating_since(*at) >= PAUSE) {
            self.said.insert(kind, now);
            out.push(Output::Notice(notice));
        }
    }
}

const fn kind(notice: &Notice) -> &'static str {
    match notice {
        Notice::SeedsSilent { .. } => "silent",
        Notice::OtherSeeds { .. } => "seeds",
        Notice::Remembers { .. } => "remembers",
        Notice::AllStopped { .. } => "stopped",
        Notice::Resumed { .. } => "resumed",
        Notice::NotResumed { .. } => "doubt",
        Notice::FoundersLost { .. } => "founders",
        Notice::OrphanRecovery => "orphan",
        Notice::NoSeedInside => "inside",
        Notice::JoinRefused { .. } => "refused",
        Notice::SettingsDiffer { .. } => "settings",
        Notice::ForeignCluster { .. } => "foreign",
        Notice::BadLink(_) => "link",
        Notice::Paused(_) => "paused",
        Notice::Downing(_) => "downing",
        Notice::Forced { .. } | Notice::NotForced(_) => "forced",
        Notice::WithoutQuorum { .. } => "quorum",
        Notice::AddressTaken { .. } => "address",
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::machine::Outbox;

    use super::*;

    #[test]
    fn each_kind_of_notice_is_sent_once_per_minute() {
        let (mut notices, mut out) = (Notices::default(), Outbox::new());
        let mut say = |second: u64, notice| {
            notices.say(Instant::from_nanos(second * 1_000_000_000), notice, &mut out);
            out.drain().count()
        };
        let paused = || Notice::Paused(PAUSE);
        let told: Vec<_> = [0, 59, 60, 61].into_iter().map(|at| say(at, paused())).collect();
        assert_eq!(told, [1, 0, 1, 0]);
        assert_eq!(say(61, Notice::Downing("so".into())), 1);
    }
}
