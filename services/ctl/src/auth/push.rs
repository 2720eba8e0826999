//! Sends the accounts to the running servers, which disconnect revoked users at once, store the tokens and replicate them.

use bytes::Bytes;
use muster_identity::claims::UPDATE_ACCOUNT;
use serde_json::Value;

use super::error::AuthError;
use super::key_store::{KeyStore, PUSH_CREDS};
use crate::config::Connection;
use crate::reach;

/// Sends the tokens and waits until a server confirms each.
pub(super) async fn run(
    store: &KeyStore,
    tokens: Vec<String>,
    connection: &Connection,
) -> Result<(), AuthError> {
    // Not the credentials of the environment, which may be the operator's own.
    let creds = Some(store.path(PUSH_CREDS));
    let connection = Connection { creds, inbox_prefix: None, ..connection.clone() };
    let bus = reach::connect(&connection).await?;
    for token in tokens {
        let answer = bus.request(UPDATE_ACCOUNT, Bytes::from(token), connection.timeout).await;
        confirmed(&answer.map_err(AuthError::NoAnswer)?)?;
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
    fn any_other_answer_is_no_confirmation() {
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
