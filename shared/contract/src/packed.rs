//! Several reports of a device in one message: the document, and the way from single reports to it and back.
//!
//! A batch saves bytes on the wire and means nothing else: [`unpack`] gives the same reports as the same number of messages
//! would. The envelope has what all of them share; element i has the i-th number of `seqs`. A broken element breaks no other
//! one; a broken envelope breaks all of them, because nobody can tell their numbers.
//!
//! The text of a report is copied and never parsed here, so an element may be anything that a single report may be. Knows no
//! compression.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decode::{Document, Refusal, Violation};
use crate::ids::{Epoch, Seq};
use crate::json_text::{self, items, members};
use crate::limits::{BATCH_REPORTS_MAX, BATCH_REPORTS_MIN, BATCH_TEXT_BYTES_MAX, REPORT_BYTES_MAX};
use crate::ranges::SeqRanges;
use crate::version::{ApiVersion, kind};

/// Fields that an element has from the envelope only.
const OF_THE_ENVELOPE: [&str; 4] = ["apiVersion", "epoch", "seq", "head"];
/// The version in the documents.
const VERSION: &str = "muster/v1";
/// Longest text of these fields in a single report.
const ENVELOPE_BYTES_MAX: usize = 128;

/// `muster.report.<site>.<device>` with the header `Muster-Reports`: several reports of the device in one message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportBatch {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `ReportBatch`
    pub kind: kind::ReportBatch,
    /// The device's epoch: that of every element.
    pub epoch: Epoch,
    /// The highest number that the device had given at the moment of packing: the head of every element.
    pub head: Seq,
    /// The numbers of the elements: the first one has the lowest number, and so on.
    pub seqs: SeqRanges,
    /// Fields that an element has unless it has its own; `null` in an element says that it has none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub common: Map<String, Value>,
    /// The reports, each without `apiVersion`, `epoch`, `seq`, `head` and what is common.
    #[schemars(length(min = BATCH_REPORTS_MIN, max = BATCH_REPORTS_MAX))]
    pub reports: Vec<Map<String, Value>>,
}

impl Document for ReportBatch {
    const KIND: &'static str = "ReportBatch";

    fn check(&self) -> Result<(), Violation> {
        check_numbers(&self.seqs, self.head, self.reports.len())?;
        check_keys("common", self.common.keys().map(String::as_str))?;
        let mut reports = self.reports.iter().enumerate();
        reports.try_for_each(|(at, report)| {
            check_keys(&format!("reports[{at}]"), report.keys().map(String::as_str))
        })
    }
}

/// The fields of a batch that [`unpack`] parses: the others stay text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(rename = "kind")]
    _kind: kind::ReportBatch,
    epoch: Epoch,
    head: Seq,
    seqs: SeqRanges,
    #[serde(rename = "common", default)]
    _common: BTreeMap<String, IgnoredAny>,
    reports: Vec<IgnoredAny>,
}

/// The single reports of a batch, in the order of their numbers.
///
/// # Errors
/// A refusal of the whole batch: nothing of it was read.
pub fn unpack(batch: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
    if batch.len() > BATCH_TEXT_BYTES_MAX {
        return Err(broken(
            ".",
            format!("{} bytes of text; {BATCH_TEXT_BYTES_MAX} are allowed", batch.len()),
        ));
    }
    let shape =
        |error: String| Refusal::Shape { kind: ReportBatch::KIND, path: ".".to_owned(), reason: error };
    let text = str::from_utf8(batch).map_err(|error| shape(error.to_string()))?;
    let envelope: Envelope = serde_json::from_str(text).map_err(|error| shape(error.to_string()))?;
    check_numbers(&envelope.seqs, envelope.head, envelope.reports.len()).map_err(rule)?;
    let part = |wanted: &str| members(text).find(|(key, _)| *key == wanted).map_or("", |(_, value)| value);
    let common: Vec<_> = members(part("common")).collect();
    check_keys("common", common.iter().map(|(key, _)| *key)).map_err(rule)?;
    let seqs = envelope.seqs.iter().flat_map(|(from, to)| from..=to);
    let (mut reports, mut bytes) = (Vec::with_capacity(envelope.reports.len()), 0);
    for (at, (seq, element)) in seqs.zip(items(part("reports"))).enumerate() {
        let own: Vec<_> = members(element).collect();
        check_keys(&format!("reports[{at}]"), own.iter().map(|(key, _)| *key)).map_err(rule)?;
        let report = single(&envelope, seq, element, &own, &common);
        bytes += report.len();
        if report.len() > REPORT_BYTES_MAX || bytes > BATCH_TEXT_BYTES_MAX {
            let reason = format!(
                "as single reports the elements up to this one have {bytes} bytes, and it has {}; \
                 {BATCH_TEXT_BYTES_MAX} and {REPORT_BYTES_MAX} are allowed",
                report.len()
            );
            return Err(broken(format!("reports[{at}]"), reason));
        }
        reports.push(report.into_bytes());
    }
    Ok(reports)
}

/// An element as the single report that it stands for. What is no object becomes a document that has the number and is no
/// report.
fn single(
    envelope: &Envelope,
    seq: u64,
    element: &str,
    own: &[(&str, &str)],
    common: &[(&str, &str)],
) -> String {
    let (epoch, head) = (envelope.epoch, envelope.head);
    let mut text = format!(r#"{{"apiVersion":"{VERSION}","epoch":{epoch},"seq":{seq},"head":{head}"#);
    if !json_text::is_object(element) {
        push(&mut text, "report", element);
    }
    let is_own = |key: &str| own.iter().any(|(other, _)| *other == key);
    for (key, value) in own {
        // Without this its `null` would say the same, but not to a reader of a required field.
        if *value != "null" || !common.iter().any(|(other, _)| other == key) {
            push(&mut text, key, value);
        }
    }
    common.iter().filter(|(key, _)| !is_own(key)).for_each(|(key, value)| push(&mut text, key, value));
    text.push('}');
    text
}

/// A batch of reports, each as the text of an object without the fields of the envelope, in the order of their numbers. What all
/// of them have alike is said once. `None` if they are too few, too many or too large for a batch, or a number is not above the
/// one before.
pub fn pack(epoch: Epoch, head: Seq, reports: &[(Seq, String)]) -> Option<Vec<u8>> {
    let mut seqs = SeqRanges::new();
    let is_ascending =
        reports.iter().all(|(seq, _)| seqs.max().is_none_or(|max| max < seq.get()) && seqs.insert(seq.get()));
    if !is_ascending || check_numbers(&seqs, head, reports.len()).is_err() {
        return None;
    }
    let elements: Vec<Vec<_>> = reports.iter().map(|(_, report)| members(report).collect()).collect();
    let (first, others) = elements.split_first()?;
    let is_common = |member: &&(&str, &str)| others.iter().all(|element| element.contains(member));
    let common: Vec<_> = first.iter().filter(is_common).copied().collect();
    let seqs = serde_json::to_string(&seqs).ok()?;
    let mut text = format!(
        r#"{{"apiVersion":"{VERSION}","kind":"{}","epoch":{epoch},"head":{head},"seqs":{seqs},"common":"#,
        ReportBatch::KIND
    );
    push_object(&mut text, common.iter());
    text.push_str(r#","reports":["#);
    for (at, element) in elements.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { "," });
        push_object(&mut text, element.iter().filter(|member| !common.contains(member)));
    }
    text.push_str("]}");
    // As single reports they have the common fields, and those of the envelope, each.
    let whole: usize = reports.iter().map(|(_, report)| report.len() + ENVELOPE_BYTES_MAX).sum();
    (text.len().max(whole) <= BATCH_TEXT_BYTES_MAX).then(|| text.into_bytes())
}

fn push(text: &mut String, key: &str, value: &str) {
    [",\"", key, "\":", value].iter().for_each(|part| text.push_str(part));
}

fn push_object<'a>(text: &mut String, members: impl Iterator<Item = &'a (&'a str, &'a str)>) {
    text.push('{');
    for (at, (key, value)) in members.enumerate() {
        [if at == 0 { "\"" } else { ",\"" }, key, "\":", value].iter().for_each(|part| text.push_str(part));
    }
    text.push('}');
}

fn check_numbers(seqs: &SeqRanges, head: Seq, reports: usize) -> Result<(), Violation> {
    if !(BATCH_REPORTS_MIN..=BATCH_REPORTS_MAX).contains(&reports) {
        let rule = format!("{reports} reports; a batch has {BATCH_REPORTS_MIN} to {BATCH_REPORTS_MAX}");
        return Err(Violation::at("reports", rule));
    }
    if seqs.count() != reports as u64 {
        return Err(Violation::at("seqs", format!("{} numbers for {reports} reports", seqs.count())));
    }
    match seqs.max().filter(|max| *max > head.get()) {
        Some(max) => Err(Violation::at("head", format!("{head} is below the number {max}"))),
        None => Ok(()),
    }
}

fn check_keys<'a>(path: &str, mut keys: impl Iterator<Item = &'a str>) -> Result<(), Violation> {
    // An escaped key could be one of them in disguise.
    let wrong = keys.find(|key| OF_THE_ENVELOPE.contains(key) || key.contains('\\'));
    wrong.map_or(Ok(()), |key| {
        Err(Violation::at(
            format!("{path}.{key}"),
            "only the envelope may have this field, and no key may have an escape",
        ))
    })
}

fn rule(violation: Violation) -> Refusal {
    Refusal::Rule { kind: ReportBatch::KIND, violation }
}

fn broken(path: impl fmt::Display, what: String) -> Refusal {
    rule(Violation::at(path, what))
}

#[cfg(test)]
mod tests;
