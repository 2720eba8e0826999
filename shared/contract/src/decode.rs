//! Parses bytes into a valid document, or refuses them. A refusal names the document, the field and the rule in words that a
//! person can act on. Nothing here repairs or guesses.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::limits::MESSAGE_BYTES_MAX;

/// Bytes of most documents, so that the text of one is not copied as it grows.
const DOCUMENT_BYTES: usize = 512;

/// A document of the contract.
pub trait Document: Serialize + DeserializeOwned {
    /// Its `kind`.
    const KIND: &'static str;

    /// Checks the rules that a JSON schema cannot express. Called by [`parse`]; call it on documents built by hand.
    ///
    /// # Errors
    /// The first rule that is broken, with the path of the field.
    fn check(&self) -> Result<(), Violation> {
        Ok(())
    }
}

/// A broken rule and the field that breaks it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {rule}")]
pub struct Violation {
    /// Path of the field, as in `deployments[2].profile`; `.` for the document itself.
    pub path: String,
    /// The broken rule, and what would be right.
    pub rule: String,
}

impl Violation {
    /// A violation at a path.
    pub fn at(path: impl fmt::Display, rule: impl fmt::Display) -> Self {
        Self { path: path.to_string(), rule: rule.to_string() }
    }

    /// The same violation seen from the outside of `prefix`.
    #[must_use]
    pub fn within(self, prefix: impl fmt::Display) -> Self {
        Self { path: format!("{prefix}.{}", self.path), rule: self.rule }
    }
}

/// Why bytes are not the document they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Over the contract's size limit.
    #[error("{kind} of {bytes} bytes is over the limit of {MESSAGE_BYTES_MAX} bytes")]
    TooLarge {
        /// The document wanted.
        kind: &'static str,
        /// Its size.
        bytes: usize,
    },
    /// Not JSON, or not of the document's shape.
    #[error("not a {kind}: {path}: {reason}")]
    Shape {
        /// The document wanted.
        kind: &'static str,
        /// Path of the field.
        path: String,
        /// The message of the parser.
        reason: String,
    },
    /// The document has the right shape and breaks a rule.
    #[error("{kind} breaks a rule: {violation}")]
    Rule {
        /// The document.
        kind: &'static str,
        /// The rule and the field.
        violation: Violation,
    },
}

/// Parses and checks a document.
///
/// # Errors
/// A [`Refusal`] that names the field and the rule.
pub fn parse<T: Document>(bytes: &[u8]) -> Result<T, Refusal> {
    parse_by(bytes, T::check)
}

/// Parses a document and checks it by a function that accepts the same documents as its own check.
///
/// # Errors
/// A [`Refusal`] that names the field and the rule.
pub(crate) fn parse_by<T: Document>(
    bytes: &[u8],
    check: impl FnOnce(&T) -> Result<(), Violation>,
) -> Result<T, Refusal> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Refusal::TooLarge { kind: T::KIND, bytes: bytes.len() });
    }
    // Checking the whole text once is a fraction of the cost of checking each string in it.
    let document: Option<T> = str::from_utf8(bytes).ok().and_then(|text| serde_json::from_str(text).ok());
    let document = document.ok_or_else(|| shape_refusal::<T>(bytes))?;
    check(&document).map_err(|violation| Refusal::Rule { kind: T::KIND, violation })?;
    Ok(document)
}

/// Parses a refused document once more, slowly, to find the path of the field.
fn shape_refusal<T: Document>(bytes: &[u8]) -> Refusal {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let (path, reason) = match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Err(error) => (error.path().to_string(), error.inner().to_string()),
        Ok(_) => (".".to_owned(), "something follows the document".to_owned()),
    };
    Refusal::Shape { kind: T::KIND, path, reason }
}

/// Writes a document.
///
/// # Panics
/// Never: documents are plain JSON (see [`crate::canonical::canonical_json`]).
#[allow(clippy::expect_used)]
pub fn to_bytes<T: Document>(document: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DOCUMENT_BYTES);
    serde_json::to_writer(&mut bytes, document).expect("documents of the contract are JSON");
    bytes
}

/// The readable numbers of an unparsable message: ingest accounts for it by them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Peek {
    /// Its kind, if it says one.
    pub kind: Option<String>,
    /// Its epoch, if that is a number.
    #[serde(deserialize_with = "lenient")]
    pub epoch: Option<u64>,
    /// Its sequence number, if that is a number.
    #[serde(deserialize_with = "lenient")]
    pub seq: Option<u64>,
}

/// Reads the numbers of any message; a number that it lacks is absent.
pub fn peek(bytes: &[u8]) -> Peek {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Peek::default();
    }
    serde_json::from_slice(bytes).unwrap_or_default()
}

fn lenient<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(serde_json::Value::deserialize(deserializer)?.as_u64().filter(|number| *number > 0))
}
