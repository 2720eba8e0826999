//! What leaves ingest, as messages: subject, headers, bytes. What it says is decided elsewhere.

use fastrand::Rng;
use muster_bus::Outgoing;
use muster_bus::event::{Trace, attributes};
use muster_contract::DeviceKey;
use muster_contract::decode::{self, Document};
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, stream};
use muster_domain::border::Publication;

/// Who says it, as CloudEvents ask.
const EVENT_SOURCE: &str = "muster-ingest";

/// A fact for LEDGER. It needs the fence of its partition ([`Claim::stamp`](crate::ownership::Claim::stamp)), and nothing
/// besides: a stream that is not LEDGER has no such record, and what is sent twice comes after another record. So it
/// carries no `Nats-Msg-Id`, which the server would have to remember of every fact, and no `Nats-Expected-Stream`.
pub fn fact(publication: Publication, trace: Trace, chance: &mut Rng) -> Outgoing {
    let Publication { subject, kind, payload, id } = publication;
    let id = id.unwrap_or_else(|| unique(chance));
    Outgoing {
        headers: attributes(EVENT_SOURCE, kind, id, trace),
        ..Outgoing::new(subject.to_string(), payload)
    }
}

/// A receipt for a device.
pub fn receipt(key: &DeviceKey, receipt: &Receipt, chance: &mut Rng) -> Outgoing {
    let trace = Trace::begin(chance);
    Outgoing {
        headers: attributes(EVENT_SOURCE, Receipt::KIND, unique(chance), trace),
        expected_stream: Some(stream::DOWNLINK),
        ..Outgoing::new(subjects::receipt(key), decode::to_bytes(receipt))
    }
}

fn unique(chance: &mut Rng) -> String {
    format!("{:032x}", chance.u128(..))
}
