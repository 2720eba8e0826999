//! One plan on agents of four runtimes at once: a process, a Compose project on a real engine, objects of a cluster (on the scripted
//! API server) and a simulation.

use std::time::Duration;

use muster_contract::DeviceKey;
use muster_simulator::child::Spec;
use muster_tests::containers::{box_image, docker};
use muster_tests::kubernetes::charts::write_helm;
use muster_tests::kubernetes::device::kubeconfig;
use muster_tests::kubernetes::double::ScriptedApi;
use muster_tests::plans::{approve, ask, change, revision};
use muster_tests::rollouts::start_planner;
use muster_tests::server::free_port;
use muster_tests::system::{System, program};
use serde_json::{Value, json};
use tokio::time::Instant;

const RUNTIMES: [&str; 4] = ["process", "compose", "kubernetes", "simulated"];
/// From the end of a payload to its report.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

fn key(runtime: &str) -> DeviceKey {
    format!("check-plan/{runtime}").parse().unwrap()
}

/// Starts an agent of each runtime, as nodes of a cluster.
async fn start_nodes(system: &mut System, api: &ScriptedApi) {
    change(system, "inventory-apply", json!({ "item": { "cluster": { "name": "north" } } })).await;
    for runtime in RUNTIMES {
        let key = key(runtime);
        if runtime == "kubernetes" {
            let folder = system.device_dir(&key);
            std::fs::create_dir_all(&folder).unwrap();
            let config = kubeconfig(&folder, &json!({ "server": api.url() }), &json!({}));
            let args = format!(
                "--nats-url nats://{} --site {} --device {} --data-dir {} --runtime kubernetes --kubeconfig {} --helm {} --heartbeat 1s",
                system.address(),
                key.site,
                key.device,
                folder.display(),
                config.display(),
                write_helm(&folder).display(),
            );
            let args = args.split_whitespace().map(str::to_owned).collect();
            let name = "agent-of-the-cluster".to_owned();
            system.start_own(Spec { name, program: program("muster-agent-kubernetes"), args });
        } else {
            system.start_agent(&key, system.address(), &["--runtime", runtime]);
        }
        let node = json!({ "site": key.site, "device": key.device, "updateDomain": runtime, "runtimes": [runtime],
            "totalResources": { "cores": 2, "memory": 2 } });
        change(system, "inventory-apply", json!({ "item": { "node": node } })).await;
        for state in ["allocating", "allocated"] {
            let request = json!({ "item": { "node": key }, "nodeState": state, "cluster": "north" });
            change(system, "inventory-state", request).await;
        }
    }
}

/// The containers of the Compose device.
fn containers() -> Vec<String> {
    let filter = format!("label=io.muster.device={}", key("compose"));
    docker(&["ps", "--quiet", "--filter", &filter]).lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_plan_runs_on_devices_of_every_runtime_at_once() {
    let (image, port) = (box_image(), free_port());
    let api = ScriptedApi::start().await;
    let _controller = api.start_controller();
    let mut system = System::start().await;
    start_planner(&mut system);
    start_nodes(&mut system, &api).await;
    let application = json!({ "payloadName": "main", "resources": { "cores": 1, "memory": 1 },
        "ports": [{ "protocol": "tcp", "port": port }] });
    let plan =
        json!({ "name": "web", "namespace": "line", "serviceName": "web", "applications": [application] });
    change(&system, "plan-apply", plan).await;
    let coordinates = json!({ "main": { "image": image, "command": "sleep", "args": ["86400"],
        "readiness": { "type": "uptime", "for": "50ms" } } });
    let deploy = |id: &str, instances: u32| json!({ "plan": "web", "id": id, "instances": instances, "coordinates": coordinates });
    change(&system, "plan-deploy", deploy("r1", 4)).await;
    approve(&system, &["CREATE"; 4]).await;
    let answer = revision(&system, "r1", "completed").await;
    assert_eq!(answer["summary"]["runtime"], json!({ "running": 4 }));

    let [container] = &containers()[..] else { panic!("one container") };
    let told: Value = serde_json::from_str(&docker(&["inspect", container])).unwrap();
    let host = &told[0]["HostConfig"];
    assert_eq!((host["NanoCpus"].as_u64(), host["Memory"].as_u64()), (Some(1_000_000_000), Some(1 << 30)));
    assert_eq!(host["PortBindings"][format!("{port}/tcp")][0]["HostPort"], port.to_string());
    let project = told[0]["Config"]["Labels"]["com.docker.compose.project"].as_str().unwrap();
    assert!(project.starts_with("line_"), "the namespace of the plan: {project}");
    let deployment = api.object("/apis/apps/v1/namespaces/line/deployments/main").unwrap();
    let limits = &deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*limits, json!({ "cpu": "1", "memory": "1Gi" }));

    // A payload that ends is seen, and comes back.
    docker(&["kill", container]);
    let since = Instant::now();
    let runtime =
        async || ask(&system, "plan-get", &json!({ "plan": "web" })).await["summary"]["runtime"].clone();
    system
        .eventually("the end of a payload is seen", async || {
            let runtime = runtime().await;
            if runtime == json!({ "running": 4 }) { Err(runtime.to_string()) } else { Ok(()) }
        })
        .await;
    assert!(since.elapsed() < SEEN_WITHIN, "{:?}", since.elapsed());
    system
        .eventually("the payload runs again", async || {
            let runtime = runtime().await;
            if runtime == json!({ "running": 4 }) { Ok(()) } else { Err(runtime.to_string()) }
        })
        .await;

    change(&system, "plan-deploy", deploy("r2", 0)).await;
    approve(&system, &["DELETE"; 4]).await;
    revision(&system, "r2", "completed").await;
    let mut left = api.paths();
    // The agent never removes the definition of kpt's ResourceGroup.
    left.retain(|path| !path.contains("customresourcedefinitions"));
    assert!(containers().is_empty() && left.is_empty(), "nothing is left: {left:?}");
}
