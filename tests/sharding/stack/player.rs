//! The entity of the runs: it counts its messages, sleeps, asks other entities, and takes its count
//! along in a move. It reports each message to the book.

use std::sync::Arc;
use std::time::Duration;

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::{BoxError, Entity};
use ostraca::sharding::region_handle::RegionEnvironment as _;
use ostraca::sharding::reply::Reply;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

use super::book::Book;
use super::quarters::HouseWorld;

/// Timeout of an ask.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct Player {
    pub(crate) book: Arc<Book>,
    pub(crate) world: Arc<HouseWorld>,
    pub(crate) id: String,
    pub(crate) count: u64,
}

/// Sender of a message, and the message's number among those of the sender to this entity.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct From {
    pub(crate) sender: ReplicaId,
    pub(crate) number: u64,
    /// By which the book recognizes the message in frames and payloads.
    pub(crate) mark: u64,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Word {
    Note(From),
    Slow(From, u64),
    Passivate(From),
    /// Sleeps for this number of milliseconds; not recorded in the book.
    Sleep(u64),
    /// Ask an entity of a lower number, so that no two entities ask each other.
    AskPeer(From, String),
    Answer(Reply<u64>),
}

impl Entity for Player {
    type Message = Word;

    async fn handle(&mut self, word: Word, cx: &mut Context<'_, Self>) {
        self.count += 1;
        let id = self.id.clone();
        let at = cx.generation();
        let note = |from: From| self.book.handles(&from, &id, at, self.world.serves());
        match word {
            Word::Note(from) => note(from),
            Word::Slow(from, millis) => {
                note(from);
                self.world.sleep(Duration::from_millis(millis)).await;
            }
            Word::Passivate(from) => {
                note(from);
                cx.passivate();
            }
            Word::Sleep(millis) => self.world.sleep(Duration::from_millis(millis)).await,
            Word::AskPeer(from, peer) => {
                note(from);
                let answer = cx.entity(&peer).ask_within(PATIENCE, Word::Answer).await;
                let mut pages = self.book.pages();
                pages.answers += u64::from(answer.is_ok());
                pages.unanswered += u64::from(answer.is_err());
            }
            Word::Answer(reply) => reply.send(self.count),
        }
        if !self.world.serves() {
            self.book.violates(format!("instance: {id} continues without a lease"));
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        self.book.hands_over(&self.id, self.count);
        Some(self.count.to_le_bytes().to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.count = u64::from_le_bytes(state.try_into()?);
        self.book.takes_over(&self.id, self.count);
        Ok(())
    }
}
