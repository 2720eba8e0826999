//! Other writers: another publisher, the renewer, and a publish whose answer was lost.

use super::*;

#[tokio::test(start_paused = true)]
async fn documents_that_the_publisher_reasserted_are_no_conflicts() {
    let (stream, devices) = (Stream::default(), ROUND);
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    for at in 0..devices {
        let (before, now) = stream.0.lock().unwrap().republish(&key(at));
        publisher.announcer.renewed(key(at), before, now).await;
    }
    publisher.commit(fleet("c2", devices, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!((publisher.metrics.conflicts.get(), stream.0.lock().unwrap().reads), (0, 0));
    // A late notice about an older sequence: the newer one stays.
    publisher.announcer.renewed(key(0), 1, 2).await;
    publisher.commit(fleet("c3", devices, "newest")).await.unwrap();
    publisher.applied("c3").await;
    assert_eq!((publisher.metrics.conflicts.get(), stream.0.lock().unwrap().reads), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn documents_reasserted_by_another_process_are_read_and_are_no_conflicts() {
    let (stream, devices) = (Stream::default(), ROUND);
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    for at in 0..devices {
        stream.0.lock().unwrap().republish(&key(at));
    }
    stream.0.lock().unwrap().read_takes = Duration::from_millis(10);
    let begun = Instant::now();
    publisher.commit(fleet("c2", devices, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert!(begun.elapsed() < Duration::from_secs(1), "one after another: {:?}", begun.elapsed());
    assert_eq!(publisher.metrics.conflicts.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_documents_of_another_writer_are_conflicts() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    for (revision, fault, conflicts) in
        [("c1", Fault::Unanswered, 0), ("c2", Fault::Overtaken, 1), ("c3", Fault::Lost, 1)]
    {
        stream.0.lock().unwrap().faults.push_back(fault);
        publisher.commit(fleet(revision, 1, revision)).await.unwrap();
        publisher.applied(revision).await;
        assert_eq!(publisher.metrics.conflicts.get(), conflicts, "{fault:?}");
    }
}

impl Running {
    /// Reports the commits that came before `revision`.
    async fn follows(&self, revision: &str, older: &[&str]) {
        let older = older.iter().map(ToString::to_string).collect();
        self.announcer.follows(revision.to_owned(), older).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// Reports the generation of a device's heartbeat; the announcer reads the document of another publisher.
    async fn hears(&self, device: usize, generation: u64) {
        assert!(
            self.announcer
                .report_generations(vec![(key(device), Generation::new(generation).unwrap())])
                .await
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    fn publish_error(&self) -> Option<String> {
        self.status.answer().git.unwrap().error
    }
}

/// Two publishers; the first has the first of two commits, the second has both.
async fn left_behind(stream: &Stream) -> (Running, Running) {
    let (stuck, well) = (Running::start(stream), Running::start(stream));
    for publisher in [&stuck, &well] {
        publisher.commit(fleet("c1", 2, "old")).await.unwrap();
        publisher.applied("c1").await;
    }
    well.commit(fleet("c2", 2, "newer")).await.unwrap();
    well.applied("c2").await;
    (stuck, well)
}

fn command(stream: &Stream, device: usize, id: &str) -> String {
    let stored = stream.0.lock().unwrap();
    let mut entries = stored.last[&key(device)].1.deployments.iter();
    let entry = entries.find(|entry| entry.id.as_str() == id).unwrap();
    entry.profile.components[0].properties["command"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_publisher_with_stale_git_keeps_the_newer_commit() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    let answer = stuck.change(0, applying("web", "run")).await.unwrap();
    assert!(answer.changed, "{answer:?}");
    let shown = |device| (command(&stream, device, "log"), ids(&stream, device));
    assert_eq!(shown(0), ("newer".to_owned(), vec!["log".to_owned(), "web".to_owned()]));
    assert_eq!(stream.0.lock().unwrap().last[&key(0)].1.source.revision, "c2");
    let refused = stuck.change(0, Change::Remove(None)).await.unwrap_err();
    assert!(
        refused.code == ErrorCode::Conflict && refused.message.contains("that this one does not know"),
        "{refused:?}"
    );
    let publish_error = stuck.status.answer().git.unwrap().error.unwrap();
    assert!(
        publish_error.contains("1 desired states are of a commit that another publisher"),
        "{publish_error}"
    );

    // A Git without that commit may lag behind, also with another commit that is new to this publisher.
    for revision in ["c1", "c1-and-a-bit"] {
        stuck.commit(fleet(revision, 2, revision)).await.unwrap();
        stuck.follows(revision, &["c0"]).await;
        assert_eq!(
            (command(&stream, 0, "log"), command(&stream, 1, "log")),
            ("newer".into(), "newer".into())
        );
    }
    stuck.commit(fleet("c3", 2, "newest")).await.unwrap();
    stuck.follows("c1", &["c2"]).await;
    assert_eq!(command(&stream, 0, "log"), "newer", "the older commits are those of another commit");
    stuck.follows("c3", &["c0", "c1", "c2"]).await;
    stuck.applied("c3").await;
    assert_eq!((command(&stream, 0, "log"), command(&stream, 1, "log")), ("newest".into(), "newest".into()));
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn a_late_commit_does_not_replace_another_publishers_newer_commit() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    // Git answers again, with a commit from before the other publisher's newest.
    stuck.commit(fleet("c2-late", 2, "late")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    for device in 0..2 {
        assert_eq!(command(&stream, device, "log"), "newer");
    }
    assert_ne!(stuck.status.answer().git.unwrap().applied.as_deref(), Some("c2-late"));
    // The branch has the order of the commits.
    stuck.follows("c2-late", &["c1", "c2"]).await;
    stuck.applied("c2-late").await;
    assert_eq!(command(&stream, 1, "log"), "late");
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn a_request_does_not_restore_a_folder_that_a_newer_commit_removed() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    well.commit(fleet("c3", 1, "newer")).await.unwrap();
    well.applied("c3").await;
    well.change(1, applying("web", "run")).await.unwrap();
    assert_eq!(ids(&stream, 1), ["web"]);
    let answer = stuck.change(1, applying("db", "run")).await.unwrap();
    assert!(answer.changed, "{answer:?}");
    assert_eq!(ids(&stream, 1), ["db", "web"]);
}

#[tokio::test(start_paused = true)]
async fn stale_git_does_not_replace_a_newer_commit_that_was_read() {
    let stream = Stream::default();
    let (lagging, well) = left_behind(&stream).await;
    lagging.hears(0, 2).await;
    assert_eq!(lagging.announcer.unseen().await, BTreeSet::from(["c2".to_owned()]));
    lagging.follows("c1", &[]).await;
    assert_eq!(command(&stream, 0, "log"), "newer");
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn a_document_that_another_publisher_set_to_an_older_commit_is_due() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 1, "old")).await.unwrap();
    publisher.applied("c1").await;
    let mut older = stream.0.lock().unwrap().last[&key(0)].1.clone();
    publisher.commit(fleet("c2", 1, "newer")).await.unwrap();
    publisher.applied("c2").await;
    older.generation = Generation::new(3).unwrap();
    stream.0.lock().unwrap().put(&key(0), older);
    assert_eq!(command(&stream, 0, "log"), "old");
    publisher.hears(0, 3).await;
    assert_eq!(command(&stream, 0, "log"), "newer");
}

#[tokio::test(start_paused = true)]
async fn a_commit_fetched_earlier_does_not_replace_a_newer_one_read_meanwhile() {
    let stream = Stream::default();
    let first = Running::start(&stream);
    first.commit(fleet("c1", 1, "old")).await.unwrap();
    first.applied("c1").await;
    first.stop().await;
    let (slow, well) = (Running::start(&stream), Running::start(&stream));
    // The slow publisher still fetches c1.
    slow.announcer.known().await;
    well.commit(fleet("c2", 1, "newer")).await.unwrap();
    well.applied("c2").await;
    slow.hears(0, 2).await;
    slow.commit(fleet("c1", 1, "old")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(command(&stream, 0, "log"), "newer");
}

#[tokio::test(start_paused = true)]
async fn an_unseen_commit_is_seen_once_it_is_accepted() {
    let stream = Stream::default();
    let (late, well) = left_behind(&stream).await;
    late.hears(0, 2).await;
    late.commit(fleet("c2", 2, "newer")).await.unwrap();
    late.applied("c2").await;
    assert_eq!((late.announcer.unseen().await, late.publish_error()), (BTreeSet::new(), None));
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn the_status_has_an_unknown_commit_and_the_git_error() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    stuck.status.polled(Timestamp::UNIX_EPOCH, Some("no such host".to_owned()));
    stuck.hears(0, 2).await;
    let publish_error = stuck.publish_error().unwrap();
    assert!(
        publish_error.contains("no such host") && publish_error.contains("1 desired states are of a commit"),
        "{publish_error}"
    );
    // The other publisher sets the device back to the commit that this one knows.
    well.commit(fleet("c1", 2, "old")).await.unwrap();
    well.applied("c1").await;
    stuck.hears(0, 3).await;
    assert_eq!(stuck.publish_error().as_deref(), Some("no such host"));
}
