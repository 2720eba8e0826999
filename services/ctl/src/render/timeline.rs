//! Renders a timeline: a line for each point, the oldest first.

use muster_contract::Timestamp;
use muster_contract::timeline::{TimelineAnswer, TimelinePoint};
use muster_contract::view::Verdict;

use super::colour::{self, BOLD, DIM, UNSURE, styled};
use super::deployment::bounds_of;
use super::format::{as_of, plural};
use super::frame::Frame;
use super::legend;
use super::notice::seconds;
use super::table::{Cell, Table};

/// The points of an answer from a time on, and since when anything is known if that is later.
pub fn list(answer: &TimelineAnswer, since: Timestamp, frame: impl Into<Frame>) -> String {
    let frame = frame.into();
    let position = as_of(answer.as_of, frame.now);
    let name = answer.deployment.as_ref().map_or("fleet", |id| id.as_str());
    let first = match answer.points.first() {
        // LEDGER has no fact, so the only point has no time.
        Some(first) if answer.as_of.ledger_seq > 0 => first.at,
        _ => return format!("Nothing is known of {name}; {position}.\n"),
    };
    let verdicts = if answer.deployment.is_some() { "VERDICT" } else { "DEPLOYMENTS" };
    let mut table = Table::new(&["AT", verdicts, ">CONVERGED", "?>FRESH", "?>STALE", "?>NEVER", "?>MISSING"]);
    answer.points.iter().for_each(|point| table.row(row(point, answer.deployment.is_none())));
    let unknown = if first > since {
        styled(UNSURE, &format!("Nothing is known of the time before {}.", seconds(first))) + "\n"
    } else {
        String::new()
    };
    format!(
        "{}\n\n{}\n{}{unknown}{}, of older time those that bound the others; {position}.\n",
        styled(BOLD, name),
        table.within(frame.width),
        legend::timeline(&answer.points),
        plural(answer.points.len() as u64, "point")
    )
}

fn row(point: &TimelinePoint, is_counted: bool) -> [Cell; 7] {
    let devices = point.devices;
    [
        seconds(point.at).into(),
        verdicts(point, is_counted),
        bounds_of(point.converged, point.targets).into(),
        Cell::count(devices.fresh),
        Cell::marked(devices.stale, UNSURE),
        Cell::marked(devices.never, UNSURE),
        Cell::marked(point.missing_reports, UNSURE),
    ]
}

/// `1 failing, 4 converged`, the worst first and in its colour; without counts the verdict on one deployment.
fn verdicts(point: &TimelinePoint, is_counted: bool) -> Cell {
    let count = |verdict: &Verdict| point.deployments.get(verdict).copied().unwrap_or_default();
    let there: Vec<Verdict> = Verdict::WORST_FIRST.into_iter().filter(|verdict| count(verdict) > 0).collect();
    let words = |verdict: &Verdict| {
        if is_counted {
            format!("{} {}", count(verdict), verdict.as_str())
        } else {
            verdict.as_str().to_owned()
        }
    };
    match there.first() {
        Some(worst) => {
            Cell::styled(there.iter().map(words).collect::<Vec<_>>().join(", "), colour::verdict(*worst))
        }
        None => Cell::styled("-", DIM),
    }
}
