//! Renders the waves of rollouts as bars, in which confirmed, possible, failed and silent devices are told apart also without
//! colours.

use std::fmt::Write as _;

use anstyle::Style;
use muster_domain::rollout::ApprovalCount;

use crate::config::RolloutWord;
use crate::render::colour::{BAD, DIM, MOVING, UNSURE, WELL, styled};
use crate::render::cut::short;
use crate::render::format::clean;
use crate::render::frame::Frame;
use crate::rollout::{RolloutSnapshot, RolloutsFrame, WaveBar};

/// Cells of a bar.
const CELLS: u64 = 30;
/// The kinds of cells: character, style, and words for the legend.
const KINDS: [(char, Style, &str); 5] = [
    ('#', WELL, "confirmed"),
    ('~', MOVING, "possible"),
    ('x', BAD, "failed"),
    ('?', UNSURE, "not heard"),
    ('.', DIM, "not released"),
];

/// The waves of each rollout as bars, with what it waits for.
pub fn bars(frame: &RolloutsFrame, _: Frame) -> String {
    let mut text = String::new();
    if frame.rollouts.is_empty() {
        let _ =
            writeln!(text, "No rollout governs {} in commit {}.", frame.deployment, clean(&frame.revision));
    }
    for rollout in &frame.rollouts {
        text += &one(frame, rollout);
    }
    let legend: Vec<_> = KINDS
        .iter()
        .map(|(cell, style, words)| format!("{} {words}", styled(*style, &cell.to_string())))
        .collect();
    let _ = writeln!(text, "{}; as of ledger {}", legend.join("  "), frame.ledger_seq);
    text
}

fn one(frame: &RolloutsFrame, rollout: &RolloutSnapshot) -> String {
    let RolloutSnapshot { digest, rollout: file, state, why, waves } = rollout;
    let head = format!(
        "{} {} by {} in commit {}",
        frame.deployment,
        short(digest),
        clean(file),
        clean(&frame.revision)
    );
    let mut text = format!("{head}: {}\n", styled(style(*state), state.as_str()));
    let width = waves.iter().map(|wave| wave.name.chars().count()).max().unwrap_or_default();
    for wave in waves {
        let _ = writeln!(text, "  {:width$} [{}] {}", wave.name, bar(wave), counts(wave));
    }
    let _ = writeln!(text, "  {why}\n");
    text
}

/// The bar of a wave. Each kind with a target has a cell, so a single failure is seen among thousands.
fn bar(wave: &WaveBar) -> String {
    let cells = cells(&numbers(wave), CELLS);
    let parts = KINDS.iter().zip(cells).filter(|(_, cells)| *cells > 0);
    parts.map(|((cell, style, _), cells)| styled(*style, &cell.to_string().repeat(cells as usize))).collect()
}

const fn numbers(wave: &WaveBar) -> [u64; 5] {
    [wave.confirmed, wave.possible, wave.failed, wave.dark, wave.not_released]
}

/// The cells of each number: one at least for each that is not zero, and `all` in sum.
fn cells(numbers: &[u64; 5], all: u64) -> [u64; 5] {
    let total = numbers.iter().map(|number| u128::from(*number)).sum::<u128>();
    if total == 0 {
        return [0; 5];
    }
    let share = |number: u64| match number {
        0 => 0,
        _ => (u128::from(number) * u128::from(all) / total).max(1) as u64,
    };
    let mut cells = numbers.map(share);
    // Rounding leaves some cells over, or takes some too many: the largest number bears it.
    let largest = (0..numbers.len()).max_by_key(|at| numbers[*at]).unwrap_or_default();
    let others = cells.iter().sum::<u64>() - cells[largest];
    cells[largest] = all.saturating_sub(others);
    cells
}

fn counts(wave: &WaveBar) -> String {
    let mut parts = vec![format!("{} of {} confirmed", wave.confirmed, wave.targets)];
    for (number, words) in numbers(wave).into_iter().zip(KINDS.map(|(_, _, words)| words)).skip(1) {
        if number > 0 {
            parts.push(format!("{number} {words}"));
        }
    }
    if wave.left_out > 0 {
        parts.push(format!("{} left out", wave.left_out));
    }
    if let Some(ApprovalCount { given, needed, .. }) = wave.approvals {
        parts.push(format!("{given} of {needed} approvals"));
    }
    format!("{}; gate {}{}", parts.join(", "), wave.gate, if wave.forced { ", forced" } else { "" })
}

/// The changes since the last frame, one line for each wave and each sentence.
pub fn changed(before: Option<&RolloutsFrame>, frame: &RolloutsFrame) -> String {
    let mut text = String::new();
    for rollout in &frame.rollouts {
        let RolloutSnapshot { digest, rollout: file, state, why, waves } = rollout;
        let same = |other: &&RolloutSnapshot| other.digest == *digest && other.rollout == *file;
        let before = before.and_then(|before| before.rollouts.iter().find(same));
        let head = format!("{} {}", frame.deployment, short(digest));
        for wave in waves {
            if before.is_none_or(|before| !before.waves.contains(wave)) {
                let _ = writeln!(text, "{head} {} [{}] {}", wave.name, bar(wave), counts(wave));
            }
        }
        if before.is_none_or(|before| (before.state, &before.why) != (*state, why)) {
            let _ = writeln!(text, "{head} {}: {why}", styled(style(*state), state.as_str()));
        }
    }
    text
}

const fn style(state: RolloutWord) -> Style {
    match state {
        RolloutWord::Running => MOVING,
        RolloutWord::Approval | RolloutWord::Paused => UNSURE,
        RolloutWord::Failing
        | RolloutWord::Cancelled
        | RolloutWord::Failed
        | RolloutWord::Aborted
        | RolloutWord::RolledBack => BAD,
        RolloutWord::Succeeded => WELL,
        RolloutWord::SucceededWithDebt => UNSURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_device_has_a_cell_and_the_bar_keeps_its_length() {
        for (numbers, expected) in [
            ([10, 0, 0, 0, 0], [30, 0, 0, 0, 0]),
            ([5, 3, 0, 2, 0], [15, 9, 0, 6, 0]),
            ([99_997, 1, 1, 1, 0], [27, 1, 1, 1, 0]),
            ([0, 0, 0, 0, 7], [0, 0, 0, 0, 30]),
            ([1, 1, 1, 1, 1], [6, 6, 6, 6, 6]),
            ([0; 5], [0; 5]),
            ([u64::MAX, u64::MAX, 0, 0, 1], [15, 14, 0, 0, 1]),
        ] {
            let found = cells(&numbers, CELLS);
            assert_eq!(found.iter().sum::<u64>(), expected.iter().sum::<u64>(), "{numbers:?}: {found:?}");
            assert!(
                numbers.iter().zip(found).all(|(number, cells)| (*number > 0) == (cells > 0)),
                "{found:?}"
            );
        }
        assert_eq!(cells(&[99_997, 1, 1, 1, 0], CELLS), [27, 1, 1, 1, 0]);
    }
}
