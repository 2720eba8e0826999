//! Who else writes: another publisher, this one's own renewal, a device's document whose answer was lost.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_the_publisher_said_again_itself_is_read_by_nobody_and_counts_as_nobodys() {
    let (stream, devices) = (Stream::default(), ROUND);
    let publisher = Running::start(&stream);
    publisher.desk.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    for at in 0..devices {
        let (before, now) = stream.0.lock().unwrap().say_again(&key(at));
        publisher.desk.renewed(key(at), before, now).await;
    }
    publisher.desk.commit(fleet("c2", devices, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!((publisher.metrics.conflicts.get(), stream.0.lock().unwrap().reads), (0, 0));
    // Told late, of a place that others have written on since: what is newer stays.
    publisher.desk.renewed(key(0), 1, 2).await;
    publisher.change(0, applying("web", "run")).await.unwrap();
    assert_eq!(publisher.metrics.conflicts.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_another_process_said_again_is_read_at_once_and_is_no_other_writers() {
    let (stream, devices) = (Stream::default(), ROUND);
    let publisher = Running::start(&stream);
    publisher.desk.commit(fleet("c1", devices, "run")).await.unwrap();
    publisher.applied("c1").await;
    for at in 0..devices {
        stream.0.lock().unwrap().say_again(&key(at));
    }
    stream.0.lock().unwrap().read_takes = Duration::from_millis(10);
    let begun = Instant::now();
    publisher.desk.commit(fleet("c2", devices, "newer")).await.unwrap();
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
        publisher.desk.commit(fleet(revision, 1, revision)).await.unwrap();
        publisher.applied(revision).await;
        assert_eq!(publisher.metrics.conflicts.get(), conflicts, "{fault:?}");
    }
}
