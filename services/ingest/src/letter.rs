//! What leaves ingest, as messages: subject, headers, bytes. What it says is decided elsewhere.

use fastrand::Rng;
use muster_bus::{Headers, Outgoing};
use muster_contract::DeviceKey;
use muster_contract::decode::{self, Document};
use muster_contract::headers::{
    CE_ID, CE_SOURCE, CE_SPECVERSION, CE_SPECVERSION_VALUE, CE_TYPE, TRACEPARENT,
};
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, stream};
use muster_domain::border::Publication;

/// Who says it, as CloudEvents ask.
const EVENT_SOURCE: &str = "muster-ingest";
/// Lengths of the four parts of a W3C `traceparent` of version 00.
const TRACEPARENT_PARTS: [usize; 4] = [2, 32, 16, 2];

/// A W3C trace context: the sender's, or one of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace(String);

impl Trace {
    /// The trace that a message carries; one of our own where it carries none that is valid.
    pub fn of(headers: &Headers, chance: &mut Rng) -> Self {
        match headers.get(TRACEPARENT) {
            Some(carried) if is_traceparent(carried) => Self(carried.to_owned()),
            _ => Self::begin(chance),
        }
    }

    /// A trace that begins here.
    pub fn begin(chance: &mut Rng) -> Self {
        // An id of zeros means "none".
        let (trace, span) = (chance.u128(1..), chance.u64(1..));
        Self(format!("00-{trace:032x}-{span:016x}-01"))
    }
}

fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = text.split('-');
    let fits =
        TRACEPARENT_PARTS.iter().all(|length| parts.next().is_some_and(|p| p.len() == *length && hex(p)));
    fits && parts.next().is_none()
}

/// A fact for LEDGER.
pub fn fact(publication: Publication, trace: &Trace, chance: &mut Rng) -> Outgoing {
    let Publication { subject, kind, payload, message_id } = publication;
    Outgoing {
        headers: match &message_id {
            Some(id) => headers(id, kind, trace),
            None => headers(&unique(chance), kind, trace),
        },
        message_id,
        expected_stream: Some(stream::LEDGER),
        ..Outgoing::new(subject.to_string(), payload)
    }
}

/// A receipt for a device.
pub fn receipt(key: &DeviceKey, receipt: &Receipt, chance: &mut Rng) -> Outgoing {
    let trace = Trace::begin(chance);
    Outgoing {
        headers: headers(&unique(chance), Receipt::KIND, &trace),
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subjects::receipt(key), decode::to_bytes(receipt))
    }
}

fn unique(chance: &mut Rng) -> String {
    format!("{:032x}", chance.u128(..))
}

fn headers(id: &str, kind: &str, trace: &Trace) -> Headers {
    let mut headers = Headers::new();
    headers.insert(CE_SPECVERSION, CE_SPECVERSION_VALUE);
    headers.insert(CE_ID, id);
    headers.insert(CE_SOURCE, EVENT_SOURCE);
    headers.insert(CE_TYPE, format!("muster.v1.{kind}"));
    headers.insert(TRACEPARENT, &trace.0);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_trace_is_passed_on_and_any_other_replaced() {
        let mut chance = Rng::with_seed(7);
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let carried = |text: &str| {
            let mut headers = Headers::new();
            headers.insert(TRACEPARENT, text);
            headers
        };
        assert_eq!(Trace::of(&carried(good), &mut chance).0, good);
        for bad in ["", "00", &good.to_uppercase(), &format!("{good}-00"), &"a".repeat(9_000)] {
            let made = Trace::of(&carried(bad), &mut chance).0;
            assert!(made != bad && is_traceparent(&made), "{bad:.60} became {made}");
        }
        assert!(is_traceparent(&Trace::of(&Headers::new(), &mut chance).0));
    }
}
