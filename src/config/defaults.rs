//! All settings with their defaults as a TOML file. The comments in this file are the doc comments
//! of the fields, so these must be readable without the code.

use std::fmt::Write;

use documented::{DocumentedFields, DocumentedVariants};
use ostraca_ddata::replicator::config as ddata;
use ostraca_ddata::replicator::epoch::EpochConfig;
use serde::Serialize;
use toml::{Table, Value};

use super::Config;
use crate::cluster::config as cluster;
use crate::cluster::downing;
use crate::management::config::Management;
use crate::net::config as net;
use crate::node::shutdown::Phase;
use crate::sharding::config as sharding;
use crate::sharding::{allocation, passivation::settings as passivation};

/// Maximum length of a comment line in bytes.
const LINE_MAX: usize = 96;

/// The fields of a struct of settings with their doc comments, in the order of the struct. Includes
/// fields that are sections of their own, such as `limits` of `net`.
struct Described {
    section: &'static str,
    names: &'static [&'static str],
    docs: &'static [&'static str],
}

const fn described<T: DocumentedFields>(section: &'static str) -> Described {
    Described { section, names: T::FIELD_NAMES, docs: T::FIELD_DOCS }
}

/// The sections in the order of the file.
const SECTIONS: [Described; 31] = [
    described::<net::NetConfig>("net"),
    described::<net::NetLimits>("net.limits"),
    described::<cluster::ClusterConfig>("cluster"),
    described::<cluster::FailureDetector>("cluster.failure-detector"),
    described::<cluster::HostingLease>("cluster.lease"),
    described::<cluster::Downing>("cluster.downing"),
    described::<downing::KeepMajority>("cluster.downing.keep-majority"),
    described::<downing::StaticQuorum>("cluster.downing.static-quorum"),
    described::<downing::KeepOldest>("cluster.downing.keep-oldest"),
    described::<downing::LeaseMajority>("cluster.downing.lease-majority"),
    described::<downing::Oldest>("cluster.downing.oldest"),
    described::<downing::QuorumLeader>("cluster.downing.quorum-leader"),
    described::<downing::MajorityLeader>("cluster.downing.majority-leader"),
    described::<downing::LeaderRoles>("cluster.downing.leader-roles"),
    described::<downing::RoleLeaderRoles>("cluster.downing.role-leader-roles"),
    described::<downing::AutoDown>("cluster.downing.auto-down"),
    described::<sharding::ShardingConfig>("cluster.sharding"),
    described::<sharding::ConstantRate>("cluster.sharding.entity-recovery-constant-rate"),
    described::<allocation::LeastShard>("cluster.sharding.least-shard"),
    described::<allocation::LeastShardRounds>("cluster.sharding.least-shard-rounds"),
    described::<allocation::ConsistentHashing>("cluster.sharding.consistent-hashing"),
    described::<passivation::PassivationConfig>("cluster.sharding.passivation"),
    described::<passivation::Segmented>("cluster.sharding.passivation.segmented"),
    described::<passivation::LeastFrequentlyUsed>(
        "cluster.sharding.passivation.least-frequently-used",
    ),
    described::<passivation::Composite>("cluster.sharding.passivation.composite"),
    described::<passivation::HillClimbing>("cluster.sharding.passivation.composite.hill-climbing"),
    described::<passivation::FrequencySketch>(
        "cluster.sharding.passivation.composite.frequency-sketch",
    ),
    described::<sharding::HealthCheck>("cluster.sharding.healthcheck"),
    described::<ddata::ReplicatorConfig>("ddata"),
    described::<EpochConfig>("ddata.epoch"),
    described::<Management>("management"),
];

/// Fields whose key differs from the field's name: section, field, key.
const RENAMED: [(&str, &str, &str); 5] = [
    ("net", "secret", "cluster-secret"),
    ("net", "secret_file", "cluster-secret-file"),
    ("ddata", "delta_enabled", "delta.enabled"),
    ("ddata", "durable_keys", "durable.keys"),
    ("ddata", "write_behind_interval", "durable.write-behind-interval"),
];

/// Returns a TOML file of all settings with their defaults; a comment explains each. A setting
/// without a default is commented out. The sections of `SECTIONS` come first, then the example of
/// an entity type, then the phases of the shutdown. The text loads as `Config::default()`.
///
/// # Example
/// ```
/// let text = ostraca::config::documented();
/// assert!(text.contains("state-store-mode = \"ddata\""));
/// ```
#[must_use]
pub fn documented() -> String {
    let all = defaults();
    let mut text = String::from(
        "# Every setting of a node, with its default. A setting that is left out has its default,\n\
         # so your file needs only the settings that differ. Environment variables override the\n\
         # file: OSTRACA__CLUSTER__GOSSIP_INTERVAL=2s sets cluster.gossip-interval.\n",
    );
    for section in &SECTIONS {
        write_section(&mut text, section, &all);
    }
    write_types(&mut text);
    for (nth, phase) in Phase::ALL.into_iter().enumerate() {
        let span = humantime_serde::re::humantime::format_duration(phase.default_timeout());
        let _ = writeln!(text, "\n[cluster.shutdown.{phase}]");
        if nth == 0 {
            comment(&mut text, "The phases of a coordinated shutdown, in order:");
            comment(
                &mut text,
                "the next one begins when all tasks of a phase end, or after its timeout.",
            );
        }
        comment(&mut text, phase.get_variant_docs());
        let _ = writeln!(text, "timeout = \"{span}\"");
    }
    text
}

/// Writes a commented-out example of a section of an entity type, after a comment with the names of
/// all settings that it may override, without values; there is no such section by default.
fn write_types(text: &mut String) {
    let names = sharding::Overrides::FIELD_NAMES.iter().map(|name| name.replace('_', "-"));
    let names = names.collect::<Vec<_>>().join(", ");
    text.push('\n');
    comment(
        text,
        "Where an entity type differs from `[cluster.sharding]`, in a section of its own:",
    );
    comment(text, &format!("{names}."));
    text.push_str("# [cluster.sharding.types.cart]\n# number-of-shards = 300\n");
}

/// Returns the defaults, by section and key; `sharding` is in the table `cluster`. Without the
/// phases of the shutdown, and without settings that are unset by default.
fn defaults() -> Table {
    let config = Config::default();
    let mut cluster = table(&config.cluster);
    cluster.insert("sharding".to_owned(), Value::Table(table(&config.sharding)));
    let sections = [
        ("net", table(&config.net)),
        ("cluster", cluster),
        ("ddata", table(&config.ddata)),
        ("management", table(&config.management)),
    ];
    sections.into_iter().map(|(name, table)| (name.to_owned(), Value::Table(table))).collect()
}

/// Returns settings as a table. Panics if they are not serialized as one.
fn table(settings: &impl Serialize) -> Table {
    Table::try_from(settings).expect("settings are a table")
}

/// Writes the header of a section and each of its settings below its doc comment: `key = value`, or
/// `# key =` if there is no default. Leaves out fields that have a section of their own, and
/// `types`. A table without a section of its own, such as `back-off`, becomes an inline table.
fn write_section(text: &mut String, section: &Described, all: &Table) {
    let _ = write!(text, "\n[{}]\n", section.section);
    for (name, docs) in section.names.iter().zip(section.docs) {
        let key = key_of(section.section, name);
        let path = format!("{}.{key}", section.section);
        if SECTIONS.iter().any(|other| other.section == path) || key == "types" {
            continue; // a section of its own
        }
        comment(text, docs);
        let _ = match find(all, &path) {
            Some(value) => writeln!(text, "{key} = {value}"),
            None => writeln!(text, "# {key} ="),
        };
    }
}

/// The sections that have a setting or a subsection of this name, in the order of the file. `key`
/// has hyphens, and dots only for a renamed one (`delta.enabled`). Does not know the phases of the
/// shutdown and the sections of entity types.
pub(super) fn sections_with(key: &str) -> impl Iterator<Item = &'static str> {
    let of = move |section: &&Described| {
        section.names.iter().any(|name| key_of(section.section, name) == key)
    };
    SECTIONS.iter().filter(of).map(|section| section.section)
}

/// The key of a field: its name with hyphens, or its name in [`RENAMED`], which may contain dots.
fn key_of(section: &str, name: &str) -> String {
    let renamed = RENAMED.iter().find(|(of, field, _)| (*of, *field) == (section, name));
    renamed.map_or_else(|| name.replace('_', "-"), |(_, _, key)| (*key).to_owned())
}

/// Returns the value at a path with dots; `None` if a part of the path is missing or no table.
fn find<'a>(all: &'a Table, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let value = all.get(first)?;
    if rest.is_empty() { Some(value) } else { find(value.as_table()?, rest) }
}

/// Writes a doc comment as comment lines of at most [`LINE_MAX`] bytes, unless one word is longer.
/// Joins its lines and paragraphs, and removes the brackets of links to code; other brackets and
/// the targets of links remain. An empty doc comment gives a line with `#`.
fn comment(text: &mut String, docs: &str) {
    let docs = docs.replace("[`", "`").replace("`]", "`");
    let mut line = String::from("#");
    for word in docs.split_whitespace() {
        if line.len() + 1 + word.len() > LINE_MAX {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Collects the keys of all values in a table.
    fn keys(at: &str, table: &Table, found: &mut BTreeSet<String>) {
        for (name, value) in table {
            let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            match value {
                Value::Table(inner) if !inner.is_empty() => keys(&key, inner, found),
                _ => {
                    found.insert(key);
                }
            }
        }
    }

    #[test]
    fn documented_defaults_are_complete_and_load() {
        let text = documented();
        let written: Table = text.parse().expect("TOML");
        let config = Config::default();
        let mut expected = BTreeSet::new();
        keys("", &defaults(), &mut expected);
        expected.remove("cluster.sharding.types"); // a section for each type
        for key in &expected {
            let value = find(&written, key);
            assert!(value.is_some(), "{key} is missing");
        }
        let read = crate::config::load::from_text(&text);
        let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((&read.net, &read.ddata), (&config.net, &config.ddata));
        assert_eq!(read.management, config.management);
        assert_eq!((&read.cluster, &read.sharding), (&config.cluster, &config.sharding));
        for phase in Phase::ALL {
            assert_eq!(read.shutdown.timeout(phase), phase.default_timeout());
        }
        let long = text.lines().find(|line| line.starts_with('#') && line.len() > LINE_MAX);
        assert_eq!(long, None);
    }

    #[test]
    fn types_and_phases_are_explained() {
        let text = documented();
        assert!(text.contains("# [cluster.sharding.types.cart]\n"), "{text}");
        assert!(text.contains("coordinator-role, number-of-shards, extractor,"), "{text}");
        let leave = "[cluster.shutdown.cluster-leave]\n# This node becomes Leaving.\ntimeout =";
        assert!(text.contains(leave), "{text}");
    }

    #[test]
    fn setting_without_default_is_commented_out() {
        let text = documented();
        let keys = [
            "data-dir",
            "cluster-secret",
            "cluster-secret-file",
            "expected-nodes",
            "control-socket",
        ];
        for key in keys {
            let line = format!("\n# {key} =\n");
            assert!(text.contains(&line), "{key}");
        }
    }
}
