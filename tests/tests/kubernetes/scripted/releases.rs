//! Releases of a scripted `helm` on the scripted API server.

use std::fs;
use std::path::Path;

use muster_agent::runtime::{Started, code};
use muster_tests::kubernetes::charts::{write_chart, write_helm};
use muster_tests::kubernetes::device::{ClusterDevice, chart, kubeconfig, until};
use muster_tests::kubernetes::double::ScriptedApi;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const WEB: &str = "/apis/apps/v1/namespaces/muster-line/deployments/web";

async fn cluster() -> (ScriptedApi, ClusterDevice, tempfile::TempDir) {
    let (api, dir) = (ScriptedApi::start().await, tempfile::tempdir().unwrap());
    let config = kubeconfig(dir.path(), &json!({"server": api.url()}), &json!({}));
    let device = ClusterDevice::new(config, write_helm(dir.path()));
    (api, device, dir)
}

/// A chart with a Deployment whose replicas are a value.
fn web(folder: &Path, image: &str) -> String {
    let template = format!(
        "{{\"apiVersion\": \"apps/v1\", \"kind\": \"Deployment\", \"metadata\": {{\"name\": \"web\"}}, \"spec\": {{\
         \"replicas\": {{{{ .Values.replicas }}}}, \"template\": {{\"spec\": {{\"containers\": [{{\"image\": \"{image}\"}}]}}}}}}}}"
    );
    write_chart(folder, "1.0.0", &[("web.yaml", &template)])
}

fn replicas(count: u32) -> [(&'static str, Value); 1] {
    [("replicas", json!(count))]
}

/// The statuses of a release's revisions.
fn statuses(api: &ScriptedApi) -> Vec<String> {
    let secrets = api.paths().into_iter().filter(|path| path.contains("/secrets/"));
    secrets
        .map(|path| api.object(&path).unwrap()["metadata"]["labels"]["status"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_release_is_installed_with_its_values_upgraded_and_removed() {
    let (api, mut device, dir) = cluster().await;
    let _controller = api.start_controller();
    let location = web(&dir.path().join("chart"), "web:1");
    let first = chart("line", &location, "30s", &replicas(2));
    device.start(&first).await;
    assert_eq!(api.object(WEB).unwrap()["spec"]["replicas"], 2);
    let next = chart("line", &location, "30s", &replicas(3));
    device.start(&next).await;
    assert_eq!(statuses(&api), ["superseded", "deployed"]);

    // Another agent without files finds the release and changes nothing.
    device.restart(false);
    let found = device.inventory().await;
    assert_eq!((&found[0].name, &found[0].digest_prefix), (&next.name(), &next.digest_prefix()));
    device.start(&next).await;
    assert_eq!(statuses(&api), ["superseded", "deployed"]);

    device.remove(&next).await;
    assert_eq!(api.paths(), Vec::<String>::new());
}

#[tokio::test]
async fn a_version_that_fails_is_rolled_back_to_the_one_that_was_ready() {
    let (api, device, dir) = cluster().await;
    let _controller = api.start_controller();
    let location = web(&dir.path().join("chart"), "web:1");
    let first = chart("line", &location, "30s", &replicas(1));
    device.start(&first).await;
    let broken = chart("line", &web(&dir.path().join("broken"), "never"), "2s", &replicas(1));
    let error = device.fail(&broken).await;
    assert_eq!(error.code, code::NOT_READY);
    assert!(error.message.ends_with("rolled back to revision 1"), "{}", error.message);
    let image = |api: &ScriptedApi| {
        api.object(WEB).unwrap().pointer("/spec/template/spec/containers/0/image").cloned()
    };
    assert_eq!(image(&api), Some(json!("web:1")));
    assert_eq!(device.inventory().await[0].digest_prefix, first.digest_prefix());
    // And again, to the revision that the rollback made.
    let error = device.fail(&broken).await;
    assert!(error.message.ends_with("rolled back to revision 3"), "{}", error.message);
    assert_eq!(image(&api), Some(json!("web:1")));
}

#[tokio::test]
async fn a_failure_of_helm_is_reported_with_its_error_output() {
    let (_api, device, dir) = cluster().await;
    let location = web(&dir.path().join("chart"), "web:1");
    fs::write(dir.path().join("chart/fail"), "").unwrap();
    let unit = chart("line", &location, "30s", &replicas(1));
    let error = device.fail(&unit).await;
    assert_eq!(error.code, code::HELM_FAILED);
    assert!(error.message.contains("the hook has failed"), "{}", error.message);
    device.remove(&unit).await;
    assert!(device.inventory().await.is_empty());
}

#[tokio::test]
async fn a_release_that_a_killed_helm_left_is_recovered() {
    let (api, device, dir) = cluster().await;
    let _controller = api.start_controller();
    let location = web(&dir.path().join("chart"), "web:1");
    let hold = dir.path().join("chart/hold");
    for (held, pending) in [(1, "pending-install"), (2, "pending-upgrade")] {
        fs::write(&hold, "").unwrap();
        let (unit, cancel) = (chart("line", &location, "30s", &replicas(held)), CancellationToken::new());
        let starting = muster_agent::runtime::Runtime::start(&device.runtime, &unit, &cancel);
        let cancelling = async {
            until("helm works on it", async || statuses(&api).contains(&pending.to_owned()).then_some(()))
                .await;
            cancel.cancel();
        };
        // The end of the start kills helm.
        assert_eq!(tokio::join!(starting, cancelling).0, Ok(Started::Cancelled));
        fs::remove_file(&hold).unwrap();
        assert_eq!(statuses(&api).last().map(String::as_str), Some(pending));
        device.start(&unit).await;
        assert_eq!(statuses(&api).last().map(String::as_str), Some("deployed"));
        assert_eq!(api.object(WEB).unwrap()["spec"]["replicas"], held);
    }
}

#[tokio::test]
async fn a_missing_chart_or_helm_is_named() {
    let (api, _device, dir) = cluster().await;
    let config = kubeconfig(dir.path(), &json!({"server": api.url()}), &json!({}));
    let device = ClusterDevice::new(config, "/no/such/helm".into());
    let location = web(&dir.path().join("chart"), "web:1");
    let error = device.fail(&chart("line", &location, "5s", &[])).await;
    assert!(error.message.contains("install Helm, or name it with --helm"), "{}", error.message);
    let error = device.fail(&chart("line", "file:///no/such/chart", "5s", &[])).await;
    assert_eq!(error.code, code::PACKAGE_FAILED, "{}", error.message);
    let error = device.fail(&chart("line", &location, "5s", &[("a..b", json!(1))])).await;
    assert!(error.message.contains("a..b"), "{}", error.message);
}
