//! What the moves of a world carry along: each stay of the shard leaves a payload with its number,
//! and who starts next takes that of the latest stay, or says why nobody can.
//!
//! Nothing is taken twice or after a later stay. What the latest stay left in a region that lives is
//! taken; it may be given up only if somebody died who was named when it was sealed, or later: who
//! was named before has not hosted since. A stay that leaves nothing is the latest all the same: what
//! an earlier one left is not taken after it.

use bytes::Bytes;
use ostraca::sharding::ids::{Generation, RegionId};
use ostraca::sharding::region::RegionOutput;

use super::world::region;

/// What is known of the stays of a shard; the machines see only the payloads' bytes.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Payloads {
    stays: u8,
    at: usize,          // where the last one is, or was
    sealed: Generation, // the highest that its region had heard of when it ended
    empty: bool,        // it left nothing
    wrong: Option<String>,
}

/// Who lives, and which decisions were acknowledged.
pub(super) struct Known<'a> {
    pub(super) up: &'a [bool],
    pub(super) acked: &'a [(Generation, Option<RegionId>)],
}

impl Known<'_> {
    /// Whether somebody who is dead was named by this decision or a later one.
    fn may_have_hosted_since(&self, sealed: Generation) -> bool {
        let is_dead =
            |home: RegionId| (0..self.up.len()).any(|at| region(at) == home && !self.up[at]);
        self.acked.iter().any(|(at, home)| *at >= sealed && home.is_some_and(is_dead))
    }
}

impl Payloads {
    /// The last entity of the stay has ended.
    pub(super) fn seal(&mut self, max_gen: Generation, empty: bool) -> Option<Bytes> {
        (self.sealed, self.empty) = (max_gen, empty);
        (!empty).then(|| Bytes::from(vec![self.stays]))
    }

    /// What follows from one input to the region at `place`.
    pub(super) fn look(&mut self, place: usize, outputs: &[RegionOutput], known: &Known<'_>) {
        let start = outputs.iter().find_map(|output| match output {
            RegionOutput::Start { payload, .. } => Some(payload.as_ref().map(|bytes| bytes[0])),
            _ => None,
        });
        let Some(taken) = start else { return };
        let is_latest = |output: &RegionOutput| matches!(output, RegionOutput::Discard { payload, .. } if payload[0] == self.stays);
        let given_up = outputs.iter().any(is_latest) && known.may_have_hosted_since(self.sealed);
        let latest = self.stays;
        self.wrong = match taken {
            Some(stay) if stay != latest => {
                Some(format!("{place} takes what stay {stay} left, after stay {latest}"))
            }
            None if latest > 0 && !self.empty && known.up[self.at] && !given_up => {
                Some(format!("{place} starts without what stay {latest} has left at {}", self.at))
            }
            _ => None,
        };
        (self.stays, self.at) = (latest + 1, place);
        (self.sealed, self.empty) = (Generation::NEVER, false);
    }

    pub(super) fn wrong(&self) -> Option<&String> {
        self.wrong.as_ref()
    }
}
