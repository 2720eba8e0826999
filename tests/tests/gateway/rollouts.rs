//! Decisions about rollouts from a page and from a program, on a version of them and once for each key, their events, and their
//! past.

use std::net::SocketAddr;

use muster_contract::Timestamp;
use muster_contract::view::Verdict;
use muster_tests::rollouts::{PLANNER, json as json_of, start_planner, tamper};
use muster_tests::story::{self, sleeper};
use muster_tests::system::{PUBLISHER, System};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::client::{Answer, get, post, post_from};
use super::events::Events;
use super::planning::{done, plan};
use super::served;

const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-1]}
  - {name: pair, count: 1, approval: before}
";

async fn history(system: &System) -> String {
    String::from_utf8(system.muster(&["rollout", "history", "web"]).await.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_approved_paused_and_resumed_from_its_page() {
    let (system, addr) = served().await;
    system.repository.write("fleet/rollout.yaml", ROLLOUT).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web", 2)).unwrap();
    system.repository.commit("a release in waves").await.unwrap();
    let page = system
        .eventually("the page shows the waves", async || match get(addr, "/rollouts/web").await {
            Ok(page) if page.status == 200 && page.body.contains("wave canary") => Ok(page.body),
            other => Err(format!("{other:?}")),
        })
        .await;
    assert!(page.contains("action=\"/rollouts/web/pause\"") && page.contains("Approve wave pair"), "{page}");

    let paused = post(addr, "/rollouts/web/pause", "file=fleet%2Frollout.yaml&reason=looking").await.unwrap();
    assert_eq!((paused.status, paused.header("location")), (303, Some("/rollouts/web")), "{paused:?}");
    let shown = history(&system).await;
    assert!(shown.contains("pause") && shown.contains("looking"), "{shown}");
    let page = get(addr, "/rollouts/web").await.unwrap().body;
    assert!(page.contains("action=\"/rollouts/web/resume\"") && page.contains("paused"), "{page}");

    let resumed = post(addr, "/api/v1/rollouts/web/resume", "").await.unwrap();
    assert_eq!((resumed.status, &resumed.json()[0]["changed"]), (200, &true.into()), "{resumed:?}");
    let approved = post(addr, "/rollouts/web/approve", "wave=pair").await.unwrap();
    assert_eq!(approved.status, 303, "{approved:?}");
    assert!(history(&system).await.contains("approve"));
    let again = post(addr, "/api/v1/rollouts/web/approve", "wave=nosuch").await.unwrap();
    assert_eq!(again.status, 409, "{again:?}");

    system
        .eventually("`next` releases to all devices", async || {
            let next =
                post(addr, "/api/v1/rollouts/web/next", "").await.map_err(|error| error.to_string())?;
            let is_done = next.body.contains("\"step\":\"done\"");
            if is_done { Ok(()) } else { Err(next.body) }
        })
        .await;
    story::verdict(&system, "web", 2, Verdict::Converged).await;
}

/// A system with a rollout that waits for an approval, and a gateway before it.
async fn held() -> (System, SocketAddr) {
    let (system, addr) = served().await;
    system.repository.write("fleet/rollout.yaml", ROLLOUT).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web", 2)).unwrap();
    system.repository.commit("a release in waves").await.unwrap();
    shown(&system, addr).await;
    (system, addr)
}

async fn shown(system: &System, addr: SocketAddr) -> Answer {
    let look = async || match get(addr, "/api/v1/rollouts/web").await {
        Ok(answer) if answer.status == 200 => Ok(answer),
        other => Err(format!("{other:?}")),
    };
    system.eventually("the gateway answers about the rollout", look).await
}

async fn decide(addr: SocketAddr, verb: &str, headers: &[(&str, &str)], form: &str) -> Answer {
    post_from(addr, &format!("/api/v1/rollouts/web/{verb}"), headers, form).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_rolled_back_and_retried_from_its_page() {
    let (system, addr) = held().await;
    let released = async || {
        let waves = shown(&system, addr).await.json()[0]["state"]["waves"].clone();
        waves[0]["tally"]["released"].as_u64()
    };
    assert_eq!(decide(addr, "next", &[], "").await.status, 200);
    assert_eq!(released().await, Some(1), "the canary has the new content");
    let form = "file=fleet%2Frollout.yaml&reason=noise";
    let back = post(addr, "/rollouts/web/rollback", form).await.unwrap();
    assert_eq!((back.status, back.header("location")), (303, Some("/rollouts/web")), "{back:?}");
    assert_eq!(released().await, Some(0), "the canary has the content before it again");
    let page = get(addr, "/rollouts/web").await.unwrap().body;
    assert!(page.contains("rolled back") && page.contains("action=\"/rollouts/web/retry\""), "{page}");
    assert!(!page.contains("action=\"/rollouts/web/resume\""), "{page}");
    let retried = post(addr, "/rollouts/web/retry", "file=fleet%2Frollout.yaml").await.unwrap();
    assert_eq!((retried.status, retried.header("location")), (303, Some("/rollouts/web")), "{retried:?}");
    let page = get(addr, "/rollouts/web").await.unwrap().body;
    assert!(page.contains("action=\"/rollouts/web/pause\""), "{page}");
    let shown = history(&system).await;
    assert!(shown.contains("rollback") && shown.contains("noise") && shown.contains("retry"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_made_on_the_version_that_it_names_alone() {
    let (system, addr) = held().await;
    let before = shown(&system, addr).await.header("etag").unwrap().to_owned();
    let same = shown(&system, addr).await;
    assert_eq!(same.header("etag"), Some(before.as_str()), "evidence is no part of the version");
    let paused = decide(addr, "pause", &[("If-Match", &before)], "").await;
    assert_eq!(paused.status, 200, "{paused:?}");
    let now = shown(&system, addr).await.header("etag").unwrap().to_owned();
    assert_ne!(now, before, "a decision is another version");
    for (verb, tag) in [("resume", before.as_str()), ("next", &before), ("stop", "\"other\"")] {
        let late = decide(addr, verb, &[("If-Match", tag)], "").await;
        assert_eq!((late.status, late.json()["retryable"].as_bool()), (412, Some(false)), "{verb}: {late:?}");
    }
    assert_eq!(decide(addr, "resume", &[("If-Match", "W/\"a\"")], "").await.status, 400);
    let shown_after = history(&system).await;
    assert!(!shown_after.contains("resume") && !shown_after.contains("stop"), "{shown_after}");
    let both = format!("\"other\", {now}");
    assert_eq!(decide(addr, "resume", &[("If-Match", &both)], "").await.status, 200);
    let report =
        post_from(addr, "/api/v1/quarantine/drop", &[("If-Match", "\"a\"")], "all=true").await.unwrap();
    assert_eq!(report.status, 412, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_repeated_with_its_key_is_made_once() {
    let (system, addr) = held().await;
    let key = [("Idempotency-Key", "8e03978e-40d5")];
    let first = decide(addr, "pause", &key, "reason=looking").await;
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None), "{first:?}");
    assert_eq!(decide(addr, "resume", &[], "").await.status, 200);
    let again = decide(addr, "pause", &key, "reason=looking").await;
    assert_eq!((again.status, again.header("idempotency-replayed")), (200, Some("true")), "{again:?}");
    assert_eq!(again.body, first.body, "a late repetition pauses nothing");
    assert_eq!(history(&system).await.matches("pause").count(), 1, "{}", history(&system).await);
    let other = decide(addr, "pause", &key, "reason=else").await;
    assert_eq!((other.status, other.header("content-type")), (422, Some("application/problem+json")));
    let stop = decide(addr, "retry", &key, "").await;
    assert_ne!(stop.status, 422, "a key is of one address: {stop:?}");
    let long = "k".repeat(129);
    for wrong in ["", &long] {
        assert_eq!(decide(addr, "pause", &[("Idempotency-Key", wrong)], "").await.status, 400, "{wrong}");
    }
    let twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")];
    assert_eq!(decide(addr, "pause", &twice, "").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_rollouts_and_approvals_follow_decisions() {
    let (mut system, addr) = held().await;
    let path = "/api/v1/watch/rollouts/web";
    let mut events = Events::open_after(addr, path, None).await;
    let first = events.next().await;
    assert_eq!((first.kind.as_str(), &first.data["deployment"]), ("snapshot", &"web".into()));
    decide(addr, "pause", &[], "").await;
    let is_paused = |data: &Value| data["rollouts"][0]["state"] == "paused";
    let paused = loop {
        let change = events.next_of("change").await;
        if is_paused(&change.data) {
            break change;
        }
    };
    let mut resumed = Events::open_after(addr, path, paused.id_text.as_deref()).await;
    assert_eq!(resumed.next().await.kind, "alive", "the client has the current document");
    assert_eq!(get(addr, "/api/v1/watch/rollouts/nosuch").await.unwrap().status, 404);
    decide(addr, "resume", &[], "").await;

    let mut approvals = Events::open_after(addr, "/api/v1/watch/approvals", None).await;
    assert_eq!(approvals.next().await.kind, "snapshot");
    assert_eq!(decide(addr, "next", &[], "").await.status, 200, "the canary is released");
    system
        .eventually("the second wave waits for an approval", async || {
            let list = get(addr, "/api/v1/approvals").await.map_err(|error| error.to_string())?;
            let is_there = list.status == 200 && list.json()[0]["wave"] == "pair";
            if is_there { Ok(()) } else { Err(format!("{list:?}")) }
        })
        .await;
    let is_there = |data: &Value| data[0]["wave"] == "pair";
    while !is_there(&approvals.next_of("change").await.data) {}
    let rejected = decide(addr, "reject", &[], "wave=pair&reason=not+this+week").await;
    assert_eq!((rejected.status, &rejected.json()[0]["verb"]), (200, &"stop".into()), "{rejected:?}");
    assert!(history(&system).await.contains("wave pair is rejected: not this week"));
    assert_eq!(approvals.next_of("change").await.data, json!([]), "nothing waits any more");
    system.kill(PUBLISHER).await;
    let stale = approvals.next_of("stale").await;
    assert!(stale.data["cause"].as_str().unwrap().contains("muster-publisher"), "{stale:?}");
    system.start_again(PUBLISHER);
    assert_eq!(approvals.next_of("change").await.data, json!([]), "it is current again");
}

/// A plan with a node, whose CREATE waits for approval.
async fn planned_operation(addr: SocketAddr) {
    let key = "plant7/press-1";
    done(addr, "PUT /clusters/north", Value::Null, 201).await;
    let node = json!({ "updateDomain": "a", "totalResources": { "cores": 4, "memory": 8 } });
    done(addr, &format!("PUT /nodes/{key}"), node, 201).await;
    for state in ["allocating", "allocated"] {
        let body = json!({ "nodeState": state, "cluster": "north" });
        done(addr, &format!("POST /nodes/{key}/state"), body, 200).await;
    }
    done(addr, "PUT /plans/line", plan(1), 201).await;
    let deployment = json!({ "id": "first", "instances": 1, "coordinates": { "main": {} } });
    done(addr, "POST /plans/line/revisions", deployment, 202).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_approvals_have_operations_and_name_a_silent_planner() {
    let (mut system, addr) = served().await;
    let path = "/api/v1/watch/approvals";
    let mut events = Events::open_after(addr, path, None).await;
    assert_eq!(events.next().await.data, json!([]), "a hub without a planner tells its waves");
    let partial = events.next_of("partial").await;
    let cause = partial.data["cause"].as_str().unwrap();
    assert!(cause.contains("a hub without one has no plans"), "{partial:?}");
    start_planner(&mut system);
    events.next_of("whole").await;

    planned_operation(addr).await;
    let change = events.next_of("change").await;
    let waiting = &change.data[0];
    let id = waiting["operation"].as_str().unwrap();
    assert_eq!((&waiting["kind"], &waiting["plan"]), (&"operation".into(), &"line".into()), "{waiting}");
    assert_eq!(
        (&waiting["type"], &waiting["node"]["device"]),
        (&"CREATE".into(), &"press-1".into()),
        "{waiting}"
    );
    assert_eq!(waiting["command"], format!("muster operation approve {id}"));
    for field in ["since", "expiresAt", "message", "instance"] {
        assert!(waiting[field].is_string(), "{field}: {waiting}");
    }
    let mut resumed = Events::open_after(addr, path, change.id_text.as_deref()).await;
    assert_eq!(resumed.next().await.kind, "alive", "the client has the current list");

    system.kill(PLANNER).await;
    let partial = events.next_of("partial").await;
    assert!(partial.data["since"].is_string(), "{partial:?}");
    let mut late = Events::open_after(addr, path, None).await;
    assert_eq!((late.next().await.data, late.next().await.kind.as_str()), (change.data.clone(), "partial"));
    system.start_again(PLANNER);
    assert_eq!(events.next_of("whole").await.id_text, None);
    let instance = waiting["instance"].as_str().unwrap();
    let approve = format!("POST /plans/line/instances/{instance}/operations/{id}/approve");
    done(addr, &approve, Value::Null, 202).await;
    assert_eq!(events.next_of("change").await.data, json!([]), "nothing waits any more");
}

/// The answer at an address below `/rollouts`, which is the JSON of a command; the exit code of the command, and the answer.
async fn assert_same_as_command(
    system: &System,
    addr: SocketAddr,
    path: &str,
    words: &[&str],
) -> (i32, Value) {
    let answer = get(addr, &format!("/api/v1/rollouts/{path}")).await.unwrap();
    let (code, shown) = json_of(system, words).await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    assert_eq!(answer.json(), shown, "{path}");
    assert_eq!(answer.header("etag"), None, "the past is no version for If-Match");
    (code, shown)
}

/// The page of past rollouts shows a text, names its moment and offers no decision.
async fn assert_past_page(addr: SocketAddr, at: &str, shown: &str) {
    let page = get(addr, &format!("/rollouts/web?at={at}")).await.unwrap();
    assert_eq!(page.status, 200, "{page:?}");
    for part in [shown, "As known at", &format!("muster rollout show web --at {at}")] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("action=\"/rollouts/"), "{}", page.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn verified_decisions_and_past_rollouts_are_those_of_the_command() {
    let (system, addr) = held().await;
    let (verify, show) = (["rollout", "verify", "web"], ["rollout", "show", "web", "--at"]);
    assert_eq!(decide(addr, "pause", &[], "").await.status, 200);
    let paused_at = Timestamp::now().to_string();
    let (code, found) = assert_same_as_command(&system, addr, "web/verify", &verify).await;
    assert_eq!((code, &found["withoutEvidence"]), (2, &1.into()), "a person's decision: {found:#}");

    assert_eq!(decide(addr, "resume", &[], "").await.status, 200);
    assert_eq!(decide(addr, "next", &[], "").await.status, 200);
    let begun_at = Timestamp::now().to_string();
    let (code, found) = assert_same_as_command(&system, addr, "web/verify", &verify).await;
    let decision = &found["rollouts"][0]["decisions"][0];
    assert_eq!((code, &decision["verb"], &decision["result"]), (0, &"begin".into(), &"same".into()));
    for (at, list) in [(&paused_at, "unknown"), (&begun_at, "rollouts")] {
        let (code, found) =
            assert_same_as_command(&system, addr, &format!("web?at={at}"), &[&show[..], &[at]].concat())
                .await;
        assert_eq!((code, found[list].as_array().map(Vec::len)), (0, Some(1)), "{found:#}");
    }

    for (at, shown) in [(&paused_at, "Its waves are unknown"), (&begun_at, "wave canary")] {
        assert_past_page(addr, at, shown).await;
    }

    tamper(&system, |decision| {
        decision.evidence.iter_mut().for_each(|evidence| evidence.confirmed += 7);
    })
    .await;
    let (code, found) = assert_same_as_command(&system, addr, "web/verify", &verify).await;
    assert_eq!((code, &found["different"]), (1, &1.into()), "{found:#}");
    for (path, status, words) in [
        ("nosuch/verify", 404, "no rollout.yaml governs"),
        ("nosuch?at=1s", 404, "no rollout.yaml governs"),
        ("web?at=later", 400, "at: 'later' must be a time"),
        ("web?at=2999-01-01T00:00:00Z", 400, "in the future"),
        ("web/verify?at=1s", 400, "unknown parameter"),
    ] {
        let refused = get(addr, &format!("/api/v1/rollouts/{path}")).await.unwrap();
        assert!(refused.status == status && refused.body.contains(words), "{path}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_answer_about_the_past_of_rollouts_is_made_at_a_time() {
    let (mut system, addr) = held().await;
    system.freeze(PUBLISHER);
    let refused = async || {
        let mut first = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
        let request = format!("GET /api/v1/rollouts/web/verify HTTP/1.1\r\nHost: {addr}\r\n\r\n");
        first.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        match get(addr, "/api/v1/rollouts/web?at=1s").await {
            Ok(second) if second.status == 429 => Ok((first, second)),
            other => Err(format!("{other:?}")),
        }
    };
    let (first, second) = system.eventually("a second answer is refused", refused).await;
    assert_eq!(second.json()["retryable"], true, "{second:?}");
    assert!(second.header("retry-after").is_some(), "{second:?}");
    // Nobody answers the first request, but its client goes away.
    drop(first);
    let admitted = async || match get(addr, "/api/v1/rollouts/web?at=1s").await {
        Ok(third) if third.status != 429 => Ok(third),
        other => Err(format!("{other:?}")),
    };
    let third = system.eventually("a third answer is made", admitted).await;
    assert_eq!(third.status, 503, "the publisher stands still: {third:?}");
    system.thaw(PUBLISHER);
    let verified = async || match get(addr, "/api/v1/rollouts/web/verify").await {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    system.eventually("the decisions are verified", verified).await;
}
