//! The stored form of a report, and its serialisation for sending. Knows neither tables nor limits.

use std::fmt::Write;

use muster_contract::decode::Document;
use muster_contract::limits::BATCH_BYTES_MAX;
use muster_contract::packed::pack;
use muster_contract::report::{CapabilitiesReport, StatusReport};
use muster_contract::{Epoch, Seq, SeqRanges};
use serde::de::IgnoredAny;

use super::encoding::{Encoded, Encoding};
use crate::report::Body;

/// A report body as JSON text: written once, sent as it is, and parsed only where its content is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBody(String);

/// A row as the relay reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its number.
    pub seq: u64,
    /// No later report of its deployment exists.
    pub newest: bool,
    /// It was sent before, and the hub asked for it again or never mentioned it.
    pub is_repeated: bool,
    /// The message id.
    pub message_id: String,
    /// Bytes that it counts against the limits.
    pub bytes: usize,
    /// The report.
    pub body: StoredBody,
    /// Numbers that it declares as folded or dropped.
    pub coalesced: SeqRanges,
}

/// The version in the documents.
const VERSION: &str = "muster/v1";
/// Bytes that sending adds to a report without declared numbers.
const ENVELOPE_BYTES: usize = 192;
/// The beginning of a stored body, and the kind of the report that it is sent as.
const KINDS: [(&str, &str); 2] = [
    ("{\"kind\":\"status\",", StatusReport::KIND),
    ("{\"kind\":\"capabilities\",", CapabilitiesReport::KIND),
];

impl StoredBody {
    /// Serialises a body.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub fn of(body: &Body) -> serde_json::Result<Self> {
        serde_json::to_string(body).map(Self)
    }

    /// A body that was read from the table. Checks that it is the JSON of a report, but not its content.
    ///
    /// # Errors
    /// It is not a stored body.
    pub(crate) fn from_table(text: String) -> serde_json::Result<Self> {
        serde_json::from_str::<IgnoredAny>(&text)?;
        let kept = Self(text);
        match kept.split() {
            Some(_) => Ok(kept),
            None => Err(serde::de::Error::custom("it is no report")),
        }
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the body.
    ///
    /// # Errors
    /// It is not a stored body.
    pub fn read(&self) -> serde_json::Result<Body> {
        serde_json::from_str(&self.0)
    }

    /// The kind of the report and the text of its fields.
    fn split(&self) -> Option<(&'static str, &str)> {
        let (kind, fields) = KINDS
            .iter()
            .find_map(|(begin, kind)| self.0.strip_prefix(begin).map(|fields| (*kind, fields)))?;
        fields.strip_suffix('}').map(|fields| (kind, fields))
    }
}

/// Several rows as one batch, compressed for a hub that reads this encoding. `None` if they do not fit into one, or a number is
/// none that a report can have.
pub fn pack_rows(rows: &[Row], epoch: Epoch, head: u64, encoding: Encoding) -> Option<Encoded> {
    let element = |row: &Row| Some((Seq::new(row.seq)?, row.element()?));
    let mut elements = rows.iter().map(element).collect::<Option<Vec<_>>>()?;
    elements.sort_unstable_by_key(|(seq, _)| *seq);
    let packed = encoding.encode(pack(epoch, Seq::new(head)?, &elements)?)?;
    (packed.bytes.len() <= BATCH_BYTES_MAX).then_some(packed)
}

impl Row {
    /// The report as an element of a batch: without what the envelope says.
    fn element(&self) -> Option<String> {
        let (kind, fields) = self.body.split()?;
        let mut text = String::with_capacity(fields.len() + ENVELOPE_BYTES);
        let _ = write!(text, r#"{{"kind":"{kind}",{fields}"#);
        self.push_fields_of_sending(kind, &mut text)?;
        Some(text)
    }

    /// Adds the fields that are known only when the report is sent, and the end.
    fn push_fields_of_sending(&self, kind: &str, text: &mut String) -> Option<()> {
        if kind == StatusReport::KIND {
            let _ = write!(text, r#","current":{}"#, self.newest);
        }
        if !self.coalesced.is_empty() {
            let _ = write!(text, r#","coalesced":{}"#, serde_json::to_string(&self.coalesced).ok()?);
        }
        text.push('}');
        Some(())
    }

    /// The report to send, for a hub that reads this encoding.
    pub fn encode(&self, epoch: Epoch, head: u64, encoding: Encoding) -> Option<Encoded> {
        encoding.encode(self.serialize(epoch, head)?)
    }

    /// The report to send, with an epoch and a head: the stored text and the added fields. `None` for a number that
    /// no report can have.
    pub fn serialize(&self, epoch: Epoch, head: u64) -> Option<Vec<u8>> {
        let (seq, head) = (Seq::new(self.seq)?, Seq::new(head)?);
        let (kind, fields) = self.body.split()?;
        let mut text = String::with_capacity(fields.len() + ENVELOPE_BYTES);
        // Writing to a string cannot fail, and numbers and ranges are always JSON.
        let _ = write!(
            text,
            r#"{{"apiVersion":"{VERSION}","kind":"{kind}","epoch":{epoch},"seq":{seq},"head":{head},{fields}"#
        );
        self.push_fields_of_sending(kind, &mut text)?;
        Some(text.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_contract::canonical::Digest;
    use muster_contract::report::Report;
    use muster_contract::retry::{LastError, Retry};
    use muster_contract::state::DeploymentStatus;
    use muster_contract::{Generation, State, Timestamp};
    use serde_json::{Map, Value};

    use super::*;
    use crate::report::{CapabilitiesBody, StatusBody};

    fn row(body: &Body, coalesced: SeqRanges) -> Row {
        let body = StoredBody::from_table(StoredBody::of(body).unwrap().as_str().to_owned()).unwrap();
        Row { seq: 7, newest: true, is_repeated: false, message_id: String::new(), bytes: 0, body, coalesced }
    }

    fn status() -> StatusBody {
        StatusBody {
            observed_at: Timestamp::UNIX_EPOCH,
            deployment: "web".parse().unwrap(),
            generation: Generation::FIRST,
            digest: Digest::of_bytes(b""),
            status: DeploymentStatus { state: State::Failed, error: None, reason: Some("\"}\n".to_owned()) },
            components: Vec::new(),
            retries: vec![Retry {
                component: None,
                attempt: 2,
                since: Timestamp::UNIX_EPOCH,
                last_error: LastError {
                    code: String::new(),
                    message: String::new(),
                    at: Timestamp::UNIX_EPOCH,
                },
                crash_loop: true,
            }],
        }
    }

    #[test]
    fn a_sent_report_has_the_stored_and_the_added_fields() {
        let kept = status();
        let mut folded = SeqRanges::new();
        [2, 3, 5].into_iter().for_each(|seq| _ = folded.insert(seq));
        let letter = row(&Body::Status(kept.clone()), folded.clone()).serialize(Epoch::FIRST, 9).unwrap();
        let Ok(Report::Status(sent)) = Report::parse(&letter) else { panic!("a status, please") };
        assert_eq!((sent.seq.get(), sent.head.get()), (7, 9));
        assert_eq!((sent.epoch, sent.current, sent.coalesced), (Epoch::FIRST, true, folded));
        let StatusBody { observed_at, deployment, generation, digest, status, components, retries } = kept;
        assert_eq!((sent.observed_at, sent.deployment), (observed_at, deployment));
        assert_eq!((sent.generation, sent.digest, sent.status), (generation, digest, status));
        assert_eq!((sent.components, sent.retries), (components, retries));
    }

    #[test]
    fn capabilities_are_sent_as_they_were_kept() {
        let kept = CapabilitiesBody {
            observed_at: Timestamp::UNIX_EPOCH,
            properties: Map::from_iter([("cpus".to_owned(), Value::from(2))]),
            labels: BTreeMap::new(),
            agent_version: "1".to_owned(),
        };
        let letter =
            row(&Body::Capabilities(kept.clone()), SeqRanges::new()).serialize(Epoch::FIRST, 7).unwrap();
        let Ok(Report::Capabilities(sent)) = Report::parse(&letter) else { panic!("capabilities, please") };
        assert_eq!((sent.properties, sent.labels), (kept.properties, kept.labels));
        assert_eq!((sent.agent_version, sent.coalesced), (kept.agent_version, SeqRanges::new()));
    }

    #[test]
    fn a_text_that_is_no_stored_body_is_refused() {
        let good = StoredBody::of(&Body::Status(status())).unwrap();
        assert_eq!(good.read().unwrap(), Body::Status(status()));
        for eaten in
            ["", "{}", r#"{"kind":"other","a":1}"#, &good.as_str()[..40], &format!("{}x", good.as_str())]
        {
            assert!(StoredBody::from_table(eaten.to_owned()).is_err(), "{eaten}");
        }
    }
}
