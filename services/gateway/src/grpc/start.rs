//! Wires the gRPC listener: its certificate, the person who is allowed, its services and their bounds.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use muster_client::ask::Hub;
use muster_proto::proto::mrds::ledger::cluster::clusters_server::ClustersServer;
use muster_proto::proto::mrds::ledger::computecapability::compute_capabilities_server::ComputeCapabilitiesServer;
use muster_proto::proto::mrds::ledger::deploymentplan::deployment_plans_server::DeploymentPlansServer;
use muster_proto::proto::mrds::ledger::metainstance::meta_instances_server::MetaInstancesServer;
use muster_proto::proto::mrds::ledger::node::nodes_server::NodesServer;
use muster_proto::status_notify_server::StatusNotifyServer;
use muster_service::clock::{Clock, SystemClock};
use muster_service::supervisor::{Stage, Supervisor};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::sync::Semaphore;
use tonic::service::Routes;

use super::caller::{CallGuard, guard};
use super::capabilities::Capabilities;
use super::clusters::Clusters;
use super::config::GrpcConfig;
use super::instances::Instances;
use super::limits::CALLS_MAX;
use super::nodes::Nodes;
use super::notify::Notifier;
use super::planner::Planner;
use super::plans::Plans;
use crate::error::StartError;
use crate::listener::{Limits, Listener};
use crate::login::LoginSetupError;
use crate::login::account::Account;
use crate::metrics::Metrics;
use crate::people::People;
use crate::tls::{self, KeyPair, TlsError};

/// Longest message of a client, in bytes: a plan is far shorter.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// Longest message of an answer, in bytes: the longest that gRPC's clients accept without a setting.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The gRPC listener before it serves.
pub(crate) struct GrpcListener {
    config: GrpcConfig,
    listener: Listener,
    account: Option<(Arc<Account>, Arc<muster_identity::on_behalf::NoteSigner>)>,
}

impl GrpcListener {
    /// Listens, without serving. `creds` are the gateway's own credentials, `revocations` the file with the accounts.
    ///
    /// # Errors
    /// A file cannot be used, or the address is in use.
    pub(crate) async fn bind(
        config: GrpcConfig,
        creds: Option<&Path>,
        revocations: Option<&Path>,
        metrics: &Metrics,
    ) -> Result<Self, StartError> {
        let pair = KeyPair::read(&config.pair.0, &config.pair.1)?;
        let tls = tls_of(pair, &config.client_ca, config.crl.as_deref())?;
        let opened = creds.map(|creds| Account::open(creds.to_owned(), revocations.map(Path::to_owned)));
        let opened = opened.transpose().map_err(LoginSetupError::from)?;
        let account = opened.map(|(account, signer)| (Arc::new(account), Arc::new(signer)));
        let addr = config.addr;
        let listener = Listener::bind(addr, Some(tls), Limits::GRPC, metrics.grpc.clone()).await;
        let listener = listener.map_err(|source| StartError::Bind { addr, flag: "--grpc-addr", source })?;
        Ok(Self { config, listener, account })
    }

    /// Serves under a supervisor, with the hub and the event streams of people; returns the address.
    ///
    /// # Errors
    /// The system does not name the address.
    pub(crate) fn serve(
        self,
        hub: Hub,
        people: People,
        metrics: &Metrics,
        supervisor: &Supervisor,
    ) -> Result<SocketAddr, StartError> {
        let Self { config: GrpcConfig { addr, domain, site, .. }, listener, account } = self;
        let bind = |source| StartError::Bind { addr, flag: "--grpc-addr", source };
        let addr = listener.local_addr().map_err(bind)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (account, signer) = account.unzip();
        let guard = CallGuard {
            domain: domain.into(),
            account,
            clock: Arc::clone(&clock),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            metrics: metrics.clone(),
        };
        let token = supervisor.token(Stage::Serve);
        let notifier = Notifier::new(people, guard.clone(), token.clone());
        let router = router(Planner::new(hub, signer, clock, site), notifier, guard);
        supervisor.spawn(Stage::Serve, "grpc", async move { listener.serve(router, token).await });
        tracing::info!(grpc.url = format!("https://{addr}"), "serving gRPC");
        Ok(addr)
    }
}

/// Sets the bounds of a service's messages.
macro_rules! bounded {
    ($server:ident, $service:expr) => {
        $server::new($service)
            .max_decoding_message_size(REQUEST_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX)
    };
}

fn router(planner: Planner, notifier: Notifier, state: CallGuard) -> Router {
    let routes = Routes::new(bounded!(ClustersServer, Clusters(planner.clone())))
        .add_service(bounded!(ComputeCapabilitiesServer, Capabilities(planner.clone())))
        .add_service(bounded!(NodesServer, Nodes(planner.clone())))
        .add_service(bounded!(DeploymentPlansServer, Plans(planner.clone())))
        .add_service(bounded!(MetaInstancesServer, Instances(planner)))
        .add_service(bounded!(StatusNotifyServer, notifier));
    routes.prepare().into_axum_router().layer(from_fn_with_state(state, guard))
}

/// TLS with a certificate of each client that an authority has signed and no list revokes.
fn tls_of(pair: KeyPair, client_ca: &Path, crl: Option<&Path>) -> Result<Arc<ServerConfig>, TlsError> {
    let roots = tls::roots(tls::certificates(client_ca)?)?;
    let revoked = crl.map(tls::revocation_lists).transpose()?.unwrap_or_default();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, tls::provider())
        .with_crls(revoked)
        .allow_unknown_revocation_status()
        .build()?;
    tls::for_clients(pair, verifier, b"h2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_list_of_revoked_certificates_is_reported_by_its_flag() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(["gateway.example".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let (certificate, key) = (write("cert.pem", &certificate), write("key.pem", &key));
        let pair = || KeyPair::read(&certificate, &key).unwrap();
        assert!(tls_of(pair(), &certificate, None).is_ok());
        let text = "-----BEGIN X509 CRL-----\nMAMCAQE=\n-----END X509 CRL-----\n";
        let refused = tls_of(pair(), &certificate, Some(&write("crl.pem", text))).unwrap_err();
        assert!(matches!(refused, TlsError::RevocationList(_)), "{refused:?}");
        assert!(refused.to_string().contains("--grpc-crl"), "{refused}");
        let refused = tls_of(pair(), &certificate, Some(&certificate)).unwrap_err();
        assert!(matches!(refused, TlsError::Pem { .. }), "{refused:?}");
    }
}
