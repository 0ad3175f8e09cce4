//! Escapes text of files and other nodes for a terminal. Control characters could start terminal
//! commands; invisible characters and those that change the direction of text could hide what is
//! printed.

use std::borrow::Cow;

/// Escapes one line of text, line ends included: the command for red text becomes `\u{1b}[31m`.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_harmful, |c| c.escape_unicode().collect())
}

/// Escapes text of several lines; line ends and tabs remain.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_harmful(c) && !matches!(c, '\n' | '\t'), |c| c.escape_unicode().collect())
}

/// Escapes serialized JSON, so that it still holds the same value. Harmful characters occur only in
/// its strings, where they become JSON escapes; line ends and tabs between its tokens remain.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    let escape = |c: char| format!("\\u{:04x}", u32::from(c)); // all of them have 16 bits
    escaped(text, |c| is_harmful(c) && !matches!(c, '\n' | '\t'), escape)
}

/// Replaces each harmful character by its escape. Borrows the text if it has none.
fn escaped(
    text: &str,
    is_harmful: impl Fn(char) -> bool,
    escape: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => clean.push_str(&escape(c)),
            false => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// Control characters (C0, DEL, C1), directional formatting characters (Unicode Standard Annex 9),
/// line and paragraph separators, and characters without width. Line ends and tabs count as well.
/// All are below U+10000, as [`json`] requires.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_escaped() {
        let hostile = "a\u{1b}[31mb\u{9b}c\u{202e}d\re\nf\tg\u{7f}";
        assert_eq!(
            one_line(hostile),
            "a\\u{1b}[31mb\\u{9b}c\\u{202e}d\\u{d}e\\u{a}f\\u{9}g\\u{7f}"
        );
        assert_eq!(lines(hostile), "a\\u{1b}[31mb\\u{9b}c\\u{202e}d\\u{d}e\nf\tg\\u{7f}");
        let honest = "Zürich, 東京: \"3\"";
        assert!(matches!(one_line(honest), Cow::Borrowed(text) if text == honest));
    }

    #[test]
    fn escaped_json_holds_the_same_value() {
        let hostile = serde_json::json!({ "a\u{202e}": "\u{9b}31m\u{1b}\n" });
        let text = serde_json::to_string_pretty(&hostile).expect("it is JSON");
        let clean = json(&text);
        assert!(!clean.chars().any(|c| is_harmful(c) && c != '\n'), "{clean}");
        let read: serde_json::Value = serde_json::from_str(&clean).expect("it is JSON");
        assert_eq!(read, hostile);
    }
}
