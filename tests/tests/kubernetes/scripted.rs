//! Manifests and watches on the scripted API server.

mod releases;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_agent::runtime::code;
use muster_tests::kubernetes::charts::{config_map, deployment};
use muster_tests::kubernetes::device::{ClusterDevice, kubeconfig, manifests, unit, until};
use muster_tests::kubernetes::double::ScriptedApi;
use serde_json::json;

const MAP: &str = "/api/v1/namespaces/muster-line/configmaps/settings";
const WEB: &str = "/apis/apps/v1/namespaces/muster-line/deployments/web";
/// Time in which every watch that is due has been opened.
const QUIET: Duration = Duration::from_millis(200);

/// An API server, and a device that uses it. Its `helm` does not exist.
async fn cluster() -> (ScriptedApi, ClusterDevice, tempfile::TempDir) {
    let (api, dir) = (ScriptedApi::start().await, tempfile::tempdir().unwrap());
    let config = kubeconfig(dir.path(), &json!({"server": api.url()}), &json!({}));
    let device = ClusterDevice::new(config, PathBuf::from("/no/such/helm"));
    (api, device, dir)
}

fn both(replicas: &str, image: &str) -> String {
    format!("{}---\n{}", config_map("settings", "a", "b"), deployment("web", replicas, image))
}

#[tokio::test]
async fn manifests_become_ready_are_found_again_and_leave_nothing() {
    let (api, mut device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let web = manifests("line", &both("2", "web:1"), "30s");
    device.start(&web).await;
    assert_eq!(api.object(MAP).unwrap()["data"]["a"], "b");
    let found = device.inventory().await;
    assert_eq!(
        (found.len(), &found[0].name, &found[0].digest_prefix),
        (1, &web.name(), &web.digest_prefix())
    );

    // Another agent without files applies nothing again.
    device.restart(false);
    api.requests();
    device.start(&web).await;
    let changes: Vec<_> = api.requests().into_iter().filter(|it| !it.starts_with("GET")).collect();
    assert!(changes.is_empty(), "{changes:?}");

    device.remove(&web).await;
    let left: Vec<_> =
        api.paths().into_iter().filter(|path| !path.contains("customresourcedefinitions")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(device.inventory().await.is_empty());
}

#[tokio::test]
async fn a_new_version_replaces_the_old_one_in_place_and_prunes() {
    let (api, device, _dir) = cluster().await;
    let _controller = api.start_controller();
    device.start(&manifests("line", &both("2", "web:1"), "30s")).await;
    let next = manifests("line", &deployment("web", "3", "web:2"), "30s");
    device.start(&next).await;
    assert_eq!(api.object(WEB).unwrap()["metadata"]["generation"], 2, "changed, not created again");
    assert!(api.object(MAP).is_none(), "pruned");
    assert_eq!(device.inventory().await[0].digest_prefix, next.digest_prefix());
}

#[tokio::test]
async fn a_field_of_another_manager_is_a_named_conflict() {
    let (api, device, _dir) = cluster().await;
    api.set_other_manager(WEB, "kubectl");
    let web = manifests("line", &both("2", "web:1"), "30s");
    let error = device.fail(&web).await;
    assert_eq!(error.code, code::APPLY_CONFLICT);
    assert!(
        error.message.contains("kubectl") && error.message.contains(".spec.replicas"),
        "{}",
        error.message
    );
    // The inventory has the objects that were applied before, so they can be removed.
    assert_eq!(device.inventory().await[0].digest_prefix, "", "not complete");
    device.remove(&web).await;
    assert!(api.object(MAP).is_none());
}

#[tokio::test]
async fn an_object_of_another_deployment_is_not_taken_over() {
    let (api, device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let text = json!({"manifests": both("1", "web:1"), "namespace": "shared", "timeout": "30s"});
    let profile = muster_contract::desired::ProfileType::Kubernetes;
    // Owners are asked for one by one, and of many objects of a kind by a list.
    let maps: Vec<_> = (0..40).map(|nth| config_map(&format!("map-{nth}"), "a", "b")).collect();
    let many = format!("{}---\n{}", both("1", "web:1"), maps.join("---\n"));
    let listed = json!({"manifests": many, "namespace": "shared", "timeout": "30s"});
    let first = unit(profile, "line", &text, &[]);
    device.start(&first).await;
    for text in [&text, &listed] {
        let second = unit(profile, "other", text, &[]);
        let error = device.fail(&second).await;
        assert_eq!(error.code, code::APPLY_CONFLICT, "{}", error.message);
        device.remove(&second).await;
    }
    assert!(
        api.object("/api/v1/namespaces/shared/configmaps/settings").is_some(),
        "the object of the first deployment stays"
    );
}

#[tokio::test]
async fn a_unit_that_is_never_ready_fails_with_its_pods_problem() {
    let (api, device, _dir) = cluster().await;
    let web = manifests("line", &deployment("web", "1", "never"), "3s");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-7d4f-x", "labels": {"pod-template-hash": "7d4f"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-7d4f", "controller": true}]},
        "status": {"phase": "Pending", "containerStatuses": [
            {"name": "http", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}]},
    });
    api.put("/api/v1/namespaces/muster-line/pods/web-7d4f-x", pod);
    let error = device.fail(&web).await;
    assert_eq!(error.code, code::IMAGE_PULL, "{}", error.message);
    for words in ["not ready within 3s", "Deployment web", "pod web-7d4f-x", "no such tag"] {
        assert!(error.message.contains(words), "{words}: {}", error.message);
    }
    api.delete("/api/v1/namespaces/muster-line/pods/web-7d4f-x");
    api.set_status(WEB, json!({"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]}));
    assert_eq!(device.fail(&web).await.code, code::PROGRESS_DEADLINE_EXCEEDED);
}

#[tokio::test]
async fn a_failure_after_success_is_an_exit_within_ten_seconds() {
    let (api, mut device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let web = manifests("line", &both("1", "web:1"), "30s");
    device.start(&web).await;
    let begun = Instant::now();
    api.set_status(WEB, json!({"replicas": 1, "updatedReplicas": 1}));
    let exit = device.exit().await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((exit.digest_prefix, &*exit.error.code), (web.digest_prefix(), code::UNHEALTHY));
    api.set_status(
        WEB,
        json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}),
    );
    device.start(&web).await;

    api.delete(MAP);
    let exit = device.exit().await;
    assert_eq!(exit.error.code, code::OBJECT_MISSING);
    assert!(exit.error.message.contains("ConfigMap settings"), "{}", exit.error.message);
    device.start(&web).await;
    assert!(api.object(MAP).is_some(), "applied again");
}

#[tokio::test]
async fn a_compacted_version_and_a_cut_watch_lose_no_change() {
    let (api, mut device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let web = manifests("line", &both("1", "web:1"), "30s");
    device.start(&web).await;
    for fault in [ScriptedApi::compact, ScriptedApi::cut_watches, ScriptedApi::compact] {
        fault(&api);
        assert_eq!(device.exit_sent(), None);
        api.set_status(
            WEB,
            json!({"conditions": [{"type": "Stalled", "status": "True", "reason": "Broken"}]}),
        );
        assert_eq!(device.exit().await.error.code, "Broken");
        api.set_status(
            WEB,
            json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}),
        );
        device.start(&web).await;
    }
}

#[tokio::test]
async fn an_outage_of_the_api_server_is_an_exit_and_units_are_adopted() {
    let (mut api, mut device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let web = manifests("line", &both("1", "web:1"), "30s");
    device.start(&web).await;
    api.kill();
    let begun = Instant::now();
    let exit = device.exit().await;
    assert_eq!(exit.error.code, code::ENGINE_LOST, "{}", exit.error.message);
    assert!(begun.elapsed() >= Duration::from_secs(9), "a short outage is no exit");
    api.serve_all();
    api.resume().await;
    api.requests();
    device.start(&web).await;
    assert!(api.requests().iter().all(|it| it.starts_with("GET")), "adopted");
}

#[tokio::test]
async fn requests_to_a_busy_api_server_are_retried() {
    let (api, device, _dir) = cluster().await;
    let _controller = api.start_controller();
    for code in [429, 500, 503] {
        api.refuse_next(3, code);
        device.start(&manifests("line", &both("1", &format!("web:{code}")), "30s")).await;
    }
}

#[tokio::test]
async fn units_share_one_watch_for_each_kind_and_namespace() {
    let (api, device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let profile = muster_contract::desired::ProfileType::Kubernetes;
    let text = |name: &str| json!({"manifests": deployment(name, "1", "web:1"), "namespace": "shared", "timeout": "30s"});
    let units = ["a", "b", "c"].map(|name| unit(profile, name, &text(name), &[]));
    for unit in &units {
        device.start(unit).await;
    }
    let opened = |api: &ScriptedApi| {
        api.requests().into_iter().filter(|it| it.contains("watch=true")).collect::<Vec<_>>()
    };
    // The last start may still open its watches.
    tokio::time::sleep(QUIET).await;
    opened(&api);
    api.cut_watches();
    let mut watches = Vec::new();
    until("both watches are open again", async || {
        watches.extend(opened(&api));
        (watches.len() >= 2).then_some(())
    })
    .await;
    // A watch for each unit would be opened by now.
    tokio::time::sleep(QUIET).await;
    watches.extend(opened(&api));
    assert_eq!(watches.len(), 2, "{watches:?}");
    assert!(watches.iter().any(|it| it.contains("/deployments")), "{watches:?}");
    assert!(watches.iter().any(|it| it.contains("/pods")), "{watches:?}");
}

#[tokio::test]
async fn a_missing_kind_and_a_reserved_namespace_are_named() {
    let (_api, device, _dir) = cluster().await;
    let press = "apiVersion: acme/v1\nkind: Press\nmetadata: {name: a}\n";
    let error = device.fail(&manifests("line", press, "5s")).await;
    assert_eq!(error.code, code::APPLY_FAILED);
    assert!(error.message.contains("no kind Press in acme/v1"), "{}", error.message);
    let profile = muster_contract::desired::ProfileType::Kubernetes;
    let text = json!({"manifests": config_map("a", "b", "c"), "namespace": "kube-system"});
    let error = device.fail(&unit(profile, "line", &text, &[])).await;
    assert!(error.message.contains("kube-system"), "{}", error.message);
}

#[tokio::test]
async fn an_exceeded_quota_is_named_and_what_was_begun_can_be_removed() {
    let (api, device, _dir) = cluster().await;
    let _controller = api.start_controller();
    let exceeded = "exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2";
    api.forbid("/deployments/web", exceeded);
    let web = manifests("line", &both("1", "web:1"), "30s");
    let error = device.fail(&web).await;
    assert_eq!(error.code, code::APPLY_FAILED, "{}", error.message);
    assert!(error.message.contains(exceeded), "{}", error.message);
    // Another deployment is untouched, and nothing half-applied stays.
    let other = manifests("other", &config_map("settings", "a", "1"), "30s");
    device.start(&other).await;
    device.remove(&web).await;
    assert!(api.object(MAP).is_none(), "{:?}", api.paths());
    api.allow_all();
    device.start(&web).await;
}

#[tokio::test]
async fn a_namespace_that_the_agent_may_not_write_is_named_and_others_run() {
    let (api, device, _dir) = cluster().await;
    let denied = "namespaces is forbidden: User agent cannot create resource namespaces";
    api.forbid("/namespaces/muster-line", denied);
    let line = manifests("line", &config_map("settings", "a", "1"), "30s");
    let error = device.fail(&line).await;
    assert!(error.message.contains(denied), "{}", error.message);
    let other = manifests("other", &config_map("settings", "a", "1"), "30s");
    device.start(&other).await;
    api.allow_all();
    device.start(&line).await;
}
