//! Settings from a file and the environment: each error names where it was set, the key, what was
//! found, and what is allowed.

use std::io;
use std::path::{Path, PathBuf};

use figment::providers::{Env, Format, Toml};
use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Source};
use serde::de::DeserializeOwned;

use super::Config;

/// What variables of the environment begin with. Two underscores stand for a dot, one for a
/// hyphen: `OSTRACA__CLUSTER__GOSSIP_INTERVAL=2s`.
const PREFIX: &str = "OSTRACA__";

/// Sections of `[cluster]` that are rooms of their own.
const BELOW_CLUSTER: [&str; 2] = ["sharding", "shutdown"];

/// All sections.
const SECTIONS: [&str; 4] = ["cluster", "ddata", "management", "net"];

/// Settings that have two names: the section, what the specification calls it, and what it is here.
const ALIASES: [(&str, &str, &str); 1] = [("net.limits", "max-message-size", "message-bytes-max")];

/// Why settings can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file can't be read.
    #[error("{path} can't be read: name another file, or let this user read it", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no TOML.
    #[error("{path} is no TOML: {why}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where, and what was expected.
        why: String,
    },
    /// A setting has a wrong name or a wrong value.
    #[error("{origin}: {key}: {why}")]
    Setting {
        /// The file, or the variable of the environment.
        origin: String,
        /// Which, with its sections: `cluster.gossip-interval`.
        key: String,
        /// What was found, and what is allowed.
        why: String,
    },
}

impl Config {
    /// Settings from a TOML file, overridden by the environment. What is set nowhere has its
    /// default; `ostraca config --defaults` prints all of them with what they mean.
    ///
    /// A variable is called like its key, in capitals, with two underscores for each dot and one
    /// for each hyphen; a list is written as in TOML:
    /// `OSTRACA__CLUSTER__SEEDS='["/ip4/10.0.0.1/tcp/4001"]'`.
    ///
    /// # Errors
    /// [`LoadError`] names the file or the variable, the key, what was found and what is allowed.
    /// Whether settings fit together [`check`](Self::check) says, which `Node::start` asks.
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
        let syntax = |why: toml::de::Error| LoadError::Syntax {
            path: path.to_owned(),
            why: why.to_string().trim_end().to_owned(),
        };
        toml::from_str::<toml::Table>(&text).map_err(syntax)?;
        extract(&Figment::from(Toml::file_exact(path)).merge(environment()))
    }

    /// Settings from the environment alone.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_env() -> Result<Self, LoadError> {
        extract(&Figment::from(environment()))
    }
}

fn environment() -> Env {
    Env::prefixed(PREFIX)
        .map(|name| name.as_str().replace("__", ".").replace('_', "-").to_lowercase().into())
}

fn extract(all: &Figment) -> Result<Config, LoadError> {
    let mut sections = Section::root(all)?;
    sections.only(&SECTIONS)?;
    sections.one_name_each()?;
    let cluster = sections.below("cluster")?;
    Ok(Config {
        net: sections.below("net")?.extract()?,
        ddata: sections.below("ddata")?.extract()?,
        management: sections.below("management")?.extract()?,
        sharding: cluster.below("sharding")?.extract()?,
        shutdown: cluster.below("shutdown")?.extract()?,
        cluster: cluster.without(&BELOW_CLUSTER).extract()?,
    })
}

/// A part of what is set.
struct Section<'a> {
    all: &'a Figment,
    key: String,
    set: Dict,
}

impl<'a> Section<'a> {
    fn root(all: &'a Figment) -> Result<Self, LoadError> {
        let found = figment::Provider::data(all).map_err(|error| setting(all, "", &error))?;
        let set = found.into_values().next().unwrap_or_default();
        Ok(Self { all, key: String::new(), set })
    }

    fn path_of(&self, name: &str) -> String {
        if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) }
    }

    /// Of a setting that stands under one name in the file and under the other in the environment,
    /// keeps the environment's.
    fn one_name_each(&mut self) -> Result<(), LoadError> {
        for (section, alias, name) in ALIASES {
            let Some(set) = within(&mut self.set, section) else { continue };
            let (Some(one), Some(other)) = (set.get(alias), set.get(name)) else { continue };
            match (is_from_file(self.all, one), is_from_file(self.all, other)) {
                (true, false) => drop(set.remove(alias)),
                (false, true) => drop(set.remove(name)),
                _ => {
                    let key = format!("{section}.{alias}");
                    let why = format!(
                        "is the same setting as {name}, which is set as well: leave one of them out"
                    );
                    return Err(LoadError::Setting { origin: origin(self.all, &key), key, why });
                }
            }
        }
        Ok(())
    }

    /// Refuses what has another name.
    fn only(&self, names: &[&str]) -> Result<(), LoadError> {
        let Some(unknown) = self.set.keys().find(|name| !names.contains(&name.as_str())) else {
            return Ok(());
        };
        let key = self.path_of(unknown);
        let why = format!("there is no such section; the sections are {}", names.join(", "));
        Err(LoadError::Setting { origin: origin(self.all, &key), key, why })
    }

    /// A section within; empty if nothing is set there.
    fn below(&self, name: &str) -> Result<Self, LoadError> {
        let key = self.path_of(name);
        let set = match self.set.get(name) {
            None => Dict::new(),
            Some(Value::Dict(_, set)) => set.clone(),
            Some(other) => {
                let found = other.to_actual();
                let why = format!("found {found}, but this is a section: write [{key}]");
                return Err(LoadError::Setting { origin: origin(self.all, &key), key, why });
            }
        };
        Ok(Self { all: self.all, key, set })
    }

    fn without(mut self, names: &[&str]) -> Self {
        self.set.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    fn extract<T: DeserializeOwned>(self) -> Result<T, LoadError> {
        let Self { all, key, set } = self;
        Value::from(set).deserialize().map_err(|error| setting(all, &key, &error))
    }
}

/// The section with that name, if anything is set there.
fn within<'a>(set: &'a mut Dict, section: &str) -> Option<&'a mut Dict> {
    section.split('.').try_fold(set, |set, name| match set.get_mut(name)? {
        Value::Dict(_, below) => Some(below),
        _ => None,
    })
}

fn is_from_file(all: &Figment, value: &Value) -> bool {
    let metadata = all.get_metadata(value.tag());
    metadata.is_some_and(|metadata| matches!(metadata.source, Some(Source::File(_))))
}

/// What figment found, in the section at `above`.
fn setting(all: &Figment, above: &str, error: &figment::Error) -> LoadError {
    let above = Some(above).filter(|above| !above.is_empty());
    let key: Vec<&str> = above.into_iter().chain(error.path.iter().map(String::as_str)).collect();
    let key = key.join(".");
    LoadError::Setting { origin: origin(all, &key), key, why: error.kind.to_string() }
}

/// Where a key, or the section that it belongs to, was set.
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

fn described(metadata: &Metadata, key: &str) -> String {
    match &metadata.source {
        Some(Source::File(path)) => path.display().to_string(),
        _ => {
            let name = key.replace('.', "__").replace('-', "_").to_uppercase();
            format!("{PREFIX}{name} in the environment")
        }
    }
}

#[cfg(test)]
mod tests;
