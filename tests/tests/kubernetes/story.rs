//! A cluster as a device of a whole system: a commit becomes a release, and the agent is killed within an upgrade.

use std::fs;

use muster_contract::view::Verdict;
use muster_simulator::child::Spec;
use muster_tests::kubernetes::charts::{write_chart, write_helm};
use muster_tests::kubernetes::device::kubeconfig;
use muster_tests::kubernetes::double::ScriptedApi;
use muster_tests::story::{key, nothing_lost, verdict};
use muster_tests::system::{System, program};
use serde_json::json;

const AGENT: &str = "agent-of-the-cluster";
const WEB: &str = "/apis/apps/v1/namespaces/muster-web/deployments/web";

/// Commits a deployment of a chart with a number of replicas.
async fn publish(system: &System, location: &str, replicas: u32) {
    let text = format!(
        "id: web\nmetadata: {{name: web}}\nspec:\n  applicationId: com-example-web\n  deploymentProfile:\n    type: helm\n    \
         components:\n      - name: main\n        properties: {{packageLocation: '{location}', timeout: 40s}}\n  parameters:\n    \
         replicas: {{value: {replicas}, targets: [{{pointer: replicas, components: [main]}}]}}\n"
    );
    system.repository.write("fleet/web.yaml", &text).unwrap();
    system.repository.commit(&format!("web {replicas}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_within_an_upgrade_leaves_a_release_that_converges() {
    let mut system = System::start().await;
    let (api, dir, device) =
        (ScriptedApi::start().await, tempfile::tempdir().unwrap(), key("plant-a/cluster"));
    let _controller = api.start_controller();
    let template = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": "REPLICAS", "template": {"spec": {"containers": [{"image": "web:1"}]}}},
    });
    let template = template.to_string().replace("\"REPLICAS\"", "{{ .Values.replicas }}");
    let chart = dir.path().join("chart");
    let location = write_chart(&chart, "1.0.0", &[("web.yaml", &template)]);
    let config = kubeconfig(dir.path(), &json!({"server": api.url()}), &json!({}));
    let (helm, hub) = (write_helm(dir.path()), format!("nats://{}", system.address()));
    let (config, helm, data) = (config.display(), helm.display(), system.device_dir(&device));
    let args = format!(
        "--nats-url {hub} --site plant-a --device cluster --data-dir {} --runtime kubernetes --kubeconfig {config} --helm {helm} \
         --heartbeat 1s --reconnect-max 1s --retry-min 500ms --retry-max 2s",
        data.display()
    );
    let args = args.split_whitespace().map(str::to_owned).collect();
    system.start_own(Spec { name: AGENT.to_owned(), program: program("muster-agent-kubernetes"), args });
    muster_simulator::repository::write_devices(&system.repository, std::slice::from_ref(&device)).unwrap();
    publish(&system, &location, 1).await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert_eq!(api.object(WEB).unwrap()["spec"]["replicas"], 1);

    // Helm waits for a hook, and lives on when its agent is killed.
    fs::write(chart.join("hold"), "").unwrap();
    publish(&system, &location, 2).await;
    let is_pending = |path: &String| {
        api.object(path).is_some_and(|it| it["metadata"]["labels"]["status"] == "pending-upgrade")
    };
    system
        .eventually("helm works on the upgrade", async || {
            let paths = api.paths();
            if paths.iter().any(is_pending) { Ok(()) } else { Err(format!("{paths:?}")) }
        })
        .await;
    system.kill(AGENT).await;
    fs::remove_file(chart.join("hold")).unwrap();
    system.start_again(AGENT);
    system
        .eventually("the cluster runs the second version", async || {
            let object = api.object(WEB).unwrap();
            if object["spec"]["replicas"] == 2 { Ok(()) } else { Err(object["spec"].to_string()) }
        })
        .await;
    verdict(&system, "web", 1, Verdict::Converged).await;
    nothing_lost(&system).await;

    // Removed from the fleet, removed from the cluster.
    fs::remove_file(system.repository.dir().join("fleet/web.yaml")).unwrap();
    system.repository.commit("nothing").await.unwrap();
    system
        .eventually("nothing is left", async || {
            let paths = api.paths();
            if paths.is_empty() { Ok(()) } else { Err(format!("{paths:?}")) }
        })
        .await;
}
