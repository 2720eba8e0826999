//! Serving requests under the NATS service API, discoverable with `$SRV.{PING,INFO,STATS}`.

use std::future::Future;

use bytes::Bytes;

use crate::bus::Bus;
use crate::message::Headers;
use crate::read::ReadError;

/// A service and its endpoints.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    /// `[A-Za-z0-9_-]+`
    pub name: &'static str,
    /// Semantic version.
    pub version: &'static str,
    /// For a person.
    pub description: &'static str,
    /// What it answers.
    pub endpoints: Vec<EndpointSpec>,
}

/// An endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSpec {
    /// `[A-Za-z0-9_-]+`
    pub name: &'static str,
    /// Where it listens.
    pub subject: String,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Call {
    /// The endpoint's name.
    pub endpoint: &'static str,
    /// The subject it came on.
    pub subject: String,
    /// The body.
    pub payload: Bytes,
    /// Its headers.
    pub headers: Headers,
}

/// A refusal: counted as an error, sent as `Nats-Service-Error` headers with a body beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// A number like HTTP's.
    pub code: u16,
    /// In words, one line.
    pub message: String,
    /// The body of the reply.
    pub body: Bytes,
}

/// A service that is being served until this is stopped or dropped.
#[derive(Debug)]
pub struct Serving {}

impl Serving {
    /// Takes no more requests, answers those it has, and leaves.
    pub async fn stop(self) {}
}

impl Bus {
    /// Serves requests until the returned value is stopped or dropped; survives reconnects.
    pub async fn serve<H, F>(&self, spec: ServiceSpec, handler: H) -> Result<Serving, ReadError>
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
    {
        let _ = (spec, handler);
        std::future::pending().await
    }
}
