//! The digest of a view: SHA-256 of its canonical JSON (RFC 8785), without what follows from when facts arrived.
//!
//! It holds for whole numbers and names of plain characters, as views have them. Copy this file beside the example that you copy.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Fields that no digest covers.
const UNSIGNED: [&str; 6] = ["asOf", "changedAt", "deploymentName", "digest", "lastHeardAt", "message"];

/// The digest of a view.
pub fn content_digest(view: &Value) -> String {
    let mut content = view.as_object().cloned().unwrap_or_default();
    content.retain(|name, _| !UNSIGNED.contains(&name.as_str()));
    // Maps of serde_json are sorted by name.
    let digest = Sha256::digest(Value::Object(content).to_string());
    digest.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}
