//! A client of the gateway's gRPC services, with certificates of an authority that a test makes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use muster_proto::proto::mrds::ledger::cluster::clusters_client::ClustersClient;
use muster_proto::proto::mrds::ledger::computecapability::compute_capabilities_client::ComputeCapabilitiesClient;
use muster_proto::proto::mrds::ledger::deploymentplan::deployment_plans_client::DeploymentPlansClient;
use muster_proto::proto::mrds::ledger::metainstance::meta_instances_client::MetaInstancesClient;
use muster_proto::proto::mrds::ledger::node::nodes_client::NodesClient;
use muster_proto::status_notify_client::StatusNotifyClient;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// The trust domain of the tests.
pub(crate) const DOMAIN: &str = "example.org";

/// An authority with a folder for what it signs.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The URI of a person.
pub(crate) fn person(role: &str, name: &str) -> String {
    format!("spiffe://{DOMAIN}/muster/{role}/{name}")
}

impl Authority {
    pub(crate) fn create(folder: &Path, name: &str) -> Self {
        let (folder, key) = (folder.join(name), KeyPair::generate().unwrap());
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Signs a certificate with these URIs, and writes it and its key; its number.
    pub(crate) fn sign(&self, file: &str, uris: &[&str], hosts: &[&str], number: u64) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.serial_number = Some(SerialNumber::from(number));
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.file(&format!("{file}.pem")), signed.pem()).unwrap();
        std::fs::write(self.file(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    /// Writes a list that revokes one certificate.
    pub(crate) fn revoke(&self, number: u64) -> PathBuf {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(number),
            revocation_time: rcgen::date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2026, 1, 1),
            next_update: rcgen::date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let file = self.file("revoked.pem");
        std::fs::write(&file, list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        file
    }

    /// Signs the gateway's certificate; the settings with which a gateway serves gRPC on an address.
    pub(crate) fn settings(&self, addr: SocketAddr) -> Vec<String> {
        self.sign("server", &[], &["localhost", "127.0.0.1"], 1);
        let file = |name: &str| self.file(name).display().to_string();
        let words = [
            "--grpc-addr",
            &addr.to_string(),
            "--grpc-client-ca",
            &file("ca.pem"),
            "--grpc-cert",
            &file("server.pem"),
            "--grpc-key",
            &file("server.key"),
            "--trust-domain",
            DOMAIN,
        ];
        words.map(str::to_owned).to_vec()
    }

    /// A connection with the certificate of a file, or with none; it is opened by the first call.
    pub(crate) fn channel(&self, addr: SocketAddr, server: &Self, file: Option<&str>) -> Channel {
        let read = |path: PathBuf| std::fs::read(path).unwrap();
        let mut tls = ClientTlsConfig::new()
            .domain_name("localhost")
            .ca_certificate(Certificate::from_pem(read(server.file("ca.pem"))));
        if let Some(file) = file {
            let (cert, key) = (self.file(&format!("{file}.pem")), self.file(&format!("{file}.key")));
            tls = tls.identity(Identity::from_pem(read(cert), read(key)));
        }
        let endpoint = Endpoint::from_shared(format!("https://{addr}")).unwrap();
        endpoint.tls_config(tls).unwrap().connect_lazy()
    }
}

/// The clients of one connection.
#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) clusters: ClustersClient<Channel>,
    pub(crate) capabilities: ComputeCapabilitiesClient<Channel>,
    pub(crate) nodes: NodesClient<Channel>,
    pub(crate) plans: DeploymentPlansClient<Channel>,
    pub(crate) instances: MetaInstancesClient<Channel>,
    pub(crate) notify: StatusNotifyClient<Channel>,
}

impl Clients {
    pub(crate) fn of(channel: Channel) -> Self {
        Self {
            clusters: ClustersClient::new(channel.clone()),
            capabilities: ComputeCapabilitiesClient::new(channel.clone()),
            nodes: NodesClient::new(channel.clone()),
            plans: DeploymentPlansClient::new(channel.clone()),
            instances: MetaInstancesClient::new(channel.clone()),
            notify: StatusNotifyClient::new(channel),
        }
    }
}
