//! Collects the problems of a commit or a request, up to a limit, so that a person can correct all of them at once. It
//! checks nothing itself.

use std::fmt;

use muster_contract::query::Problem;

/// Problems kept for one commit or request; the others are only counted.
pub(crate) const PROBLEMS_MAX: usize = 50;
/// Longest text of a problem; a longer one is cut, so that a list of problems always fits into an answer.
const TEXT_CHARS_MAX: usize = 400;

const _: () = assert!(PROBLEMS_MAX * 2 * 4 * TEXT_CHARS_MAX < muster_contract::limits::MESSAGE_BYTES_MAX);

/// Problems by file and line. As an error it is never empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<Problem>,
    dropped: usize,
}

impl Problems {
    /// Adds a problem; `line` is called only if the problem is kept.
    pub fn push(
        &mut self,
        file: &str,
        line: impl FnOnce() -> Option<u64>,
        field: impl fmt::Display,
        rule: impl fmt::Display,
    ) {
        if self.kept.len() < PROBLEMS_MAX {
            let (field, rule) = (cut(&field.to_string()), cut(&rule.to_string()));
            self.kept.push(Problem { file: cut(file), line: line(), field, rule });
        } else {
            self.dropped += 1;
        }
    }

    /// Adds other problems.
    pub fn extend(&mut self, others: Self) {
        self.dropped += others.dropped;
        for problem in others.kept {
            if self.kept.len() < PROBLEMS_MAX {
                self.kept.push(problem);
            } else {
                self.dropped += 1;
            }
        }
    }

    /// True if there are no problems.
    pub const fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// `value`, if there are no problems.
    ///
    /// # Errors
    /// The problems.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }

    /// The list for an answer. If some were dropped, a last entry says how many.
    pub fn into_list(mut self) -> Vec<Problem> {
        self.kept.sort_by(|one, other| (&one.file, one.line).cmp(&(&other.file, other.line)));
        if self.dropped > 0 {
            let rule = format!("{} more problems are not listed", self.dropped);
            self.kept.push(Problem { file: String::new(), line: None, field: String::new(), rule });
        }
        self.kept
    }
}

/// One line for each problem: `FILE:LINE: FIELD: RULE`, without empty parts.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.clone().into_list().iter().enumerate() {
            let Problem { file, line, field, rule } = problem;
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{file}")?;
            if let Some(line) = line {
                write!(f, ":{line}")?;
            }
            let colon = |text: &str| if text.is_empty() { "" } else { ": " };
            let before_field = if file.is_empty() { "" } else { colon(field) };
            let before_rule = if file.is_empty() && field.is_empty() { "" } else { ": " };
            write!(f, "{before_field}{field}{before_rule}{rule}")?;
        }
        Ok(())
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_beyond_the_limit_are_only_counted() {
        let mut problems = Problems::default();
        for at in 0..PROBLEMS_MAX + 7 {
            problems.push("f.yaml", || Some(at as u64 + 1), "id", "x".repeat(10_000));
        }
        let list = problems.into_list();
        assert_eq!(list.len(), PROBLEMS_MAX + 1);
        assert_eq!(list[PROBLEMS_MAX].rule, "7 more problems are not listed");
        assert_eq!(list[0].rule.chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn a_problem_is_shown_like_a_compiler_error() {
        let mut problems = Problems::default();
        problems.push("fleet/a.yaml", || Some(3), "spec.parameters", "is a list");
        problems.push("sites/B", || None, "", "is no site");
        problems.push("", || None, "", "something else");
        assert_eq!(
            problems.to_string(),
            "something else\nfleet/a.yaml:3: spec.parameters: is a list\nsites/B: is no site"
        );
    }
}
