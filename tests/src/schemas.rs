//! Makes the files under `schemas/` from the contract's types, so that a test can compare the two. It decides
//! how the files look; what they say is decided in `shared/contract` and `shared/bus`.

pub mod asyncapi;
pub mod catalogue;
pub mod json_schema;
mod ordered;
mod rights;
mod rights_text;

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// A file that is generated: its path under `schemas/` and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Path under `schemas/`.
    pub path: String,
    /// The text that it must hold.
    pub text: String,
}

/// Every generated file.
pub fn generated() -> Vec<Generated> {
    let mut files: Vec<_> = json_schema::files();
    files.push(Generated { path: "asyncapi.yaml".to_owned(), text: asyncapi::text() });
    files.push(Generated { path: "RIGHTS.md".to_owned(), text: rights::table() });
    files
}

/// The folder `schemas/` of this tree.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../schemas"))
}

/// A good example of a document, by the name of its file without the ending.
///
/// # Panics
///
/// If there is none, or it is of another type.
pub fn example<T: DeserializeOwned>(name: &str) -> T {
    let path = folder().join(format!("examples/good/{name}.json"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
