//! Who else writes: another publisher, this one's own renewal, a device's document whose answer was lost.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_the_publisher_said_again_itself_is_read_by_nobody_and_counts_as_nobodys() {
    let (stream, devices) = (Stream::default(), ROUND);
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    for at in 0..devices {
        let (before, now) = stream.0.lock().unwrap().say_again(&key(at));
        publisher.desk.renewed(key(at), before, now).await;
    }
    publisher.commit(fleet("c2", devices, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!((publisher.metrics.conflicts.get(), stream.0.lock().unwrap().reads), (0, 0));
    // Told late, of a place that others have written on since: what is newer stays.
    publisher.desk.renewed(key(0), 1, 2).await;
    publisher.commit(fleet("c3", devices, "newest")).await.unwrap();
    publisher.applied("c3").await;
    assert_eq!((publisher.metrics.conflicts.get(), stream.0.lock().unwrap().reads), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_another_process_said_again_is_read_at_once_and_is_no_other_writers() {
    let (stream, devices) = (Stream::default(), ROUND);
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    for at in 0..devices {
        stream.0.lock().unwrap().say_again(&key(at));
    }
    stream.0.lock().unwrap().read_takes = Duration::from_millis(10);
    let begun = Instant::now();
    publisher.commit(fleet("c2", devices, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert!(begun.elapsed() < Duration::from_secs(1), "one after another: {:?}", begun.elapsed());
    assert_eq!(publisher.metrics.conflicts.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_what_somebody_else_wrote_counts_as_another_writers() {
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
    /// The branch is asked which commits came before one of ours.
    async fn follows(&self, revision: &str, older: &[&str]) {
        let older = older.iter().map(ToString::to_string).collect();
        self.desk.follows(revision.to_owned(), older).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    /// A device says at which generation it is, so that its document is read where another publisher has written it.
    async fn hears(&self, device: usize, generation: u64) {
        assert!(self.desk.heard(vec![(key(device), Generation::new(generation).unwrap())]).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    fn trouble(&self) -> Option<String> {
        self.status.answer().git.unwrap().error
    }
}

/// Two publishers of which the first was left behind at the first of two commits, for as long as nobody tells it more.
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
async fn a_request_at_a_publisher_whose_git_is_stuck_leaves_the_newer_commit_of_another_in_place() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    let answer = stuck.change(0, applying("web", "run")).await.unwrap();
    assert!(answer.changed, "{answer:?}");
    let shown = |device| (command(&stream, device, "log"), ids(&stream, device));
    assert_eq!(shown(0), ("newer".to_owned(), vec!["log".to_owned(), "web".to_owned()]));
    assert_eq!(stream.0.lock().unwrap().last[&key(0)].1.source.revision, "c2");
    let refused = stuck.change(0, Change::Remove(None)).await.unwrap_err();
    assert!(refused.code == ErrorCode::Conflict && refused.message.contains("has not seen"), "{refused:?}");
    let trouble = stuck.status.answer().git.unwrap().error.unwrap();
    assert!(trouble.contains("1 desired states are of a commit that another publisher"), "{trouble}");

    // A Git that answers without that commit may be behind itself, also where it has another one that is new here.
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
    assert_eq!(command(&stream, 0, "log"), "newer", "that is said of another commit");
    stuck.follows("c3", &["c0", "c1", "c2"]).await;
    stuck.applied("c3").await;
    assert_eq!((command(&stream, 0, "log"), command(&stream, 1, "log")), ("newest".into(), "newest".into()));
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_comes_late_to_a_device_does_not_undo_what_another_publisher_made_of_a_newer_one() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    // Git answers again, with what it said before the other publisher had the newest.
    stuck.commit(fleet("c2-late", 2, "late")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    for device in 0..2 {
        assert_eq!(command(&stream, device, "log"), "newer");
    }
    assert_ne!(stuck.status.answer().git.unwrap().applied.as_deref(), Some("c2-late"));
    // Of which came first the branch tells.
    stuck.follows("c2-late", &["c1", "c2"]).await;
    stuck.applied("c2-late").await;
    assert_eq!(command(&stream, 1, "log"), "late");
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_a_newer_commit_took_away_does_not_come_back_with_a_request() {
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
async fn a_git_that_lags_behind_puts_nothing_older_in_the_place_of_what_was_read() {
    let stream = Stream::default();
    let (lagging, well) = left_behind(&stream).await;
    lagging.hears(0, 2).await;
    assert_eq!(lagging.desk.unseen().await, BTreeSet::from(["c2".to_owned()]));
    lagging.follows("c1", &[]).await;
    assert_eq!(command(&stream, 0, "log"), "newer");
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn what_another_publisher_puts_back_to_an_older_commit_of_ours_is_due() {
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
async fn what_is_read_before_the_first_commit_is_not_undone_by_one_that_was_asked_for_before() {
    let stream = Stream::default();
    let first = Running::start(&stream);
    first.commit(fleet("c1", 1, "old")).await.unwrap();
    first.applied("c1").await;
    first.stop().await;
    let (slow, well) = (Running::start(&stream), Running::start(&stream));
    // The slow one fetches c1 still.
    slow.desk.known().await;
    well.commit(fleet("c2", 1, "newer")).await.unwrap();
    well.applied("c2").await;
    slow.hears(0, 2).await;
    slow.commit(fleet("c1", 1, "old")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(command(&stream, 0, "log"), "newer");
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_is_taken_late_is_unseen_no_more() {
    let stream = Stream::default();
    let (late, well) = left_behind(&stream).await;
    late.hears(0, 2).await;
    late.commit(fleet("c2", 2, "newer")).await.unwrap();
    late.applied("c2").await;
    assert_eq!((late.desk.unseen().await, late.trouble()), (BTreeSet::new(), None));
    drop(well);
}

#[tokio::test(start_paused = true)]
async fn what_a_heartbeat_had_read_is_told_beside_what_is_wrong_with_git() {
    let stream = Stream::default();
    let (stuck, well) = left_behind(&stream).await;
    stuck.status.polled(Timestamp::UNIX_EPOCH, Some("no such host".to_owned()));
    stuck.hears(0, 2).await;
    let trouble = stuck.trouble().unwrap();
    assert!(
        trouble.contains("no such host") && trouble.contains("1 desired states are of a commit"),
        "{trouble}"
    );
    // The other one puts it back to the commit that is known here.
    well.commit(fleet("c1", 2, "old")).await.unwrap();
    well.applied("c1").await;
    stuck.hears(0, 3).await;
    assert_eq!(stuck.trouble().as_deref(), Some("no such host"));
}
