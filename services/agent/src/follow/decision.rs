//! Decides whether a desired state is accepted. Pure.

use muster_contract::Generation;
use muster_contract::decode::{self, Refusal};
use muster_contract::desired::DesiredState;

use crate::store::AcceptedDesired;

/// The decision about a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It is the stored one.
    Unchanged,
    /// It replaces the stored one.
    Accept(Box<DesiredState>),
    /// Nothing changes.
    Reject(RejectReason),
}

/// The reason of a rejection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// Not a valid document, or of another kind.
    #[error("it is not valid")]
    Invalid(#[source] Refusal),
    /// Older than the stored one, as after a publisher was restored from a backup.
    #[error("its generation {offered} is below {kept}, which was already accepted")]
    Older {
        /// The stored generation.
        kept: Generation,
        /// The offered generation.
        offered: Generation,
    },
    /// Another content under an accepted generation.
    #[error("its generation {0} was already accepted with other content: a generation has one content")]
    Other(Generation),
}

/// Decides about a document, given the one accepted last.
pub fn decide(accepted: Option<&AcceptedDesired>, payload: &[u8]) -> Decision {
    let document: DesiredState = match decode::parse(payload) {
        Ok(document) => document,
        Err(refusal) => return Decision::Reject(RejectReason::Invalid(refusal)),
    };
    let Some(accepted) = accepted else { return Decision::Accept(Box::new(document)) };
    let (kept, offered) = (accepted.generation, document.generation);
    match (offered.get().cmp(&kept.get()), &accepted.document) {
        (std::cmp::Ordering::Greater, _) => Decision::Accept(Box::new(document)),
        (std::cmp::Ordering::Less, _) => Decision::Reject(RejectReason::Older { kept, offered }),
        // An earlier agent accepted a document that this one cannot read from its database.
        (std::cmp::Ordering::Equal, None) => Decision::Accept(Box::new(document)),
        (std::cmp::Ordering::Equal, Some(same)) if *same == document => Decision::Unchanged,
        (std::cmp::Ordering::Equal, Some(_)) => Decision::Reject(RejectReason::Other(kept)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(generation: u64, revision: &str) -> Vec<u8> {
        let document = json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": "2026-11-21T00:00:00Z", "source": { "kind": "git", "revision": revision },
            "deployments": [],
        });
        serde_json::to_vec(&document).unwrap()
    }

    fn kept(generation: u64, revision: &str) -> AcceptedDesired {
        let parsed = decode::parse(&document(generation, revision)).unwrap();
        AcceptedDesired { generation: Generation::new(generation).unwrap(), document: Some(parsed) }
    }

    #[test]
    fn only_a_valid_document_of_a_greater_generation_is_accepted() {
        let five = kept(5, "a");
        let unreadable = AcceptedDesired { document: None, ..kept(5, "a") };
        let table: [(&str, Option<&AcceptedDesired>, Vec<u8>, &str); 9] = [
            ("the first ever", None, document(3, "a"), "accepted"),
            ("greater", Some(&five), document(6, "b"), "accepted"),
            ("after a long outage", Some(&five), document(500, "b"), "accepted"),
            ("the same again", Some(&five), document(5, "a"), "same"),
            (
                "the same number, other content",
                Some(&five),
                document(5, "b"),
                "already accepted with other content",
            ),
            ("older", Some(&five), document(4, "a"), "generation 4 is below 5"),
            ("not JSON", Some(&five), b"{".to_vec(), "not valid"),
            ("against a rule", None, document(0, "a"), "not valid"),
            ("kept but unreadable", Some(&unreadable), document(5, "a"), "accepted"),
        ];
        for (case, accepted, payload, expected) in table {
            let said = match decide(accepted, &payload) {
                Decision::Unchanged => "same".to_owned(),
                Decision::Accept(_) => "accepted".to_owned(),
                Decision::Reject(reason) => reason.to_string(),
            };
            assert!(said.contains(expected), "{case}: {said}");
        }
    }

    #[test]
    fn a_refusal_names_the_field() {
        let payload = br#"{"apiVersion":"muster/v1","kind":"DesiredState","generation":7,"issuedAt":"soon"}"#;
        let Decision::Reject(reason) = decide(None, payload) else { panic!("it must be rejected") };
        assert!(muster_service::error::chain(&reason).contains("issuedAt"), "{reason:?}");
    }
}
