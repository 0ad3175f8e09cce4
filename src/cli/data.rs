//! `ostraca data`: reads and changes keys of replicated data.

use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use ostraca::management::client::{AdminConnectError, AdminRequestError, Client};
use ostraca::management::wire::{
    AdminRequest, AdminResponse, ConsistencyLevel, Data, KEYS_MAX, Packed,
};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::shown;
use super::target::{Consistency, MARGIN, NodeOptions, NodeTarget, SOON, run_blocking};
use super::{CommandResult, MissingKey, is_unreachable, print_answer, printable};

/// Pause before each probe, the first included, that checks whether a watched node still answers.
const PROBE_EVERY: Duration = Duration::from_secs(3);

/// Time limit for the answer to a probe; with connecting it may take 1 s longer.
const PROBE_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of keys that the error about a missing key lists.
const NAMED_MAX: usize = 8;

/// Operations on replicated data.
#[derive(Debug, Args)]
pub(super) struct DataArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Prints the value of a key of any type.
    ///
    /// Reads sets, maps and registers of any program, because their elements, keys and values
    /// describe themselves. Of a user type it prints only the name and the size.
    #[command(after_help = "Examples:\n  ostraca data get online --config node.toml\n  \
                            ostraca data get stock --majority --timeout 1s --json \
                            --socket /var/lib/shop/control.sock")]
    Get(Get),
    /// Sets a key that is, or becomes, a last-writer-wins register.
    ///
    /// VALUE is JSON, or else text: 3 and {"on":true} are a number and a map, on and '"3"' are
    /// text. A program reads it as LWWRegister<T> of a fitting T. A key of another type and the
    /// cluster's own keys are refused.
    #[command(
        after_help = "Examples:\n  ostraca data set motd 'down at noon' --config node.toml\n  \
                            ostraca data set limits '{\"orders\": 100}' --majority \
                            --config node.toml"
    )]
    Set(Set),
    /// Deletes a key of any type.
    ///
    /// The cluster's own keys are refused. A key that holds nothing may be deleted as well. A write
    /// that the delete has not seen brings the key back with the written value.
    #[command(after_help = "Examples:\n  ostraca data delete motd --config node.toml\n  \
                            ostraca data delete motd --majority --json --config node.toml")]
    Delete(Delete),
    /// Prints the value of a key, and every change of it, until Ctrl-C.
    ///
    /// A slow reader gets the latest value, not every intermediate one. If the node stops answering
    /// (SIGSTOP, a lost host), the command ends with code 4 within 10 s.
    #[command(after_help = "Examples:\n  ostraca data watch online --config node.toml\n  \
                            ostraca data watch online --json --config node.toml | jq .value")]
    Watch(WatchArguments),
    /// Prints the keys that hold a value, one per line, in ascending order.
    #[command(after_help = "Examples:\n  ostraca data list --config node.toml\n  \
                            ostraca data list room/ --config node.toml")]
    List(List),
}

#[derive(Debug, Args)]
struct Get {
    /// The key: at least one character.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: String,
    #[command(flatten)]
    consistency: Consistency,
    #[command(flatten)]
    asking: NodeOptions,
}

#[derive(Debug, Args)]
struct Set {
    /// The key: at least one character.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: String,
    /// The new value: JSON, or else text.
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// Takes VALUE as text even if it is JSON.
    #[arg(long)]
    text: bool,
    #[command(flatten)]
    consistency: Consistency,
    #[command(flatten)]
    asking: NodeOptions,
}

#[derive(Debug, Args)]
struct Delete {
    /// The key: at least one character.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: String,
    #[command(flatten)]
    consistency: Consistency,
    #[command(flatten)]
    asking: NodeOptions,
}

#[derive(Debug, Args)]
struct WatchArguments {
    /// The key: at least one character.
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key: String,
    #[command(flatten)]
    asking: NodeOptions,
}

#[derive(Debug, Args)]
struct List {
    /// Prefix of the keys to print.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    asking: NodeOptions,
}

impl DataArguments {
    /// Runs the operation to its end on this thread.
    pub(super) fn run(self) -> CommandResult {
        match self.verb {
            Verb::Get(get) => run_blocking(get.run()),
            Verb::Set(set) => run_blocking(set.run()),
            Verb::Delete(delete) => run_blocking(delete.run()),
            Verb::Watch(watch) => run_blocking(watch.run()),
            Verb::List(list) => run_blocking(list.run()),
        }
    }
}

impl Get {
    /// Prints the value of the key. A key that holds nothing is an error, [`MissingKey`], also with
    /// `--json`. For that error it asks the node for its keys as well, within the same time limit
    /// of the command.
    async fn run(self) -> CommandResult {
        let Self { key, consistency, asking: NodeOptions { target, output } } = self;
        let level = consistency.level_of_read();
        let request = AdminRequest::Get { key: key.clone(), level };
        let until = Instant::now() + consistency.patience() + MARGIN;
        match target.ask(&request, consistency.patience()).await? {
            AdminResponse::Value(Some(data)) => {
                output.print(&shown::json(&key, Some(&data)), || shown::text(&key, &data))
            }
            AdminResponse::Value(None) => {
                let keys = some_keys(&target, until).await;
                Err(missing_key(&key, level, keys.as_deref()).into())
            }
            _ => Err(AdminRequestError::Unexpected.into()),
        }
    }
}

/// Returns the first keys that hold a value on the node, one more than an error lists, over a new
/// connection. `None` if the node refuses, fails or does not answer by `until`: the error about the
/// missing key matters more than that one.
async fn some_keys(target: &NodeTarget, until: Instant) -> Option<Vec<String>> {
    let request =
        AdminRequest::Keys { prefix: String::new(), after: None, limit: 1 + NAMED_MAX as u32 };
    match timeout_at(until, target.ask(&request, Duration::ZERO)).await {
        Ok(Ok(AdminResponse::Keys(keys))) => Some(keys),
        _ => None,
    }
}

/// The error for a key that holds nothing; it lists at most [`NAMED_MAX`] keys of the asked node
/// that hold a value, if they are known. `None` for `keys` means that they are not known, which is
/// another text than for an empty list. The level tells whether other nodes may hold a value.
fn missing_key(key: &str, level: ConsistencyLevel, keys: Option<&[String]>) -> MissingKey {
    let nothing = match level {
        ConsistencyLevel::Majority { .. } => "holds nothing on a majority of the replicas",
        _ => "holds nothing on this node, others may hold a value (--majority)",
    };
    let there = match keys {
        None => "`ostraca data list` lists the keys of this node".to_owned(),
        Some([]) => "this node holds no keys".to_owned(),
        Some(keys) => {
            let names = keys.iter().take(NAMED_MAX).map(|key| printable::one_line(key));
            let names = names.collect::<Vec<_>>().join(", ");
            let more = if keys.len() > NAMED_MAX { " and more: `ostraca data list`" } else { "" };
            format!("this node holds the keys {names}{more}")
        }
    };
    MissingKey(format!("{key} {nothing}; {there}"))
}

impl Set {
    /// Sets the key: VALUE is taken as JSON, or as text with `--text` or if it is not JSON, even if
    /// it is empty. Prints as [`changed`] does. The node decides whether the key may be set.
    async fn run(self) -> CommandResult {
        let Self { key, value, text, consistency, asking } = self;
        let item = if text { rmpv::Value::from(value) } else { shown::read(&value) };
        let (value, level) = (Packed::new(&item)?, consistency.level());
        let request = AdminRequest::Set { key: key.clone(), value, level };
        changed(&asking, &request, &consistency, json!({ "set": key })).await
    }
}

impl Delete {
    /// Deletes the key, without a confirmation. A key that holds nothing is not an error. Prints as
    /// [`changed`] does.
    async fn run(self) -> CommandResult {
        let Self { key, consistency, asking } = self;
        let request = AdminRequest::Delete { key: key.clone(), level: consistency.level() };
        changed(&asking, &request, &consistency, json!({ "deleted": key })).await
    }
}

/// Makes a change. The text output of a success is empty; the JSON output is `json`, an object,
/// with the consistency added. Fails with a refusal of the node, or with `Unexpected` for any
/// answer but `Done`; nothing is printed then, and the change may have been made if no answer came.
async fn changed(
    asking: &NodeOptions,
    request: &AdminRequest,
    consistency: &Consistency,
    mut json: serde_json::Value,
) -> CommandResult {
    let NodeOptions { target, output } = asking;
    let AdminResponse::Done = target.ask(request, consistency.patience()).await? else {
        return Err(AdminRequestError::Unexpected.into());
    };
    json["consistency"] = consistency.name().into();
    output.print(&json, String::new)
}

impl WatchArguments {
    /// Prints the current value of the key (also that it holds nothing), then a line per change; as
    /// JSON, one object per line.
    ///
    /// Ends with success on Ctrl-C once the watch has begun, or when the reader has closed stdout,
    /// which shows only at the next line. Fails if the first value does not come within [`SOON`],
    /// if the watch ends, once the node is [`lost`], or if stdout fails. A reader that does not
    /// read blocks all of this, probes and Ctrl-C included.
    async fn run(self) -> CommandResult {
        let Self { key, asking: NodeOptions { target, output } } = self;
        let mut watch = target.connect().await?.watch(&key).await?;
        let watching = async {
            let first = tokio::time::timeout(SOON, watch.next()).await;
            let mut data = first.map_err(|_| AdminRequestError::Silent { within: SOON })??;
            loop {
                let line = match output.is_json() {
                    true => {
                        let text = shown::json(&key, data.as_ref()).to_string();
                        printable::json(&text).into_owned()
                    }
                    false => printable::one_line(&line(data.as_ref())).into_owned(),
                };
                if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
                    return match error.kind() {
                        io::ErrorKind::BrokenPipe => Ok(()), // the reader has closed the pipe
                        _ => Err(Box::<dyn Error>::from(error)),
                    };
                }
                data = watch.next().await?;
            }
        };
        tokio::select! {
            ended = watching => ended,
            error = lost(&target) => Err(error),
            stop = tokio::signal::ctrl_c() => Ok(stop?),
        }
    }
}

/// Completes once the node does not answer one probe, with the error of that probe; otherwise
/// never. The watching connection can't show this: it is silent for an unchanged value as well.
///
/// Asks over a new connection, first after [`PROBE_EVERY`] and then again that long after each
/// answer. Any answer, also a refusal, shows that the node is alive. Errors for which
/// [`is_no_answer`] is `false`, such as a connection that breaks, are ignored.
async fn lost(target: &NodeTarget) -> Box<dyn Error> {
    let request = AdminRequest::Health { within_ms: 0 };
    loop {
        tokio::time::sleep(PROBE_EVERY).await;
        match target.ask_within(&request, PROBE_WITHIN).await {
            Err(error) if is_no_answer(&*error) => return error,
            _ => {} // the node answers; a refusal is an answer as well
        }
    }
}

/// Whether an error means that nobody answers at the address: no answer in time, or no connection.
/// Every failed connection to a control socket counts, one over the network only if
/// [`is_unreachable`]. A refusal, or a connection that broke, does not count.
fn is_no_answer(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(AdminRequestError::Silent { .. }))
        || error.is::<AdminConnectError>()
        || error.downcast_ref().is_some_and(is_unreachable)
}

/// Formats a line of a watch, without a line end: the time of printing in UTC, to the second, then
/// type and value as JSON, or that the key holds nothing. The caller escapes it.
fn line(data: Option<&Data>) -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    match data {
        None => format!("{now}  holds nothing"),
        Some(data) => format!("{now}  {}  {}", data.shape, shown::value(data)),
    }
}

impl List {
    /// Prints the keys with the prefix, or nothing (as JSON, an empty list) if there are none; that
    /// is a success. Reads all pages over one connection before it prints, so that a failure prints
    /// no part of the list. Each page has [`SOON`] of its own. Keys that change meanwhile may be
    /// listed or not.
    async fn run(self) -> CommandResult {
        let Self { prefix, asking: NodeOptions { target, output } } = self;
        let mut client = target.connect().await?;
        let mut all = Vec::new(); // ≤ the node's keys
        while page(&mut client, &prefix, &mut all).await? == Page::Full {}
        if output.is_json() {
            return output.print(&all, String::new);
        }
        print_answer(
            &all.iter().map(|key| format!("{}\n", printable::one_line(key))).collect::<String>(),
        )
    }
}

/// Whether further keys may follow: a full page may be the last one as well.
#[derive(PartialEq, Eq)]
enum Page {
    Full,
    Last,
}

/// Adds the page of keys after the last one of `all`, at most [`KEYS_MAX`], to `all`, which must be
/// in the order of the keys. Fails with `Unexpected` for another answer; `all` is then unchanged.
async fn page(
    client: &mut Client,
    prefix: &str,
    all: &mut Vec<String>,
) -> Result<Page, Box<dyn Error>> {
    let request = AdminRequest::Keys {
        prefix: prefix.to_owned(),
        after: all.last().cloned(),
        limit: KEYS_MAX,
    };
    let AdminResponse::Keys(keys) = client.ask(&request, SOON).await? else {
        return Err(AdminRequestError::Unexpected.into());
    };
    let page = if keys.len() < KEYS_MAX as usize { Page::Last } else { Page::Full };
    all.extend(keys);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: if the node did not tell its keys, the error claimed that it holds none.
    #[test]
    fn error_for_a_missing_key_lists_only_known_keys() {
        let text = |level: ConsistencyLevel, names: Option<&str>| {
            let keys = names.map(|it| it.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
            missing_key("k", level, keys.as_deref()).0
        };
        let nothing = "k holds nothing on this node, others may hold a value (--majority); ";
        for (names, there) in [
            (None, "`ostraca data list` lists the keys of this node"),
            (Some(""), "this node holds no keys"),
            (Some("1 2"), "this node holds the keys 1, 2"),
            (
                Some("1 2 3 4 5 6 7 8 9"),
                "this node holds the keys 1, 2, 3, 4, 5, 6, 7, 8 and more: `ostraca data list`",
            ),
        ] {
            assert_eq!(text(ConsistencyLevel::Local, names), format!("{nothing}{there}"));
        }
        let majority = text(ConsistencyLevel::Majority { within_ms: 1 }, Some(""));
        assert!(majority.starts_with("k holds nothing on a majority of the replicas; "));
    }
}
