//! Errors of reading settings. Each text names the file or the variable, the key, the value found
//! and the allowed values. No text contains a secret.

use std::io;
use std::path::{Path, PathBuf};

use figment::error::{Actual, Kind};

use crate::config::{defaults, refused};

/// Maximum number of settings that an error lists if none of them resembles the name found. Values
/// and sections are always listed.
const LISTED_MAX: usize = 24;

/// Minimum similarity (1 means equal) for suggesting a name.
const SIMILAR_MIN: f64 = 0.6;

/// Minimum similarity for suggesting a name of this section if another section has the name found.
const SURE_MIN: f64 = 0.85;

/// Why settings can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file can't be read.
    #[error("{path} can't be read: name another file, or let this user read it", path = path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not valid TOML.
    #[error("{path} is not valid TOML: {why}", path = path.display())]
    Syntax {
        /// The path of the file.
        path: PathBuf,
        /// Line, column, and what was expected there. The line itself is left out, because it may
        /// hold a secret.
        why: String,
    },
    /// A setting has an unknown name or an invalid value.
    #[error("{origin}: {key}: {why}")]
    Setting {
        /// The file, or the variable of the environment.
        origin: String,
        /// The setting with its sections: `cluster.gossip-interval`.
        key: String,
        /// The value found and the allowed values.
        why: String,
    },
    /// Several settings have wrong names or wrong values: at least two errors, none of them
    /// `Several`.
    #[error("{count} settings are wrong:{list}", count = .0.len(), list = list(.0))]
    Several(Vec<LoadError>),
}

impl LoadError {
    /// Returns one error for all of them: `None` if there are none, the error itself if there is
    /// one.
    pub(super) fn of(mut all: Vec<Self>) -> Option<Self> {
        match all.len() {
            0 | 1 => all.pop(),
            _ => Some(Self::Several(all)),
        }
    }

    /// Converts an error of the TOML parser: joins its lines by commas, and adds line and column,
    /// counted from 1 in characters, if it has a position. Does not quote the line, because it may
    /// hold a secret.
    pub(super) fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let message = error.message().trim_end().replace('\n', ", ");
        let why = match error.span() {
            Some(span) => {
                let before = text.get(..span.start).unwrap_or(text);
                let line = before.matches('\n').count() + 1;
                let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
                format!("line {line}, column {column}: {message}")
            }
            None => message,
        };
        Self::Syntax { path: path.to_owned(), why }
    }
}

/// Formats errors as lines below a heading: each begins with a line break and two spaces.
pub(in crate::config) fn list<E: std::fmt::Display>(all: &[E]) -> String {
    all.iter().map(|error| format!("\n  {error}")).collect()
}

/// Whether the value of this key must not be printed: any part of its path contains `secret` in
/// lower case, also `cluster-secret-file`.
fn is_secret(key: &str) -> bool {
    key.contains("secret")
}

/// Describes the error at `key`. `found` is the value if it is a string, a number or a boolean; it
/// is shown only where the error does not contain it already, and not for a length. The value of a
/// secret is not shown, as far as the parser of the setting does not quote it. For listen and
/// advertised addresses, adds the accepted forms. Unknown names get a suggestion.
pub(super) fn why(key: &str, kind: &Kind, found: Option<String>) -> String {
    let found_is = |actual: &Actual| match is_secret(key) {
        true => "another type".to_owned(),
        false => actual.to_string(),
    };
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    match kind {
        Kind::UnknownField(_, names) => unknown_setting(section, name, names),
        Kind::UnknownVariant(found, names) => unknown_value(found, names),
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            format!("found {}, expected {}", found_is(actual), expected.replace('`', ""))
        }
        Kind::InvalidLength(len, expected) => format!("found {len} values, expected {expected}"),
        Kind::Message(why) if is_address(key) => {
            let found = found.unwrap_or_else(|| "another type".to_owned());
            format!(
                "found {found}, which is not an address ({why}): write 10.0.0.1:4100, \
                 /ip4/10.0.0.1/tcp/4100 or, except for net.listen, a.example:4100"
            )
        }
        Kind::Message(why) => match found.filter(|found| !is_secret(key) && !why.contains(found)) {
            Some(found) => format!("found {found}: {why}"),
            None => why.clone(),
        },
        other => other.to_string(),
    }
}

/// Whether the key is a list of addresses that are parsed while settings are read, or an element of
/// it. Seeds are checked later.
fn is_address(key: &str) -> bool {
    key.starts_with("net.listen") || key.starts_with("net.advertise")
}

/// Text for a name that its section does not have. `names` are the settings of the section.
///
/// For a removed setting, names its replacement. Otherwise suggests the most similar name of the
/// section, unless other sections have exactly this name: then it names these, except if the
/// similarity is at least [`SURE_MIN`]. With neither, lists the section's names, or refers to the
/// command that prints them if there are more than [`LISTED_MAX`].
fn unknown_setting(section: &str, name: &str, names: &[&str]) -> String {
    if let Some(instead) = refused::replacement(section, name) {
        return format!("this setting was removed: {instead}");
    }
    let names: Vec<&str> = names.iter().copied().filter(|name| !name.is_empty()).collect();
    let elsewhere: Vec<String> = defaults::sections_with(name)
        .filter(|other| *other != section)
        .map(|other| format!("[{other}]"))
        .collect();
    let similar = nearest(name, names.iter().copied());
    let is_misspelt =
        elsewhere.is_empty() || similar.is_some_and(|it| similarity(name, it) >= SURE_MIN);
    if let Some(similar) = similar.filter(|_| is_misspelt) {
        return format!("there is no such setting: did you mean {similar}?");
    }
    match (elsewhere.is_empty(), names.len()) {
        (false, _) => {
            format!("there is no such setting here, but in {}", elsewhere.join(" and in "))
        }
        (true, ..=LISTED_MAX) => {
            format!("there is no such setting: [{section}] has {}", names.join(", "))
        }
        (true, _) => format!(
            "there is no such setting: `ostraca config --defaults` prints those of [{section}]"
        ),
    }
}

/// Text for a value that is none of the allowed `names`: all of them, after the most similar one if
/// one is similar.
fn unknown_value(found: &str, names: &[&str]) -> String {
    let names: Vec<&str> = names.to_vec();
    let meant = match nearest(found, names.iter().copied()) {
        Some(similar) => format!("did you mean {similar}? Allowed are "),
        None => "allowed are ".to_owned(),
    };
    format!("found {found}: {meant}{}", names.join(", "))
}

/// Text for a section that does not exist: all that do, after the most similar one if one is
/// similar.
pub(super) fn unknown_section(name: &str, sections: &[&str]) -> String {
    let meant = nearest(name, sections.iter().copied());
    let meant = meant.map_or_else(String::new, |similar| format!("did you mean {similar}? "));
    format!("there is no such section: {meant}the sections are {}", sections.join(", "))
}

/// Similarity of two names, from 0 to 1 for equal ones; upper and lower case differ.
fn similarity(name: &str, other: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(name, other)
}

/// Returns the most similar name of at least [`SIMILAR_MIN`], of equally similar ones the last;
/// `None` if there is none.
pub(super) fn nearest<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    all.map(|other| (similarity(name, other), other))
        .filter(|(similar, _)| *similar >= SIMILAR_MIN)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, other)| other)
}
