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

/// What is remembered of all units.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// The main processes started in this boot of the machine; whether they still live is not known here.
    pub(super) started: Vec<(Identity, Mark)>,
    /// The jobs that have ended well.
    pub(super) done: Vec<Mark>,
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

impl Notes {
    /// Reads all notes. One that cannot be read says nothing.
    pub(super) fn read(home: &Home) -> Self {
        let now = boot();
        let mut notes = Self::default();
        for (name, note) in all(home) {
            match note {
                Note::Done { digest_prefix } => notes.done.push(Mark { name, digest_prefix }),
                Note::Started { digest_prefix, boot, pid, started } if boot == now => {
                    notes.started.push((Identity { started, pid }, Mark { name, digest_prefix }));
                }
                Note::Started { .. } => {}
            }
        }
        notes
    }
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

fn all(home: &Home) -> Vec<(UnitName, Note)> {
    let folders = fs::read_dir(home.notes()).into_iter().flatten().flatten();
    let of_folder = |folder: fs::DirEntry| {
        let deployment = folder.file_name().to_str()?.parse().ok()?;
        let files = fs::read_dir(folder.path()).ok()?.flatten();
        let of_file = move |file: fs::DirEntry| {
            let component = file.file_name().to_str()?.strip_suffix(".json")?.parse().ok()?;
            let name = UnitName { deployment: Clone::clone(&deployment), component };
            Some((name, serde_json::from_slice(&fs::read(file.path()).ok()?).ok()?))
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
        assert_eq!(Notes::read(&home), Notes::default());
        let main = Identity { started: 7, pid: 42 };
        Note::started(&mark, main).write(&home, &mark.name).unwrap();
        assert_eq!(Notes::read(&home), Notes { started: vec![(main, mark.clone())], done: Vec::new() });
        Note::Done { digest_prefix: mark.digest_prefix.clone() }.write(&home, &mark.name).unwrap();
        assert_eq!(Notes::read(&home), Notes { started: Vec::new(), done: vec![mark.clone()] });
        erase(&home, &mark.name).unwrap();
        erase(&home, &mark.name).unwrap();
        assert_eq!(Notes::read(&home), Notes::default());
    }

    #[test]
    fn a_process_of_an_earlier_boot_is_nobody() {
        let (_dir, home, mark) = fixture();
        let digest_prefix = mark.digest_prefix.clone();
        let note = Note::Started { digest_prefix, boot: "earlier".to_owned(), pid: 42, started: 7 };
        note.write(&home, &mark.name).unwrap();
        assert_eq!(Notes::read(&home), Notes::default());
    }

    #[test]
    fn a_torn_note_says_nothing() {
        let (_dir, home, mark) = fixture();
        Note::started(&mark, Identity { started: 7, pid: 42 }).write(&home, &mark.name).unwrap();
        let whole = fs::read(home.note(&mark.name)).unwrap();
        for length in 0..whole.len() {
            fs::write(home.note(&mark.name), &whole[..length]).unwrap();
            assert_eq!(Notes::read(&home), Notes::default(), "{length} bytes");
        }
    }
}
