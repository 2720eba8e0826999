//! The identity of a process: its number and start time, read from Linux's `/proc`.

use std::fs;
use std::time::Duration;

/// Clock ticks a second in `/proc`: constant in Linux's interface on every architecture.
const TICKS_PER_SECOND: u64 = 100;
/// Index of the start time in `/proc/<pid>/stat`, counted from the state.
const STARTED_FIELD: usize = 19;

/// One process, distinct from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessId {
    /// When it started, in ticks since boot.
    pub(super) started: u64,
    /// Its number.
    pub(super) pid: i32,
}

/// The fields of `/proc/<pid>/stat`.
#[derive(Debug)]
pub(super) struct Stat {
    pub(super) is_dead: bool,
    pub(super) group: i32,
    pub(super) session: i32,
    pub(super) started: u64,
}

impl Stat {
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The program's name, in parentheses, may contain spaces and parentheses.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let &[state, _parent, group, session, ..] = fields.as_slice() else { return None };
        Some(Self {
            is_dead: matches!(state, "Z" | "X" | "x"),
            group: group.parse().ok()?,
            session: session.parse().ok()?,
            started: fields.get(STARTED_FIELD)?.parse().ok()?,
        })
    }
}

impl ProcessId {
    /// The process that has this number now. A child that has ended keeps its number until it is reaped.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Stat::of(pid).map(|stat| Self { started: stat.started, pid })
    }

    /// Whether it is still alive.
    pub(super) fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.started == self.started && !stat.is_dead)
    }

    /// The time since its start; zero if the machine's uptime cannot be read.
    pub(super) fn age(&self) -> Duration {
        let uptime = fs::read_to_string("/proc/uptime").ok();
        let seconds = uptime.and_then(|text| text.split_ascii_whitespace().next()?.parse::<f64>().ok());
        let up = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
        up.saturating_sub(Duration::from_millis(self.started * 1000 / TICKS_PER_SECOND))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_program_is_called() {
        for program in ["cat", "a b", "x) Z 1 2 3", "(("] {
            let line =
                format!("42 ({program}) S 1 40 39 0 -1 41 10 0 0 0 0 0 0 0 20 0 1 0 215715 3133440 414");
            let stat = Stat::parse(&line).unwrap();
            assert_eq!((stat.group, stat.session, stat.started), (40, 39, 215_715), "{program}");
            assert!(!stat.is_dead);
            assert!(Stat::parse(&line.replace(") S 1 40", ") Z 1 40")).unwrap().is_dead);
        }
        assert!(Stat::parse("42 (cat) S 1").is_none(), "a cut line");
    }

    #[test]
    fn this_very_process_lives_and_has_an_age() {
        let own = ProcessId::of(rustix::process::getpid().as_raw_nonzero().get()).unwrap();
        assert!(own.is_alive());
        assert!(own.age() < Duration::from_secs(24 * 60 * 60), "{:?}", own.age());
        assert!(
            !ProcessId { started: own.started + 1, ..own }.is_alive(),
            "another process of the same number"
        );
    }
}
