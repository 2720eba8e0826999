//! Shortens the error output of a program that failed, for the error of its component.

use std::process::ExitStatus;

/// Bytes of an error output that are reported.
const BYTES_MAX: usize = 2 * 1024;

/// The last lines of an error output, as one line. The last line is the error, the ones before lead to it.
pub(super) fn last_lines(stderr: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let (mut lines, mut bytes) = (Vec::new(), 0);
    for line in text.lines().rev().map(str::trim).filter(|line| !line.is_empty()) {
        bytes += line.len() + 2;
        if bytes > BYTES_MAX && !lines.is_empty() {
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    match lines.as_slice() {
        [] => format!("it ended with {status} and wrote nothing to stderr"),
        lines => lines.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_error_output_is_kept() {
        let long: String = (0..1000).map(|line| format!("line {line}\n")).collect();
        let kept = last_lines(long.as_bytes(), ExitStatus::default());
        assert!(kept.ends_with("line 999") && kept.len() <= BYTES_MAX, "{}", kept.len());
    }
}
