//! Questions to the program's own allocation strategy (the program is the application that uses
//! this library). At most one question about a home and one about moves is open; each has a
//! deadline. After a failure the strategy pauses, for longer with each further failure in a row.
//! The two kinds pause independently of each other. For all shards of a leaving node together the
//! strategy has a limited time.
//!
//! The strategy is known by name only. The node carries the questions to it and may bring an answer
//! late or never.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::log_throttle::LogThrottle;

use super::snapshot::AllocationSnapshot;
use crate::cluster::events::ClusterState;
use crate::sharding::allocation::Allocations;
use crate::sharding::coordinator::Coordinator;
use crate::sharding::ids::{RegionId, ShardId};

/// Maximum time for an answer.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

/// Maximum time for questions about the shards of a leaving node, all together. By default a node
/// has 20 s to hand over its shards, and a running handler may take 15 s of them
/// (`handoff-timeout`). Of the other 5 s, this leaves 2 s for writes and messages.
pub(super) const LEAVER_WITHIN: Duration = Duration::from_secs(3);

/// Pause after the first failure. Each further failure in a row doubles it, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Open questions to the strategy, and its pauses.
#[derive(Clone, Debug)]
pub(super) struct ProgramStrategy {
    pub(super) name: Arc<str>,
    pub(super) homes: OpenQuestion<ShardId>,
    pub(super) moves: OpenQuestion<()>,
    /// The next question is about the first shard without a home from this one on, so that a shard
    /// for which the strategy fails does not block the others.
    pub(super) search_from: ShardId,
    snapshot: Option<AllocationSnapshot>,
    snapshots_built: u64, // from scratch; tests check that this is rare
    leavers: BTreeMap<RegionId, LeavingRegion>, // ≤ members
    last: u64,            // number of the last question
    failures: LogThrottle,
}

/// A leaving region, and whether its shards still wait for the strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeavingRegion {
    /// The strategy is asked about its shards until this time.
    Asked { until: Instant },
    /// The time is over: its shards are placed without the strategy.
    Late,
}

/// The open question of one kind, or the pause after a failure. It is *free* if there is neither.
#[derive(Clone, Debug)]
pub(super) struct OpenQuestion<T> {
    asked: Option<(u64, Instant, T)>, // number, deadline, subject
    again_at: Option<Instant>,        // end of the pause; kept after it until `expire`
    pause: Duration,                  // length of the next pause
}

impl ProgramStrategy {
    pub(super) const fn new(name: Arc<str>) -> Self {
        let (homes, moves) = (OpenQuestion::new(), OpenQuestion::new());
        Self {
            name,
            homes,
            moves,
            search_from: ShardId::new(0),
            snapshot: None,
            snapshots_built: 0,
            leavers: BTreeMap::new(),
            last: 0,
            failures: LogThrottle::new(),
        }
    }

    /// Takes the next question number. Both kinds share the numbers, which never repeat.
    pub(super) const fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A coordinator begins or has ended here. Drops open questions, whose late answers are
    /// ignored, the leaving regions and the snapshot. Pauses continue: they are about the strategy.
    /// `search_from`, the numbers and the time of the last report stay as well.
    pub(super) fn reset(&mut self) {
        (self.homes.asked, self.moves.asked) = (None, None);
        self.leavers.clear();
        self.snapshot = None;
    }

    /// Takes over the coordinator's list of leaving regions. The time of a new one begins now; one
    /// whose time is over becomes late, and stays so; one that is no longer in the list is
    /// forgotten, and gets its full time if it comes back.
    pub(super) fn update_leaving(&mut self, now: Instant, regions: impl Iterator<Item = RegionId>) {
        let known = std::mem::take(&mut self.leavers);
        for region in regions {
            let new = LeavingRegion::Asked { until: now + LEAVER_WITHIN };
            let leaver = match *known.get(&region).unwrap_or(&new) {
                LeavingRegion::Asked { until } if until <= now => LeavingRegion::Late,
                leaver => leaver,
            };
            self.leavers.insert(region, leaver);
        }
    }

    /// Brings the allocation snapshot up to date and returns it. This takes the coordinator's list
    /// of changes, so no other caller may take it. The snapshot is built from scratch if there is
    /// none, if membership has changed, or if the coordinator does not know all changes.
    pub(super) fn update_snapshot(
        &mut self,
        coordinator: &mut Coordinator,
        state: &Arc<ClusterState>,
    ) -> Arc<Allocations> {
        let changed = coordinator.take_changed();
        let known = self.snapshot.take().filter(|snapshot| snapshot.is_of(state)).zip(changed);
        let snapshot = match known {
            Some((snapshot, changed)) => snapshot.with(&changed, coordinator),
            None => {
                self.snapshots_built += 1;
                AllocationSnapshot::new(coordinator, state)
            }
        };
        self.snapshot.insert(snapshot).show()
    }

    /// Number of times that the snapshot was built from scratch.
    pub(super) const fn snapshots_built(&self) -> u64 {
        self.snapshots_built
    }

    /// Whether the time of any leaving region is over.
    pub(super) fn has_late(&self) -> bool {
        self.leavers.values().any(|leaver| *leaver == LeavingRegion::Late)
    }

    /// Whether the shards of a leaving region no longer wait for the strategy. `false` for other
    /// regions.
    pub(super) fn is_late(&self, region: RegionId) -> bool {
        self.leavers.get(&region) == Some(&LeavingRegion::Late)
    }

    /// The earliest of the deadlines of both questions, or ends of their pauses, and the times of
    /// leaving regions that are not late yet.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let leavers = self.leavers.values().filter_map(|leaver| match leaver {
            LeavingRegion::Asked { until } => Some(*until),
            LeavingRegion::Late => None,
        });
        let deadlines = [self.homes.next_deadline(), self.moves.next_deadline()];
        deadlines.into_iter().flatten().chain(leavers).min()
    }

    /// Returns the reason to report, unless a failure was reported within a minute; then `None`.
    pub(super) fn complain(&self, now: Instant, why: Arc<str>) -> Option<Arc<str>> {
        self.failures.permit(now).then_some(why)
    }
}

impl<T> OpenQuestion<T> {
    const fn new() -> Self {
        Self { asked: None, again_at: None, pause: PAUSE_MIN }
    }

    /// Whether a question may be asked now.
    pub(super) const fn is_free(&self) -> bool {
        self.asked.is_none() && self.again_at.is_none()
    }

    /// Whether it pauses after a failure and no question is open. Neither this nor
    /// [`is_free`](Self::is_free) reads the clock: [`expire`](Self::expire) ends the pause.
    pub(super) const fn is_pausing(&self) -> bool {
        self.asked.is_none() && self.again_at.is_some()
    }

    /// Opens a question with a deadline of [`WITHIN`]. The caller has checked
    /// [`is_free`](Self::is_free).
    pub(super) fn ask(&mut self, now: Instant, number: u64, about: T) {
        self.asked = Some((number, now + WITHIN, about));
    }

    /// Ends the open question of this number and returns its subject; `None` if it is no longer
    /// open. An overdue question counts as open until [`expire`](Self::expire).
    pub(super) fn take(&mut self, number: u64) -> Option<T> {
        let asked = self.asked.take_if(|(asked, ..)| *asked == number);
        asked.map(|(.., about)| about)
    }

    /// Ends an elapsed pause and an overdue question. Returns whether a question was overdue; the
    /// caller then calls [`failed`](Self::failed). A later answer to it is ignored.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.again_at.take_if(|at| *at <= now);
        self.asked.take_if(|(_, until, _)| *until <= now).is_some()
    }

    /// The strategy has failed: begins a pause, and doubles the next one up to [`PAUSE_MAX`]. The
    /// caller has ended the question. Reports nothing.
    pub(super) fn failed(&mut self, now: Instant) {
        self.again_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// The strategy has answered: the next pause is the shortest again. A present pause stays.
    pub(super) const fn succeeded(&mut self) {
        self.pause = PAUSE_MIN;
    }

    /// Deadline of the open question, else the end of the pause; `None` if it is free.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.asked.as_ref().map(|(_, until, _)| *until).or(self.again_at)
    }
}
