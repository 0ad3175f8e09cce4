//! Steps of the model that concern lanes: loss of their contents, repeated barriers, and senders
//! that leave in order.

use super::{Down, Message, Node, Scope, Step, Up, World, region};

impl World {
    pub(super) fn steps_of_lanes(&self, scope: &Scope, steps: &mut Vec<Step>) {
        for &sender in self.told.keys().filter(|sender| self.lives(**sender)) {
            let waits = scope.reminds && self.gates[&sender].is_moving();
            if waits && (self.spurious > 0 || !self.is_answered(sender)) {
                steps.push(Step::Remind(sender));
            }
        }
        if self.breaks == 0 {
            return;
        }
        for (&(from, to), words) in &self.down {
            steps.extend((0..words.len()).map(|keeps| Step::BreakDown(from, to, keeps)));
        }
        for (&(from, to), words) in &self.up {
            steps.extend((0..words.len()).map(|keeps| Step::BreakUp(from, to, keeps)));
        }
    }

    /// Returns whether the echo that a sender waits for will come without a repeated barrier.
    pub(super) fn is_answered(&self, sender: Node) -> bool {
        let asked = |word: &Down| matches!(word, Down::Barrier(_));
        let answered = |word: &Up| matches!(word, Up::Echo(_));
        let down = self.down.iter().filter(|((from, _), _)| *from == sender);
        let up = self.up.iter().filter(|((_, to), _)| *to == sender);
        let holds = self.gates.values().any(|gate| gate.holds_barrier_of(region(sender)));
        down.flat_map(|(_, words)| words).any(asked)
            || up.flat_map(|(_, words)| words).any(answered)
            || holds
    }

    /// Lists the orderly leaves: a node that only sends may leave once nothing waits in its gate
    /// and all that it sent was read.
    pub(super) fn steps_of_leavers(&self, steps: &mut Vec<Step>) {
        if self.leaves == 0 {
            return;
        }
        let only_sends = |sender: &Node| self.lives(*sender) && !self.regions.contains_key(sender);
        for &sender in self.told.keys().filter(|sender| only_sends(sender)) {
            let lanes = self.down.keys().map(|(from, _)| from);
            let mut ends = lanes.chain(self.up.keys().map(|(_, to)| to));
            if self.gates[&sender].waiting() == 0 && ends.all(|end| *end != sender) {
                steps.push(Step::Leave(sender));
            }
        }
    }

    pub(super) fn leave(&mut self, sender: Node) {
        self.leaves -= 1;
        self.left.insert(sender);
    }

    /// Removes a node from a configuration. Everything between the two nodes that has not arrived
    /// is counted as lost, and so are the acknowledged messages held by the gate of a crashed node.
    pub(super) fn removed(&mut self, scope: &Scope, node: Node, gone: Node) {
        self.installed.get_mut(&node).expect("a node").insert(gone);
        self.count_between(node, gone);
        if self.left.contains(&gone) {
            self.count_between(gone, node); // messages on their way back
        }
        for ends in [(node, gone), (gone, node)] {
            self.down.remove(&ends);
            self.up.remove(&ends);
        }
        self.with(scope, node, |gate, post| {
            gate.removed(region(gone), post);
        });
    }

    pub(super) fn break_down(&mut self, from: Node, to: Node, keeps: usize) {
        self.breaks -= 1;
        let lane = self.down.get_mut(&(from, to)).expect("the lane is not empty");
        let lost = lane.split_off(keeps).into_iter().filter_map(|word| match word {
            Down::Message(_, item) => Some(item.message),
            Down::Barrier(_) => None,
        });
        self.lost.extend(lost);
        self.down.retain(|_, words| !words.is_empty());
    }

    pub(super) fn break_up(&mut self, from: Node, to: Node, keeps: usize) {
        self.breaks -= 1;
        let lane = self.up.get_mut(&(from, to)).expect("the lane is not empty");
        let lost = lane.split_off(keeps).into_iter().filter_map(|word| match word {
            Up::Bounce(back) => Some(back.item.message),
            Up::Echo(_) => None,
        });
        self.lost.extend(lost);
        self.up.retain(|_, words| !words.is_empty());
    }

    pub(super) fn count_between(&mut self, sender: Node, host: Node) {
        let down = self.down.get(&(sender, host)).into_iter().flatten();
        let on_the_way = down.filter_map(|word| match word {
            Down::Message(_, item) => Some(item.message),
            Down::Barrier(_) => None,
        });
        let up = self.up.get(&(host, sender)).into_iter().flatten();
        let back = up.filter_map(|word| match word {
            Up::Bounce(back) => Some(back.item.message),
            Up::Echo(_) => None,
        });
        let mut lost: Vec<Message> = on_the_way.chain(back).collect();
        if self.crashed.contains(&host) {
            // Messages that its gate held.
            let sent = (1..=self.told.get(&sender).copied().unwrap_or(0))
                .map(|n| Message { sender, n })
                .filter(|message| self.held_at(host, *message));
            lost.extend(sent);
        }
        self.lost.extend(lost);
    }

    fn held_at(&self, host: Node, message: Message) -> bool {
        self.gates[&host].held_messages().any(|item| item.message == message)
    }
}
