//! The announcer with a stream that refuses, loses answers and has other writers.

mod decisions;
mod ledger;
mod limits;
mod stream;
mod writers;

use muster_contract::query::{ErrorBody, ErrorCode, PublishAnswer};
use muster_contract::{Generation, Timestamp};
use muster_service::clock::ManualClock;
use muster_service::supervisor::Supervisor;
use proptest::prelude::*;

use self::stream::{Fault, Stream};
use super::*;
use crate::content::Content;
use crate::content::tests::content;
use crate::metrics::CommitResult;
use crate::requests::{Change, Request};

/// A publisher that runs on a stream, in virtual time.
struct Running {
    announcer: AnnouncerHandle,
    status: Arc<Status>,
    metrics: Metrics,
    stop: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(stream: &Stream) -> Self {
        let status = Status::new(Some((&"/fleet".parse().unwrap(), &"main".parse().unwrap())));
        let metrics = Metrics::default();
        let context = Context {
            clock: Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH)),
            status: Arc::new(status),
            metrics: metrics.clone(),
            incidents: IncidentReporter::new().0,
            git: true,
        };
        let status = context.status.clone();
        let (task, announcer) = Announcer::new(stream.clone(), context, fastrand::Rng::with_seed(7));
        let stop = CancellationToken::new();
        let latch = Supervisor::new().health().latch("desired state");
        let ended = tokio::spawn(task.run(latch, stop.clone()));
        Self { announcer, status, metrics, stop, ended }
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
        self.announcer.commit(fleet).await
    }

    async fn change(&self, device: usize, change: Change) -> Result<PublishAnswer, ErrorBody> {
        self.announcer.change(Request { key: key(device), change, requested_by: None }).await
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

fn generations_rise(stream: &Stream) -> bool {
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
async fn a_start_after_a_crash_publishes_only_the_missing_documents() {
    let stream = Stream::default();
    // The stream stores ten documents and loses the others, and then the process is killed.
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
    assert!(generations_rise(&stream));
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_after_too_many_conflicts() {
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
async fn a_request_can_publish_the_last_document_of_a_commit() {
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
async fn a_request_is_refused_while_downlink_cannot_be_read() {
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
async fn an_unreadable_document_is_replaced() {
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
async fn garbage_on_a_subject_changes_neither_generation_nor_deployments() {
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
async fn a_device_ahead_of_its_document_gets_a_higher_generation_in_intervals() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    let last = || stream.0.lock().unwrap().generations[&key(0)].last().copied();
    let said = async |generation| {
        let beats = vec![(key(0), Generation::new(generation).unwrap())];
        assert!(publisher.announcer.report_generations(beats).await);
        // The announcer executes the command and runs rounds.
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    said(1).await;
    assert_eq!(last(), Some(1), "a device that keeps up changes nothing");
    said(40).await;
    assert_eq!(last(), Some(41));
    said(90).await;
    assert_eq!(last(), Some(41), "a device alone publishes at its own pace");
    tokio::time::sleep(reading::REPUBLISH_INTERVAL).await;
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
