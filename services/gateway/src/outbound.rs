//! A blocking HTTP client of addresses that the operator has set: a provider of logins, clusters. It follows no redirect, speaks
//! plain HTTP only to this machine, and trusts the system's authorities and those of a file.

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::tls;

/// Whether the gateway may call an address: over TLS, or on this machine.
pub(crate) fn is_trusted(address: &str) -> bool {
    if address.starts_with("https://") {
        return true;
    }
    let Some(rest) = address.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

/// A client that trusts the authorities of `pem` too, and waits so long for a whole answer.
pub(crate) fn agent(pem: Option<&[u8]>, within: Duration) -> Agent {
    let system = rustls_native_certs::load_native_certs().certs;
    let mut roots: Vec<_> = system.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    roots.extend(parse_pem(pem.unwrap_or_default()).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    }));
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(tls::provider());
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(within))
        .user_agent(concat!("muster-gateway/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls.build());
    config.build().new_agent()
}
