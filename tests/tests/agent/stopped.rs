//! Stopped and restarted deployments of real processes: a stopped one is gone until it is started, and a restart happens once.

use std::path::Path;

use muster_agent::config::RuntimeKind;
use muster_contract::desired::DesiredDeployment;

use super::*;

/// A program that adds its process number to a file, and runs until it is stopped.
fn program(starts: &Path) -> Value {
    let script = format!("echo $$ >> {}; exec sleep 100000", starts.display());
    json!({ "command": "sh", "args": ["-c", script], "stopTimeout": "2s" })
}

/// A document with the program as deployment `web`, and these fields of its entry.
fn document_of(generation: u64, target: u64, starts: &Path, fields: &Value) -> Value {
    let mut document = document(generation, &[("web", target, program(starts))]);
    set_fields(&mut document["deployments"][0], fields);
    document
}

/// Makes an entry one of the process runtime, sets fields of it, and its digest.
fn set_fields(entry: &mut Value, fields: &Value) {
    entry["profile"]["type"] = json!("process");
    for (field, value) in fields.as_object().unwrap() {
        entry[field] = value.clone();
    }
    let parsed: DesiredDeployment = serde_json::from_value(entry.clone()).unwrap();
    entry["digest"] = json!(parsed.content_digest());
}

/// The process numbers of every start.
fn started(starts: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(starts).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// An agent of the process runtime that has `web` installed, and the file of its starts.
async fn with_web(hub: &Hub) -> (Agent, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let agent = hub.process_agent(dir).await;
    hub.desire(&document_of(1, 1, &starts, &json!({}))).await;
    hub.until("web", 1, State::Installed).await;
    (agent, starts)
}

impl Hub {
    async fn process_agent(&self, dir: TempDir) -> Agent {
        let supervisor = Supervisor::new();
        let config = || Config { runtime: RuntimeKind::Process, ..self.config(&dir) };
        let start = || muster_agent::start(config(), &supervisor);
        let handle = until("an agent", start, Result::is_ok).await.unwrap();
        Agent { supervisor, handle, dir }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_is_gone_until_it_is_started_again() {
    let hub = Hub::start().await;
    let (agent, starts) = with_web(&hub).await;
    let [first] = started(&starts)[..] else { panic!("not one start") };
    assert!(is_alive(first));
    hub.desire(&document_of(2, 2, &starts, &json!({ "stopped": true }))).await;
    let reports = hub.until("web", 2, State::Pending).await;
    assert!(!is_alive(first), "the report comes after the end of the process");
    let reports_of_two = |it: &&StatusReport| it.generation.get() == 2;
    let last = reports.iter().filter_map(status).rfind(reports_of_two);
    assert_eq!(last.unwrap().status.reason.as_deref(), Some("stopped on request"));
    // Another agent leaves it alone: a later deployment runs first.
    let dir = agent.end().await;
    let agent = hub.process_agent(dir).await;
    let mut both = document_of(3, 2, &starts, &json!({ "stopped": true }));
    let mut other = document(3, &[("zoo", 3, program(&starts.with_extension("other")))]);
    set_fields(&mut other["deployments"][0], &json!({}));
    both["deployments"].as_array_mut().unwrap().push(other["deployments"][0].take());
    hub.desire(&both).await;
    hub.until("zoo", 3, State::Installed).await;
    assert_eq!(started(&starts), [first]);
    hub.desire(&document_of(4, 4, &starts, &json!({}))).await;
    hub.until("web", 4, State::Installed).await;
    hub.until("zoo", 4, State::Removed).await;
    let again = started(&starts);
    assert!(again.len() == 2 && is_alive(again[1]), "{again:?}");
    hub.desire(&document(5, &[])).await;
    hub.until("web", 5, State::Removed).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_of_an_unreachable_device_is_applied_once_it_is_reachable() {
    let hub = Hub::start().await;
    let (agent, starts) = with_web(&hub).await;
    let [first] = started(&starts)[..] else { panic!("not one start") };
    let dir = agent.end().await;
    hub.desire(&document_of(2, 2, &starts, &json!({ "restart": 1 }))).await;
    hub.desire(&document_of(3, 3, &starts, &json!({ "restart": 1, "stopped": true }))).await;
    assert!(is_alive(first), "without an agent the process runs on");
    let agent = hub.process_agent(dir).await;
    hub.until("web", 3, State::Pending).await;
    until("the process ends", async || is_alive(first), |alive| !alive).await;
    assert_eq!(started(&starts), [first], "the newest document holds");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_really_restarts_and_only_once() {
    let hub = Hub::start().await;
    let (agent, starts) = with_web(&hub).await;
    let [first] = started(&starts)[..] else { panic!("not one start") };
    hub.desire(&document_of(2, 2, &starts, &json!({ "restart": 1 }))).await;
    hub.until("web", 2, State::Installed).await;
    let second = match started(&starts)[..] {
        [before, second] if before == first => second,
        ref other => panic!("not two starts: {other:?}"),
    };
    assert!(!is_alive(first) && is_alive(second));
    let dir = agent.end().await;
    let agent = hub.process_agent(dir).await;
    // The same counter under a newer generation changes nothing, also for another agent.
    hub.desire(&document_of(3, 3, &starts, &json!({ "restart": 1 }))).await;
    hub.until("web", 3, State::Installed).await;
    assert_eq!(started(&starts), [first, second]);
    assert!(is_alive(second));
    hub.desire(&document(4, &[])).await;
    hub.until("web", 4, State::Removed).await;
    agent.end().await;
}
