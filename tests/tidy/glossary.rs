//! Checks that the types in the last column of the glossary are names in the code.

use std::collections::BTreeSet;

use super::NONE;
use super::files::{library_code, read};
use super::lexer::lex;

const PAGE: &str = "docs/protocol/glossary.md";

#[test]
fn types_of_the_glossary_are_in_the_code() {
    let files = library_code();
    let names: BTreeSet<&str> =
        files.iter().flat_map(|file| lex(file.code())).map(|token| token.text).collect();
    let page = read(PAGE);
    let wrong = absent_types(&page, |name| names.contains(name));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(types(&page).count() >= 50, "does the scan still see the types?");
}

/// Types that no code declares or uses.
fn absent_types(page: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let absent = types(page).filter(|(_, name)| !exists(name));
    absent.map(|(line, name)| format!("{PAGE}:{line}: the code has no `{name}`")).collect()
}

/// Names that begin with a capital in the last of three cells, in backticks.
fn types(page: &str) -> impl Iterator<Item = (usize, &str)> {
    page.lines().enumerate().flat_map(|(at, line)| {
        let cells: Vec<&str> = line.split('|').collect();
        let last = if let ["", _, _, last, ""] = cells[..] { last } else { "" };
        let quoted = last.split('`').skip(1).step_by(2);
        let words = quoted.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let names = words.filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
        names.map(move |name| (at + 1, name)).collect::<Vec<_>>()
    })
}

#[test]
fn type_that_the_code_does_not_have_is_found() {
    let page = "| term | meaning | appears as |\n|---|---|---|\n\
        | a | b | `Mail`, `net.b`, `Link::kept` |\n| a | `Gone` | no `Envelope` here |\n| a | b |\n";
    let exists = |name: &str| matches!(name, "Mail" | "Link");
    assert_eq!(absent_types(page, exists), [format!("{PAGE}:4: the code has no `Envelope`")]);
    assert_eq!(absent_types(page, |_| true), NONE);
}
