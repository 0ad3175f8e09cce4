//! Formats values of replicated data of any type as text and JSON.
//!
//! Bytes become `0x…`. Numbers without a JSON form become text. Map keys that are not text become
//! their JSON text. Elements and entries are sorted.

use std::cmp::Ordering;

use ostraca::management::msgpack_value::MsgpackValue;
use ostraca::management::wire::{Data, Packed, ValueContent};
use serde_json::{Map, Number, Value};

use super::printable::one_line;
use super::table::table;

/// Formats a key and its value as text of several lines: the type with the number of elements, then
/// a line per element, entry or concurrent value. Other values have one line, and so has a
/// multi-value register with exactly one value. Of a user type only the size is shown.
pub(super) fn text(key: &str, data: &Data) -> String {
    let key = &*one_line(key);
    let counted = |count: usize, one: &str, many: &str| {
        format!("{key}: {}, {count} {}\n", data.shape, if count == 1 { one } else { many })
    };
    match &decoded(data) {
        ValueContent::Elements(elements) => {
            let lines = sorted(elements).into_iter().map(|element| format!("  {element}\n"));
            counted(elements.len(), "element", "elements") + &lines.collect::<String>()
        }
        ValueContent::Map(entries) => {
            let mut rows: Vec<(Value, Value)> =
                entries.iter().map(|(key, value)| (unpacked(key), content(value))).collect();
            rows.sort_by(|one, other| order(&one.0, &other.0));
            let row = |(key, value): (Value, Value)| [format!("  {key}"), value.to_string()];
            let rows: Vec<[String; 2]> = rows.into_iter().map(row).collect();
            let below = table(["", ""], &rows);
            let below = below.split_once('\n').map_or("", |(_, rows)| rows);
            counted(entries.len(), "entry", "entries") + below
        }
        ValueContent::Siblings(values) if values.len() != 1 => {
            let lines = sorted(values).into_iter().map(|value| format!("  {value}\n"));
            let count = counted(values.len(), "value", "values written at the same time");
            count + &lines.collect::<String>()
        }
        ValueContent::User { bytes } => format!(
            "{key}: {}, {bytes} bytes, which only the program that wrote them can read\n",
            data.shape
        ),
        other => format!("{key}: {}\n  {}\n", data.shape, content(other)),
    }
}

/// Formats a key and its value as JSON. Type and value of a key that holds nothing are `null`.
pub(super) fn json(key: &str, data: Option<&Data>) -> Value {
    let shape = data.map_or(Value::Null, |data| Value::from(data.shape.as_str()));
    let value = data.map_or(Value::Null, value);
    let entries = [("key", Value::from(key)), ("type", shape), ("value", value)];
    Value::Object(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Returns the value of a key as JSON.
pub(super) fn value(data: &Data) -> Value {
    content(&decoded(data))
}

/// Decodes the content. A form of a later release is shown by its length, like a user type.
fn decoded(data: &Data) -> ValueContent {
    data.content().unwrap_or_else(|why| ValueContent::User { bytes: why.len as u64 })
}

/// Converts content to JSON. An unwritten register is `null`. If two keys of a map have the same
/// text, the later entry replaces the earlier one. A user type becomes a text with its length.
fn content(content: &ValueContent) -> Value {
    match content {
        ValueContent::Flag(is_on) => Value::Bool(*is_on),
        ValueContent::Count(digits) => count(digits),
        ValueContent::Elements(all) | ValueContent::Siblings(all) => Value::Array(sorted(all)),
        ValueContent::Register(value) => value.as_ref().map_or(Value::Null, unpacked),
        ValueContent::Map(entries) => {
            let entry =
                |(key, value): &(Packed, ValueContent)| (name(unpacked(key)), self::content(value));
            Value::Object(entries.iter().map(entry).collect())
        }
        ValueContent::User { bytes } => Value::from(format!("{bytes} bytes of a user type")),
        _ => Value::from("(of a later release)"),
    }
}

/// Converts decimal digits to a JSON number, or to text if they exceed 64 bits.
fn count(digits: &str) -> Value {
    let small = digits.parse::<u64>().map(Value::from);
    small.or_else(|_| digits.parse::<i64>().map(Value::from)).unwrap_or_else(|_| digits.into())
}

/// Decodes the values and sorts them by [`order`].
fn sorted(all: &[Packed]) -> Vec<Value> {
    let mut values: Vec<Value> = all.iter().map(unpacked).collect();
    values.sort_by(order);
    values
}

/// Orders two numbers by value and everything else by JSON text, a number and another value as
/// well.
fn order(one: &Value, other: &Value) -> Ordering {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        _ => one.to_string().cmp(&other.to_string()),
    }
}

/// Decodes a packed value to JSON. Bytes that are not a value become a text with their length.
pub(super) fn unpacked(packed: &Packed) -> Value {
    let unreadable = |_| Value::from(format!("({} bytes that can't be decoded)", packed.len()));
    packed.item().map_or_else(unreadable, shown)
}

/// Converts a value to JSON, recursively. NaN and infinities become text, and so do integers beyond
/// 64 bits. If two keys of a map have the same text, the later entry replaces the earlier one.
fn shown(item: MsgpackValue) -> Value {
    match item {
        MsgpackValue::Nil => Value::Null,
        MsgpackValue::Bool(it) => Value::Bool(it),
        MsgpackValue::Integer(it) => count(&it.to_string()),
        MsgpackValue::Float(it) => {
            Number::from_f64(it).map_or_else(|| Value::from(it.to_string()), Value::Number)
        }
        MsgpackValue::Text(it) => Value::String(it),
        MsgpackValue::Bytes(it) => {
            let digits: String = it.iter().map(|byte| format!("{byte:02x}")).collect();
            Value::String(format!("0x{digits}"))
        }
        MsgpackValue::List(it) => Value::Array(it.into_iter().map(shown).collect()),
        MsgpackValue::Map(it) => {
            let entry = |(key, value)| (name(shown(key)), shown(value));
            Value::Object(it.into_iter().map(entry).collect::<Map<_, _>>())
        }
    }
}

/// Returns a map key as text: text without quotes, any other value as its JSON.
fn name(key: Value) -> String {
    match key {
        Value::String(key) => key,
        other => other.to_string(),
    }
}

/// Parses a value of the command line: JSON, or else the whole text, also if it is empty.
pub(super) fn read(text: &str) -> MsgpackValue {
    serde_json::from_str(text).unwrap_or_else(|_| MsgpackValue::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use ostraca::management::verbatim::Verbatim;

    use super::*;

    fn packed(text: &str) -> Packed {
        Packed::new(&read(text)).expect("it has a form")
    }

    fn data(shape: &str, content: &ValueContent) -> Data {
        Data { shape: shape.to_owned(), content: Verbatim::of(content) }
    }

    #[test]
    fn value_that_is_not_json_is_text() {
        let cases = [
            ("on", MsgpackValue::Text("on".to_owned())),
            ("\"3\"", MsgpackValue::Text("3".to_owned())),
            ("3", MsgpackValue::Integer(3)),
            ("-0.5", MsgpackValue::Float(-0.5)),
            ("18446744073709551615", MsgpackValue::Integer(u64::MAX.into())),
            ("null", MsgpackValue::Nil),
            ("[true]", MsgpackValue::List(vec![MsgpackValue::Bool(true)])),
            (
                "{\"a\":1}",
                MsgpackValue::Map(vec![(
                    MsgpackValue::Text("a".to_owned()),
                    MsgpackValue::Integer(1),
                )]),
            ),
            ("{\"a\":", MsgpackValue::Text("{\"a\":".to_owned())),
            ("", MsgpackValue::Text(String::new())),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn each_kind_of_data_has_a_text_and_a_json() {
        let map = ValueContent::Map(vec![
            (packed("pears"), ValueContent::Count("-3".to_owned())),
            (packed("7"), ValueContent::Elements(vec![packed("b"), packed("a")])),
        ]);
        let wide = "170141183460469231731687303715884105727";
        let cases = [
            (data("flag", &ValueContent::Flag(true)), "k: flag\n  true\n", "true".to_owned()),
            (
                data("g-counter", &ValueContent::Count(wide.to_owned())),
                &format!("k: g-counter\n  \"{wide}\"\n"),
                format!("\"{wide}\""),
            ),
            (
                data("or-set", &ValueContent::Elements(["10", "9", "x"].map(packed).to_vec())),
                "k: or-set, 3 elements\n  \"x\"\n  9\n  10\n",
                "[\"x\",9,10]".to_owned(),
            ),
            (
                data("lww-register", &ValueContent::Register(None)),
                "k: lww-register\n  null\n",
                "null".to_owned(),
            ),
            (
                data("mv-register", &ValueContent::Siblings(vec![packed("b"), packed("a")])),
                "k: mv-register, 2 values written at the same time\n  \"a\"\n  \"b\"\n",
                "[\"a\",\"b\"]".to_owned(),
            ),
            (
                data("or-map/x", &map),
                "k: or-map/x, 2 entries\n  \"pears\"  -3\n  7        [\"a\",\"b\"]\n",
                "{\"7\":[\"a\",\"b\"],\"pears\":-3}".to_owned(),
            ),
        ];
        for (data, expected, as_json) in cases {
            assert_eq!(text("k", &data), *expected);
            assert_eq!(value(&data).to_string(), as_json);
        }
        let user = data("user/board", &ValueContent::User { bytes: 151 });
        let expected =
            "k: user/board, 151 bytes, which only the program that wrote them can read\n";
        assert_eq!(text("k", &user), expected);
        let nothing = json("k", None).to_string();
        assert_eq!(nothing, "{\"key\":\"k\",\"type\":null,\"value\":null}");
    }

    #[test]
    fn value_without_json_form_is_text() {
        let bytes = Packed::new(&MsgpackValue::Bytes(vec![1, 255])).expect("it has a form");
        let nan = Packed::new(&MsgpackValue::Float(f64::NAN)).expect("it has a form");
        assert_eq!(unpacked(&bytes), Value::from("0x01ff"));
        assert_eq!(unpacked(&nan), Value::from("NaN"));
        let keys = MsgpackValue::Map(vec![(
            MsgpackValue::List(vec![MsgpackValue::Integer(1)]),
            MsgpackValue::Nil,
        )]);
        assert_eq!(shown(keys).to_string(), "{\"[1]\":null}");
    }
}
