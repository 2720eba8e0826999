//! Splits Rust source into code, comments and string literals, line by line. It knows no syntax beyond these three and
//! character literals, which count as code.

/// The kind of a piece of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Code,
    Comment,
    Literal,
}

/// A piece of source within one line, with its delimiters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// Counted from 1.
    pub line: usize,
    pub kind: Kind,
    pub text: &'a str,
}

/// The pieces of a source file in order.
pub(crate) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut split = Split { pieces: Vec::new(), line: 1 };
    let (mut code, mut at) = (0, 0);
    while at < source.len() {
        let Some((kind, length)) = token(source, at) else {
            at += 1;
            continue;
        };
        let end = source.len().min(at + length);
        if kind != Kind::Code {
            split.push(Kind::Code, &source[code..at]);
            split.push(kind, &source[at..end]);
            code = end;
        }
        at = end;
    }
    split.push(Kind::Code, &source[code..]);
    split.pieces
}

struct Split<'a> {
    pieces: Vec<Piece<'a>>,
    line: usize,
}

impl<'a> Split<'a> {
    fn push(&mut self, kind: Kind, text: &'a str) {
        for (at, text) in text.split('\n').enumerate() {
            self.line += usize::from(at > 0);
            if !text.trim().is_empty() {
                self.pieces.push(Piece { line: self.line, kind, text });
            }
        }
    }
}

/// The kind and length of the comment or literal that begins at a byte.
fn token(source: &str, at: usize) -> Option<(Kind, usize)> {
    let bytes = source.as_bytes();
    match bytes[at] {
        b'/' if source[at..].starts_with("//") => Some((Kind::Comment, to(&source[at..], "\n", 0)?)),
        b'/' if source[at..].starts_with("/*") => Some((Kind::Comment, to(&source[at..], "*/", 2)?)),
        b'"' => Some((Kind::Literal, string(&bytes[at..]))),
        b'r' if at == 0 || !is_name(bytes[at - 1]) || bytes[at - 1] == b'b' => raw_string(&source[at..]),
        b'\'' => Some((Kind::Code, character(&source[at..])?)),
        _ => None,
    }
}

const fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Bytes up to an end and `more` bytes of it; all if there is no end.
fn to(text: &str, end: &str, more: usize) -> Option<usize> {
    Some(text.find(end).map_or(text.len(), |at| at + more))
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += 1 + usize::from(bytes[at] == b'\\');
    }
    at + 1
}

fn raw_string(text: &str) -> Option<(Kind, usize)> {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some((Kind::Literal, 2 + hashes + length))
}

/// The length of a character literal; none for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    match chars.next()?.1 {
        // The character after the backslash may be a quote.
        '\\' => text[3..].find('\'').map(|at| at + 4),
        _ => chars.next().filter(|(_, next)| *next == '\'').map(|(at, _)| at + 1),
    }
}

#[test]
fn source_splits_into_code_comments_and_literals() {
    let source = "a(\"b // c\\\"\"); // d\n'\"'; '\\''; /* e\nf */ &'a g; r#\"h\"i\"#; br\"j\n k\"";
    let found: Vec<_> =
        pieces(source).into_iter().map(|piece| (piece.line, piece.kind, piece.text)).collect();
    let expected = [
        (1, Kind::Code, "a("),
        (1, Kind::Literal, "\"b // c\\\"\""),
        (1, Kind::Code, "); "),
        (1, Kind::Comment, "// d"),
        (2, Kind::Code, "'\"'; '\\''; "),
        (2, Kind::Comment, "/* e"),
        (3, Kind::Comment, "f */"),
        (3, Kind::Code, " &'a g; "),
        (3, Kind::Literal, "r#\"h\"i\"#"),
        (3, Kind::Code, "; b"),
        (3, Kind::Literal, "r\"j"),
        (4, Kind::Literal, " k\""),
    ];
    assert_eq!(found, expected);
}
