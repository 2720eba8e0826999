//! Middleware of the routes of devices: identifies the client of a request by its certificate alone, and reads from the hub whether
//! an operator has accepted it. A decision of an operator takes effect with the next request.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use muster_contract::http_device::ClientIdentity;

use super::svid::Realm;
use super::{Caller, Devices, problems};
use crate::listener::Peer;
use crate::problem::Problem;

/// The state of the middleware.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// The state of the routes.
    pub devices: Devices,
    /// The server's identity.
    pub realm: Arc<Realm>,
}

/// Adds the [`Caller`] to a request, or refuses it.
pub(crate) async fn guard(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    // A body cannot be shared between threads, so the request is not kept over the question to the hub.
    let identity = guard.identity(&request);
    let mut response = match guard.caller(identity).await {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    guard.count(response.status());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

impl Guard {
    fn identity(&self, request: &Request) -> Option<ClientIdentity> {
        let certificate = request.extensions().get::<Peer>().and_then(|peer| peer.certificates.first());
        certificate.and_then(|certificate| self.realm.client(certificate))
    }

    async fn caller(&self, identity: Option<ClientIdentity>) -> Result<Caller, Problem> {
        let refuse =
            || problems::not_authorized("this client is not accepted; `muster enroll --spiffe` accepts it");
        let identity = identity.ok_or_else(refuse)?;
        let client = self.devices.store.client(identity.as_str()).await?;
        let client = client.filter(|client| !client.revoked && client.spiffe_id == identity.as_str());
        Ok(Caller { client: Arc::new(client.ok_or_else(refuse)?) })
    }

    fn count(&self, status: StatusCode) {
        self.devices.metrics.device_requests.inc();
        if status.as_u16() >= 400 {
            self.devices.metrics.device_errors.inc();
        }
    }
}
