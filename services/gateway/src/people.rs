//! The listener of people: pages, REST and events over everything that `muster` can ask.
//!
//! Every request passes [`guard`] (hosts, origins of changes, headers of answers), then the login, and a change with a key once
//! ([`router`]). [`api`] is `/api/v1`, [`watch`] its events, [`page`] the pages; both follow the newest views in [`live`]. [`emco`] is
//! EMCO's status query. This file is what the routes share.

pub(crate) mod api;
pub(crate) mod emco;
pub(crate) mod guard;
pub(crate) mod hosts;
pub(crate) mod live;
pub(crate) mod page;
pub(crate) mod router;
pub(crate) mod watch;

use std::fmt;
use std::sync::Arc;

use axum::http::header::HOST;
use axum::http::{Extensions, HeaderMap, StatusCode};
use muster_client::ask::Hub;
use muster_client::packages::bucket::PackageBucket;
use muster_service::clock::Clock;
use tokio::sync::watch::Receiver;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use self::api::answers::Answers;
use self::hosts::{Hosts, Reach};
use self::live::Feed;
use self::page::page_answers::PageAnswers;
use self::watch::topics::Topics;
use crate::login::Login;
use crate::login::session::Session;
use crate::margo::trust::TrustBundle;
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::webhooks::Webhooks;

/// Answers of many reads that are gathered at once.
const GATHERS_MAX: usize = 4;

/// Everything that the routes of people share. Clones share everything.
#[derive(Clone)]
pub(crate) struct People {
    hub: Hub,
    clock: Arc<dyn Clock>,
    hosts: Arc<Hosts>,
    feed: Feed,
    shared: Arc<PageAnswers>,
    answers: Arc<Answers>,
    audits: Arc<Semaphore>,
    past_reads: Arc<Semaphore>,
    gathers: Arc<Semaphore>,
    topics: Arc<Topics>,
    stop: CancellationToken,
    metrics: Metrics,
    login: Option<Arc<Login>>,
    is_secure: bool,
    trust: Option<Arc<TrustBundle>>,
    webhooks: Option<Arc<Webhooks>>,
    bucket: Option<Receiver<Option<PackageBucket>>>,
    package_puts: Arc<Semaphore>,
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
        let one_at_a_time = || Arc::new(Semaphore::new(1));
        let (audits, past_reads, package_puts) = (one_at_a_time(), one_at_a_time(), one_at_a_time());
        let gathers = Arc::new(Semaphore::new(GATHERS_MAX));
        let (shared, answers, topics) = (Arc::default(), Arc::default(), Arc::default());
        let (login, is_secure) = (None, false);
        Self {
            hub,
            clock,
            hosts,
            feed,
            shared,
            answers,
            audits,
            past_reads,
            gathers,
            topics,
            stop,
            metrics,
            login,
            is_secure,
            trust: None,
            webhooks: None,
            bucket: None,
            package_puts,
        }
    }

    /// The same listener with a login, if there is one; `is_secure` if it serves TLS itself.
    #[must_use]
    pub(crate) fn with_login(self, login: Option<Arc<Login>>, is_secure: bool) -> Self {
        Self { login, is_secure, ..self }
    }

    /// The same listener with another reach.
    #[must_use]
    pub(crate) fn with_reach(self, reach: Reach) -> Self {
        Self { hosts: Arc::new(self.hosts.with_reach(reach)), ..self }
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

    /// The same listener with the hub's bucket of packages, if this gateway may write it; none in it while it is not connected.
    #[must_use]
    pub(crate) fn with_bucket(self, bucket: Option<Receiver<Option<PackageBucket>>>) -> Self {
        Self { bucket, ..self }
    }

    /// The trust bundle of devices.
    pub(crate) fn trust(&self) -> Option<&TrustBundle> {
        self.trust.as_deref()
    }

    /// The login; without one everybody who reaches the listener has the gateway's rights.
    pub(crate) const fn login(&self) -> Option<&Arc<Login>> {
        self.login.as_ref()
    }

    /// Scheme and host of the gateway by a request that the guard has accepted.
    ///
    /// # Errors
    /// A proxy ends TLS before the gateway, and the host is not the public one.
    pub(crate) fn login_address(&self, headers: &HeaderMap) -> Result<(&'static str, String), Problem> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_default().to_ascii_lowercase();
        self.hosts.login_scheme(&host, self.is_secure).map(|scheme| (scheme, host)).ok_or_else(|| {
            Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "log in at the address of --public-url, not at another one",
            )
        })
    }

    /// A permit for an answer that takes many reads.
    ///
    /// # Errors
    /// As many as may be are gathered at this moment.
    pub(crate) fn gather(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.gathers.try_acquire().map_err(|_| {
            let detail =
                format!("this gateway gathers {GATHERS_MAX} answers of many reads, and no more at once");
            Problem::passing(StatusCode::TOO_MANY_REQUESTS, detail)
        })
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
