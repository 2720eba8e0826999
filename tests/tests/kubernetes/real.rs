//! The runtime on a real API server with its controllers; the test sets the status of pods in place of a node.

use std::fs;
use std::path::Path;
use std::time::Duration;

use muster_agent::runtime::{Started, code};
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
