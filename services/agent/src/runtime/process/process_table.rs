//! Lists the living processes and their units, read from Linux's `/proc`. Sends no signals.
//!
//! A process belongs to a unit if it carries its [`EnvTag`] (and runs under the agent's user, so that no other user
//! can forge one), or if the unit's [state file](super::state_file) or the agent itself knows exactly this process:
//! some programs (nginx, PostgreSQL) write their title over the environment that `/proc` shows. Any other process in
//! a process group with one of these belongs to the unit too.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

use tokio::time::Instant;

use super::env_tag::EnvTag;
use super::paths::UnitPaths;
use super::process_id::{ProcessId, Stat};
use super::state_file::StoredUnits;
use crate::runtime::UnitName;

/// Longest time that one list waits for processes in `execve`.
const EXEC_WAIT_MAX: Duration = Duration::from_secs(1);
/// Bytes for an environment; most have less, and Linux lets none have more than a few megabytes.
const ENVIRONMENT_BYTES: usize = 64 * 1024;
/// Pause before such a process is read again.
const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// The error of listing processes.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcessTableError {
    /// There is no `/proc` to read.
    #[error(
        "cannot read /proc, where the process runtime finds its processes: it needs Linux with /proc mounted"
    )]
    NoProc(#[source] io::Error),
    /// The thread that reads panicked.
    #[error("the thread that reads /proc panicked")]
    CutShort(#[source] tokio::task::JoinError),
}

/// A living process (zombies only need to be reaped and are left out).
#[derive(Debug, Clone)]
pub(super) struct ProcessEntry {
    /// Its identity.
    pub(super) id: ProcessId,
    /// Its process group.
    pub(super) group: i32,
    /// Its session.
    pub(super) session: i32,
    /// Its unit, by its own environment or a state file.
    pub(super) tag: Option<EnvTag>,
}

/// All processes at one time, and the completed jobs.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    processes: Vec<ProcessEntry>,
    done: Vec<EnvTag>,
}

impl ProcessTable {
    /// Lists the processes, on a thread that may block. `known` are main processes that this agent knows without a
    /// state file.
    pub(super) async fn read(
        paths: &Arc<UnitPaths>,
        known: Vec<(ProcessId, EnvTag)>,
    ) -> Result<Self, ProcessTableError> {
        let paths = Arc::clone(paths);
        tokio::task::spawn_blocking(move || Self::read_blocking(&paths, known))
            .await
            .map_err(ProcessTableError::CutShort)?
            .map_err(ProcessTableError::NoProc)
    }

    fn read_blocking(paths: &UnitPaths, mut known: Vec<(ProcessId, EnvTag)>) -> io::Result<Self> {
        let stored = StoredUnits::read(paths);
        known.extend(stored.started);
        let (data_dir, user) = (paths.true_path(), rustix::process::geteuid().as_raw());
        let deadline = Instant::now() + EXEC_WAIT_MAX;
        let see = |pid: i32| {
            let Stat { group, session, started, .. } = Stat::of(pid).filter(|stat| !stat.is_dead)?;
            let id = ProcessId { started, pid };
            let known = || known.iter().find(|(one, _)| *one == id).map(|(_, tag)| tag.clone());
            let environment = environment(pid, user, deadline);
            let carried = environment.and_then(|it| EnvTag::read(&it, &paths.device, &data_dir));
            Some(ProcessEntry { id, group, session, tag: carried.or_else(known) })
        };
        let numbers =
            fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(Self { processes: numbers.filter_map(see).collect(), done: stored.done })
    }

    /// The units with a living process.
    pub(super) fn units(&self) -> Vec<UnitName> {
        let mut names: Vec<_> = self.tagged().map(|(_, tag)| tag.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The completed jobs, by their state files.
    pub(super) fn done(&self) -> &[EnvTag] {
        &self.done
    }

    /// The main process of a unit: the oldest that leads its group without having opened a session of its own,
    /// because that is how the agent starts it; a descendant that leads a group has most often called setsid (as
    /// PostgreSQL's backends do).
    pub(super) fn main(&self, name: &UnitName) -> Option<(ProcessId, &EnvTag)> {
        self.tagged()
            .filter(|(seen, tag)| {
                let pid = seen.id.pid;
                tag.name == *name && seen.group == pid && seen.session != pid
            })
            .map(|(seen, tag)| (seen.id, tag))
            .min_by_key(|(id, _)| *id)
    }

    /// The process groups of a unit: those with a tagged process, and those of `carried`, which were the unit's
    /// groups in the last list, except groups with another leader.
    pub(super) fn groups(&self, name: &UnitName, carried: &BTreeSet<i32>) -> BTreeSet<i32> {
        let is_taken = |group: &i32| {
            let leader = self.processes.iter().find(|seen| seen.id.pid == *group);
            leader.is_some_and(|seen| seen.tag.as_ref().is_none_or(|tag| tag.name != *name))
        };
        let own = self.tagged().filter(|(_, tag)| tag.name == *name).map(|(seen, _)| seen.group);
        own.chain(carried.iter().copied()).filter(|group| !is_taken(group)).collect()
    }

    /// Every process of a unit with these groups.
    pub(super) fn members(&self, name: &UnitName, groups: &BTreeSet<i32>) -> Vec<&ProcessEntry> {
        let is_member = |seen: &&ProcessEntry| {
            groups.contains(&seen.group) || seen.tag.as_ref().is_some_and(|tag| tag.name == *name)
        };
        self.processes.iter().filter(is_member).collect()
    }

    fn tagged(&self) -> impl Iterator<Item = (&ProcessEntry, &EnvTag)> {
        self.processes.iter().filter_map(|seen| Some((seen, seen.tag.as_ref()?)))
    }
}

/// The environment of a process of this user. During `execve`, Linux shows none, so this function waits for the end of the call: the
/// agent would start a unit that is missed here a second time.
fn environment(pid: i32, user: u32, deadline: Instant) -> Option<Vec<u8>> {
    let folder = Path::new("/proc").join(pid.to_string());
    if fs::metadata(&folder).ok()?.uid() != user {
        return None;
    }
    let file = folder.join("environ");
    loop {
        let shown = read_at_once(&file).ok()?;
        if !shown.is_empty() {
            return Some(shown);
        }
        if Stat::of(pid).is_none_or(|stat| stat.is_dead || stat.has_no_environment) {
            return None;
        }
        if Instant::now() >= deadline {
            tracing::warn!(
                process.pid = pid,
                "cannot read the environment of a process in time, so it counts for no unit; stop it if its unit runs twice"
            );
            return None;
        }
        thread::sleep(EXEC_PAUSE);
    }
}

/// Reads a file of `/proc` by one call. After an `execve` between two calls, the second would return nothing, and the text would be
/// cut.
fn read_at_once(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = ENVIRONMENT_BYTES;
    loop {
        let mut shown = vec![0; bytes];
        let read = File::open(file)?.read(&mut shown)?;
        if read < bytes {
            shown.truncate(read);
            return Ok(shown);
        }
        bytes *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(processes: Vec<ProcessEntry>) -> ProcessTable {
        ProcessTable { processes, done: Vec::new() }
    }

    fn name(component: &str) -> UnitName {
        UnitName { deployment: "line".parse().unwrap(), component: component.parse().unwrap() }
    }

    fn seen(pid: i32, group: i32, session: i32, unit: Option<&str>) -> ProcessEntry {
        let tag = unit.map(|unit| EnvTag { name: name(unit), digest_prefix: "00".to_owned() });
        ProcessEntry {
            id: ProcessId { started: 1000 + u64::from(pid.unsigned_abs()), pid },
            group,
            session,
            tag,
        }
    }

    #[test]
    fn the_main_process_is_the_oldest_group_leader_without_its_own_session() {
        let processes = of(vec![
            seen(9, 9, 9, Some("db")),
            seen(20, 20, 5, Some("db")),
            seen(12, 12, 5, Some("db")),
            seen(13, 12, 5, Some("db")),
            seen(11, 11, 5, Some("web")),
            seen(10, 10, 5, None),
        ]);
        assert_eq!(processes.main(&name("db")).unwrap().0.pid, 12);
        assert_eq!(processes.units(), [name("db"), name("web")]);
        assert!(processes.main(&name("cache")).is_none());
    }

    #[test]
    fn members_are_tagged_or_share_a_group_with_a_tagged_process() {
        let processes = of(vec![
            seen(12, 12, 5, Some("db")),
            seen(13, 12, 5, None),
            seen(14, 14, 14, Some("db")),
            seen(30, 30, 5, None),
            seen(40, 33, 5, None),
            seen(50, 50, 5, Some("web")),
            seen(51, 50, 5, Some("db")),
        ]);
        let groups = processes.groups(&name("db"), &BTreeSet::from([30, 33, 50, 60]));
        assert_eq!(groups, BTreeSet::from([12, 14, 33, 60]), "30 and 50 are led by others");
        let pids: Vec<_> = processes.members(&name("db"), &groups).iter().map(|seen| seen.id.pid).collect();
        assert_eq!(pids, [12, 13, 14, 40, 51], "51 has joined the group of another unit");
    }
}
