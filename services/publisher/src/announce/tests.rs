//! The announcer against a stream that refuses, forgets to answer and has other writers.

mod ledger;
mod limits;
mod writers;

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use muster_bus::{ApiError, NoAnswer, ReadError};
use muster_contract::desired::DesiredState;
use muster_contract::query::{ErrorBody, ErrorCode, PublishAnswer};
use muster_contract::{Generation, Timestamp, decode};
use muster_service::clock::ManualClock;
use muster_service::life::Life;
use proptest::prelude::*;

use super::*;
use crate::content::Content;
use crate::content::tests::content;
use crate::downlink::{Message, Subject};
use crate::held::claimed;
use crate::requests::{Change, Request};
use crate::source::Fleet;

/// What becomes of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is stored and confirmed.
    None,
    /// It is lost on the way.
    Lost,
    /// It is stored, and the answer is lost.
    Unanswered,
    /// Somebody else writes first.
    Overtaken,
}

/// A stream with compare-and-set. Clones share it.
#[derive(Clone, Default)]
struct Stream(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    sequence: u64,
    last: BTreeMap<DeviceKey, (u64, DesiredState)>,
    /// Every generation each device got, in order.
    generations: BTreeMap<DeviceKey, Vec<u64>>,
    /// Every message each device got, as LEDGER has them as well.
    history: BTreeMap<DeviceKey, Vec<Bytes>>,
    /// Somebody's garbage, newer than the last document.
    garbage: BTreeMap<DeviceKey, u64>,
    faults: VecDeque<Fault>,
    reads_fail: usize,
    /// Single devices that were read.
    reads: usize,
    /// How long that takes each time.
    read_takes: Duration,
}

impl Stored {
    fn put(&mut self, key: &DeviceKey, document: DesiredState) -> u64 {
        self.sequence += 1;
        self.generations.entry(key.clone()).or_default().push(document.generation.get());
        self.history.entry(key.clone()).or_default().push(decode::to_bytes(&document).into());
        self.garbage.remove(key);
        self.last.insert(key.clone(), (self.sequence, document));
        self.sequence
    }

    /// Puts the last document of a device in its own place; where it stood, and where it stands.
    fn say_again(&mut self, key: &DeviceKey) -> (u64, u64) {
        self.sequence += 1;
        let (sequence, _) = self.last.get_mut(key).unwrap();
        (std::mem::replace(sequence, self.sequence), self.sequence)
    }

    fn spoil(&mut self, key: &DeviceKey) {
        self.sequence += 1;
        self.garbage.insert(key.clone(), self.sequence);
    }

    fn message(&self, key: &DeviceKey) -> Option<Message> {
        let garbage = self.garbage.get(key).map(|at| Message {
            sequence: *at,
            payload: "garbage".into(),
            published_as: None,
        });
        garbage.or_else(|| self.last.get(key).map(|last| message(key, last)))
    }

    fn publish(&mut self, letter: &Letter) -> Result<u64, PublishError> {
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        let refused = |cause| Err(PublishError::new("muster.desired", cause));
        let silence = ApiError::NoAnswer(NoAnswer::Disconnected);
        if fault == Fault::Lost {
            return refused(silence);
        }
        if fault == Fault::Overtaken {
            let mut theirs = letter.document.clone();
            theirs.deployments.clear();
            self.put(&letter.key, theirs);
        }
        let last = self.message(&letter.key).map_or(0, |message| message.sequence);
        if last != letter.expected_sequence {
            return refused(ApiError::Refused { code: 10071, description: "wrong last sequence".to_owned() });
        }
        let sequence = self.put(&letter.key, letter.document.clone());
        if fault == Fault::Unanswered { refused(silence) } else { Ok(sequence) }
    }

    fn read(&mut self) -> Result<(), ReadError> {
        if self.reads_fail == 0 {
            return Ok(());
        }
        self.reads_fail -= 1;
        Err(ReadError::TimedOut { what: "DOWNLINK".to_owned() })
    }
}

fn message(key: &DeviceKey, (sequence, document): &(u64, DesiredState)) -> Message {
    let published_as = Some(crate::foreign::name(key, document.generation));
    Message { sequence: *sequence, payload: decode::to_bytes(document).into(), published_as }
}

impl Downlink for Stream {
    async fn everybody(&self) -> Result<BTreeMap<DeviceKey, Subject>, ReadError> {
        let mut stored = self.0.lock().unwrap();
        stored.read()?;
        let subject = |key: &DeviceKey| {
            let last = stored.message(key).unwrap();
            Subject { highest: claimed(&last.payload), last }
        };
        Ok(stored.last.keys().map(|key| (key.clone(), subject(key))).collect())
    }

    async fn copies(&self, _: &BTreeMap<DeviceKey, Subject>) -> Result<Vec<(DeviceKey, Bytes)>, ReadError> {
        let stored = self.0.lock().unwrap();
        let newest = |(key, all): (&DeviceKey, &Vec<Bytes>)| Some((key.clone(), all.last()?.clone()));
        Ok(stored.history.iter().filter_map(newest).collect())
    }

    async fn history(&self, key: &DeviceKey) -> Result<Vec<Bytes>, ReadError> {
        Ok(self.0.lock().unwrap().history.get(key).cloned().unwrap_or_default())
    }

    async fn last(&self, key: &DeviceKey) -> Result<Option<Message>, ReadError> {
        let takes = self.0.lock().unwrap().read_takes;
        tokio::time::sleep(takes).await;
        let mut stored = self.0.lock().unwrap();
        stored.reads += 1;
        stored.read()?;
        Ok(stored.message(key))
    }

    async fn reported(&self, _: &DeviceKey) -> Result<bool, ReadError> {
        Ok(false)
    }

    async fn publish(&self, letters: Vec<Letter>) -> Vec<Result<u64, PublishError>> {
        let mut stored = self.0.lock().unwrap();
        letters.iter().map(|letter| stored.publish(letter)).collect()
    }
}

/// A publisher that runs on a stream, in virtual time.
struct Running {
    desk: Desk,
    status: Arc<Status>,
    metrics: Metrics,
    stop: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(stream: &Stream) -> Self {
        let status = Status::new(Some((&"/fleet".parse().unwrap(), &"main".parse().unwrap())));
        let metrics = Metrics::default();
        let around = Surroundings {
            clock: Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH)),
            status: Arc::new(status),
            metrics: metrics.clone(),
            incidents: IncidentReporter::new().0,
            git: true,
        };
        let status = around.status.clone();
        let (announcer, desk) = Announcer::new(stream.clone(), around, fastrand::Rng::with_seed(7));
        let stop = CancellationToken::new();
        let latch = Life::new().health().latch("desired state");
        let ended = tokio::spawn(announcer.run(latch, stop.clone()));
        Self { desk, status, metrics, stop, ended }
    }

    /// Waits until a commit is published whole.
    async fn applied(&self, revision: &str) {
        let applied = async {
            while self.status.answer().git.unwrap().applied.as_deref() != Some(revision) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(3600), applied).await.unwrap();
    }

    async fn stop(self) {
        self.stop.cancel();
        self.ended.await.unwrap();
    }

    async fn commit(&self, fleet: Fleet) -> Result<(), Problems> {
        self.desk.commit(fleet).await
    }

    async fn change(&self, device: usize, change: Change) -> Result<PublishAnswer, ErrorBody> {
        self.desk.change(Request { key: key(device), change, requested_by: None }).await
    }
}

fn key(at: usize) -> DeviceKey {
    format!("site/device-{at}").parse().unwrap()
}

fn fleet(revision: &str, devices: usize, command: &str) -> Fleet {
    let devices = (0..devices).map(|at| (key(at), vec![content("log", command)])).collect();
    Fleet { revision: revision.to_owned(), devices, ..Fleet::default() }
}

fn applying(id: &str, command: &str) -> Change {
    Change::Apply(vec![Content::clone(&content(id, command))])
}

fn ids(stream: &Stream, device: usize) -> Vec<String> {
    let stored = stream.0.lock().unwrap();
    stored.last[&key(device)].1.deployments.iter().map(|entry| entry.id.to_string()).collect()
}

fn rising(stream: &Stream) -> bool {
    let stored = stream.0.lock().unwrap();
    stored
        .generations
        .values()
        .all(|all| all.iter().collect::<BTreeSet<_>>().len() == all.len() && all.is_sorted())
}

#[tokio::test(start_paused = true)]
async fn a_commit_reaches_every_device_once() {
    let (stream, devices) = (Stream::default(), 3 * ROUND + 5);
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    assert_eq!(publisher.status.answer().published, devices as u64);
    publisher.commit(fleet("c2", devices, "run")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!(publisher.status.answer().published, devices as u64, "the same content was published again");
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_until_downlink_can_be_read() {
    let stream = Stream::default();
    stream.0.lock().unwrap().reads_fail = 5;
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    publisher.applied("c1").await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_halfway_is_completed_by_the_next_start_and_nothing_else_is_published() {
    let stream = Stream::default();
    // The first ten are stored, the others never arrive, and then the process dies.
    stream.0.lock().unwrap().faults = [[Fault::None; 10], [Fault::Lost; 10]].concat().into();
    let first = Running::start(&stream);
    first.commit(fleet("c1", 20, "run")).await.unwrap();
    while stream.0.lock().unwrap().last.len() < 10 {
        tokio::task::yield_now().await;
    }
    first.ended.abort();
    let second = Running::start(&stream);
    second.commit(fleet("c1", 20, "run")).await.unwrap();
    second.applied("c1").await;
    assert_eq!(second.status.answer().published, 10);
    assert!(stream.0.lock().unwrap().generations.values().all(|all| all == &[1]));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_with_what_the_device_shall_run() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    let first = publisher.change(0, applying("web", "run")).await.unwrap();
    assert!(first.changed && first.deployments.len() == 2, "{first:?}");
    let again = publisher.change(0, applying("web", "run")).await.unwrap();
    assert_eq!(again, PublishAnswer { changed: false, ..first });
    let removed = publisher.change(0, Change::Remove(None)).await.unwrap();
    assert!(removed.changed && removed.deployments.len() == 1, "{removed:?}");
    let refused = publisher.change(0, Change::Retire).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    let unheard_of = publisher.change(9, Change::Retire).await.unwrap_err();
    assert_eq!(unheard_of.code, ErrorCode::NotFound);
    let unknown = publisher.change(9, Change::Remove(None)).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_is_lost_is_still_a_change_made_once() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    publisher.applied("c1").await;
    for fault in [Fault::Unanswered, Fault::Lost, Fault::Overtaken] {
        let before = stream.0.lock().unwrap().generations[&key(0)].len();
        stream.0.lock().unwrap().faults.push_back(fault);
        let answer = publisher.change(0, applying("web", &format!("{fault:?}"))).await.unwrap();
        assert!(answer.changed, "{fault:?}: {answer:?}");
        let others = usize::from(fault == Fault::Overtaken);
        assert_eq!(stream.0.lock().unwrap().generations[&key(0)].len(), before + 1 + others, "{fault:?}");
        assert_eq!(ids(&stream, 0), ["log", "web"], "{fault:?}");
    }
    let web = || Change::Remove(Some("web".parse().unwrap()));
    stream.0.lock().unwrap().faults.push_back(Fault::Unanswered);
    let answer = publisher.change(0, web()).await.unwrap();
    assert!(answer.changed, "what is gone was taken back by this very request: {answer:?}");
    assert_eq!(ids(&stream, 0), ["log"]);
    assert_eq!(publisher.change(0, web()).await.unwrap_err().code, ErrorCode::NotFound);
    assert!(rising(&stream));
}

#[tokio::test(start_paused = true)]
async fn a_request_gives_up_rather_than_wait_for_ever() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    publisher.applied("c1").await;
    stream.0.lock().unwrap().faults = [Fault::Lost; 20].into();
    let refused = publisher.change(0, applying("web", "run")).await.unwrap_err();
    assert!(refused.code == ErrorCode::Conflict && refused.message.contains("ask again"), "{refused:?}");
    stream.0.lock().unwrap().reads_fail = 1;
    let refused = publisher.change(0, applying("web", "run")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Internal);
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_last_document_goes_out_with_a_request_is_published_all_the_same() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    stream.0.lock().unwrap().faults = [Fault::Lost].into();
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    while !stream.0.lock().unwrap().faults.is_empty() {
        tokio::task::yield_now().await;
    }
    publisher.change(0, applying("web", "run")).await.unwrap();
    publisher.applied("c1").await;
    let counted = publisher.metrics.commits.get_or_create(&CommitResult::Applied.label()).get();
    assert_eq!(counted, 1);
    let status = publisher.status.answer();
    assert_eq!(status.git.and_then(|git| git.error), None);
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_although_what_is_published_cannot_be_read() {
    let stream = Stream::default();
    stream.0.lock().unwrap().reads_fail = usize::MAX;
    let publisher = Running::start(&stream);
    let refused = publisher.change(0, applying("web", "run")).await.unwrap_err();
    assert!(refused.code == ErrorCode::NotReady && refused.message.contains("DOWNLINK"), "{refused:?}");
    stream.0.lock().unwrap().reads_fail = 0;
    while publisher.change(0, applying("web", "run")).await.is_err() {}
    assert_eq!(ids(&stream, 0), ["web"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_replaced() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    publisher.applied("c1").await;
    publisher.stop().await;
    // A digest that does not fit makes the document unreadable.
    stream.0.lock().unwrap().last.get_mut(&key(0)).unwrap().1.deployments[0].name = "other".to_owned();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    while stream.0.lock().unwrap().generations[&key(0)].len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stored = stream.0.lock().unwrap();
    assert_eq!(stored.last[&key(0)].1.generation, Generation::new(2).unwrap());
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_subject_costs_neither_the_generation_nor_what_was_applied() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    publisher.change(0, applying("web", "run")).await.unwrap();
    stream.0.lock().unwrap().spoil(&key(0));
    let answer = publisher.change(0, applying("db", "run")).await.unwrap();
    assert_eq!(answer.generation.get(), 3);
    stream.0.lock().unwrap().spoil(&key(0));
    publisher.stop().await;

    let publisher = Running::start(&stream);
    while stream.0.lock().unwrap().generations[&key(0)].len() < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ids(&stream, 0), ["db", "log", "web"]);
    publisher.commit(fleet("c1", 1, "run")).await.unwrap();
    publisher.applied("c1").await;
    assert_eq!(stream.0.lock().unwrap().generations[&key(0)], [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_past_its_document_gets_it_above_but_not_at_its_own_pace() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    let last = || stream.0.lock().unwrap().generations[&key(0)].last().copied();
    let said = async |generation| {
        let beats = vec![(key(0), Generation::new(generation).unwrap())];
        assert!(publisher.desk.heard(beats).await);
        // The next order is obeyed after this one, and rounds are run while nobody asks.
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    said(1).await;
    assert_eq!(last(), Some(1), "a device that keeps up changes nothing");
    said(40).await;
    assert_eq!(last(), Some(41));
    said(90).await;
    assert_eq!(last(), Some(41), "a device alone publishes at its own pace");
    tokio::time::sleep(reading::SAID_AGAIN_EVERY).await;
    said(90).await;
    assert_eq!((last(), ids(&stream, 0)), (Some(91), vec!["log".to_owned()]));
    assert_eq!(publisher.change(0, applying("web", "run")).await.unwrap().generation.get(), 92);
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault =
        prop_oneof![Just(Fault::None), Just(Fault::Lost), Just(Fault::Unanswered), Just(Fault::Overtaken),];
    prop::collection::vec(fault, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_fails_every_device_ends_with_the_last_commit(faults in faults(), reads_fail in 0..5_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let stream = Stream::default();
            stream.0.lock().unwrap().faults = faults.into();
            let publisher = Running::start(&stream);
            for commit in ["c1", "c2", "c3"] {
                publisher.commit(fleet(commit, 4, commit)).await.unwrap();
                stream.0.lock().unwrap().reads_fail = reads_fail;
            }
            publisher.applied("c3").await;
            let stored = stream.0.lock().unwrap();
            for (_, document) in stored.last.values() {
                let components = &document.deployments[0].profile.components;
                assert_eq!(components[0].properties["command"], "c3");
                assert_eq!(document.deployments[0].target_generation, document.generation);
            }
        });
    }
}
