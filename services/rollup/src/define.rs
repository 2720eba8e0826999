//! Requests to define a view or to take it back (`muster.view.*`). A definition is judged here and nowhere else; the
//! bucket is where it becomes true, and [`definitions`](crate::definitions) is who acts on it.

use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Bus, Call, EndpointSpec, Fault, PublishErrorKind, ServiceSpec};
use muster_contract::defined::ViewDefinition;
use muster_contract::groups::{RemoveViewRequest, ViewAnswer};
use muster_contract::limits::DEFINED_VIEWS_MAX;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::subjects::{VIEW_PREFIX, definition_key};
use muster_contract::{ViewName, decode};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio_util::sync::CancellationToken;

use crate::present::Present;

/// The verbs, each an endpoint.
const VERBS: [&str; 2] = ["apply", "remove"];
/// Times that a definition is written where others write it too.
const ATTEMPTS_MAX: usize = 3;

/// Where definitions are taken. Clones share everything.
#[derive(Clone)]
pub struct Definer {
    bus: Bus,
    present: Arc<Present>,
    clock: Arc<dyn Clock>,
}

impl Definer {
    /// A desk for a present.
    pub const fn new(bus: Bus, present: Arc<Present>, clock: Arc<dyn Clock>) -> Self {
        Self { bus, present, clock }
    }

    /// Takes requests until `stop`; those already taken are answered then.
    pub async fn serve(self, offered: Latch, stop: CancellationToken) {
        let bus = self.bus.clone();
        let handler = move |call: Call| {
            let desk = self.clone();
            async move { desk.handle(&call).await.map_err(Fault::from) }
        };
        bus.offer(spec(), handler, || offered.release(), stop).await;
    }

    async fn handle(&self, call: &Call) -> Result<Bytes, ErrorBody> {
        let answer = match call.endpoint {
            "apply" => self.apply(&call.payload).await?,
            _ => self.remove(&call.payload).await?,
        };
        serde_json::to_vec(&answer)
            .map(Bytes::from)
            .map_err(|error| body(ErrorCode::Internal, error.to_string()))
    }

    async fn apply(&self, payload: &[u8]) -> Result<ViewAnswer, ErrorBody> {
        let definition: ViewDefinition =
            decode::parse(payload).map_err(|refusal| body(ErrorCode::BadRequest, refusal.to_string()))?;
        self.check_room(&definition.name)?;
        let bytes = Bytes::from(decode::to_bytes(&definition));
        self.write(&definition.name, Some(bytes)).await
    }

    async fn remove(&self, payload: &[u8]) -> Result<ViewAnswer, ErrorBody> {
        let RemoveViewRequest { name } = serde_json::from_slice(payload)
            .map_err(|error| body(ErrorCode::BadRequest, format!("this is no RemoveViewRequest: {error}")))?;
        self.write(&name, None).await
    }

    /// Whether one view more may be defined.
    fn check_room(&self, name: &ViewName) -> Result<(), ErrorBody> {
        let (known, views) =
            self.present.look(|now| (now.fleet.knows_definitions(), now.fleet.views_answer().views));
        if !known {
            let message = "still learning which views are defined; ask again in a moment".to_owned();
            return Err(body(ErrorCode::NotReady, message));
        }
        let others = views.iter().filter(|line| line.definition.name != *name).count();
        if others >= DEFINED_VIEWS_MAX {
            let message = format!(
                "{others} views are defined; {DEFINED_VIEWS_MAX} are allowed: remove one (`muster view list`)"
            );
            return Err(body(ErrorCode::Conflict, message));
        }
        Ok(())
    }

    /// Writes a definition, or takes it away, in place of what is read just before: the one commit.
    async fn write(&self, name: &ViewName, wanted: Option<Bytes>) -> Result<ViewAnswer, ErrorBody> {
        let key = definition_key(name);
        for _ in 0..ATTEMPTS_MAX {
            let unread = |error| {
                body(ErrorCode::NotReady, format!("nothing is changed: {}; ask again", chain(&error)))
            };
            let last = self.bus.view_last(&key).await.map_err(unread)?;
            let (revision, there) = last.map_or((0, None), |entry| (entry.revision, entry.value));
            if there.is_none() && wanted.is_none() {
                return Err(body(ErrorCode::NotFound, format!("no view '{name}' is defined")));
            }
            if there == wanted {
                return Ok(self.answer(name, false));
            }
            let written = match &wanted {
                Some(bytes) => self.bus.view_put(&key, bytes.clone(), Some(revision)).await,
                None => self.bus.view_delete(&key, Some(revision)).await,
            };
            match written {
                Ok(_) => return Ok(self.answer(name, true)),
                Err(error) if error.kind == PublishErrorKind::Conflict => {}
                Err(error) => return Err(body(ErrorCode::Internal, format!("{}; ask again", chain(&error)))),
            }
        }
        Err(body(ErrorCode::Conflict, format!("others are changing view '{name}' too; ask again")))
    }

    fn answer(&self, name: &ViewName, changed: bool) -> ViewAnswer {
        ViewAnswer { name: name.clone(), changed, at: self.clock.now() }
    }
}

fn spec() -> ServiceSpec {
    let endpoint = |name| EndpointSpec { name, subject: format!("{VIEW_PREFIX}.{name}") };
    ServiceSpec {
        name: "muster-views",
        version: env!("CARGO_PKG_VERSION"),
        description: "Views that people define: apply, remove",
        endpoints: VERBS.map(endpoint).into(),
    }
}

const fn body(code: ErrorCode, message: String) -> ErrorBody {
    ErrorBody { code, message }
}
