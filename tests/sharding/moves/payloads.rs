//! Checks the payloads of moves (docs/protocol/sharding.md#a-start-takes-one-payload). Each tenure
//! of the shard leaves a payload with the tenure's number, and the next start must take the payload
//! of the latest tenure.
//!
//! No payload may be taken twice or after a later tenure. The latest payload may be discarded only
//! if its region crashed, or if a region crashed that a decision named at the time of sealing or
//! later, because only such a region may have hosted since. A tenure without a payload counts as
//! the latest: no earlier payload may be taken after it.

use bytes::Bytes;
use ostraca::sharding::ids::{Generation, RegionId};
use ostraca::sharding::region::RegionOutput;

use super::world::region;

/// The tenures of the shard. The machines see only the bytes of payloads.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Payloads {
    tenures: u8,
    at: usize,          // region of the last tenure
    sealed: Generation, // highest generation that this region knew when the tenure ended
    empty: bool,        // whether the last tenure left no payload
    wrong: Option<String>,
}

/// The state of the world that the check needs: live regions and acknowledged decisions.
pub(super) struct Known<'a> {
    pub(super) up: &'a [bool],
    pub(super) acked: &'a [(Generation, Option<RegionId>)],
}

impl Known<'_> {
    /// Whether a decision at or above `sealed` names a region that has crashed.
    fn may_have_hosted_since(&self, sealed: Generation) -> bool {
        let is_dead =
            |home: RegionId| (0..self.up.len()).any(|at| region(at) == home && !self.up[at]);
        self.acked.iter().any(|(at, home)| *at >= sealed && home.is_some_and(is_dead))
    }
}

impl Payloads {
    /// A tenure ends; returns its payload, unless it is `empty`.
    pub(super) fn seal(&mut self, max_gen: Generation, empty: bool) -> Option<Bytes> {
        (self.sealed, self.empty) = (max_gen, empty);
        (!empty).then(|| Bytes::from(vec![self.tenures]))
    }

    /// Checks the outputs of one input to the region at `place`.
    pub(super) fn look(&mut self, place: usize, outputs: &[RegionOutput], known: &Known<'_>) {
        let start = outputs.iter().find_map(|output| match output {
            RegionOutput::Start { payload, .. } => Some(payload.as_ref().map(|bytes| bytes[0])),
            _ => None,
        });
        let Some(taken) = start else { return };
        let is_latest = |output: &RegionOutput| matches!(output, RegionOutput::Discard { payload, .. } if payload[0] == self.tenures);
        let given_up = outputs.iter().any(is_latest) && known.may_have_hosted_since(self.sealed);
        let latest = self.tenures;
        self.wrong = match taken {
            Some(tenure) if tenure != latest => {
                Some(format!("{place} takes the payload of tenure {tenure} after tenure {latest}"))
            }
            None if latest > 0 && !self.empty && known.up[self.at] && !given_up => Some(format!(
                "{place} starts without the payload of tenure {latest} at {}",
                self.at
            )),
            _ => None,
        };
        (self.tenures, self.at) = (latest + 1, place);
        (self.sealed, self.empty) = (Generation::NEVER, false);
    }

    pub(super) fn wrong(&self) -> Option<&String> {
        self.wrong.as_ref()
    }
}
