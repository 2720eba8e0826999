//! Which requests a service answers, and who asks. A requester chooses the reply subject, and a service publishes there with
//! its own rights: so a request is answered only where the reply subject cannot be a subject that means something.
//!
//! Two kinds of reply subjects are answered. `_R_.…` is what nats-server makes of a request from another account; it
//! lets no client send such a reply itself, so `Nats-Request-Info` beside it is the server's own word. `_INBOX.…` is an
//! inbox of the service's own account, where the header proves nothing; [`OwnReplies`] says which of them count. A request
//! with any other reply, or with none, is dropped and counted.
//!
//! Nobody asks for another: a request that says so ([`ON_BEHALF_OF`]) is refused, whoever sends it.

use std::path::Path;

use async_nats::Message;
use muster_contract::headers::ON_BEHALF_OF;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_identity::Role;
use muster_identity::requester::{REQUEST_INFO, Requester, Signers};
use muster_identity::roles::is_inbox_of_user;

use crate::bus::Bus;
use crate::creds;

/// Where answers to requests from other accounts go.
const FOREIGN_REPLIES: &str = "_R_.";
/// Where answers to requests of the service's own account go.
const OWN_REPLIES: &str = "_INBOX.";

/// To which inboxes of its own account a service answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnReplies {
    /// To all: no credentials of a role of ours say who has which inbox, as on an open server.
    Any,
    /// To those that the server lets one key alone listen to. Ingest is asked by publisher, rollup, renewer and its own
    /// replicas. It does not know their keys, which change when they are enrolled again, and needs not: no stream and no
    /// service listens there, whoever's key it is.
    OfUsers,
    /// To none: nobody of the account asks a service of this role, whose rights do not let it answer either.
    None,
}

impl OwnReplies {
    /// What a process with these credentials answers to.
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

/// Who asks; `None` where the reply subject is none that a service answers to.
pub(crate) fn requester(message: &Message, signers: &Signers, own: OwnReplies) -> Option<Requester> {
    let reply = message.reply.as_ref()?.as_str();
    if reply.starts_with(FOREIGN_REPLIES) {
        let info = message.headers.as_ref().and_then(|headers| headers.get(REQUEST_INFO));
        return Some(info.map_or(Requester::Unverified, |info| signers.requester(info.as_str())));
    }
    own.accepts(reply).then_some(Requester::Unverified)
}

/// The refusal of a request that names somebody for whom it is made. No role may ask on behalf of another.
pub(crate) fn refuse_on_behalf(message: &Message) -> Option<ErrorBody> {
    let headers = message.headers.as_ref()?;
    let is_named = headers.iter().any(|(name, _)| name.to_string().eq_ignore_ascii_case(ON_BEHALF_OF));
    is_named.then(|| ErrorBody {
        code: ErrorCode::BadRequest,
        message: format!(
            "{ON_BEHALF_OF}: no role may ask on behalf of another; ask with credentials of your own, without this header"
        ),
    })
}

impl Bus {
    /// Who asks; `None`, counted and logged, where the request must not be answered.
    pub(crate) fn admit(&self, message: &Message) -> Option<Requester> {
        let admitted = requester(message, &self.wire.signers, self.wire.own_replies);
        if admitted.is_none() {
            if let Some(dropped) = self.wire.dropped_requests.get() {
                dropped.inc();
            }
            let reply = message.reply.as_deref().unwrap_or_default();
            tracing::debug!(subject = %message.subject, reply, "dropped a request with a foreign reply subject");
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

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
    fn a_requester_is_believed_only_beside_a_reply_of_the_server() {
        let anna = Requester::User { key: "UANNA".to_owned(), name: "anna".to_owned(), role: None };
        for own in [OwnReplies::Any, OwnReplies::OfUsers, OwnReplies::None] {
            assert_eq!(asked(Some("_R_.abc.1"), own), Some(anna.clone()));
        }
        assert_eq!(asked(Some("_INBOX.U1.2"), OwnReplies::Any), Some(Requester::Unverified));
    }

    #[test]
    fn a_request_on_behalf_of_another_is_refused() {
        let mut message = request(Some("_R_.abc.1"));
        assert_eq!(refuse_on_behalf(&message), None);
        for name in [ON_BEHALF_OF, "muster-on-behalf-of"] {
            let mut headers = HeaderMap::new();
            headers.insert(name, "UANNA");
            message.headers = Some(headers);
            let refusal = refuse_on_behalf(&message).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(refusal.code, ErrorCode::BadRequest);
        }
    }

    #[test]
    fn a_request_with_a_reply_that_means_something_is_dropped() {
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
    fn on_a_hub_with_roles_only_a_key_that_can_listen_is_answered() {
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
