//! Shared parts of the benches: settings from the environment, progress beside the result, medians with their spread. It
//! measures nothing itself.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use rustix::process::Pid;

/// True where the program shall measure: `cargo test --benches` runs benches too, and there they have nothing to say.
pub fn is_wanted() -> bool {
    !std::env::args().any(|argument| argument == "--test")
}

/// Has the disk write what was left to it until now: whatever comes next would wait for that.
pub fn sync_disk() {
    rustix::fs::sync();
}

/// A number that may be set by an environment variable.
///
/// # Panics
/// Its value is no number.
pub fn setting(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Clock ticks a second, in which Linux tells processor time to every program.
const TICKS_PER_SECOND: f64 = 100.0;
/// The fields of `/proc/PID/stat`, counted after the program's name, with its time in user and in kernel mode.
const TIME_FIELDS: [usize; 2] = [11, 12];

/// Seconds of processor time that a process has used.
///
/// # Panics
/// There is none.
pub fn processor_seconds(pid: Pid) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u64 = TIME_FIELDS.iter().map(|field| fields[*field].parse::<u64>().unwrap()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

/// Progress, to stderr.
pub fn say(what: &str) {
    writeln!(std::io::stderr(), "{what}").unwrap_or_default();
}

/// The kind of hub that a bench measured: rights and mirrors have their price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HubKind {
    /// No server takes part.
    None,
    /// The server lets everyone do everything.
    Open,
    /// Accounts and TLS; readers share the account of the services.
    Secured,
    /// Accounts and TLS; readers have mirrors in an account of their own.
    SecuredWithMirrors,
}

impl fmt::Display for HubKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Open => "open",
            Self::Secured => "secured, readers in the hub's account",
            Self::SecuredWithMirrors => "secured with mirrors",
        })
    }
}

/// The result, to stdout, after the kind of hub that it was measured on; whether it could be written.
pub fn tell(hub: HubKind, result: &str) -> ExitCode {
    print(&format!("hub: {hub}\n{result}"))
}

/// A text, to stdout, and whether it could be written.
pub fn print(text: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The middle one of the figures.
///
/// # Panics
/// There are none.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The ratio of one side to the other, as the median of the rounds: a machine that others use, too, is fast at one time and
/// slow at another, and both sides of a round see the same of that.
///
/// # Panics
/// There are none, or not as many of the one as of the other.
pub fn ratio(of: &[f64], to: &[f64]) -> f64 {
    assert_eq!(of.len(), to.len(), "both sides of each round");
    median(&of.iter().zip(to).map(|(of, to)| of / to).collect::<Vec<_>>())
}

/// (max - min) / median of the figures, in percent.
pub fn spread(figures: &[f64]) -> f64 {
    let (min, max) =
        figures.iter().fold((f64::MAX, f64::MIN), |(min, max), figure| (min.min(*figure), max.max(*figure)));
    (max - min) / median(figures) * 100.0
}

/// Thousands a second, with their spread.
pub fn thousands(rates: &[f64]) -> String {
    format!("{:.1} k (± {:.0} %)", median(rates) / 1000.0, spread(rates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_told_with_its_spread() {
        assert_eq!(thousands(&[30_000.0, 20_000.0, 21_000.0]), "21.0 k (± 48 %)");
    }

    #[test]
    fn a_round_on_a_slow_machine_is_compared_with_itself() {
        assert!((ratio(&[9.0, 4.0, 8.0], &[10.0, 5.0, 10.0]) - 0.8).abs() < f64::EPSILON);
    }
}
