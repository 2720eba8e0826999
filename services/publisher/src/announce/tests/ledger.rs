//! As of when LEDGER holds a commit: never before its last document is in, and not otherwise because of what comes after.

use super::*;
use crate::copies::LedgerCopy;

/// What LEDGER holds once it has taken every newest document, the first of them at `first`.
fn copies(stream: &Stream, first: u64) -> Vec<LedgerCopy> {
    let stored = stream.0.lock().unwrap();
    let copy = |((key, (_, document)), ledger_seq): ((&DeviceKey, &(u64, DesiredState)), u64)| LedgerCopy {
        key: key.clone(),
        generation: document.generation,
        ledger_seq,
    };
    stored.last.iter().zip(first..).map(copy).collect()
}

impl Running {
    /// The commit that is applied, and as of where, once LEDGER holds these as well.
    async fn after(&self, copies: Vec<LedgerCopy>) -> (Option<String>, Option<u64>) {
        assert!(self.desk.in_ledger(copies).await);
        // Orders are obeyed one after the other.
        self.desk.unseen().await;
        let git = self.status.answer().git.unwrap();
        (git.applied, git.applied_through)
    }
}

fn at(revision: &str, through: Option<u64>) -> (Option<String>, Option<u64>) {
    (Some(revision.to_owned()), through)
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_in_ledger_as_of_its_last_document() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 3, "run")).await.unwrap();
    publisher.applied("c1").await;
    let mut in_time = copies(&stream, 11);
    let late = in_time.split_off(2);
    assert_eq!(publisher.after(in_time).await, at("c1", None));
    assert_eq!(publisher.after(late).await, at("c1", Some(13)));

    publisher.change(0, applying("web", "run")).await.unwrap();
    assert_eq!(publisher.after(copies(&stream, 21)).await, at("c1", Some(13)), "a request is no commit");
    publisher.commit(fleet("c2", 3, "run")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!(publisher.after(Vec::new()).await, at("c2", Some(23)), "it changes nothing");
    publisher.commit(fleet("c3", 3, "newer")).await.unwrap();
    publisher.applied("c3").await;
    assert_eq!(publisher.after(Vec::new()).await, at("c3", None));
}

#[tokio::test(start_paused = true)]
async fn half_a_commit_in_ledger_is_none_and_neither_is_the_one_before_until_it_is_published_again() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    assert_eq!(publisher.after(copies(&stream, 1)).await, at("c1", Some(2)));
    // The second document of the next one is lost on its way, again and again.
    stream.0.lock().unwrap().faults = [vec![Fault::None], vec![Fault::Lost; 30]].concat().into();
    publisher.commit(fleet("c2", 2, "newer")).await.unwrap();
    while stream.0.lock().unwrap().faults.len() > 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(publisher.after(copies(&stream, 11)).await, at("c1", None), "some of it is of c2 by now");
    publisher.applied("c2").await;
    assert_eq!(publisher.after(Vec::new()).await, at("c2", None));
    assert_eq!(publisher.after(copies(&stream, 21)).await.1, Some(22));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_the_branch_is_set_back_to_is_in_ledger_once_it_is_published_again() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    assert_eq!(publisher.after(copies(&stream, 1)).await, at("c1", Some(2)));
    stream.0.lock().unwrap().faults = [vec![Fault::None], vec![Fault::Lost; 30]].concat().into();
    publisher.commit(fleet("c2", 2, "newer")).await.unwrap();
    while stream.0.lock().unwrap().faults.len() == 31 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    assert_eq!(publisher.after(copies(&stream, 11)).await, at("c1", None), "a device has what c2 says");
    stream.0.lock().unwrap().faults.clear();
    while publisher.after(copies(&stream, 21)).await == at("c1", None) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(publisher.after(Vec::new()).await, at("c1", Some(22)));
    let stored = stream.0.lock().unwrap();
    let generations: Vec<_> = stored.generations.values().map(Vec::len).collect();
    assert_eq!(generations.iter().sum::<usize>(), 4, "one was published for c2 and again: {generations:?}");
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_was_started_again_finds_the_commit_in_ledger() {
    let stream = Stream::default();
    let first = Running::start(&stream);
    first.commit(fleet("c1", 2, "run")).await.unwrap();
    first.applied("c1").await;
    first.stop().await;
    let second = Running::start(&stream);
    second.desk.resume(fleet("c1", 2, "run")).await.unwrap();
    second.applied("c1").await;
    assert_eq!(second.after(Vec::new()).await, at("c1", None), "LEDGER was not read yet");
    assert_eq!(second.after(copies(&stream, 5)).await, at("c1", Some(6)));
    // LEDGER is made anew, and DOWNLINK's documents come to it again.
    assert!(second.desk.ledger_anew().await);
    assert_eq!(second.after(Vec::new()).await, at("c1", None));
    assert_eq!(second.after(copies(&stream, 1)).await, at("c1", Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_put_back_over_another_writers_is_in_ledger_once_that_is() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    let mut old = stream.0.lock().unwrap().last[&key(0)].1.clone();
    publisher.commit(fleet("c2", 2, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!(publisher.after(copies(&stream, 11)).await, at("c2", Some(12)));
    // Another publisher, whose Git lags behind, was started and takes what its branch says.
    old.generation = stream.0.lock().unwrap().last[&key(0)].1.generation.next();
    stream.0.lock().unwrap().put(&key(0), old.clone());
    assert!(publisher.desk.heard(vec![(key(0), old.generation)]).await);
    let is_back = || stream.0.lock().unwrap().last[&key(0)].1.generation > old.generation;
    while !is_back() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(publisher.after(Vec::new()).await, at("c2", None), "LEDGER holds the other one's");
    assert_eq!(publisher.after(copies(&stream, 21)).await, at("c2", Some(21)));
}
