//! Order of program versions, so that new shards go to the newest version during a rolling update.

/// One part of a version. Numbers sort below words, by value; words sort by their bytes. A number
/// above `u64::MAX` sorts as words do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VersionPart {
    Number(u64),
    Word(String),
}

/// The part after the numbers, in the order of age: `1.2-M3`, `1.2`, `1.2+5`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VersionSuffix {
    Before(Vec<VersionPart>),
    Itself,
    After(Vec<VersionPart>),
}

/// A program's version, ordered by age: `1.9 < 1.10-M1 < 1.10 = 1.10.0 < 1.10+3-ab12 < 2`. Every
/// text is a version. The empty one equals `0`: only versions before it, as `0-M1`, are older.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppVersion {
    numbers: Vec<VersionPart>, // no trailing zeros
    rest: VersionSuffix,
}

impl AppVersion {
    /// Parses a version: the parts up to the first `-` or `+`, and the rest as a suffix. Every
    /// text is valid. Empty parts do not count, nor do trailing zeros before the suffix and leading
    /// zeros of a number. A suffix without parts does count: `1.2-` is older than `1.2`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers = parts(numbers);
        while numbers.last() == Some(&VersionPart::Number(0)) {
            numbers.pop();
        }
        let rest = match rest.split_at_checked(1) {
            Some(("-", rest)) => VersionSuffix::Before(parts(rest)),
            Some((_, rest)) => VersionSuffix::After(parts(rest)),
            None => VersionSuffix::Itself,
        };
        Self { numbers, rest }
    }
}

/// The parts between `.`, `-` and `+`, without empty ones.
fn parts(text: &str) -> Vec<VersionPart> {
    let words = text.split(['.', '-', '+']).filter(|word| !word.is_empty());
    words
        .map(|word| {
            word.parse().map_or_else(|_| VersionPart::Word(word.into()), VersionPart::Number)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_age_and_numbers_count_as_numbers() {
        let oldest_first =
            ["", "0.9", "1", "1.9-M1", "1.9", "1.9.1", "1.10", "1.10+3-ab12", "2.0", "snapshot"];
        for (at, older) in oldest_first.iter().enumerate() {
            for newer in &oldest_first[at + 1..] {
                assert!(AppVersion::new(older) < AppVersion::new(newer), "{older} {newer}");
            }
        }
        assert_eq!(AppVersion::new("1.0.0"), AppVersion::new("1"));
        assert_eq!(AppVersion::new("0.0"), AppVersion::new(""));
    }
}
