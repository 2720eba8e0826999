//! Parses and checks the settings of the listener of devices.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muster_contract::http_device::manager_identity;
use muster_service::config::Problems;

use super::svid::Realm;

/// The port of an address that names none.
const PORT_DEFAULT: u16 = 8444;
/// The heading of these settings in the help.
const HEADING: &str = "Devices that speak Margo's HTTP API";
/// Bounds of the time between two heartbeats.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
const HEARTBEAT_MAX: Duration = Duration::from_secs(30);

/// The settings as text.
#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Address to serve devices on, over TLS with client certificates; port 8444 if it has none. Off unless set
    #[arg(long, help_heading = HEADING, env = "MUSTER_DEVICES_ADDR", value_name = "IP[:PORT]")]
    devices_addr: Option<String>,

    /// File with the certificates (PEM) of the authorities that sign those of devices
    #[arg(long, help_heading = HEADING, env = "MUSTER_CLIENT_CA", value_name = "FILE")]
    client_ca: Option<String>,

    /// File with the certificate for devices (PEM), which names spiffe://TRUST-DOMAIN/margo/wfm/WFM-ID [default: --tls-cert]
    #[arg(long, help_heading = HEADING, env = "MUSTER_DEVICES_CERT", value_name = "FILE", requires = "devices_key")]
    devices_cert: Option<String>,

    /// File with the key of that certificate (PEM) [default: --tls-key]
    #[arg(long, help_heading = HEADING, env = "MUSTER_DEVICES_KEY", value_name = "FILE", requires = "devices_cert")]
    devices_key: Option<String>,

    /// SPIFFE trust domain of the server and its devices, such as example.org
    #[arg(long, help_heading = HEADING, env = "MUSTER_TRUST_DOMAIN", value_name = "NAME")]
    trust_domain: Option<String>,

    /// Number of the authorities of --client-ca, raised with each change of the file: devices refuse a trust bundle with a lower one
    #[arg(long, help_heading = HEADING, env = "MUSTER_TRUST_BUNDLE_SEQUENCE", value_name = "NUMBER")]
    trust_bundle_sequence: Option<u64>,

    /// Name of this workload fleet manager in SPIFFE ids
    #[arg(long, help_heading = HEADING, env = "MUSTER_WFM_ID", value_name = "ID")]
    wfm_id: Option<String>,

    /// File with the NATS credentials of the role margo [default: --creds]
    #[arg(long, help_heading = HEADING, env = "MUSTER_DEVICES_CREDS", value_name = "FILE")]
    devices_creds: Option<String>,

    /// Least time between two heartbeats of a device that polls; below half of the lease of muster-ingest
    #[arg(
        long,
        help_heading = HEADING,
        env = "MUSTER_DEVICES_HEARTBEAT",
        value_name = "TIME",
        default_value = "30s"
    )]
    devices_heartbeat: String,

    /// File (YAML) with clusters without an agent, whose ResourceGroups this gateway pulls; needs --devices-addr
    #[arg(long, help_heading = HEADING, env = "MUSTER_PULL", value_name = "FILE", requires = "devices_addr")]
    pull: Option<String>,
}

/// The settings, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicesConfig {
    /// The address.
    pub addr: SocketAddr,
    /// Authorities of devices.
    pub client_ca: PathBuf,
    /// Certificate and key of the server.
    pub pair: (PathBuf, PathBuf),
    /// The server's identity.
    pub realm: Realm,
    /// NATS credentials, if they are not those of the people's side.
    pub creds: Option<PathBuf>,
    /// Least time between two heartbeats of a device.
    pub heartbeat: Duration,
    /// The number of the authorities, if the operator counts them.
    pub sequence: Option<u64>,
    /// File with the clusters whose ResourceGroups are pulled.
    pub pull: Option<PathBuf>,
}

impl DevicesArgs {
    /// The trust domain as it was given.
    pub(crate) fn trust_domain(&self) -> Option<&str> {
        self.trust_domain.as_deref()
    }

    /// The checked settings: `Some(None)` if devices are not served, `None` if one was refused. `people` are certificate and key
    /// of the people's listener.
    pub(crate) fn check(
        self,
        people: (Option<&str>, Option<&str>),
        problems: &mut Problems,
    ) -> Option<Option<DevicesConfig>> {
        let heartbeat =
            problems.duration("--devices-heartbeat", &self.devices_heartbeat, HEARTBEAT_MIN..=HEARTBEAT_MAX);
        let creds = problems.optional("--devices-creds", self.devices_creds.as_deref(), Problems::file);
        let pull = problems.optional("--pull", self.pull.as_deref(), Problems::file);
        let Some(addr) = &self.devices_addr else { return Some(None) };
        let addr = address(problems, addr);
        let client_ca = problems.required("--client-ca", self.client_ca.as_deref(), Problems::file);
        let (cert, key) = match (&self.devices_cert, &self.devices_key) {
            (Some(cert), Some(key)) => (Some(cert.as_str()), Some(key.as_str())),
            _ => people,
        };
        let cert = problems.required("--devices-cert", cert, Problems::file);
        let key = problems.required("--devices-key", key, Problems::file);
        let keep = |_: &mut Problems, _: &'static str, text: &str| Some(text.to_owned());
        let domain = problems.required("--trust-domain", self.trust_domain.as_deref(), keep);
        let manager = problems.required("--wfm-id", self.wfm_id.as_deref(), keep);
        let (domain, manager) = (domain?, manager?);
        let Some(manager) = manager_identity(&domain, &manager) else {
            let rule =
                "with --wfm-id must be names of letters, digits and any of . _ -, the domain in lower case";
            problems.refuse("--trust-domain", format!("{domain} and {manager}"), rule);
            return None;
        };
        Some(Some(DevicesConfig {
            addr: addr?,
            client_ca: client_ca?,
            pair: (cert?, key?),
            realm: Realm { manager },
            creds: creds?,
            heartbeat: heartbeat?,
            sequence: self.trust_bundle_sequence,
            pull: pull?,
        }))
    }
}

/// An address with the default port if it names none.
fn address(problems: &mut Problems, text: &str) -> Option<SocketAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Some(SocketAddr::new(ip, PORT_DEFAULT)),
        Err(_) => problems.address("--devices-addr", text),
    }
}
