//! A client of the device API: one request on one connection, with a certificate, and nothing that a library would mend.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_tests::answer;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::pki::Signed;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer with its body as it came.
pub(crate) type Answer = answer::Answer<Vec<u8>>;

/// A device's end of connections.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) addr: SocketAddr,
    tls: TlsConnector,
}

impl Client {
    /// A client with a certificate, or without one.
    pub(crate) fn new(addr: SocketAddr, authority: &Path, own: Option<&Signed>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some(Signed { certificate, key }) => {
                let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
                config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
            }
        };
        Self { addr, tls: TlsConnector::from(Arc::new(config)) }
    }

    /// The same client at another gateway.
    pub(crate) fn at(&self, addr: SocketAddr) -> Self {
        Self { addr, ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers, b"").await.unwrap()
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("Content-Type", "application/json")];
        self.ask(method, path, &headers, body.to_string().as_bytes()).await.unwrap()
    }

    /// One request with its answer.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: wfm\r\nConnection: close\r\n{headers}{length}\r\n");
        self.raw(&[head.as_bytes(), body].concat()).await
    }

    /// A connection, for several requests.
    pub(crate) async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.addr).await?;
        self.tls.connect(ServerName::try_from("127.0.0.1").unwrap(), tcp).await
    }

    /// Sends bytes as they are, and reads the answer until the connection ends.
    pub(crate) async fn raw(&self, request: &[u8]) -> io::Result<Answer> {
        let exchange = async {
            let mut stream = self.connect().await?;
            // The server may answer and close before it has read all.
            let _ = stream.write_all(request).await;
            let mut bytes = Vec::new();
            stream
                .read_to_end(&mut bytes)
                .await
                .or_else(|error| if bytes.is_empty() { Err(error) } else { Ok(0) })?;
            Answer::parse(&bytes)
        };
        timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}
