//! Renders rejected reports: the list, one report with its payload, and the answers to a requeue or drop.

use std::fmt::Write as _;

use muster_contract::quarantine::{
    HeldReport, QuarantineAnswer, QuarantineDecision, RefusedDevice, RejectedReport, RejectionCode,
};
use muster_contract::{RequestedBy, Timestamp};

use super::colour::{BOLD, styled};
use super::format::{age, clean, clean_lines, plural};
use super::frame::Frame;
use super::legend;
use super::table::{Cell, Table};
use crate::quarantine::{Judgements, List, Record, Settled};

/// Longest reason in the list; `show` has all of it.
const REASON_CHARS_MAX: usize = 100;
/// Bytes of a payload that is no text in one line of its dump.
const DUMP_LINE_BYTES: usize = 16;
/// Most lines of a dump.
const DUMP_LINES_MAX: usize = 64;

/// The list, newest last.
pub fn list(list: &List, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let List { held, bytes, before, reports, device, .. } = list;
    let rest = refused(list) + &settled(list.settled) + &verdicts(&list.verdicts);
    if reports.is_empty() {
        let of = device.as_ref().map(|key| format!(" of {key}")).unwrap_or_default();
        return format!("Nothing{of} is in quarantine.\n{rest}");
    }
    let columns = [">SEQ", "DEVICE", "RECEIVED", "?>EPOCH", "?>NUMBER", "?>BYTES", "CODE", "REASON"];
    let mut table = Table::new(&columns);
    for one in reports {
        table.row(row(one, frame.now));
    }
    let table = table.within(frame.width);
    let total = plural(*held, "report");
    let more = if *before == 0 { String::new() } else { format!("; the newest {} are shown", reports.len()) };
    format!(
        "{table}\n{total} in quarantine, {bytes} bytes{more}; `muster quarantine show SEQ` has the payload.\n\
         By code: {}.\n{rest}",
        reasons(list)
    )
}

fn reasons(list: &List) -> String {
    let each: Vec<_> = list.reasons.iter().map(|(code, count)| code_count(*code, *count)).collect();
    each.join(", ")
}

/// `4 unreadable (not a valid report)`
fn code_count(code: RejectionCode, count: u64) -> String {
    format!("{count} {} ({})", code.as_str(), legend::rejection(code))
}

fn refused(list: &List) -> String {
    if list.refused == 0 {
        return String::new();
    }
    let line = |device: &RefusedDevice| {
        let numbers = device.refused.iter().map(|refused| format!("{} ({})", refused.ranges, refused.reason));
        let numbers: Vec<_> = numbers.collect();
        format!("  {}  epoch {}: {}\n", device.device, device.epoch, clean(&numbers.join(", ")))
    };
    let lines: String = list.refused_devices.iter().map(line).collect();
    let total = plural(list.refused, "report");
    format!(
        "{total} had no room here, and devices keep them; `muster quarantine requeue` asks for them:\n{lines}"
    )
}

fn settled(settled: Settled) -> String {
    let Settled { accepted, dropped, expired } = settled;
    match accepted + dropped + expired {
        0 => String::new(),
        _ => format!("Earlier: {accepted} accepted, {dropped} dropped, {expired} expired.\n"),
    }
}

fn verdicts(records: &[Record]) -> String {
    let line = |record: &Record| {
        let verdict = &record.verdict;
        let sender = record.device.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        let number = match (verdict.epoch, verdict.seq) {
            (Some(epoch), Some(seq)) => format!(" report {seq} of epoch {epoch}"),
            _ => String::new(),
        };
        let why = verdict.reason.as_ref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
        format!(
            "  {}  {sender}{number} {}{}{why}\n",
            verdict.at,
            outcome(verdict.verdict),
            requester(verdict.requested_by.as_ref())
        )
    };
    records.iter().map(line).collect()
}

/// The answer for each report or device of a request, one a line.
pub fn judgements(judgements: &Judgements) -> String {
    if judgements.messages.is_empty() {
        return "No report in quarantine matches.\n".to_owned();
    }
    let line = |answer: &QuarantineAnswer| {
        let of = match (&answer.quarantine_seq, &answer.device) {
            (Some(seq), _) => format!("report {seq}"),
            (None, Some(device)) => device.to_string(),
            (None, None) => "?".to_owned(),
        };
        let what = match (answer.verdict, &answer.refused, answer.asked) {
            (Some(verdict), ..) => outcome(verdict).to_owned(),
            (None, Some(words), _) => format!("stays in quarantine: {}", clean(words)),
            (None, None, asked) => format!("asked for {}", plural(asked.unwrap_or(0), "report")),
        };
        format!("{of}: {what}\n")
    };
    judgements.messages.iter().map(line).collect()
}

const fn outcome(verdict: QuarantineDecision) -> &'static str {
    match verdict {
        QuarantineDecision::LetIn => "accepted",
        QuarantineDecision::AlreadyIn => "already accepted: its number came again, or was accepted before",
        QuarantineDecision::Dropped => "dropped; it stays counted as quarantined",
        QuarantineDecision::Expired => "expired; its content stays unknown",
    }
}

fn row(held: &HeldReport, now: Timestamp) -> [Cell; 8] {
    let report = &held.report;
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |n| Cell::from(n.to_string()));
    [
        held.quarantine_seq.to_string().into(),
        sender(held).into(),
        age(now, report.received_at).into(),
        number(report.epoch.map(muster_contract::Epoch::get)),
        number(report.seq.map(muster_contract::Seq::get)),
        Cell::count(held.bytes),
        report.code.as_str().into(),
        shortened(&clean(&report.reason)).into(),
    ]
}

/// `; asked by anna`
fn requester(requester: Option<&RequestedBy>) -> String {
    let by = |requester: &RequestedBy| format!("; asked by {}", clean(requester.label()));
    requester.map(by).unwrap_or_default()
}

fn sender(held: &HeldReport) -> String {
    held.device.as_ref().map_or_else(|| clean(&held.report.subject), ToString::to_string)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// One report.
pub fn one(held: &HeldReport, now: Timestamp) -> String {
    let report = &held.report;
    let mut text = format!("{}\n\n", styled(BOLD, &format!("report {}", held.quarantine_seq)));
    let number = match (report.epoch, report.seq) {
        (Some(epoch), Some(seq)) => format!("report {seq} of epoch {epoch}; counted as quarantined"),
        _ => "none that could be read".to_owned(),
    };
    for (name, value) in [
        (
            "sender",
            held.device.as_ref().map_or_else(|| "its name is no identifier".to_owned(), ToString::to_string),
        ),
        ("subject", clean(&report.subject)),
        ("received", format!("{}, {}", report.received_at, age(now, report.received_at))),
        ("number", number),
        ("code", report.code.as_str().to_owned()),
        ("reason", clean(&report.reason)),
        ("bytes", held.bytes.to_string()),
    ] {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    text + "\n" + &payload(report)
}

fn payload(report: &RejectedReport) -> String {
    let Some(bytes) = report.payload() else {
        return "The payload kept is not base64.\n".to_owned();
    };
    match std::str::from_utf8(&bytes) {
        Ok(words) => clean_lines(words).fold(String::new(), |text, line| text + &line + "\n"),
        Err(_) => dump(&bytes),
    }
}

/// Bytes that are no text, in hex.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, line) in bytes.chunks(DUMP_LINE_BYTES).take(DUMP_LINES_MAX).enumerate() {
        let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "{:08x}  {}", at * DUMP_LINE_BYTES, hex.join(" "));
    }
    if bytes.len() > DUMP_LINE_BYTES * DUMP_LINES_MAX {
        let _ = writeln!(text, "… and {} more bytes", bytes.len() - DUMP_LINE_BYTES * DUMP_LINES_MAX);
    }
    text
}
