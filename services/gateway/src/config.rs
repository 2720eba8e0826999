//! The gateway's settings.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use muster_service::config::{Common, CommonArgs, Problems};
use muster_service::version::VERSION;

use crate::grpc::config::{GrpcArgs, GrpcConfig, Inherited};
use crate::login::settings::{LoginArgs, LoginConfig};
use crate::margo::config::{DevicesArgs, DevicesConfig};
use crate::people::hosts::{Reach, name_and_port};
use crate::webhooks::settings::{WebhooksArgs, WebhooksConfig};

const GUIDE: &str = "\
Opened in a browser, the gateway shows the fleet as it is; programs use /api/v1 (described at /openapi.json).

Without a login, everybody who reaches the address has the rights of --creds. So the address must be one of this machine's
loopback, with --insecure-http or with TLS. A container whose port is published on the loopback alone says so by
--published-on-loopback. With --session-key people log in with their NATS credentials (`muster login`), and any address is
served over TLS.

Examples:
  muster-gateway --insecure-http --people-addr 127.0.0.1:8080
  muster-gateway --insecure-http --people-addr 127.0.0.1:8080 --creds subscriber.creds     looking only
  muster-gateway --people-addr 0.0.0.0:8443 --public-url https://fleet.example.com --tls-cert cert.pem --tls-key key.pem \
                 --session-key session.key --creds gateway.creds --nats-url tls://hub:4222 --tls-ca ca.pem

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// The fleet over HTTP: pages for people, REST and events for programs
#[derive(Debug, Parser)]
#[command(name = "muster-gateway", version = VERSION, after_help = GUIDE)]
pub(crate) struct Cli {
    /// Address to serve people on; port 0 takes any free port
    #[arg(long, env = "MUSTER_PEOPLE_ADDR", value_name = "IP:PORT", default_value = "127.0.0.1:8443")]
    people_addr: String,

    /// Serve people without TLS, on the loopback of this machine alone
    #[arg(long, env = "MUSTER_INSECURE_HTTP")]
    insecure_http: bool,

    /// The address is not of the loopback, and only the loopback of this machine leads to it: a container's published port
    #[arg(long, env = "MUSTER_PUBLISHED_ON_LOOPBACK")]
    published_on_loopback: bool,

    /// File with the certificate of this server and its intermediates (PEM)
    #[arg(long, env = "MUSTER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,

    /// File with the key of that certificate (PEM)
    #[arg(long, env = "MUSTER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,

    /// Address that people open, if it is not localhost, such as `https://fleet.example.com`; requests to another host are
    /// refused. With --insecure-http on the loopback, an https address is the address of a proxy that ends TLS
    #[arg(long, env = "MUSTER_PUBLIC_URL", value_name = "URL")]
    public_url: Option<String>,

    #[command(flatten)]
    login: LoginArgs,

    #[command(flatten)]
    devices: DevicesArgs,

    #[command(flatten)]
    grpc: GrpcArgs,

    #[command(flatten)]
    webhooks: WebhooksArgs,

    /// File with credentials of the role packager, with which operators who have logged in put and remove packages of the hub.
    /// Without it, a gateway on a hub with credentials only lists them
    #[arg(long, env = "MUSTER_PACKAGES_CREDS", value_name = "FILE", requires = "session_key")]
    packages_creds: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings of every service.
    pub common: Common,
    /// The listener of people.
    pub people: PeopleConfig,
    /// The login of people, if they log in.
    pub login: Option<LoginConfig>,
    /// The listener of devices, if they are served.
    pub devices: Option<DevicesConfig>,
    /// The listener of gRPC, if it is served.
    pub grpc: Option<GrpcConfig>,
    /// Webhooks, if this gateway registers and delivers them.
    pub webhooks: Option<WebhooksConfig>,
    /// Credentials that write packages.
    pub packages_creds: Option<PathBuf>,
}

/// The settings of the listener of people.
#[derive(Debug, Clone)]
pub struct PeopleConfig {
    /// Its address.
    pub addr: SocketAddr,
    /// Certificate and key; none without TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The host and port that requests may name besides those of the loopback.
    pub public_host: Option<String>,
    /// How people reach it.
    pub reach: Reach,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// All problems of the settings.
    pub(crate) fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let addr = self.checked_addr(&mut problems);
        let certificate = problems.optional("--tls-cert", self.tls_cert.as_deref(), Problems::file);
        let key = problems.optional("--tls-key", self.tls_key.as_deref(), Problems::file);
        let public = problems.optional("--public-url", self.public_url.as_deref(), public_url);
        if let (Some(Some((false, _))), Some(url), true) = (&public, &self.public_url, self.login.is_set()) {
            problems.refuse(
                "--public-url",
                url,
                "must be https:// if people log in: browsers keep sessions over TLS alone",
            );
        }
        let login =
            self.login.check(self.common.creds.is_some(), self.common.tls_ca.as_deref(), &mut problems);
        let (is_insecure, only_loopback) = (self.insecure_http, self.published_on_loopback);
        let inherited = Inherited {
            cert: self.tls_cert.as_deref(),
            key: self.tls_key.as_deref(),
            domain: self.devices.trust_domain(),
        };
        let grpc = self.grpc.check(inherited, &mut problems);
        let devices = self.devices.check((self.tls_cert.as_deref(), self.tls_key.as_deref()), &mut problems);
        let webhooks = self.webhooks.check(self.login.knows_no_revocations(), &mut problems);
        let packages_creds =
            problems.optional("--packages-creds", self.packages_creds.as_deref(), Problems::file);
        problems.finish(|| {
            let tls = certificate?.zip(key?).filter(|_| !is_insecure);
            let (public_is_https, public_host) = public?.unzip();
            let reach = Reach { public_is_https: public_is_https.unwrap_or(false), only_loopback };
            Some(Config {
                common: common?,
                people: PeopleConfig { addr: addr?, tls, public_host, reach },
                login: login?,
                devices: devices?,
                grpc: grpc?,
                webhooks: webhooks?,
                packages_creds: packages_creds?,
            })
        })
    }

    fn checked_addr(&self, problems: &mut Problems) -> Option<SocketAddr> {
        let addr = problems.address("--people-addr", &self.people_addr)?;
        let refuse = |problems: &mut Problems, rule: &str| {
            problems.refuse("--people-addr", &self.people_addr, rule);
            None
        };
        if !self.insecure_http && self.tls_cert.is_none() {
            return refuse(problems, "needs --tls-cert and --tls-key, or --insecure-http on the loopback");
        }
        if addr.ip().is_loopback() || self.published_on_loopback {
            return Some(addr);
        }
        if !self.login.is_set() {
            return refuse(
                problems,
                "must be of the loopback, such as 127.0.0.1:8080: there is no login, so anybody who reaches the address \
                 would have the rights of --creds",
            );
        }
        if self.insecure_http {
            return refuse(
                problems,
                "needs TLS (--tls-cert, --tls-key): without it others on the network can read sessions",
            );
        }
        if self.public_url.is_none() {
            return refuse(problems, "needs --public-url: requests to any other host are refused");
        }
        Some(addr)
    }
}

/// Whether a URL is `https://`, and its host, with the port unless it is the scheme's default.
fn public_url(problems: &mut Problems, flag: &'static str, text: &str) -> Option<(bool, String)> {
    let parsed = || {
        let (scheme, rest) = text.split_once("://")?;
        let usual = match scheme {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let host = rest.strip_suffix('/').unwrap_or(rest).to_ascii_lowercase();
        let (name, port) = name_and_port(&host)?;
        let host = if port == Some(usual) { name.to_owned() } else { host };
        Some((scheme == "https", host))
    };
    let url = parsed();
    if url.is_none() {
        problems.refuse(flag, text, "must be https://HOST or https://HOST:PORT, without a path");
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<Config, Problems> {
        Cli::try_parse_from([&["muster-gateway"], words].concat()).unwrap().check()
    }

    #[test]
    fn without_a_login_only_the_loopback_is_served() {
        let local = check(&["--insecure-http", "--people-addr", "127.0.0.1:8080"]).unwrap();
        assert_eq!((local.people.addr.port(), local.people.tls), (8080, None));
        for addr in ["0.0.0.0:8080", "192.0.2.7:8080", "[::]:8080"] {
            let refused = check(&["--insecure-http", "--people-addr", addr]).unwrap_err().to_string();
            assert!(refused.contains("no login"), "{refused}");
        }
        let container = ["--insecure-http", "--people-addr", "0.0.0.0:8080", "--published-on-loopback"];
        assert!(check(&container).is_ok());
        let refused = check(&[]).unwrap_err().to_string();
        assert!(refused.contains("--tls-cert"), "{refused}");
    }

    #[test]
    fn with_a_login_any_address_is_served_over_tls() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let file = file.to_str().unwrap();
        let login = ["--people-addr", "0.0.0.0:8443", "--session-key", file];
        let tls = ["--tls-cert", file, "--tls-key", file];
        let rest = ["--public-url", "https://fleet.example.com", "--creds", file];
        let refused = |words: &[&[&str]]| check(&words.concat()).unwrap_err().to_string();
        let good = check(&[&login[..], &tls, &rest].concat()).unwrap();
        assert_eq!(good.login.unwrap().lifetime.as_secs(), 8 * 60 * 60);
        assert!(refused(&[&login, &rest, &["--insecure-http"]]).contains("needs TLS"));
        assert!(refused(&[&login, &tls, &rest[2..]]).contains("--public-url"));
        assert!(refused(&[&login, &tls, &rest[..2]]).contains("--creds of the role gateway"));
        assert!(refused(&[&login, &tls, &rest, &["--session", "1s"]]).contains("--session"));
        let webhooks = ["--webhook-key", file];
        assert!(refused(&[&login, &tls, &rest, &webhooks]).contains("--webhook-key"), "needs revocations");
        assert!(check(&[&login[..], &tls, &rest, &webhooks, &["--revocations", file]].concat()).is_ok());
    }

    #[test]
    fn the_public_address_is_a_host_without_a_path() {
        let host = |url| {
            let local = ["--insecure-http", "--people-addr", "127.0.0.1:8080", "--public-url", url];
            check(&local).map(|config| config.people.public_host.unwrap())
        };
        assert_eq!(host("https://Fleet.example.com/").unwrap(), "fleet.example.com");
        assert_eq!(host("https://fleet.example.com:8443").unwrap(), "fleet.example.com:8443");
        assert_eq!(host("https://fleet.example.com:443").unwrap(), "fleet.example.com");
        for url in ["fleet.example.com", "https://a/b", "https://me@a", "https://", "https://a:x", "ftp://a"]
        {
            assert!(host(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_public_address_keeps_its_scheme_and_needs_https_for_a_login() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().to_str().unwrap();
        let local = ["--insecure-http", "--people-addr", "127.0.0.1:8080", "--public-url"];
        let login = ["--session-key", file, "--creds", file];
        let public = |url, login: &[&str]| check(&[&local[..], &[url], login].concat());
        let is_https = |url, login| public(url, login).unwrap().people.reach.public_is_https;
        assert!(is_https("https://fleet.example.com", &login) && !is_https("http://fleet.example.com", &[]));
        let refused = public("http://fleet.example.com", &login).unwrap_err().to_string();
        assert!(refused.contains("must be https://"), "{refused}");
    }

    #[test]
    fn the_command_line_is_valid() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
