//! What leaves ingest, as messages: subject, headers, bytes. What it says is decided elsewhere.

use fastrand::Rng;
use muster_bus::Outgoing;
use muster_bus::event::{Trace, attributes};
use muster_contract::DeviceKey;
use muster_contract::decode::{self, Document};
use muster_contract::fact::{PulseFact, StatusFact};
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, stream};
use muster_domain::border::Publication;

/// Who says it, as CloudEvents ask.
pub(crate) const EVENT_SOURCE: &str = "muster-ingest";

/// A fact for LEDGER. It needs the fence of its partition ([`Claim::stamp`](crate::ownership::Claim::stamp)): a stream that is
/// not LEDGER has no such record, so no `Nats-Expected-Stream` is needed, and what is sent twice comes after another
/// record. A status is recognised by its number, so it carries no `Nats-Msg-Id`, which the server would have to remember of
/// every one of them. What is rare does: of messages without a readable number only the last few are remembered here. A pulse
/// has a time to live.
pub fn fact(publication: Publication, trace: Trace, chance: &mut Rng) -> Outgoing {
    let Publication { subject, kind, payload, id } = publication;
    let message_id = if kind == StatusFact::KIND { None } else { id.clone() };
    let ttl = (kind == PulseFact::KIND).then(|| decode::parse::<PulseFact>(&payload).ok()).flatten();
    let id = id.unwrap_or_else(|| unique(chance));
    Outgoing {
        headers: attributes(EVENT_SOURCE, kind, id, trace),
        message_id,
        ttl: ttl.map(|pulse| PulseFact::kept_for(pulse.lease())),
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

#[cfg(test)]
mod tests {
    use muster_contract::fact::QuarantineFact;
    use muster_contract::headers::CE_ID;
    use muster_contract::subjects::LedgerSubject;

    use super::*;

    #[test]
    fn a_status_is_recognised_by_its_number_and_what_is_rare_by_the_bus_too() {
        let mut chance = Rng::with_seed(1);
        for (kind, wanted) in [(StatusFact::KIND, None), (QuarantineFact::KIND, Some("a.b.1"))] {
            let subject = LedgerSubject::Quarantine(None);
            let publication =
                Publication { subject, kind, payload: Vec::new(), id: Some("a.b.1".to_owned()) };
            let letter = fact(publication, Trace::of_id(1), &mut chance);
            assert_eq!(letter.message_id.as_deref(), wanted, "{kind}");
            assert_eq!(letter.headers.get(CE_ID), Some("a.b.1"), "{kind}");
        }
    }
}
