//! Queries to the services of the hub. An answer is returned as it was sent, so that `--format json` shows all of its fields,
//! also those of a newer service.

mod lag;
mod pages;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, ReadError, RequestError};
use muster_contract::groups::GroupQuery;
use muster_contract::incident::{HubIncident, IncidentsAnswer};
use muster_contract::lag::{AnswerLag, RollupLag};
use muster_contract::plans::{PlannerErrorBody, PlannerErrorReply};
use muster_contract::quarantine::QuarantineRequest;
use muster_contract::query::{ErrorBody, ErrorCode, ErrorReply, Query};
use muster_contract::status::{StatusAnswer, StatusQuery};
use muster_contract::subjects::{
    NOTIFY_PREFIX, PLANNER_PREFIX, PUBLISHER_PREFIX, QUERY_PREFIX, VIEW_PREFIX, judge_quarantine,
};
use muster_contract::{DeploymentId, Refusal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::lag::LagCell;

/// Most pages of one list: a service that never ends its list is stopped here.
pub const PAGES_MAX: usize = 10_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody serves the subject.
    #[error("no {service} answers on {subject}: is it running?")]
    NoService {
        /// The program that would.
        service: &'static str,
        /// The subject.
        subject: String,
    },
    /// The credentials give no right to ask it.
    #[error("asking {service}: no permission for {subject}; ask with the credentials of a role that has it")]
    Forbidden {
        /// The program that was to be asked.
        service: &'static str,
        /// The subject.
        subject: String,
    },
    /// It could not be asked, or did not answer in time.
    #[error("asking {service}")]
    Request {
        /// The program asked.
        service: &'static str,
        /// The cause.
        #[source]
        source: RequestError,
    },
    /// The note with the person cannot be signed.
    #[error("cannot sign the note with the person who asks: {0}")]
    Unsigned(String),
    /// The service refuses.
    #[error("{}", .0.message)]
    Refused(ErrorBody),
    /// The planner refuses; a field of the request may be the reason.
    #[error("{}", planner_words(.0))]
    RefusedByPlanner(PlannerErrorBody),
    /// The answer is none.
    #[error("{service} answers on {subject} with something that is no answer; is it of another version?")]
    Garbled {
        /// The program asked.
        service: &'static str,
        /// The subject.
        subject: String,
        /// The parser's reason.
        #[source]
        source: serde_json::Error,
    },
    /// The answer is JSON of another shape.
    #[error("the answer is of a shape that this muster does not know; is the service of another version?")]
    Misunderstood(#[source] serde_json::Error),
    /// A new commit was accepted between two pages of targets.
    #[error("a new commit was accepted while its targets were listed: run the command again")]
    CommitChanged,
    /// The rollouts are not of a version that the request names.
    #[error("the rollouts of '{0}' have changed since they were read: read them again")]
    VersionChanged(DeploymentId),
    /// The query service has not read all of LEDGER.
    #[error("muster-rollup has not read all of LEDGER, so no gate can be judged; `muster status` says why")]
    Lagging,
    /// The publisher has not published a commit whole yet, so its rollouts are unknown.
    #[error("the publisher has published no commit of Git whole yet, so its rollouts are unknown: {0}")]
    NoCommit(String),
    /// The ledger could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The ledger fell silent while it was read.
    #[error(
        "reading {subjects} of LEDGER: nothing more came within {waited:?}, after {read} messages; ask again, with a longer \
         --timeout where the link is slow"
    )]
    Silent {
        /// The subjects.
        subjects: String,
        /// Messages that came.
        read: usize,
        /// How long the next one was waited for.
        waited: Duration,
    },
    /// LEDGER holds a verdict that is none.
    #[error("ledger {ledger_seq} is no verdict on a rejected report; is muster-ingest of another version?")]
    Fact {
        /// The sequence in LEDGER.
        ledger_seq: u64,
        /// The parser's reason.
        #[source]
        source: Refusal,
    },
    /// The list has no end.
    #[error("the list of {what} does not end: {PAGES_MAX} pages came, or the same one twice")]
    Endless {
        /// The listed things.
        what: &'static str,
    },
}

impl AskError {
    /// True where the same question may be answered in a moment: nobody was there, or nobody who knew it yet.
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::NoService { .. } | Self::Request { .. } | Self::CommitChanged | Self::Lagging => true,
            Self::NoCommit(_) | Self::Read(_) | Self::Silent { .. } => true,
            Self::Refused(ErrorBody { code, .. }) | Self::RefusedByPlanner(PlannerErrorBody { code, .. }) => {
                matches!(code, ErrorCode::NotReady | ErrorCode::TooManyRequests)
            }
            Self::Forbidden { .. }
            | Self::Unsigned(_)
            | Self::VersionChanged(_)
            | Self::Garbled { .. }
            | Self::Misunderstood(_)
            | Self::Fact { .. }
            | Self::Endless { .. } => false,
        }
    }

    /// The service's message, if it answers that there is no such thing.
    pub fn not_found(&self) -> Option<String> {
        match self {
            Self::Refused(ErrorBody { code: ErrorCode::NotFound, message })
            | Self::RefusedByPlanner(PlannerErrorBody { code: ErrorCode::NotFound, message, .. }) => {
                Some(message.clone())
            }
            _ => None,
        }
    }
}

/// A refusal of the planner with its field, unless the message begins with it.
fn planner_words(body: &PlannerErrorBody) -> String {
    match &body.field {
        Some(field) if !body.message.starts_with(field.as_str()) => format!("{field}: {}", body.message),
        _ => body.message.clone(),
    }
}

/// Signs notes for requests on behalf of a person other than the credentials' own user.
pub trait Represents: Debug + Send + Sync {
    /// The signed note for a request.
    ///
    /// # Errors
    /// It cannot be signed.
    fn note(&self, subject: &str, payload: &[u8]) -> Result<String, String>;
}

/// The services as seen from here.
#[derive(Debug, Clone)]
pub struct Hub {
    bus: Bus,
    /// Signs a note for each request on behalf of a person.
    represents: Option<Arc<dyn Represents>>,
    timeout: Duration,
    place: String,
    lag: Arc<LagCell>,
}

impl Hub {
    /// The services that answer on a bus.
    pub fn new(bus: Bus, timeout: Duration) -> Self {
        Self { bus, represents: None, timeout, place: "NATS".to_owned(), lag: Arc::default() }
    }

    /// The same services, asked on behalf of another person.
    #[must_use]
    pub fn on_behalf(&self, represents: Arc<dyn Represents>) -> Self {
        Self { represents: Some(represents), ..self.clone() }
    }

    /// The same, whose server people know by that address.
    #[must_use]
    pub fn at(self, place: String) -> Self {
        Self { place, ..self }
    }

    /// The address of the server for people, without a password.
    pub fn address(&self) -> &str {
        &self.place
    }

    /// The bus itself.
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    /// The query service's lag behind LEDGER: that of its newest answer, or the worst one of a [group](Self::fresh).
    pub fn lag(&self) -> Option<RollupLag> {
        self.lag.get()
    }

    /// The same services for a group of requests: [`Self::lag`] is the worst lag of their answers, and other requests do not
    /// change it.
    #[must_use]
    pub fn fresh(&self) -> Self {
        let lag = Arc::new(LagCell::within(&self.lag));
        Self { lag, ..self.clone() }
    }

    /// How long each answer is waited for.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// An answer of the query service.
    ///
    /// # Errors
    /// When nobody answers, or the answer is an error.
    pub async fn query(&self, what: &'static str, query: &Query) -> Result<Value, AskError> {
        self.ask("muster-rollup", format!("{QUERY_PREFIX}.{what}"), query).await
    }

    /// The incidents of the hub within a day.
    ///
    /// # Errors
    /// As [`Self::query`]. A federation, or a rollup of an earlier release, does not answer.
    pub async fn incidents(&self) -> Result<Vec<HubIncident>, AskError> {
        let answer = self.query("incidents", &Query::default()).await?;
        Ok(understood::<IncidentsAnswer>(&answer)?.incidents)
    }

    /// An answer of a federation about itself, which no hub gives.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn federation(&self, what: &'static str, query: &Query) -> Result<Value, AskError> {
        self.ask("muster-federation", format!("{QUERY_PREFIX}.{what}"), query).await
    }

    /// An answer of the query service about the past.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn history<T: Serialize>(&self, what: &'static str, question: &T) -> Result<Value, AskError> {
        self.ask("muster-rollup", format!("{QUERY_PREFIX}.{what}"), question).await
    }

    /// One page of status after filters.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn status(&self, query: &StatusQuery) -> Result<StatusAnswer, AskError> {
        understood(&self.ask("muster-rollup", format!("{QUERY_PREFIX}.status"), query).await?)
    }

    /// An answer about notices.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn notify<T: Serialize>(&self, verb: &'static str, request: &T) -> Result<Value, AskError> {
        self.ask("muster-rollup", format!("{NOTIFY_PREFIX}.{verb}"), request).await
    }

    /// An answer of the query service about groups or defined views.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn groups(&self, what: &'static str, query: &GroupQuery) -> Result<Value, AskError> {
        self.ask("muster-rollup", format!("{QUERY_PREFIX}.{what}"), query).await
    }

    /// An answer of the rollup to a request about a definition.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn view<T: Serialize>(&self, verb: &'static str, request: &T) -> Result<Value, AskError> {
        self.ask("muster-rollup", format!("{VIEW_PREFIX}.{verb}"), request).await
    }

    /// An answer of the publisher.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn publisher<T: Serialize>(&self, verb: &'static str, request: &T) -> Result<Value, AskError> {
        self.ask("muster-publisher", format!("{PUBLISHER_PREFIX}.{verb}"), request).await
    }

    /// An answer of the planner about plans, instances, operations or the inventory.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn planner<T: Serialize>(&self, verb: &'static str, request: &T) -> Result<Value, AskError> {
        self.ask("muster-planner", format!("{PLANNER_PREFIX}.{verb}"), request).await
    }

    /// An answer of the ingest that owns a partition.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn quarantine(&self, partition: u16, request: &QuarantineRequest) -> Result<Value, AskError> {
        self.ask("muster-ingest", judge_quarantine(partition), request).await
    }

    async fn request(&self, subject: &str, payload: Bytes) -> Result<Result<Bytes, RequestError>, AskError> {
        let Some(represents) = &self.represents else {
            return Ok(self.bus.request(subject, payload, self.timeout).await);
        };
        let note = represents.note(subject, &payload).map_err(AskError::Unsigned)?;
        Ok(self.bus.request_on_behalf(subject, &note, payload, self.timeout).await)
    }

    async fn ask<T: Serialize>(
        &self,
        service: &'static str,
        subject: String,
        request: &T,
    ) -> Result<Value, AskError> {
        let garbled = |source| AskError::Garbled { service, subject: subject.clone(), source };
        let payload = Bytes::from(serde_json::to_vec(request).map_err(garbled)?);
        let reply = match self.request(&subject, payload).await? {
            Ok(reply) => reply,
            Err(RequestError::NoResponders { subject }) => {
                return Err(AskError::NoService { service, subject });
            }
            Err(RequestError::Forbidden { subject, .. }) => {
                return Err(AskError::Forbidden { service, subject });
            }
            Err(source) => return Err(AskError::Request { service, source }),
        };
        let answer: Value = serde_json::from_slice(&reply).map_err(garbled)?;
        if subject.starts_with(PLANNER_PREFIX)
            && let Ok(reply) = serde_json::from_value::<PlannerErrorReply>(answer.clone())
        {
            return Err(AskError::RefusedByPlanner(reply.error));
        }
        match serde_json::from_value::<ErrorReply>(answer.clone()) {
            Ok(reply) => Err(AskError::Refused(reply.error)),
            Err(_) => {
                if subject.starts_with(QUERY_PREFIX) {
                    let lag: AnswerLag = understood(&answer).unwrap_or_default();
                    self.lag.record(lag.lag());
                }
                Ok(answer)
            }
        }
    }
}

/// An answer as the type it should be.
///
/// # Errors
/// When it is not of that type.
pub fn understood<T: DeserializeOwned>(answer: &Value) -> Result<T, AskError> {
    T::deserialize(answer).map_err(AskError::Misunderstood)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_question_itself_causes_stays_as_it_is() {
        let refused = |code| AskError::Refused(ErrorBody { code, message: "no".to_owned() });
        let table = [
            (AskError::NoService { service: "muster-rollup", subject: "a".to_owned() }, true),
            (AskError::CommitChanged, true),
            (AskError::NoCommit("timed out".to_owned()), true),
            (refused(ErrorCode::NotReady), true),
            (refused(ErrorCode::TooManyRequests), true),
            (refused(ErrorCode::Internal), false),
            (refused(ErrorCode::NotFound), false),
            (refused(ErrorCode::BadRequest), false),
            (refused(ErrorCode::Conflict), false),
            (AskError::Endless { what: "devices" }, false),
        ];
        for (error, passes) in table {
            assert_eq!(error.may_pass(), passes, "{error}");
        }
    }
}
