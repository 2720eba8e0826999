//! The digest of a view: SHA-256 of its canonical JSON (RFC 8785), without what follows from when facts arrived.
//!
//! It holds for whole numbers and names of plain characters, as views have them. Copy this file beside the example that you copy.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Fields that no digest covers.
const UNSIGNED: [&str; 6] = ["asOf", "changedAt", "deploymentName", "digest", "lastHeardAt", "message"];

/// The parts of a view that a person defined: they have words and times of their own.
const PARTS: [&str; 3] = ["groups", "omitted", "without"];

/// The digest of a view.
pub fn content_digest(view: &Value) -> String {
    let mut content = view.clone();
    drop_unsigned(&mut content);
    for name in PARTS {
        match content.get_mut(name) {
            Some(Value::Array(groups)) => groups.iter_mut().for_each(drop_unsigned),
            Some(part) => drop_unsigned(part),
            None => {}
        }
    }
    // Maps of serde_json are sorted by name.
    let digest = Sha256::digest(content.to_string());
    digest.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn drop_unsigned(part: &mut Value) {
    if let Value::Object(fields) = part {
        fields.retain(|name, _| !UNSIGNED.contains(&name.as_str()));
    }
}
