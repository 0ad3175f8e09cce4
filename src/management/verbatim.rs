//! [`Verbatim`]: an encoded MessagePack value of any type.

use std::fmt;

use ostraca_ddata::encoded::{NESTING_MAX, VERBATIM, ValueError, from_msgpack};
use serde::de::{DeserializeOwned, Error as _, IgnoredAny, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A MessagePack value in encoded form. It is serialized as the value itself. A decoded tree of
/// small values takes up to 80 times the memory of its bytes, so the value is decoded only where it
/// is shown. Equality compares bytes: two encodings of one value may differ.
#[derive(Clone, PartialEq, Eq)]
pub struct Verbatim(Vec<u8>);

impl Verbatim {
    /// Wraps an encoded value after checking it. The bytes are kept as they are.
    ///
    /// # Errors
    /// [`ValueError`] if the bytes are not exactly one MessagePack value of at most [`NESTING_MAX`]
    /// levels. An empty vector is no value.
    pub fn new(bytes: Vec<u8>) -> Result<Self, ValueError> {
        from_msgpack::<IgnoredAny>(&bytes)?;
        Ok(Self(bytes))
    }

    /// Encodes a value, with named fields. One that nests deeper than [`NESTING_MAX`] is accepted
    /// here, but can be neither serialized nor decoded later.
    ///
    /// # Panics
    /// If its `Serialize` fails or it nests deeper than 1,024 levels.
    #[must_use]
    pub fn of(value: &impl Serialize) -> Self {
        Self(rmp_serde::to_vec_named(value).expect("plain data encodes"))
    }

    /// Decodes the value. Does not limit the memory that `T` takes.
    ///
    /// # Errors
    /// [`ValueError`] if the value is not a `T` or nests deeper than [`NESTING_MAX`].
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        from_msgpack(&self.0)
    }
}

impl fmt::Debug for Verbatim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verbatim({} bytes)", self.0.len())
    }
}

impl Serialize for Verbatim {
    /// Transcodes the bytes into the serializer, without a tree of values between, so that the
    /// result may be another encoding, also of another format. Fails if the value nests deeper than
    /// [`NESTING_MAX`].
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut decoder = rmp_serde::Deserializer::from_read_ref(self.0.as_slice());
        decoder.set_max_depth(NESTING_MAX);
        serde_transcode::transcode(&mut decoder, to).map_err(S::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Verbatim {
    /// Transcodes any value of the decoder to MessagePack, so that its encoding may change. Limits
    /// neither nesting nor memory itself. The decoder must call `visit_newtype_struct`, otherwise
    /// this fails. That of [`from_peer`](ostraca_ddata::encoded::from_peer) recognizes this type by
    /// its name, [`VERBATIM`], and charges it to its memory budget.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Copy;

        impl<'de> Visitor<'de> for Copy {
            type Value = Verbatim;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                from: D,
            ) -> Result<Verbatim, D::Error> {
                let mut bytes = Vec::new();
                let mut to = rmp_serde::Serializer::new(&mut bytes);
                serde_transcode::transcode(from, &mut to).map_err(D::Error::custom)?;
                Ok(Verbatim(bytes))
            }
        }

        from.deserialize_newtype_struct(VERBATIM, Copy)
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::encoded::{Encoded, from_peer};

    use super::*;

    #[test]
    fn verbatim_value_round_trips() {
        let value = ("a", [1_u64, 300, u64::MAX], Some(-0.5), (), b"bytes".as_slice());
        let encoded = Encoded::new(&value).expect("it encodes");
        let read: Verbatim = from_peer(encoded.as_bytes()).expect("a value");
        assert_eq!(read, Verbatim::of(&value));
        assert_eq!(Encoded::new(&read).expect("it encodes"), encoded);
    }

    #[test]
    fn bytes_that_are_not_one_value_are_refused() {
        for bytes in [&[][..], &[0xc1], &[0x92, 1], &[1, 2], &[0x91; 200]] {
            assert!(Verbatim::new(bytes.to_vec()).is_err(), "{bytes:?}");
        }
    }
}
