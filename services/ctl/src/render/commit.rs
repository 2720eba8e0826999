//! A commit that the publisher refused or holds back, with each problem as `file:line: field: rule`.

use muster_contract::query::{HeldBack, Problem, RefusedCommit};

use super::format::{clean, names};

/// That a commit which somebody waits for is not on every device, and why.
pub(crate) fn held_back(held_back: &HeldBack) -> String {
    let head = format!(
        "commit {} is published, but not to {}, which keep what they have",
        clean(&held_back.revision),
        names(&held_back.devices)
    );
    format!("{head}:\n{}", problems_of(&held_back.problems))
}

/// Problems, one a line.
pub(super) fn problems_of(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("  {}\n", problem_line(problem))).collect()
}

/// A problem as compilers write it: file, line, field, rule.
pub(super) fn problem_line(problem: &Problem) -> String {
    let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
    let place = format!("{}{line}", clean(&problem.file));
    let parts = [place, clean(&problem.field), clean(&problem.rule)];
    let said: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    said.join(": ")
}

/// That a commit which somebody waits for is refused, and why.
pub(crate) fn refused(refused: &RefusedCommit) -> String {
    let head =
        format!("commit {} is refused as a whole, and the fleet keeps what it has", clean(&refused.revision));
    format!("{head}:\n{}", problems_of(&refused.problems))
}
