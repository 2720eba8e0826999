//! Commits that exceed the limits of a device.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_device_over_the_limit_refuses_the_whole_commit_if_strict() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    let mut too_much = fleet("c2", 2, "other");
    too_much.policy.strict = true;
    too_much.devices.insert(key(7), (0..129).map(|at| content(&format!("d{at}"), "run")).collect());
    let problems = publisher.commit(too_much).await.unwrap_err().into_list();
    assert_eq!(problems[0].file, "sites/site/device-7");
    publisher.change(0, applying("web", "run")).await.unwrap();
    let status = publisher.status.answer();
    assert_eq!((status.git.unwrap().applied.as_deref(), status.published), (Some("c1"), 3));
    publisher.commit(fleet("c3", 2, "third")).await.unwrap();
    publisher.applied("c3").await;
}

#[tokio::test(start_paused = true)]
async fn a_device_over_the_limit_keeps_what_it_has_until_a_request_makes_room() {
    let stream = Stream::default();
    let publisher = Running::start(&stream);
    publisher.commit(fleet("c1", 2, "run")).await.unwrap();
    publisher.applied("c1").await;
    publisher.change(0, applying("own", "run")).await.unwrap();
    let mut much = fleet("c2", 2, "other");
    much.devices.insert(key(0), (0..128).map(|at| content(&format!("d{at}"), "run")).collect());
    publisher.commit(much).await.unwrap();
    publisher.applied("c2").await;
    let held_back = || publisher.status.answer().git.unwrap().held_back;
    let held = held_back().unwrap();
    assert_eq!((held.revision.as_str(), held.devices.first), ("c2", vec![key(0)]));
    assert!(held.problems[0].rule.contains("129 deployments"), "{:?}", held.problems);
    assert_eq!(ids(&stream, 0), ["log", "own"], "it keeps what it has");
    publisher.change(0, Change::Remove(None)).await.unwrap();
    assert_eq!((ids(&stream, 0).len(), held_back()), (128, None));
}
