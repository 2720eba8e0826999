//! A package of kpt, as Porch renders a revision of it, on two real clusters: through the hub's object store to each cluster, and
//! its status back as ResourceGroups.

use std::cell::Cell;
use std::fs;

use muster_contract::DeviceKey;
use muster_contract::canonical::Digest;
use muster_contract::view::Verdict;
use muster_simulator::child::Spec;
use muster_simulator::repository::write_devices;
use muster_tests::hostile::memory::resident_bytes;
use muster_tests::kubernetes::charts::{config_map, deployment};
use muster_tests::kubernetes::real::{RealCluster, running};
use muster_tests::oci::packed;
use muster_tests::story::{key, verdict};
use muster_tests::system::{System, program};
use serde_json::Value;

const NAMESPACE: &str = "margo-apps";
/// ConfigMaps of a revision; beside them there is a Deployment.
const SETTINGS: usize = 999;
/// Resident memory of an agent that runs one revision.
const IDLE_BYTES_MAX: u64 = 40 * 1024 * 1024;

/// A rendered revision: a Kptfile, objects, and one that is for kpt's functions alone.
fn revision(image: &str) -> Vec<u8> {
    let context = config_map("kptfile.kpt.dev", "name", "web")
        .replace("metadata:\n", "metadata:\n  annotations: {config.kubernetes.io/local-config: \"true\"}\n");
    let settings: Vec<_> =
        (0..SETTINGS).map(|nth| config_map(&format!("settings-{nth}"), "line", "press")).collect();
    packed(&[
        ("web/Kptfile", "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata: {name: web}\n"),
        ("web/package-context.yaml", &context),
        ("web/web.yaml", &deployment("web", "1", image)),
        ("web/settings.yaml", &settings.join("---\n")),
    ])
}

/// Puts a revision into the hub, and commits the deployment that names it.
async fn publish(system: &System, image: &str) {
    let (archive, file) = (revision(image), system.dir().join("web.tar.gz"));
    fs::write(&file, &archive).unwrap();
    let put = async || {
        let output = system.muster(&["package", "put", file.to_str().unwrap()]).await;
        if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) }
    };
    system.eventually("the hub takes the package", put).await;
    let digest = Digest::of_bytes(&archive);
    let text = format!(
        "id: web\nmetadata: {{name: web, namespace: {NAMESPACE}, labels: {{acme.example/line: press}}}}\nspec:\n  applicationId: \
         com-example-web\n  deploymentProfile:\n    type: kubernetes\n    components:\n      - name: main\n        properties: \
         {{packageLocation: 'nats://packages/web.tar.gz', packageDigest: '{digest}', timeout: 60s}}\n"
    );
    system.repository.write("fleet/web.yaml", &text).unwrap();
    system.repository.commit(image).await.unwrap();
}

fn agent_of(device: &DeviceKey) -> String {
    format!("agent-of-{}", device.device)
}

/// `muster status web --format resourcegroup-json` and further arguments.
async fn group(system: &System, args: &[&str]) -> Value {
    let all = [&["status", "web", "--format", "resourcegroup-json"], args].concat();
    let output = system.muster(&all).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The image of the Deployment in a cluster.
fn image(cluster: &RealCluster) -> String {
    let web =
        cluster.get(&format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/web")).unwrap_or_default();
    let image = web.pointer("/spec/template/spec/containers/0/image").and_then(Value::as_str);
    image.unwrap_or_default().to_owned()
}

fn is_current(document: &Value) -> bool {
    let conditions = document["status"]["conditions"].as_array().unwrap();
    !conditions
        .iter()
        .any(|it| ["Reconciling", "Stalled"].iter().any(|kind| it["type"] == *kind) && it["status"] == "True")
}

/// Checks that a cluster runs the first revision whole, and that its agent needs little memory.
async fn check_first_revision(system: &System, device: &DeviceKey, cluster: &RealCluster) {
    let path = device.to_string();
    assert!(is_current(&group(system, &["--device", &path]).await), "{path}");
    let maps = cluster.get(&format!("/api/v1/namespaces/{NAMESPACE}/configmaps/settings-0")).unwrap();
    assert_eq!(maps["metadata"]["labels"]["acme.example/line"], "press");
    let context = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/kptfile.kpt.dev");
    assert!(cluster.get(&context).is_none(), "local configuration is for kpt alone");
    let groups =
        cluster.get(&format!("/apis/kpt.dev/v1alpha1/namespaces/{NAMESPACE}/resourcegroups")).unwrap();
    assert_eq!(groups["items"][0]["spec"]["resources"].as_array().unwrap().len(), SETTINGS + 1);
    let memory = resident_bytes(system.pid(&agent_of(device)).unwrap());
    println!("{path}: {} objects: {} KiB resident", SETTINGS + 1, memory / 1024);
    assert!((1..=IDLE_BYTES_MAX).contains(&memory), "{memory} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rendered_package_reaches_clusters_and_its_status_comes_back() {
    let Some(first) = RealCluster::start("a package of kpt on two real clusters") else { return };
    let Some(second) = RealCluster::start("a package of kpt on two real clusters") else { return };
    let mut system = System::start().await;
    let devices = [key("plant-a/cluster-1"), key("plant-a/cluster-2")];
    for (device, cluster) in devices.iter().zip([&first, &second]) {
        let args = format!(
            "--nats-url nats://{} --site plant-a --device {} --data-dir {} --runtime kubernetes --kubeconfig {} --helm {} \
             --heartbeat 1s --reconnect-max 1s --retry-min 500ms --retry-max 2s",
            system.address(),
            device.device,
            system.device_dir(device).display(),
            cluster.kubeconfig().display(),
            cluster.helm().display(),
        );
        let args = args.split_whitespace().map(str::to_owned).collect();
        system.start_own(Spec { name: agent_of(device), program: program("muster-agent-kubernetes"), args });
    }
    write_devices(&system.repository, &devices).unwrap();
    publish(&system, "web:1").await;
    let has_second_node = Cell::new(true);
    let node = async {
        loop {
            first.play_node(NAMESPACE, &running());
            if has_second_node.get() {
                second.play_node(NAMESPACE, &running());
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let story = async {
        verdict(&system, "web", 2, Verdict::Converged).await;
        for (device, cluster) in devices.iter().zip([&first, &second]) {
            check_first_revision(&system, device, cluster).await;
        }
        let whole = group(&system, &["--aggregate-only"]).await;
        assert!(is_current(&whole) && whole["spec"]["subgroups"].is_null(), "{whole}");
        // One cluster has no node for the pods of the next revision.
        has_second_node.set(false);
        publish(&system, "web:2").await;
        system
            .eventually("one cluster runs the next revision", async || {
                let at = async |device: &DeviceKey| {
                    is_current(&group(&system, &["--device", &device.to_string()]).await)
                };
                let images = [&first, &second].map(image);
                let states = (at(&devices[0]).await, at(&devices[1]).await);
                let is_so = images.iter().all(|image| image == "web:2") && states == (true, false);
                if is_so { Ok(()) } else { Err(format!("{images:?} {states:?}")) }
            })
            .await;
        assert!(!is_current(&group(&system, &["--aggregate-only"]).await));
        has_second_node.set(true);
        verdict(&system, "web", 2, Verdict::Converged).await;
    };
    tokio::select! {
        () = story => {}
        () = node => unreachable!("the node never ends"),
    }
}
