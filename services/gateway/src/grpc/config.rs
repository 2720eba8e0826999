//! Parses and checks the settings of the gRPC listener.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use muster_contract::SiteId;
use muster_contract::http_device::manager_identity;
use muster_service::config::Problems;

/// The heading of these settings in the help.
const HEADING: &str = "gRPC for programs of MRDS and EMCO";

/// The settings as text.
#[derive(Debug, Args)]
pub(crate) struct GrpcArgs {
    /// Address to serve gRPC on, over TLS with client certificates that name spiffe://TRUST-DOMAIN/muster/ROLE/NAME; --creds
    /// must then hold credentials of the role gateway; leave it out on a hub without credentials. Off unless set
    #[arg(long, alias = "grpc-listen", help_heading = HEADING, env = "MUSTER_GRPC_ADDR", value_name = "IP:PORT")]
    grpc_addr: Option<String>,

    /// File with the certificates (PEM) of the authorities that sign those of gRPC clients
    #[arg(long, help_heading = HEADING, env = "MUSTER_GRPC_CLIENT_CA", value_name = "FILE", requires = "grpc_addr")]
    grpc_client_ca: Option<String>,

    /// File with certificate revocation lists (PEM, CRL) of these authorities. The gateway reads it at its start only
    #[arg(long, help_heading = HEADING, env = "MUSTER_GRPC_CRL", value_name = "FILE", requires = "grpc_addr")]
    grpc_crl: Option<String>,

    /// File with the certificate of the gRPC listener (PEM) [default: --tls-cert]
    #[arg(long, help_heading = HEADING, env = "MUSTER_GRPC_CERT", value_name = "FILE", requires = "grpc_key")]
    grpc_cert: Option<String>,

    /// File with the key of that certificate (PEM) [default: --tls-key]
    #[arg(long, help_heading = HEADING, env = "MUSTER_GRPC_KEY", value_name = "FILE", requires = "grpc_cert")]
    grpc_key: Option<String>,

    /// Site of nodes that a client names without one: press-1 then means SITE/press-1
    #[arg(long, help_heading = HEADING, env = "MUSTER_GRPC_SITE", value_name = "SITE", requires = "grpc_addr")]
    grpc_site: Option<String>,
}

/// The settings, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcConfig {
    /// The address.
    pub addr: SocketAddr,
    /// Authorities of clients.
    pub client_ca: PathBuf,
    /// Lists of revoked certificates, if there are any.
    pub crl: Option<PathBuf>,
    /// Certificate and key of the server.
    pub pair: (PathBuf, PathBuf),
    /// The trust domain of the people that certificates name.
    pub domain: String,
    /// The site of nodes whose names have none.
    pub site: Option<SiteId>,
}

/// Settings of other listeners that the gRPC listener uses as defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inherited<'a> {
    /// The certificate of people's listener.
    pub cert: Option<&'a str>,
    /// Its key.
    pub key: Option<&'a str>,
    /// The trust domain.
    pub domain: Option<&'a str>,
}

impl GrpcArgs {
    /// The checked settings: `Some(None)` if gRPC is not served, `None` if one was refused.
    pub(crate) fn check(
        &self,
        inherited: Inherited<'_>,
        problems: &mut Problems,
    ) -> Option<Option<GrpcConfig>> {
        let Some(addr) = &self.grpc_addr else { return Some(None) };
        let addr = problems.address("--grpc-addr", addr);
        let client_ca = problems.required("--grpc-client-ca", self.grpc_client_ca.as_deref(), Problems::file);
        let crl = problems.optional("--grpc-crl", self.grpc_crl.as_deref(), Problems::file);
        let (cert, key) = match (self.grpc_cert.as_deref(), self.grpc_key.as_deref()) {
            (Some(cert), Some(key)) => (Some(cert), Some(key)),
            _ => (inherited.cert, inherited.key),
        };
        let cert = problems.required("--grpc-cert", cert, Problems::file);
        let key = problems.required("--grpc-key", key, Problems::file);
        let domain = problems.required("--trust-domain", inherited.domain, trust_domain);
        let site = problems.optional("--grpc-site", self.grpc_site.as_deref(), site);
        let pair = (cert?, key?);
        Some(Some(GrpcConfig {
            addr: addr?,
            client_ca: client_ca?,
            crl: crl?,
            pair,
            domain: domain?,
            site: site?,
        }))
    }
}

fn trust_domain(problems: &mut Problems, flag: &'static str, text: &str) -> Option<String> {
    // Any name of a manager shows whether the domain is one.
    let is_valid = manager_identity(text, "any").is_some();
    if !is_valid {
        problems.refuse(flag, text, "must be a SPIFFE trust domain in lower case, such as example.org");
    }
    is_valid.then(|| text.to_owned())
}

fn site(problems: &mut Problems, flag: &'static str, text: &str) -> Option<SiteId> {
    match text.parse() {
        Ok(site) => Some(site),
        Err(error) => {
            let rule = format!("is no name of a site: {error}");
            problems.refuse(flag, text, &rule);
            None
        }
    }
}
