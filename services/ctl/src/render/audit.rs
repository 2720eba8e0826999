//! The audit: the accounting of each device, the views, and the answer.

use std::fmt::Write as _;

use muster_contract::limits::LEDGER_WARN_PERCENT;

use super::colour::{BAD, DIM, PLAIN, UNSURE, WELL, styled};
use super::format::{as_of, plural};
use super::frame::Frame;
use super::legend;
use super::table::{Cell, Table};
use crate::audit::{Audit, DeviceVerdict, ReportTotals, ViewVerdict};

/// The whole audit. Views are listed only where something is wrong with them.
pub fn audit(audit: &Audit, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let mut table = Table::new(&[
        "DEVICE",
        "?>EPOCH",
        ">HEAD",
        "?>RECEIVED",
        "?>COALESCED",
        "?>QUARANTINED",
        ">MISSING",
        "VERDICT",
    ]);
    for line in &audit.devices {
        let epoch = line.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string());
        table.row(row(line.key.to_string(), epoch, line.sums, verdict(line)));
    }
    let retired = audit.devices.iter().any(|line| line.verdict == DeviceVerdict::Retired);
    let total = if retired { "total without retired" } else { "total" };
    table.row(row(total.to_owned(), String::new(), audit.totals, Cell::from("")));
    let totals = audit.totals;
    let legend = legend::accounts(totals.coalesced > 0, totals.quarantined > 0, totals.missing > 0);
    let mut text = format!("{}\n{legend}{}", table.within(frame.width), views(audit));
    let _ = writeln!(text, "{}\n{}.", answer(audit), as_of(audit.as_of, frame.now));
    if let Some(ledger) = audit.ledger.filter(|ledger| ledger.percent >= LEDGER_WARN_PERCENT) {
        let words = format!(
            "LEDGER is {} % full: at its bound the oldest facts go, the newest of each standing stays",
            ledger.percent
        );
        let _ = writeln!(text, "{}", styled(UNSURE, &words));
    }
    text
}

fn row(name: String, epoch: String, sums: ReportTotals, verdict: Cell) -> [Cell; 8] {
    [
        name.into(),
        epoch.into(),
        Cell::count(sums.head),
        Cell::count(sums.received),
        Cell::count(sums.coalesced),
        Cell::marked(sums.quarantined, UNSURE),
        Cell::marked(sums.missing, UNSURE),
        verdict,
    ]
}

fn verdict(line: &crate::audit::DeviceAudit) -> Cell {
    match line.verdict {
        DeviceVerdict::Explained => Cell::styled("explained", PLAIN),
        DeviceVerdict::Retired => Cell::styled("retired", DIM),
        DeviceVerdict::NeverHeard => Cell::styled("never heard", UNSURE),
        DeviceVerdict::NotInYet => Cell::styled(format!("missing: {}", line.missing_seqs), UNSURE),
        DeviceVerdict::Unread => Cell::styled("in quarantine, unread", UNSURE),
        DeviceVerdict::DoesNotAddUp => Cell::styled("does not add up", BAD),
    }
}

fn views(audit: &Audit) -> String {
    let mut text = String::new();
    for view in audit.views.iter().filter(|view| view.verdict != ViewVerdict::Right) {
        let what = match view.verdict {
            ViewVerdict::Right => continue,
            ViewVerdict::Absent => "is not in the bucket",
            ViewVerdict::NoView => "holds something that is no view",
            ViewVerdict::Expired => "was not renewed in time: does muster-rollup run?",
            ViewVerdict::WrongDigest => "has another digest than its content",
            ViewVerdict::WrongCounts => "has counts that do not add up to its targets",
        };
        let _ = writeln!(text, "{}", styled(BAD, &format!("view {} {what}", view.key)));
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// The answer, with a line for each thing that is to blame or of which nothing can be said.
fn answer(audit: &Audit) -> String {
    if audit.devices.is_empty() {
        return styled(BAD, "No device is known: there is nothing to account for");
    }
    let of = |count: usize, all: usize, thing| format!("{count} of {}", plural(all as u64, thing));
    let devices = |verdict, what: &str| {
        let lines = audit.devices.iter().filter(|line| line.verdict == verdict);
        let names: Vec<_> = lines.map(|line| line.key.to_string()).collect();
        let share = of(names.len(), audit.devices.len(), "device");
        (!names.is_empty()).then(|| format!("{what}: {share} ({})", named(&names)))
    };
    let wrong = audit.views.iter().filter(|view| view.verdict != ViewVerdict::Right).count();
    let blamed = [
        devices(DeviceVerdict::DoesNotAddUp, "numbers that do not add up"),
        devices(DeviceVerdict::NotInYet, "missing reports"),
        devices(DeviceVerdict::Unread, "messages in quarantine that may be any report"),
        audit.is_ledger_replaced().then(|| {
            "LEDGER was replaced within 24 h: `muster restore` says what can be rebuilt from where".to_owned()
        }),
        (!audit.hub.is_whole()).then(|| super::hearing::words(&audit.hub).join("; ")),
        audit.rollup.is_some().then(|| "the rollup is behind LEDGER, so the accounts may be old".to_owned()),
        (wrong > 0).then(|| format!("wrong views: {}", of(wrong, audit.views.len(), "view"))),
    ];
    let unheard = devices(DeviceVerdict::NeverHeard, "never heard, so nothing is known of its reports");
    let verdict = if audit.explained {
        styled(WELL, "Explained: every report is accounted for and every view is right")
    } else {
        styled(BAD, "Not explained")
    };
    let lines = blamed.into_iter().chain([unheard]).flatten();
    lines.fold(verdict, |text, line| format!("{text}\n  {line}"))
}

/// Most devices that a sentence names.
const NAMED_MAX: usize = 5;

fn named(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    if names.len() > NAMED_MAX { format!("{shown} and {} more", names.len() - NAMED_MAX) } else { shown }
}
