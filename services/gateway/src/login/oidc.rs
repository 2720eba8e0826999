//! Login by an OpenID Connect provider: the authorization code flow with PKCE. [`provider`] reads the provider's documents and
//! its token endpoint, [`id_token`] checks ID tokens, [`routes`] sends browsers there and back.
//!
//! The provider's role claim decides the role; a person without it is a viewer. No token of the provider leaves this module.

pub(crate) mod config;
pub(crate) mod id_token;
pub(crate) mod provider;
pub(crate) mod routes;

use std::sync::Arc;

use data_encoding::HEXLOWER;
use muster_contract::OnBehalfOf;
use muster_identity::Role;
use ring::digest::{SHA256, digest};
use tokio::sync::Semaphore;

use self::config::OidcConfig;
use self::id_token::Claims;
use self::provider::{Provider, ProviderError};

/// Most concurrent calls to the provider.
const CALLS_MAX: usize = 8;
/// Hexadecimal digits of the digest that names a person.
const PERSON_DIGITS: usize = 40;

/// Login by a provider.
#[derive(Debug)]
pub(crate) struct Oidc {
    provider: Arc<Provider>,
    calls: Arc<Semaphore>,
    pub(super) issuer: String,
    pub(super) client_id: String,
    role_claim: String,
}

impl Oidc {
    /// Reads the secret. The first login makes the first call to the provider.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn open(config: OidcConfig) -> Result<Self, ProviderError> {
        let (client_id, role_claim) = (config.client_id.clone(), config.role_claim.clone());
        let issuer = config.issuer.clone();
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        Ok(Self { issuer, calls, provider: Arc::new(Provider::open(config)?), client_id, role_claim })
    }

    /// Calls the provider on a thread of its own, because the client blocks.
    async fn asked<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Provider) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let provider = Arc::clone(&self.provider);
        let permit = Arc::clone(&self.calls).try_acquire_owned().map_err(|_| ProviderError::Busy)?;
        // The call keeps its permit until its end, even if the browser has gone.
        let asked = tokio::task::spawn_blocking(move || {
            let asked = ask(&provider);
            drop(permit);
            asked
        });
        let asked = asked.await;
        asked.unwrap_or(Err(ProviderError::Stopped))
    }

    /// The role of a person by the claims.
    fn role(&self, claims: &Claims) -> Role {
        let named = claims.texts(&self.role_claim);
        let has = |role: &Role| named.iter().any(|name| *name == role.as_str());
        [Role::Operator, Role::Approver, Role::Subscriber].into_iter().find(has).unwrap_or(Role::Viewer)
    }

    /// The person of the claims. The key is a digest of issuer and subject; a provider never reuses a subject.
    fn person(&self, claims: &Claims) -> OnBehalfOf {
        let whole = digest(&SHA256, format!("{}\n{}", claims.iss, claims.sub).as_bytes());
        let key = format!("oidc:{:.PERSON_DIGITS$}", HEXLOWER.encode(whole.as_ref()));
        OnBehalfOf::new(&key, claims.name(), self.role(claims).as_str())
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::Timestamp;

    use super::*;

    #[tokio::test]
    async fn calls_of_the_provider_are_bounded_and_a_failed_one_waits() {
        // Nobody listens on port 1.
        let config = OidcConfig {
            issuer: "http://127.0.0.1:1".to_owned(),
            client_id: "muster".to_owned(),
            secret: None,
            role_claim: "role".to_owned(),
            tls_ca: None,
        };
        let oidc = Oidc::open(config).unwrap();
        let held: Vec<_> =
            (0..CALLS_MAX).map(|_| Arc::clone(&oidc.calls).try_acquire_owned().unwrap()).collect();
        assert!(matches!(oidc.asked(|_| Ok(())).await, Err(ProviderError::Busy)));
        drop(held);
        let at = async |second| {
            let now = Timestamp::from_second(second).unwrap();
            oidc.asked(move |provider| provider.authorize(now)).await.unwrap_err()
        };
        assert!(matches!(at(100).await, ProviderError::Unreachable { .. }));
        assert!(matches!(at(109).await, ProviderError::Failed));
        assert!(matches!(at(110).await, ProviderError::Unreachable { .. }));
    }
}
