//! Releases of a governed commit on a whole system with real agents: by hand, by the planner, paused or rolled back at the
//! canary, held by decisions of a person, and through kills of planner and publisher.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::view::Verdict;
use muster_tests::example::{Example, Language};
use muster_tests::rollouts::{
    DEVICES, PLANNER, all_have, document, governed, muster, published, release, says, shows, start_planner,
};
use muster_tests::story::{sleeper, verdict};
use muster_tests::system::{PUBLISHER, agent_name};
use muster_tests::watching::Watch;

const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-1]}
  - {name: pair, count: 2, maxInFlight: 1}
";

#[tokio::test]
async fn a_person_releases_wave_by_wave_and_a_watch_waits_for_the_last() {
    let (system, _) = governed(ROLLOUT).await;
    let commit = release(&system, &sleeper("web", 2)).await;
    let shown = shows(&system, "next: release to 1 device of wave canary").await;
    assert!(
        shown.contains("3 with sha256:") || shown.contains("4 with sha256:"),
        "an earlier content: {shown}"
    );
    let (code, listed) = muster(&system, &["rollout", "list"]).await;
    assert!(
        code == 0 && listed.contains("waiting for a release since") && listed.contains("4 devices"),
        "{listed}"
    );
    let (_, why) = muster(&system, &["why", "web"]).await;
    assert!(why.contains("held") && why.contains("by fleet/rollout.yaml"), "{why}");
    let words = ["web", "--until", "converged", "--commit", &commit, "--within", "60s"];
    let mut watch = Watch::start(&system, &words);
    watch.says("a change of web waits for its release").await;

    let mut steps = Vec::new();
    while steps.len() < 4 {
        let step = async || match muster(&system, &["rollout", "next", "web"]).await {
            (0, text) => Ok(text),
            (code, text) => Err(format!("{code}: {text}")),
        };
        steps.push(system.eventually("the next wave is released", step).await);
        if steps.len() == 1 {
            assert_eq!(published(&system).await, ["2", "1", "1", "1"]);
        }
    }
    assert!(steps[0].contains("wave canary: web is released to 1 device: plant7/press-1"), "{steps:?}");
    assert!(steps[1].contains("wave pair") && steps[2].contains("wave pair"), "one in flight: {steps:?}");
    assert!(steps[3].contains("wave rest"), "{steps:?}");
    let (code, said) = watch.end().await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(published(&system).await, ["2"; 4], "the watch ended with the last release");
    shows(&system, "done: every target has the content").await;
}

#[tokio::test]
async fn the_planner_pauses_a_bad_release_at_the_canary_and_says_why() {
    let (mut system, _) = governed(ROLLOUT).await;
    start_planner(&mut system);
    let broken = sleeper("web", 2).replace("command: sleep", "command: no-such-program");
    release(&system, &broken).await;
    shows(&system, "is paused since").await;
    assert_eq!(published(&system).await, ["2", "1", "1", "1"], "nobody else has it");
    let (code, next) = muster(&system, &["rollout", "next", "web"]).await;
    let why = "wave canary has failed: too many failures (plant7/press-1)";
    assert!(code == 1 && next.contains(why), "{next}");

    release(&system, &sleeper("web", 1)).await;
    all_have(&system, "1").await;
    verdict(&system, "web", 4, Verdict::Converged).await;
    release(&system, &sleeper("web", 3)).await;
    all_have(&system, "3").await;
}

#[tokio::test]
async fn a_dark_device_opens_no_gate() {
    let (mut system, devices) = governed(ROLLOUT).await;
    system.kill(&agent_name(&devices[0])).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    shows(&system, "needs 1 of 1 confirmed and has 0, at most 1: 1 not heard since ").await;
    assert_eq!(published(&system).await, ["2", "1", "1", "1"]);
    system.start_again(&agent_name(&devices[0]));
    all_have(&system, "2").await;
}

#[tokio::test]
async fn a_dark_device_within_the_debt_of_its_wave_holds_up_no_other() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - name: ours
    site: plant7
    offline: {debt: {after: 1s, max: 1}}
";
    let (mut system, devices) = governed(waves).await;
    system.kill(&agent_name(&devices[0])).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    all_have(&system, "2").await;
    shows(&system, "done: every gate is open; 1 target is not heard and left out").await;
}

#[tokio::test]
async fn a_wave_that_is_late_is_rolled_back_where_its_deadline_says_so() {
    let (mut system, devices) =
        governed(&format!("{ROLLOUT}deadlines: {{wave: 2s, atEnd: rollback}}\n")).await;
    system.kill(&agent_name(&devices[0])).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    let shown = shows(&system, "is rolled back since").await;
    let why = "the gate behind wave canary is not open by the deadline of the wave: 1 ";
    assert!(shown.contains(why), "{shown}");
    all_have(&system, "1").await;
}

#[tokio::test]
async fn kills_of_planner_and_publisher_release_nothing_twice_and_lose_nothing() {
    let (mut system, _) = governed(ROLLOUT).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    for (count, name) in [(0, PUBLISHER), (1, PLANNER), (1, PUBLISHER), (2, PLANNER), (3, PUBLISHER)] {
        let enough = async || {
            let released = published(&system).await.iter().filter(|release| *release == "2").count();
            if released >= count { Ok(()) } else { Err(format!("{released} are released")) }
        };
        system.eventually("so many devices have the release", enough).await;
        system.kill(name).await;
        system.start_again(name);
    }
    all_have(&system, "2").await;
    verdict(&system, "web", 4, Verdict::Converged).await;
    shows(&system, "done: every target has the content").await;
    for device in DEVICES {
        let generation = document(&system, device).await.generation.get();
        assert_eq!(generation, 2, "{device}: one document for one release");
    }
}

#[tokio::test]
async fn a_wave_that_needs_approval_waits_for_a_person() {
    let waves =
        "apiVersion: muster/v1\nkind: Rollout\nwaves:\n  - {name: ours, site: plant7, approval: before}\n";
    let (mut system, _) = governed(waves).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    shows(&system, "next: release to 2 devices of wave ours, which has 0 of 1 approvals").await;
    system
        .eventually("the planner has judged it", async || {
            let log = system.log(PLANNER);
            if log.contains("which has 0 of 1 approvals") { Ok(()) } else { Err(log) }
        })
        .await;
    assert_eq!(published(&system).await, ["1"; 4]);
    let (code, said) = muster(&system, &["rollout", "next", "web"]).await;
    assert_eq!(code, 0, "{said}");
    all_have(&system, "2").await;
}

#[tokio::test]
async fn a_canary_without_the_deployment_holds_it_until_a_person_goes_on() {
    // The canary runs `web` alone.
    let (mut system, _) = governed(ROLLOUT).await;
    start_planner(&mut system);
    system.repository.write("sites/plant8/tool.yaml", &sleeper("tool", 1)).unwrap();
    system.repository.commit("a tool of one site").await.unwrap();
    let show = ["rollout", "show", "tool"];
    says(&system, &show, "wave canary matches no target of tool").await;
    for device in &DEVICES[2..] {
        assert_eq!(document(&system, device).await.deployments.len(), 1, "{device}");
    }
    let (code, said) =
        muster(&system, &["rollout", "next", "tool", "--force", "--reason", "it is new"]).await;
    assert_eq!(code, 0, "{said}");
    says(&system, &show, "done: every target has the content").await;
    let (code, said) = muster(&system, &["rollout", "verify", "tool"]).await;
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn a_policy_in_python_approves_waves_and_the_evidence_of_waves() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: ours, site: plant7, approval: before}
  - {name: theirs, site: plant8, approval: after}
";
    let (mut system, _) = governed(waves).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    shows(&system, "which has 0 of 1 approvals").await;
    let url = system.server.url();
    let policy = Example::start(Language::Python, "approve", &["--hours", "0-24", "--url", &url]);
    all_have(&system, "2").await;
    let history = says(&system, &["rollout", "history", "web"], "has succeeded").await;
    policy.kill().await;
    assert_eq!(history.matches("o'clock").count(), 2, "each wave is approved once: {history}");
}

#[tokio::test]
async fn policy_rolls_a_bad_release_back_through_kills_and_history_says_why() {
    let (mut system, _) = governed(&format!("{ROLLOUT}onFailure: rollback\n")).await;
    start_planner(&mut system);
    let broken = sleeper("web", 2).replace("command: sleep", "command: no-such-program");
    release(&system, &broken).await;
    let begun = async || match document(&system, DEVICES[0]).await.generation.get() {
        1 => Err("it has the first generation".to_owned()),
        _ => Ok(()),
    };
    system.eventually("the canary got the bad release", begun).await;
    for name in [PLANNER, PUBLISHER] {
        system.kill(name).await;
        system.start_again(name);
    }
    let shown = shows(&system, "is rolled back since").await;
    assert!(shown.contains("wave canary has failed: too many failures (plant7/press-1)"), "{shown}");
    all_have(&system, "1").await;
    verdict(&system, "web", 4, Verdict::Converged).await;
    let (_, listed) = muster(&system, &["rollout", "list"]).await;
    assert!(listed.contains("is rolled back") && listed.contains("`muster rollout retry web`"), "{listed}");
    let (_, history) = muster(&system, &["rollout", "history", "web"]).await;
    let verbs: Vec<_> = history.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(verbs.contains(&"begin") && verbs.contains(&"rollback"), "{history}");
    assert!(history.contains("0 of 1 confirmed, 1 failed, at LEDGER"), "{history}");

    // A publisher that starts anew knows the decision, so the bad release stays where it is: nowhere.
    system.kill(PUBLISHER).await;
    system.start_again(PUBLISHER);
    shows(&system, "is rolled back since").await;
    assert_eq!(published(&system).await, ["1"; 4]);
    release(&system, &sleeper("web", 3)).await;
    all_have(&system, "3").await;
}

#[tokio::test]
async fn a_paused_rollout_reaches_no_further_device_until_it_is_resumed() {
    let (mut system, _) = governed(ROLLOUT).await;
    release(&system, &sleeper("web", 2)).await;
    shows(&system, "next: release to 1 device of wave canary").await;
    let (code, said) = muster(&system, &["rollout", "pause", "web", "--reason", "holiday"]).await;
    assert!(code == 0 && said.contains("is paused"), "{said}");
    let (_, again) = muster(&system, &["rollout", "pause", "web"]).await;
    assert!(again.contains("is paused, as before"), "{again}");
    start_planner(&mut system);
    system
        .eventually("the planner has judged it", async || {
            let log = system.log(PLANNER);
            if log.contains("is paused since") && log.contains("holiday") { Ok(()) } else { Err(log) }
        })
        .await;
    let one = ["rollout", "release", "web", "--device", "plant7/press-1"];
    let (code, refused) = muster(&system, &one).await;
    assert!(code == 1 && refused.contains("the rollout is paused"), "{refused}");
    assert_eq!(published(&system).await, ["1"; 4]);
    let (code, _) = muster(&system, &[&one[..], &["--force"]].concat()).await;
    assert_eq!((code, published(&system).await), (0, ["2", "1", "1", "1"].map(str::to_owned).to_vec()));
    let (code, said) = muster(&system, &["rollout", "resume", "web"]).await;
    assert!(code == 0 && said.contains("is running"), "{said}");
    all_have(&system, "2").await;
    shows(&system, "done: every target has the content").await;
}

#[tokio::test]
async fn a_planner_that_starts_after_a_pause_of_all_rollouts_begins_none() {
    let (mut system, _) = governed(ROLLOUT).await;
    release(&system, &sleeper("web", 2)).await;
    shows(&system, "next: release to 1 device of wave canary").await;
    let pause = ["rollout", "pause", "--all", "--reason", "restored from a backup"];
    let (code, said) = muster(&system, &pause).await;
    assert!(code == 0 && said.contains("web") && said.contains("is paused"), "{said}");
    start_planner(&mut system);
    system
        .eventually("the planner has judged it", async || {
            let log = system.log(PLANNER);
            if log.contains("is paused since") { Ok(()) } else { Err(log) }
        })
        .await;
    assert_eq!(muster(&system, &pause).await.0, 0, "a repetition changes nothing");
    assert_eq!(published(&system).await, ["1"; 4]);
    assert_eq!(muster(&system, &["rollout", "resume", "web"]).await.0, 0);
    all_have(&system, "2").await;
    let (_, history) = muster(&system, &["rollout", "history", "web"]).await;
    let found = ["pause", "resume", "begin"].map(|verb| history.find(&format!(" {verb} ")));
    assert!(found.is_sorted() && found.iter().all(Option::is_some), "{history}");
}

#[tokio::test]
async fn a_person_rolls_back_a_release_of_all_devices_and_begins_it_again() {
    let (mut system, _) = governed(ROLLOUT).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    all_have(&system, "2").await;
    let finished = async || match muster(&system, &["rollout", "history", "web"]).await {
        (0, text) if text.contains("has succeeded") => Ok(()),
        (_, text) => Err(text),
    };
    system.eventually("the planner has recorded the end", finished).await;
    let (code, said) = muster(&system, &["rollout", "rollback", "web", "--reason", "noise"]).await;
    assert!(code == 0 && said.contains("4 devices got the content before it"), "{said}");
    assert_eq!(published(&system).await, ["1"; 4]);
    let (code, said) = muster(&system, &["rollout", "resume", "web"]).await;
    assert!(code != 0 && said.contains("`muster rollout retry` continues it"), "{said}");
    let (code, said) = muster(&system, &["rollout", "retry", "web"]).await;
    assert!(code == 0 && said.contains("is running"), "{said}");
    all_have(&system, "2").await;
}

#[tokio::test]
async fn a_check_without_an_answer_holds_a_wave_and_passes_open_its_gate() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-1], checks: [{request: muster.check.smoke, interval: 1s, count: 2}]}
";
    let (mut system, _) = governed(waves).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    let shown = shows(&system, "nothing is known yet: muster.check.smoke is inconclusive").await;
    assert!(shown.contains("checking") && shown.contains("no service answers there"), "{shown}");
    assert_eq!(published(&system).await, ["2", "1", "1", "1"], "no answer is no pass");
    let (questions, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let pass = move |question: &[u8]| {
        let _ = questions.send(String::from_utf8_lossy(question).into_owned());
        br#"{"result":"pass"}"#.as_slice().into()
    };
    let _responder = system.bus.respond("muster.check.smoke", pass).await.unwrap();
    all_have(&system, "2").await;
    let question: serde_json::Value = serde_json::from_str(&asked.recv().await.unwrap()).unwrap();
    let counts = ["targets", "lo", "hi"].map(|field| question[field].as_u64().unwrap());
    assert_eq!((question["wave"].as_str(), counts), (Some("canary"), [1, 1, 1]), "{question}");
    assert!(asked.recv().await.is_some(), "it needs two passes");
    let (_, history) = muster(&system, &["rollout", "history", "web"]).await;
    assert!(history.contains("check pass") && !history.contains("inconclusive"), "{history}");
}

#[tokio::test]
async fn a_failed_check_rolls_the_wave_back_by_policy() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: canary, devices: [plant7/press-1], checks: [{request: muster.check.smoke}]}]
onFailure: rollback
";
    let (mut system, _) = governed(waves).await;
    let fail = |_: &[u8]| br#"{"result":"fail","reason":"latency doubled"}"#.as_slice().into();
    let _responder = system.bus.respond("muster.check.smoke", fail).await.unwrap();
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    let shown = shows(&system, "is rolled back since").await;
    let why = "a check of wave canary has failed: muster.check.smoke is fail: latency doubled";
    assert!(shown.contains(why), "{shown}");
    all_have(&system, "1").await;
}

#[tokio::test]
async fn a_preview_names_dark_devices_and_a_person_approves_the_evidence() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: ours, site: plant7, soak: 1s, approval: after}]
budget: {groupBy: line, maxUnavailable: 1}
";
    let (mut system, devices) = governed(waves).await;
    system.kill(&agent_name(&devices[3])).await;
    release(&system, &sleeper("web", 2)).await;
    let previewed = async || match muster(&system, &["rollout", "preview", "web"]).await {
        (0, text) if text.contains("not heard    1 device: plant8/press-4 (since ") => Ok(text),
        (_, text) => Err(text),
    };
    let text = system.eventually("the preview names the dark device", previewed).await;
    let clash =
        "budget       no line: 1 of 4 unavailable, 1 allowed (plant8/press-4); 3 devices wait for room";
    assert!(text.contains(clash), "{text}");
    assert!(text.contains("at the earliest") && text.contains("after approvals of ours"), "{text}");

    let free = waves.replace("maxUnavailable: 1", "maxUnavailable: 3");
    system.repository.write("fleet/rollout.yaml", &free).unwrap();
    release(&system, &sleeper("web", 2)).await;
    start_planner(&mut system);
    let shown = shows(&system, "waiting for approvals of the evidence of wave ours: 0 of 1").await;
    assert!(shown.contains("`muster rollout approve web --wave ours` gives one"), "{shown}");
    assert_eq!(published(&system).await, ["2", "2", "1", "1"]);
    let (code, said) = muster(&system, &["rollout", "approve", "web", "--wave", "ours"]).await;
    assert!(code == 0 && said.contains("1 of 1 approvals"), "{said}");
    all_have(&system, "2").await;
}

#[tokio::test]
async fn a_rate_holds_up_the_third_device_of_a_minute() {
    let waves = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: all, percent: 100%, perMinute: 2, order: {label: rank}}]
";
    let (mut system, _) = governed(waves).await;
    start_planner(&mut system);
    release(&system, &sleeper("web", 2)).await;
    shows(&system, "its rate leaves room for a further device at").await;
    assert_eq!(published(&system).await, ["2", "2", "1", "1"]);
}
