//! Login of people and their programs: identifies a person, limits the session, and checks the rights of the role.
//!
//! ```text
//! muster login ─► routes: a nonce, a proof with the person's key ─► a code for the page, or a token for a program
//! browser ──────► routes: the page, the code ─► a session in a sealed cookie
//! every request ► gate: a session or a token, the role ─► people; a change carries a signed note with the person
//! ```
//!
//! A gateway keeps no state but the nonces of the last minutes: [`seal`] makes sessions that any gateway with the same key file
//! opens. [`account`] reads the account of people from the gateway's own credentials; [`oidc`] logs people in by a provider,
//! [`current`] is the session of the request being answered.
//! Without settings of a login ([`settings`]) nobody logs in, and the gateway serves the loopback alone.

pub(crate) mod account;
pub(crate) mod current;
mod file;
pub(crate) mod gate;
mod nonces;
pub(crate) mod oidc;
mod page;
pub(crate) mod routes;
pub(crate) mod seal;
pub(crate) mod session;
pub(crate) mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use muster_client::ask::Represents;
use muster_contract::{OnBehalfOf, Timestamp};
use muster_identity::login::{PeopleAccount, ProvenPerson};
use muster_identity::on_behalf::NoteSigner;

use self::account::{Account, AccountError};
use self::nonces::Nonces;
use self::oidc::Oidc;
use self::oidc::provider::ProviderError;
use self::seal::{KeyFileError, Sealer};
use self::session::{Access, Refused, Session, Voucher};
use self::settings::LoginConfig;

/// Why the login cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoginSetupError {
    /// The credentials are not those of a gateway.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The settings of the provider cannot be used.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

/// The login of a gateway.
pub(crate) struct Login {
    account: Account,
    sealer: Sealer,
    nonces: Nonces,
    signer: Arc<NoteSigner>,
    lifetime: Duration,
    oidc: Option<Oidc>,
}

/// Shows no keys.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

impl Login {
    /// Opens the key file and the credentials.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(crate) fn open(config: LoginConfig, creds: PathBuf) -> Result<Self, LoginSetupError> {
        let sealer = Sealer::read(&config.session_key)?;
        let (account, signer) = Account::open(creds, config.revocations)?;
        Ok(Self {
            account,
            sealer,
            nonces: Nonces::default(),
            signer: Arc::new(signer),
            lifetime: config.lifetime,
            oidc: config.oidc.map(Oidc::open).transpose()?,
        })
    }

    /// The session of a request, by its cookie or its token.
    ///
    /// # Errors
    /// The request has no valid session.
    pub(crate) fn session(&self, headers: &HeaderMap, now: Timestamp) -> Result<(Session, Access), Refused> {
        let (session, access) = session::read(&self.sealer, headers)?;
        self.check(&session, now)?;
        Ok((session, access))
    }

    /// Checks a session: its end, its account or provider, and revocations.
    ///
    /// # Errors
    /// The session is no longer valid.
    pub(crate) fn check(&self, session: &Session, now: Timestamp) -> Result<(), Refused> {
        if now.as_second() >= session.expires {
            return Err(Refused::Expired);
        }
        let known = self.account.known(now);
        let provider = self.oidc.as_ref().map(|oidc| oidc.issuer.as_str());
        if let Some(why) = is_over(session, &known, provider) {
            return Err(Refused::Account(why.to_owned()));
        }
        let Some(proven) = session.proven() else { return Ok(()) };
        known.check(&proven, seconds(now)).map_err(|error| Refused::Account(error.to_string()))
    }

    /// The end of a session that begins now: Unix seconds.
    fn end_of(&self, now: Timestamp) -> i64 {
        now.as_second().saturating_add(i64::try_from(self.lifetime.as_secs()).unwrap_or(i64::MAX))
    }

    /// A new session of a person, until its time or the end of the person's token.
    fn session_of(&self, proven: &ProvenPerson, now: Timestamp) -> Session {
        let token_end = proven.expires.and_then(|end| i64::try_from(end).ok()).unwrap_or(i64::MAX);
        Session {
            person: proven.person.clone(),
            voucher: Voucher::Key(proven.issuer.clone()),
            account: self.account.known(now).key.clone(),
            issued: proven.issued,
            expires: self.end_of(now).min(token_end),
        }
    }

    /// The revoked keys, each with the time up to which its tokens are revoked, in Unix seconds.
    pub(crate) fn revocations(&self, now: Timestamp) -> BTreeMap<String, u64> {
        self.account.known(now).revocations.clone()
    }

    /// The signer of notes that name the session's person.
    pub(crate) fn represents(&self, session: &Session) -> Arc<dyn Represents> {
        representation(&self.signer, &session.person)
    }
}

/// Why a session is no longer valid, by the present account of people and provider.
fn is_over(session: &Session, account: &PeopleAccount, provider: Option<&str>) -> Option<&'static str> {
    if session.account != account.key {
        return Some("the session belongs to another account of people");
    }
    let Voucher::Provider(issuer) = &session.voucher else { return None };
    if provider != Some(issuer) {
        return Some("this gateway no longer accepts the provider of the session");
    }
    account.is_revoked(&session.person.key, session.issued).then_some("the key is revoked")
}

/// The signer of notes that name a person.
pub(crate) fn representation(signer: &Arc<NoteSigner>, person: &OnBehalfOf) -> Arc<dyn Represents> {
    Arc::new(Representation { signer: Arc::clone(signer), person: person.clone() })
}

/// Signs notes for requests on behalf of a person.
#[derive(Debug)]
struct Representation {
    signer: Arc<NoteSigner>,
    person: OnBehalfOf,
}

impl Represents for Representation {
    fn note(&self, subject: &str, payload: &[u8]) -> Result<String, String> {
        self.signer.sign(&self.person, subject, payload).map_err(|error| error.to_string())
    }
}

/// A time in Unix seconds.
fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_second()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_providers_session_ends_with_provider_account_or_revocation() {
        let session = Session {
            person: OnBehalfOf::new("oidc:1a2b", "anna", "operator"),
            voucher: Voucher::Provider("https://id.example".to_owned()),
            account: "APEOPLE".to_owned(),
            issued: 7,
            expires: 9,
        };
        let account = |key: &str, revoked: &[(&str, u64)]| PeopleAccount {
            key: key.to_owned(),
            revocations: revoked.iter().map(|(key, until)| ((*key).to_owned(), *until)).collect(),
            ..PeopleAccount::default()
        };
        let counts = |account, provider| is_over(&session, &account, provider).is_none();
        let provider = Some("https://id.example");
        assert!(counts(account("APEOPLE", &[("oidc:1a2b", 6), ("*", 6), ("oidc:other", 9)]), provider));
        assert!(!counts(account("AOTHER", &[]), provider));
        assert!(!counts(account("APEOPLE", &[]), None));
        assert!(!counts(account("APEOPLE", &[]), Some("https://other.example")));
        for key in ["oidc:1a2b", "*"] {
            assert!(!counts(account("APEOPLE", &[(key, 7)]), provider), "{key}");
        }
    }
}
