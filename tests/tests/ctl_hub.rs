//! `muster` against a hub that the test plays: a real nats-server, answers and facts from `schemas/examples/`. What
//! the services themselves answer is in `ctl_live`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::future::ready;

use bytes::Bytes;
use muster_bus::{Bus, Call, Fault, Outgoing, Responder};
use muster_contract::DeviceKey;
use muster_contract::lag::RollupLag;
use muster_contract::query::{DevicesAnswer, ErrorCode, Query};
use muster_contract::view::content_digest;
use muster_ctl::terminal::Terminal;
use muster_tests::command::{Hub, Page, muster, refused, run};
use muster_tests::schemas;
use muster_tests::server::{Server, Setup};
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_service_that_is_not_there_is_named() {
    let hub = Hub::without_services().await;
    let said = hub.muster(&["status"]).await;
    assert_eq!(said.code, 2);
    let no_answer = "no muster-rollup answers on muster.query";
    let unknown = format!("the hub's incidents are not known: {no_answer}.incidents: is it running?\n");
    assert_eq!(said.err, format!("{unknown}muster: {no_answer}.deployments: is it running?\n"));
    let said = hub.muster(&["publisher", "status"]).await;
    assert_eq!(said.err, "muster: no muster-publisher answers on muster.publisher.status: is it running?\n");
}

#[tokio::test]
async fn json_is_the_answer_as_it_came() {
    let hub = played().await;
    for (words, name) in [
        (&["status"][..], "DeploymentsAnswer.two"),
        (&["device", "plant7/press-4"], "DeviceAnswer.in-detail"),
        (&["site", "plant7"], "SiteView.plant7"),
        (&["fleet"], "FleetView.fleet"),
        (&["publisher", "status"], "PublisherStatus.refused-commit"),
    ] {
        let said = hub.muster(&[words, &["--format", "json"]].concat()).await;
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{words:?}");
        assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap(), example(name), "{words:?}");
    }
}

#[tokio::test]
async fn q01_a_status_is_told_where_nobody_tells_what_was_done_and_that_is_said() {
    let hub = played().await;
    let said = hub.muster(&["status", "packet-tap", "--format", "emco"]).await;
    let shape: Value = serde_json::from_str(&said.out).unwrap();
    let why = "no muster-rollup answers on muster.query.actions: is it running?";
    assert_eq!((said.code, &shape["name"], &shape["statesLeftOut"]), (0, &json!("packet-tap"), &json!(why)));
    assert_eq!((shape.get("states"), shape["apps"].is_array()), (None, true), "{shape}");
}

#[tokio::test]
async fn a_timeline_is_not_answered_by_a_federation_and_that_is_said() {
    let said = played().await.muster(&["timeline"]).await;
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains("A federation has no timeline"), "{}", said.err);
}

#[tokio::test]
async fn a_timeline_begins_with_the_counts_that_hold_at_the_time() {
    let mut answer = example("TimelineAnswer.fleet");
    let reply = answer.to_string();
    let play = move |_| ready(Ok(reply.clone().into()));
    let hub = Hub::without_services().await.play(&[("timeline", "muster.query.timeline")], play).await;
    let said = hub.muster(&["timeline", "--since", "2026-08-22T09:45:00Z", "--format", "json"]).await;
    answer["points"].as_array_mut().unwrap().remove(0);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap(), answer);
}

#[tokio::test]
async fn a_list_is_read_to_its_end() {
    let hub = played().await;
    let said = hub.muster(&["devices", "--format", "json"]).await;
    let answer: DevicesAnswer = serde_json::from_str(&said.out).unwrap();
    let names: Vec<_> = answer.devices.iter().map(|line| line.key.to_string()).collect();
    assert_eq!(names, ["plant7/press-4", "plant7/press-9"]);
    assert_eq!(answer.next, None);
}

#[tokio::test]
async fn m04_silent_devices_are_listed_alone_also_past_a_page_without_any() {
    let hub = played().await;
    let dark = ["devices", "--freshness", "stale", "--freshness", "never"];
    let said = hub.muster(&[&dark[..], &["--format", "json"]].concat()).await;
    let answer: DevicesAnswer = serde_json::from_str(&said.out).unwrap();
    let names: Vec<_> = answer.devices.iter().map(|line| line.key.to_string()).collect();
    assert_eq!((names, said.code), (vec!["plant7/press-9".to_owned()], 0));
    let said = hub.muster(&dark).await;
    assert!(said.out.contains("\n1 device is stale or never heard: 1 of 1 never heard; "), "{}", said.out);
    let said = hub.muster(&["devices", "--freshness", "dark"]).await;
    assert!(said.code == 2 && said.err.contains("[possible values: fresh, stale, never]"), "{}", said.err);
}

#[tokio::test]
async fn what_is_not_found_is_a_no_with_near_names() {
    let hub = played().await;
    for (words, expected) in [
        (["status", "packet-tab"], "muster: there is none; did you mean packet-tap?\n"),
        (
            ["device", "plant7/press-5"],
            "muster: there is none; did you mean plant7/press-4 or plant7/press-9?\n",
        ),
        (["site", "plant8"], "muster: there is none; did you mean plant7?\n"),
        (["status", "something-else"], "muster: there is none\n"),
        (
            ["retire", "plant7/press-8"],
            "muster: there is none; did you mean plant7/press-4 or plant7/press-9?\n",
        ),
    ] {
        let said = hub.muster(&words).await;
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (1, "", expected), "{words:?}");
    }
}

#[tokio::test]
async fn a_table_is_what_render_makes_of_the_answer() {
    let hub = played().await;
    let said = hub.muster(&["status"]).await;
    assert!(said.out.contains("packet-tap") && said.out.contains("2-5 of 6"), "{}", said.out);
    let said = hub.muster(&["status", "--site", "plant7"]).await;
    assert!(said.out.ends_with("Counted at plant7 alone.\n"));
    assert!(!said.out.contains('\u{1b}'), "what is no terminal gets no colours");
}

#[tokio::test]
async fn an_audit_reads_accounts_and_views_and_says_no() {
    let hub = played().await;
    put_views(&hub).await;
    let said = hub.muster(&["audit"]).await;
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.out.contains("missing reports: 1 of 2 devices (plant7/press-4)"), "{}", said.out);
    assert!(!said.out.contains("wrong views"), "{}", said.out);
    let mut wrong = example("SiteView.plant7");
    wrong["targets"] = json!(8);
    put(&hub, "site.plant7", &wrong).await;
    let said = hub.muster(&["audit", "--site", "plant7", "--format", "json"]).await;
    let audit: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(audit["views"], json!([{ "key": "site.plant7", "verdict": "wrongDigest" }]));
    assert_eq!((said.code, &audit["explained"]), (1, &json!(false)));
}

#[tokio::test]
async fn an_audit_keeps_the_lag_that_one_of_its_answers_has() {
    let lag: RollupLag = serde_json::from_value(json!({ "cutOffSince": "2026-08-22T10:02:00Z" })).unwrap();
    let hub = played_by(move |call| {
        let answer = answer(call)?;
        // The first of the questions; each later one is answered by a rollup that has read LEDGER to its end.
        let is_first =
            call.endpoint == "devices" && !call.payload.windows(7).any(|part| part == b"\"after\"");
        Ok(if is_first { lag.mark(call.endpoint, &answer).into() } else { answer })
    })
    .await;
    put_views(&hub).await;
    let said = hub.muster(&["audit", "--format", "json"]).await;
    let audit: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &audit["rollup"]), (1, &json!(lag)));
    let said = hub.muster(&["audit"]).await;
    assert!(said.out.contains("the rollup is behind LEDGER, so the accounts may be old"), "{}", said.out);
}

#[tokio::test]
async fn a_view_that_never_comes_is_missed_after_the_timeout() {
    let hub = played().await;
    let said = hub.muster(&["audit", "--site", "plant7", "--timeout", "2s"]).await;
    assert!(said.out.contains("view site.plant7 is not in the bucket"), "{}", said.out);
}

/// An ingest that holds nothing in quarantine.
async fn empty_quarantine(bus: &Bus) -> Responder {
    let answer = |_: &[u8]| r#"{"reports":[],"devices":[]}"#.into();
    bus.respond("muster.ingest.quarantine.*", answer).await.unwrap()
}

#[tokio::test]
async fn what_became_of_rejected_reports_is_read_from_the_ledger() {
    let hub = played().await;
    let _ingest = empty_quarantine(&hub.bus).await;
    assert_eq!(hub.muster(&["quarantine", "list"]).await.out, "Nothing is in quarantine.\n");
    let dropped = example("QuarantineVerdict.dropped");
    let seq = publish(&hub, "muster.verdict.plant7.press-4", &dropped).await;
    publish(&hub, "muster.incident.plant7.press-4", &example("Incident.gap")).await;
    let said = hub.muster(&["quarantine", "list", "--settled", "--format", "json"]).await;
    let list: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&list["settled"]["dropped"], &list["verdicts"][0]["ledgerSeq"]), (&json!(1), &json!(seq)));
    let said = hub.muster(&["quarantine", "list"]).await;
    assert!(said.out.contains("Earlier: 0 accepted, 1 dropped, 0 expired."), "{}", said.out);
}

#[tokio::test]
async fn a_ledger_that_falls_silent_is_not_waited_for_longer_than_any_answer() {
    let deaf =
        "authorization { users = [ { user: hub, password: hub }, { user: deaf, password: deaf, permissions: {
        publish: { deny: \"$JS.API.CONSUMER.MSG.NEXT.>\" } } } ] }";
    let server = Server::start_with(Setup { more: deaf.to_owned(), ..Setup::default() });
    let url = |user: &str| server.url().replace("//", &format!("//{user}:{user}@"));
    let config = muster_bus::BusConfig { url: url("hub"), ..server.config("hub") };
    let bus = Bus::connect(config, &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    let fact = example("QuarantineVerdict.dropped").to_string();
    bus.publish(Outgoing::new("muster.verdict.plant7.press-4", fact)).await.unwrap();
    let _ingest = empty_quarantine(&bus).await;
    let url = url("deaf");
    let list = muster(&url, &["--timeout", "2s", "quarantine", "list"]);
    let said = soon("the end of the list", list).await;
    assert_eq!(said.code, 2);
    let err = said.err;
    assert!(err.contains("reading muster.verdict.> of LEDGER: nothing more came within 2s"), "{err}");
    assert!(err.contains("after 0 messages; ask again") && err.contains("--timeout"), "{err}");
}

#[tokio::test]
async fn a_device_nobody_heard_of_has_no_empty_quarantine() {
    let hub = played().await;
    let _ingest = empty_quarantine(&hub.bus).await;
    let said = hub.muster(&["quarantine", "list", "--device", "plant7/press-5"]).await;
    let words = "muster: never heard of plant7/press-5; did you mean plant7/press-4 or plant7/press-9?\n";
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (1, "", words));
    let said = hub.muster(&["quarantine", "list", "--device", "plant7/press-4"]).await;
    assert_eq!((said.code, said.out.as_str()), (0, "Nothing of plant7/press-4 is in quarantine.\n"));
}

#[tokio::test]
async fn a_site_nobody_knows_has_no_part_in_a_deployment() {
    let hub = played().await;
    let said = hub.muster(&["status", "packet-tap", "--site", "plant8"]).await;
    let words = "muster: site 'plant8' has no devices; did you mean plant7?\n";
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (1, "", words));
    let said = hub.muster(&["status", "packet-tap", "--site", "plant7"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
}

#[tokio::test]
async fn a_site_without_deployments_is_not_said_to_have_a_part_in_some() {
    let hub = played().await;
    let said = hub.muster(&["status", "--site", "plant9"]).await;
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(
        said.out.starts_with("No deployment is targeted or leaving at plant9; as of ledger "),
        "{}",
        said.out
    );
    assert_eq!(said.out.lines().count(), 1, "{}", said.out);
}

#[tokio::test]
async fn exports_are_of_status_alone_and_of_one_deployment() {
    let hub = played().await;
    for (words, says) in [
        (&["fleet", "--format", "emco"][..], "for `muster status` alone"),
        (&["status", "--format", "resourcegroup"], "name it"),
        (&["status", "packet-tap", "--budget", "4096"], "belong to --format resourcegroup"),
    ] {
        let said = hub.muster(words).await;
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{words:?}");
        assert!(said.err.contains(says), "{}", said.err);
    }
    let said = hub.muster(&["status", "packet-tap", "--format", "resourcegroup"]).await;
    assert!(said.out.starts_with("apiVersion: kpt.dev/v1alpha1\nkind: ResourceGroup\n"), "{}", said.out);
}

#[tokio::test]
async fn a_missing_permission_is_named_by_the_servers_own_words() {
    let key: DeviceKey = "plant7/press-4".parse().unwrap();
    let server = Server::start_with(Setup { devices: vec![key.clone()], ..Setup::default() });
    let said = muster(&server.device_url(&key), &["--timeout", "2s", "fleet"]).await;
    assert_eq!(said.code, 2);
    let (unknown, refusal) = said.err.split_once('\n').unwrap();
    assert!(unknown.starts_with("the hub's incidents are not known: "), "{unknown}");
    assert!(refusal.starts_with("muster: NATS refuses: "), "{refusal}");
    assert!(refusal.contains("muster.query.fleet"), "{refusal}");
}

#[tokio::test]
async fn a_small_screen_fits_its_frame_and_shows_the_lost_connection() {
    let mut hub = played().await;
    put_views(&hub).await;
    let (out, err) = (Page::default(), Page::default());
    let url = hub.server.url();
    let mut terminal = Terminal::screen(out.clone(), err.clone(), 60, 8);
    let watching = run(&url, &["watch"], &mut terminal);
    let looking = async {
        let shows = |words: &'static str| {
            let out = out.clone();
            async move { until(words, async || out.text(), |text: &String| text.contains(words)).await }
        };
        shows("failing").await;
        hub.server.kill();
        shows("the connection to NATS is lost").await;
    };
    tokio::select! {
        code = watching => panic!("the watch ended with {code}"),
        () = looking => {}
    }
    assert_eq!(err.text(), "", "nothing is written into the picture from beside it");
    for picture in out.text().split("\u{1b}[H") {
        let plain = anstream::adapter::strip_str(picture).to_string();
        assert!(plain.lines().count() < 8, "{plain}");
        assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
    }
}

#[tokio::test]
async fn a_watch_of_a_lost_hub_shows_the_address_and_the_begin_of_the_silence() {
    let mut hub = played().await;
    put_views(&hub).await;
    let (out, err, url) = (Page::default(), Page::default(), hub.server.url());
    let mut terminal = Terminal::of(out.clone(), err.clone());
    let watching = run(&url, &["watch"], &mut terminal);
    let looking = async {
        out.lines(2).await;
        hub.server.kill();
        err.lines(2).await
    };
    let lines = tokio::select! {
        code = watching => panic!("the watch ended with {code}"),
        lines = looking => lines,
    };
    assert_eq!(lines[0], "muster: the connection to NATS is lost; what is shown may be old");
    let since = format!("muster: nothing was heard from {url} since 20");
    assert!(lines[1].starts_with(&since) && lines[1].ends_with("Z; trying on"), "{lines:?}");
}

#[tokio::test]
async fn a_watch_prints_a_line_for_each_change_and_none_for_no_change() {
    let hub = played().await;
    let mut view = example("DeploymentView.converged");
    put(&hub, "deployment.packet-tap", &view).await;
    let (page, url) = (Page::default(), hub.server.url());
    let mut terminal = Terminal::of(page.clone(), Page::default());
    let watching = run(&url, &["watch", "--format", "json"], &mut terminal);
    let changing = async {
        page.lines(1).await;
        view["asOf"]["ledgerSeq"] = json!(5000);
        put(&hub, "deployment.packet-tap", &view).await;
        view["leaving"] = json!(1);
        view["digest"] = json!(content_digest(&view).to_string());
        put(&hub, "deployment.packet-tap", &view).await;
        hub.bus.view_delete("deployment.packet-tap", None).await.unwrap();
        page.lines(3).await
    };
    let lines = tokio::select! {
        code = watching => panic!("the watch ended with {code}"),
        lines = changing => lines,
    };
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], example("DeploymentView.converged"));
    assert_eq!(lines[1], view, "a view with the digest of the one before is no change");
    assert_eq!(lines[2], json!({ "key": "deployment.packet-tap", "gone": true }));
}

#[tokio::test]
async fn a_refused_request_is_a_no_in_the_publishers_words() {
    let hub = played().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "id: web\n").unwrap();
    let path = file.path().to_str().unwrap();
    let said = hub.muster(&["apply", "-f", path, "--device", "plant7/refused"]).await;
    assert_eq!((said.code, said.err.as_str()), (1, "muster: 1 problem:\n  line 1: no profile\n"));
    let said = hub.muster(&["apply", "-f", path, "--device", "plant7/press-4"]).await;
    assert!(said.out.starts_with("plant7/press-4: generation 12 is published"), "{}{}", said.out, said.err);
    let said = hub.muster(&["apply", "-f", "/no/such.yaml", "--device", "plant7/press-4"]).await;
    assert_eq!(said.code, 2);
    assert!(said.err.starts_with("muster: cannot read /no/such.yaml: No such file"), "{}", said.err);
}

#[tokio::test]
async fn a_file_without_an_end_is_read_no_further_than_a_request_reaches() {
    let hub = played().await;
    let said = hub.muster(&["apply", "-f", "/dev/zero", "--device", "plant7/press-4"]).await;
    assert_eq!(said.code, 2);
    assert!(said.err.starts_with("muster: /dev/zero has more than 262144 bytes"), "{}", said.err);
}

/// A hub with its streams, and with every service played.
async fn played() -> Hub {
    played_by(answer).await
}

/// The same with other answers.
async fn played_by(answer: impl Fn(&Call) -> Result<Bytes, Fault> + Send + Sync + 'static) -> Hub {
    let subjects = [
        ("deployment", "muster.query.deployment"),
        ("deployments", "muster.query.deployments"),
        ("device", "muster.query.device"),
        ("devices", "muster.query.devices"),
        ("site", "muster.query.site"),
        ("fleet", "muster.query.fleet"),
        ("filtered", "muster.query.status"),
        ("labels", "muster.query.labels"),
        ("views", "muster.query.views"),
        ("apply", "muster.publisher.apply"),
        ("retire", "muster.publisher.retire"),
        ("status", "muster.publisher.status"),
    ];
    let hub = Hub::without_services().await;
    hub.bus.converge().await.unwrap();
    hub.play(&subjects, move |call| ready(answer(&call))).await
}

async fn put_views(hub: &Hub) {
    for (key, name) in [
        ("fleet", "FleetView.fleet"),
        ("site.plant7", "SiteView.plant7"),
        ("deployment.packet-tap", "DeploymentView.converged"),
        ("deployment.6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10", "DeploymentView.failing"),
    ] {
        put(hub, key, &example(name)).await;
    }
}

async fn put(hub: &Hub, key: &str, view: &Value) {
    hub.bus.view_put(key, view.to_string().into(), None).await.unwrap();
}

async fn publish(hub: &Hub, subject: &str, fact: &Value) -> u64 {
    hub.bus.publish(Outgoing::new(subject, fact.to_string())).await.unwrap().sequence
}

/// The answers of the played hub: it knows `plant7` with two devices, in pages of one, and two deployments.
fn answer(call: &Call) -> Result<Bytes, Fault> {
    let query: Query = serde_json::from_slice(&call.payload).unwrap_or_default();
    let mut devices = example("DevicesAnswer.two");
    let answer = match call.endpoint {
        "deployments" if query.site.only().is_some_and(|site| site.as_str() == "plant9") => {
            json!({ "asOf": devices["asOf"], "deployments": [] })
        }
        "deployments" => example("DeploymentsAnswer.two"),
        "devices" if query.after.is_none() => {
            // The device of the first page is heard.
            let shown = usize::from(query.freshness.is_empty());
            devices["devices"].as_array_mut().unwrap().truncate(shown);
            devices["next"] = json!("plant7/press-4");
            devices
        }
        "devices" => {
            devices["devices"].as_array_mut().unwrap().remove(0);
            devices
        }
        "deployment" if query.id.is_some_and(|id| id.as_str() == "packet-tap") => {
            json!({ "view": example("DeploymentView.converged"), "devices": [] })
        }
        "device" if query.device.is_some_and(|device| device.as_str() == "press-4") => {
            example("DeviceAnswer.in-detail")
        }
        "filtered" if call.payload.windows(6).any(|part| part == b"plant8") => {
            return Err(refused(ErrorCode::NotFound, "site 'plant8' has no devices; did you mean plant7?"));
        }
        "filtered" => example("StatusAnswer.four-targets"),
        "site" if query.site.only().is_some_and(|site| site.as_str() == "plant7") => {
            example("SiteView.plant7")
        }
        "fleet" => example("FleetView.fleet"),
        "labels" => json!({ "asOf": devices["asOf"], "labels": [] }),
        "views" => json!({ "asOf": devices["asOf"], "views": [] }),
        "status" => example("PublisherStatus.refused-commit"),
        "apply" if call.payload.windows(7).any(|part| part == b"refused") => {
            return Err(refused(ErrorCode::BadRequest, "1 problem:\n  line 1: no profile\n"));
        }
        "apply" => example("PublishAnswer.changed"),
        _ => return Err(refused(ErrorCode::NotFound, "there is none")),
    };
    Ok(answer.to_string().into())
}

/// A good example as JSON.
fn example(name: &str) -> Value {
    schemas::example(name)
}
