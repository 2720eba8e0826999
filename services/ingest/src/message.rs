//! Builds the messages that ingest publishes: subject, headers, bytes. It decides nothing about their content.
//!
//! | message | headers |
//! |---|---|
//! | fact of a report | the fence of its partition; `traceparent` if it is traced |
//! | other fact | the same; a message id if ingest cannot recognise the fact in LEDGER; a time to live if it is a pulse |
//! | receipt | source and type, which the verifier of receipts reads; `Nats-Expected-Stream` |
//! | rejected report | CloudEvents attributes, trace, message id, `Nats-Expected-Stream` |

use fastrand::Rng;
use muster_bus::Outgoing;
use muster_bus::event::{Trace, attributes, authored, traced};
use muster_contract::DeviceKey;
use muster_contract::decode::{self, Document};
use muster_contract::fact::{Fact, PulseFact};
use muster_contract::quarantine::RejectedReport;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, stream};
use muster_domain::intake::{Publication, Rejection};

/// The `ce-source` header of ingest's receipts and rejected reports.
pub(crate) const EVENT_SOURCE: &str = "muster-ingest";

/// A fact for LEDGER. The caller adds the fence of its partition
/// ([`FencingToken::stamp`](crate::ownership::FencingToken::stamp)). Another stream has no such record, so the message needs no
/// `Nats-Expected-Stream`. Ingest recognises the fact of a report by its number, so the fact has no `Nats-Msg-Id`, which the server
/// would have to remember. Rare facts have one: of messages without a readable number, ingest recognises only the newest.
pub(crate) fn fact(publication: Publication, trace: Option<Trace>) -> Outgoing {
    let Publication { subject, fact, payload, id } = publication;
    let ttl = if let Fact::Pulse(pulse) = &fact { Some(PulseFact::kept_for(pulse.lease())) } else { None };
    let message_id = id.filter(|_| !matches!(fact, Fact::Status(_) | Fact::Device(_)));
    Outgoing { headers: traced(trace), message_id, ttl, ..Outgoing::new(subject.to_string(), payload) }
}

/// Whether a fact is always traced: such a fact is rare, and people look for its cause.
pub(crate) const fn is_always_traced(fact: &Fact) -> bool {
    matches!(fact, Fact::Quarantine(_) | Fact::Incident(_) | Fact::Verdict(_))
}

/// A receipt for a device.
pub(crate) fn receipt(key: &DeviceKey, receipt: &Receipt) -> Outgoing {
    Outgoing {
        headers: authored(EVENT_SOURCE, Receipt::KIND),
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subjects::receipt(key), decode::to_bytes(receipt))
    }
}

/// A rejected report for QUARANTINE. Its message id prevents a second copy when the report comes again.
pub(crate) fn rejected(rejection: &Rejection, rng: &mut Rng) -> Outgoing {
    let trace = Trace::random(rng);
    Outgoing {
        headers: attributes(EVENT_SOURCE, RejectedReport::KIND, rejection.id.clone(), trace),
        message_id: Some(rejection.id.clone()),
        expected_stream: Some(stream::QUARANTINE),
        ..Outgoing::new(subjects::rejected(rejection.device.as_ref()), rejection.payload.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

    use muster_contract::Timestamp;
    use muster_contract::canonical::Digest;
    use muster_contract::fact::{Incident, IncidentKind, StatusFact};
    use muster_contract::report::Report;
    use muster_contract::subjects::LedgerSubject;
    use serde_json::json;

    use super::*;

    fn status() -> Fact {
        let report = json!({
            "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1, "seq": 1, "head": 1,
            "observedAt": "2026-11-25T06:00:00Z", "deployment": "web", "generation": 1,
            "digest": Digest::of_bytes(b"web").to_string(), "status": {"state": "installed"},
            "components": [{"name": "main", "state": "installed"}], "current": true,
        });
        match Report::parse(report.to_string().as_bytes()).unwrap() {
            Report::Status(report) => Fact::Status(StatusFact::of(report, Timestamp::UNIX_EPOCH, false)),
            Report::Capabilities(_) => panic!("{report}"),
        }
    }

    #[test]
    fn a_status_is_recognised_by_its_number_and_a_rare_fact_by_the_bus_too() {
        let incident = Incident::new(Timestamp::UNIX_EPOCH, IncidentKind::ClockSkew { seconds: 9 });
        for (known, wanted) in [(status(), None), (Fact::Incident(incident), Some("a.b.1"))] {
            let subject = LedgerSubject::Incident(None);
            let (kind, payload, id) = (known.kind(), known.to_bytes(), Some("a.b.1".to_owned()));
            let publication = Publication { subject, fact: known, payload, id };
            let message = fact(publication, None);
            assert_eq!(message.message_id.as_deref(), wanted, "{kind}");
            assert!(message.headers.is_empty(), "{kind}");
        }
    }
}
