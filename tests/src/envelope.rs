//! Headers of Muster's messages, for benches that write to the bus past agents and ingest: server and readers then do the same work
//! as in a fleet. The callers choose subjects and documents.

use bytes::Bytes;
use fastrand::Rng;
use muster_bus::Outgoing;
use muster_bus::event::{Trace, attributes, traced};
use muster_contract::subjects::{LedgerSubject, stream};

/// The content of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// The document alone.
    Document,
    /// The document and the headers of a fleet's messages: the guard of the stream on reports, the fence of LEDGER on facts, and a
    /// trace on one message in many.
    Everything,
    /// The same with the headers up to 0.1: also CloudEvents attributes and a trace, and a message id on reports.
    Attributes,
}

impl Carry {
    /// A report.
    pub fn report(self, subject: String, payload: impl Into<Bytes>, chance: &mut Rng) -> Outgoing {
        match self {
            Self::Document => Outgoing::new(subject, payload),
            Self::Everything => report(subject, payload, chance),
            Self::Attributes => attributed_report(subject, payload, chance),
        }
    }

    /// A fact under the trace of its report, or a desired state.
    pub fn fact(
        self,
        subject: String,
        payload: impl Into<Bytes>,
        (fence, carried): (&Fence, Option<Trace>),
        chance: &mut Rng,
    ) -> Outgoing {
        match self {
            Self::Document => Outgoing::new(subject, payload),
            _ if subject.split('.').nth(1) == Some("desired") => desired(subject, payload, chance),
            Self::Everything => fact(subject, payload, (fence, carried)),
            Self::Attributes => attributed_fact(subject, payload, (fence, carried), chance),
        }
    }
}

/// A record in LEDGER on condition of which facts are taken: its subject, and its sequence there.
#[derive(Debug, Clone)]
pub struct Fence {
    /// The subject.
    pub subject: String,
    /// The sequence; 0 where there is no record.
    pub sequence: u64,
}

impl Fence {
    /// The one of a partition whose owner has written this record.
    pub fn of(partition: u16, sequence: u64) -> Self {
        Self { subject: LedgerSubject::Owner { partition, fence: 0 }.to_string(), sequence }
    }
}

/// A report as an agent sends it.
fn report(subject: String, payload: impl Into<Bytes>, chance: &mut Rng) -> Outgoing {
    Outgoing {
        headers: traced(Trace::sample(chance)),
        expected_stream: Some(stream::UPLINK),
        ..Outgoing::new(subject, payload)
    }
}

/// A fact as ingest writes it.
fn fact(subject: String, payload: impl Into<Bytes>, (fence, trace): (&Fence, Option<Trace>)) -> Outgoing {
    Outgoing { headers: traced(trace), ..fenced(subject, payload, fence) }
}

fn fenced(subject: String, payload: impl Into<Bytes>, fence: &Fence) -> Outgoing {
    Outgoing {
        expected_last_subject_sequence: Some(fence.sequence),
        expected_of_subject: Some(fence.subject.clone()),
        ..Outgoing::new(subject, payload)
    }
}

/// A report as an agent sent it up to 0.1.
fn attributed_report(subject: String, payload: impl Into<Bytes>, chance: &mut Rng) -> Outgoing {
    let id = format!("{:036x}", chance.u128(..));
    let source = format!("muster/{}", device(&subject));
    Outgoing {
        headers: attributes(&source, "StatusReport", &id, Trace::random(chance)),
        message_id: Some(id),
        expected_stream: Some(stream::UPLINK),
        ..Outgoing::new(subject, payload)
    }
}

/// A fact as ingest wrote it up to 0.1.
fn attributed_fact(
    subject: String,
    payload: impl Into<Bytes>,
    (fence, carried): (&Fence, Option<Trace>),
    chance: &mut Rng,
) -> Outgoing {
    let kind = if subject.starts_with("muster.liveness.") { "LivenessFact" } else { "StatusFact" };
    let id = format!("{}.1.{}", device(&subject), chance.u32(..));
    let trace = carried.unwrap_or_else(|| Trace::random(chance));
    Outgoing { headers: attributes("muster-ingest", kind, id, trace), ..fenced(subject, payload, fence) }
}

/// A desired state as the publisher writes it.
fn desired(subject: String, payload: impl Into<Bytes>, chance: &mut Rng) -> Outgoing {
    let (id, trace) = (format!("{:032x}", chance.u128(..)), Trace::random(chance));
    Outgoing {
        headers: attributes("muster-publisher", "DesiredState", &id, trace),
        message_id: Some(id),
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subject, payload)
    }
}

/// `SITE.DEVICE`, which every subject of a device has after two tokens.
fn device(subject: &str) -> &str {
    let mut dots = subject.match_indices('.').map(|(at, _)| at).skip(1);
    let begin = dots.next().map_or(0, |at| at + 1);
    let end = dots.nth(1).unwrap_or(subject.len());
    &subject[begin..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_subject_is_found_whatever_follows() {
        for subject in ["muster.report.s.d", "muster.status.s.d.app", "muster.liveness.s.d"] {
            assert_eq!(device(subject), "s.d", "{subject}");
        }
    }
}
