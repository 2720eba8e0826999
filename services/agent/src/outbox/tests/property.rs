//! The outbox beside its model, under faults: after every operation the database holds what the model holds, all of it or
//! nothing. Proptest prints and stores a failing case; `PROPTEST_RNG_SEED` and `PROPTEST_CASES` replay and widen a run.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::faults::{Device, FRAME, Image};
use super::model::Model;
use super::*;

const DEPLOYMENTS: [&str; 3] = ["a", "b", "c"];
/// Small, so that short runs fold and drop.
const LIMITS: Limits = Limits { rows: 7, bytes: 6_000 };

/// A random operation of the outbox.
#[derive(Debug, Clone)]
enum Event {
    Append(Vec<Option<(usize, State)>>),
    Read { rows: usize },
    Ack { rows: usize },
    Receipt { epoch: i64, beyond: i64, missing: u32 },
    Tidy,
    FixEpoch,
    Wait { seconds: i64 },
    Reopen,
}

#[derive(Debug, Clone)]
enum Fault {
    None,
    /// SQLite is stopped at this point.
    Abort(u64),
    /// The process dies at this statement; after the last one, with this part of the WAL written.
    Crash {
        statement: u64,
        written: f64,
    },
    Full,
    ReadOnly,
}

/// The same, with its arguments.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Append(Arc<Vec<NewReport>>),
    Ack(Epoch, Vec<u64>),
    Receipt(Receipt),
    Tidy,
    FixEpoch,
}

impl Action {
    pub(super) async fn perform(&self, outbox: &Outbox, now: Timestamp) -> Result<(), crate::db::Error> {
        match self.clone() {
            Self::Append(entries) => outbox.append_here(entries).await,
            Self::Ack(epoch, seqs) => outbox.mark_sent(epoch, seqs, now).await,
            Self::Receipt(receipt) => outbox.receive(receipt, now).await.map(drop),
            Self::Tidy => outbox.maintain(now).await,
            Self::FixEpoch => outbox.fix_epoch(now).await.map(drop),
        }
    }

    pub(super) fn apply(&self, model: &Model, limits: Limits, max_exposed: u64, now: Timestamp) -> Model {
        let mut after = model.clone();
        match self {
            Self::Append(entries) => after.append(entries, limits, max_exposed),
            Self::Ack(epoch, seqs) => after.mark_sent(*epoch, seqs, now),
            Self::Receipt(receipt) => after.receive(receipt, now, limits, max_exposed),
            Self::Tidy => after.maintain(now),
            Self::FixEpoch => after.fix_epoch(now),
        }
        after
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let told = prop_oneof![
        1 => Just(None),
        9 => (0..DEPLOYMENTS.len(), prop::sample::select(State::ALL.to_vec())).prop_map(Some),
    ];
    let receipt = (
        prop_oneof![12 => Just(0_i64), 1 => Just(-1), 1 => Just(1)],
        prop_oneof![12 => -3..1_i64, 1 => 1..3_i64],
        prop_oneof![Just(0), any::<u32>()],
    );
    prop_oneof![
        10 => prop::collection::vec(told, 1..5).prop_map(Event::Append),
        4 => (1..9_usize).prop_map(|rows| Event::Read { rows }),
        4 => (1..9_usize).prop_map(|rows| Event::Ack { rows }),
        4 => receipt.prop_map(|(epoch, beyond, missing)| Event::Receipt { epoch, beyond, missing }),
        1 => Just(Event::Tidy),
        1 => Just(Event::FixEpoch),
        // Clocks jump too.
        2 => prop_oneof![1..100_i64, 500..2_000_i64, 80_000..90_000_i64, -5_000..0_i64]
            .prop_map(|seconds| Event::Wait { seconds }),
        1 => Just(Event::Reopen),
    ]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        2 => (1..150_u64).prop_map(Fault::Abort),
        2 => (1..40_u64, 0.0..=1.0).prop_map(|(statement, written)| Fault::Crash { statement, written }),
        1 => Just(Fault::Full),
        1 => Just(Fault::ReadOnly),
    ]
}

struct World {
    base: tempfile::TempDir,
    lives: u32,
    device: Device,
    model: Model,
    max_exposed: u64,
    now: i64,
    marks: u64,
    /// Message ids by epoch and number: the bus finds duplicates by them.
    ids: BTreeMap<(Option<Epoch>, u64), String>,
}

impl World {
    async fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let device = Device::open(&base.path().join("0"), LIMITS).await;
        let (model, ids) = (Model::default(), BTreeMap::new());
        Self { base, lives: 0, device, model, max_exposed: 0, now: 0, marks: 0, ids }
    }

    /// The device dies and starts again with these files.
    async fn revive(&mut self, image: &Image) {
        self.lives += 1;
        let dir = self.base.path().join(self.lives.to_string());
        image.put(&dir);
        self.device.db.close().await;
        self.device = Device::open(&dir, LIMITS).await;
    }

    fn action(&mut self, event: &Event) -> Option<Action> {
        Some(match event {
            Event::Append(told) => {
                let entries = told.iter().map(|told| match told {
                    None => capabilities(),
                    Some((deployment, state)) => {
                        self.marks += 1;
                        entry(DEPLOYMENTS[*deployment], *state, self.marks)
                    }
                });
                Action::Append(Arc::new(entries.collect()))
            }
            Event::Ack { rows } => {
                let read = |(seq, group): &(&u64, &model::DeploymentRows)| {
                    **seq <= self.max_exposed && group.state == 0
                };
                let seqs = self.model.deployments.iter().filter(read).take(*rows).map(|(seq, _)| *seq);
                Action::Ack(self.model.epoch?, seqs.collect())
            }
            Event::Receipt { epoch, beyond, missing } => {
                let own = self.model.epoch.map_or(1_900_000_000, Epoch::get);
                let epoch = Epoch::new(own.checked_add_signed(*epoch)?)?;
                let sent = if *beyond > 0 { self.model.head } else { self.model.head.min(self.max_exposed) };
                let through = sent.saturating_add_signed(*beyond);
                let lacks = |seq: &u64| missing & (1 << (seq % 32)) != 0;
                let missing: Vec<_> = (1..=through).filter(lacks).map(|seq| (seq, seq)).collect();
                let mut ranges = SeqRanges::new();
                missing.iter().for_each(|(seq, _)| _ = ranges.insert(*seq));
                let missing: Vec<_> = ranges.iter().collect();
                Action::Receipt(receipt(epoch, through, &missing))
            }
            Event::Tidy => Action::Tidy,
            Event::FixEpoch => Action::FixEpoch,
            Event::Read { .. } | Event::Wait { .. } | Event::Reopen => return None,
        })
    }

    async fn happen(&mut self, event: &Event, fault: &Fault) {
        match (event, self.action(event)) {
            (_, Some(action)) => self.act(&action, fault).await,
            (Event::Read { rows }, _) => {
                let request = ReadRequest { rows: *rows, ..all() };
                let read = seqs(&self.device.outbox.read(request.clone()).await.unwrap());
                assert_eq!(read, self.model.read(&request));
                self.max_exposed = self.max_exposed.max(read.into_iter().max().unwrap_or_default());
            }
            (Event::Wait { seconds }, _) => self.now += seconds,
            (Event::Reopen, _) => {
                self.device.db.close().await;
                self.device = Device::open(&self.device.dir, LIMITS).await;
                self.max_exposed = self.model.head;
            }
            _ => {}
        }
        self.check().await;
    }

    async fn act(&mut self, action: &Action, fault: &Fault) {
        let now = at(self.now);
        let after = action.apply(&self.model, LIMITS, self.max_exposed, now);
        match fault {
            Fault::None => {}
            Fault::Abort(step) => {
                self.device.abort_at(*step);
                self.once_more(action, &after, "").await;
            }
            Fault::Full => {
                self.device.fill_disk().await;
                self.once_more(action, &after, "the disk is full").await;
            }
            Fault::ReadOnly => {
                self.device.forbid_writing().await;
                self.once_more(action, &after, "mount its disk writable").await;
            }
            Fault::Crash { statement, written } => {
                return self.crash(action, after, *statement, *written).await;
            }
        }
        if self.device.state().await.unwrap() != after {
            action.perform(&self.device.outbox, now).await.unwrap();
        }
        self.model = after;
    }

    /// Tries under a fault: all of it is stored or nothing, and the error names the remedy.
    async fn once_more(&mut self, action: &Action, after: &Model, remedy: &str) {
        let outcome = action.perform(&self.device.outbox, at(self.now)).await;
        self.device.calm();
        self.device.evict().await;
        self.device.allow_writing().await;
        let state = self.device.state().await.unwrap();
        match outcome {
            Ok(()) => assert_eq!(state, *after),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("agent.db: ") && text.contains(remedy), "{text}");
                assert_eq!(state, self.model, "after {text}");
            }
        }
    }

    async fn crash(&mut self, action: &Action, after: Model, statement: u64, written: f64) {
        let before = Image::of(&self.device.dir);
        self.device.image_at(Some(statement));
        action.perform(&self.device.outbox, at(self.now)).await.unwrap();
        let whole = Image::of(&self.device.dir);
        let log = whole.written_since(&before);
        let cut = log.start + (log.len() as f64 * written) as usize;
        let (image, answered) = match self.device.images().pop() {
            Some(image) => (image, false),
            None if cut < log.end => (whole.torn_from(&before, cut), false),
            None => {
                let mut rng = fastrand::Rng::with_seed(statement);
                (whole.half_written_back(&before, || rng.bool()), true)
            }
        };
        self.revive(&image).await;
        let state = self.device.state().await.unwrap();
        if answered || state != self.model {
            assert_eq!(state, after, "more than nothing, less than all");
            self.model = after;
        }
        self.max_exposed = self.model.head;
    }

    async fn check(&mut self) {
        assert_eq!(self.device.state().await.unwrap(), self.model);
        assert!(self.model.deployments.len() as u64 <= LIMITS.rows);
        let batch = self.device.db.run(message_ids).await.unwrap();
        let ids: BTreeMap<_, _> = batch.into_iter().map(|(seq, id)| ((self.model.epoch, seq), id)).collect();
        for (key, id) in &ids {
            assert!(self.ids.get(key).is_none_or(|known| known == id), "another id for {key:?}");
        }
        self.ids = ids;
    }
}

fn message_ids(connection: &crate::db::Connection) -> crate::db::SqlResult<Vec<(u64, String)>> {
    let mut statement = connection.prepare("SELECT seq, message_id FROM outbox")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// With several threads, as in the agent: the caller's thread stores reports, the database's thread does everything else.
fn block_on(future: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all().build().unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_database_holds_what_the_model_holds(events in prop::collection::vec((any_event(), any_fault()), 0..50)) {
        block_on(async {
            let mut world = World::new().await;
            for (event, fault) in &events {
                world.happen(event, fault).await;
            }
        });
    }
}

/// Every kind of work once: written in a group, folded, dropped, sent, covered, requeued, declared, renewed.
fn script(epoch: u64) -> Vec<(i64, Action)> {
    let epoch = Epoch::new(epoch).unwrap();
    let append = |told: &[(&str, State)]| {
        let entries = told.iter().enumerate().map(|(at, (id, state))| entry(id, *state, at as u64 + 1));
        Action::Append(Arc::new(entries.collect()))
    };
    let receipt = |epoch, through, missing: &[(u64, u64)]| Action::Receipt(receipt(epoch, through, missing));
    vec![
        (0, Action::Append(Arc::new(vec![capabilities()]))),
        (0, Action::FixEpoch),
        (0, append(&[("a", Pending), ("b", Pending), ("a", Installing), ("b", Installed)])),
        (0, append(&[("a", Failed), ("a", Pending), ("c", Pending), ("b", Failed), ("b", Installed)])),
        (0, append(&[("a", Failed), ("a", Failed), ("a", Failed), ("a", Failed), ("a", Failed)])),
        (1, Action::Ack(epoch, (1..=15).collect())),
        (2, receipt(epoch, 12, &[(11, 12)])),
        (60, receipt(epoch, 14, &[(11, 12)])),
        (61, append(&[("a", Removed), ("c", Installed)])),
        (62, Action::Ack(epoch, (1..=17).collect())),
        (1_000, Action::Tidy),
        (1_001, Action::Ack(epoch, (1..=17).collect())),
        (1_002, receipt(epoch, 17, &[])),
        (200_000, Action::Tidy),
        (200_001, receipt(epoch, 17, &[(3, 4), (17, 17)])),
        (200_002, receipt(epoch, 1_000, &[])),
    ]
}

#[test]
fn a_crash_between_any_two_statements_leaves_all_or_nothing() {
    block_on(async {
        let base = tempfile::tempdir().unwrap();
        let device = Device::open(&base.path().join("device"), LIMITS).await;
        let mut model = Model::default();
        let (mut statements, mut torn) = (0, 0);
        for (nth, (seconds, action)) in script(at(0).as_second() as u64).into_iter().enumerate() {
            let after = action.apply(&model, LIMITS, model.head, at(seconds));
            let before = Image::of(&device.dir);
            device.image_at(None);
            // Rows that may have been read for sending: all, as after a start.
            device.outbox.max_exposed.store(model.head, Ordering::Relaxed);
            action.perform(&device.outbox, at(seconds)).await.unwrap();
            statements += device.statements();
            let images = device.images();
            device.calm();
            let whole = Image::of(&device.dir);
            let tears = whole.written_since(&before).step_by(FRAME / 3);
            let tears = tears.map(|cut| whole.torn_from(&before, cut));
            for (at, image) in images.into_iter().chain(tears).enumerate() {
                torn += 1;
                let state = opened(&base.path().join(format!("{nth}-{at}")), &image).await;
                assert_eq!(state, model, "{action:?}, image {at}");
            }
            for seed in 0..3 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let image = whole.half_written_back(&before, || rng.bool());
                let state = opened(&base.path().join(format!("{nth}-back-{seed}")), &image).await;
                assert_eq!(state, after, "{action:?}, pages written back as of {seed}");
            }
            model = after;
        }
        assert!(statements > 200 && torn > 100, "{statements} statements, {torn} crashes");
    });
}

async fn opened(dir: &std::path::Path, image: &Image) -> Model {
    image.put(dir);
    let device = Device::open(dir, LIMITS).await;
    let state = device.state().await.unwrap();
    device.db.close().await;
    state
}

#[test]
fn work_that_is_stopped_at_any_point_leaves_nothing_and_can_be_done_again() {
    block_on(async {
        let base = tempfile::tempdir().unwrap();
        let device = Device::open(base.path(), LIMITS).await;
        let mut model = Model::default();
        let mut stops = 0;
        for (seconds, action) in script(at(0).as_second() as u64) {
            device.outbox.max_exposed.store(model.head, Ordering::Relaxed);
            let after = action.apply(&model, LIMITS, model.head, at(seconds));
            for step in 1.. {
                device.abort_at(step);
                let outcome = action.perform(&device.outbox, at(seconds)).await;
                device.calm();
                let state = device.state().await.unwrap();
                if outcome.is_ok() {
                    assert_eq!(state, after, "{action:?}");
                    break;
                }
                stops += 1;
                assert_eq!(state, model, "{action:?} stopped at {step}: {outcome:?}");
            }
            model = after;
        }
        assert!(stops > 200, "{stops}");
    });
}
