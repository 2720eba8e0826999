//! Colours: red needs a person, yellow is uncertain, cyan is in progress, green is good.

use anstyle::{AnsiColor, Style};
use muster_contract::view::{Freshness, Standing, Verdict};

/// No style at all.
pub const PLAIN: Style = Style::new();
/// The style of the most important text.
pub(crate) const BOLD: Style = Style::new().bold();
/// The style of the least important text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Needs a person.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Is unsure.
pub(crate) const UNSURE: Style = AnsiColor::Yellow.on_default();
/// Is on its way.
pub const MOVING: Style = AnsiColor::Cyan.on_default();
/// Is well.
pub(crate) const WELL: Style = AnsiColor::Green.on_default();

/// The style of a verdict.
pub const fn verdict(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Failing | Verdict::Overdue => BAD,
        Verdict::Incomplete | Verdict::ConvergedStale => UNSURE,
        Verdict::Progressing | Verdict::Waiting | Verdict::Removing => MOVING,
        Verdict::Converged => WELL,
        Verdict::Empty => DIM,
    }
}

/// The style of a standing.
pub const fn standing(standing: Standing) -> Style {
    match standing {
        Standing::Failed => BAD,
        Standing::Outdated => UNSURE,
        Standing::Waiting | Standing::Pending | Standing::Installing | Standing::Removing => MOVING,
        Standing::Installed => WELL,
        Standing::Removed => DIM,
    }
}

/// The style of a freshness.
pub const fn freshness(freshness: Freshness) -> Style {
    match freshness {
        Freshness::Fresh => PLAIN,
        Freshness::Stale | Freshness::Never => UNSURE,
    }
}

/// Text in a style.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
