//! Decides which requests a service answers, and identifies the requester. A requester chooses the reply subject, and the
//! service publishes there with its own rights: so it answers only to subjects that no stream and no service listens to.
//!
//! It answers to two kinds of reply subjects. nats-server gives a request from another account a reply `_R_.…` and refuses
//! such a reply from a client, so `Nats-Request-Info` beside it is the server's. `_INBOX.…` is an inbox of the service's
//! own account, where that header proves nothing; [`OwnReplies`] says which of them are accepted. A request with any other
//! reply, or with none, is dropped and counted.
//!
//! Only a gateway may ask on behalf of another, with a note in the header [`ON_BEHALF_OF`] that its own key has signed for the
//! request. The bus refuses any other request with that header.

use std::path::Path;

use async_nats::Message;
use muster_contract::headers::ON_BEHALF_OF;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_identity::requester::{REQUEST_INFO, Requester, Signers};
use muster_identity::roles::is_inbox_of_user;
use muster_identity::{Role, on_behalf};

use crate::creds;

/// Prefix of the replies to other accounts.
const FOREIGN_REPLIES: &str = "_R_.";
/// Prefix of the replies within the service's own account.
const OWN_REPLIES: &str = "_INBOX.";

/// The inboxes of its own account that a service answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnReplies {
    /// All: without credentials of a Muster role, as on an open server, no inbox belongs to a key.
    Any,
    /// Those of a user's key, which the server lets that key alone subscribe to. Publisher, rollup, renewer and other
    /// replicas send requests to ingest. Ingest does not know their keys, which change with every enrolment, and does not
    /// need them: no stream and no service listens at such an inbox.
    OfUsers,
    /// None: no process of the account sends requests to a service of this role, and its rights forbid the answer.
    None,
}

impl OwnReplies {
    /// The inboxes that a process with these credentials answers to.
    pub(crate) fn of(credentials: Option<&Path>) -> Self {
        match credentials.and_then(creds::role) {
            None => Self::Any,
            Some(role) if answers_within_hub(role) => Self::OfUsers,
            Some(_) => Self::None,
        }
    }

    fn accepts(self, reply: &str) -> bool {
        match self {
            Self::Any => reply.starts_with(OWN_REPLIES),
            Self::OfUsers => is_inbox_of_user(reply),
            Self::None => false,
        }
    }
}

fn answers_within_hub(role: Role) -> bool {
    role.rights().publish.iter().any(|right| right.starts_with(OWN_REPLIES))
}

/// The requester; `None` if the service does not answer to the reply subject.
pub(crate) fn requester(message: &Message, signers: &Signers, own: OwnReplies) -> Option<Requester> {
    let reply = message.reply.as_ref()?.as_str();
    if reply.starts_with(FOREIGN_REPLIES) {
        let info = message.headers.as_ref().and_then(|headers| headers.get(REQUEST_INFO));
        return Some(info.map_or(Requester::Unverified, |info| signers.requester(info.as_str())));
    }
    own.accepts(reply).then_some(Requester::Unverified)
}

/// The effective requester of a message: the person whom a gateway's note names, or the sender if there is no note.
///
/// # Errors
/// The sender may not ask on behalf of another, or the note is not valid.
pub(crate) fn represented(message: &Message, requester: Requester) -> Result<Requester, ErrorBody> {
    let Some(headers) = message.headers.as_ref() else { return Ok(requester) };
    let mut notes = headers
        .iter()
        .filter(|(name, _)| name.to_string().eq_ignore_ascii_case(ON_BEHALF_OF))
        .flat_map(|(_, values)| values);
    let Some(note) = notes.next() else { return Ok(requester) };
    let refusal = |why: &str| ErrorBody {
        code: ErrorCode::BadRequest,
        message: format!("{ON_BEHALF_OF}: {why}; ask with credentials of your own, without this header"),
    };
    let Requester::User { key, role: Some(Role::Gateway), .. } = &requester else {
        return Err(refusal("only a gateway may ask on behalf of another"));
    };
    if notes.next().is_some() {
        return Err(refusal("the request has several notes"));
    }
    let person = on_behalf::verify(note.as_str(), key, &message.subject, &message.payload);
    let person = person.map_err(|error| refusal(&error.to_string()))?;
    requester.representing(person).ok_or_else(|| refusal("only a gateway may ask on behalf of another"))
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;
    use muster_contract::OnBehalfOf;

    use super::*;

    fn request(reply: Option<&str>) -> Message {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_INFO, r#"{"user":"UANNA","name_tag":"anna","issuer_key":"AV"}"#);
        Message {
            subject: "muster.query.fleet".into(),
            reply: reply.map(Into::into),
            payload: Default::default(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        }
    }

    fn asked(reply: Option<&str>, own: OwnReplies) -> Option<Requester> {
        requester(&request(reply), &Signers::default(), own)
    }

    #[test]
    fn a_requester_is_trusted_only_beside_a_reply_subject_of_the_server() {
        let anna = Requester::User { key: "UANNA".to_owned(), name: "anna".to_owned(), role: None };
        for own in [OwnReplies::Any, OwnReplies::OfUsers, OwnReplies::None] {
            assert_eq!(asked(Some("_R_.abc.1"), own), Some(anna.clone()));
        }
        assert_eq!(asked(Some("_INBOX.U1.2"), OwnReplies::Any), Some(Requester::Unverified));
    }

    fn user(key: &str, role: Role) -> Requester {
        Requester::User { key: key.to_owned(), name: key.to_owned(), role: Some(role) }
    }

    #[test]
    fn a_request_on_behalf_of_another_is_refused() {
        let mut message = request(Some("_R_.abc.1"));
        assert_eq!(represented(&message, user("U", Role::Operator)), Ok(user("U", Role::Operator)));
        let key = nkeys::KeyPair::new_user();
        let person = OnBehalfOf::new("UANNA", "anna", "operator");
        let note = on_behalf::sign(&key, &person, "muster.query.fleet", b"").unwrap();
        for name in [ON_BEHALF_OF, "muster-on-behalf-of"] {
            let mut headers = HeaderMap::new();
            headers.insert(name, note.as_str());
            message.headers = Some(headers);
            for role in Role::ALL.into_iter().filter(|role| *role != Role::Gateway) {
                let refusal = represented(&message, user(&key.public_key(), role)).unwrap_err();
                assert_eq!(refusal.code, ErrorCode::BadRequest, "{name} {role:?}");
            }
            assert!(represented(&message, Requester::Unverified).is_err(), "{name}");
            let other = user(&nkeys::KeyPair::new_user().public_key(), Role::Gateway);
            assert!(represented(&message, other).is_err(), "another gateway's note");
            let known = represented(&message, user(&key.public_key(), Role::Gateway)).unwrap();
            assert_eq!(known.key(), Some("UANNA"), "{name}");
        }
        message.headers.as_mut().unwrap().append(ON_BEHALF_OF, note.as_str());
        assert!(represented(&message, user(&key.public_key(), Role::Gateway)).is_err(), "two notes");
    }

    #[test]
    fn a_request_with_a_foreign_reply_subject_is_dropped() {
        for reply in [
            None,
            Some(""),
            Some("muster.desired.plant7.press-4"),
            Some("$JS.API.STREAM.DELETE.LEDGER"),
            Some("$KV.views.fleet"),
            Some("_R_"),
            Some("_INBOX"),
            Some("_INBOX_plant7_press-4.1"),
        ] {
            for own in [OwnReplies::Any, OwnReplies::OfUsers, OwnReplies::None] {
                assert_eq!(asked(reply, own), None, "{reply:?}");
            }
        }
    }

    #[test]
    fn a_hub_with_roles_answers_only_to_the_inbox_of_a_user_key() {
        let key = nkeys::KeyPair::new_user().public_key();
        let inbox = format!("_INBOX.{key}.box.1");
        assert_eq!(asked(Some(&inbox), OwnReplies::OfUsers), Some(Requester::Unverified));
        assert_eq!(asked(Some(&inbox), OwnReplies::None), None);
        let account = nkeys::KeyPair::new_account().public_key();
        for other in [
            "_INBOX.somebody.1".to_owned(),
            format!("_INBOX.{key}"),
            format!("_INBOX.{key}."),
            format!("_INBOX.{}.1", key.to_lowercase()),
            format!("_INBOX.{}.1", &key[..55]),
            format!("_INBOX.{account}.1"),
        ] {
            assert_eq!(asked(Some(&other), OwnReplies::OfUsers), None, "{other}");
        }
    }

    #[test]
    fn only_ingest_answers_within_hub() {
        let answering: Vec<_> = Role::ALL.into_iter().filter(|role| answers_within_hub(*role)).collect();
        assert_eq!(answering, [Role::Ingest]);
    }
}
