//! Headers that identify a message and its cause: CloudEvents attributes of documents that readers verify, and a W3C trace context
//! of messages that are traced. Facts and reports carry no attributes: readers derive these from subject and document. This module
//! reads no document and records no trace.

use std::fmt::{self, Write};

use fastrand::Rng;
use muster_contract::headers::{
    CE_ID, CE_SOURCE, CE_SPECVERSION, CE_SPECVERSION_VALUE, CE_TYPE, CE_TYPE_PREFIX, TRACEPARENT,
};

use crate::message::Headers;

/// Lengths of the four parts of a `traceparent` of version 00, in characters.
const PARTS: [usize; 4] = [2, 32, 16, 2];

/// The flag of a caller that recorded its part of a trace.
const SAMPLED: u8 = 1;
/// One in so many reports and facts is traced, of those that are not always traced.
pub const TRACE_ONE_IN: u64 = 1_000;

/// A span of a W3C trace: the ids of trace and span, neither of them zero.
///
/// A trace that Muster begins is sampled, so that a recorder of traces keeps it; a message carries a sampled trace or none. A trace
/// that its sender did not sample ends with its message, unless the message causes an incident, a quarantine or a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    trace: u128,
    span: u64,
    sampled: bool,
}

impl Trace {
    /// A new sampled trace.
    pub fn random(rng: &mut Rng) -> Self {
        Self { trace: rng.u128(1..), span: rng.u64(1..), sampled: true }
    }

    /// A new trace for one call in [`TRACE_ONE_IN`]; `None` for the others.
    pub fn sample(rng: &mut Rng) -> Option<Self> {
        (rng.u64(..TRACE_ONE_IN) == 0).then(|| Self::random(rng))
    }

    /// A trace for one id in [`TRACE_ONE_IN`], always the same for the same id; `None` for the others.
    pub fn sample_of_id(id: u128) -> Option<Self> {
        ((id as u64).is_multiple_of(TRACE_ONE_IN)).then(|| Self::of_id(id))
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn sibling(self, rng: &mut Rng) -> Self {
        Self { span: rng.u64(1..), ..self }
    }

    /// A new trace derived from a random message id of 128 bits, whose last 64 become the id of the span. Ids of zero are
    /// invalid in a trace, so the lowest bit of each is set.
    pub const fn of_id(id: u128) -> Self {
        Self { trace: id | 1, span: id as u64 | 1, sampled: true }
    }

    /// Whether it is sampled: its sender has recorded it.
    pub const fn is_sampled(self) -> bool {
        self.sampled
    }

    /// The same trace, sampled from here on.
    #[must_use]
    pub const fn into_sampled(self) -> Self {
        Self { sampled: true, ..self }
    }

    /// The trace in a message's headers, if it is valid and of version 00.
    pub fn carried(headers: &Headers) -> Option<Self> {
        let mut parts = headers.get(TRACEPARENT)?.split('-');
        let [version, trace, span, flags] = PARTS.map(|length| {
            let part = parts.next().filter(|part| part.len() == length)?;
            let hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            hex.then_some(part)
        });
        let (trace, span) = (u128::from_str_radix(trace?, 16).ok()?, u64::from_str_radix(span?, 16).ok()?);
        let sampled = u8::from_str_radix(flags?, 16).ok()? & SAMPLED != 0;
        let is_complete = version? == "00" && parts.next().is_none();
        (is_complete && trace != 0 && span != 0).then_some(Self { trace, span, sampled })
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// The header of a trace; no header without one.
pub fn traced(trace: Option<Trace>) -> Headers {
    let mut headers = Headers::new();
    if let Some(trace) = trace {
        headers.insert(TRACEPARENT, text(trace));
    }
    headers
}

/// The headers by which a reader verifies the author and the kind of a document, without a trace.
pub fn authored(source: &str, kind: &str) -> Headers {
    let mut headers = Headers::new();
    headers.insert(CE_SOURCE, source);
    headers.insert(CE_TYPE, [CE_TYPE_PREFIX, kind].concat());
    headers
}

/// The CloudEvents attributes and the trace of a document: `source` is its sender, `kind` that of the document, and `id` is
/// unique for the source.
pub fn attributes(source: &str, kind: &str, id: impl Into<String>, trace: Trace) -> Headers {
    let mut headers = authored(source, kind);
    headers.insert(CE_SPECVERSION, CE_SPECVERSION_VALUE);
    headers.insert(CE_ID, id);
    headers.insert(TRACEPARENT, text(trace));
    headers
}

/// The `traceparent`, in one allocation.
fn text(trace: Trace) -> String {
    let mut text = String::with_capacity(PARTS.iter().sum::<usize>() + PARTS.len() - 1);
    // Writing to a string cannot fail.
    let _ = write!(text, "{trace}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carrying(text: &str) -> Headers {
        let mut headers = Headers::new();
        headers.insert(TRACEPARENT, text);
        headers
    }

    #[test]
    fn only_a_valid_trace_is_read() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(Trace::carried(&carrying(good)).map(|trace| trace.to_string()).as_deref(), Some(good));
        let unsampled = good.replace("-01", "-00");
        assert_eq!(Trace::carried(&carrying(&unsampled)).map(|trace| trace.to_string()), Some(unsampled));
        let zeros = format!("00-{:032x}-{:016x}-01", 0, 1);
        for bad in ["", "00", &good.to_uppercase(), &format!("{good}-00"), &"a".repeat(9_000), &zeros] {
            assert_eq!(Trace::carried(&carrying(bad)), None, "{bad:.60}");
        }
        assert_eq!(Trace::carried(&Headers::new()), None);
    }

    #[test]
    fn a_written_trace_is_read_back() {
        let mut rng = Rng::with_seed(7);
        for trace in [Trace::random(&mut rng), Trace::of_id(0), Trace::of_id(u128::MAX)] {
            let headers = attributes("a/b", "StatusReport", "1", trace);
            assert_eq!(Trace::carried(&headers), Some(trace));
            assert_eq!(headers.get(CE_TYPE), Some("muster.v1.StatusReport"));
            assert_eq!(Trace::carried(&traced(Some(trace))), Some(trace));
        }
        assert!(traced(None).is_empty());
    }

    #[test]
    fn one_trace_in_a_thousand_is_sampled() {
        let mut rng = Rng::with_seed(11);
        let drawn = (0..100_000).filter_map(|_| Trace::sample(&mut rng)).count();
        let of_ids = (0..100_000).filter_map(|_| Trace::sample_of_id(rng.u128(..))).count();
        for sampled in [drawn, of_ids] {
            assert!((50..=150).contains(&sampled), "{sampled}");
        }
        let id = 7_000 * u128::from(TRACE_ONE_IN);
        assert_eq!(Trace::sample_of_id(id), Some(Trace::of_id(id)));
        assert!(Trace::of_id(id).is_sampled());
    }
}
