//! The settings of an OpenID Connect provider.

use std::path::PathBuf;

/// The settings of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer URL, exactly as the provider's documents name it.
    pub issuer: String,
    /// The client id of this gateway at the provider.
    pub client_id: String,
    /// The file with the client's secret; a public client has none.
    pub secret: Option<PathBuf>,
    /// The claim with the role.
    pub role_claim: String,
    /// Certificates to trust besides the system's.
    pub tls_ca: Option<PathBuf>,
}
