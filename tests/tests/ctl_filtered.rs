//! The output of `muster status` after filters, and in the formats of EMCO and kpt: golden files under `tests/golden/ctl/`,
//! answers in, text out. `UPDATE_GOLDEN=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use muster_client::emco::{self, Asked, Subject};
use muster_client::resource_group::{Group, Spelling};
use muster_contract::actions::ActionsAnswer;
use muster_contract::desired::{Source, SourceKind};
use muster_contract::limits::VIEW_ERRORS_MAX;
use muster_contract::query::Output;
use muster_contract::retry::RetrySummary;
use muster_contract::status::{Axis, KStatus, Rollup, StatusAnswer, TargetStatus};
use muster_contract::view::{DeploymentView, ErrorCount, Freshness, Retried};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_ctl::config::{DeprecatedType, Export, Names, StatusArgs};
use muster_ctl::render::filtered;
use muster_tests::golden;
use muster_tests::schemas::example;
use serde_json::Value;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test ctl_filtered";

#[test]
fn status_after_filters() {
    let mut answer = four();
    let args = StatusArgs { component: vec!["collector".parse().unwrap()], ..StatusArgs::default() };
    golden("filtered", &filtered::status(&answer, &args, now()));
    answer.next = Some("plant8/press-2".to_owned());
    answer.targets.truncate(1);
    golden("filtered-one-page", &filtered::status(&answer, &StatusArgs::default(), now()));
    let names = [Names::Apps, Names::Targets, Names::Components].map(|what| {
        let names = filtered::names(&four(), what);
        filtered::list(&names)
    });
    golden("filtered-names", &names.join("--\n"));
}

#[test]
fn status_of_nothing_says_so() {
    let mut answer: StatusAnswer = example("StatusAnswer.part-of-an-axis");
    golden("filtered-superseded", &filtered::status(&answer, &StatusArgs::default(), now()));
    answer.rollup = Default::default();
    golden("filtered-nothing", &filtered::status(&answer, &StatusArgs::default(), now()));
}

#[test]
fn q03_each_kind_of_answer_has_emcos_shape_and_key_names() {
    let answer = four();
    let json = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
    golden("emco-summary", &json(&both_axes(&answer, Subject::Deployment, Output::Summary)));
    golden("emco-all", &json(&both_axes(&answer, Subject::Deployment, Output::All)));
    for (name, axis) in [("deployed", Axis::Deployed), ("ready", Axis::Ready)] {
        golden(&format!("emco-{name}"), &json(&of_axis(axis, Output::All)));
        let (whole, summary) = (of_axis(axis, Output::All), of_axis(axis, Output::Summary));
        let keys = ["name", "deployedStatus", "readyStatus", "deployedCounts", "readyCounts"];
        for key in keys {
            let of_the_other = key.to_lowercase().starts_with("ready") != (name == "ready");
            let is_left_out = of_the_other && !["name", "deployedStatus"].contains(&key);
            assert_eq!((&summary[key], summary[key].is_null()), (&whole[key], is_left_out), "{name}: {key}");
        }
        assert_eq!(summary.get("apps"), None, "{name}");
    }
    golden("emco-apps", &json(&emco::names(&answer, Subject::Deployment, emco::Names::Apps)));
    golden("emco-clusters", &json(&emco::names(&answer, Subject::Deployment, emco::Names::Targets)));
    golden("emco-resources", &json(&emco::names(&answer, Subject::Deployment, emco::Names::Components)));
}

#[test]
fn q16_a_device_as_a_whole_has_emcos_shape_of_a_cluster() {
    let json = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
    let answer = four();
    let key = answer.targets[0].key.clone();
    let mut other = answer.targets[0].clone();
    other.deployment = "line-log".parse().unwrap();
    other.components.truncate(1);
    let targets = vec![answer.targets[0].clone(), other];
    let cluster = StatusAnswer { deployment: None, targets, ..answer };
    golden("emco-cluster", &json(&both_axes(&cluster, Subject::Device(&key), Output::All)));
    let summary = both_axes(&cluster, Subject::Device(&key), Output::Summary);
    assert_eq!(summary["cluster"], serde_json::json!({}), "there in any case");
    assert_eq!(summary["name"], format!("{}+{}", key.site, key.device));
    let nothing = StatusAnswer { targets: Vec::new(), ..cluster };
    let nothing = both_axes(&nothing, Subject::Device(&key), Output::All);
    assert_eq!(nothing["cluster"]["resources"], serde_json::json!([]));
    let args = |words: &[&str]| {
        let device = words.iter().map(|device| device.parse().unwrap()).collect();
        StatusArgs { device, ..StatusArgs::default() }
    };
    assert_eq!(args(&["plant7/press-4"]).subject(), Subject::Device(&key));
    assert_eq!(args(&["plant7/press-4", "plant7/press-5"]).subject(), Subject::Deployment);
    let of_one = StatusArgs { deployment: Some(tap()), ..args(&["plant7/press-4"]) };
    assert_eq!(of_one.subject(), Subject::Deployment, "a deployment has its apps, whatever its filters");
}

#[test]
fn q16_a_site_as_a_whole_has_emcos_shape_of_a_logical_cloud() {
    let mut cloud = StatusAnswer { deployment: None, ..four() };
    let site = cloud.targets[0].key.site.clone();
    cloud.targets.retain(|target| target.key.site == site);
    cloud.targets.push(TargetStatus { deployment: "line-log".parse().unwrap(), ..cloud.targets[0].clone() });
    let shape = both_axes(&cloud, Subject::Site(&site), Output::All);
    golden("emco-logical-cloud", &(serde_json::to_string_pretty(&shape).unwrap() + "\n"));
    let of_site = StatusArgs { site: vec![site.clone()], ..StatusArgs::default() };
    assert_eq!(of_site.subject(), Subject::Site(&site));
}

#[test]
fn q01_what_was_done_is_told_in_emcos_words_or_it_is_said_why_not() {
    let told: ActionsAnswer = example("ActionsAnswer.three-revisions");
    let mut shape = both_axes(&four(), Subject::Deployment, Output::Summary);
    emco::states::insert(&mut shape, Ok(told.clone()));
    golden("emco-states", &(serde_json::to_string_pretty(&shape["states"]).unwrap() + "\n"));
    let whole = ActionsAnswer { since: None, actions: told.actions[2..].to_vec(), ..told };
    emco::states::insert(&mut shape, Ok(whole));
    assert_eq!(shape["states"].get("actionsSince"), None, "nothing is left out");
    let mut shape = both_axes(&four(), Subject::Deployment, Output::Summary);
    emco::states::insert(&mut shape, Err("still reading".to_owned()));
    assert_eq!((shape.get("states"), &shape["statesLeftOut"]), (None, &"still reading".into()));
}

/// EMCO gives a status to resources and to the whole alone, and no reason or time to anything.
#[test]
fn q18_apps_and_clusters_say_how_they_are_why_and_since_when() {
    let shape = both_axes(&four(), Subject::Deployment, Output::All);
    let apps = shape["apps"].as_array().unwrap();
    let app = apps.iter().find(|app| app["name"] == "com-example-packet-tap").unwrap();
    assert_eq!((&app["deployedStatus"], &app["readyStatus"]), (&"Instantiating".into(), &"NotReady".into()));
    assert!(app["message"].as_str().unwrap().contains("E-DISK") && app["lastChange"].is_string(), "{app}");
    let clusters = app["clusters"].as_array().unwrap();
    let statuses: Vec<_> = clusters
        .iter()
        .map(|it| [&it["deployedStatus"], &it["readyStatus"]].map(|it| it.as_str().unwrap()))
        .collect();
    let expected = [["Instantiated", "Ready"], ["Instantiating", "NotReady"], ["Instantiating", "NotReady"]];
    assert_eq!(statuses, expected);
    for cluster in clusters {
        assert!(cluster["message"].is_string() && cluster["lastChange"].is_string(), "{cluster}");
    }
}

#[test]
fn q07_what_leaves_nothing_is_said_to_and_is_not_called_ready() {
    let nothing = StatusAnswer { rollup: Rollup::default(), apps: Vec::new(), targets: Vec::new(), ..four() };
    let shape = both_axes(&nothing, Subject::Deployment, Output::All);
    assert_eq!(shape["message"], "nothing is there that passes");
    assert_eq!((shape.get("readyStatus"), shape.get("apps")), (None, None), "{shape}");
}

#[test]
fn q04_the_deprecated_type_gives_the_deprecated_key_names() {
    let json = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
    for (name, axis) in [("rsync", Axis::Deployed), ("cluster", Axis::Ready)] {
        let mut shape = of_axis(axis, Output::All);
        emco::deprecated::rename(&mut shape);
        golden(&format!("emco-type-{name}"), &json(&shape));
        assert_eq!(shape["status"], "Instantiating", "the whole has a status on either axis");
    }
}

#[test]
fn q04_old_and_newer_key_names_are_never_mixed() {
    let old = ["rsyncStatus", "clusterStatus", "\"status\""];
    let newer = ["deployedStatus", "deployedCounts", "readyCounts", "connectivity"];
    let key = four().targets[0].key.clone();
    for of in [Subject::Deployment, Subject::Device(&key)] {
        let mut shape = both_axes(&four(), of, Output::Detail);
        let before = shape.to_string();
        emco::deprecated::rename(&mut shape);
        let after = shape.to_string();
        for (name, has_it, has_it_not) in old
            .map(|name| (name, &after, &before))
            .into_iter()
            .chain(newer.map(|name| (name, &before, &after)))
        {
            assert!(has_it.contains(name) && !has_it_not.contains(name), "{name}: {before}\n{after}");
        }
        assert_eq!(shape.get("readyStatus").is_some(), of == Subject::Deployment, "a cluster had none");
    }
    let args = |format: Option<Export>| {
        StatusArgs { deprecated_type: Some(DeprecatedType::Rsync), ..StatusArgs::default() }.check(format)
    };
    assert_eq!(args(Some(Export::Emco)), Ok(()));
    assert!(args(None).is_err() && args(Some(Export::ResourceGroup)).is_err());
}

#[test]
fn q13_detail_is_the_manifest_for_deployed_and_the_live_object_for_ready() {
    let json = |value: &Value| serde_json::to_string_pretty(value).unwrap() + "\n";
    let both = in_detail();
    let of_axis = |axis| emco::status(&both, Subject::Deployment, Asked { output: Output::Detail, axis });
    let (deployed, ready) = (of_axis(Some(Axis::Deployed)), of_axis(Some(Axis::Ready)));
    for (name, shape) in [("both", &of_axis(None)), ("deployed", &deployed), ("ready", &ready)] {
        golden(&format!("emco-detail-{name}"), &json(&details(shape)));
        assert_eq!(shape["manifestsLeftOut"], 1, "{name}");
    }
    let (collected, observed) = (details(&deployed), details(&ready));
    let is_manifest = |detail: &Value| detail.get("profileType").is_some();
    let expected = &observed["plant8/press-2/collector"];
    assert!(is_manifest(&collected["plant7/press-4/collector"]["detail"]), "{collected}");
    assert!(is_manifest(&expected["detail"]), "where nothing is reported: {expected}");
    assert_eq!(observed["plant7/press-4/collector"]["detail"]["state"], "installed");
    let all = both_axes(&both, Subject::Deployment, Output::All).to_string();
    assert!(!all.contains("\"detail\"") && !all.contains("\"manifest\""), "less was asked for: {all}");
}

#[test]
fn q13_what_is_left_out_has_no_detail_of_another_kind() {
    let mut answer = in_detail();
    let of = |shape: &Value, name: &str| details(shape)[name].clone();
    let asked = Asked { output: Output::Detail, axis: Some(Axis::Deployed) };
    let shape = emco::status(&answer, Subject::Deployment, asked);
    assert_eq!(of(&shape, "plant7/press-5/collector"), serde_json::json!({}), "its report is no manifest");
    answer.manifests.clear();
    let shape = both_axes(&answer, Subject::Deployment, Output::Detail);
    assert_eq!(
        of(&shape, "plant8/press-2/store"),
        serde_json::json!({}),
        "nothing is reported, nothing told"
    );
    assert_eq!(of(&shape, "plant7/press-4/store")["detail"]["state"], "installed");
}

#[test]
fn what_shall_run_is_shown_once_in_detail_and_what_is_left_out_is_said() {
    let args = StatusArgs::default();
    golden("filtered-detail", &filtered::status(&in_detail(), &args, now()));
    let mut answer = in_detail();
    answer.targets[0].source = Some(Source::new(SourceKind::Api, "r\u{1b}[31m1".to_owned()));
    answer.manifests_left_out = 0;
    let text = filtered::status(&answer, &args, now());
    assert!(text.contains("2 revisions") && !text.contains("not told"), "{text}");
    answer.targets[3].source = answer.targets[0].source.clone();
    let text = filtered::status(&answer, &args, now());
    assert!(text.contains("api r") && !text.contains("\u{1b}[31m1"), "{text}");
    answer.manifests.clear();
    let text = filtered::status(&answer, &args, now());
    assert!(!text.contains("SHALL RUN"), "{text}");
}

#[test]
fn q18_emcos_lines_name_the_attempts_of_a_retry() {
    let mut answer = four();
    let since = Timestamp::from_second(1_700_000_000).unwrap();
    let retry = Some(RetrySummary { attempt: 3, since, crash_loop: true });
    (answer.targets[1].retry, answer.targets[1].components[0].retry) = (retry, retry);
    answer.rollup.retried = Retried { targets: 1, attempts: 3 };
    let shape = both_axes(&answer, Subject::Deployment, Output::All);
    assert_eq!(shape["retried"], serde_json::json!({ "targets": 1, "attempts": 3 }));
    let clusters =
        shape["apps"].as_array().unwrap().iter().flat_map(|app| app["clusters"].as_array().unwrap());
    let retried: Vec<_> = clusters.filter(|cluster| !cluster["retry"].is_null()).collect();
    assert_eq!(retried.len(), 1, "{shape}");
    assert_eq!(retried[0]["cluster"], "press-5");
    let wanted = serde_json::json!({ "attempt": 3, "since": since, "crashLoop": true });
    assert_eq!((&retried[0]["retry"], &retried[0]["resources"][0]["retry"]), (&wanted, &wanted));
    let others = retried[0]["resources"].as_array().unwrap()[1..].iter();
    assert_eq!(others.filter(|resource| !resource["retry"].is_null()).count(), 0, "{shape}");
}

/// In EMCO's shape, both axes.
fn both_axes(answer: &StatusAnswer, of: Subject<'_>, output: Output) -> Value {
    emco::status(answer, of, Asked { output, axis: None })
}

/// The four targets in EMCO's shape, one axis.
fn of_axis(axis: Axis, output: Output) -> Value {
    emco::status(&four(), Subject::Deployment, Asked { output, axis: Some(axis) })
}

/// The details of each component in EMCO's shape, by device and name.
fn details(shape: &Value) -> Value {
    let clusters =
        shape["apps"].as_array().unwrap().iter().flat_map(|app| app["clusters"].as_array().unwrap());
    let resources = clusters.flat_map(|cluster| {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let place = format!("{}/{}", text(&cluster["clusterProvider"]), text(&cluster["cluster"]));
        cluster["resources"].as_array().unwrap().iter().map(move |resource| {
            let keys = ["detail", "manifest"].into_iter().filter(|key| resource.get(*key).is_some());
            let told = keys.map(|key| (key.to_owned(), resource[key].clone())).collect();
            (format!("{place}/{}", text(&resource["name"])), Value::Object(told))
        })
    });
    Value::Object(resources.collect())
}

fn in_detail() -> StatusAnswer {
    example("StatusAnswer.in-detail")
}

#[test]
fn a_resource_group_of_a_deployment_on_a_device() {
    let (id, answer) = (tap(), four());
    for (name, at) in [("current", 0), ("failed", 1), ("terminating", 2), ("unknown", 3)] {
        let target = answer.targets[at].clone();
        let key = target.key.clone();
        let answer = StatusAnswer { targets: vec![target], ..answer.clone() };
        let group = Group::of_device(&id, &key, &answer);
        golden(&format!("resource-group-{name}"), &group.within(usize::MAX, Spelling::Yaml));
    }
    let key: DeviceKey = "plant7/press-9".parse().unwrap();
    let nothing = StatusAnswer { targets: Vec::new(), ..answer };
    golden(
        "resource-group-nothing",
        &Group::of_device(&id, &key, &nothing).within(usize::MAX, Spelling::Yaml),
    );
}

#[test]
fn a_resource_group_of_a_deployment_over_the_fleet() {
    let group = Group::of_fleet(&tap(), &four());
    let yaml = group.within(usize::MAX, Spelling::Yaml);
    golden("resource-group-fleet", &yaml);
    let json = group.within(usize::MAX, Spelling::Json);
    golden("resource-group-fleet-json", &json);
    let from_yaml: Value = serde_norway::from_str(&yaml).unwrap();
    assert_eq!(from_yaml, serde_json::from_str::<Value>(&json).unwrap(), "two spellings of one document");
}

#[test]
fn a_resource_group_of_counts_alone() {
    let view: DeploymentView = example("DeploymentView.failing");
    let group = Group::of_counts(&tap(), &four(), Some(&view.errors), 3);
    golden("resource-group-counts", &group.within(usize::MAX, Spelling::Yaml));
}

/// Its size follows the codes of errors, which are bounded, and not the clusters.
#[test]
fn a_resource_group_of_counts_is_small_at_ten_thousand_clusters() {
    const BYTES_MAX: usize = 8 * 1024;
    let fleet = |clusters: u64, codes: usize| {
        let mut answer = StatusAnswer { targets: Vec::new(), ..four() };
        answer.rollup.targets = clusters;
        answer.rollup.kstatus =
            BTreeMap::from([(KStatus::Failed, clusters / 4), (KStatus::Current, 3 * clusters / 4)]);
        let view: DeploymentView = example("DeploymentView.failing");
        let error =
            |nth| ErrorCount { code: format!("Code{nth:03}"), count: clusters / 8, ..view.errors[0].clone() };
        let errors: Vec<_> = (0..codes).map(error).collect();
        Group::of_counts(&tap(), &answer, Some(&errors), 0).within(usize::MAX, Spelling::Yaml)
    };
    let (few, many) = (fleet(4, VIEW_ERRORS_MAX), fleet(10_000, VIEW_ERRORS_MAX));
    assert!(many.len() <= BYTES_MAX, "{} bytes: {many}", many.len());
    assert!(many.contains("all 10000 subgroups"), "{many}");
    // Each line has two counts, which get longer by seven digits together.
    let digits = 8 * (VIEW_ERRORS_MAX + 4);
    assert!(
        many.len() <= few.len() + digits,
        "{} bytes for 4 clusters, {} for 10,000",
        few.len(),
        many.len()
    );
}

/// Errors are counted of a whole deployment. Of a part they are left out, and that is said where something failed.
#[test]
fn errors_of_a_part_are_declared_to_be_left_out() {
    let left_out = |answer: &StatusAnswer| {
        let text = Group::of_counts(&tap(), answer, None, 0).within(usize::MAX, Spelling::Json);
        let document: Value = serde_json::from_str(&text).unwrap();
        document["metadata"]["annotations"]["muster/left-out"].as_str().unwrap().to_owned()
    };
    let mut answer = four();
    assert_eq!(left_out(&answer), "all 4 subgroups, all error codes (counted without a filter only)");
    answer.rollup.kstatus = BTreeMap::from([(KStatus::Current, 4)]);
    assert_eq!(left_out(&answer), "all 4 subgroups", "nothing failed, so there is no error");
}

#[test]
fn a_document_keeps_to_its_budget_and_says_what_it_leaves_out() {
    let mut answer = four();
    let one = answer.targets[0].clone();
    let many = (0..500).map(|at| with_name(&one, &format!("press-x{at:03}")));
    answer.targets.extend(many);
    let group = Group::of_fleet(&tap(), &answer);
    let whole = group.within(usize::MAX, Spelling::Yaml);
    assert!(!whole.contains("left-out"), "{whole}");
    for budget in [2_048, 4_096, 50_000] {
        for spelling in [Spelling::Yaml, Spelling::Json] {
            let text = group.within(budget, spelling);
            assert!(text.len() <= budget, "{} of {budget} bytes", text.len());
            let document: Value = serde_norway::from_str(&text).unwrap();
            let kept = document["status"]["subgroupStatuses"].as_array().unwrap();
            let left_out = document["metadata"]["annotations"]["muster/left-out"].as_str().unwrap();
            assert!(left_out.starts_with(&format!("{} of 504 subgroups (", 504 - kept.len())), "{left_out}");
            assert!(kept.iter().any(|resource| resource["status"] == "Failed"), "the worst are kept: {text}");
            assert!(!left_out.contains("Failed"), "{left_out}");
        }
    }
    golden("resource-group-budget", &group.within(2_500, Spelling::Yaml));
}

/// Messages as long as a device may make them, of signs that take two bytes each when they are written or a line each;
/// names as long as names may be.
#[test]
fn the_least_budget_is_kept_whatever_the_messages_and_names() {
    let long = "x".repeat(63);
    let id: DeploymentId = long.parse().unwrap();
    let key: DeviceKey = format!("{long}/{long}").parse().unwrap();
    for message in ["\"".repeat(512), "'".repeat(512), "a\n".repeat(256), "é".repeat(2_500)] {
        let mut answer = four();
        answer.rollup.message = Some(message.clone());
        for target in &mut answer.targets {
            target.key = key.clone();
            target.message = message.clone();
            target.components[0].name = long.parse().unwrap();
            target.components.iter_mut().for_each(|component| component.message = message.clone());
        }
        let view: DeploymentView = example("DeploymentView.failing");
        let mut errors = view.errors;
        errors[0].code = message.clone();
        let failed = StatusAnswer { targets: vec![answer.targets[1].clone()], ..answer.clone() };
        let groups = [
            Group::of_fleet(&id, &answer),
            Group::of_counts(&id, &answer, Some(&errors), 3),
            Group::of_counts(&id, &answer, None, 0),
            Group::of_device(&id, &key, &failed),
        ];
        for group in groups {
            let whole = group.within(usize::MAX, Spelling::Json);
            let words = message.lines().next().unwrap();
            assert!(!whole.contains("…"), "nothing is cut without need: {words}");
            for (budget, spelling) in
                [2_048, 3_000, 8_192].into_iter().flat_map(|it| [(it, Spelling::Yaml), (it, Spelling::Json)])
            {
                let text = group.within(budget, spelling);
                assert!(text.len() <= budget, "{} of {budget} bytes: {text}", text.len());
                let document: Value = serde_norway::from_str(&text).unwrap();
                let left_out = document["metadata"]["annotations"]["muster/left-out"].as_str().unwrap_or("");
                assert_eq!(text.contains("…"), left_out.contains("ends of messages"), "{text}");
                let conditions = document["status"]["conditions"].as_array().unwrap();
                assert!(conditions[1]["message"].as_str().is_some_and(|it| !it.is_empty()), "{text}");
            }
        }
    }
}

/// A reader that computes kstatus from the conditions: Current only if nothing is reconciling or stalled.
#[test]
fn what_is_not_known_is_current_for_no_reader() {
    let all = [
        KStatus::Failed,
        KStatus::Unknown,
        KStatus::InProgress,
        KStatus::Terminating,
        KStatus::NotFound,
        KStatus::Current,
    ];
    for kstatus in all {
        let mut answer = four();
        answer.rollup.kstatus = BTreeMap::from([(kstatus, 3)]);
        let text = Group::of_counts(&tap(), &answer, Some(&[]), 0).within(usize::MAX, Spelling::Json);
        let document: Value = serde_json::from_str(&text).unwrap();
        let conditions = document["status"]["conditions"].as_array().unwrap();
        let is = |kind: &str| conditions.iter().any(|it| it["type"] == kind && it["status"] == "True");
        let read = !is("Reconciling") && !is("Stalled");
        assert_eq!(read, kstatus == KStatus::Current, "{kstatus}: {text}");
    }
    let mut nothing = four();
    nothing.rollup.kstatus = BTreeMap::new();
    let text = Group::of_counts(&tap(), &nothing, Some(&[]), 0).within(usize::MAX, Spelling::Yaml);
    assert!(text.contains("muster/kstatus: NotFound"), "nothing is not success: {text}");
    assert!(
        four()
            .targets
            .iter()
            .all(|it| it.freshness == Freshness::Fresh || it.axes.kstatus != KStatus::Current)
    );
}

fn with_name(target: &TargetStatus, name: &str) -> TargetStatus {
    let mut target = target.clone();
    target.key.device = name.parse().unwrap();
    target
}

fn tap() -> DeploymentId {
    "packet-tap".parse().unwrap()
}

fn four() -> StatusAnswer {
    example("StatusAnswer.four-targets")
}

/// Ten minutes after what the examples tell of.
fn now() -> Timestamp {
    "2026-08-22T10:10:02Z".parse().unwrap()
}

#[track_caller]
fn golden(name: &str, text: &str) {
    let text = anstream::adapter::strip_str(text).to_string();
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/ctl/{name}.txt"));
    let difference = golden::difference(&file, &text, SWITCH);
    assert!(difference.is_none(), "{}if that is wanted: `{REMEDY}`", difference.unwrap_or_default());
}
