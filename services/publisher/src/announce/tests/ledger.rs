//! The sequence as of which LEDGER holds a commit: that of its last document, and later documents do not change it.

use muster_contract::desired::DesiredState;

use super::*;
use crate::device_table::LedgerCopy;

/// LEDGER's copies of every newest document, the first at sequence `first`.
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
    /// The applied commit and its sequence in LEDGER, once LEDGER holds these copies as well.
    async fn after(&self, copies: Vec<LedgerCopy>) -> (Option<String>, Option<u64>) {
        assert!(self.announcer.in_ledger(copies).await);
        // The announcer executes commands one after the other.
        self.announcer.unseen().await;
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
async fn ledger_holds_no_commit_while_it_holds_half_of_one() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    assert_eq!(publisher.after(copies(&stream, 1)).await, at("c1", Some(2)));
    // The stream loses the second document of the next commit several times.
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
async fn ledger_holds_an_older_commit_again_once_it_is_republished() {
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
    second.announcer.resume(fleet("c1", 2, "run"), BTreeSet::new()).await.unwrap();
    second.applied("c1").await;
    assert_eq!(second.after(Vec::new()).await, at("c1", None), "LEDGER was not read yet");
    assert_eq!(second.after(copies(&stream, 5)).await, at("c1", Some(6)));
    // LEDGER is created again, and gets DOWNLINK's documents again.
    assert!(second.announcer.ledger_restarted().await);
    assert_eq!(second.after(Vec::new()).await, at("c1", None));
    assert_eq!(second.after(copies(&stream, 1)).await, at("c1", Some(2)));
}

#[tokio::test(start_paused = true)]
async fn ledger_holds_a_commit_again_once_it_replaced_another_writers() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    let mut old = stream.0.lock().unwrap().last[&key(0)].1.clone();
    publisher.commit(fleet("c2", 2, "newer")).await.unwrap();
    publisher.applied("c2").await;
    assert_eq!(publisher.after(copies(&stream, 11)).await, at("c2", Some(12)));
    // Another publisher starts, its Git lags behind, and it publishes the older commit.
    old.generation = stream.0.lock().unwrap().last[&key(0)].1.generation.next();
    stream.0.lock().unwrap().put(&key(0), old.clone());
    assert!(publisher.announcer.report_generations(vec![(key(0), old.generation)]).await);
    let is_back = || stream.0.lock().unwrap().last[&key(0)].1.generation > old.generation;
    while !is_back() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(publisher.after(Vec::new()).await, at("c2", None), "LEDGER holds the other one's");
    assert_eq!(publisher.after(copies(&stream, 21)).await, at("c2", Some(21)));
}
