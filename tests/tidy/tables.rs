//! Hash tables without a key of their own are for numbers that this node makes. With keys that a
//! peer or a user chooses, such as names, ids could be found that collide, and each look-up would
//! compare all of them.

use crate::lexer::lex;
use crate::{NONE, demand};

/// Types of keys that this node makes.
const OWN_NUMBERS: &[&str] = &["AskNumber", "RequestId"];

#[test]
fn unkeyed_tables_have_own_numbers_as_keys() {
    let is_library = |path: &str| path.starts_with("src/") || path.starts_with("ddata/src/");
    demand(|path, text| if is_library(path) { unkeyed_tables(path, text) } else { Vec::new() });
}

fn unkeyed_tables(path: &str, text: &str) -> Vec<String> {
    let tokens = lex(text);
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let is_wrong = |at: &usize| match word(*at) {
        "FxHashMap" => {
            let key = match (word(at + 1), word(at + 2)) {
                ("::", "<") => at + 3,
                (";" | "::", _) => return false, // imported by its name, or a function of the type
                _ => at + 2,
            };
            word(key - 1) != "<" || !OWN_NUMBERS.contains(&word(key))
        }
        "FxHashSet" | "FxHasher" | "FxBuildHasher" | "BuildHasherDefault" => true,
        _ => false,
    };
    let wrong = (0..tokens.len()).filter(is_wrong);
    let complaint = |at: usize| {
        format!(
            "{path}:{}: `{}` has no key: use std's HashMap, or a key of {OWN_NUMBERS:?}",
            tokens[at].line, tokens[at].text
        )
    };
    wrong.map(complaint).collect()
}

#[test]
fn unkeyed_table_of_names_is_found() {
    let allowed = [
        "use rustc_hash::FxHashMap;\nstruct A { open: FxHashMap<RequestId, u8> }",
        "fn a() -> FxHashMap<RequestId, u8> { FxHashMap::default() }",
        "struct A { names: HashMap<String, u8> } // no FxHashMap<String, u8>",
    ];
    for text in allowed {
        assert_eq!(unkeyed_tables("src/a.rs", text), NONE, "{text}");
    }
    let wrong = [
        "struct A { names: FxHashMap<String, u8> }",
        "fn a() { let names = FxHashMap::<KeyName, u8>::default(); }",
        "use rustc_hash::FxHashMap as Map;",
        "use rustc_hash::FxHashSet;",
        "type Names = HashMap<String, u8, BuildHasherDefault<Xxh3>>;",
    ];
    for text in wrong {
        assert_eq!(unkeyed_tables("src/a.rs", text).len(), 1, "{text}");
    }
}
