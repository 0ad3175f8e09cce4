//! A [`NameSet`]: the names of a member's roles or entity types.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use ostraca_ddata::encoded::packed_list;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A sorted, immutable set of names in two allocations, whatever the number of names. An empty name
/// is allowed here; the checks of a [`Member`](super::member::Member) refuse it. `Ord` compares the
/// joined texts first, so it is a total order without a meaning.
///
/// Every node holds two sets for each member, and most of them have one or two short names. A tree
/// of strings takes ten times the memory of such names, also while a peer's message is decoded.
/// # Example
/// ```
/// use ostraca::cluster::name_set::NameSet;
/// let roles: NameSet = ["frontend", "backend"].into_iter().collect();
/// assert!(roles.contains("backend") && !roles.contains("back"));
/// assert_eq!(roles.iter().collect::<Vec<_>>(), ["backend", "frontend"]);
/// ```
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameSet {
    text: Box<str>,   // the names one after the other, in order
    ends: Box<[u32]>, // where each name ends in `text`
}

impl NameSet {
    /// The set without names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of names in the set.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the set has no names.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether the set has this name, which must match exactly. A binary search.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        let mut range = 0..self.len();
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            match name.cmp(self.name(middle)) {
                std::cmp::Ordering::Less => range.end = middle,
                std::cmp::Ordering::Equal => return true,
                std::cmp::Ordering::Greater => range.start = middle + 1,
            }
        }
        false
    }

    /// The names in ascending order.
    #[must_use]
    pub const fn iter(&self) -> NameIter<'_> {
        NameIter { set: self, left: 0..self.len() }
    }

    /// The name at this position. Panics if there are not so many names.
    fn name(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.text[start as usize..self.ends[at] as usize]
    }

    /// Packs names that are in ascending order and distinct; this is not checked. Panics if they
    /// are longer than 4 GiB in all.
    fn pack(names: &[&str]) -> Self {
        let ends = names.iter().scan(0, |end, name| {
            *end += name.len();
            Some(u32::try_from(*end).expect("the names are far shorter than 4 GiB"))
        });
        Self { ends: ends.collect(), text: names.concat().into() }
    }
}

/// The names of a [`NameSet`] in ascending order.
#[derive(Clone, Debug)]
pub struct NameIter<'a> {
    set: &'a NameSet,
    left: Range<usize>,
}

impl<'a> Iterator for NameIter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left.next().map(|at| self.set.name(at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for NameIter<'_> {}

impl<'a> IntoIterator for &'a NameSet {
    type Item = &'a str;
    type IntoIter = NameIter<'a>;

    fn into_iter(self) -> NameIter<'a> {
        self.iter()
    }
}

impl<S: AsRef<str>> FromIterator<S> for NameSet {
    /// The given names in any order; a repeated name counts once.
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        let names: Vec<S> = names.into_iter().collect();
        let sorted: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
        Self::pack(&sorted.into_iter().collect::<Vec<_>>())
    }
}

impl fmt::Debug for NameSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl Serialize for NameSet {
    /// Writes a list of texts in ascending order.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for NameSet {
    /// Refuses names that are out of order or listed twice, because no node writes them; also texts
    /// that the deserializer cannot lend from its input, such as those of a reader. Neither the
    /// number nor the length of the names is limited here; the budget of the decoder limits them.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = packed_list(deserializer)?;
        if names.is_sorted_by(|one, next| one < next) {
            Ok(Self::pack(&names))
        } else {
            Err(D::Error::custom("names that are not in ascending order"))
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::encoded::from_peer;

    use super::*;

    fn set(names: &[&str]) -> NameSet {
        names.iter().collect()
    }

    #[test]
    fn set_contains_exactly_its_names() {
        let names = ["", "a", "ab", "b", "bc", "c"];
        for size in 0..=names.len() {
            let packed = set(&names[..size]);
            assert_eq!((packed.len(), packed.is_empty()), (size, size == 0));
            for (at, name) in names.into_iter().enumerate() {
                assert_eq!(packed.contains(name), at < size, "{name:?} of {packed:?}");
            }
            assert!(!packed.contains("abc") && !packed.contains("d"));
        }
    }

    #[test]
    fn names_are_sorted_and_distinct() {
        let packed = set(&["b", "é", "a", "b", ""]);
        assert_eq!(packed.iter().collect::<Vec<_>>(), ["", "a", "b", "é"]);
        assert_eq!(format!("{packed:?}"), r#"{"", "a", "b", "é"}"#);
        assert_eq!(packed, set(&["", "a", "b", "é"]));
        assert_ne!(set(&["a", "bc"]), set(&["ab", "c"]));
    }

    #[test]
    fn set_is_encoded_as_a_list_in_order() {
        let packed = set(&["b", "a"]);
        let bytes = rmp_serde::to_vec_named(&packed).unwrap();
        assert_eq!(bytes, rmp_serde::to_vec_named(&["a", "b"]).unwrap());
        assert_eq!(from_peer::<NameSet>(&bytes).unwrap(), packed);
        assert_eq!(rmp_serde::from_slice::<NameSet>(&bytes).unwrap(), packed);
        let empty = rmp_serde::to_vec_named(&NameSet::new()).unwrap();
        assert_eq!(from_peer::<NameSet>(&empty).unwrap(), NameSet::new());
    }

    #[test]
    fn unordered_and_repeated_names_are_refused() {
        for names in [["b", "a"], ["a", "a"]] {
            let bytes = rmp_serde::to_vec_named(&names).unwrap();
            let error = from_peer::<NameSet>(&bytes).unwrap_err();
            assert!(error.source.to_string().contains("ascending order"), "{error:?}");
        }
    }
}
