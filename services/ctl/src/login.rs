//! `muster login`: proves a key to a gateway, and gets a code for its login page or a token for a program.
//!
//! This program signs the gateway's host and a nonce; the gateway gets the JWT and the signature. The answer is a secret, so the
//! client speaks plain HTTP only to this machine, and follows no redirect.

pub(crate) mod failure;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_identity::login::{LoginProof, LoginPurpose};
use muster_identity::{KeyPair, creds};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use self::failure::LoginFailure;
use crate::auth::{AuthContext, write_secret};
use crate::config::{Connection, LoginArgs};
use crate::error::CtlError;
use crate::render;

/// Longest answer of a gateway in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// The answer to a proof.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Granted {
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    token: Option<String>,
    name: String,
    role: String,
    expires_at: Timestamp,
}

/// The result of a login.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoggedIn {
    /// The gateway.
    pub url: String,
    /// The name in the JWT.
    pub name: String,
    /// The role.
    pub role: String,
    /// When code or token end.
    pub expires_at: Timestamp,
    /// The code for the page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The file with the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// `muster login`
///
/// # Errors
/// The address or the credentials cannot be used, or the gateway refuses.
pub(crate) fn run(context: &mut AuthContext<'_>, args: &LoginArgs) -> Result<(), CtlError> {
    let connection = context.connection.check()?;
    let gateway = Gateway::new(&args.url, &connection)?;
    let credentials = Credentials::read(connection.creds.as_deref().ok_or(LoginFailure::NoCreds)?)?;
    let (purpose, nonce) = match &args.nonce {
        Some(nonce) => (LoginPurpose::Page, nonce.trim().to_owned()),
        None => (LoginPurpose::Token, gateway.nonce()?),
    };
    let proof = LoginProof::sign(&credentials.key, &credentials.jwt, &gateway.host, purpose, &nonce);
    let granted = gateway.prove(&proof.map_err(|error| LoginFailure::Sign(error.to_string()))?)?;
    if let (Some(file), Some(token)) = (&args.token, &granted.token) {
        write_secret(file, &format!("{token}\n"))?;
    } else if granted.code.is_none() {
        return Err(LoginFailure::Garbled(gateway.url).into());
    }
    let Granted { code, name, role, expires_at, .. } = granted;
    let done = LoggedIn { url: gateway.url, name, role, expires_at, code, file: args.token.clone() };
    if done.code.is_some() {
        context.terminal.print_note(&render::auth::code_for(&done));
    }
    context.show(&done, |done, _| render::auth::logged_in(done))
}

/// The key and the JWT of a credentials file.
struct Credentials {
    jwt: String,
    key: KeyPair,
}

impl Credentials {
    fn read(path: &Path) -> Result<Self, LoginFailure> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| LoginFailure::Read { path: path.to_owned(), source })?;
        let wrong = |wanted| LoginFailure::Malformed { path: path.to_owned(), wanted };
        let jwt = creds::token(&text).ok_or_else(|| wrong("JWT"))?.to_owned();
        let key = creds::seed(&text).and_then(|seed| KeyPair::from_seed(seed).ok());
        Ok(Self { jwt, key: key.ok_or_else(|| wrong("seed"))? })
    }
}

/// A gateway.
struct Gateway {
    url: String,
    host: String,
    agent: Agent,
}

impl Gateway {
    fn new(url: &str, connection: &Connection) -> Result<Self, LoginFailure> {
        let refused = || LoginFailure::Url(url.to_owned());
        let url = url.trim_end_matches('/');
        let (host, scheme) = host(url).zip(url.split_once("://")).ok_or_else(refused)?;
        let agent = agent(connection.tls_ca.as_deref(), connection.timeout)?;
        // Without the port of the scheme: a request names the host that is signed.
        Ok(Self { url: format!("{}://{host}", scheme.0), host, agent })
    }

    /// A nonce for a program.
    fn nonce(&self) -> Result<String, LoginFailure> {
        let answer = self.agent.get(format!("{}/login/nonce", self.url)).call();
        let answer = self.answer(answer)?;
        answer["nonce"].as_str().map(str::to_owned).ok_or_else(|| LoginFailure::Garbled(self.url.clone()))
    }

    fn prove(&self, proof: &LoginProof) -> Result<Granted, LoginFailure> {
        let garbled = |_| LoginFailure::Garbled(self.url.clone());
        let body = serde_json::to_string(proof).map_err(garbled)?;
        let request = self.agent.post(format!("{}/login/key", self.url));
        let answer = self.answer(request.header("Content-Type", "application/json").send(body.as_str()))?;
        serde_json::from_value(answer).map_err(garbled)
    }

    fn answer(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value, LoginFailure> {
        let unreachable =
            |error| LoginFailure::Unreachable { url: self.url.clone(), source: Box::new(error) };
        let (head, mut body) = answer.map_err(unreachable)?.into_parts();
        let text = body.with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unreachable)?;
        let garbled = |_| LoginFailure::Garbled(self.url.clone());
        let value: Value = serde_json::from_str(&text).map_err(garbled)?;
        match (head.status, value["detail"].as_str()) {
            (StatusCode::OK, _) => Ok(value),
            (_, Some(detail)) => Err(LoginFailure::Refused(detail.to_owned())),
            _ => Err(LoginFailure::Garbled(self.url.clone())),
        }
    }
}

/// The host of an address, with its port unless it is the scheme's default.
fn host(url: &str) -> Option<String> {
    let (scheme, host) = url.split_once("://")?;
    let is_plain = !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']);
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let is_here = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
    let port = match scheme {
        "https" => ":443",
        "http" if is_here => ":80",
        _ => return None,
    };
    is_plain.then(|| host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase())
}

fn agent(authority: Option<&Path>, timeout: Duration) -> Result<Agent, LoginFailure> {
    let system = rustls_native_certs::load_native_certs().certs;
    let mut roots: Vec<_> = system.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    if let Some(path) = authority {
        let pem =
            std::fs::read(path).map_err(|source| LoginFailure::Read { path: path.to_owned(), source })?;
        let found = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        roots.extend(found);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(provider);
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(timeout))
        .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls.build());
    Ok(config.build().new_agent())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_spoken_to_over_tls_but_for_this_machine_itself() {
        for (url, expected) in [
            ("https://Fleet.example.com", Some("fleet.example.com")),
            ("https://fleet.example.com:443", Some("fleet.example.com")),
            ("https://fleet.example.com:8443", Some("fleet.example.com:8443")),
            ("http://127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("http://localhost", Some("localhost")),
            ("http://fleet.example.com", None),
            ("http://127.0.0.1.evil.example", None),
            ("https://me@fleet.example.com", None),
            ("https://fleet.example.com/login", None),
            ("fleet.example.com", None),
        ] {
            assert_eq!(host(url).as_deref(), expected, "{url}");
        }
    }
}
