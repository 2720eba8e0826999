//! `muster watch DEPLOYMENT` against the whole system: real services, real agents; what it says, when it ends, and how it
//! goes on after it or the hub was away.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::DeviceKey;
use muster_contract::notify::{Notice, NoticeEvent};
use muster_contract::view::{Standing, Verdict};
use muster_simulator::repository::write_devices;
use muster_tests::story::{self, sleeper};
use muster_tests::system::{ROLLUP, System, agent_name};
use muster_tests::wait::within;
use muster_tests::watching::{MISSED, Watch};

const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

fn verdict(notice: &Notice) -> Option<Verdict> {
    notice.state.as_ref().and_then(|state| state.verdict)
}

#[tokio::test]
async fn a_rollout_is_waited_for_from_before_it_is_there_until_it_has_converged() {
    let mut system = System::start().await;
    let devices: Vec<DeviceKey> = DEVICES.iter().map(|key| key.parse().unwrap()).collect();
    write_devices(&system.repository, &devices).unwrap();
    let hub = system.address();
    for device in &devices {
        system.start_agent(device, hub, &[]);
    }
    let answers = async || system.muster(&["fleet"]).await.status.success();
    within(muster_tests::system::DEADLINE, "a rollup that answers", answers, |answers| *answers).await;
    let mut watch = Watch::start(&system, &["web", "--until", "converged", "--within", "60s"]);
    system.repository.write("fleet/web.yaml", &sleeper("web", 1)).unwrap();
    system.repository.commit("web").await.unwrap();
    let lines = watch.rest().await;
    let has = |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["web  converged  2 of 2 converged: 2 installed; as of ledger"]), "{lines:#?}");
    assert!(has(&["  verdict ", "converged at 20"]), "{lines:#?}");
    assert!(DEVICES.iter().all(|device| has(&[device, "installed at 20"])), "{lines:#?}");
    let (code, said) = watch.end().await;
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("deployment 'web' is targeted nowhere") && said.contains("waiting for it"),
        "{said}"
    );

    let late = Watch::start(&system, &["web", "--until", "failing", "--within", "300ms"]);
    let (code, said) = late.end().await;
    assert_eq!(code, 3, "{said}");
    assert_eq!(said, "muster: the time is over: the watch waits for failing, the verdict is converged\n");
    let failed = ["web", "--until", "removing", "--fail-on", "failing,converged", "--within", "30s"];
    let (code, said) = Watch::start(&system, &failed).end().await;
    assert_eq!(code, 1, "a verdict of --fail-on ends it as failed: {said}");
    let (code, said) =
        Watch::start(&system, &["web", "--until", "failing", "--fail-on", "failing"]).end().await;
    assert!(code == 2 && said.contains("contradict"), "{said}");
    let there = Watch::start(&system, &["web", "--until", "converged"]);
    let (code, said) = there.end().await;
    assert_eq!(code, 0, "what is there already needs no waiting");
    assert!(said.contains("web was converged already as of ledger "), "{said}");
    for run in 1..=2 {
        let words = ["web", "--name", "night-shift", "--until", "converged", "--within", "30s"];
        let (code, said) = Watch::start(&system, &words).end().await;
        assert_eq!(code, 0, "run {run}, also where it was shown before: {said}");
    }
}

#[tokio::test]
async fn a_named_watch_goes_on_where_it_was_over_restarts_of_either_side() {
    let mut system = System::start().await;
    let devices = settled(&mut system).await;
    let words = ["web", "--name", "night-shift", "--format", "json"];
    let mut watch = Watch::start(&system, &words);
    let first = watch.notices(|notice| verdict(notice) == Some(Verdict::Converged)).await;
    assert_eq!((first[0].number, first[0].event), (1, NoticeEvent::Present));
    let shown = first.last().unwrap().number;
    assert_eq!(watch.interrupt().await, 0, "Ctrl-C is how a watch ends");

    // Both sides are away while a device falls silent.
    system.kill(ROLLUP).await;
    system.kill(&agent_name(&devices[1])).await;
    system
        .eventually("the hub has missed it", async || {
            let facts = system.ledger().await;
            let stale = facts.iter().any(|entry| {
                matches!(&entry.fact, muster_contract::fact::Fact::Liveness(fact)
                    if fact.state == muster_contract::fact::Liveness::Stale)
            });
            if stale { Ok(()) } else { Err(format!("{} facts", facts.len())) }
        })
        .await;
    system.start_again(ROLLUP);
    let mut watch = loop {
        // The rollup reads LEDGER first, and answers earlier questions with that.
        let mut watch = Watch::start(&system, &words);
        match watch.lines.next_line().await.unwrap() {
            Some(line) => {
                assert!(line.starts_with(MISSED) && line.contains(r#""freshness":"stale""#), "{line}");
                let line = watch.lines.next_line().await.unwrap().unwrap();
                let notice: Notice = muster_contract::decode::parse(line.as_bytes()).unwrap();
                assert!(notice.number > shown, "{} was shown before {shown}", notice.number);
                assert_eq!(verdict(&notice), Some(Verdict::ConvergedStale), "{line}");
                break watch;
            }
            None => assert_eq!(watch.end().await.0, 2),
        }
    };

    // The rollup is started anew under a watch that goes on.
    system.kill(ROLLUP).await;
    system.start_again(ROLLUP);
    system.start_agent(&devices[1], system.address(), &[]);
    let heard = watch.notices(|notice| verdict(notice) == Some(Verdict::Converged)).await;
    let numbers: Vec<_> = heard.iter().map(|notice| notice.number).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    let digests: Vec<_> = heard.iter().map(|notice| notice.digest).collect();
    assert!(digests.windows(2).all(|pair| pair[0] != pair[1]), "nothing is said twice");
    assert_eq!(watch.interrupt().await, 0);
}

#[tokio::test]
async fn the_devices_that_changed_are_named_in_each_notice() {
    let mut system = System::start().await;
    settled(&mut system).await;
    let mut watch = Watch::start(&system, &["web", "--format", "json"]);
    watch.notices(|notice| verdict(notice) == Some(Verdict::Converged)).await;
    system.repository.write("sites/plant8/tap.yaml", &sleeper("tap", 1)).unwrap();
    let broken = sleeper("web", 1).replace("sleep", "sleep-that-is-nowhere");
    system.repository.write("fleet/web.yaml", &broken).unwrap();
    system.repository.commit("a release that cannot start").await.unwrap();
    let failed = |notice: &Notice| {
        let state = notice.state.as_ref();
        let failed = state.and_then(|state| state.rollup.counts.get(&Standing::Failed));
        failed.is_some_and(|split| split.fresh == 2)
    };
    let notices = watch.notices(failed).await;
    let changes: Vec<_> = notices.iter().flat_map(|notice| &notice.changes).collect();
    for device in DEVICES {
        let of_it = |to| {
            changes.iter().any(|change| {
                change.key.to_string() == device && change.to.is_some_and(|stood| stood.standing == to)
            })
        };
        assert!(of_it(Standing::Failed), "{device}: {changes:?}");
    }
    assert!(changes.iter().all(|change| change.deployment.as_str() == "web"), "tap is another matter");
    drop(watch);
}

/// Two devices with one deployment, converged.
async fn settled(system: &mut System) -> Vec<DeviceKey> {
    story::settled(system, &DEVICES, "web").await
}
