//! MRDS's walk-through on a whole system with real agents and the real `muster`: nodes of a manifest, a plan, three deployments
//! that scale up and down, a move to another node, a stop and a restart. What a person sees after each step is one golden file,
//! `tests/golden/ctl/plans-walk-through.txt`, in which ids are masked; `UPDATE_GOLDEN=1` rewrites it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use muster_contract::DeviceKey;
use muster_tests::golden;
use muster_tests::rollouts::{json, start_planner};
use muster_tests::system::System;
use serde_json::Value;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test plans_walk_through";
const PLAN: &str = "nginx-deployment-plan";
const SERVICE: &str = "nginx-service-";
const NODES: [&str; 4] = ["kind/worker", "kind/worker2", "kind/worker3", "kind/worker4"];

/// MRDS's plan, with the profile of workloads that run nothing.
const PLANS_FILE: &str = r#"plans:
  - name: "nginx-deployment-plan"
    namespace: "nginx-namespace"
    serviceName: "nginx-service"
    profile: simulated
    matchingComputeCapabilities:
      - capabilityType: "GPU"
        comparator: "gte"
        capabilityNames:
          - "nvidia-v100"
          - "nvidia-p100"
      - capabilityType: "CPU"
        comparator: "eq"
        capabilityNames:
          - "intel-xeon"
    applications:
      - payloadName: "nginx-payload"
        resources:
          cores: 4
          memory: 64
        ports:
          - protocol: "TCP"
            port: 80
          - protocol: "UDP"
            port: 53
        persistentVolumes:
          - storageClass: "standard"
            capacity: 100
            mountPath: "/data"
          - storageClass: "fast-ssd"
            capacity: 500
            mountPath: "/ssd"
"#;

/// A system, and the text that a person has seen.
struct Walk {
    system: System,
    page: String,
    /// The masks of ids, each as wide as its id.
    masks: BTreeMap<String, String>,
}

impl Walk {
    async fn start() -> Self {
        let mut system = System::start().await;
        start_planner(&mut system);
        let hub = system.address();
        for node in NODES {
            let key: DeviceKey = node.parse().unwrap();
            system.start_agent(&key, hub, &["--runtime", "simulated"]);
        }
        Self { system, page: String::new(), masks: BTreeMap::new() }
    }

    /// Runs a command that must succeed; its output.
    async fn run(&self, line: &str) -> String {
        let output = self.system.muster(&line.split(' ').collect::<Vec<_>>()).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.is_empty(), "muster {line}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command, and adds it and its output to the page.
    async fn see(&mut self, line: &str) {
        let out = self.run(line).await;
        self.learn().await;
        let dir = format!("{}/", self.system.dir().display());
        let text = self.masked(&format!("$ muster {line}\n{out}\n").replace(&dir, ""));
        self.page += &sorted(&text);
    }

    fn title(&mut self, title: &str) {
        self.page += &format!("# {title}\n\n");
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.system.dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    async fn instances(&self) -> Vec<Value> {
        let (_, answer) = json(&self.system, &["instance", "list", "--plan", PLAN]).await;
        answer["instances"].as_array().cloned().unwrap_or_default()
    }

    /// Masks the ids of instances and operations that are new. Instances are numbered by node: their names are random.
    async fn learn(&mut self) {
        let mut instances = self.instances().await;
        instances.sort_by_key(|status| status["instance"]["placements"][0]["node"].to_string());
        for status in &instances {
            let instance = &status["instance"];
            let name = instance["name"].as_str().unwrap();
            let number = match self.masks.get(name) {
                Some(mask) => mask.rsplit('0').next().unwrap().to_owned(),
                None => (self.masks.keys().filter(|id| id.starts_with(SERVICE)).count() / 2 + 1).to_string(),
            };
            self.mask(name, &format!("{SERVICE}{number:0>32}"));
            self.mask(instance["displayName"].as_str().unwrap(), &format!("{SERVICE}{number:0>22}"));
            for (at, operation) in instance["operations"].as_array().unwrap().iter().enumerate() {
                let id = operation["id"].as_str().unwrap();
                let word = operation["type"].as_str().unwrap().to_lowercase();
                let mask = format!("{word}-00000000-0000-0000-0000-{number:0>9}{:0>3}", at + 1);
                self.mask(id, &mask);
            }
        }
    }

    fn mask(&mut self, id: &str, mask: &str) {
        assert_eq!(id.len(), mask.len(), "tables keep their widths");
        self.masks.entry(id.to_owned()).or_insert_with(|| mask.to_owned());
    }

    fn masked(&self, text: &str) -> String {
        self.masks.iter().fold(text.to_owned(), |text, (id, mask)| text.replace(id, mask))
    }

    /// Waits until operations of these types wait for approval and their nodes are heard; the ids in the order of their masks.
    async fn pending(&mut self, types: &[&str]) -> Vec<String> {
        let found = async || {
            let words = ["operation", "list", "--plan", PLAN, "--state", "pending-approval"];
            let (_, answer) = json(&self.system, &words).await;
            let found = answer["operations"].as_array().cloned().unwrap_or_default();
            let mut waiting: Vec<_> =
                found.iter().map(|one| one["operation"]["type"].as_str().unwrap()).collect();
            waiting.sort_unstable();
            let instances = Value::from(self.instances().await).to_string();
            // An agent that has just started may not have been heard.
            if waiting != types || instances.contains("\"state\":\"unknown\"") {
                return Err(answer.to_string() + &instances);
            }
            Ok(found.iter().map(|one| one["operation"]["id"].as_str().unwrap().to_owned()).collect())
        };
        let mut ids: Vec<String> =
            self.system.eventually(&format!("{types:?} wait for approval"), found).await;
        self.learn().await;
        ids.sort_by_key(|id| self.masked(id).split_once('-').unwrap().1.to_owned());
        ids
    }

    /// Adds a deployment, and approves its operations one by one.
    async fn deploy(&mut self, number: u32, instances: u32, types: &[&str]) {
        self.title(&format!("deployment-{number}: {instances} in all"));
        let text = format!(
            "deployment_plan_name: \"{PLAN}\"\ndeployment_id: \"deployment-{number}\"\npayload_coordinates:\n  \
             - payload_name: \"nginx-payload\"\n    coordinates:\n      image: \"nginx:latest\"\n\
             instance_count: {instances}\n"
        );
        let file = self.file(&format!("deployment-{number}.yaml"), &text);
        self.run(&format!("deployment add-deployment -m {file}")).await;
        let ids = self.pending(types).await;
        self.see_plan().await;
        self.see(&format!("operation list --plan {PLAN} --state pending-approval")).await;
        for id in ids {
            self.see(&format!("deployment approve-operation {PLAN} --operation-id {id}")).await;
        }
        let completed = async || {
            let (_, answer) = json(&self.system, &["plan", "show", PLAN]).await;
            let state = &answer["plan"]["revisions"][number as usize - 1]["state"];
            if state == "completed" { Ok(()) } else { Err(answer.to_string()) }
        };
        self.system.eventually("the deployment is completed", completed).await;
        self.see_plan().await;
    }

    async fn see_plan(&mut self) {
        self.see(&format!("deployment show {PLAN}")).await;
        self.see("node list").await;
    }

    /// Requests an operation on the only instance, and approves it.
    async fn operate(&mut self, operation: &str, title: &str) {
        self.title(title);
        self.see(&format!("deployment operate {PLAN} --{operation}")).await;
        self.pending(&[&operation.to_uppercase()]).await;
        self.see_plan().await;
        self.see(&format!("deployment approve-operation {PLAN}")).await;
        let ended = async || {
            let instances = self.instances().await;
            let operations = instances[0]["instance"]["operations"].as_array().unwrap();
            let has_succeeded = operations.iter().all(|operation| operation["state"] == "SUCCEEDED");
            if has_succeeded { Ok(()) } else { Err(format!("{instances:?}")) }
        };
        self.system.eventually("the operation has ended", ended).await;
        self.see_plan().await;
        let name = self.instances().await[0]["instance"]["displayName"].as_str().unwrap().to_owned();
        self.see(&format!("instance show {name}")).await;
    }
}

/// The text with the rows of instances and operations in the order of their masks.
fn sorted(text: &str) -> String {
    let mut blocks: Vec<(Option<String>, String)> = Vec::new();
    for line in text.lines() {
        let id = line.split(' ').next().unwrap_or_default();
        let key = if id.starts_with(SERVICE) { Some(id) } else { id.split_once("-00000000-").map(|it| it.1) };
        match (key, blocks.last_mut()) {
            (None, Some((Some(_), block))) if line.starts_with("  ") => *block += &format!("{line}\n"),
            _ => blocks.push((key.map(str::to_owned), format!("{line}\n"))),
        }
    }
    for rows in blocks.chunk_by_mut(|one, next| one.0.is_some() && next.0.is_some()) {
        rows.sort();
    }
    blocks.into_iter().map(|(_, block)| block).collect()
}

/// The nodes of the walk-through, in MRDS's words.
fn nodes_file() -> String {
    let node = |(at, name): (usize, &str)| {
        let name = name.split_once('/').unwrap().1;
        format!(
            "  - name: {name}\n    updateDomain: update-domain-{}\n    \
             totalResources: {{cores: 64, memory: 512}}\n    \
             systemReservedResources: {{cores: 4, memory: 32}}\n    \
             capabilityIDs: [nvidia-v100, intel-xeon]\n    localVolumes:\n      \
             - {{mountPath: /mnt/standard, storageClass: standard, storageCapacity: 1000}}\n      \
             - {{mountPath: /mnt/ssd, storageClass: fast-ssd, storageCapacity: 1000}}\n",
            2 - at % 2
        )
    };
    "nodes:\n".to_owned() + &NODES.into_iter().enumerate().map(node).collect::<String>()
}

#[tokio::test]
async fn the_walk_through_of_mrds_shows_its_tables_step_by_step() {
    let mut walk = Walk::start().await;
    let ready = async || {
        let output = walk.system.muster(&["cluster", "list"]).await;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
    };
    walk.system.eventually("the planner answers", ready).await;

    walk.title("nodes");
    walk.see("cluster create kind").await;
    walk.see("cluster activate kind").await;
    for (name, kind, score) in
        [("nvidia-v100", "GPU", 2), ("nvidia-p100", "GPU", 1), ("intel-xeon", "CPU", 1)]
    {
        walk.see(&format!("capability create {name} --type {kind} --score {score}")).await;
    }
    let file = walk.file("nodes.yaml", &nodes_file());
    walk.see(&format!("node create -m {file} --site kind")).await;
    for node in NODES {
        walk.see(&format!("node add-to-cluster {node} -c kind")).await;
    }
    walk.see("node list").await;

    walk.title("the plan");
    let file = walk.file("deploymentplan.yaml", PLANS_FILE);
    walk.see(&format!("deployment create -m {file}")).await;
    let (_, answer) = json(&walk.system, &["plan", "show", PLAN]).await;
    walk.mask(answer["plan"]["uid"].as_str().unwrap(), "00000000-0000-0000-0000-000000000000");
    walk.see_plan().await;
    walk.see(&format!("deployment explain {PLAN}")).await;

    walk.deploy(1, 1, &["CREATE"]).await;
    walk.deploy(2, 3, &["CREATE", "CREATE", "UPDATE"]).await;
    walk.deploy(3, 1, &["DELETE", "DELETE", "UPDATE"]).await;
    walk.operate("relocate", "the instance moves to another node").await;
    walk.operate("stop", "the instance stops and keeps its node").await;
    walk.operate("restart", "the instance starts again").await;
    walk.see("deployment list").await;

    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/ctl/plans-walk-through.txt");
    let difference = golden::difference(&file, &walk.page, SWITCH);
    assert!(difference.is_none(), "{}if that is wanted: `{REMEDY}`", difference.unwrap_or_default());
}
