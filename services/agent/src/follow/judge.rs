//! Whether a desired state is accepted: pure. The one rule by which a device changes its mind.

use muster_contract::Generation;
use muster_contract::decode::{self, Refusal};
use muster_contract::desired::DesiredState;

use crate::store::Accepted;

/// What becomes of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It is the one that is kept.
    Same,
    /// It is kept in place of the last one.
    Accept(DesiredState),
    /// Nothing changes.
    Refuse(Reason),
}

/// Why nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Not a valid document, or of another kind.
    #[error("it is not valid")]
    Invalid(#[source] Refusal),
    /// An older one, as a publisher set back or a replayed message would bring.
    #[error("its generation {offered} is below {kept}, which was accepted already")]
    Older {
        /// The generation kept.
        kept: Generation,
        /// The generation offered.
        offered: Generation,
    },
    /// Another content under a generation that is taken.
    #[error("its generation {0} was accepted already with other content: a generation says one thing only")]
    Other(Generation),
}

/// Judges a document against what was accepted last.
pub fn judge(accepted: Option<&Accepted>, payload: &[u8]) -> Verdict {
    let document: DesiredState = match decode::parse(payload) {
        Ok(document) => document,
        Err(refusal) => return Verdict::Refuse(Reason::Invalid(refusal)),
    };
    let Some(accepted) = accepted else { return Verdict::Accept(document) };
    let (kept, offered) = (accepted.generation, document.generation);
    match (offered.get().cmp(&kept.get()), &accepted.document) {
        (std::cmp::Ordering::Greater, _) => Verdict::Accept(document),
        (std::cmp::Ordering::Less, _) => Verdict::Refuse(Reason::Older { kept, offered }),
        // What an earlier agent accepted and this one could not read from its own database.
        (std::cmp::Ordering::Equal, None) => Verdict::Accept(document),
        (std::cmp::Ordering::Equal, Some(same)) if *same == document => Verdict::Same,
        (std::cmp::Ordering::Equal, Some(_)) => Verdict::Refuse(Reason::Other(kept)),
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

    fn kept(generation: u64, revision: &str) -> Accepted {
        let parsed = decode::parse(&document(generation, revision)).unwrap();
        Accepted { generation: Generation::new(generation).unwrap(), document: Some(parsed) }
    }

    #[test]
    fn only_a_valid_document_of_a_greater_generation_is_accepted() {
        let five = kept(5, "a");
        let unreadable = Accepted { document: None, ..kept(5, "a") };
        let table: [(&str, Option<&Accepted>, Vec<u8>, &str); 9] = [
            ("the first ever", None, document(3, "a"), "accepted"),
            ("greater", Some(&five), document(6, "b"), "accepted"),
            ("after a long outage", Some(&five), document(500, "b"), "accepted"),
            ("the same again", Some(&five), document(5, "a"), "same"),
            (
                "the same number, other content",
                Some(&five),
                document(5, "b"),
                "accepted already with other content",
            ),
            ("older", Some(&five), document(4, "a"), "generation 4 is below 5"),
            ("not JSON", Some(&five), b"{".to_vec(), "not valid"),
            ("against a rule", None, document(0, "a"), "not valid"),
            ("kept but unreadable", Some(&unreadable), document(5, "a"), "accepted"),
        ];
        for (case, accepted, payload, expected) in table {
            let said = match judge(accepted, &payload) {
                Verdict::Same => "same".to_owned(),
                Verdict::Accept(_) => "accepted".to_owned(),
                Verdict::Refuse(reason) => reason.to_string(),
            };
            assert!(said.contains(expected), "{case}: {said}");
        }
    }

    #[test]
    fn a_refusal_names_the_field() {
        let payload = br#"{"apiVersion":"muster/v1","kind":"DesiredState","generation":7,"issuedAt":"soon"}"#;
        let Verdict::Refuse(reason) = judge(None, payload) else { panic!("refused, please") };
        assert!(muster_service::error::chain(&reason).contains("issuedAt"), "{reason:?}");
    }
}
