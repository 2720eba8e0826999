//! Handles requests to define or remove a view (`muster.view.*`).
//!
//! Definitions are validated here and nowhere else. A definition takes effect once the bucket has stored it;
//! [`definitions`](crate::definitions) then applies it. The limit is checked against the bucket before the
//! write and after it: if several writers compete for the last place, the first keeps it, and the others are
//! removed again and refused.

use std::sync::Arc;

use bytes::Bytes;
use muster_bus::{Bus, Call, EndpointSpec, Fault, PublishErrorKind, Requester, ServiceSpec};
use muster_contract::defined::ViewDefinition;
use muster_contract::groups::{RemoveViewRequest, ViewAnswer};
use muster_contract::limits::DEFINED_VIEWS_MAX;
use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::question::{bad, read};
use muster_contract::subjects::{VIEW_PREFIX, definition_key};
use muster_contract::{Document as _, ViewName, decode};
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio_util::sync::CancellationToken;

use crate::definitions::{defined, place_of};

/// The verbs, each an endpoint.
const VERBS: [&str; 2] = ["apply", "remove"];
/// Times that a definition is written where others write it too.
const ATTEMPTS_MAX: usize = 3;

/// Handles definition requests. Clones share everything.
#[derive(Clone)]
pub(crate) struct Definer {
    bus: Bus,
    clock: Arc<dyn Clock>,
}

impl Definer {
    /// Creates a handler for the definitions in the bucket.
    pub(crate) const fn new(bus: Bus, clock: Arc<dyn Clock>) -> Self {
        Self { bus, clock }
    }

    /// Takes requests until `stop`; those already taken are answered then.
    pub(crate) async fn serve(self, offered: Latch, stop: CancellationToken) {
        let bus = self.bus.clone();
        let handler = move |call: Call| {
            let desk = self.clone();
            async move { desk.handle(&call).await.map_err(Fault::from) }
        };
        bus.offer(spec(), handler, || offered.release(), stop).await;
    }

    async fn handle(&self, call: &Call) -> Result<Bytes, ErrorBody> {
        call.requester
            .author(&call.subject)
            .map_err(|error| body(ErrorCode::Forbidden, error.to_string()))?;
        let answer = match call.endpoint {
            "apply" => self.apply(call).await?,
            _ => self.remove(call).await?,
        };
        serde_json::to_vec(&answer)
            .map(Bytes::from)
            .map_err(|error| body(ErrorCode::Internal, error.to_string()))
    }

    async fn apply(&self, call: &Call) -> Result<ViewAnswer, ErrorBody> {
        let definition: ViewDefinition = read(&call.payload)?;
        definition.check().map_err(|violation| bad(violation.to_string()))?;
        let name = &definition.name;
        let is_new = self.check_room(name).await?;
        let bytes = Bytes::from(decode::to_bytes(&definition));
        let answer = self.write(name, Some(bytes), &call.requester).await?;
        if is_new && answer.changed {
            self.check_place(name).await?;
        }
        Ok(answer)
    }

    async fn remove(&self, call: &Call) -> Result<ViewAnswer, ErrorBody> {
        let RemoveViewRequest { name } = read(&call.payload)?;
        self.write(&name, None, &call.requester).await
    }

    /// Refuses where as many views are defined as may be; whether this is one more.
    async fn check_room(&self, name: &ViewName) -> Result<bool, ErrorBody> {
        let unread =
            |error| body(ErrorCode::NotReady, format!("nothing is changed: {}; ask again", chain(&error)));
        let (_, held) = defined(&self.bus).await.map_err(unread)?;
        let others = held.keys().filter(|other| *other != name).count();
        if others >= DEFINED_VIEWS_MAX {
            return Err(no_room(others));
        }
        Ok(!held.contains_key(name))
    }

    /// Removes a new definition again if others took the last places first. If that cannot be determined now,
    /// or the definition changes meanwhile, the list of views shows that it is not counted.
    async fn check_place(&self, name: &ViewName) -> Result<(), ErrorBody> {
        let Ok((_, held)) = defined(&self.bus).await else { return Ok(()) };
        let Some(before) = place_of(name, &held).filter(|before| *before >= DEFINED_VIEWS_MAX) else {
            return Ok(());
        };
        let revision = held.get(name).map(|(revision, _)| *revision);
        match self.bus.view_delete(&definition_key(name), revision).await {
            Ok(_) => Err(no_room(before)),
            Err(_) => Ok(()),
        }
    }

    /// Writes a definition, or takes it away, in place of what is read just before: the one commit.
    /// The entry names the requester in a header: a definition says what is counted, and its digest is that of what it says.
    async fn write(
        &self,
        name: &ViewName,
        wanted: Option<Bytes>,
        requester: &Requester,
    ) -> Result<ViewAnswer, ErrorBody> {
        let (key, requested_by) = (definition_key(name), requester.record());
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
            match self.bus.view_define(&key, wanted.clone(), revision, requested_by.as_ref()).await {
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

fn no_room(others: usize) -> ErrorBody {
    let message = format!(
        "{others} views are defined; {DEFINED_VIEWS_MAX} are allowed: remove one (`muster view list`)"
    );
    body(ErrorCode::Conflict, message)
}

const fn body(code: ErrorCode, message: String) -> ErrorBody {
    ErrorBody { code, message }
}
