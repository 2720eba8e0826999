//! The listener of people: pages, REST and events over everything that `muster` can ask.
//!
//! Every request passes [`guard`] (hosts, origins of changes, headers of answers), then the [login](gate), and a change with a key
//! [`once`]. [`api`] is
//! `/api/v1`, [`watch`] its events, [`page`] the pages; both follow the newest views in [`live`]. [`emco`] is EMCO's status query.

pub(crate) mod api;
pub(crate) mod emco;
pub(crate) mod guard;
pub(crate) mod live;
pub(crate) mod page;
pub(crate) mod watch;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Extensions, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use muster_client::ask::Hub;
use muster_service::clock::Clock;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::api::idempotency::{Answers, once};
use self::guard::Hosts;
use self::live::Feed;
use self::page::SideCache;
use self::watch::polled::Polls;
use crate::login::session::Session;
use crate::login::{Login, gate, routes};
use crate::margo::trust::{self, TrustBundle};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::webhooks::Webhooks;

/// Statuses of many pages that are gathered at once.
const GATHERS_MAX: usize = 4;

/// Everything that the routes of people share. Clones share everything.
#[derive(Clone)]
pub(crate) struct People {
    hub: Hub,
    clock: Arc<dyn Clock>,
    hosts: Arc<Hosts>,
    feed: Feed,
    side: Arc<SideCache>,
    answers: Arc<Answers>,
    audits: Arc<Semaphore>,
    gathers: Arc<Semaphore>,
    polls: Arc<Polls>,
    stop: CancellationToken,
    metrics: Metrics,
    login: Option<Arc<Login>>,
    is_secure: bool,
    trust: Option<Arc<TrustBundle>>,
    webhooks: Option<Arc<Webhooks>>,
}

impl People {
    /// Routes over the services of a hub and a feed of its views. `stop` ends event streams.
    pub(crate) fn new(
        hub: Hub,
        feed: Feed,
        clock: Arc<dyn Clock>,
        public_host: Option<String>,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Self {
        let hosts = Arc::new(Hosts::new(public_host));
        let (audits, gathers) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(GATHERS_MAX)));
        let (side, answers, polls) = (Arc::default(), Arc::default(), Arc::default());
        let (login, is_secure) = (None, false);
        Self {
            hub,
            clock,
            hosts,
            feed,
            side,
            answers,
            audits,
            gathers,
            polls,
            stop,
            metrics,
            login,
            is_secure,
            trust: None,
            webhooks: None,
        }
    }

    /// The same listener with a login, if there is one; `is_secure` if it serves TLS itself.
    #[must_use]
    pub(crate) fn with_login(self, login: Option<Arc<Login>>, is_secure: bool) -> Self {
        Self { login, is_secure, ..self }
    }

    /// The same listener with the trust bundle of devices, if they are served.
    #[must_use]
    pub(crate) fn with_trust(self, trust: Option<TrustBundle>) -> Self {
        Self { trust: trust.map(Arc::new), ..self }
    }

    /// The same listener with the webhooks of the gateway, if it has any.
    #[must_use]
    pub(crate) fn with_webhooks(self, webhooks: Option<Arc<Webhooks>>) -> Self {
        Self { webhooks, ..self }
    }

    /// The trust bundle of devices.
    pub(crate) fn trust(&self) -> Option<&TrustBundle> {
        self.trust.as_deref()
    }

    /// The login; without one everybody who reaches the listener has the gateway's rights.
    pub(crate) const fn login(&self) -> Option<&Arc<Login>> {
        self.login.as_ref()
    }

    /// Whether the listener serves TLS itself.
    pub(crate) const fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// The clock.
    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The same listener for changes by the person who has logged in; services record the person.
    #[must_use]
    pub(crate) fn acting_for(&self, extensions: &Extensions) -> Self {
        match (&self.login, extensions.get::<Session>()) {
            (Some(login), Some(session)) => {
                Self { hub: self.hub.on_behalf(login.represents(session)), ..self.clone() }
            }
            _ => self.clone(),
        }
    }
}

/// Without what it shares.
impl fmt::Debug for People {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("People").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// All routes of people.
pub(crate) fn router(people: People) -> Router {
    let gated = all_routes()
        .layer(from_fn_with_state(people.clone(), once))
        .layer(from_fn_with_state(people.clone(), gate::gate));
    gated.layer(from_fn_with_state(people.clone(), guard::guard)).with_state(people)
}

fn all_routes() -> Router<People> {
    let openapi = async || ([(CONTENT_TYPE, "application/json")], api::openapi::text());
    Router::new()
        .route("/live", get(async || "alive\n"))
        .route("/openapi.json", get(openapi))
        .merge(api::router())
        .merge(emco::router())
        .merge(watch::router())
        .merge(page::router())
        .merge(routes::router())
        .merge(trust::router())
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is no such address"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the address does not take this method")
        })
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_routes_contradict_each_other() {
        // The router refuses a second route of the same shape by a panic.
        let _ = super::all_routes();
    }
}
