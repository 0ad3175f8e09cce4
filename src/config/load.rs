//! Settings from a file and the environment. The file is read only once, so it may be a pipe. All
//! wrong settings are reported together; no further ones are looked for from `WRONG_MAX` on.

mod error;

use std::path::{Path, PathBuf};

use figment::providers::Env;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};
use libp2p::Multiaddr;
use serde::de::DeserializeOwned;

pub use self::error::LoadError;
pub(super) use self::error::list;
use super::{Config, defaults};
use crate::net::address;

/// Prefix of environment variables. In the rest, two underscores stand for a dot and one for a
/// hyphen: `OSTRACA__CLUSTER__GOSSIP_INTERVAL=2s`. Lower case is accepted, too.
const PREFIX: &str = "OSTRACA__";

/// Prefix of variables that may lack an underscore.
const NEAR_PREFIX: &str = "OSTRACA_";

/// Number of errors from which the values of sections are no longer read. Wrong names of variables
/// and of top-level sections, and doubled aliases, are found before and are not limited.
const WRONG_MAX: usize = 50;

/// Subsections of `[cluster]` that have their own fields in [`Config`].
const BELOW_CLUSTER: [&str; 2] = ["sharding", "shutdown"];

/// The top-level sections of the configuration.
const SECTIONS: [&str; 4] = ["cluster", "ddata", "management", "net"];

/// Settings with two names: the section, the alias and the field's own name. Both are read.
const ALIASES: [(&str, &str, &str); 1] = [("net.limits", "max-message-size", "message-bytes-max")];

/// Settings that are lists of addresses, and the kinds of hosts that they accept.
const ADDRESSES: [(&str, &str, AcceptedHosts); 3] = [
    ("net", "listen", AcceptedHosts::Numbers), // a node listens at its own interfaces
    ("net", "advertise", AcceptedHosts::Any),
    ("cluster", "seeds", AcceptedHosts::Any),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptedHosts {
    /// IP addresses and host names.
    Any,
    /// IP addresses, but no host names.
    Numbers,
}

impl Config {
    /// Reads settings from a TOML file; environment variables override them. A setting that neither
    /// contains has its default; `ostraca config --defaults` prints and explains all defaults.
    ///
    /// A variable is called like its key, in capitals, with two underscores for each dot and one
    /// for each hyphen; a list is written as in TOML:
    /// `OSTRACA__CLUSTER__SEEDS='["/ip4/10.0.0.1/tcp/4001"]'`.
    ///
    /// # Errors
    /// [`LoadError`] names the file or the variable, the key, the value found and the allowed
    /// values. An unknown key is an error, and so is a variable that is almost one of a setting;
    /// several errors are reported together. A file that cannot be read or is no TOML is reported
    /// alone. Ranges and combinations are checked later, by [`check`](Self::check) in
    /// `Node::start`.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let file = dir.path().join("node.toml");
    /// std::fs::write(&file, "[cluster]\ngossip-interval = \"2s\"")?;
    /// let config = Config::load(&file)?;
    /// assert_eq!(config.cluster.gossip_interval, secs(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| LoadError::File { path: path.to_owned(), source })?;
        let file = FileSettings::parse(path, &text)?;
        extract(&Figment::from(file).merge(environment()), misspelt_variables())
    }

    /// Reads settings from the environment only; without any variable, the defaults.
    ///
    /// # Errors
    /// Those of [`load`](Self::load) about variables.
    pub fn from_env() -> Result<Self, LoadError> {
        extract(&Figment::from(environment()), misspelt_variables())
    }
}

/// The settings of a file, with its path for errors.
struct FileSettings {
    path: PathBuf,
    set: Dict,
}

impl FileSettings {
    /// Parses the text of the file at `path`, which is only for errors. An empty text sets nothing.
    ///
    /// # Errors
    /// [`LoadError::Syntax`] if it is not TOML. Names and types are not checked yet.
    fn parse(path: &Path, text: &str) -> Result<Self, LoadError> {
        let syntax = |why: toml::de::Error| LoadError::syntax(path, text, &why);
        let table = toml::from_str::<toml::Table>(text).map_err(syntax)?;
        let path = path.to_owned();
        match Value::serialize(table) {
            Ok(Value::Dict(_, set)) => Ok(Self { path, set }),
            Ok(_) => Err(LoadError::Syntax { path, why: "it is not a table".to_owned() }),
            Err(error) => Err(LoadError::Syntax { path, why: error.kind.to_string() }),
        }
    }
}

impl Provider for FileSettings {
    /// Names the file as the source, so that [`is_from_file`] and errors recognize its values.
    fn metadata(&self) -> Metadata {
        Metadata::from("TOML file", self.path.as_path())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.set.clone()))
    }
}

/// The variables with [`PREFIX`], in capitals or not, as keys in lower case with dots and hyphens.
/// The values are parsed like TOML values where possible, and are strings otherwise.
fn environment() -> Env {
    Env::prefixed(PREFIX)
        .map(|name| name.as_str().replace("__", ".").replace('_', "-").to_lowercase().into())
}

/// Errors for variables that would be settings if they had two underscores in the right places:
/// `OSTRACA_CLUSTER__ROLES`, `OSTRACA_CLUSTER_ROLES`. Other variables with the prefix are ignored,
/// because Kubernetes sets `OSTRACA_NET_PORT` for a service `ostraca-net`. Names that are not UTF-8
/// are ignored, too.
fn misspelt_variables() -> Vec<LoadError> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter_map(|name| misspelt(&name)).collect()
}

/// The error for one variable; `None` if its name is right or not similar to a setting. After one
/// underscore the rest must be a setting of the section itself, not of a subsection; after two, any
/// rest is taken for a setting. The case does not matter, as for variables with the right name.
fn misspelt(name: &str) -> Option<LoadError> {
    let capitals = name.to_ascii_uppercase();
    let rest = capitals.strip_prefix(NEAR_PREFIX).filter(|rest| !rest.starts_with('_'))?;
    let (section, below) = rest.split_once('_')?;
    let section = SECTIONS.into_iter().find(|known| known.to_uppercase() == section)?;
    let right = match below.strip_prefix('_') {
        Some(below) => format!("{PREFIX}{}__{below}", section.to_uppercase()),
        None => {
            let key = below.to_lowercase().replace('_', "-");
            defaults::sections_with(&key).find(|known| *known == section)?;
            format!("{PREFIX}{}__{below}", section.to_uppercase())
        }
    };
    Some(LoadError::Setting {
        origin: "the environment".to_owned(),
        key: name.to_owned(),
        why: format!("two underscores stand for a dot: write {right}"),
    })
}

/// Reads all sections from the merged sources; the later source overrides single settings of the
/// earlier one. `wrong` contains the errors found before.
///
/// # Errors
/// All of `wrong`, then unknown top-level sections, doubled aliases, and the errors in the
/// sections, which are read to the end as far as [`WRONG_MAX`] permits: net, ddata, management,
/// sharding, shutdown, then the rest of cluster. A source that cannot be read is one of them.
fn extract(all: &Figment, mut wrong: Vec<LoadError>) -> Result<Config, LoadError> {
    let mut sections = Section::root(all, &mut wrong);
    sections.check_names(&SECTIONS, &mut wrong);
    sections.resolve_aliases(&mut wrong);
    sections.normalize_addresses();
    let cluster = sections.subsection("cluster", &mut wrong);
    let config = Config {
        net: sections.subsection("net", &mut wrong).extract(&mut wrong),
        ddata: sections.subsection("ddata", &mut wrong).extract(&mut wrong),
        management: sections.subsection("management", &mut wrong).extract(&mut wrong),
        sharding: cluster.subsection("sharding", &mut wrong).extract(&mut wrong),
        shutdown: cluster.subsection("shutdown", &mut wrong).extract(&mut wrong),
        cluster: cluster.without(&BELOW_CLUSTER).extract(&mut wrong),
    };
    LoadError::of(wrong).map_or(Ok(config), Err)
}

/// A section of the settings that are set.
struct Section<'a> {
    /// All sources, to name the source of a setting in errors.
    all: &'a Figment,
    /// Path of the section with dots; empty for the root.
    key: String,
    /// The settings of the section, including its subsections.
    set: Dict,
}

impl<'a> Section<'a> {
    /// The merged settings of all sources; empty if nothing is set. A source that cannot be read is
    /// reported, and nothing is set then.
    fn root(all: &'a Figment, wrong: &mut Vec<LoadError>) -> Self {
        let found = Provider::data(all).unwrap_or_else(|error| {
            wrong.push(setting(all, "", &error, None));
            Map::new()
        });
        let set = found.into_values().next().unwrap_or_default();
        Self { all, key: String::new(), set }
    }

    fn path_of(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    /// If the file has a setting under one name and the environment under the other, keeps the one
    /// of the environment. Two names in one source are an error; then the alias is removed, so that
    /// it is reported only once, and the own name's value is still read. A single name, also the
    /// alias, stays as it is. Must be called at the root.
    fn resolve_aliases(&mut self, wrong: &mut Vec<LoadError>) {
        for (section, alias, name) in ALIASES {
            let Some(set) = find_section(&mut self.set, section) else { continue };
            let (Some(one), Some(other)) = (set.get(alias), set.get(name)) else { continue };
            match (is_from_file(self.all, one), is_from_file(self.all, other)) {
                (true, false) => drop(set.remove(alias)),
                (false, true) => drop(set.remove(name)),
                _ => {
                    set.remove(alias);
                    let key = format!("{section}.{alias}");
                    let why = format!(
                        "is the same setting as {name}, which is set as well: leave one of them out"
                    );
                    let origin = origin(self.all, &key);
                    wrong.push(LoadError::Setting { origin, key, why });
                }
            }
        }
    }

    /// Rewrites `HOST:PORT` as a multiaddr in the lists of [`ADDRESSES`]. Text that is not an
    /// address remains unchanged, so that the error shows the configured text; so does a host name
    /// where only IP addresses are accepted. Values that are no lists, and elements that are no
    /// strings, are left alone. Reports nothing. Must be called at the root.
    fn normalize_addresses(&mut self) {
        for (section, name, hosts) in ADDRESSES {
            let set = find_section(&mut self.set, section).and_then(|set| set.get_mut(name));
            let Some(Value::Array(_, all)) = set else { continue };
            for value in all {
                let Value::String(_, text) = value else { continue };
                let address = address::parse(text).ok();
                let is_name = |it: &Multiaddr| address::socket_address(it).is_none();
                if let Some(address) =
                    address.filter(|it| hosts == AcceptedHosts::Any || !is_name(it))
                {
                    *text = address.to_string();
                }
            }
        }
    }

    /// Reports each key of this section that is not among `names`; nothing is removed.
    fn check_names(&self, names: &[&str], wrong: &mut Vec<LoadError>) {
        for unknown in self.set.keys().filter(|name| !names.contains(&name.as_str())) {
            let (key, why) = (self.path_of(unknown), error::unknown_section(unknown, names));
            wrong.push(LoadError::Setting { origin: origin(self.all, &key), key, why });
        }
    }

    /// Returns a copy of a subsection; empty if nothing is set there. A value in its place is
    /// reported, and the subsection is empty, too. This section keeps it: see `without`.
    fn subsection(&self, name: &str, wrong: &mut Vec<LoadError>) -> Self {
        let key = self.path_of(name);
        let set = match self.set.get(name) {
            None => Dict::new(),
            Some(Value::Dict(_, set)) => set.clone(),
            Some(other) => {
                let found = other.to_actual();
                let why = format!("found {found}, but this is a section: write [{key}]");
                let (origin, key) = (origin(self.all, &key), key.clone());
                wrong.push(LoadError::Setting { origin, key, why });
                Dict::new()
            }
        };
        Self { all: self.all, key, set }
    }

    /// This section without the settings and subsections of these names.
    fn without(mut self, names: &[&str]) -> Self {
        self.set.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    /// Deserializes this section. Each wrong setting is reported and left out, so that further ones
    /// are found; it has its default in the result. Returns the default of the whole section,
    /// without further reports, once `wrong` has [`WRONG_MAX`] entries (also if it had as many
    /// before) or an error names no value to leave out. In each of these cases `wrong` is not
    /// empty, so the caller discards the result.
    fn extract<T: DeserializeOwned + Default>(mut self, wrong: &mut Vec<LoadError>) -> T {
        while wrong.len() < WRONG_MAX {
            match Value::from(self.set.clone()).deserialize() {
                Ok(settings) => return settings,
                Err(error) => {
                    wrong.push(setting(self.all, &self.key, &error, Some(&self.set)));
                    if !remove(&mut self.set, &error.path) {
                        break;
                    }
                }
            }
        }
        T::default()
    }
}

/// Removes the value at `path`, or the whole list that contains it, or the innermost section on the
/// path if that lacks the value. Returns `false` if there is nothing to remove: for an empty path,
/// and if `set` itself lacks the first name.
fn remove(set: &mut Dict, path: &[String]) -> bool {
    let Some((name, below)) = path.split_first() else { return false };
    match set.get_mut(name) {
        None => false,
        Some(Value::Dict(_, inner)) if !below.is_empty() => {
            remove(inner, below) || set.remove(name).is_some()
        }
        Some(_) => set.remove(name).is_some(),
    }
}

/// Returns the string (in quotes), number or boolean at `path` as errors show it; in a list, a name
/// of the path is an index. `None` for other values, and if there is none. Does not hide secrets.
fn found(set: &Dict, path: &[String]) -> Option<String> {
    let (name, below) = path.split_first()?;
    let mut value = set.get(name)?;
    for name in below {
        value = match value {
            Value::Dict(_, inner) => inner.get(name)?,
            Value::Array(_, values) => values.get(name.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    match value {
        Value::String(_, text) => Some(format!("{text:?}")),
        Value::Num(..) | Value::Bool(..) => Some(value.to_actual().to_string()),
        _ => None,
    }
}

/// Returns the section at a path with dots; `None` if nothing, or no section, is set there.
fn find_section<'a>(set: &'a mut Dict, section: &str) -> Option<&'a mut Dict> {
    section.split('.').try_fold(set, |set, name| match set.get_mut(name)? {
        Value::Dict(_, below) => Some(below),
        _ => None,
    })
}

/// Whether a value comes from a file; otherwise it comes from the environment. `false` also if its
/// source is unknown.
fn is_from_file(all: &Figment, value: &Value) -> bool {
    let metadata = all.get_metadata(value.tag());
    metadata.is_some_and(|metadata| matches!(metadata.source, Some(Source::File(_))))
}

/// Converts an error of figment about the section at `above` (empty: the root). `set` holds the
/// settings of that section and gives the value found; without it only the error's own text may
/// show one. [`error::why`] hides secrets.
fn setting(all: &Figment, above: &str, error: &figment::Error, set: Option<&Dict>) -> LoadError {
    let above = Some(above).filter(|above| !above.is_empty());
    let key: Vec<&str> = above.into_iter().chain(error.path.iter().map(String::as_str)).collect();
    let key = key.join(".");
    let found = set.and_then(|set| found(set, &error.path));
    LoadError::Setting { origin: origin(all, &key), why: error::why(&key, &error.kind, found), key }
}

/// Returns the source (file or variable) of a key, or else of the innermost section above it that
/// has one; "settings" if none has.
fn origin(all: &Figment, key: &str) -> String {
    let mut key = key;
    loop {
        if let Some(metadata) = all.find_metadata(key) {
            return described(metadata, key);
        }
        let Some((above, _)) = key.rsplit_once('.') else { return "settings".to_owned() };
        key = above;
    }
}

/// Names a source in errors: the path of the file; for any other source, the variable that `key`
/// would have in the environment.
fn described(metadata: &Metadata, key: &str) -> String {
    match &metadata.source {
        Some(Source::File(path)) => path.display().to_string(),
        _ => {
            let name = key.replace('.', "__").replace('-', "_").to_uppercase();
            format!("{PREFIX}{name} in the environment")
        }
    }
}

/// Reads settings from a text, without the environment.
#[cfg(test)]
pub(super) fn from_text(text: &str) -> Result<Config, LoadError> {
    extract(&Figment::from(FileSettings::parse(Path::new("node.toml"), text)?), Vec::new())
}

#[cfg(test)]
mod tests;
