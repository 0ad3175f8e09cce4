//! [`Shape`]: the kind of data of a key, by name, so that any node can store it.
//!
//! Elements and values stay encoded, so a node replicates, merges and repairs user types without
//! their code. It needs only the shape, which is sent as text: `or-set`, `or-map/or-set`,
//! `user/score-board`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::encoded::DecodeError;

/// Maximum number of levels in the name of a shape: each `or-map/` is one, and so is the innermost
/// type, even if it is a map itself.
pub const DEPTH_MAX: usize = 16;

/// Maximum length of a shape's whole name, in bytes, when it is parsed. Shapes that are built in
/// another way are not checked.
pub const NAME_MAX: usize = 512;

/// The kind of data of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// Data of type [`Flag`](crate::types::Flag), written `flag`.
    Flag,
    /// Data of type [`GCounter`](crate::types::GCounter), written `g-counter`.
    GCounter,
    /// Data of type [`PNCounter`](crate::types::PNCounter), written `pn-counter`.
    PNCounter,
    /// Data of type [`GSet`](crate::types::GSet), written `g-set`.
    GSet,
    /// Data of type [`ORSet`](crate::types::ORSet), written `or-set`.
    ORSet,
    /// Data of type [`LWWRegister`](crate::types::LWWRegister), written `lww-register`.
    LWWRegister,
    /// Data of type [`MVRegister`](crate::types::MVRegister), written `mv-register`.
    MVRegister,
    /// Data of a [`User`](crate::types::User) type of this registered name, written `user/<name>`.
    User(Arc<str>),
    /// Data of type [`LWWMap`](crate::types::LWWMap), written `lww-map`.
    LWWMap,
    /// Data of type [`PNCounterMap`](crate::types::PNCounterMap), written `pn-counter-map`.
    PNCounterMap,
    /// Data of type [`ORMultiMap`](crate::types::ORMultiMap), written `or-multi-map`.
    ORMultiMap,
    /// Data of type [`ORMap`](crate::types::ORMap) with values of this shape, written
    /// `or-map/<shape of the values>`.
    ORMap(Arc<Shape>),
}

impl Shape {
    /// Returns the shape of a map's values; `None` if this is not a map. A set counts as a map from
    /// elements to flags.
    #[must_use]
    pub fn inner(&self) -> Option<&Self> {
        match self {
            Self::GSet | Self::ORSet => Some(&Self::Flag),
            Self::LWWMap => Some(&Self::LWWRegister),
            Self::PNCounterMap => Some(&Self::PNCounter),
            Self::ORMultiMap => Some(&Self::ORSet),
            Self::ORMap(inner) => Some(inner),
            _ => None,
        }
    }

    /// Whether a guarded key may have this shape: an LWW register or a map whose values are LWW
    /// registers; not a map of such maps, nor MV registers.
    #[must_use]
    pub fn is_guardable(&self) -> bool {
        match self {
            Self::LWWRegister | Self::LWWMap => true,
            Self::ORMap(inner) => **inner == Self::LWWRegister,
            _ => false,
        }
    }
}

/// Writes the name, which parses to an equal shape if it is within [`NAME_MAX`] and [`DEPTH_MAX`],
/// and a user type has a name. No bound is checked here.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::GCounter => "g-counter",
            Self::PNCounter => "pn-counter",
            Self::GSet => "g-set",
            Self::ORSet => "or-set",
            Self::LWWRegister => "lww-register",
            Self::MVRegister => "mv-register",
            Self::LWWMap => "lww-map",
            Self::PNCounterMap => "pn-counter-map",
            Self::ORMultiMap => "or-multi-map",
            Self::User(name) => return write!(f, "user/{name}"),
            Self::ORMap(inner) => return write!(f, "or-map/{inner}"),
        })
    }
}

impl FromStr for Shape {
    type Err = DecodeError;

    /// Parses a name exactly: case, spaces and an unknown or empty part matter.
    ///
    /// # Errors
    /// `TooLong` beyond [`NAME_MAX`], checked first, or beyond [`DEPTH_MAX`], even if the rest is
    /// unknown. `UnknownType` for anything else, with the unknown part only, which may be empty.
    fn from_str(name: &str) -> Result<Self, DecodeError> {
        if name.len() > NAME_MAX {
            return Err(DecodeError::TooLong { what: "bytes of a type name", limit: NAME_MAX });
        }
        parse(name, DEPTH_MAX)
    }
}

/// Parses a name with at most `depth` levels. The name of a user type is everything after `user/`,
/// also further slashes, and must not be empty. It need not be registered.
fn parse(name: &str, depth: usize) -> Result<Shape, DecodeError> {
    if depth == 0 {
        return Err(DecodeError::TooLong { what: "maps inside maps", limit: DEPTH_MAX });
    }
    Ok(match name {
        "flag" => Shape::Flag,
        "g-counter" => Shape::GCounter,
        "pn-counter" => Shape::PNCounter,
        "g-set" => Shape::GSet,
        "or-set" => Shape::ORSet,
        "lww-register" => Shape::LWWRegister,
        "mv-register" => Shape::MVRegister,
        "lww-map" => Shape::LWWMap,
        "pn-counter-map" => Shape::PNCounterMap,
        "or-multi-map" => Shape::ORMultiMap,
        _ => match name.split_once('/') {
            Some(("user", user)) if !user.is_empty() => Shape::User(user.into()),
            Some(("or-map", inner)) => Shape::ORMap(Arc::new(parse(inner, depth - 1)?)),
            _ => return Err(DecodeError::UnknownType(name.to_owned())),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_round_trips_through_its_name() {
        for name in ["flag", "lww-map", "user/score", "or-map/or-map/or-set", "or-map/user/a/b"] {
            assert_eq!(name.parse::<Shape>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn unknown_names_and_deep_nesting_are_refused() {
        assert_eq!("or-bag".parse::<Shape>(), Err(DecodeError::UnknownType("or-bag".into())));
        assert!("user/".parse::<Shape>().is_err());
        assert!("or-map/".repeat(40).parse::<Shape>().is_err());
        assert!("x".repeat(10_000).parse::<Shape>().is_err());
    }
}
