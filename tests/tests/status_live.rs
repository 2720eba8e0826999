//! Status after filters on a real server: a small fleet of real agents, and the real `muster`, for each filter, page and
//! form. Golden files under `tests/golden/status/`, without what differs from run to run.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::PathBuf;

use muster_contract::{DeviceKey, Timestamp};
use muster_tests::golden;
use muster_tests::system::{System, agent_name};
use serde_json::{Value, json};

const SWITCH: &str = "UPDATE_GOLDEN";
const DEVICES: [&str; 3] = ["plant7/press-1", "plant7/press-2", "plant8/press-1"];
/// Keys whose values differ from run to run.
const CHANGING: [&str; 13] = [
    "instance",
    "revision",
    "time",
    "asOf",
    "changedAt",
    "lastChange",
    "lastHeard",
    "lastHeardAt",
    "lastTransitionTime",
    "muster/ledger-seq",
    "report",
    "generation",
    "observedGeneration",
];

#[tokio::test]
async fn every_filter_page_and_form_of_a_small_fleet() {
    let mut system = System::start().await;
    settled(&mut system).await;

    for (name, words) in [
        ("all", &["--output", "all", "--axis", "ready"][..]),
        ("site", &["--site", "plant8"]),
        ("device", &["--device", "plant7/press-2"]),
        ("two-devices", &["--device", "plant7/press-2", "--device", "plant8/press-1"]),
        ("site-and-device", &["--site", "plant8", "--device", "plant7/press-2"]),
        ("app", &["--app", "com-example-web"]),
        (
            "two-sites-and-components",
            &["--site", "plant7", "--site", "plant8", "--component", "main", "--component", "side"],
        ),
        ("component", &["--component", "side"]),
        ("component-of-a-site", &["--component", "side", "--site", "plant7", "--axis", "deployed"]),
        ("summary", &["--component", "side", "--output", "summary"]),
    ] {
        let answer = json(&system, &[&["status", "web"], words].concat()).await;
        golden(name, &answer);
        let table = said(&system, &[&["status", "web"], words].concat(), 0).await;
        assert!(table.contains("as of ledger"), "{table}");
    }
    let empty = said(&system, &["status", "web", "--site", "plant8", "--device", "plant7/press-2"], 0).await;
    assert!(empty.contains("Nothing passes the filters"), "{empty}");
    golden("a-device-as-a-whole", &json(&system, &["status", "--device", "plant7/press-1"]).await);

    pages(&system).await;
    unknown_names(&system).await;
    other_systems(&system).await;
    what_shall_run(&system).await;
    what_was_done(&system).await;
    older_generation(&system).await;
    older_revision(&system).await;

    silence(&mut system).await;
    older_generation_that_is_held(&system).await;
}

async fn pages(system: &System) {
    let first = json(system, &["status", "web", "--component", "main", "--limit", "2"]).await;
    assert_eq!(first["targets"].as_array().unwrap().len(), 2);
    assert_eq!((&first["rollup"]["targets"], &first["total"]), (&3.into(), &3.into()), "{first}");
    let next = first["next"].as_str().unwrap();
    assert_eq!(next, "plant7/press-2/web");
    let last = json(system, &["status", "web", "--component", "main", "--limit", "2", "--after", next]).await;
    assert_eq!(last["targets"][0]["site"], "plant8");
    assert_eq!((last["targets"].as_array().unwrap().len(), last.get("next")), (1, None));
    assert_eq!(last["rollup"]["targets"], 3, "counts are of everything that passes");
    let table = said(system, &["status", "web", "--component", "main", "--limit", "2"], 0).await;
    assert!(table.contains("2 of 3 targets shown, go on with --after plant7/press-2"), "{table}");
}

async fn unknown_names(system: &System) {
    for (words, says) in [
        (&["status", "wbe", "--axis", "ready"][..], "deployment 'wbe'"),
        (&["status", "web", "--site", "plant9"], "site 'plant9'"),
        (&["status", "web", "--device", "plant7/press-9"], "device 'plant7/press-9'"),
        (&["status", "web", "--app", "com-example-wbe"], "did you mean com-example-web or"),
        (&["status", "web", "--component", "sied"], "did you mean side?"),
    ] {
        let output = system.muster(words).await;
        let words_said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", text(&output.stdout));
        assert!(words_said.contains(says), "{words:?}: {words_said}");
    }
}

/// An older generation: a deployment that is as it was then, one that has changed since and is not held any more, and one
/// that was never published.
async fn older_generation(system: &System) {
    let first = generation(system, DEVICES[0]).await;
    let extra = sleeper("extra").replace("86400", "86401");
    system.repository.write(&format!("sites/{}/extra.yaml", DEVICES[0]), &extra).unwrap();
    system.repository.commit("extra sleeps a second longer").await.unwrap();
    let newest = newer(system, DEVICES[0], first).await;
    let of = |id: &'static str, generation: u64| async move {
        let generation = generation.to_string();
        json(system, &["status", id, "--device", DEVICES[0], "--generation", &generation]).await
    };
    system
        .eventually("the new generation of extra is installed", async || {
            let answer = of("extra", newest).await;
            let target = &answer["targets"][0];
            let there = target["kstatus"] == "Current" && target["reportedGeneration"] == newest;
            if there { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    let gone = of("extra", first).await;
    assert_eq!((&gone["rollup"]["superseded"], &gone["rollup"]["targets"]), (&1.into(), &0.into()), "{gone}");
    let target = &gone["targets"][0];
    assert_eq!((&target["superseded"], &target["kstatus"]), (&true.into(), &"Unknown".into()), "{gone}");
    assert!(target["message"].as_str().unwrap().contains("superseded"), "{gone}");
    let words = ["status", "extra", "--device", DEVICES[0], "--output", "detail"];
    let updated = told(system, &words).await;
    assert_eq!(shall_sleep(&updated), ["86401"], "the new manifest alone: {updated}");
    let number = first.to_string();
    let superseded = told(system, &[&words[..], &["--generation", &number]].concat()).await;
    assert_eq!(shall_sleep(&superseded), ["86400"], "as it was to be then: {superseded}");
    assert_ne!(superseded["targets"][0]["digest"], updated["targets"][0]["digest"]);
    let then = of("web", first).await;
    assert_eq!(then["targets"][0]["kstatus"], "Current", "it has not changed since: {then}");
    assert_eq!(then["targets"][0].get("superseded"), None, "{then}");

    let ahead = (newest + 1).to_string();
    let output = system.muster(&["status", "web", "--device", DEVICES[0], "--generation", &ahead]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("was never published"), "{}", text(&output.stderr));
}

/// An older revision of a deployment, by its commit and by its place in LEDGER: every state as it stood when the next one
/// took its place, which the present has forgotten.
async fn older_revision(system: &System) {
    let emco = ["status", "extra", "--format", "emco"];
    let now = json_of(&said(system, &emco, 0).await);
    let first = &now["states"]["actions"][0];
    assert_eq!(first["state"], "Instantiated", "{now}");
    for instance in [first["instance"].as_str().unwrap(), &first["revision"].to_string()] {
        let words = ["status", "extra", "--instance", instance, "--output", "detail", "--axis", "ready"];
        let then = told(system, &words).await;
        assert_eq!(shall_sleep(&then), ["86400"], "{instance}: {then}");
        let target = &then["targets"][0];
        assert_eq!(
            (&target["standing"], &target["kstatus"]),
            (&"installed".into(), &"Current".into()),
            "{then}"
        );
        let shape = json_of(&said(system, &[&emco[..], &["--instance", instance]].concat(), 0).await);
        assert_eq!(shape["states"]["actions"].as_array().unwrap().len(), 1, "as it was then: {shape}");
    }
    let output = system.muster(&["status", "extra", "--instance", "nowhere"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("did you mean"), "{}", text(&output.stderr));
}

/// The report of an older generation counts as long as no newer one comes: here from a silent device.
async fn older_generation_that_is_held(system: &System) {
    let first = generation(system, DEVICES[2]).await;
    system.repository.write("fleet/web.yaml", &sleeper("web").replace("86400", "86402")).unwrap();
    system.repository.commit("web sleeps longer").await.unwrap();
    let newest = newer(system, DEVICES[2], first).await;
    let of = |generation: u64| async move {
        let generation = generation.to_string();
        json(system, &["status", "web", "--device", DEVICES[2], "--generation", &generation]).await
    };
    let (then, now) = (of(first).await, of(newest).await);
    let target = &then["targets"][0];
    assert_eq!((&target["superseded"], &target["standing"]), (&true.into(), &"installed".into()), "{then}");
    assert_eq!(then["rollup"]["readyCounts"]["Unknown"], 2, "as it was, and the device is silent: {then}");
    assert_eq!(now["targets"][0]["standing"], "outdated", "{now}");
}

async fn generation(system: &System, device: &str) -> u64 {
    json(system, &["device", device]).await["device"]["generation"].as_u64().unwrap()
}

/// The generation of a device after one.
async fn newer(system: &System, device: &str, than: u64) -> u64 {
    system
        .eventually("a newer generation is published", async || {
            let newest = generation(system, device).await;
            if newest > than { Ok(newest) } else { Err(format!("generation {newest}")) }
        })
        .await
}

async fn other_systems(system: &System) {
    let device = ["status", "--device", DEVICES[0], "--format", "emco"];
    golden("emco-device", &json_of(&said(system, &device, 0).await));
    golden("emco", &json_of(&said(system, &["status", "web", "--format", "emco"], 0).await));
    let names = said(system, &["status", "web", "--list", "components"], 0).await;
    assert_eq!(names, "main\nside\n");
    let group = ["status", "web", "--device", DEVICES[0], "--format", "resourcegroup"];
    let yaml = said(system, &group, 0).await;
    let group = ["status", "web", "--device", DEVICES[0], "--format", "resourcegroup-json"];
    let json = said(system, &group, 0).await;
    let from_yaml: Value = serde_norway::from_str(&yaml).unwrap();
    assert_eq!(stable(from_yaml), stable(serde_json::from_str(&json).unwrap()));
    golden("resource-group", &json_of(&json));
    let fleet = said(system, &["status", "web", "--format", "resourcegroup-json"], 0).await;
    golden("resource-group-fleet", &json_of(&fleet));
    let words = ["status", "web", "--format", "resourcegroup-json", "--aggregate", "--budget", "2048"];
    let counts = said(system, &words, 0).await;
    assert!(counts.len() <= 2_048, "{} bytes", counts.len());
    golden("resource-group-counts", &json_of(&counts));
    let words =
        [&["status", "--format", "resourcegroup-json", "web", "--aggregate"][..], &["--site", "plant7"]];
    let counts = json_of(&said(system, &words.concat(), 0).await);
    assert_eq!(counts["metadata"]["annotations"]["muster/left-out"], "all 2 subgroups", "{counts}");
}

/// In detail: EMCO's `detail` on either axis, and each manifest once for people and for programs.
async fn what_shall_run(system: &System) {
    without_a_filter(system).await;
    let answer = told(system, &["status", "web", "--output", "detail", "--axis", "ready"]).await;
    assert_eq!(shall_sleep(&answer), ["86400"], "one copy for all devices: {answer}");
    let digest = answer["manifests"].as_object().unwrap().keys().next().unwrap();
    assert!(answer["targets"].as_array().unwrap().iter().all(|target| target["digest"] == digest.as_str()));
    let table = said(system, &["status", "web", "--site", "plant7", "--output", "detail"], 0).await;
    assert!(table.contains("SHALL RUN") && table.contains("process sha256:"), "{table}");
    for (flag, axis, pointer, says) in [
        ("--axis", "deployed", "/detail/properties/command", "sleep"),
        ("--axis", "deployed", "/detail/source/kind", "git"),
        ("--axis", "ready", "/detail/state", "installed"),
        ("--type", "rsync", "/rsyncStatus", "Applied"),
        ("--type", "cluster", "/clusterStatus", "Ready"),
    ] {
        let words = ["status", "web", "--format", "emco", "--output", "detail", flag, axis];
        let shape = json_of(&said(system, &words, 0).await);
        let resource = &shape["apps"][0]["clusters"][0]["resources"][0];
        assert_eq!(resource.pointer(pointer).and_then(Value::as_str), Some(says), "{axis}: {shape}");
    }
}

/// Without a filter: what shall run, now and as of a point.
async fn without_a_filter(system: &System) {
    let words = ["status", "web", "--output", "detail"];
    let now = told(system, &words).await;
    let seq = now["asOf"]["ledgerSeq"].to_string();
    for answer in [&now, &told(system, &[&words[..], &["--at-seq", &seq]].concat()).await] {
        assert_eq!(
            (shall_sleep(answer), &answer["rollup"]["targets"]),
            (vec!["86400"], &3.into()),
            "{answer}"
        );
        let digest = answer["manifests"].as_object().unwrap().keys().next().unwrap();
        for line in answer["targets"].as_array().unwrap() {
            assert_eq!((&line["digest"], &line["source"]["kind"]), (&digest.as_str().into(), &"git".into()));
        }
    }
    let table = said(system, &words, 0).await;
    for says in ["targets    3: 3 installed", "SHALL RUN", "process sha256:", "as of ledger"] {
        assert!(table.contains(says), "{says} in {table}");
    }
    let all = json(system, &["status", "web", "--output", "all"]).await;
    assert_eq!((all.get("manifests"), all["targets"][0].get("digest")), (None, None), "only detail has it");
}

/// EMCO's history of a deployment: the commit that brought it to all three devices is one action, whose revision is a point.
async fn what_was_done(system: &System) {
    let detail = told(system, &["status", "web", "--output", "detail"]).await;
    let words = ["status", "web", "--format", "emco", "--output", "summary"];
    let shape = json_of(&said(system, &words, 0).await);
    let states = &shape["states"];
    let [action] = states["actions"].as_array().unwrap().as_slice() else { panic!("one action: {shape}") };
    assert_eq!(
        (&states["statusctxid"], &action["state"]),
        (&"web".into(), &"Instantiated".into()),
        "{shape}"
    );
    assert_eq!(action["instance"], detail["targets"][0]["source"]["revision"], "{shape}");
    assert!(shape.get("statesLeftOut").is_none() && states.get("actionsSince").is_none(), "{shape}");
    let seq = action["revision"].to_string();
    let then = json_of(&said(system, &[&words[..], &["--at-seq", &seq]].concat(), 0).await);
    assert_eq!(&then["states"], states, "as it was when the first device was told: {then}");
}

/// An answer in detail that leaves nothing out: on a machine that stands still LEDGER may be too slow.
async fn told(system: &System, words: &[&str]) -> Value {
    system
        .eventually("the answer has the desired manifests", async || {
            let answer = json(system, words).await;
            if answer.get("manifestsLeftOut").is_none() { Ok(answer) } else { Err(answer.to_string()) }
        })
        .await
}

/// The argument of the first component of each manifest.
fn shall_sleep(answer: &Value) -> Vec<&str> {
    let manifests = answer["manifests"].as_object().into_iter().flatten();
    let seconds =
        manifests.map(|(_, manifest)| &manifest["profile"]["components"][0]["properties"]["args"][0]);
    seconds.map(|seconds| seconds.as_str().unwrap()).collect()
}

/// A device that has fallen silent is Ready and Current for nobody.
async fn silence(system: &mut System) {
    let key: DeviceKey = DEVICES[2].parse().unwrap();
    system.kill(&agent_name(&key)).await;
    let words = ["status", "web", "--device", DEVICES[2], "--format", "json"];
    let silent = system
        .eventually("the device is silent", async || {
            let output = system.muster(&words).await;
            let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| text(&output.stderr))?;
            if answer["targets"][0]["freshness"] == "stale" { Ok(answer) } else { Err(answer.to_string()) }
        })
        .await;
    let since: Timestamp = silent["targets"][0]["lastHeardAt"].as_str().unwrap().parse().unwrap();
    let device = json(system, &["device", DEVICES[2]]).await;
    assert_eq!(device["device"]["lastHeardAt"], since.to_string(), "{device}");
    let lines = json(system, &["status", "web", "--output", "brief"]).await;
    let heard: Vec<_> =
        lines["targets"].as_array().unwrap().iter().filter_map(|line| line["lastHeardAt"].as_str()).collect();
    assert_eq!((heard.len(), heard[2]), (3, since.to_string().as_str()), "fresh ones too: {lines}");
    let seq = silent["asOf"]["ledgerSeq"].to_string();
    let then = json(system, &["status", "web", "--output", "brief", "--at-seq", &seq]).await;
    assert_eq!(then["targets"], lines["targets"], "of a point of the past as well");
    let silent_alone = json(system, &["status", "web", "--freshness", "stale", "--output", "brief"]).await;
    assert_eq!(silent_alone["targets"], json!([lines["targets"][2]]), "{silent_alone}");
    let table = said(system, &["status", "web", "--output", "all"], 0).await;
    assert!(table.lines().any(|line| line.starts_with(DEVICES[2]) && line.contains("  stale ")), "{table}");
    golden("silent", &silent);
    let fleet = json_of(&said(system, &["status", "web", "--format", "resourcegroup-json"], 0).await);
    assert_eq!(fleet["metadata"]["annotations"]["muster/kstatus"], "Unknown", "{fleet}");
}

/// Three devices with one deployment of two components, all converged; one device has another deployment too.
async fn settled(system: &mut System) {
    let devices: Vec<DeviceKey> = DEVICES.iter().map(|key| key.parse().unwrap()).collect();
    muster_simulator::repository::write_devices(&system.repository, &devices).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web")).unwrap();
    system.repository.write(&format!("sites/{}/extra.yaml", DEVICES[0]), &sleeper("extra")).unwrap();
    system.repository.commit("web everywhere, extra on one").await.unwrap();
    let hub = system.address();
    for device in &devices {
        system.start_agent(device, hub, &[]);
    }
    for (id, targets) in [("web", 3), ("extra", 1)] {
        system
            .eventually(&format!("{id} has converged"), async || {
                let output = system.muster(&["status", id, "--format", "json"]).await;
                let answer: Value =
                    serde_json::from_slice(&output.stdout).map_err(|_| text(&output.stderr))?;
                let view = &answer["view"];
                let there = view["verdict"] == "converged" && view["targets"] == targets;
                if there { Ok(()) } else { Err(view.to_string()) }
            })
            .await;
    }
}

fn sleeper(id: &str) -> String {
    let component = |name: &str| {
        format!(
            "      - name: {name}\n        properties: {{command: sleep, args: [\"86400\"], readiness: {{type: uptime, for: 50ms}}}}\n"
        )
    };
    format!(
        "id: {id}\nmetadata: {{name: {id}}}\nspec:\n  applicationId: com-example-{id}\n  deploymentProfile:\n    type: process\n    components:\n{}{}",
        component("main"),
        component("side")
    )
}

async fn said(system: &System, words: &[&str], code: i32) -> String {
    let output = system.muster(words).await;
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

async fn json(system: &System, words: &[&str]) -> Value {
    json_of(&said(system, &[words, &["--format", "json"]].concat(), 0).await)
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Without what differs from run to run.
fn stable(mut value: Value) -> Value {
    match &mut value {
        Value::Object(object) => {
            object.retain(|key, _| !CHANGING.contains(&key.as_str()) && !key.ends_with("Generation"));
            object.values_mut().for_each(|held| *held = stable(held.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|held| *held = stable(held.take())),
        _ => {}
    }
    value
}

#[track_caller]
fn golden(name: &str, value: &Value) {
    let text = serde_json::to_string_pretty(&stable(value.clone())).unwrap() + "\n";
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/status/{name}.json"));
    let difference = golden::difference(&file, &text, SWITCH);
    let remedy = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test status_live";
    assert!(difference.is_none(), "{}if that is wanted: `{remedy}`", difference.unwrap_or_default());
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
