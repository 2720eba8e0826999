//! Handing the accounts to the running servers. They end the connections of those who are out at once, keep the tokens,
//! and tell each other.

use bytes::Bytes;
use muster_identity::claims::UPDATE_ACCOUNT;
use serde_json::Value;

use super::error::AuthError;
use super::vault::{PUSH_CREDS, Vault};
use crate::config::Connection;
use crate::reach;

/// Hands the tokens over and waits until a server confirms each.
pub(super) async fn run(
    vault: &Vault,
    tokens: Vec<String>,
    connection: &Connection,
) -> Result<(), AuthError> {
    // Whoever calls may have credentials of their own in the environment: those are not for this.
    let creds = Some(vault.path(PUSH_CREDS));
    let connection = Connection { creds, inbox_prefix: None, ..connection.clone() };
    let bus = reach::connect(&connection).await?;
    for token in tokens {
        let answer = bus.request(UPDATE_ACCOUNT, Bytes::from(token), connection.timeout).await;
        confirmed(&answer.map_err(AuthError::Silent)?)?;
    }
    Ok(())
}

fn confirmed(answer: &[u8]) -> Result<(), AuthError> {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    if answer["data"]["code"] == 200 {
        return Ok(());
    }
    let words = answer["error"]["description"].as_str().unwrap_or("it does not say why").to_owned();
    Err(AuthError::Refused(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_confirmation_is_one() {
        assert!(
            confirmed(br#"{"server":{},"data":{"account":"A","code":200,"message":"jwt updated"}}"#).is_ok()
        );
        for no in ["", "{}", r#"{"data":{"code":500}}"#] {
            assert!(confirmed(no.as_bytes()).is_err(), "{no}");
        }
        let no = confirmed(br#"{"error":{"code":500,"description":"not valid"}}"#).unwrap_err().to_string();
        assert!(no.ends_with("not valid"), "{no}");
    }
}
