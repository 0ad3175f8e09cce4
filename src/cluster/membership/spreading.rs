//! How the state travels: at once when it changes, in short and now and then otherwise
//! (spec/membership.md, *Gossip*). Knows nothing of what it says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::{NodeId, ReplicaId};

use super::{Core, Out};
use crate::cluster::gossip::Gossip;
use crate::cluster::gossip::exchange::{Answer, GossipRefused, Received};
use crate::cluster::gossip::forgetting::Forgetting;
use crate::cluster::gossip::merge::Merged;
use crate::cluster::gossip::targets::{News, Targeting, fanout, pace};
use crate::cluster::leader;
use crate::cluster::wire::ClusterMessage;

/// Time between two repairs, and how long they go on after the last change.
const REPAIR_EVERY: Duration = Duration::from_millis(100);
const REPAIR_FOR: Duration = Duration::from_secs(1);

/// When to send the state, and to whom.
#[derive(Debug)]
pub(super) struct Spreading {
    targeting: Targeting,
    /// The state has changed since it was sent.
    news: Option<News>,
    /// The state, as it is sent; none since it changed.
    shared: Option<Arc<Gossip>>,
    gossip_at: Instant,
    repair_at: Option<Instant>,
    repair_until: Instant,
    was_converged: bool,
    forgetting: Forgetting,
}

impl Spreading {
    pub(super) fn new(core: &mut Core, now: Now) -> Self {
        let config = &core.config;
        let targeting = Targeting {
            different_view_probability: config.gossip_different_view_probability,
            direct_limit: config.direct_limit,
            ..Targeting::default()
        };
        let first = core.jittered(core.config.gossip_interval);
        Self {
            targeting,
            news: None,
            shared: None,
            gossip_at: now.mono + first,
            repair_at: None,
            repair_until: now.mono,
            was_converged: false,
            forgetting: Forgetting::new(),
        }
    }

    /// The state has changed.
    pub(super) fn changed(&mut self, news: News) {
        self.shared = None;
        self.news = Some(if self.news == Some(News::Own) { News::Own } else { news });
    }

    pub(super) const fn has_news(&self) -> bool {
        self.news.is_some()
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.repair_at.map_or(self.gossip_at, |at| at.min(self.gossip_at))
    }

    fn state(&mut self, gossip: &Gossip) -> ClusterMessage {
        let shared = self.shared.get_or_insert_with(|| Arc::new(gossip.clone()));
        ClusterMessage::Gossip(Arc::clone(shared))
    }

    /// Tells what is new, after all of a batch is known.
    pub(super) fn flush(&mut self, core: &mut Core, now: Now, gossip: &Gossip, out: &mut Out) {
        let me = core.me.incarnation;
        if let Some(news) = self.news.take() {
            self.repair_until = now.mono + REPAIR_FOR;
            self.repair_at = Some(now.mono + REPAIR_EVERY);
            let eager = self.targeting.eager(gossip, me, news, &mut core.rng);
            for target in &eager {
                let state = self.state(gossip);
                send(core, gossip, *target, state, out);
                core.stats.states_sent += 1;
            }
            if let Some(leads) = leader::leader(gossip, me).filter(|id| *id != me)
                && !eager.contains(&leads)
            {
                let seen = ClusterMessage::GossipSeen(gossip.i_have_seen(me));
                send(core, gossip, leads, seen, out);
            }
        }
        self.tell_convergence(core, gossip, out);
    }

    /// The leader knows first that all have seen the state: it tells them.
    fn tell_convergence(&mut self, core: &mut Core, gossip: &Gossip, out: &mut Out) {
        let me = core.me.incarnation;
        let converged = gossip.converged(me);
        if std::mem::replace(&mut self.was_converged, converged) == converged || !converged {
            return;
        }
        if leader::leader(gossip, me) == Some(me) {
            let limit = self.targeting.direct_limit.max(fanout(gossip.len()));
            let seen = gossip.who_has_seen();
            let others = gossip.members().map(|member| member.node).filter(|node| *node != core.me);
            for node in others.take(limit).collect::<Vec<_>>() {
                core.send(node, ClusterMessage::GossipSeen(seen.clone()), out);
            }
        }
    }

    /// What is due: a repair, regular gossip.
    pub(super) fn tick(&mut self, core: &mut Core, now: Now, gossip: &Gossip, out: &mut Out) {
        let regular = now.mono >= self.gossip_at;
        let repair = self.repair_at.is_some_and(|at| now.mono >= at);
        if !regular && !repair {
            return;
        }
        if repair {
            let goes_on = now.mono < self.repair_until;
            self.repair_at = goes_on.then(|| now.mono + core.jittered(REPAIR_EVERY));
        }
        if regular {
            let interval = pace(gossip, core.config.gossip_interval);
            self.gossip_at = now.mono + core.jittered(interval);
        }
        let me = core.me.incarnation;
        let Some(target) = self.targeting.regular(gossip, me, &mut core.rng) else { return };
        // In short first, but where the whole is surely wanted.
        let message = if regular && !gossip.seen().contains(&target) {
            core.stats.states_sent += 1;
            self.state(gossip)
        } else {
            ClusterMessage::GossipStatus(gossip.status())
        };
        send(core, gossip, target, message, out);
    }

    /// Takes a state, a status or who has seen it; answers.
    ///
    /// # Errors
    /// As [`Gossip::receive`].
    pub(super) fn receive(
        &mut self,
        core: &mut Core,
        gossip: &mut Gossip,
        from: NodeId,
        message: &ClusterMessage,
        out: &mut Out,
    ) -> Result<(), GossipRefused> {
        let me = core.me.incarnation;
        let answer = match message {
            ClusterMessage::Gossip(state) => {
                let received = gossip.receive(me, from.incarnation, state)?;
                self.received(core, received);
                received.answer
            }
            ClusterMessage::GossipStatus(status) => gossip.compare(from.incarnation, status)?,
            ClusterMessage::GossipSeen(seen) => {
                let received = gossip.receive_seen(from.incarnation, seen)?;
                self.received(core, received);
                received.answer
            }
            _ => Answer::Nothing,
        };
        let message = match answer {
            Answer::Nothing => return Ok(()),
            Answer::Status => ClusterMessage::GossipStatus(gossip.status()),
            Answer::State => {
                core.stats.states_sent += 1;
                self.state(gossip)
            }
            Answer::Seen => ClusterMessage::GossipSeen(gossip.who_has_seen()),
        };
        core.send(from, message, out);
        Ok(())
    }

    fn received(&mut self, core: &mut Core, received: Received) {
        match received.merged {
            Merged::TheirsNewer => {
                core.stats.states_merged += 1;
                self.changed(News::Heard);
            }
            Merged::Both => {
                core.stats.states_merged += 1;
                self.changed(News::Own);
            }
            Merged::Same | Merged::OursNewer if received.seen_changed => self.shared = None,
            Merged::Same | Merged::OursNewer => {}
        }
    }

    /// For the leader, at convergence: removals that are old enough are forgotten.
    pub(super) fn forget(&mut self, core: &Core, now: Now, gossip: &mut Gossip) {
        let me = core.me.incarnation;
        let age = core.config.prune_gossip_tombstones_after;
        if gossip.tombstones().len() == 0 {
            return;
        }
        let due = self.forgetting.due(now.mono, gossip, age);
        let leads = |gossip: &Gossip| leader::leader(gossip, me) == Some(me);
        if let Some(stamp) = due.filter(|_| leads(gossip) && gossip.converged(me))
            && gossip.forget_up_to(me, stamp)
        {
            self.changed(News::Own);
        }
    }
}

/// Sends to a member.
pub(super) fn send(
    core: &mut Core,
    gossip: &Gossip,
    to: ReplicaId,
    message: ClusterMessage,
    out: &mut Out,
) {
    if let Some(member) = gossip.member(to) {
        core.send(member.node, message, out);
    }
}

/// Nodes of these members.
pub(super) fn nodes(gossip: &Gossip, ids: &BTreeSet<ReplicaId>) -> BTreeSet<NodeId> {
    ids.iter().filter_map(|id| gossip.member(*id)).map(|member| member.node).collect()
}
