//! The listener of people: pages, REST and events over everything that `muster` can ask.
//!
//! [`guard`] stands before every route: hosts, origins of changes, headers of answers.

pub mod guard;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use muster_client::ask::Hub;
use muster_service::clock::Clock;

use self::guard::Hosts;
use crate::metrics::Metrics;
use crate::problem::Problem;

/// Everything that the routes of people share. Clones share everything.
#[derive(Clone)]
pub struct People {
    hub: Hub,
    clock: Arc<dyn Clock>,
    hosts: Arc<Hosts>,
    metrics: Metrics,
}

impl People {
    /// Routes over the services of a hub.
    pub fn new(hub: Hub, clock: Arc<dyn Clock>, public_host: Option<String>, metrics: Metrics) -> Self {
        Self { hub, clock, hosts: Arc::new(Hosts::new(public_host)), metrics }
    }
}

/// Without what it shares.
impl fmt::Debug for People {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("People").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// All routes of people.
pub fn router(people: People) -> Router {
    Router::new()
        .route("/live", get(async || "alive\n"))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is no such address"))
        .layer(from_fn_with_state(people.clone(), guard::guard))
        .with_state(people)
}
