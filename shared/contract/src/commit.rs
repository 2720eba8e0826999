//! A Git commit as who asks for one names it: by its id, or by the beginning of that. Which commit it is, only a repository
//! can say; nothing here knows one.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Fewest digits of a commit's id that name it: as many as `git log --oneline` prints at least.
const DIGITS_MIN: usize = 7;
/// Digits of the longest id, which is of SHA-256.
const DIGITS_MAX: usize = 64;

const _: () = assert!(DIGITS_MIN < DIGITS_MAX);

/// The id of a commit, or the beginning of it. Upper-case digits mean the same and are lower-cased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CommitName(String);

/// Why a text names no commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' names no commit: {DIGITS_MIN} to {DIGITS_MAX} hexadecimal digits are wanted, as `git rev-parse HEAD` prints \
     them"
)]
pub struct CommitNameError {
    /// The offending text, cut to what a log line can bear.
    pub text: String,
}

impl CommitName {
    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the name of the commit with this id.
    pub fn names(&self, revision: &str) -> bool {
        revision.starts_with(&self.0)
    }
}

impl FromStr for CommitName {
    type Err = CommitNameError;

    fn from_str(text: &str) -> Result<Self, CommitNameError> {
        let is_long_enough = (DIGITS_MIN..=DIGITS_MAX).contains(&text.len());
        if is_long_enough && text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(CommitNameError { text: text.chars().take(2 * DIGITS_MAX).collect() })
    }
}

impl fmt::Display for CommitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for CommitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parse(deserializer)
    }
}

impl JsonSchema for CommitName {
    fn schema_name() -> Cow<'static, str> {
        "CommitName".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": format!("^[0-9a-fA-F]{{{DIGITS_MIN},{DIGITS_MAX}}}$"),
            "description": format!(
                "The id of a Git commit, or the beginning of it: {DIGITS_MIN} to {DIGITS_MAX} hexadecimal digits."
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_named_by_its_id_or_the_beginning_of_it_and_by_nothing_else() {
        let revision = "9f2c1e5d0b7a4c38e6f1d2a3b4c5d6e7f8091a2b";
        for text in [revision, "9f2c1e5", "9F2C1E5D"] {
            assert!(text.parse::<CommitName>().unwrap().names(revision), "{text}");
        }
        assert!(!"9f2c1e6".parse::<CommitName>().unwrap().names(revision));
        for text in ["", "9f2c1e", "HEAD", "main", "9f2c1e5-dirty", &"a".repeat(65), "9f2c1e5\u{e9}"] {
            let refused = text.parse::<CommitName>().unwrap_err().to_string();
            assert!(refused.contains("git rev-parse HEAD"), "{refused}");
        }
        assert!(serde_json::from_str::<CommitName>(r#""HEAD""#).is_err());
    }
}
