//! Formats values of replicated data of any type as text and JSON.
//!
//! Bytes become `0x…`. Numbers without a JSON form become text. Map keys that are not text become
//! their JSON text. Elements and entries are sorted.

use std::cmp::Ordering;

use ostraca::management::wire::{Data, Packed, ValueContent};
use rmpv::Value as MsgpackValue;
use serde_json::{Map, Number, Value};

use super::printable::one_line;
use super::table::table;

/// Formats a key and its value as text of several lines: the type with the number of elements, then
/// a line per element, entry or concurrent value. Other values have one line, and so has a
/// multi-value register with exactly one value; one without values reads "0 values". Of a user type
/// only the size is shown. Unlike JSON, it shows all entries of a map whose keys have one text.
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

/// Converts content to JSON. An unwritten register is `null`. Concurrent values become a sorted
/// array like elements, also a single one. If two keys of a map have the same text, the later entry
/// replaces the earlier one. A user type becomes a text with its length.
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
/// well. Compares numbers as `f64`, so large integers that round to the same `f64` are equal.
fn order(one: &Value, other: &Value) -> Ordering {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        _ => one.to_string().cmp(&other.to_string()),
    }
}

/// Decodes a packed value to JSON. Bytes that are not a value become a text with their length.
pub(super) fn unpacked(packed: &Packed) -> Value {
    let unreadable = |_| Value::from(format!("({} bytes that can't be decoded)", packed.len()));
    packed.decode().map_or_else(unreadable, shown)
}

/// Converts a value to JSON, recursively. An extension becomes a list of its type and its bytes. If
/// two keys of a map have the same text, the later entry replaces the earlier one.
fn shown(item: MsgpackValue) -> Value {
    match item {
        MsgpackValue::Nil => Value::Null,
        MsgpackValue::Boolean(it) => Value::Bool(it),
        MsgpackValue::Integer(it) => count(&it.to_string()),
        MsgpackValue::F32(it) => float(it.into()),
        MsgpackValue::F64(it) => float(it),
        MsgpackValue::String(it) => String::from_utf8_lossy(it.as_bytes()).into(),
        MsgpackValue::Binary(it) => digits(&it),
        MsgpackValue::Array(it) => Value::Array(it.into_iter().map(shown).collect()),
        MsgpackValue::Ext(number, it) => Value::Array(vec![number.into(), digits(&it)]),
        MsgpackValue::Map(it) => {
            let entry = |(key, value)| (name(shown(key)), shown(value));
            Value::Object(it.into_iter().map(entry).collect::<Map<_, _>>())
        }
    }
}

/// Converts a float to a JSON number, or to text if it is NaN or infinite.
fn float(number: f64) -> Value {
    Number::from_f64(number).map_or_else(|| Value::from(number.to_string()), Value::Number)
}

/// Converts bytes to text, in hexadecimal.
fn digits(bytes: &[u8]) -> Value {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Value::String(format!("0x{digits}"))
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
    serde_json::from_str(text).unwrap_or_else(|_| MsgpackValue::from(text))
}

#[cfg(test)]
mod tests {
    use ostraca::ddata::encoded::Encoded;
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
        let cases: [(&str, MsgpackValue); 10] = [
            ("on", "on".into()),
            ("\"3\"", "3".into()),
            ("3", 3.into()),
            ("-0.5", (-0.5).into()),
            ("18446744073709551615", u64::MAX.into()),
            ("null", MsgpackValue::Nil),
            ("[true]", MsgpackValue::Array(vec![true.into()])),
            ("{\"a\":1}", MsgpackValue::Map(vec![("a".into(), 1.into())])),
            ("{\"a\":", "{\"a\":".into()),
            ("", "".into()),
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
        let cases: [(&[u8], &str); 7] = [
            (&[0xc4, 2, 1, 255], "\"0x01ff\""),
            (&[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0], "\"NaN\""),
            (&[0xca, 0x3f, 0, 0, 0], "0.5"), // a float of 32 bits
            (&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255], "18446744073709551615"),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], "-9223372036854775808"),
            (&[0xd5, 5, 1, 2], "[5,\"0x0102\"]"), // an extension
            (&[0x82, 0xa1, b'k', 0xc3, 0x91, 1, 0xc0], "{\"[1]\":null,\"k\":true}"),
        ];
        for (bytes, expected) in cases {
            let packed = Packed::from(&Encoded::from_bytes(bytes));
            assert_eq!(unpacked(&packed).to_string(), expected);
        }
    }

    #[test]
    fn bytes_that_are_not_a_value_are_counted() {
        let tower = [vec![0x91; 3_000], vec![0xc0]].concat();
        let lie = [0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0]; // four billion elements, one there
        for bytes in [&[][..], &[0xc1], &[0x92, 1], &lie, &tower, &[1, 2]] {
            let expected = format!("({} bytes that can't be decoded)", bytes.len());
            assert_eq!(unpacked(&Packed::from(&Encoded::from_bytes(bytes))), expected);
        }
    }
}
