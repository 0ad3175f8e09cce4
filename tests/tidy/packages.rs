//! Rules of the manifests: the library has no default features, and every advisory that cargo-deny
//! ignores has a date and a reason.

use crate::{NONE, read};

#[test]
fn library_has_no_default_features() {
    for manifest in ["Cargo.toml", "ddata/Cargo.toml"] {
        let features = default_features(&read(manifest));
        assert_eq!(features, NONE, "{manifest}: a program that embeds the library pays for these");
    }
}

#[test]
fn ignored_advisories_have_a_date_and_a_reason() {
    assert_eq!(undated_advisories(&read("deny.toml")), NONE);
}

/// The features in `default`.
fn default_features(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[features]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let default = section.split("\ndefault = [").nth(1).unwrap_or_default();
    let names = default.split(']').next().unwrap_or_default().split(',');
    let names = names.map(|name| name.trim().trim_matches('"'));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Entries of `ignore` whose reason does not begin with a date, one entry a line.
fn undated_advisories(deny: &str) -> Vec<String> {
    let list = deny.split("\nignore = [").nth(1).unwrap_or_default();
    let list = if list.starts_with(']') { "" } else { list.split("\n]").next().unwrap_or("") };
    let entries = list.lines().map(str::trim).filter(|line| !line.is_empty());
    let undated = entries.filter(|line| !line.starts_with('#') && !is_dated(line));
    undated.map(|line| format!("deny.toml: begin the reason with YYYY-MM-DD: {line}")).collect()
}

fn is_dated(entry: &str) -> bool {
    let Some((id, reason)) = entry.split_once("reason = \"") else { return false };
    let Some((date, why)) = reason.split_once(": ") else { return false };
    let is_date = date.len() == 10
        && date.char_indices().all(|(at, c)| match at {
            4 | 7 => c == '-',
            _ => c.is_ascii_digit(),
        });
    id.contains("id = \"RUSTSEC-") && is_date && why.split(' ').count() > 3
}

#[test]
fn default_features_are_found() {
    let manifest = |default: &str| format!("[package]\n\n[features]\n{default}\n\n[lints]\n");
    assert_eq!(default_features(&manifest("default = []")), NONE);
    assert_eq!(default_features(&manifest("cli = [\"clap\"]")), NONE);
    for default in ["default = [\"cli\", \"sim\"]", "default = [\n  \"cli\",\n  \"sim\",\n]"] {
        assert_eq!(default_features(&manifest(default)), ["cli", "sim"], "{default}");
    }
}

#[test]
fn advisory_without_a_date_or_reason_is_found() {
    let deny = |entry: &str| format!("[advisories]\nignore = [\n  # why\n  {entry},\n]\n[bans]\n");
    let entry = |reason: &str| format!("{{ id = \"RUSTSEC-2024-0436\", reason = \"{reason}\" }}");
    assert_eq!(undated_advisories("[advisories]\nignore = []\n[bans]\nskip = [\n 1\n]\n"), NONE);
    let dated = entry("2026-11-27: not vulnerable, only unmaintained");
    assert_eq!(undated_advisories(&deny(&dated)), NONE);
    let undated = [
        "\"RUSTSEC-2024-0436\"".to_owned(),
        entry("not vulnerable, only unmaintained"),
        entry("27.11.2026: not vulnerable, only unmaintained"),
        entry("2026-11-27: later"),
    ];
    for entry in undated {
        assert_eq!(undated_advisories(&deny(&entry)).len(), 1, "{entry}");
    }
}
