//! Messages in quarantine: the list, and one with its payload.

use std::fmt::Write as _;

use muster_contract::fact::QuarantineFact;
use muster_contract::quarantine::{QuarantineAnswer, Verdict};
use muster_contract::{RequestedBy, Timestamp};

use super::frame::Frame;
use super::paint::{BOLD, DIM, styled};
use super::table::{Cell, Table};
use super::words::{age, clean, clean_lines, plural};
use crate::quarantine::{Held, Judgements, List};

/// Longest reason in the list; `show` has all of it.
const REASON_CHARS_MAX: usize = 100;
/// Bytes of a payload that is no text in one line of its dump.
const DUMP_LINE_BYTES: usize = 16;
/// Most lines of a dump.
const DUMP_LINES_MAX: usize = 64;

/// The list, newest last.
pub fn list(list: &List, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let List { before, open, settled, messages, device } = list;
    let settled = match settled {
        0 => String::new(),
        count => format!("{} let in or dropped; `--all` shows them as well.\n", plural(*count, "message")),
    };
    if messages.is_empty() {
        let of = device.as_ref().map(|key| format!(" of {key}")).unwrap_or_default();
        return format!("Nothing{of} is in quarantine.\n{settled}");
    }
    let mut table = Table::new(&[">LEDGER", "DEVICE", "RECEIVED", "?>EPOCH", "?>SEQ", "?>BYTES", "REASON"]);
    for one in messages {
        table.row(row(one, frame.now));
    }
    let table = table.within(frame.width);
    let total = plural(*open, "message");
    let more =
        if *before == 0 { String::new() } else { format!("; the newest {} are shown", messages.len()) };
    format!(
        "{table}\n{total} in quarantine{more}; `muster quarantine show LEDGER` has the payload.\n{settled}"
    )
}

/// What became of each message asked for.
pub fn judgements(judgements: &Judgements) -> String {
    let line = |answer: &QuarantineAnswer| match (answer.verdict, &answer.refused) {
        (Some(verdict), _) => format!("ledger {}: {}\n", answer.ledger_seq, outcome(verdict)),
        (None, words) => {
            let words = words.as_deref().unwrap_or("no reason is given");
            format!("ledger {}: stays in quarantine: {}\n", answer.ledger_seq, clean(words))
        }
    };
    judgements.messages.iter().map(line).collect()
}

const fn outcome(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::LetIn => "let in",
        Verdict::AlreadyIn => "already in: its number came again, or was let in before",
        Verdict::Dropped => "dropped; it stays counted as quarantined",
    }
}

fn row(held: &Held, now: Timestamp) -> [Cell; 7] {
    let fact = &held.fact;
    let number = |number: Option<u64>| number.map_or_else(|| "-".into(), |n| Cell::from(n.to_string()));
    [
        held.ledger_seq.to_string().into(),
        sender(held).into(),
        age(now, fact.received_at).into(),
        number(fact.epoch.map(muster_contract::Epoch::get)),
        number(fact.seq.map(muster_contract::Seq::get)),
        Cell::count(fact.bytes),
        shortened(&reason(held)).into(),
    ]
}

fn reason(held: &Held) -> String {
    match held.verdict {
        Some(verdict) => format!("({}{}) {}", outcome(verdict), requester(held), clean(&held.fact.reason)),
        None => clean(&held.fact.reason),
    }
}

/// `; asked by anna`
fn requester(held: &Held) -> String {
    let by = |requester: &RequestedBy| format!("; asked by {}", clean(requester.label()));
    held.requested_by.as_ref().map(by).unwrap_or_default()
}

fn sender(held: &Held) -> String {
    held.device.as_ref().map_or_else(|| clean(&held.fact.subject), ToString::to_string)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// One message.
pub fn one(held: &Held, now: Timestamp) -> String {
    let fact = &held.fact;
    let mut text = format!("{}\n\n", styled(BOLD, &format!("ledger {}", held.ledger_seq)));
    let number = match (fact.epoch, fact.seq) {
        (Some(epoch), Some(seq)) => format!("report {seq} of epoch {epoch}; counted as quarantined"),
        _ => "none that could be read".to_owned(),
    };
    for (name, value) in [
        (
            "sender",
            held.device.as_ref().map_or_else(|| "its name is no identifier".to_owned(), ToString::to_string),
        ),
        ("subject", clean(&fact.subject)),
        ("received", format!("{}, {}", fact.received_at, age(now, fact.received_at))),
        ("number", number),
        ("reason", clean(&fact.reason)),
        ("count", count(fact)),
        ("bytes", fact.bytes.to_string()),
    ] {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    if let Some(verdict) = held.verdict {
        let _ = writeln!(text, "{:<10}{}{}", "verdict", outcome(verdict), requester(held));
    }
    if let Some(requester) = &held.requested_by {
        let _ = writeln!(text, "{:<10}{}", "by key", clean(&requester.key));
    }
    text + "\n" + &payload(fact)
}

fn count(fact: &QuarantineFact) -> String {
    let QuarantineFact { count_for_device, others, other_seqs, .. } = fact;
    match others {
        0 => format!("number {count_for_device} of this sender"),
        _ => format!(
            "number {count_for_device} of this sender; it stands for {others} others that came too fast, with the numbers {other_seqs}"
        ),
    }
}

fn payload(fact: &QuarantineFact) -> String {
    let Some(bytes) = fact.payload() else {
        return "The payload kept is not base64.\n".to_owned();
    };
    let mut text = match std::str::from_utf8(&bytes) {
        Ok(words) => clean_lines(words).fold(String::new(), |text, line| text + &line + "\n"),
        Err(_) => dump(&bytes),
    };
    if (bytes.len() as u64) < fact.bytes {
        let _ =
            writeln!(text, "{}", styled(DIM, &format!("({} of {} bytes are kept)", bytes.len(), fact.bytes)));
    }
    text
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
