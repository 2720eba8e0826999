//! Reads the address and credentials of the API server: from a kubeconfig file, or the service account of the agent's own pod.
//! Opens no connection. Refuses programs that print credentials (`exec`) and unverified TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

/// The folder of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The API server's name in its own cluster.
const IN_CLUSTER: &str = "https://kubernetes.default.svc";
const HTTPS: &str = "https://";
const HTTP: &str = "http://";

/// The error of reading a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no kubeconfig.
    #[error("{} is no kubeconfig", .path.display())]
    Parse {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_norway::Error,
    },
    /// It lacks a field, or has one that this agent does not support.
    #[error("the kubeconfig {0}")]
    Unusable(String),
    /// The certificates or the key cannot be used.
    #[error("the kubeconfig's certificates or key cannot be used")]
    Tls(#[from] rustls::Error),
}

/// The address of the API server, and the agent's credentials.
#[derive(Clone)]
pub(super) struct ClusterAccess {
    /// Its host and port.
    pub(super) authority: String,
    /// The host that its certificate must name.
    pub(super) server_name: String,
    /// Beginning of its paths.
    pub(super) path_prefix: String,
    /// TLS; only a server on this machine may do without.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// The token.
    pub(super) token: Token,
}

/// The token of each request.
#[derive(Clone)]
pub(super) enum Token {
    /// No token: the client certificate, if any, authenticates.
    None,
    /// A token of the kubeconfig.
    Fixed(String),
    /// A file with a token, which is read for each request because tokens expire.
    File(PathBuf),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: Option<String>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<serde_norway::Value>,
    auth_provider: Option<serde_norway::Value>,
    username: Option<String>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("User")
    }
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

impl ClusterAccess {
    /// The access that a kubeconfig's current context names, or that of the pod.
    pub(super) fn read(kubeconfig: Option<&Path>) -> Result<Self, KubeconfigError> {
        match kubeconfig {
            Some(path) => Self::from_file(path),
            None => Self::of_pod(Path::new(SERVICE_ACCOUNT)),
        }
    }

    fn of_pod(folder: &Path) -> Result<Self, KubeconfigError> {
        let authorities = read(&folder.join("ca.crt"))?;
        let tls = tls(Some(&authorities), None)?;
        Self::new(IN_CLUSTER, None, Some(tls), Token::File(folder.join("token")))
    }

    fn from_file(path: &Path) -> Result<Self, KubeconfigError> {
        let bytes = read(path)?;
        let parsed: Kubeconfig = serde_norway::from_slice(&bytes)
            .map_err(|source| KubeconfigError::Parse { path: path.to_owned(), source })?;
        let missing = |what: &str| KubeconfigError::Unusable(format!("has no {what}"));
        let named = parsed.current_context.ok_or_else(|| missing("current-context"))?;
        let context = parsed.contexts.into_iter().find(|it| it.name == named);
        let context = context.ok_or_else(|| missing("context of that name"))?.context;
        let cluster = parsed.clusters.into_iter().find(|it| it.name == context.cluster);
        let cluster = cluster.ok_or_else(|| missing("cluster of its context"))?.cluster;
        let user = parsed.users.into_iter().find(|it| it.name == context.user);
        let user = user.ok_or_else(|| missing("user of its context"))?.user;
        check(&cluster, &user)?;
        // Relative paths are relative to the file.
        let folder = path.parent().unwrap_or(Path::new(""));
        let authorities =
            bytes_of(folder, cluster.certificate_authority, cluster.certificate_authority_data)?;
        let certificate = bytes_of(folder, user.client_certificate, user.client_certificate_data)?;
        let key = bytes_of(folder, user.client_key, user.client_key_data)?;
        let tls = if cluster.server.starts_with(HTTPS) {
            Some(tls(authorities.as_deref(), certificate.zip(key))?)
        } else {
            None
        };
        let token = match (user.token_file, user.token) {
            (Some(file), _) => Token::File(folder.join(file)),
            (None, Some(token)) => Token::Fixed(token),
            (None, None) => Token::None,
        };
        Self::new(&cluster.server, cluster.tls_server_name, tls, token)
    }

    fn new(
        server: &str,
        server_name: Option<String>,
        tls: Option<Arc<ClientConfig>>,
        token: Token,
    ) -> Result<Self, KubeconfigError> {
        let (rest, port) = match (server.strip_prefix(HTTPS), server.strip_prefix(HTTP)) {
            (Some(rest), _) => (rest, "443"),
            (None, Some(rest)) => (rest, "80"),
            (None, None) => {
                return Err(KubeconfigError::Unusable(format!(
                    "names a server that is no URL ({server}): use https://HOST:PORT"
                )));
            }
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = authority.strip_prefix('[').and_then(|rest| rest.split(']').next());
        let host = host.unwrap_or_else(|| authority.split(':').next().unwrap_or_default());
        if tls.is_none() && !is_loopback(host) {
            let rule = format!("names a server without TLS ({server}): use https://");
            return Err(KubeconfigError::Unusable(rule));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let path = path.trim_end_matches('/');
        Ok(Self {
            server_name: server_name.unwrap_or_else(|| host.to_owned()),
            authority: if has_port { authority.to_owned() } else { format!("{authority}:{port}") },
            path_prefix: if path.is_empty() { String::new() } else { format!("/{path}") },
            tls,
            token,
        })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Refuses fields that this agent does not support.
fn check(cluster: &Cluster, user: &User) -> Result<(), KubeconfigError> {
    let refused = [
        (
            cluster.insecure_skip_tls_verify,
            "turns the check of the server's certificate off: set certificate-authority instead",
        ),
        (cluster.proxy_url.is_some(), "names a proxy, which this agent does not use: name the server itself"),
        (
            user.exec.is_some(),
            "gets credentials from a program (exec), which this agent does not run: use a token",
        ),
        (
            user.auth_provider.is_some(),
            "has an auth-provider, which this agent does not support: use a token",
        ),
        (user.username.is_some(), "logs in with a password, which API servers refuse: use a token"),
    ];
    match refused.into_iter().find(|(is_so, _)| *is_so) {
        Some((_, rule)) => Err(KubeconfigError::Unusable(rule.to_owned())),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })
}

/// The bytes of a file, or of its base64 in the kubeconfig.
fn bytes_of(
    folder: &Path,
    file: Option<PathBuf>,
    data: Option<String>,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    if let Some(data) = data {
        let bytes = STANDARD.decode(data.trim());
        let rule =
            |_| KubeconfigError::Unusable("has certificates or a key (…-data) that are no base64".to_owned());
        return bytes.map(Some).map_err(rule);
    }
    file.map(|file| read(&folder.join(file))).transpose()
}

fn tls(
    authorities: Option<&[u8]>,
    client: Option<(Vec<u8>, Vec<u8>)>,
) -> Result<Arc<ClientConfig>, KubeconfigError> {
    let unusable = |what: &str| KubeconfigError::Unusable(format!("has {what} that is no PEM"));
    let certificates = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let mut roots = RootCertStore::empty();
    let trusted = match authorities {
        Some(pem) => certificates(pem).map_err(|_| unusable("a certificate-authority"))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    // Certificates that cannot be parsed are skipped.
    roots.add_parsable_certificates(trusted);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(&certificate).map_err(|_| unusable("a client-certificate"))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| unusable("a client-key"))?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(cluster: &str, user: &str) -> Result<ClusterAccess, KubeconfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        ClusterAccess::read(Some(&path))
    }

    #[test]
    fn a_kubeconfig_names_the_server_and_the_token() {
        let access = access("{server: 'https://k.example/base/'}", "{token: abc}").unwrap();
        assert_eq!(
            (&*access.authority, &*access.server_name, &*access.path_prefix),
            ("k.example:443", "k.example", "/base")
        );
        assert!(matches!(access.token, Token::Fixed(token) if token == "abc"));
        assert!(access.tls.is_some());
    }

    #[test]
    fn unsafe_and_unsupported_fields_are_refused_by_name() {
        for (cluster, user, words) in [
            ("{server: 'http://k.example'}", "{}", "without TLS"),
            ("{server: 'https://k', insecure-skip-tls-verify: true}", "{}", "certificate off"),
            ("{server: 'https://k', proxy-url: 'http://p'}", "{}", "proxy"),
            ("{server: 'https://k'}", "{exec: {command: aws}}", "exec"),
            ("{server: 'https://k'}", "{username: a, password: s3cret}", "password"),
            ("{server: 'k.example'}", "{}", "no URL"),
            ("{server: 'https://k', certificate-authority-data: '%%'}", "{}", "base64"),
        ] {
            let said = access(cluster, user).err().unwrap().to_string();
            assert!(said.contains(words) && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn a_server_on_this_machine_needs_no_tls() {
        for server in ["http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost"] {
            assert!(access(&format!("{{server: '{server}'}}"), "{}").unwrap().tls.is_none(), "{server}");
        }
    }
}
