//! The identity of a process: its number and start time, read from Linux's `/proc`.

use std::fs;
use std::time::Duration;

/// Clock ticks a second in `/proc`: constant in Linux's interface on every architecture.
const TICKS_PER_SECOND: u64 = 100;
/// Index of the start time in `/proc/<pid>/stat`, counted from the state.
const STARTED_FIELD: usize = 19;
/// Index of the address where the code begins.
const CODE_FIELD: usize = 23;
/// Index of the addresses where the environment begins and ends.
const ENVIRONMENT_FIELD: usize = 47;
/// Index of the flags of the kernel.
const FLAGS_FIELD: usize = 6;
/// Flags of a process that is ending, and of a thread of the kernel: neither has memory.
const WITHOUT_MEMORY: u64 = 0x4 | 0x20_0000;
/// Index of the number of threads.
const THREADS_FIELD: usize = 17;

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
    /// Whether an empty `/proc/<pid>/environ` means that it has no environment. During `execve`, that file is empty, too; Linux sets
    /// the addresses of the new environment later, and the address of the code last.
    pub(super) has_no_environment: bool,
}

impl Stat {
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The program's name, in parentheses, may contain spaces and parentheses.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let &[state, _parent, group, session, ..] = fields.as_slice() else { return None };
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        let is_without_memory = number(FLAGS_FIELD).is_some_and(|flags| flags & WITHOUT_MEMORY != 0);
        let is_settled = number(CODE_FIELD) != Some(0);
        // The first thread is a zombie while others live if it has ended, or while another thread calls `execve`.
        let is_zombie = state == "Z" && number(THREADS_FIELD).is_none_or(|threads| threads <= 1);
        Some(Self {
            is_dead: is_zombie || matches!(state, "X" | "x"),
            group: group.parse().ok()?,
            session: session.parse().ok()?,
            started: number(STARTED_FIELD)?,
            has_no_environment: is_without_memory
                || is_settled && number(ENVIRONMENT_FIELD + 1) <= number(ENVIRONMENT_FIELD),
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
    fn a_process_that_becomes_another_program_may_have_an_environment() {
        let line = |flags: &str, code: &str, ends: &str| {
            let unread = |from: usize, to: usize| ["0"].repeat(to - from - 1).join(" ");
            let (before, after) = (unread(STARTED_FIELD, CODE_FIELD), unread(CODE_FIELD, ENVIRONMENT_FIELD));
            format!(
                "42 (sh) S 1 40 39 0 -1 {flags} 10 0 0 0 0 0 0 0 20 0 1 0 215715 {before} {code} {after} {ends} 0"
            )
        };
        for (flags, code, ends, has_none) in [
            ("4194304", "4000", "4096 4200", false),
            ("4194304", "0", "0 0", false),
            ("4194304", "0", "4096 4096", false),
            ("4194304", "4000", "4096 4096", true),
            ("4194308", "0", "0 0", true),
            ("69238880", "0", "0 0", true),
        ] {
            let stat = Stat::parse(&line(flags, code, ends)).unwrap();
            assert_eq!(stat.has_no_environment, has_none, "{flags} {code} {ends}");
        }
    }

    #[test]
    fn a_leading_thread_that_has_ended_before_others_leaves_a_living_process() {
        for (threads, is_dead) in [(1, true), (2, false)] {
            let line = format!("42 (go) Z 1 40 39 0 -1 41 10 0 0 0 0 0 0 0 20 0 {threads} 0 215715 0 0");
            assert_eq!(Stat::parse(&line).unwrap().is_dead, is_dead, "{threads} threads");
        }
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
