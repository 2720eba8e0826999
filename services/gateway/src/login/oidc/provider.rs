//! A blocking client of a provider: its description, its keys and its token endpoint. It follows no redirect, speaks plain HTTP
//! only to this machine, and bounds the size of answers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use data_encoding::BASE64;
use muster_contract::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};

use super::super::file::{ReadFileError, read_file};
use super::config::OidcConfig;
use super::id_token::{Claims, ExpectedClaims, JsonWebKeySet, TokenRefusal, verify};
use crate::outbound::{agent, is_trusted};

/// Time for one answer of the provider.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longest answer in bytes.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// Time after which description and keys are read again, in seconds.
const KNOWN_SECONDS: i64 = 10 * 60;
/// Least time between two reads because of an unknown key, and after a failed one, in seconds.
const RETRY_SECONDS: i64 = 10;

/// Why a provider cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadFileError),
    /// The provider does not answer.
    #[error("cannot reach the provider at {address}")]
    Unreachable {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The provider answers with an error status.
    #[error("the provider answers {address} with status {status}")]
    Status {
        /// The address.
        address: String,
        /// The status.
        status: u16,
    },
    /// The answer is no JSON of the expected shape.
    #[error("the provider's answer at {address} cannot be read")]
    Garbled {
        /// The address.
        address: String,
        /// The parser's reason.
        #[source]
        source: serde_json::Error,
    },
    /// The description is of another provider, or names addresses without TLS.
    #[error(
        "the provider's description names {0}, which is another issuer or not https: compare --oidc-issuer"
    )]
    Foreign(String),
    /// The token is refused.
    #[error("the provider's token is refused: {0}")]
    Token(#[from] TokenRefusal),
    /// As many calls as there may be are under way.
    #[error("too many logins wait for the provider; try again")]
    Busy,
    /// The last read failed a moment ago.
    #[error("the provider's description could not be read a moment ago")]
    Failed,
    /// The gateway stops.
    #[error("the gateway stops")]
    Stopped,
}

/// The description of a provider.
#[derive(Debug, Clone, Deserialize)]
struct Description {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
}

/// The answer of the token endpoint.
#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

/// The description and the keys of a provider.
#[derive(Debug)]
struct ProviderDocuments {
    description: Description,
    keys: JsonWebKeySet,
    read_at: i64,
}

/// A provider.
pub(crate) struct Provider {
    config: OidcConfig,
    secret: Option<String>,
    agent: Agent,
    known: Mutex<Option<Arc<ProviderDocuments>>>,
    /// When its description or keys could not be read: Unix seconds.
    failed_at: Mutex<Option<i64>>,
}

/// Shows no secret.
impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.config.issuer).finish_non_exhaustive()
    }
}

impl Provider {
    /// Reads the secret and the certificates.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn open(config: OidcConfig) -> Result<Self, ProviderError> {
        let secret = config.secret.as_deref().map(read_file).transpose()?.map(|text| text.trim().to_owned());
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| ReadFileError { path: path.clone(), source })
        };
        let authority = config.tls_ca.as_ref().map(read).transpose()?;
        let agent = agent(authority.as_deref(), ANSWER_WITHIN);
        Ok(Self { config, secret, agent, known: Mutex::default(), failed_at: Mutex::default() })
    }

    /// The provider's authorization endpoint.
    pub(super) fn authorize(&self, now: Timestamp) -> Result<String, ProviderError> {
        Ok(self.known(now, KNOWN_SECONDS)?.description.authorization_endpoint.clone())
    }

    /// Exchanges the code of a callback for the claims of a person.
    pub(super) fn claims(
        &self,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
        nonce: &str,
        now: Timestamp,
    ) -> Result<Claims, ProviderError> {
        let known = self.known(now, KNOWN_SECONDS)?;
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("client_id", &self.config.client_id)
            .append_pair("code_verifier", verifier)
            .finish();
        let tokens: Tokens = self.post(&known.description.token_endpoint, &form)?;
        let wanted = ExpectedClaims {
            issuer: &self.config.issuer,
            client_id: &self.config.client_id,
            nonce,
            now: now.as_second(),
        };
        match verify(&tokens.id_token, &known.keys, wanted) {
            Err(TokenRefusal::UnknownKey) => {
                // The provider may have a new key.
                let known = self.known(now, RETRY_SECONDS)?;
                Ok(verify(&tokens.id_token, &known.keys, wanted)?)
            }
            verified => Ok(verified?),
        }
    }

    /// Description and keys, read at most `seconds` ago.
    fn known(&self, now: Timestamp, seconds: i64) -> Result<Arc<ProviderDocuments>, ProviderError> {
        let now = now.as_second();
        // The value is replaced as a whole, and not locked during a call.
        let held = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = held.filter(|known| now.abs_diff(known.read_at) < seconds.unsigned_abs()) {
            return Ok(known);
        }
        let failed_at = *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if failed_at.is_some_and(|at| now.abs_diff(at) < RETRY_SECONDS.unsigned_abs()) {
            return Err(ProviderError::Failed);
        }
        let read = self.discover(now);
        *self.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = read.is_err().then_some(now);
        read
    }

    /// Reads description and keys.
    fn discover(&self, now: i64) -> Result<Arc<ProviderDocuments>, ProviderError> {
        let issuer = &self.config.issuer;
        let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let description: Description = self.get(&address)?;
        let Description { authorization_endpoint, token_endpoint, jwks_uri, .. } = &description;
        let foreign =
            [authorization_endpoint, token_endpoint, jwks_uri].into_iter().find(|own| !is_trusted(own));
        let foreign = if description.issuer == *issuer { foreign } else { Some(&description.issuer) };
        if let Some(foreign) = foreign {
            return Err(ProviderError::Foreign(foreign.clone()));
        }
        let keys = self.get(jwks_uri)?;
        let known = Arc::new(ProviderDocuments { description, keys, read_at: now });
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&known));
        Ok(known)
    }

    fn get<T: DeserializeOwned>(&self, address: &str) -> Result<T, ProviderError> {
        read(address, self.agent.get(address).header(ACCEPT, "application/json").call())
    }

    fn post<T: DeserializeOwned>(&self, address: &str, form: &str) -> Result<T, ProviderError> {
        let mut request = self.agent.post(address).header(ACCEPT, "application/json");
        if let Some(secret) = &self.secret {
            let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            let pair = format!("{}:{}", encoded(&self.config.client_id), encoded(secret));
            request = request.header(AUTHORIZATION, format!("Basic {}", BASE64.encode(pair.as_bytes())));
        }
        read(address, request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").send(form))
    }
}

fn read<T: DeserializeOwned>(
    address: &str,
    answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<T, ProviderError> {
    let unreachable =
        |error| ProviderError::Unreachable { address: address.to_owned(), source: Box::new(error) };
    let (head, mut body) = answer.map_err(unreachable)?.into_parts();
    if head.status != StatusCode::OK {
        return Err(ProviderError::Status { address: address.to_owned(), status: head.status.as_u16() });
    }
    let text = body.with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unreachable)?;
    serde_json::from_str(&text)
        .map_err(|source| ProviderError::Garbled { address: address.to_owned(), source })
}
