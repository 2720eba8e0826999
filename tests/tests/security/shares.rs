//! Fair shares: what one reader takes, operators and other readers do not lack.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use muster_bus::{Bus, Call, EndpointSpec, Fault, Outgoing, ServiceSpec};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::notify::{LEASE_OTHERS_MAX_SECONDS, SUBSCRIPTIONS_OF_USER_MAX};
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::system::ROLLUP;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use crate::fleet::{asked, start_service};
use crate::{connect, ingest};

const PATIENCE: Duration = Duration::from_secs(20);

/// A request of the notification service; its answer as JSON.
async fn notify(bus: &Bus, verb: &str, request: &Value) -> Value {
    let subject = format!("muster.notify.{verb}");
    let answer = bus.request(&subject, request.to_string().into(), PATIENCE).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

/// One device that shall run `web` and does, as the services put it into LEDGER.
async fn converged(hub: &Guarded, ingest: &Bus) {
    let now = Timestamp::now().to_string();
    let mut entry = json!({
        "id": "web", "name": "web", "applicationId": "com.example.web",
        "profile": {"type": "simulated", "components": [{"name": "main", "properties": {}}]},
    });
    let digest = Digest::of_value(&entry).to_string();
    (entry["targetGeneration"], entry["digest"]) = (json!(1), json!(digest));
    let desired = json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1, "issuedAt": now, "retired": false,
        "source": {"kind": "git", "revision": "c1"},
        "deployments": [entry],
    });
    let status = json!({
        "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": 1, "head": 1, "observedAt": now,
        "receivedAt": now, "deployment": "web", "generation": 1, "digest": digest,
        "status": {"state": "installed"}, "components": [{"name": "main", "state": "installed"}], "current": true,
    });
    let heard = json!({
        "apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh", "lastHeardAt": now, "epoch": 1, "head": 1,
    });
    let publisher = connect(hub.config(Role::Publisher)).await;
    for (bus, subject, document) in [
        (&publisher, "muster.desired.plant7.press-4", desired),
        (ingest, "muster.status.plant7.press-4.web", status),
        (ingest, "muster.liveness.plant7.press-4", heard),
    ] {
        soon("LEDGER", bus.publish(Outgoing::new(subject, document.to_string()))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_watches_while_a_viewer_has_its_whole_share() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    converged(&hub, &ingest).await;
    let data = hub.dir().join("rollup").display().to_string();
    let rollup = start_service(&hub, Role::Rollup, ROLLUP, &["--data-dir", &data]);
    let status = async || asked(&hub, Role::Operator, &["status", "web"]);
    until("the rollup answers", status, Result::is_ok).await.unwrap();

    // The viewer takes what it can, for as long as it may.
    let viewer = connect(hub.config(Role::Viewer)).await;
    let wanted = |name: String, lease: u64| json!({"name": name, "leaseSeconds": lease});
    let longer = wanted("longer".to_owned(), LEASE_OTHERS_MAX_SECONDS + 1);
    assert_eq!(notify(&viewer, "subscribe", &longer).await["error"]["code"], "badRequest");
    let requests: Vec<_> =
        (0..200).map(|number| wanted(format!("mine-{number}"), LEASE_OTHERS_MAX_SECONDS)).collect();
    let answers = join_all(requests.iter().map(|request| notify(&viewer, "subscribe", request))).await;
    let (taken, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer["error"].is_null());
    assert_eq!(taken.len(), SUBSCRIPTIONS_OF_USER_MAX, "{refused:?}");
    let words = refused[0]["error"]["message"].as_str().unwrap();
    assert!(words.contains("you have 64 subscriptions") && words.contains("end one"), "{words}");

    // A watch ends well once the verdict is there; it may have shown other states before.
    let creds = hub.creds(Role::Operator).display().to_string();
    let watch = ["--creds", &creds, "watch", "web", "--until", "converged", "--within", "30s"];
    let watched = hub.muster(&watch);
    assert!(watched.status.success(), "{}", String::from_utf8_lossy(&watched.stderr));

    // The viewer's subscription belongs to nobody else; an operator may end it.
    let name = taken[0]["name"].clone();
    let subscriber = connect(hub.config(Role::Subscriber)).await;
    let operator = connect(hub.config(Role::Operator)).await;
    for (verb, request) in [
        ("subscribe", json!({"name": name})),
        ("confirm", json!({"name": name, "number": 0})),
        ("unsubscribe", json!({"name": name})),
        ("missed", json!({"name": name})),
    ] {
        let refused = notify(&subscriber, verb, &request).await;
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("belongs to another user"), "{verb}: {refused}");
    }
    let listed =
        async |bus: &Bus| notify(bus, "list", &json!({})).await["subscriptions"].as_array().unwrap().len();
    assert_eq!((listed(&subscriber).await, listed(&viewer).await), (0, 10), "a page of ten");
    let line = notify(&operator, "list", &json!({"limit": 1})).await["subscriptions"][0].clone();
    assert_eq!(line["owner"]["name"], "viewer", "{line}");

    // Another rollup takes over: whose they are, and how many, is in the stream.
    drop(rollup);
    let data = hub.dir().join("standby").display().to_string();
    let _standby = start_service(&hub, Role::Rollup, ROLLUP, &["--data-dir", &data]);
    let again = async || {
        let subject = "muster.notify.subscribe";
        let answer =
            viewer.request(subject, wanted("more".to_owned(), 60).to_string().into(), PATIENCE).await.ok()?;
        serde_json::from_slice::<Value>(&answer).ok()?["error"]["code"].as_str().map(str::to_owned)
    };
    until("the standby refuses as well", again, |code| code.as_deref() == Some("conflict")).await;
    let ended = notify(&operator, "unsubscribe", &json!({"name": name})).await;
    assert_eq!(ended["name"], name, "{ended}");
    let free = async || notify(&viewer, "subscribe", &wanted("more".to_owned(), 60)).await["error"].is_null();
    until("there is room for one more", free, |free| *free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lists_and_ends_subscriptions_of_everybody_by_command() {
    let hub = Guarded::start_plain();
    let ingest = ingest(&hub).await;
    converged(&hub, &ingest).await;
    let data = hub.dir().join("rollup").display().to_string();
    let _rollup = start_service(&hub, Role::Rollup, ROLLUP, &["--data-dir", &data]);
    let status = async || asked(&hub, Role::Operator, &["status", "web"]);
    until("the rollup answers", status, Result::is_ok).await.unwrap();
    for role in [Role::Viewer, Role::Subscriber] {
        let bus = connect(hub.config(role)).await;
        let made =
            notify(&bus, "subscribe", &json!({"name": format!("of-a-{}", role.as_str()), "id": "web"})).await;
        assert_eq!(made["error"], Value::Null, "{made}");
    }
    let run = |role: Role, words: &[&str]| {
        let creds = hub.creds(role).display().to_string();
        let output = hub.muster(&[&["--creds", &creds][..], words].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let list = ["subscription", "list"];
    let (code, shown) = run(Role::Operator, &list);
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    for role in ["subscriber", "viewer"] {
        let row = rows.iter().find(|row| row.first() == Some(&format!("of-a-{role}").as_str())).unwrap();
        assert_eq!((code, &row[1..4]), (Some(0), &[role, "web", "1h"][..]), "{shown}");
    }
    let (_, own) = run(Role::Viewer, &list);
    assert!(own.contains("of-a-viewer") && !own.contains("of-a-subscriber"), "{own}");
    let (code, refused) = run(Role::Viewer, &["subscription", "end", "of-a-subscriber"]);
    assert!(code == Some(1) && refused.contains("belongs to another user"), "{refused}");
    let (code, ended) = run(Role::Operator, &["subscription", "end", "of-a-subscriber", "of-a-viewer"]);
    assert!(code == Some(0) && ended.contains("of-a-viewer is ended"), "{ended}");
    let gone = async || run(Role::Operator, &list).1;
    until("nobody has one", gone, |shown: &String| shown.starts_with("There is no subscription")).await;
    let (code, absent) = run(Role::Operator, &["subscription", "end", "of-a-viewer"]);
    assert!(code == Some(1) && absent.contains("there is no subscription 'of-a-viewer'"), "{absent}");
}

/// A service in the rollup's place that answers when it is let, and tells what it has begun.
async fn slow_service(
    bus: &Bus,
    gate: Arc<Semaphore>,
) -> (muster_bus::Serving, mpsc::UnboundedReceiver<bool>) {
    let (begun, seen) = mpsc::unbounded_channel();
    let spec = ServiceSpec {
        name: "slow",
        version: "1.0.0",
        description: "waits",
        endpoints: vec![EndpointSpec { name: "fleet", subject: "muster.query.fleet".to_owned() }],
    };
    let handler = move |call: Call| {
        begun.send(call.requester.is_operator()).unwrap();
        let gate = Arc::clone(&gate);
        async move {
            if !call.requester.is_operator() {
                gate.acquire().await.unwrap().forget();
            }
            Ok::<_, Fault>(Bytes::from_static(b"{}"))
        }
    };
    (bus.serve(spec, handler).await.unwrap(), seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewers_flood_of_requests_delays_no_operator() {
    let hub = Guarded::start_plain();
    let _streams = ingest(&hub).await;
    let rollup = connect(hub.config(Role::Rollup)).await;
    let gate = Arc::new(Semaphore::new(0));
    let (serving, mut begun) = slow_service(&rollup, Arc::clone(&gate)).await;
    let viewer = connect(hub.config(Role::Viewer)).await;
    const FLOOD: usize = 400;
    let (answered, mut answers) = mpsc::unbounded_channel();
    for _ in 0..FLOOD {
        let (viewer, answered) = (viewer.clone(), answered.clone());
        tokio::spawn(async move {
            let answer = viewer.request("muster.query.fleet", Bytes::new(), PATIENCE).await.unwrap();
            answered.send(String::from_utf8_lossy(&answer).contains("tooManyRequests")).unwrap();
        });
    }
    for _ in 0..24 {
        assert_eq!(soon("a viewer's request", begun.recv()).await, Some(false));
    }
    let operator = connect(hub.config(Role::Operator)).await;
    soon("an operator's answer", operator.request("muster.query.fleet", Bytes::new(), PATIENCE))
        .await
        .unwrap();
    assert_eq!(begun.recv().await, Some(true), "none of the viewer's was begun in between");

    // Running and waiting requests are bounded: the others are refused at once, and no other is answered before the gate opens.
    for _ in 0..FLOOD - 24 - 256 {
        assert_eq!(soon("a refusal", answers.recv()).await, Some(true));
    }
    gate.add_permits(FLOOD);
    for _ in 0..24 + 256 {
        assert_eq!(soon("an answer", answers.recv()).await, Some(false));
    }
    assert!(begun.recv_many(&mut Vec::new(), FLOOD).await >= 256);
    serving.stop().await;
}
