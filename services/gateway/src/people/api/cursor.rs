//! Cursors of lists: where the next page begins, of which question, and until when the cursor may be used.
//!
//! A cursor is no secret and grants nothing: its holder may ask the same question again.

use axum::http::StatusCode;
use data_encoding::BASE64URL_NOPAD;
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::problem::Problem;

/// Seconds for which a cursor may be used.
const VALID_SECONDS: i64 = 10 * 60;
/// Longest cursor.
const CURSOR_CHARS_MAX: usize = 2048;

/// A position in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Fields of the next question: after which row it begins, and of which points it is.
    #[serde(rename = "n")]
    next: Map<String, Value>,
    /// The digest of the question.
    #[serde(rename = "q")]
    question: String,
    /// The second after which the cursor is not valid any more.
    #[serde(rename = "t")]
    until: i64,
}

impl Cursor {
    /// The position from which a list at an address goes on; `asked` are its filters.
    pub(crate) fn new(
        next: Map<String, Value>,
        address: &str,
        asked: &Map<String, Value>,
        now: Timestamp,
    ) -> Self {
        Self { next, question: digest(address, asked), until: now.as_second() + VALID_SECONDS }
    }

    /// As a text for an address.
    pub(crate) fn encode(&self) -> String {
        // Cannot fail: an object of texts and numbers.
        BASE64URL_NOPAD.encode(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// Sets the fields of the next question.
    ///
    /// # Errors
    /// The text is no cursor of this question, or it was valid until a time that is over.
    pub(crate) fn apply(
        text: &str,
        address: &str,
        asked: &Map<String, Value>,
        question: &mut Map<String, Value>,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let decoded =
            (text.len() <= CURSOR_CHARS_MAX).then(|| BASE64URL_NOPAD.decode(text.as_bytes()).ok()).flatten();
        let cursor = decoded.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        let Some(cursor) = cursor else { return Err(Problem::field("cursor", "is no cursor")) };
        if cursor.question != digest(address, asked) {
            return Err(Problem::field("cursor", "belongs to another question: keep its filters"));
        }
        if cursor.until < now.as_second() {
            let detail = "the cursor was valid for 10 minutes: begin the list again";
            return Err(Problem::new(StatusCode::GONE, detail));
        }
        question.extend(cursor.next);
        Ok(())
    }
}

fn digest(address: &str, asked: &Map<String, Value>) -> String {
    Digest::of_value(&serde_json::json!([address, asked])).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_cursor_continues_its_own_question_for_ten_minutes() {
        let now: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        let asked = map(&json!({"site": ["a"]}));
        let text = Cursor::new(map(&json!({"after": "a/b"})), "/devices", &asked, now).encode();
        let apply = |text: &str, address: &str, site: &str, now: Timestamp| {
            let (asked, mut next) = (map(&json!({"site": [site]})), map(&json!({"limit": 9})));
            Cursor::apply(text, address, &asked, &mut next, now).map(|()| next)
        };
        assert_eq!(apply(&text, "/devices", "a", now).unwrap()["after"], "a/b");
        assert_eq!(apply(&text, "/devices", "b", now).unwrap_err().status, 400);
        assert_eq!(apply(&text, "/deployments", "a", now).unwrap_err().status, 400);
        assert_eq!(apply("a%", "/devices", "a", now).unwrap_err().status, 400);
        let later = "2026-11-20T10:10:01Z".parse().unwrap();
        assert_eq!(apply(&text, "/devices", "a", later).unwrap_err().status, 410);
    }
}
