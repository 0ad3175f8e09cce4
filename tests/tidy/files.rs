//! Files of the workspace: sources, sources without tests, pages. It knows no rule.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file, with its path from the root of the workspace, with `/`.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// The text before the file's module of tests.
    pub(crate) fn code(&self) -> &str {
        before_tests(&self.text)
    }
}

/// The part of a source before its module of tests.
pub(crate) fn before_tests(text: &str) -> &str {
    text.split("\nmod tests {").next().unwrap_or(text)
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|cause| panic!("{path}: {cause}"))
}

/// Every source file of the workspace.
pub(crate) fn sources() -> Vec<File> {
    files(".rs")
}

/// The sources of both libraries and of the command line.
pub(crate) fn library_sources() -> Vec<File> {
    let is_library =
        |file: &File| file.path.starts_with("src/") || file.path.starts_with("ddata/src/");
    sources().into_iter().filter(is_library).collect()
}

/// [`library_sources`] without the files of tests.
pub(crate) fn library_code() -> Vec<File> {
    library_sources().into_iter().filter(|file| !file.path.contains("tests")).collect()
}

/// Every page of the workspace.
pub(crate) fn pages() -> Vec<File> {
    files(".md")
}

/// Files whose names have this end, sorted by path. Hidden folders and build output are left out.
fn files(end: &str) -> Vec<File> {
    let mut paths = Vec::new();
    walk(&root(), "", end, &mut paths);
    paths.sort();
    paths.into_iter().map(|path| File { text: read(&path), path }).collect()
}

fn walk(folder: &Path, prefix: &str, end: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace is readable") {
        let entry = entry.expect("a folder of the workspace is readable");
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        let path = format!("{prefix}{name}");
        if entry.path().is_dir() {
            if !name.starts_with('.') && name != "target" {
                walk(&entry.path(), &format!("{path}/"), end, found);
            }
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
}

#[test]
fn walk_reaches_both_packages_and_their_pages() {
    let found: Vec<String> = sources().into_iter().chain(pages()).map(|file| file.path).collect();
    let expected = [
        "src/lib.rs",
        "ddata/src/machine.rs",
        "tests/tidy.rs",
        "tests/tidy/files.rs",
        "README.md",
        "docs/protocol/README.md",
        "ddata/docs/types.md",
    ];
    for path in expected {
        assert!(found.iter().any(|file| file == path), "{path} is missing in {found:?}");
    }
    assert!(!found.iter().any(|file| file.starts_with("target/")));
}

#[test]
fn libraries_have_no_files_of_other_folders() {
    let paths = |files: Vec<File>| -> Vec<String> { files.into_iter().map(|it| it.path).collect() };
    let (all, code) = (paths(library_sources()), paths(library_code()));
    assert!(all.iter().all(|path| path.starts_with("src/") || path.starts_with("ddata/src/")));
    assert!(code.len() < all.len() && code.iter().all(|path| all.contains(path)));
    assert!(!code.iter().any(|path| path.contains("tests")));
    assert_eq!(
        before_tests("fn a() {}\n#[cfg(test)]\nmod tests {\n}\n"),
        "fn a() {}\n#[cfg(test)]"
    );
}
