//! [`MsgpackValue`]: a MessagePack value of any type, for showing elements, keys and values whose
//! Rust types this program does not have.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A MessagePack value of any type. It is encoded as the value itself, not as this enum.
///
/// # Example
/// ```
/// use ostraca::ddata::encoded::Encoded;
/// use ostraca::management::msgpack_value::MsgpackValue;
///
/// let encoded = Encoded::new(&("a", 1_u8)).unwrap();
/// let expected = MsgpackValue::List(vec![MsgpackValue::Text("a".to_owned()), MsgpackValue::Integer(1)]);
/// assert_eq!(encoded.decode::<MsgpackValue>().unwrap(), expected);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum MsgpackValue {
    /// The absence of a value: `None` or `()`.
    Nil,
    /// A boolean: true or false.
    Bool(bool),
    /// An integer from −2⁶³ to 2⁶⁴ − 1, the range of MessagePack.
    Integer(i128),
    /// A floating-point number of 64 bits.
    Float(f64),
    /// A string of UTF-8 text.
    Text(String),
    /// Bytes that are not text; also integers of 128 bits.
    Bytes(Vec<u8>),
    /// A sequence or a tuple.
    List(Vec<Self>),
    /// A map, or a struct with named fields.
    Map(Vec<(Self, Self)>),
}

impl Serialize for MsgpackValue {
    /// Encodes the value itself: an integer as unsigned if it is not negative, otherwise as signed.
    /// One outside of the range of MessagePack becomes 16 bytes, and would be decoded as `Bytes`.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => to.serialize_unit(),
            Self::Bool(it) => to.serialize_bool(*it),
            Self::Integer(it) => match (u64::try_from(*it), i64::try_from(*it)) {
                (Ok(it), _) => to.serialize_u64(it),
                (_, Ok(it)) => to.serialize_i64(it),
                _ => to.serialize_i128(*it),
            },
            Self::Float(it) => to.serialize_f64(*it),
            Self::Text(it) => to.serialize_str(it),
            Self::Bytes(it) => to.serialize_bytes(it),
            Self::List(it) => to.collect_seq(it),
            Self::Map(entries) => {
                let mut map = to.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for MsgpackValue {
    /// Decodes a value of any type, from a format that describes itself.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(MsgpackVisitor)
    }
}

/// Builds a [`MsgpackValue`] from a value of any type. Maps keep the order of their entries and
/// duplicate keys; floats of 32 bits become 64.
struct MsgpackVisitor;

impl<'de> Visitor<'de> for MsgpackVisitor {
    type Value = MsgpackValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Nil)
    }

    fn visit_none<E>(self) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Nil)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<MsgpackValue, D::Error> {
        MsgpackValue::deserialize(from)
    }

    /// Decodes an extension of MessagePack as a list of its type number and its bytes.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<MsgpackValue, D::Error> {
        MsgpackValue::deserialize(from)
    }

    fn visit_bool<E>(self, it: bool) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Bool(it))
    }

    fn visit_i64<E>(self, it: i64) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Integer(it.into()))
    }

    fn visit_u64<E>(self, it: u64) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Integer(it.into()))
    }

    fn visit_f64<E>(self, it: f64) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Float(it))
    }

    fn visit_str<E>(self, it: &str) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Text(it.to_owned()))
    }

    fn visit_bytes<E>(self, it: &[u8]) -> Result<MsgpackValue, E> {
        Ok(MsgpackValue::Bytes(it.to_owned()))
    }

    /// Decodes all elements. Reserves no memory for the announced length, which may be false.
    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<MsgpackValue, A::Error> {
        let mut list = Vec::new(); // ≤ the value's length in bytes
        while let Some(item) = from.next_element()? {
            list.push(item);
        }
        Ok(MsgpackValue::List(list))
    }

    /// Decodes all entries in their order. Reserves no memory for the announced length, which may
    /// be false.
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<MsgpackValue, A::Error> {
        let mut map = Vec::new(); // ≤ the value's length in bytes
        while let Some(entry) = from.next_entry()? {
            map.push(entry);
        }
        Ok(MsgpackValue::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ostraca_ddata::encoded::{Encoded, from_msgpack};
    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    struct TestOrder {
        id: u32,
        tags: Vec<&'static str>,
        paid: Option<bool>,
        weights: BTreeMap<i8, f32>,
        unit: (),
        kind: TestKind,
    }

    #[derive(Serialize)]
    enum TestKind {
        Parcel { grams: u64 },
    }

    fn item(value: &impl Serialize) -> MsgpackValue {
        Encoded::new(value).expect("it encodes").decode().expect("it is a value")
    }

    fn text(text: &str) -> MsgpackValue {
        MsgpackValue::Text(text.to_owned())
    }

    #[test]
    fn item_of_any_type_round_trips() {
        let order = TestOrder {
            id: 7,
            tags: vec!["a", "b"],
            paid: None,
            weights: [(-1, 0.5)].into(),
            unit: (),
            kind: TestKind::Parcel { grams: u64::MAX },
        };
        let grams =
            MsgpackValue::Map(vec![(text("grams"), MsgpackValue::Integer(u64::MAX.into()))]);
        let expected = MsgpackValue::Map(vec![
            (text("id"), MsgpackValue::Integer(7)),
            (text("tags"), MsgpackValue::List(vec![text("a"), text("b")])),
            (text("paid"), MsgpackValue::Nil),
            (
                text("weights"),
                MsgpackValue::Map(vec![(MsgpackValue::Integer(-1), MsgpackValue::Float(0.5))]),
            ),
            (text("unit"), MsgpackValue::Nil),
            (text("kind"), MsgpackValue::Map(vec![(text("Parcel"), grams)])),
        ]);
        assert_eq!(item(&order), expected);
        assert_eq!(item(&expected), expected);
        assert_eq!(item(&i64::MIN), MsgpackValue::Integer(i64::MIN.into()));
        assert_eq!(
            from_msgpack::<MsgpackValue>(&[0xc4, 2, 1, 2]).ok(),
            Some(MsgpackValue::Bytes(vec![1, 2]))
        );
        let extension =
            from_msgpack::<MsgpackValue>(&[0xd5, 5, 1, 2]).expect("a fixext of two bytes");
        assert_eq!(
            extension,
            MsgpackValue::List(vec![MsgpackValue::Integer(5), MsgpackValue::Bytes(vec![1, 2])])
        );
    }

    #[test]
    fn invalid_item_bytes_are_refused() {
        let tower = [vec![0x91; 3_000], vec![0xc0]].concat();
        let lie = [0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0]; // four billion elements, one there
        for bytes in [&[][..], &[0xc1], &[0x92, 1], &lie, &tower, &[1, 2]] {
            assert!(
                from_msgpack::<MsgpackValue>(bytes).is_err(),
                "{:?}",
                &bytes[..bytes.len().min(6)]
            );
        }
    }
}
