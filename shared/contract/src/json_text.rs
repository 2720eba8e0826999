//! Splits the text of a JSON object or array into its members or items, without parsing these.
//!
//! It reads text that a parser has accepted. Of any other text it returns some pieces, and never fails.

/// The members of an object: each with the text of its key, without quotes, and the text of its value. Empty if it is no object.
pub(crate) fn members(object: &str) -> impl Iterator<Item = (&str, &str)> {
    inner(object, '{', '}').map(Pieces).into_iter().flatten().filter_map(|member| {
        let key = member.strip_prefix('"')?;
        let end = string_end(key.as_bytes())?;
        let value = key[end + 1..].trim_start().strip_prefix(':')?;
        Some((&key[..end], value.trim_ascii()))
    })
}

/// The items of an array. Empty if it is no array.
pub(crate) fn items(array: &str) -> impl Iterator<Item = &str> {
    inner(array, '[', ']').map(Pieces).into_iter().flatten()
}

/// Whether a text begins like an object.
pub(crate) fn is_object(text: &str) -> bool {
    text.trim_ascii_start().starts_with('{')
}

fn inner(text: &str, open: char, close: char) -> Option<&str> {
    text.trim_ascii().strip_prefix(open)?.strip_suffix(close)
}

/// The pieces of a text between the commas that no bracket and no string encloses.
struct Pieces<'a>(&'a str);

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_ascii_start();
        if self.0.is_empty() {
            return None;
        }
        let end = piece_end(self.0.as_bytes());
        let piece = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        Some(piece.trim_ascii_end())
    }
}

/// The position of the comma behind the first piece, or the end of the text.
fn piece_end(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += 1 + string_end(&text[at + 1..]).unwrap_or(text.len()),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// The position of the quote that ends a string, which begins before the text.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            r#"[a-z,:"\\\[\]{} é\n]{0,8}"#.prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(r#"[a-z,:"\\\[\]{}é]{0,4}"#, inner, 0..4)
                    .prop_map(|map| Value::from(Map::from_iter(map))),
            ]
        })
    }

    proptest! {
        /// Every member and every item is the text of its value, however the text is laid out.
        #[test]
        fn pieces_are_the_texts_of_their_values(value in value(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            let found: Vec<Value> = items(&text).map(parsed).collect();
            prop_assert_eq!(found, value.as_array().cloned().unwrap_or_default());
            let key = |text: &str| serde_json::from_str::<String>(&format!("\"{text}\"")).unwrap();
            let found: Map<_, _> = members(&text).map(|(name, value)| (key(name), parsed(value))).collect();
            prop_assert_eq!(found, value.as_object().cloned().unwrap_or_default());
            prop_assert_eq!(is_object(&text), value.is_object());
        }

        /// Text that is no JSON is split somehow.
        #[test]
        fn any_text_is_split_without_failure(text in r#"[a,:"\\\[\]{} é]{0,24}"#) {
            prop_assert!(items(&text).count() + members(&text).count() <= 2 * text.len() + 2);
        }
    }
}
