//! Links of pages and citations in sources: each names a file that exists, and a heading in it.
//! Commands in pages: each names a test, bench or example that exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::files::{pages, read, root};
use super::{NONE, demand};

#[test]
fn links_of_pages_resolve() {
    let dead: Vec<String> = pages()
        .iter()
        .flat_map(|page| {
            let place = root().join(&page.path);
            dead_links(&page.path, &page.text, |target| is_there(&place, target))
        })
        .collect();
    assert!(dead.is_empty(), "\n{}", dead.join("\n"));
}

#[test]
fn citations_in_sources_resolve() {
    let page = root().join("README.md");
    demand(|path, text| match path.starts_with("tests/tidy/") {
        true => Vec::new(), // these have examples of dead ones
        false => dead_citations(path, text, |target| is_there(&page, target)),
    });
}

#[test]
fn commands_of_pages_name_targets_that_exist() {
    let missing: Vec<String> = pages()
        .iter()
        .flat_map(|page| missing_targets(&page.path, &page.text, has_target))
        .collect();
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// Whether one of the packages has this target in a folder of that kind.
fn has_target(folder: &str, name: &str) -> bool {
    let is_in = |package: &str| {
        let place = root().join(package).join(folder);
        place.join(format!("{name}.rs")).exists() || place.join(name).join("main.rs").exists()
    };
    let is_named = read("Cargo.toml").contains(&format!("name = \"{name}\"\npath = \"{folder}/"));
    is_in("") || is_in("ddata") || is_named
}

/// The targets of cargo that a page names (`--test name`) and no package has.
fn missing_targets(page: &str, text: &str, exists: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for (option, folder) in
            [("--test ", "tests"), ("--bench ", "benches"), ("--example ", "examples")]
        {
            for rest in line.split(option).skip(1) {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                let name = name.filter(|name| !name.is_empty() && !exists(folder, name));
                let complain =
                    |name| format!("{page}:{}: {option}{name}: there is no such target", at + 1);
                missing.extend(name.map(complain));
            }
        }
    }
    missing
}

/// Whether the target of a link exists: the file beside `page`, and the heading in it.
fn is_there(page: &Path, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
    if anchor.is_empty() || file.extension().is_none_or(|it| it != "md") {
        return file.exists();
    }
    fs::read_to_string(file).is_ok_and(|text| anchors(&text).contains(anchor))
}

/// The anchors of all headings, as GitHub makes them: lower case, without punctuation, blanks as
/// hyphens; a repeated heading gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        let Some(heading) = heading.strip_prefix(' ').filter(|_| (1..=6).contains(&level)) else {
            continue;
        };
        let plain = heading.trim().to_lowercase();
        let kept = plain.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = (1..).map(|n| format!("{slug}-{n}"));
        let free = std::iter::once(slug.clone()).chain(numbered).find(|it| !anchors.contains(it));
        anchors.extend(free);
    }
    anchors
}

/// The lines of a page outside of code blocks; those inside are empty, so that numbers stay.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().map(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced || fence { "" } else { line }
    })
}

fn dead_links(page: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let links = prose(text)
        .enumerate()
        .flat_map(|(at, line)| links(line).into_iter().map(move |target| (at + 1, target)));
    let dead = links.filter(|(_, target)| {
        // rustdoc checks links to items.
        let is_item = target.starts_with("crate::");
        let elsewhere = is_item || target.contains("://") || target.starts_with("mailto:");
        !elsewhere && !exists(target)
    });
    let complain =
        |(line, target)| format!("{page}:{line}: links to `{target}`, which does not exist");
    dead.map(complain).collect()
}

/// Targets of `[text](target)` and `[name]: target`, outside code.
fn links(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect();
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let defined = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let defined = defined.and_then(|(_, rest)| rest.split_whitespace().next());
    inline.chain(defined).map(str::to_owned).collect()
}

/// Citations of pages in a source (`docs/page.md#heading`) that lead nowhere, and citations of
/// documents that are not in the repository.
fn dead_citations(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((_, comment)) = line.split_once("//") else { continue };
        let words = comment.split(|c: char| c.is_whitespace() || "()<>[]`\",;".contains(c));
        for word in words.map(|word| word.trim_end_matches(['.', ':'])) {
            let cited = word.starts_with("docs/") && word.contains(".md");
            let absent = word.starts_with(concat!("spec", "/")) || cited && !exists(word);
            if absent {
                let line = at + 1;
                dead.push(format!("{path}:{line}: cites `{word}`, which does not exist"));
            }
        }
    }
    dead
}

// ── Each rule can fail ──

#[test]
fn a_link_to_a_missing_file_is_found() {
    let exists = |target: &str| target == "there.md" || target.starts_with("there.md#x");
    let dead = [
        "[a](gone.md)",
        "![a](gone.png \"title\")",
        "[a]: gone.md",
        "[`a`](gone.md#part)",
        "[a](there.md#y)",
        "[a](#gone)",
    ];
    for text in dead {
        assert_eq!(dead_links("README.md", text, exists).len(), 1, "{text}");
    }
    let fine = "[a](there.md) [b](there.md#x) [c](https://x.org/y) [d](crate::d)\n\
        `[code](gone.md)`\n```rust\nlet a = f[0](gone);\n```\n[a]: there.md";
    assert_eq!(dead_links("README.md", fine, exists), NONE);
}

#[test]
fn a_command_for_a_missing_target_is_found() {
    let exists = |folder: &str, name: &str| (folder, name) == ("tests", "net");
    for text in ["`cargo test --test gone`", "--test net, `--test gone`", "cargo run --example net"]
    {
        assert_eq!(missing_targets("a.md", text, exists).len(), 1, "{text}");
    }
    for text in ["cargo test --test net lanes", "cargo test --tests", "`--test NAME`"] {
        let exists = |folder: &str, name: &str| exists(folder, name) || name == "NAME";
        assert_eq!(missing_targets("a.md", text, exists), NONE, "{text}");
    }
}

#[test]
fn headings_have_the_anchors_that_github_gives_them() {
    let text = "# A page\n## `cluster.lease`: on, *off*\n### Twice\n### Twice\n```\n# no\n```\n#no";
    let expected = ["a-page", "clusterlease-on-off", "twice", "twice-1"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
}

#[test]
fn a_citation_that_leads_nowhere_is_found() {
    let exists = |target: &str| target == "docs/a.md#rule";
    let gone = concat!("// spec", "/safety.md §1");
    for text in ["/// The rule (docs/a.md#gone).", "//! docs/b.md", gone] {
        assert_eq!(dead_citations("a.rs", text, exists).len(), 1, "{text}");
    }
    let fine = "// Rule (docs/a.md#rule): because.\nlet page = \"docs/gone.md\";";
    assert_eq!(dead_citations("a.rs", fine, exists), NONE);
}
