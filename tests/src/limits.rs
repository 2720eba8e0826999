//! Lower limits for accounts than `muster auth` signs, so that a test can fill them. The tokens are otherwise the same.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_identity::{KeyPair, jwt};
use serde_json::{Map, Value, json};

/// Signs an account of a directory that was just made (`devices`, `people`) for so many connections.
pub fn lower_connections(dir: &Path, account: &str, connections: usize) {
    let authority: Value = serde_json::from_slice(&fs::read(dir.join("authority.json")).unwrap()).unwrap();
    let key = authority[account].as_str().unwrap();
    let operator = fs::read_to_string(dir.join("operator.seed")).unwrap();
    let operator = KeyPair::from_seed(operator.trim()).unwrap();
    let file = dir.join("nats-server.conf");
    let lower = |line: &str| match line.trim_start().strip_prefix(key) {
        Some(token) => {
            let mut claims = claims(token.trim_start_matches([':', ' ']));
            claims["nats"]["limits"]["conn"] = json!(connections);
            format!("  {key}: {}\n", jwt::sign(&operator, claims).unwrap())
        }
        None => format!("{line}\n"),
    };
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.lines().map(lower).collect::<String>()).unwrap();
}

fn claims(token: &str) -> Map<String, Value> {
    let body = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&body).unwrap()
}
