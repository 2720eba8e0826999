//! Middleware of the gRPC services: identifies the caller by the certificate of the connection alone, and checks the role. A role
//! has no right here that it lacks over NATS.
//!
//! The certificate names `spiffe://TRUST-DOMAIN/muster/ROLE/NAME`, so the authority of clients decides who has which role.
//! `--grpc-crl` revokes a certificate. `muster auth revoke` cannot: it knows NATS keys. A revocation of every key (`*`) in the
//! account's token is checked with each call.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use data_encoding::HEXLOWER;
use muster_contract::{OnBehalfOf, Timestamp};
use muster_identity::Role;
use muster_service::clock::Clock;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status;

use super::limits::{CALL_TIMEOUT, CALLS_MAX};
use crate::listener::Peer;
use crate::login::account::Account;
use crate::margo::svid::{only_uri, signs_certificates};
use crate::margo::trust::not_before;
use crate::metrics::Metrics;

/// Calls that change nothing, by their last name.
const READS: [&str; 5] = ["GetByID", "GetByName", "List", "StatusRegister", "StatusDeregister"];
/// The call that approves and rejects operations, by its last name.
const VERDICT: &str = "UpdateOperationStatus";
/// Prefix of the key of a person whom a certificate names.
const KEY_PREFIX: &str = "x509:";
/// Hexadecimal digits of the digest in such a key.
const KEY_DIGITS: usize = 40;
/// Longest name of a person.
const NAME_CHARS_MAX: usize = 63;
/// The header with the status of an answer without a message.
const GRPC_STATUS: &str = "grpc-status";

/// The person who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GrpcCaller {
    /// The person, with the role of the certificate.
    pub person: OnBehalfOf,
    /// The begin of the certificate's validity: Unix seconds.
    issued: u64,
}

/// The state of the middleware.
#[derive(Clone)]
pub(super) struct CallGuard {
    /// The trust domain of certificates.
    pub domain: Arc<str>,
    /// The account of people, whose revocations count; none on a hub without credentials.
    pub account: Option<Arc<Account>>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Room for calls under way.
    pub calls: Arc<Semaphore>,
    /// Metrics.
    pub metrics: Metrics,
}

/// Adds the [`GrpcCaller`] to a call, or refuses it.
pub(super) async fn guard(State(guard): State<CallGuard>, request: Request, next: Next) -> Response {
    let answered = guard.answer(request, next).await;
    let response = answered.unwrap_or_else(|status| status.into_http::<Body>());
    let is_error = response.headers().get(GRPC_STATUS).is_some_and(|code| code != "0");
    guard.metrics.grpc_requests.inc();
    if is_error {
        guard.metrics.grpc_errors.inc();
    }
    response
}

impl CallGuard {
    async fn answer(&self, mut request: Request, next: Next) -> Result<Response, Status> {
        let caller = self.caller(request.extensions().get::<Peer>())?;
        check_role(&caller, request.uri().path())?;
        let Ok(_permit) = self.calls.try_acquire() else {
            let rule = format!("{CALLS_MAX} calls are under way at this gateway: call again in a moment");
            return Err(Status::resource_exhausted(rule));
        };
        request.extensions_mut().insert(Arc::new(caller));
        let late = |_| {
            let seconds = CALL_TIMEOUT.as_secs();
            let hint = "read the record before you repeat a change";
            Status::deadline_exceeded(format!("no answer within {seconds} s: {hint}"))
        };
        timeout(CALL_TIMEOUT, next.run(request)).await.map_err(late)
    }

    fn caller(&self, peer: Option<&Peer>) -> Result<GrpcCaller, Status> {
        let certificate = peer.and_then(|peer| peer.certificates.first());
        let caller = certificate.and_then(|certificate| GrpcCaller::of(certificate, &self.domain));
        let domain = &self.domain;
        let refused = || {
            Status::unauthenticated(format!(
                "the certificate must name spiffe://{domain}/muster/ROLE/NAME, with a role of people, as its only URI"
            ))
        };
        let caller = caller.ok_or_else(refused)?;
        self.check(&caller)?;
        Ok(caller)
    }

    /// Checks that the caller's key is not revoked.
    ///
    /// # Errors
    /// It is.
    pub(super) fn check(&self, caller: &GrpcCaller) -> Result<(), Status> {
        let Some(account) = &self.account else { return Ok(()) };
        if account.known(self.clock.now()).is_revoked(&caller.person.key, caller.issued) {
            return Err(Status::unauthenticated("the key of the certificate's person is revoked"));
        }
        Ok(())
    }
}

/// The caller and the message of a call.
///
/// # Errors
/// The call did not pass the middleware.
pub(super) fn split<T>(request: tonic::Request<T>) -> Result<(Arc<GrpcCaller>, T), Status> {
    let caller = request.extensions().get::<Arc<GrpcCaller>>().cloned();
    Ok((caller.ok_or_else(|| Status::unauthenticated("the call has no caller"))?, request.into_inner()))
}

fn check_role(caller: &GrpcCaller, path: &str) -> Result<(), Status> {
    let call = path.rsplit('/').next().unwrap_or_default();
    let (name, role, needed) = (caller.person.label(), &caller.person.role, Role::Operator.as_str());
    let is_verdict = call == VERDICT && Role::of(role).is_some_and(Role::may_approve);
    if READS.contains(&call) || role == needed || is_verdict {
        return Ok(());
    }
    Err(Status::permission_denied(format!("{name} has the role {role}, and {call} needs the role {needed}")))
}

impl GrpcCaller {
    /// The person that a certificate names; `None` if it names none of the trust domain, or signs certificates.
    fn of(certificate: &CertificateDer<'_>, domain: &str) -> Option<Self> {
        let uri = only_uri(certificate).filter(|_| !signs_certificates(certificate))?;
        let path = uri.strip_prefix("spiffe://")?.strip_prefix(domain)?.strip_prefix("/muster/")?;
        let (role, name) = path.split_once('/')?;
        let role = Role::of(role).filter(|role| role.is_of_people())?;
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_sign) {
            return None;
        }
        let digits = HEXLOWER.encode(digest(&SHA256, format!("{domain}\n{name}").as_bytes()).as_ref());
        let key = format!("{KEY_PREFIX}{digits:.KEY_DIGITS$}");
        let issued = not_before(certificate).map(Timestamp::as_second)?;
        let person = OnBehalfOf::new(&key, name, role.as_str());
        Some(Self { person, issued: u64::try_from(issued).unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_identity::login::PeopleAccount;
    use muster_service::clock::ManualClock;
    use rcgen::{CertificateParams, IsCa, KeyPair, KeyUsagePurpose, SanType};

    use super::*;

    fn certificate(uris: &[&str], change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        params.not_before = rcgen::date_time_ymd(2026, 3, 4);
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn caller(uris: &[&str]) -> Option<GrpcCaller> {
        GrpcCaller::of(&certificate(uris, |_| ()), "example.org")
    }

    #[test]
    fn a_certificate_names_one_person_of_the_trust_domain_and_a_role() {
        let anna = caller(&["spiffe://example.org/muster/operator/anna"]).unwrap();
        assert_eq!((anna.person.label(), anna.person.role.as_str()), ("anna", "operator"));
        assert_eq!(anna.issued, 1_772_582_400, "2026-03-04");
        assert!(anna.person.is_bounded());
        let viewer = caller(&["spiffe://example.org/muster/viewer/anna"]).unwrap();
        assert_eq!(viewer.person.key, anna.person.key, "one person in two roles has one key");
        for uris in [
            &[][..],
            &["spiffe://example.org/muster/operator/anna", "spiffe://example.org/muster/operator/ben"],
            &["spiffe://example.org.evil/muster/operator/anna"],
            &["spiffe://example.com/muster/operator/anna"],
            &["https://example.org/muster/operator/anna"],
            &["spiffe://example.org/muster/planner/anna"],
            &["spiffe://example.org/muster/gateway/anna"],
            &["spiffe://example.org/muster/king/anna"],
            &["spiffe://example.org/muster/operator/"],
            &["spiffe://example.org/muster/operator/anna/ben"],
            &["spiffe://example.org/muster/operator"],
            &["spiffe://example.org/margo/wfm/main/client/press-1"],
        ] {
            assert_eq!(caller(uris), None, "{uris:?}");
        }
    }

    #[test]
    fn a_certificate_that_signs_others_names_nobody() {
        let uri = ["spiffe://example.org/muster/operator/anna"];
        let authority = certificate(&uri, |params| {
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        });
        assert_eq!(GrpcCaller::of(&authority, "example.org"), None);
    }

    #[test]
    fn a_revocation_of_every_key_refuses_certificates_that_began_before() {
        let anna = caller(&["spiffe://example.org/muster/operator/anna"]).unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let check = |revocations: &[(&str, u64)]| {
            let revocations = revocations.iter().map(|(key, until)| ((*key).to_owned(), *until));
            let revocations: BTreeMap<String, u64> = revocations.collect();
            let account = PeopleAccount { revocations, ..PeopleAccount::default() };
            let guard = CallGuard {
                domain: "example.org".into(),
                account: Some(Arc::new(Account::known_at(now, account))),
                clock: Arc::new(ManualClock::at(now)),
                calls: Arc::new(Semaphore::new(1)),
                metrics: Metrics::default(),
            };
            guard.check(&anna).map_err(|status| status.code())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("*", anna.issued - 1), ("UANNA", anna.issued)]), Ok(()));
        assert_eq!(check(&[("*", anna.issued)]), Err(tonic::Code::Unauthenticated));
        assert_eq!(check(&[(anna.person.key.as_str(), anna.issued)]), Err(tonic::Code::Unauthenticated));
    }

    #[test]
    fn an_approver_calls_verdicts_and_only_an_operator_other_changes() {
        let of = |role: &str| caller(&[&format!("spiffe://example.org/muster/{role}/anna")]).unwrap();
        for role in ["viewer", "subscriber", "approver"] {
            for call in ["Create", "Delete", "RemoveOperation", "AddDeployment", "Nothing", ""] {
                let refused = check_role(&of(role), &format!("/proto.mrds.ledger.node.Nodes/{call}"));
                assert_eq!(refused.unwrap_err().code(), tonic::Code::PermissionDenied, "{role} {call}");
            }
            for call in READS {
                assert!(check_role(&of(role), &format!("/a.B/{call}")).is_ok(), "{role} {call}");
            }
        }
        let verdict = "/proto.mrds.ledger.metainstance.MetaInstances/UpdateOperationStatus";
        for (role, is_allowed) in
            [("viewer", false), ("subscriber", false), ("approver", true), ("operator", true)]
        {
            assert_eq!(check_role(&of(role), verdict).is_ok(), is_allowed, "{role}");
        }
        assert!(check_role(&of("operator"), "/proto.mrds.ledger.node.Nodes/Create").is_ok());
    }
}
