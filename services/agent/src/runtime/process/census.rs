//! Which processes live, and of which units they are, read from Linux's `/proc`. Looks only; signals are `clear`'s.
//!
//! A process belongs to a unit when it carries its [`Mark`] (and runs under the agent's own user, lest another user forge
//! one), or when the unit's [note](super::note) or the agent itself knows exactly this process: some programs (nginx,
//! PostgreSQL) write their title over the environment that `/proc` shows. A process that is neither, but in a process group
//! with one that is, belongs to the unit too.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use super::home::Home;
use super::mark::Mark;
use super::note::Notes;
use crate::runtime::UnitName;

/// Clock ticks a second in `/proc`: part of Linux's interface to programs on every architecture Rust builds for.
const TICKS_PER_SECOND: u64 = 100;
/// Place of the start time in `/proc/<pid>/stat`, counted from the state.
const STARTED_FIELD: usize = 19;

/// Why the processes of this machine cannot be seen.
#[derive(Debug, thiserror::Error)]
pub(super) enum CensusError {
    /// There is no `/proc` to read.
    #[error(
        "cannot read /proc, where the process runtime finds its processes: it needs Linux with /proc mounted"
    )]
    NoProc(#[source] io::Error),
    /// The thread that reads died.
    #[error("the reading of /proc was cut short")]
    CutShort(#[source] tokio::task::JoinError),
}

/// One process, told from a later one under the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    /// When it started, in ticks since boot.
    pub(super) started: u64,
    /// Its number.
    pub(super) pid: i32,
}

/// A process that lives (zombies have only to be reaped and are left out).
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Which one.
    pub(super) identity: Identity,
    /// Its process group.
    pub(super) group: i32,
    /// Its session.
    pub(super) session: i32,
    /// The unit it is part of, as far as it says so itself or a note does.
    pub(super) mark: Option<Mark>,
}

/// All processes at one moment, and the jobs that need none any more.
#[derive(Debug, Default)]
pub(super) struct Census {
    processes: Vec<Seen>,
    done: Vec<Mark>,
}

impl Census {
    /// Looks at the machine, on a thread that may block. `known` are main processes of which this agent knows without
    /// a note.
    pub(super) async fn take(home: &Arc<Home>, known: Vec<(Identity, Mark)>) -> Result<Self, CensusError> {
        let home = Arc::clone(home);
        tokio::task::spawn_blocking(move || Self::look(&home, known))
            .await
            .map_err(CensusError::CutShort)?
            .map_err(CensusError::NoProc)
    }

    fn look(home: &Home, mut known: Vec<(Identity, Mark)>) -> io::Result<Self> {
        let notes = Notes::read(home);
        known.extend(notes.started);
        let (data_dir, user) = (home.true_path(), rustix::process::geteuid().as_raw());
        let see = |pid: i32| {
            let Stat { group, session, started, .. } = Stat::of(pid).filter(|stat| !stat.is_dead)?;
            let identity = Identity { started, pid };
            let known = || known.iter().find(|(one, _)| *one == identity).map(|(_, mark)| mark.clone());
            let carried = environment(pid, user).and_then(|it| Mark::read(&it, &home.device, &data_dir));
            Some(Seen { identity, group, session, mark: carried.or_else(known) })
        };
        let numbers =
            fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(Self { processes: numbers.filter_map(see).collect(), done: notes.done })
    }

    /// The units of which something lives.
    pub(super) fn units(&self) -> Vec<UnitName> {
        let mut names: Vec<_> = self.marked().map(|(_, mark)| mark.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The jobs that have ended well, by their notes.
    pub(super) fn done(&self) -> &[Mark] {
        &self.done
    }

    /// The main process of a unit: the oldest that leads its group without having opened a session of its own. The
    /// agent starts a main process so; a descendant that leads a group has most often called setsid (PostgreSQL's
    /// backends do).
    pub(super) fn main(&self, name: &UnitName) -> Option<(Identity, &Mark)> {
        self.marked()
            .filter(|(seen, mark)| {
                let pid = seen.identity.pid;
                mark.name == *name && seen.group == pid && seen.session != pid
            })
            .map(|(seen, mark)| (seen.identity, mark))
            .min_by_key(|(identity, _)| *identity)
    }

    /// The process groups that are a unit's: those with a marked process, and those of `carried`, which were the unit's
    /// a moment ago, but none that is led by somebody else.
    pub(super) fn groups(&self, name: &UnitName, carried: &BTreeSet<i32>) -> BTreeSet<i32> {
        let is_taken = |group: &i32| {
            let leader = self.processes.iter().find(|seen| seen.identity.pid == *group);
            leader.is_some_and(|seen| seen.mark.as_ref().is_none_or(|mark| mark.name != *name))
        };
        let own = self.marked().filter(|(_, mark)| mark.name == *name).map(|(seen, _)| seen.group);
        own.chain(carried.iter().copied()).filter(|group| !is_taken(group)).collect()
    }

    /// Every process of a unit, its groups being `groups`.
    pub(super) fn members(&self, name: &UnitName, groups: &BTreeSet<i32>) -> Vec<&Seen> {
        let is_member = |seen: &&Seen| {
            groups.contains(&seen.group) || seen.mark.as_ref().is_some_and(|mark| mark.name == *name)
        };
        self.processes.iter().filter(is_member).collect()
    }

    fn marked(&self) -> impl Iterator<Item = (&Seen, &Mark)> {
        self.processes.iter().filter_map(|seen| Some((seen, seen.mark.as_ref()?)))
    }
}

/// The environment of a process, if it is one of this user.
fn environment(pid: i32, user: u32) -> Option<Vec<u8>> {
    let folder = Path::new("/proc").join(pid.to_string());
    let is_own = fs::metadata(&folder).is_ok_and(|folder| folder.uid() == user);
    is_own.then(|| fs::read(folder.join("environ")).ok()).flatten()
}

/// What `/proc/<pid>/stat` says of a process.
#[derive(Debug)]
struct Stat {
    is_dead: bool,
    group: i32,
    session: i32,
    started: u64,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The program's name, in parentheses, may itself hold spaces and parentheses.
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

impl Identity {
    /// The process that has this number now. A child that has ended keeps its number until it is reaped.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Stat::of(pid).map(|stat| Self { started: stat.started, pid })
    }

    /// Whether it still lives.
    pub(super) fn lives(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.started == self.started && !stat.is_dead)
    }

    /// How long ago it started. Zero where the machine's uptime cannot be read.
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

    fn of(processes: Vec<Seen>) -> Census {
        Census { processes, done: Vec::new() }
    }

    fn name(component: &str) -> UnitName {
        UnitName { deployment: "line".parse().unwrap(), component: component.parse().unwrap() }
    }

    fn seen(pid: i32, group: i32, session: i32, unit: Option<&str>) -> Seen {
        let mark = unit.map(|unit| Mark { name: name(unit), digest_prefix: "00".to_owned() });
        Seen {
            identity: Identity { started: 1000 + u64::from(pid.unsigned_abs()), pid },
            group,
            session,
            mark,
        }
    }

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
    fn the_main_process_is_the_oldest_group_leader_without_a_session_of_its_own() {
        let census = of(vec![
            seen(9, 9, 9, Some("db")),
            seen(20, 20, 5, Some("db")),
            seen(12, 12, 5, Some("db")),
            seen(13, 12, 5, Some("db")),
            seen(11, 11, 5, Some("web")),
            seen(10, 10, 5, None),
        ]);
        assert_eq!(census.main(&name("db")).unwrap().0.pid, 12);
        assert_eq!(census.units(), [name("db"), name("web")]);
        assert!(census.main(&name("cache")).is_none());
    }

    #[test]
    fn members_are_the_marked_and_those_in_a_group_with_them() {
        let census = of(vec![
            seen(12, 12, 5, Some("db")),
            seen(13, 12, 5, None),
            seen(14, 14, 14, Some("db")),
            seen(30, 30, 5, None),
            seen(40, 33, 5, None),
            seen(50, 50, 5, Some("web")),
            seen(51, 50, 5, Some("db")),
        ]);
        let groups = census.groups(&name("db"), &BTreeSet::from([30, 33, 50, 60]));
        assert_eq!(groups, BTreeSet::from([12, 14, 33, 60]), "30 and 50 are led by others");
        let pids: Vec<_> =
            census.members(&name("db"), &groups).iter().map(|seen| seen.identity.pid).collect();
        assert_eq!(pids, [12, 13, 14, 40, 51], "51 has joined the group of another unit");
    }

    #[test]
    fn this_very_process_lives_and_has_an_age() {
        let own = Identity::of(rustix::process::getpid().as_raw_nonzero().get()).unwrap();
        assert!(own.lives());
        assert!(own.age() < Duration::from_secs(24 * 60 * 60), "{:?}", own.age());
        assert!(!Identity { started: own.started + 1, ..own }.lives(), "another process of the same number");
    }
}
