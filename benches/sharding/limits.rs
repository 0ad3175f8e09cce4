//! The limits with which figures are compared: raw TCP to another process, with the same encoding
//! and queues where sharding has them; and a tokio task behind a tokio channel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use crate::figures::{Rate, Spans, Watch};
use crate::outbox::Outbox;
use crate::peers::process;
use crate::places::Places;
use crate::process::Process;
use crate::subject::{Command, note};
use crate::{Error, IN_FLIGHT, RUN};

const BODY: usize = 100;
const ROUND_TRIPS: usize = 4_000;
const QUEUE: usize = 10_000; // as in a mailbox
const WRITE_MAX: usize = 64 * 1024;

// ── Streams of frames ──

async fn write(outbox: Arc<Outbox>, mut stream: OwnedWriteHalf) {
    let mut taken = Vec::new();
    loop {
        outbox.take(&mut taken).await;
        for piece in taken.chunks(WRITE_MAX) {
            if stream.write_all(piece).await.is_err() {
                return; // the run has ended
            }
        }
        taken.clear();
    }
}

fn encode<'a>(message: &impl Serialize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], Error> {
    scratch.clear();
    rmp_serde::encode::write_named(scratch, message)?;
    Ok(scratch)
}

/// Reads frames until the stream ends.
struct Frames {
    stream: OwnedReadHalf,
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Frames {
    fn new(stream: OwnedReadHalf) -> Self {
        Self { stream, bytes: vec![0; 256 * 1024], at: 0, end: 0 }
    }

    async fn next(&mut self) -> Option<&[u8]> {
        loop {
            let have = &self.bytes[self.at..self.end];
            if let Some((len, rest)) = have.split_first_chunk::<4>() {
                let len = u32::from_be_bytes(*len) as usize;
                if rest.len() >= len {
                    let from = self.at + 4;
                    self.at = from + len;
                    return Some(&self.bytes[from..from + len]);
                }
            }
            self.bytes.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
            match self.stream.read(&mut self.bytes[self.end..]).await {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.end += len,
            }
        }
    }
}

async fn accept() -> Result<TcpStream, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn connect(peer: &mut Process) -> Result<TcpStream, Error> {
    let stream = TcpStream::connect(peer.line().await?).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

// ── One at a time ──

/// Returns every received byte.
pub(crate) async fn echo() -> Result<(), Error> {
    let mut stream = accept().await?;
    let mut buffer = [0; BODY];
    while stream.read_exact(&mut buffer).await.is_ok() {
        stream.write_all(&buffer).await?;
    }
    Ok(())
}

/// Sends 100 bytes there and back over raw TCP; with `apart`, each side runs on cores of its own.
pub(crate) async fn round_trips(apart: bool) -> Result<Vec<Duration>, Error> {
    let mut echo = process(&["echo"])?;
    let mut stream = connect(&mut echo).await?;
    let others = || echo.child.id().into_iter().collect();
    let _places = if apart { Places::apart(others()) } else { None };
    let (mut buffer, mut spans) = ([7; BODY], Vec::with_capacity(ROUND_TRIPS));
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        stream.write_all(&buffer).await?;
        stream.read_exact(&mut buffer).await?;
        spans.push(begun.elapsed());
    }
    Ok(spans)
}

// ── A stream of messages ──

/// Decodes and queues received messages; prints their number when the stream ends.
pub(crate) async fn sink() -> Result<(), Error> {
    let (read, _write) = accept().await?.into_split();
    let (queue, mut queued) = mpsc::channel::<Command>(QUEUE);
    let count = tokio::spawn(async move {
        let mut count = 0_u64;
        while let Some(command) = queued.recv().await {
            std::hint::black_box(command);
            count += 1;
        }
        count
    });
    let mut frames = Frames::new(read);
    while let Some(frame) = frames.next().await {
        queue.send(rmp_serde::from_slice(frame)?).await?;
    }
    drop(queue);
    println!("{}", count.await?);
    Ok(())
}

/// One sender: each message is encoded, queued, written, read, decoded and queued.
pub(crate) async fn tells() -> Result<Rate, Error> {
    let mut sink = process(&["sink"])?;
    let (_read, write) = connect(&mut sink).await?.into_split();
    let (outbox, mut scratch, mut told) = (Arc::<Outbox>::default(), Vec::new(), 0);
    let watch = Watch::start(sink.child.id().into_iter().collect());
    let writes = tokio::spawn(self::write(outbox.clone(), write));
    while watch.elapsed() < RUN {
        for _ in 0..100 {
            outbox.push(encode(&note(told), &mut scratch)?).await;
            told += 1;
        }
        tokio::task::yield_now().await;
    }
    writes.abort(); // unwritten messages do not count: the sink reports those that arrived
    let came = sink.line().await?.parse()?;
    Ok(watch.stop(came))
}

// ── Asks ──

/// Has the encoding of [`Command::Get`].
#[derive(Serialize, Deserialize)]
enum Question {
    Get((u64, u64)),
}

/// Decodes questions, queues them, and answers them.
pub(crate) async fn answer() -> Result<(), Error> {
    let (read, write) = accept().await?.into_split();
    let (queue, mut queued) = mpsc::channel::<Question>(QUEUE);
    let outbox = Arc::<Outbox>::default();
    tokio::spawn(self::write(outbox.clone(), write));
    let answers = tokio::spawn(async move {
        let mut scratch = Vec::new();
        while let Some(Question::Get((_, number))) = queued.recv().await {
            outbox.push(encode(&(number, 0_u64), &mut scratch)?).await;
        }
        Ok::<(), Error>(())
    });
    let mut frames = Frames::new(read);
    while let Some(frame) = frames.next().await {
        queue.send(rmp_serde::from_slice(frame)?).await?;
    }
    drop(queue);
    answers.await?
}

/// The pending questions by number.
#[derive(Default)]
struct PendingAnswers(Mutex<HashMap<u64, oneshot::Sender<u64>>>); // ≤ IN_FLIGHT

/// Keeps as many questions in flight over one connection as the measurement of sharding.
pub(crate) async fn asks() -> Result<(Rate, Vec<Duration>), Error> {
    let mut peer = process(&["answer"])?;
    let (read, write) = connect(&mut peer).await?.into_split();
    let (outbox, waiting) = (Arc::<Outbox>::default(), Arc::<PendingAnswers>::default());
    let answered = waiting.clone();
    tokio::spawn(self::write(outbox.clone(), write));
    tokio::spawn(async move {
        let mut frames = Frames::new(read);
        while let Some(frame) = frames.next().await {
            let (number, answer) = rmp_serde::from_slice::<(u64, u64)>(frame)?;
            let waits = answered.0.lock().expect("no task panicked").remove(&number);
            let _ = waits.map(|waits| waits.send(answer)); // the asker may have ended
        }
        Ok::<(), Error>(())
    });
    let numbers = Arc::<AtomicU64>::default();
    in_flight(peer.child.id().into_iter().collect(), Choice::Own, move |_| {
        let (outbox, waiting) = (outbox.clone(), waiting.clone());
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        async move {
            let (sender, receiver) = oneshot::channel();
            waiting.0.lock().expect("no task panicked").insert(number, sender);
            let mut scratch = Vec::with_capacity(64);
            outbox.push(encode(&Question::Get((1, number)), &mut scratch)?).await;
            Ok(receiver.await?)
        }
    })
    .await
}

// ── A task behind a channel ──

enum TaskMessage {
    Add(u64),
    Get(oneshot::Sender<u64>),
}

fn task() -> mpsc::Sender<TaskMessage> {
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let mut sum = 0;
        while let Some(told) = receiver.recv().await {
            match told {
                TaskMessage::Add(n) => sum += n,
                TaskMessage::Get(reply) => drop(reply.send(sum)),
            }
        }
    });
    sender
}

async fn get(task: &mpsc::Sender<TaskMessage>) -> Result<u64, Error> {
    let (sender, receiver) = oneshot::channel();
    task.send(TaskMessage::Get(sender)).await.map_err(|_| "the task has ended")?;
    Ok(receiver.await?)
}

pub(crate) async fn channel_tells() -> Result<Rate, Error> {
    let (task, watch, mut told) = (task(), Watch::start(Vec::new()), 0);
    while watch.elapsed() < RUN {
        for _ in 0..1_000 {
            if task.try_send(TaskMessage::Add(1)).is_err() {
                task.send(TaskMessage::Add(1)).await.map_err(|_| "the task has ended")?;
            }
        }
        told += 1_000;
    }
    get(&task).await?;
    Ok(watch.stop(told))
}

pub(crate) async fn channel_asks(
    tasks: usize,
    choice: Choice,
) -> Result<(Rate, Vec<Duration>), Error> {
    let tasks: Arc<[_]> = (0..tasks).map(|_| task()).collect();
    in_flight(Vec::new(), choice, move |n| {
        let task = tasks[n % tasks.len()].clone();
        async move { get(&task).await }
    })
    .await
}

pub(crate) async fn channel_round_trips(count: usize) -> Result<Vec<Duration>, Error> {
    let (task, mut spans) = (task(), Vec::with_capacity(count));
    for _ in 0..count {
        let begun = Instant::now();
        get(&task).await?;
        spans.push(begun.elapsed());
    }
    Ok(spans)
}

// ── Many at a time ──

/// How a task chooses the receiver of its next ask.
#[derive(Clone, Copy)]
pub(crate) enum Choice {
    /// Always the same one, so the memory that both use stays with one core.
    Own,
    /// Any of them, at random.
    Any,
}

impl Choice {
    fn next(self, task: usize, lots: &mut StdRng) -> usize {
        match self {
            Self::Own => task,
            Self::Any => lots.random_range(0..usize::MAX),
        }
    }
}

/// Runs `IN_FLIGHT` tasks, each of which asks again as soon as it has an answer. Returns the rate,
/// and the duration of each ask.
pub(crate) async fn in_flight<F>(
    others: Vec<u32>,
    choice: Choice,
    ask: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<(Rate, Vec<Duration>), Error>
where
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let watch = Watch::start(others);
    let until = Instant::now() + RUN;
    let asks = (0..IN_FLIGHT).map(|n| {
        let ask = ask.clone();
        tokio::spawn(async move {
            let mut spans = Vec::new();
            let mut lots = StdRng::seed_from_u64(n as u64);
            let mut begun = Instant::now();
            while begun < until {
                ask(choice.next(n, &mut lots)).await?;
                let now = Instant::now();
                spans.push(now - begun);
                begun = now;
            }
            Ok::<_, Error>(spans)
        })
    });
    let (asks, mut spans) = (asks.collect::<Vec<_>>(), Vec::new());
    for asks in asks {
        spans.extend(asks.await??);
    }
    Ok((watch.stop(spans.len() as u64), spans))
}

/// Returns the 99th percentile of several runs together.
pub(crate) fn p99(runs: &[Vec<Duration>]) -> Duration {
    Spans::of(runs.concat()).at(99)
}
