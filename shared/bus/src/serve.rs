//! Serving requests under the NATS service API, discoverable with `$SRV.{PING,INFO,STATS}`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::service::endpoint::Endpoint;
use async_nats::service::{NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE, Request, Service, ServiceExt};
use bytes::Bytes;
use fastrand::Rng;
use futures_util::{FutureExt, StreamExt};
use muster_contract::query::{ErrorBody, ErrorReply};
use muster_identity::Requester;
use muster_service::backoff::FullJitter;
use muster_service::error::{BoxError, chain};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::bus::Bus;
use crate::message::Headers;

/// Requests of one service under way at once; more wait in the order of arrival.
const CALLS_AT_ONCE: usize = 64;
/// Longest message in an error header; the body has all of it.
const HEADER_CHARS_MAX: usize = 200;
/// Least and longest upper bound of the delay before a service is offered again.
const OFFER_MIN: Duration = Duration::from_millis(200);
/// See [`OFFER_MIN`].
const OFFER_MAX: Duration = Duration::from_secs(10);

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
    /// Who asks, as far as the server vouches for it.
    pub requester: Requester,
}

/// A refusal, sent as the service API's error headers with a body beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// A number like HTTP's.
    pub code: u16,
    /// In words, one line.
    pub message: String,
    /// The body of the reply.
    pub body: Bytes,
}

impl From<ErrorBody> for Fault {
    /// The refusal with all of its message in the body, and the beginning of it in the header.
    fn from(error: ErrorBody) -> Self {
        let (code, message) = (error.code.number(), error.message.chars().take(HEADER_CHARS_MAX).collect());
        // Cannot fail: the reply is an object of two texts.
        let body = serde_json::to_vec(&ErrorReply { error }).unwrap_or_default();
        Self { code, message, body: body.into() }
    }
}

/// Why a service is not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve requests as {service}")]
pub struct ServeError {
    /// The service's name.
    pub service: &'static str,
    /// What the bus says about its name, version or subjects.
    #[source]
    pub source: BoxError,
}

/// A service that is being served until this is stopped or dropped.
#[derive(Debug)]
pub struct Serving {
    /// What makes the service discoverable.
    service: Service,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Serving {
    /// Takes no more requests, answers those it has, and leaves.
    pub async fn stop(self) {
        drop(self.stop);
        self.tasks.close();
        self.tasks.wait().await;
        // Never fails in this version of the library; the service is gone either way.
        let _ = self.service.stop().await;
    }
}

impl Bus {
    /// Serves requests until `stop`, as [`serve`](Self::serve) does, offering the service for as long as it takes; `offered`
    /// is called once others can discover it. Requests that were taken are answered before this returns.
    pub async fn offer<H, F>(
        &self,
        spec: ServiceSpec,
        handler: H,
        offered: impl FnOnce(),
        stop: CancellationToken,
    ) where
        H: Fn(Call) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
    {
        let (mut retry, mut chance) = (FullJitter::new(OFFER_MIN, OFFER_MAX), Rng::new());
        let offering = async {
            loop {
                match self.serve(spec.clone(), handler.clone()).await {
                    Ok(serving) => return serving,
                    Err(error) => {
                        let retry_in = retry.next(&mut chance);
                        tracing::warn!(error = chain(&error), ?retry_in, "cannot take requests yet");
                        tokio::time::sleep(retry_in).await;
                    }
                }
            }
        };
        if let Some(serving) = stop.run_until_cancelled(offering).await {
            offered();
            stop.cancelled().await;
            serving.stop().await;
        }
    }

    /// Serves requests until the returned value is stopped or dropped; survives reconnects. Any number of processes may
    /// serve the same subject: each request goes to one of them.
    pub async fn serve<H, F>(&self, spec: ServiceSpec, handler: H) -> Result<Serving, ServeError>
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
    {
        let refused = |source: BoxError| ServeError { service: spec.name, source };
        let builder = self.wire.client.service_builder().description(spec.description);
        let service = builder.start(spec.name, spec.version).await.map_err(refused)?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (handler, room) = (Arc::new(handler), Arc::new(Semaphore::new(CALLS_AT_ONCE)));
        for EndpointSpec { name, subject } in spec.endpoints {
            let requests = service.endpoint_builder().name(name).add(subject).await.map_err(refused)?;
            let desk = Desk {
                bus: self.clone(),
                endpoint: name,
                handler: Arc::clone(&handler),
                room: Arc::clone(&room),
                tasks: tasks.clone(),
            };
            tasks.spawn(desk.attend(requests, stop.clone()));
        }
        Ok(Serving { service, tasks, stop: stop.drop_guard() })
    }
}

/// Where the requests of one endpoint are taken.
struct Desk<H> {
    bus: Bus,
    endpoint: &'static str,
    handler: Arc<H>,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl<H, F> Desk<H>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
{
    async fn attend(self, mut requests: Endpoint, stop: CancellationToken) {
        while let Some(Some(request)) = stop.run_until_cancelled(requests.next()).await {
            self.accept(request).await;
        }
        // No new requests; those already here are answered.
        if requests.stop().await.is_ok() {
            while let Some(request) = tokio::task::unconstrained(requests.next()).now_or_never().flatten() {
                self.accept(request).await;
            }
        }
    }

    async fn accept(&self, request: Request) {
        let Some(requester) = self.bus.admit(&request.message) else { return };
        // Never closed, so never refused.
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return };
        let answer = (self.handler)(Call {
            endpoint: self.endpoint,
            subject: request.message.subject.to_string(),
            payload: request.message.payload.clone(),
            headers: Headers(request.message.headers.clone().unwrap_or_default()),
            requester,
        });
        let endpoint = self.endpoint;
        self.tasks.spawn(async move {
            reply(endpoint, &request, answer.await).await;
            drop(room);
        });
    }
}

async fn reply(endpoint: &str, request: &Request, answer: Result<Bytes, Fault>) {
    let mut headers = HeaderMap::new();
    let body = answer.unwrap_or_else(|fault| {
        headers.insert(NATS_SERVICE_ERROR, fault.message.replace(['\r', '\n'], " "));
        headers.insert(NATS_SERVICE_ERROR_CODE, fault.code.to_string());
        fault.body
    });
    if let Err(error) = request.respond_with_headers(Ok(body), headers).await {
        tracing::warn!(endpoint, %error, "a request got no answer");
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::query::ErrorCode;

    use super::*;

    #[test]
    fn a_fault_carries_the_error_as_its_body_and_the_beginning_of_it_in_its_header() {
        let error = ErrorBody { code: ErrorCode::NotFound, message: "x".repeat(HEADER_CHARS_MAX + 1) };
        let fault = Fault::from(error.clone());
        assert_eq!((fault.code, fault.message.len()), (404, HEADER_CHARS_MAX));
        let body: ErrorReply = serde_json::from_slice(&fault.body).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(body.error, error);
    }
}
