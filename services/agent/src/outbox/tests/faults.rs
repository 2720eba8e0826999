//! Faults within SQLite: the database stopped at any point at which SQLite can be stopped, its files as a crash at any
//! statement or within a write of the commit would leave them, and a disk that is full or no longer writable.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rusqlite::trace::{TraceEvent, TraceEventCodes};

use super::*;
use crate::db::{Connection, SqlResult};

/// Pages of the WAL after which it is checkpointed: few, so that short runs meet every order of writes and checkpoints.
const CHECKPOINT_PAGES: u32 = 12;
const FILES: [&str; 2] = ["agent.db", "agent.db-wal"];

/// The planned fault, and the statements so far.
#[derive(Debug, Default)]
struct Plan {
    statements: u64,
    steps: u64,
    commits: u64,
    abort_at: Option<u64>,
    refuse_commits: bool,
    /// Files are copied at this statement, or at every one.
    image_at: Option<(Option<u64>, PathBuf)>,
    images: Vec<Image>,
}

/// A database with a trace of every statement.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) dir: PathBuf,
    pub(super) db: Db,
    pub(super) outbox: Outbox,
    plan: Arc<Mutex<Plan>>,
}

/// The files of a database at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Image {
    main: Vec<u8>,
    log: Vec<u8>,
}

impl Image {
    /// The files that a process leaves that dies now.
    pub(super) fn of(dir: &Path) -> Self {
        let [main, log] = FILES.map(|name| std::fs::read(dir.join(name)).unwrap_or_default());
        Self { main, log }
    }

    pub(super) fn put(&self, dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(FILES[0]), &self.main).unwrap();
        std::fs::write(dir.join(FILES[1]), &self.log).unwrap();
    }

    /// The files after a crash during which `cut` bytes of the WAL of `self` were written over those before.
    pub(super) fn torn_from(&self, before: &Self, cut: usize) -> Self {
        let kept = before.log.get(cut..).unwrap_or_default();
        Self { main: before.main.clone(), log: [&self.log[..cut], kept].concat() }
    }

    /// The files after a crash with a whole WAL and a partial checkpoint.
    pub(super) fn half_written_back(&self, before: &Self, mut written: impl FnMut() -> bool) -> Self {
        let mut main = self.main.clone();
        for (at, page) in before.main.chunks(PAGE).enumerate() {
            let place = at * PAGE..at * PAGE + page.len();
            if place.end <= main.len() && !written() {
                main[place].copy_from_slice(page);
            }
        }
        Self { main, log: self.log.clone() }
    }

    /// A truncated WAL, or one with a changed byte.
    pub(super) fn with_eaten_log(&self, place: f64, flip: Option<u8>) -> Self {
        let (mut log, at) = (self.log.clone(), at(self.log.len(), place));
        match flip {
            Some(flip) => log[at] ^= flip,
            None => log.truncate(at),
        }
        Self { main: self.main.clone(), log }
    }

    /// A truncated file.
    pub(super) fn with_cut_file(&self, place: f64) -> Self {
        Self { main: self.main[..at(self.main.len(), place)].to_vec(), log: self.log.clone() }
    }

    /// A file with one page filled with one byte.
    pub(super) fn with_eaten_page(&self, place: f64, byte: u8) -> Self {
        let mut main = self.main.clone();
        let page = at(main.len(), place) / PAGE * PAGE;
        main[page..page + PAGE].fill(byte);
        Self { main, log: self.log.clone() }
    }

    pub(super) fn main_bytes(&self) -> usize {
        self.main.len()
    }

    pub(super) fn log_bytes(&self) -> usize {
        self.log.len()
    }

    /// Where the WAL was written since: at its end, or from its start after a whole checkpoint.
    pub(super) fn written_since(&self, before: &Self) -> Range<usize> {
        let differs = |at: &usize| self.log.get(*at) != before.log.get(*at);
        let all = 0..self.log.len();
        match all.clone().find(differs) {
            Some(first) => first..all.rev().find(differs).map_or(first, |last| last + 1),
            None => 0..0,
        }
    }
}

fn at(bytes: usize, place: f64) -> usize {
    (bytes as f64 * place) as usize
}

/// Bytes of a page, and of a frame of the WAL.
pub(super) const PAGE: usize = 4096;
pub(super) const FRAME: usize = PAGE + 24;

impl Device {
    pub(super) async fn open(dir: &Path, limits: Limits) -> Self {
        let plan = Arc::<Mutex<Plan>>::default();
        let watch = |connection: &mut Connection| watch(connection, dir, &plan).unwrap();
        let device = "plant7/press-4".parse().unwrap();
        let db = Db::open_with(dir, &device, &crate::app::schema(), super::at(0), watch).unwrap();
        let outbox = Outbox::open(db.clone(), limits).await.unwrap();
        Self { dir: dir.to_owned(), db, outbox, plan }
    }

    /// The contents of the database.
    pub(super) async fn state(&self) -> Result<model::Model, crate::db::Error> {
        self.db.run(self.outbox.job(model::Model::of)).await
    }

    fn plan<T>(&self, change: impl FnOnce(&mut Plan) -> T) -> T {
        change(&mut self.plan.lock().unwrap())
    }

    /// Restarts the count of statements without a planned fault.
    pub(super) fn calm(&self) {
        self.plan(|plan| *plan = Plan::default());
    }

    /// Stops the next work at this point.
    pub(super) fn abort_at(&self, step: u64) {
        self.plan(|plan| *plan = Plan { abort_at: Some(step), ..Plan::default() });
    }

    /// Copies the files of the next work at this statement, or at each.
    pub(super) fn image_at(&self, statement: Option<u64>) {
        let image_at = Some((statement, self.dir.clone()));
        self.plan(|plan| *plan = Plan { image_at, ..Plan::default() });
    }

    /// The copies, each once.
    pub(super) fn images(&self) -> Vec<Image> {
        self.plan(|plan| std::mem::take(&mut plan.images))
    }

    /// Makes every commit fail from now on, or none.
    pub(super) fn refuse_commits(&self, refuse: bool) {
        self.plan(|plan| *plan = Plan { refuse_commits: refuse, ..Plan::default() });
    }

    pub(super) fn statements(&self) -> u64 {
        self.plan(|plan| plan.statements)
    }

    pub(super) fn commits(&self) -> u64 {
        self.plan(|plan| plan.commits)
    }

    /// Allows no further page. SQLite's own limit has the same error as a full disk.
    pub(super) async fn fill_disk(&self) {
        self.set("PRAGMA max_page_count=1").await;
    }

    pub(super) async fn evict(&self) {
        self.set("PRAGMA max_page_count=1000000").await;
    }

    /// A disk that the system has made read-only after an error.
    pub(super) async fn forbid_writing(&self) {
        self.set("PRAGMA query_only=1").await;
    }

    pub(super) async fn allow_writing(&self) {
        self.set("PRAGMA query_only=0").await;
    }

    pub(super) async fn never_write_back(&self) {
        self.set("PRAGMA wal_autocheckpoint=0").await;
    }

    async fn set(&self, pragma: &'static str) {
        self.db.run(move |connection| connection.execute_batch(pragma)).await.unwrap();
    }
}

fn watch(connection: &mut Connection, dir: &Path, plan: &Arc<Mutex<Plan>>) -> SqlResult<()> {
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    let (seen, stepped, committed) = (Arc::clone(plan), Arc::clone(plan), Arc::clone(plan));
    assert!(dir.exists());
    connection.trace_v2(
        TraceEventCodes::SQLITE_TRACE_STMT,
        Some(move |_: TraceEvent<'_>| seen.lock().unwrap().statement()),
    )?;
    connection.progress_handler(1, Some(move || stepped.lock().unwrap().step()))?;
    connection.commit_hook(Some(move || {
        let mut plan = committed.lock().unwrap();
        plan.commits += 1;
        plan.refuse_commits
    }))
}

impl Plan {
    fn statement(&mut self) {
        self.statements += 1;
        let Some((when, dir)) = &self.image_at else { return };
        if when.is_none_or(|when| when == self.statements) {
            let image = Image::of(dir);
            if self.images.last() != Some(&image) {
                self.images.push(image);
            }
        }
    }

    fn step(&mut self) -> bool {
        self.steps += 1;
        // SQLite calls once more after a COMMIT, when it is too late to stop anything.
        self.abort_at == Some(self.steps) && self.commits == 0
    }
}
