//! A lexer for as much of Rust as the checks of this suite need: code without comments and
//! literals, and the paths in it. Invalid Rust yields some tokens, never an error.

/// An identifier, `::`, or one other character of code.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    pub(crate) line: usize,
    pub(crate) text: &'a str,
}

/// Returns the code of `text`: comments are left out, a string literal becomes one `"`.
pub(crate) fn lex(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let (len, token) = match first {
            _ if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), ""),
            _ if rest.starts_with("/*") => (block_comment(rest), ""),
            _ if rest.starts_with("::") => (2, "::"),
            '"' => (quoted(rest), "\""),
            '\'' => (character(rest), "'"),
            _ if is_word(first) => {
                let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                match raw_string(rest, word) {
                    Some(len) => (len, "\""),
                    None => (word, &rest[..word]),
                }
            }
            _ if first.is_whitespace() => (first.len_utf8(), ""),
            _ => (first.len_utf8(), &rest[..first.len_utf8()]),
        };
        if !token.is_empty() {
            tokens.push(Token { line, text: token });
        }
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the comment at the start of `text`, with nested ones.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        match rest {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Length of the string with escapes at the start of `text`.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the character literal at the start of `text`, or 1 for the tick of a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => {
            chars.find(|(_, c)| *c == '\'').map_or(text.len(), |(at, _)| at + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Length of the raw string whose prefix (`r`, `br`, `cr`) is the first `word` bytes of `text`.
fn raw_string(text: &str, word: usize) -> Option<usize> {
    let (prefix, rest) = text.split_at(word);
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if !matches!(prefix, "r" | "br" | "cr") || !rest[hashes..].starts_with('"') {
        return None;
    }
    let start = word + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// Returns every path in the code with its line; the groups of a `use` are expanded.
pub(crate) fn paths<'a>(tokens: &[Token<'a>]) -> Vec<(usize, Vec<&'a str>)> {
    let mut found = Vec::new();
    let mut groups: Vec<Vec<&'a str>> = Vec::new(); // the path before each open `{` of a `use`
    let mut path: Vec<&'a str> = Vec::new();
    let mut line = 0;
    let mut before = "";
    for token in tokens {
        let text = token.text;
        match text {
            "::" if before.ends_with(is_word) => {}
            "::" => found.push((line, std::mem::take(&mut path))), // begins a path: `::std`, or after a `>`
            "{" if before == "::" => groups.push(path.clone()),
            "," | "}" if !groups.is_empty() => {
                found.push((line, std::mem::take(&mut path)));
                let prefix = if text == "}" { groups.pop() } else { groups.last().cloned() };
                path = if text == "," { prefix.unwrap_or_default() } else { Vec::new() };
            }
            _ if text.starts_with(is_word) => {
                let first_of_group = !groups.is_empty() && matches!(before, "{" | ",");
                if before != "::" && !first_of_group {
                    found.push((line, std::mem::take(&mut path)));
                }
                path.push(text);
                line = token.line;
            }
            _ => {}
        }
        before = text;
    }
    found.push((line, path));
    found.retain(|(_, path)| !path.is_empty());
    found
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r##"a // b
        /* c /* d */ e */ f "g \" h" 'i' '\'' b'j' r#"k " l"# br"m" 'n o: &'p q"##;
    let words: Vec<_> = lex(text).into_iter().filter(|t| t.text.starts_with(is_word)).collect();
    let words: Vec<_> = words.iter().map(|token| (token.line, token.text)).collect();
    assert_eq!(words, [(1, "a"), (2, "f"), (2, "b"), (2, "n"), (2, "o"), (2, "p"), (2, "q")]);
}

#[test]
fn unterminated_tokens_end_at_end_of_text() {
    for text in ["/* a", "\"a", "\"a\\", "r#\"a\"", "'\\", "'", "/*é*", "\"é"] {
        assert!(lex(text).len() <= 2, "{text}");
    }
}

#[test]
fn groups_of_a_use_are_spelled_out() {
    let tokens = lex("use a::{b, c::{d as e, f},\n g}; use h::*; i::j(k::<l::m>()) { ::n::o };");
    let found: Vec<_> =
        paths(&tokens).iter().map(|(line, path)| (*line, path.join("::"))).collect();
    for path in ["a::b", "a::c::d", "a::c::f", "h", "i::j", "k", "l::m", "n::o"] {
        assert!(found.iter().any(|(_, name)| name == path), "{path} is missing in {found:?}");
    }
    assert!(found.contains(&(2, "a::g".to_owned())), "{found:?}");
}
