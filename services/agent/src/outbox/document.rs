//! What a row holds of a report, and how it becomes the report that is sent. Knows neither tables nor limits.

use std::collections::BTreeMap;
use std::fmt::Write;

use muster_contract::canonical::Digest;
use muster_contract::decode::Document;
use muster_contract::report::{CapabilitiesReport, StatusReport};
use muster_contract::retry::Retry;
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a report says, without what only sending knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Body {
    /// About a deployment.
    Status(StatusBody),
    /// About the device.
    Capabilities(CapabilitiesBody),
}

/// See [`StatusReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct StatusBody {
    pub observed_at: Timestamp,
    pub deployment: DeploymentId,
    pub generation: Generation,
    pub digest: Digest,
    pub status: DeploymentStatus,
    pub components: Vec<ComponentStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retries: Vec<Retry>,
}

/// See [`CapabilitiesReport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct CapabilitiesBody {
    pub observed_at: Timestamp,
    pub properties: Map<String, Value>,
    pub labels: BTreeMap<String, String>,
    pub agent_version: String,
}

/// A report as it is kept, as text: it is written once, sent as it is, and read only where somebody has to know what it
/// says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept(String);

/// A row as the relay sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its number.
    pub seq: u64,
    /// No later report of its deployment exists.
    pub newest: bool,
    /// The bus's message id.
    pub message_id: String,
    /// What it counts against the limits.
    pub bytes: usize,
    /// The report.
    pub body: Kept,
    /// Numbers folded into it.
    pub coalesced: SeqRanges,
}

/// A report as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// `StatusReport` or `CapabilitiesReport`.
    pub kind: &'static str,
    /// The document.
    pub bytes: Vec<u8>,
}

impl Body {
    /// The deployment it is about; none for capabilities.
    pub const fn deployment(&self) -> Option<&DeploymentId> {
        match self {
            Self::Status(body) => Some(&body.deployment),
            Self::Capabilities(_) => None,
        }
    }

    /// When it was seen.
    pub const fn observed_at(&self) -> Timestamp {
        match self {
            Self::Status(body) => body.observed_at,
            Self::Capabilities(body) => body.observed_at,
        }
    }

    /// True where nothing more happens by itself: such a report is not folded.
    pub(super) const fn is_terminal(&self) -> bool {
        match self {
            Self::Status(body) => body.status.state.is_terminal(),
            Self::Capabilities(_) => false,
        }
    }
}

impl StatusBody {
    /// Bytes it has when it is kept. What cannot be written has none; it is refused when it is kept.
    pub fn stored_bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |bytes| bytes.len())
    }
}

/// The version that the documents say.
const VERSION: &str = "muster/v1";
/// Room for what sending adds, in bytes, where no numbers were folded.
const ENVELOPE_BYTES: usize = 192;
/// How the text of a kept report begins, and what it is called when it is sent.
const KINDS: [(&str, &str); 2] = [
    ("{\"kind\":\"status\",", StatusReport::KIND),
    ("{\"kind\":\"capabilities\",", CapabilitiesReport::KIND),
];

impl Kept {
    /// A report as it is to be kept.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn of(body: &Body) -> serde_json::Result<Self> {
        serde_json::to_string(body).map(Self)
    }

    /// What was kept. That it is JSON of such a report is looked at, what it says is not.
    ///
    /// # Errors
    /// Nobody kept this.
    pub fn found(text: String) -> serde_json::Result<Self> {
        serde_json::from_str::<IgnoredAny>(&text)?;
        let kept = Self(text);
        match kept.split() {
            Some(_) => Ok(kept),
            None => Err(serde::de::Error::custom("it is no report")),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What it says.
    ///
    /// # Errors
    /// Nobody kept this.
    pub fn read(&self) -> serde_json::Result<Body> {
        serde_json::from_str(&self.0)
    }

    /// What it is called when it is sent, and its fields.
    fn split(&self) -> Option<(&'static str, &str)> {
        let (kind, fields) = KINDS
            .iter()
            .find_map(|(begin, kind)| self.0.strip_prefix(begin).map(|fields| (*kind, fields)))?;
        fields.strip_suffix('}').map(|fields| (kind, fields))
    }
}

impl Row {
    /// The report to send, as of an epoch and a head: what was kept, and around it what only sending knows. `None` for a
    /// number that no report can have.
    pub fn letter(&self, epoch: Epoch, head: u64) -> Option<Letter> {
        let (seq, head) = (Seq::new(self.seq)?, Seq::new(head)?);
        let (kind, fields) = self.body.split()?;
        let mut text = String::with_capacity(fields.len() + ENVELOPE_BYTES);
        // Writing to a string cannot fail, and numbers and ranges are always JSON.
        let _ = write!(
            text,
            r#"{{"apiVersion":"{VERSION}","kind":"{kind}","epoch":{epoch},"seq":{seq},"head":{head},{fields}"#
        );
        if kind == StatusReport::KIND {
            let _ = write!(text, r#","current":{}"#, self.newest);
        }
        if !self.coalesced.is_empty() {
            let _ = write!(text, r#","coalesced":{}"#, serde_json::to_string(&self.coalesced).ok()?);
        }
        text.push('}');
        Some(Letter { kind, bytes: text.into_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::State;
    use muster_contract::report::Report;
    use muster_contract::retry::LastError;

    use super::*;

    fn row(body: &Body, coalesced: SeqRanges) -> Row {
        let body = Kept::found(Kept::of(body).unwrap().as_str().to_owned()).unwrap();
        Row { seq: 7, newest: true, message_id: String::new(), bytes: 0, body, coalesced }
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
    fn what_is_sent_says_what_was_kept_and_what_sending_knows() {
        let kept = status();
        let mut folded = SeqRanges::new();
        [2, 3, 5].into_iter().for_each(|seq| _ = folded.insert(seq));
        let letter = row(&Body::Status(kept.clone()), folded.clone()).letter(Epoch::FIRST, 9).unwrap();
        let Ok(Report::Status(sent)) = Report::parse(&letter.bytes) else { panic!("a status, please") };
        assert_eq!((letter.kind, sent.seq.get(), sent.head.get()), ("StatusReport", 7, 9));
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
            row(&Body::Capabilities(kept.clone()), SeqRanges::new()).letter(Epoch::FIRST, 7).unwrap();
        let Ok(Report::Capabilities(sent)) = Report::parse(&letter.bytes) else {
            panic!("capabilities, please")
        };
        assert_eq!(
            (letter.kind, sent.properties, sent.labels),
            ("CapabilitiesReport", kept.properties, kept.labels)
        );
        assert_eq!((sent.agent_version, sent.coalesced), (kept.agent_version, SeqRanges::new()));
    }

    #[test]
    fn a_text_that_nobody_kept_is_told_at_once() {
        let good = Kept::of(&Body::Status(status())).unwrap();
        assert_eq!(good.read().unwrap(), Body::Status(status()));
        for eaten in
            ["", "{}", r#"{"kind":"other","a":1}"#, &good.as_str()[..40], &format!("{}x", good.as_str())]
        {
            assert!(Kept::found(eaten.to_owned()).is_err(), "{eaten}");
        }
    }
}
