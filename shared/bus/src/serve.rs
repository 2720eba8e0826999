//! Serves requests under the NATS service API, discoverable with `$SRV.{PING,INFO,STATS}`.
//!
//! Requests beyond those under way wait in a queue that is fair by requester: round robin, with a limit for each requester
//! and a reserve for operators ([`crate::permits`]). A request beyond a limit is refused at once.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::service::{NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE};
use async_nats::{HeaderMap, Message, SubscribeError, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_identity::Requester;
use muster_service::fair::{Exceeded, FairScheduler, Shares, Submitted};
use muster_service::retry::{RetryPolicy, retry_until};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::bus::Bus;
use crate::discovery::{Discovery, QUEUE_GROUP};
use crate::message::Headers;
use crate::permits::RequesterBounds;
use crate::requester::represented;
use crate::service_spec::{EndpointSpec, Fault, ServiceSpec};

/// Requests of one service under way at once: in all, of one requester, and the reserve for operators.
const RUNNING: RequesterBounds = RequesterBounds::new(64, 24, 16);
/// Requests of one service that wait. The total is the capacity of a subscription in the client library.
const WAITING: RequesterBounds = RequesterBounds::new(65_536, 256, 4_096);
const SHARES: Shares<Requester> =
    Shares { running: |requester| RUNNING.share(requester), queued: |requester| WAITING.share(requester) };
/// Delays before another attempt to serve.
const OFFER_RETRY: RetryPolicy =
    RetryPolicy { min: Duration::from_millis(200), max: Duration::from_secs(10) };

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
    /// The requester, as far as the server vouches for it.
    pub requester: Requester,
}

/// Why a service cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve requests as {service}")]
pub struct ServeError {
    /// The service's name.
    pub service: &'static str,
    /// The failed subscription.
    #[source]
    pub source: SubscribeError,
}

/// Serves a service until it is stopped or dropped.
#[derive(Debug)]
pub struct Serving {
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Serving {
    /// Unsubscribes, answers the requests that have arrived, and ends.
    pub async fn stop(self) {
        drop(self.stop);
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Bus {
    /// Serves requests until `stop` like [`serve`](Self::serve), repeating failed attempts; calls `offered` once the service
    /// can be discovered. It answers the requests that have arrived before it returns.
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
        let serve = |_| self.serve(spec.clone(), handler.clone());
        if let Some(serving) = retry_until(&stop, OFFER_RETRY, "cannot serve requests yet", serve).await {
            offered();
            stop.cancelled().await;
            serving.stop().await;
        }
    }

    /// Serves requests until the returned value is stopped or dropped; survives reconnects. If several processes serve the
    /// same subject, each request goes to one of them.
    pub async fn serve<H, F>(&self, spec: ServiceSpec, handler: H) -> Result<Serving, ServeError>
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
    {
        let refused = |source| ServeError { service: spec.name, source };
        let client = &self.wire.client;
        let discovery = Arc::new(Discovery::new(spec.clone()));
        let discovery_requests = discovery.subscribe(client).await.map_err(refused)?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        // If a later subscription fails, the guard ends those before it.
        let guard = stop.clone().drop_guard();
        let dispatcher = Dispatcher {
            bus: self.clone(),
            handler: Arc::new(handler),
            calls: Arc::new(Mutex::new(FairScheduler::new(SHARES))),
            tasks: tasks.clone(),
            discovery: Arc::clone(&discovery),
        };
        for (index, EndpointSpec { name, subject }) in spec.endpoints.into_iter().enumerate() {
            let requests = client.queue_subscribe(subject, QUEUE_GROUP.to_owned()).await.map_err(refused)?;
            let endpoint = Endpoint { name, index };
            tasks.spawn(accept_requests(endpoint, requests, dispatcher.clone(), stop.clone()));
        }
        tasks.spawn(discovery.run(self.clone(), discovery_requests, stop.clone()));
        Ok(Serving { tasks, stop: guard })
    }
}

/// Accepts the requests of one endpoint until `stop`.
async fn accept_requests<H, F>(
    endpoint: Endpoint,
    mut requests: Subscriber,
    dispatcher: Dispatcher<H>,
    stop: CancellationToken,
) where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
{
    while let Some(Some(message)) = stop.run_until_cancelled(requests.next()).await {
        dispatcher.accept(endpoint, message);
    }
    // Requests that have arrived are still answered.
    if requests.unsubscribe().await.is_ok() {
        while let Some(message) = tokio::task::unconstrained(requests.next()).now_or_never().flatten() {
            dispatcher.accept(endpoint, message);
        }
    }
}

/// An endpoint, by name and by index in its service.
#[derive(Debug, Clone, Copy)]
struct Endpoint {
    name: &'static str,
    index: usize,
}

/// A request that is answered now or waits.
struct Accepted {
    endpoint: Endpoint,
    requester: Requester,
    message: Message,
    at: Instant,
}

/// Starts the requests of all endpoints of one service in a fair order. Clones share the queue.
struct Dispatcher<H> {
    bus: Bus,
    handler: Arc<H>,
    calls: Arc<Mutex<FairScheduler<Requester, Accepted>>>,
    tasks: TaskTracker,
    discovery: Arc<Discovery>,
}

impl<H> Clone for Dispatcher<H> {
    fn clone(&self) -> Self {
        let Self { bus, handler, calls, tasks, discovery } = self;
        Self {
            bus: bus.clone(),
            handler: Arc::clone(handler),
            calls: Arc::clone(calls),
            tasks: tasks.clone(),
            discovery: Arc::clone(discovery),
        }
    }
}

impl<H, F> Dispatcher<H>
where
    H: Fn(Call) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Bytes, Fault>> + Send + 'static,
{
    fn accept(&self, endpoint: Endpoint, message: Message) {
        let Some(requester) = self.bus.admit(&message) else { return };
        let known = represented(&message, requester.clone());
        let accepted = |requester| Accepted { endpoint, requester, message, at: Instant::now() };
        let requester = match known {
            Ok(requester) => requester,
            Err(refusal) => {
                let (dispatcher, accepted) = (self.clone(), accepted(requester));
                self.tasks.spawn(async move { dispatcher.reply(&accepted, Err(refusal.into())).await });
                return;
            }
        };
        let accepted = accepted(requester.clone());
        let submitted = self.calls().submit(requester, accepted);
        match submitted {
            Submitted::Start(accepted) => self.start(accepted),
            Submitted::Queued => {}
            Submitted::Refused(accepted, exceeded) => {
                let (dispatcher, refusal) = (self.clone(), Err(too_many(exceeded).into()));
                self.tasks.spawn(async move { dispatcher.reply(&accepted, refusal).await });
            }
        }
    }

    fn start(&self, accepted: Accepted) {
        let dispatcher = self.clone();
        self.tasks.spawn(async move {
            let Accepted { endpoint, requester, message, .. } = &accepted;
            let call = Call {
                endpoint: endpoint.name,
                subject: message.subject.to_string(),
                payload: message.payload.clone(),
                headers: Headers(message.headers.clone().unwrap_or_default()),
                requester: requester.clone(),
            };
            let answering = async { dispatcher.reply(&accepted, (dispatcher.handler)(call).await).await };
            // A panic is logged where it happens; here it must not block the request's slot for ever.
            let _ = AssertUnwindSafe(answering).catch_unwind().await;
            dispatcher.finish(requester);
        });
    }

    async fn reply(&self, Accepted { endpoint, message, at, .. }: &Accepted, answer: Result<Bytes, Fault>) {
        self.discovery.answered(endpoint.index, at.elapsed(), answer.as_ref().err());
        // `admit` accepts no request without a reply subject.
        let Some(reply) = message.reply.clone() else { return };
        let mut headers = HeaderMap::new();
        let body = answer.unwrap_or_else(|fault| {
            headers.insert(NATS_SERVICE_ERROR, fault.message.replace(['\r', '\n'], " "));
            headers.insert(NATS_SERVICE_ERROR_CODE, fault.code.to_string());
            fault.body
        });
        if let Err(error) = self.bus.wire.client.publish_with_headers(reply, headers, body).await {
            tracing::warn!(endpoint = endpoint.name, %error, "cannot answer a request");
        }
    }

    fn finish(&self, requester: &Requester) {
        self.calls().finish(requester);
        loop {
            let next = self.calls().start_next();
            let Some((_, accepted)) = next else { return };
            self.start(accepted);
        }
    }

    /// Every change of the queue is one step, so a panic elsewhere cannot leave it inconsistent.
    fn calls(&self) -> MutexGuard<'_, FairScheduler<Requester, Accepted>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_many(exceeded: Exceeded) -> ErrorBody {
    let message = match exceeded {
        Exceeded::Key(bound) => format!(
            "{bound} of your requests wait for an answer, the limit for one requester; wait for the answers, then ask again"
        ),
        Exceeded::All(bound) => {
            format!("{bound} requests wait for an answer, the limit of this service; ask again in a moment")
        }
    };
    ErrorBody { code: ErrorCode::TooManyRequests, message }
}
