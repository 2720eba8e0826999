//! The runtime on a real API server with its controllers; the test sets the status of pods in place of a node.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_agent::runtime::{Started, Unit, code};
use muster_contract::state::StatusError;
use muster_tests::kubernetes::charts::{config_map, deployment, write_chart};
use muster_tests::kubernetes::device::{ClusterDevice, chart, manifests, until};
use muster_tests::kubernetes::real::{RealCluster, running};
use muster_tests::not_run::not_run;
use serde_json::{Value, json};

const WEB: &str = "/apis/apps/v1/namespaces/muster-line/deployments/web";

/// Plays the node while `work` runs.
async fn with_node<T>(cluster: &RealCluster, namespace: &str, work: impl Future<Output = T>) -> T {
    let node = async {
        loop {
            cluster.play_node(namespace, &running());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        done = work => done,
        () = node => unreachable!("the node never ends"),
    }
}

fn image(cluster: &RealCluster) -> Value {
    cluster.get(WEB).unwrap().pointer("/spec/template/spec/containers/0/image").cloned().unwrap()
}

#[tokio::test]
async fn manifests_run_on_a_real_api_server_and_leave_nothing() {
    let Some(cluster) = RealCluster::start("manifests on a real API server") else { return };
    let device = ClusterDevice::new(cluster.kubeconfig(), cluster.helm());
    let text = format!("{}---\n{}", config_map("settings", "a", "b"), deployment("web", "2", "web:1"));
    let web = manifests("line", &text, "40s");
    with_node(&cluster, "muster-line", device.start(&web)).await;
    assert_eq!(cluster.pods("muster-line").len(), 2);
    let group = cluster.get("/apis/kpt.dev/v1alpha1/namespaces/muster-line/resourcegroups").unwrap();
    assert_eq!(group["items"][0]["spec"]["resources"].as_array().unwrap().len(), 2);

    // Another field manager takes a field: a conflict, which names it.
    let scaled = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 5}});
    cluster.patch(
        &format!("{WEB}?fieldManager=autoscaler&force=true"),
        "application/apply-patch+yaml",
        &scaled,
    );
    let next = manifests("line", &deployment("web", "3", "web:2"), "40s");
    let error: StatusError = device.fail(&next).await;
    assert_eq!(error.code, code::APPLY_CONFLICT);
    assert!(error.message.contains("autoscaler"), "{}", error.message);

    device.remove(&next).await;
    assert!(cluster.get("/api/v1/namespaces/muster-line").is_none(), "the namespace is gone");
    assert!(device.inventory().await.is_empty());
}

#[tokio::test]
async fn failures_have_the_reasons_of_the_real_controllers() {
    let Some(cluster) = RealCluster::start("failures by real controllers") else { return };
    let device = ClusterDevice::new(cluster.kubeconfig(), cluster.helm());
    let slow =
        deployment("web", "1", "never").replace("progressDeadlineSeconds: 600", "progressDeadlineSeconds: 2");
    let error = device.fail(&manifests("line", &slow, "50s")).await;
    assert_eq!(error.code, code::PROGRESS_DEADLINE_EXCEEDED, "{}", error.message);

    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec:\n  backoffLimit: 0\n  template:\n    spec:\n      \
               restartPolicy: Never\n      containers: [{name: work, image: 'work:1'}]\n";
    let failing = async {
        loop {
            let ended = json!([{"name": "work", "image": "work:1", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]);
            cluster.play_node("muster-jobs", &json!({"phase": "Failed", "containerStatuses": ended}));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let work = manifests("jobs", job, "50s");
    let error = tokio::select! {
        error = device.fail(&work) => error,
        () = failing => unreachable!("the node never ends"),
    };
    assert!(error.message.contains("Job work"), "{}", error.message);
    assert!(["BackoffLimitExceeded", code::EXITED].contains(&&*error.code), "{error:?}");
}

/// A chart whose image is part of it, and whose replicas are a value.
fn web(folder: &Path, image: &str) -> String {
    let template = deployment("web", "{{ .Values.replicas }}", image);
    write_chart(folder, "1.0.0", &[("web.yaml", &template)])
}

#[tokio::test]
async fn helms_own_library_installs_upgrades_rolls_back_and_removes() {
    not_run(
        "Helm 3",
        "no package registry has the command: its arguments are a table, which is also that of Helm 4",
    );
    not_run("containers in a cluster", "a node needs a kubelet and images: the test plays the node");
    let Some(cluster) = RealCluster::start("Helm on a real API server") else { return };
    let (mut device, dir) =
        (ClusterDevice::new(cluster.kubeconfig(), cluster.helm()), tempfile::tempdir().unwrap());
    let location = web(&dir.path().join("chart"), "web:1");
    let first = chart("line", &location, "40s", &[("replicas", json!(1))]);
    with_node(&cluster, "muster-line", device.start(&first)).await;
    let next = chart("line", &location, "40s", &[("replicas", json!(2))]);
    with_node(&cluster, "muster-line", device.start(&next)).await;
    assert_eq!(cluster.get(WEB).unwrap()["spec"]["replicas"], 2);

    let broken = chart("line", &web(&dir.path().join("broken"), "never"), "5s", &[("replicas", json!(2))]);
    let error = with_node(&cluster, "muster-line", device.fail(&broken)).await;
    assert!(error.message.contains("rolled back to revision 2"), "{}", error.message);
    assert_eq!(image(&cluster), "web:1");
    device.restart(false);
    let found = device.inventory().await;
    assert_eq!(
        (found.len(), &found[0].digest_prefix),
        (1, &next.digest_prefix()),
        "the rollback keeps the labels"
    );

    device.remove(&next).await;
    assert!(cluster.get("/api/v1/namespaces/muster-line").is_none(), "the namespace is gone");
    assert!(device.inventory().await.is_empty());
}

#[tokio::test]
async fn a_killed_api_server_is_named_and_units_are_adopted_after_it() {
    let Some(mut cluster) = RealCluster::start("a real API server that is killed") else { return };
    let mut device = ClusterDevice::new(cluster.kubeconfig(), cluster.helm());
    let web = manifests("line", &deployment("web", "1", "web:1"), "40s");
    with_node(&cluster, "muster-line", device.start(&web)).await;
    cluster.kill_api();
    let exit = device.exit().await;
    assert_eq!(exit.error.code, code::ENGINE_LOST, "{}", exit.error.message);
    // The restarted server has none of the old versions: it answers resumed watches with 410.
    cluster.start_api();
    device.start(&web).await;
    cluster.delete(WEB);
    let exit = device.exit().await;
    assert_eq!(exit.error.code, code::OBJECT_MISSING, "{}", exit.error.message);
    with_node(&cluster, "muster-line", device.start(&web)).await;
    until("the Deployment is there again", async || cluster.get(WEB)).await;
}

#[tokio::test]
async fn a_helm_that_is_killed_in_a_hook_is_recovered() {
    let Some(cluster) = RealCluster::start("a real helm that is killed") else { return };
    let (device, dir) =
        (ClusterDevice::new(cluster.kubeconfig(), cluster.helm()), tempfile::tempdir().unwrap());
    let location = web(&dir.path().join("chart"), "web:1");
    let unit = |count: u32| chart("line", &location, "40s", &[("replicas", json!(count))]);
    with_node(&cluster, "muster-line", device.start(&unit(1))).await;
    // A hook that never ends.
    let hook = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: hook\n  annotations: {helm.sh/hook: pre-upgrade}\nspec:\n  \
                template:\n    spec:\n      restartPolicy: Never\n      containers: [{name: hook, image: never}]\n";
    let file = dir.path().join("chart/templates/hook.yaml");
    fs::write(&file, hook).unwrap();
    let (next, cancel) = (unit(2), tokio_util::sync::CancellationToken::new());
    let starting = muster_agent::runtime::Runtime::start(&device.runtime, &next, &cancel);
    let cancelling = async {
        let job = "/apis/batch/v1/namespaces/muster-line/jobs/hook";
        until("the hook runs", async || cluster.get(job)).await;
        cancel.cancel();
    };
    // The end of the start kills helm.
    assert_eq!(tokio::join!(starting, cancelling).0, Ok(Started::Cancelled));
    fs::remove_file(&file).unwrap();
    with_node(&cluster, "muster-line", device.start(&next)).await;
    assert_eq!(cluster.get(WEB).unwrap()["spec"]["replicas"], 2);
}

/// A definition, an object of it, and a Deployment.
fn with_definition() -> String {
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: lines.acme.example}\nspec:\n  \
        group: acme.example\n  scope: Namespaced\n  names: {kind: Line, plural: lines, singular: line, listKind: LineList}\n  versions:\n  \
        - name: v1\n    served: true\n    storage: true\n    subresources: {status: {}}\n    schema:\n      openAPIV3Schema:\n        \
        type: object\n        x-kubernetes-preserve-unknown-fields: true\n";
    let line = "apiVersion: acme.example/v1\nkind: Line\nmetadata: {name: press}\nspec: {speed: 3}\n";
    format!("{line}---\n{}---\n{definition}", deployment("web", "1", "web:1"))
}

#[tokio::test]
async fn definitions_come_first_and_owned_objects_end_with_their_owner() {
    const LINE: &str = "/apis/acme.example/v1/namespaces/muster-line/lines/press";
    let Some(cluster) = RealCluster::start("definitions and owner references") else { return };
    let device = ClusterDevice::new(cluster.kubeconfig(), cluster.helm());
    let unit = Unit {
        labels: [("acme.example/line".to_owned(), "press".to_owned())].into(),
        ..manifests("line", &with_definition(), "60s")
    };
    let reconcile = async {
        until("the object of the definition is there", async || cluster.get(LINE)).await;
        let merge = "application/merge-patch+json";
        let status = |is: &str| json!({"status": {"conditions": [{"type": "Ready", "status": is, "reason": "Test", "message": "m"}]}});
        cluster.patch(&format!("{LINE}/status"), merge, &status("False"));
        until("the Deployment is ready", async || {
            cluster.get(WEB).filter(|web| web["status"]["readyReplicas"] == 1)
        })
        .await;
        cluster.patch(&format!("{LINE}/status"), merge, &status("True"));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = async { with_node(&cluster, "muster-line", device.start(&unit)).await } => {}
        () = reconcile => unreachable!("it never ends"),
    }
    let line = cluster.get(LINE).unwrap();
    assert_eq!(line["status"]["conditions"][0]["status"], "True", "not ready before its condition");
    assert_eq!(line["metadata"]["labels"]["acme.example/line"], "press");
    let pods = cluster.pods("muster-line");
    assert_eq!(pods[0]["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");

    device.remove(&unit).await;
    assert!(cluster.get("/api/v1/namespaces/muster-line").is_none(), "owned objects and all others are gone");
    assert!(
        cluster.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/lines.acme.example").is_none()
    );
}

/// A unit of so many ConfigMaps.
fn maps(deployment: &str, count: usize) -> Unit {
    let maps: Vec<_> = (0..count).map(|nth| config_map(&format!("map-{nth}"), "a", "b")).collect();
    manifests(deployment, &maps.join("---\n"), "60s")
}

/// The ConfigMaps of such a unit in the cluster.
fn found_maps(cluster: &RealCluster, namespace: &str) -> usize {
    let list = cluster.get(&format!("/api/v1/namespaces/{namespace}/configmaps")).unwrap();
    let names = list["items"].as_array().unwrap().iter().map(|map| map["metadata"]["name"].as_str().unwrap());
    names.filter(|name| name.starts_with("map-")).count()
}

/// Prints how long some work takes.
async fn timed(what: &str, work: impl Future<Output = ()>) {
    let since = Instant::now();
    work.await;
    println!("{what}: {:.2?}", since.elapsed());
}

#[tokio::test]
async fn a_throttling_api_server_delays_many_objects_and_loses_none() {
    /// Objects of the unit that is timed, and of the one that is applied to the throttling API server.
    const OBJECTS: [usize; 2] = [1_000, 100];
    let Some(mut cluster) = RealCluster::start("a throttling API server") else { return };
    let mut device = ClusterDevice::new(cluster.kubeconfig_of_agent(), cluster.helm());
    // The first unit of a cluster waits until the API server serves the kind of inventories.
    timed("1 object, the first of its cluster, applied and healthy", device.start(&maps("first", 1))).await;
    let large = maps("line", OBJECTS[0]);
    timed("1,000 objects applied and healthy", device.start(&large)).await;
    assert_eq!(found_maps(&cluster, "muster-line"), OBJECTS[0]);
    device.restart(false);
    timed("1,000 objects adopted and healthy", device.start(&large)).await;

    cluster.kill_api();
    cluster.start_api_with(&["--enable-priority-and-fairness=false", "--max-mutating-requests-inflight=1"]);
    let throttled = maps("press", OBJECTS[1]);
    device.start(&throttled).await;
    assert_eq!(found_maps(&cluster, "muster-press"), OBJECTS[1]);
    assert!(cluster.throttled() > 0, "the API server has refused requests");
    device.remove(&throttled).await;
    assert!(cluster.get("/api/v1/namespaces/muster-press").is_none());
}

#[tokio::test]
async fn a_hundred_releases_are_adopted_by_another_agent_and_removed() {
    const RELEASES: usize = 100;
    /// Installations beside each other, as the reconciler has them.
    const BESIDE: usize = 8;
    let Some(cluster) = RealCluster::start("a hundred releases") else { return };
    let (mut device, dir) =
        (ClusterDevice::new(cluster.kubeconfig(), cluster.helm()), tempfile::tempdir().unwrap());
    let location = write_chart(
        &dir.path().join("chart"),
        "1.0.0",
        &[("map.yaml", &config_map("{{ .Release.Name }}", "a", "b"))],
    );
    let unit = |nth: usize| chart(&format!("line-{nth}"), &location, "120s", &[]);
    let units: Vec<_> = (0..RELEASES).map(unit).collect();
    for some in units.chunks(BESIDE) {
        futures_util::future::join_all(some.iter().map(|unit| device.start(unit))).await;
    }
    device.restart(false);
    let found = device.inventory().await;
    assert_eq!(found.len(), RELEASES);
    assert!(units.iter().all(|unit| {
        found.iter().any(|it| it.name == unit.name() && it.digest_prefix == unit.digest_prefix())
    }));
    for some in units.chunks(BESIDE) {
        futures_util::future::join_all(some.iter().map(|unit| device.start(unit))).await;
    }
    let versions = cluster.get("/api/v1/secrets?labelSelector=owner%3Dhelm").unwrap();
    assert_eq!(versions["items"].as_array().unwrap().len(), RELEASES, "adopted, not installed again");
    for some in units.chunks(BESIDE) {
        futures_util::future::join_all(some.iter().map(|unit| device.remove(unit))).await;
    }
    assert!(device.inventory().await.is_empty());
}
