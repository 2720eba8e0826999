//! What has to be remembered of a unit across a restart of the agent and cannot be seen by looking: that a job has
//! ended well and must not run again, and which process is the main one where it hides its environment.
//!
//! One JSON file a unit, replaced as a whole. It is an aid: a missing, torn or stale one makes the runtime look
//! harder or run a job once more, never start a twin of what it can see.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::census::Identity;
use super::home::Home;
use super::mark::Mark;
use crate::runtime::UnitName;

/// What is remembered of one unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Note {
    /// Its main process was started.
    Started {
        /// The version.
        digest_prefix: String,
        /// The boot of the machine: numbers and ticks mean nothing in another.
        boot: String,
        /// The process's number.
        pid: i32,
        /// Its start in ticks since boot.
        started: u64,
    },
    /// It was a job and ended with 0.
    Done {
        /// The version.
        digest_prefix: String,
    },
}

impl Note {
    /// That a main process was started.
    pub(super) fn started(mark: &Mark, main: Identity) -> Self {
        let Identity { pid, started } = main;
        Self::Started { digest_prefix: mark.digest_prefix.clone(), boot: boot(), pid, started }
    }

    /// Writes the note. On the disk for good when this returns.
    ///
    /// # Errors
    /// The disk's; the note before is still there then.
    pub(super) fn write(&self, home: &Home, name: &UnitName) -> io::Result<()> {
        let path = home.note(name);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let fresh = path.with_extension("json.new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(folder)?.sync_all()
    }
}

/// The version of a unit's job that has ended well.
pub(super) fn done(home: &Home, name: &UnitName) -> Option<String> {
    match read(&home.note(name))? {
        Note::Done { digest_prefix } => Some(digest_prefix),
        Note::Started { .. } => None,
    }
}

/// Every job that has ended well.
pub(super) fn all_done(home: &Home) -> Vec<Mark> {
    let done = |(name, note)| match note {
        Note::Done { digest_prefix } => Some(Mark { name, digest_prefix }),
        Note::Started { .. } => None,
    };
    all(home).into_iter().filter_map(done).collect()
}

/// The main processes noted in this boot of the machine; whether they still live is not known here.
pub(super) fn running(home: &Home) -> Vec<(Identity, Mark)> {
    let now = boot();
    let running = |(name, note)| match note {
        Note::Started { digest_prefix, boot, pid, started } if boot == now => {
            Some((Identity { started, pid }, Mark { name, digest_prefix }))
        }
        Note::Started { .. } | Note::Done { .. } => None,
    };
    all(home).into_iter().filter_map(running).collect()
}

/// Forgets a unit.
///
/// # Errors
/// The disk's. That there is no note is none.
pub(super) fn erase(home: &Home, name: &UnitName) -> io::Result<()> {
    match fs::remove_file(home.note(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn read(path: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn all(home: &Home) -> Vec<(UnitName, Note)> {
    let folders = fs::read_dir(home.notes()).into_iter().flatten().flatten();
    let of_folder = |folder: fs::DirEntry| {
        let deployment = folder.file_name().to_str()?.parse().ok()?;
        let files = fs::read_dir(folder.path()).ok()?.flatten();
        let of_file = move |file: fs::DirEntry| {
            let component = file.file_name().to_str()?.strip_suffix(".json")?.parse().ok()?;
            let name = UnitName { deployment: Clone::clone(&deployment), component };
            Some((name, read(&file.path())?))
        };
        Some(files.filter_map(of_file))
    };
    folders.filter_map(of_folder).flatten().collect()
}

/// The machine's word for this boot. Empty where it has none, which still tells nothing wrong within one boot.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> (tempfile::TempDir, Home, Mark) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new("plant/press".parse().unwrap(), dir.path());
        let name = UnitName { deployment: "line".parse().unwrap(), component: "job".parse().unwrap() };
        (dir, home, Mark { name, digest_prefix: "0123456789abcdef".to_owned() })
    }

    #[test]
    fn a_note_is_found_again_until_it_is_erased() {
        let (_dir, home, mark) = fixture();
        assert_eq!(done(&home, &mark.name), None);
        let main = Identity { started: 7, pid: 42 };
        Note::started(&mark, main).write(&home, &mark.name).unwrap();
        assert_eq!(running(&home), [(main, mark.clone())]);
        Note::Done { digest_prefix: mark.digest_prefix.clone() }.write(&home, &mark.name).unwrap();
        assert_eq!(running(&home), []);
        assert_eq!(all_done(&home).as_slice(), std::slice::from_ref(&mark));
        assert_eq!(done(&home, &mark.name), Some(mark.digest_prefix));
        erase(&home, &mark.name).unwrap();
        erase(&home, &mark.name).unwrap();
        assert_eq!(all_done(&home), []);
    }

    #[test]
    fn a_process_of_an_earlier_boot_is_nobody() {
        let (_dir, home, mark) = fixture();
        let digest_prefix = mark.digest_prefix.clone();
        let note = Note::Started { digest_prefix, boot: "earlier".to_owned(), pid: 42, started: 7 };
        note.write(&home, &mark.name).unwrap();
        assert_eq!(running(&home), []);
    }

    #[test]
    fn a_torn_note_says_nothing() {
        let (_dir, home, mark) = fixture();
        Note::started(&mark, Identity { started: 7, pid: 42 }).write(&home, &mark.name).unwrap();
        let whole = fs::read(home.note(&mark.name)).unwrap();
        for length in 0..whole.len() {
            fs::write(home.note(&mark.name), &whole[..length]).unwrap();
            assert!(running(&home).is_empty() && done(&home, &mark.name).is_none(), "{length} bytes");
        }
    }
}
