//! Answers `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` of the NATS service API for one process of a service.
//!
//! Reply subjects are checked as for any other request ([`crate::requester`]); the client library would answer to every
//! reply subject that a requester names. This module keeps no custom data of endpoints and offers no schemas.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, Message, SubscribeError, Subscriber};
use futures_util::StreamExt;
use futures_util::stream::{SelectAll, select_all};
use muster_contract::Timestamp;
use muster_service::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::bus::Bus;
use crate::service_spec::{EndpointSpec, Fault, ServiceSpec};

/// The first token of discovery subjects.
const PREFIX: &str = "$SRV";
/// The queue group of every endpoint; other NATS clients use the same.
pub(crate) const QUEUE_GROUP: &str = "q";
/// Characters of the id of a process.
const ID_DIGITS: usize = 22;

/// The description and the statistics of one process of a service.
#[derive(Debug)]
pub(crate) struct Discovery {
    spec: ServiceSpec,
    id: String,
    started: Timestamp,
    statistics: Mutex<Vec<Statistics>>,
}

/// Counters of one endpoint.
#[derive(Debug, Clone, Default)]
struct Statistics {
    requests: u64,
    errors: u64,
    processing_time: Duration,
    last_error: Option<(u16, String)>,
}

impl Discovery {
    pub(crate) fn new(spec: ServiceSpec) -> Self {
        let id = (0..ID_DIGITS).map(|_| fastrand::alphanumeric()).collect();
        let statistics = Mutex::new(vec![Statistics::default(); spec.endpoints.len()]);
        Self { spec, id, started: SystemClock.now(), statistics }
    }

    /// Subscribes to the discovery subjects of this process.
    pub(crate) async fn subscribe(&self, client: &Client) -> Result<SelectAll<Subscriber>, SubscribeError> {
        let (name, id) = (self.spec.name, &self.id);
        let mut requests = Vec::new();
        for verb in ["PING", "INFO", "STATS"] {
            for whom in [String::new(), format!(".{name}"), format!(".{name}.{id}")] {
                requests.push(client.subscribe(format!("{PREFIX}.{verb}{whom}")).await?);
            }
        }
        Ok(select_all(requests))
    }

    /// Answers discovery requests until `stop`.
    pub(crate) async fn run(
        self: Arc<Self>,
        bus: Bus,
        mut requests: SelectAll<Subscriber>,
        stop: CancellationToken,
    ) {
        while let Some(Some(request)) = stop.run_until_cancelled(requests.next()).await {
            self.answer(&bus, request).await;
        }
    }

    async fn answer(&self, bus: &Bus, request: Message) {
        let (Some(_), Some(answer)) = (bus.admit(&request), self.description(&request.subject)) else {
            return;
        };
        let Some(reply) = request.reply else { return };
        if let Err(error) = bus.wire.client.publish(reply, answer.to_string().into()).await {
            tracing::warn!(service = self.spec.name, %error, "cannot answer a discovery request");
        }
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, endpoint: usize, took: Duration, fault: Option<&Fault>) {
        let mut statistics = self.statistics();
        let Some(endpoint) = statistics.get_mut(endpoint) else { return };
        endpoint.requests += 1;
        endpoint.processing_time += took;
        if let Some(fault) = fault {
            endpoint.errors += 1;
            endpoint.last_error = Some((fault.code, fault.message.clone()));
        }
    }

    /// The answer to a discovery request on this subject; `None` for an unknown verb.
    fn description(&self, subject: &str) -> Option<Value> {
        let ServiceSpec { name, version, description, endpoints } = &self.spec;
        let mut answer = json!({ "name": name, "id": self.id, "version": version, "metadata": {} });
        let kind = match subject.split('.').nth(1)? {
            "PING" => "ping",
            "INFO" => {
                answer["description"] = json!(description);
                answer["endpoints"] = endpoints.iter().map(endpoint).collect();
                "info"
            }
            "STATS" => {
                answer["started"] = json!(self.started);
                let counted = self.statistics().clone();
                let counted = endpoints.iter().zip(&counted);
                let fields = counted.map(|(spec, counted)| merged(endpoint(spec), counted.fields()));
                answer["endpoints"] = fields.collect();
                "stats"
            }
            _ => return None,
        };
        answer["type"] = json!(format!("io.nats.micro.v1.{kind}_response"));
        Some(answer)
    }

    /// Every change of the counters is complete, so a panic elsewhere cannot leave them inconsistent.
    fn statistics(&self) -> MutexGuard<'_, Vec<Statistics>> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Statistics {
    fn fields(&self) -> Value {
        let average =
            u32::try_from(self.requests).ok().and_then(|count| self.processing_time.checked_div(count));
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let last_error = self.last_error.as_ref().map(|(code, message)| format!("{code}:{message}"));
        json!({
            "num_requests": self.requests, "num_errors": self.errors, "last_error": last_error.unwrap_or_default(),
            "processing_time": nanos(self.processing_time),
            "average_processing_time": nanos(average.unwrap_or_default()),
        })
    }
}

fn endpoint(EndpointSpec { name, subject }: &EndpointSpec) -> Value {
    json!({ "name": name, "subject": subject, "queue_group": QUEUE_GROUP, "metadata": {} })
}

fn merged(mut fields: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_count_requests_and_errors_of_each_endpoint() {
        let endpoint = |name| EndpointSpec { name, subject: format!("muster.query.{name}") };
        let endpoints = vec![endpoint("fleet"), endpoint("device")];
        let spec = ServiceSpec { name: "query", version: "1.0.0", description: "answers", endpoints };
        let discovery = Discovery::new(spec);
        let fault = Fault { code: 404, message: "no such device".to_owned(), body: Default::default() };
        discovery.answered(1, Duration::from_nanos(10), None);
        discovery.answered(1, Duration::from_nanos(30), Some(&fault));
        let answer = discovery.description("$SRV.STATS.query").unwrap();
        assert_eq!(answer["type"], "io.nats.micro.v1.stats_response");
        assert_eq!(answer["endpoints"][0]["num_requests"], 0);
        let counted = &answer["endpoints"][1];
        assert_eq!((&counted["num_requests"], &counted["num_errors"]), (&json!(2), &json!(1)));
        assert_eq!(counted["average_processing_time"], 20);
        assert_eq!(
            (counted["name"].as_str(), counted["last_error"].as_str()),
            (Some("device"), Some("404:no such device"))
        );
        assert_eq!(discovery.description("$SRV.OTHER"), None);
    }
}
