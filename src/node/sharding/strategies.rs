//! [`Strategies`]: runs allocation strategies of the program on the program's runtime.
//!
//! The machines never wait for an answer, and a failing strategy changes nothing
//! (docs/protocol/sharding.md#a-failing-strategy-changes-nothing). For each type there is one
//! request for a home and one for moves at a time; a newer request aborts an older one of its kind.
//! If the older one blocks its thread and cannot be aborted, the newer one waits for it without
//! occupying a thread, so a strategy never blocks more than two threads. An aborted request gives
//! no answer.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync;
use tokio::task::JoinHandle;

use crate::node::control::machine::{ControlInbox, ControlInput};
use crate::node::replicator::panic_message;
use crate::sharding::allocation::{ShardAllocationStrategy, StrategyAnswer, StrategyRequest};
use crate::sharding::ids::EntityType;
use crate::sharding::machines::ShardingInput;

/// The program's allocation strategies, by entity type.
#[derive(Default)]
pub(crate) struct Strategies(Mutex<BTreeMap<EntityType, TypeStrategy>>); // ≤ ENTITY_TYPES_MAX

/// The strategy of one type, the runtime that it runs on, and the inbox for its answers.
struct TypeStrategy {
    strategy: Arc<dyn ShardAllocationStrategy>,
    runtime: Handle,
    inbox: ControlInbox,
    homes: RequestLine,
    moves: RequestLine,
}

/// Requests of one kind. The lock `turn` admits one at a time; an aborted request keeps it until it
/// has ended.
#[derive(Default)]
struct RequestLine {
    turn: Arc<sync::Mutex<()>>,
    newest: Option<JoinHandle<()>>, // running, waiting for its turn, or complete
}

impl Strategies {
    /// Sets the strategy of a type, once for each type. It will run on `runtime`, and its answers
    /// go to `inbox`. A second call replaces the strategy, without aborting requests to the first.
    pub(super) fn add(
        &self,
        entity_type: &EntityType,
        strategy: Arc<dyn ShardAllocationStrategy>,
        runtime: Handle,
        inbox: ControlInbox,
    ) {
        let (homes, moves) = (RequestLine::default(), RequestLine::default());
        let own = TypeStrategy { strategy, runtime, inbox, homes, moves };
        self.all().insert(entity_type.clone(), own);
    }

    /// Removes the strategy of a type, if it has one.
    pub(super) fn remove(&self, entity_type: &EntityType) {
        let removed = self.all().remove(entity_type);
        drop(removed); // after the lock: its `Drop` is code of the program
    }

    /// Starts a request to the strategy of a type, and aborts an older one of the same kind, even
    /// if it has not begun. Never waits for the answer or error, which goes to the inbox with this
    /// `number`, unless the request is aborted before. Sets no time limit. Does nothing, and sends
    /// no answer, if the program has set no strategy for the type.
    pub(crate) fn ask(&self, entity_type: &EntityType, number: u64, asked: StrategyRequest) {
        let mut all = self.all();
        let Some(own) = all.get_mut(entity_type) else { return };
        let (strategy, inbox) = (own.strategy.clone(), own.inbox.clone());
        let entity_type = entity_type.clone();
        let line = match &asked {
            StrategyRequest::Home { .. } => &mut own.homes,
            StrategyRequest::Moves { .. } => &mut own.moves,
        };
        line.end();
        let turn = line.turn.clone();
        line.newest = Some(own.runtime.spawn(async move {
            let _turn = turn.lock_owned().await;
            let advice = consult(&*strategy, asked).await;
            let said = ShardingInput::Advised { entity_type, number, advice };
            let _ = inbox.fact(ControlInput::from(said)); // fails only after the machines' end
        }));
    }

    /// Aborts all requests to strategies, without waiting. They end at their next await, or
    /// continue to block. Does not prevent later requests; the machines, which make them, have
    /// ended.
    pub(super) fn end(&self) {
        for own in self.all().values_mut() {
            own.homes.end();
            own.moves.end();
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<EntityType, TypeStrategy>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestLine {
    /// Aborts the newest request, if there is one.
    fn end(&mut self) {
        if let Some(older) = self.newest.take() {
            older.abort();
        }
    }
}

/// Calls the strategy, without a time limit. An error of the strategy is returned as its text, a
/// panic as an error with its message.
async fn consult(
    strategy: &dyn ShardAllocationStrategy,
    asked: StrategyRequest,
) -> Result<StrategyAnswer, Arc<str>> {
    match AssertUnwindSafe(asked.of(strategy)).catch_unwind().await {
        Ok(advice) => advice.map_err(|why| why.0.to_string().into()),
        Err(panic) => Err(panicked(panic)),
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Arc<str> {
    format!("it panicked: {}", panic_message(panic)).into()
}
