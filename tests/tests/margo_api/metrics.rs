//! States of deployments that come in metrics, by write requests of a test and of a real Prometheus with the shipped rules: their
//! effect on the fleet's views, their order and age, what is refused, and whom that holds up.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use muster_proto::prometheus::{Label, Sample, TimeSeries, WriteRequest};
use muster_simulator::child::Spec;
use muster_tests::prometheus::{PROMETHEUS, free_address, is_there, tool};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::client::{Answer, Client};
use crate::fleet::{DEVICE, Fleet, WEB, standing};
use crate::kills::version;

const WRITE: &str = "/ingest/v1/remote-write";
const HEADERS: [(&str, &str); 3] = [
    ("Content-Type", "application/x-protobuf"),
    ("Content-Encoding", "snappy"),
    ("X-Prometheus-Remote-Write-Version", "0.1.0"),
];

/// A series with one sample of value 1 that was taken this long ago.
fn series(labels: &[(&str, &str)], age: Duration) -> TimeSeries {
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() - age;
    let label = |(name, value): &(&str, &str)| Label { name: (*name).to_owned(), value: (*value).to_owned() };
    let sample = Sample { value: 1.0, timestamp: i64::try_from(at.as_millis()).unwrap() };
    TimeSeries { labels: labels.iter().map(label).collect(), samples: vec![sample] }
}

/// That a deployment is in a state with a revision.
fn state(deployment: &str, state: &str, revision: &str, age: Duration) -> TimeSeries {
    let name = ("__name__", "muster_deployment_state");
    series(&[name, ("deployment", deployment), ("state", state), ("revision", revision)], age)
}

async fn write(client: &Client, path: &str, timeseries: Vec<TimeSeries>) -> Answer {
    let bytes = WriteRequest { timeseries }.encode_to_vec();
    let packed = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
    client.ask("POST", path, &HEADERS, &packed).await.unwrap()
}

async fn deployed() -> (Fleet, Client) {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    version(&fleet, &client).await;
    (fleet, client)
}

const NOW: Duration = Duration::ZERO;

#[tokio::test(flavor = "multi_thread")]
async fn a_state_in_metrics_is_seen_as_sampled_and_its_age_counts() {
    let (fleet, client) = deployed().await;
    let path = format!("{WRITE}?period=9s");
    let answer = write(&client, &path, vec![state(WEB, "installing", "1.0.0", NOW)]).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    fleet.state(DEVICE, WEB, "installing").await;
    // An older sample, and one that is older than its period, change nothing.
    let age = Duration::from_secs(6);
    for (word, age) in [("installed", NOW), ("failed", age), ("failed", Duration::from_secs(3600))] {
        assert_eq!(write(&client, &path, vec![state(WEB, word, "1.0.0", age)]).await.status, 204);
    }
    let shown = fleet.state(DEVICE, WEB, "installed").await;
    let report = &standing(&shown, WEB)["report"];
    assert_eq!((&report["origin"], &report["fidelity"]), (&json!("metrics"), &json!("sampled")), "{shown}");
    fleet.device(DEVICE, "the device is fresh", |shown| shown["device"]["freshness"] == "fresh").await;
    let text = fleet.muster(&["status", WEB]).await;
    let row = text.lines().find(|line| line.starts_with("metrics ")).unwrap_or_default();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(text.contains("EVIDENCE BY") && cells == ["metrics", "-", "-", "1", "1"], "{text}");
    let shown = fleet.device(DEVICE, "it is stale", |shown| shown["device"]["freshness"] == "stale").await;
    assert_eq!(standing(&shown, WEB)["kstatus"], "Unknown", "{shown}");
    assert_eq!(shown["device"]["head"], 2, "the older samples made no report: {shown}");
    // Eight of its twenty seconds are over when it comes.
    let since = Instant::now();
    let aged = state(WEB, "installed", "1.0.0", Duration::from_secs(8));
    assert_eq!(write(&client, &format!("{WRITE}?period=20s"), vec![aged]).await.status, 204);
    fleet.device(DEVICE, "it is fresh again", |shown| shown["device"]["freshness"] == "fresh").await;
    fleet.device(DEVICE, "it is stale", |shown| shown["device"]["freshness"] == "stale").await;
    assert!(since.elapsed() < Duration::from_secs(20), "stale after {:?}", since.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn other_content_is_no_success_and_an_absent_deployment_is_gone() {
    let (fleet, client) = deployed().await;
    let foreign = || state("kube-prometheus", "installed", "1", NOW);
    let count = || series(&[("__name__", "muster_deployments")], NOW);
    assert_eq!(
        write(&client, WRITE, vec![state(WEB, "installed", "0.9.0", NOW), foreign()]).await.status,
        204
    );
    let shown = fleet.state(DEVICE, WEB, "pending").await;
    assert!(shown.to_string().contains("revision 0.9.0"), "{shown}");
    assert_eq!(write(&client, WRITE, vec![state(WEB, "installed", "1.0.0", NOW)]).await.status, 204);
    fleet.state(DEVICE, WEB, "installed").await;
    // One deployment is all that the cluster has, and it is another one; both samples are of one time.
    let mut pair = vec![foreign(), count()];
    pair[1].samples[0].timestamp = pair[0].samples[0].timestamp;
    assert_eq!(write(&client, WRITE, pair).await.status, 204);
    fleet.state(DEVICE, WEB, "pending").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_against_the_rules_is_refused_and_the_others_are_stored() {
    let (fleet, client) = deployed().await;
    let unknown = state(WEB, "ready", "1.0.0", NOW);
    let answer = write(&client, WRITE, vec![unknown, state(WEB, "installed", "1.0.0", NOW)]).await;
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(answer.json()["detail"].as_str().unwrap().contains("has the state 'ready'"), "{answer:?}");
    fleet.state(DEVICE, WEB, "installed").await;
    let of_another = series(
        &[
            ("__name__", "muster_deployment_state"),
            ("deployment", WEB),
            ("state", "failed"),
            ("revision", "1.0.0"),
            ("device", "press-2"),
        ],
        NOW,
    );
    assert_eq!(write(&client, WRITE, vec![of_another]).await.status, 403, "it speaks for itself alone");
    let many =
        (0..1_100).map(|at| state(&format!("d-{at}"), "installed", "1", Duration::from_millis(at * 20)));
    assert_eq!(write(&client, WRITE, many.collect()).await.status, 413, "of so many times");
    let whole = snap::raw::Encoder::new().compress_vec(&vec![0; 3 * 1024 * 1024]).unwrap();
    for (headers, body, status) in [
        (&HEADERS[..], &b"no snappy"[..], 400),
        (&HEADERS[..], &snap::raw::Encoder::new().compress_vec(b"no message").unwrap(), 400),
        (&HEADERS[..], &whole, 413),
        (&HEADERS[..1], b"", 415),
        (
            &[("Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request"), HEADERS[1]],
            b"",
            415,
        ),
    ] {
        let answer = client.ask("POST", WRITE, headers, body).await.unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pipeline_speaks_for_the_clusters_of_its_client() {
    let fleet = Fleet::start_with_children(DEVICE, &["plant7/child-1", "plant7/child-2"]).await;
    let client = fleet.client(DEVICE).await;
    version(&fleet, &client).await;
    let of = |device: &str, word: &str| {
        let mut one = state(WEB, word, "1.0.0", NOW);
        one.labels.push(Label { name: "device".to_owned(), value: format!("press-1/{device}") });
        one
    };
    let answer = write(&client, WRITE, vec![of("child-1", "installed"), of("child-2", "failed")]).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    fleet.state("plant7/child-1", WEB, "installed").await;
    fleet.state("plant7/child-2", WEB, "failed").await;
}

/// A page of metrics as kube-state-metrics has it: one Deployment with its replicas.
fn page(replicas: u32, available: u32, revision: &str) -> String {
    let of = "{namespace=\"line\",deployment=\"web-server\"}";
    let labels = format!(
        "{{namespace=\"line\",deployment=\"web-server\",label_app_kubernetes_io_part_of=\"{WEB}\",label_app_kubernetes_io_version=\"{revision}\"}}"
    );
    let numbers = [
        ("status_observed_generation", 4),
        ("metadata_generation", 4),
        ("spec_replicas", 2),
        ("status_replicas_updated", 2),
        ("status_replicas", replicas),
        ("status_replicas_available", available),
    ];
    let lines = numbers.map(|(name, value)| format!("kube_deployment_{name}{of} {value}\n"));
    lines.concat() + &format!("kube_deployment_labels{labels} 1\n")
}

/// Serves the text that `shown` holds at an address.
async fn serve(shown: Arc<Mutex<String>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let body = shown.lock().unwrap().clone();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    addr
}

/// A Prometheus that scrapes an address, evaluates the shipped rules and writes to the gateway.
fn start_prometheus(fleet: &mut Fleet, scraped: SocketAddr) {
    let dir = fleet.system.dir().join(PROMETHEUS);
    std::fs::create_dir_all(&dir).unwrap();
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/examples/kubernetes-rules.yaml");
    let rules = std::fs::read_to_string(rules).unwrap();
    assert!(rules.contains("interval: 30s"));
    std::fs::write(dir.join("rules.yaml"), rules.replace("interval: 30s", "interval: 300ms")).unwrap();
    let own = fleet.authority.client("press-1");
    let config = json!({
        "global": {"scrape_interval": "300ms"},
        "rule_files": [dir.join("rules.yaml")],
        "scrape_configs": [{"job_name": "kube-state-metrics", "static_configs": [{"targets": [scraped.to_string()]}]}],
        "remote_write": [{
            "url": format!("https://{}{WRITE}?period=5s", fleet.gateway),
            "tls_config": {"ca_file": fleet.authority.certificate(), "cert_file": own.certificate, "key_file": own.key},
            "write_relabel_configs": [
                {"source_labels": ["__name__"], "regex": "muster_deployments?(_state)?", "action": "keep"},
            ],
            "queue_config": {"max_shards": 1, "batch_send_deadline": "100ms"},
        }],
    });
    let file = dir.join("prometheus.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let args = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", dir.join("data").display()),
        format!("--web.listen-address={}", free_address()),
    ];
    let program = tool(PROMETHEUS).expect("the test asked whether it is there");
    fleet.system.start_own(Spec { name: PROMETHEUS.to_owned(), program, args: args.into() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_with_the_shipped_rules_reports_a_cluster() {
    if !is_there("a_real_prometheus_with_the_shipped_rules_reports_a_cluster") {
        return;
    }
    let (mut fleet, _client) = deployed().await;
    let shown = Arc::new(Mutex::new(page(2, 1, "1.0.0")));
    let show = |text: String| *shown.lock().unwrap() = text;
    let scraped = serve(Arc::clone(&shown)).await;
    start_prometheus(&mut fleet, scraped);
    fleet.state(DEVICE, WEB, "installing").await;
    show(page(2, 2, "1.0.0"));
    fleet.state(DEVICE, WEB, "installed").await;
    let is_fresh = |shown: &Value| shown["device"]["freshness"] == "fresh";
    fleet.device(DEVICE, "the device is fresh", is_fresh).await;
    // Two pods are of the new content, and one of two available ones is of the old.
    show(page(3, 2, "1.0.0"));
    fleet.state(DEVICE, WEB, "installing").await;
    let condition = format!(
        "kube_deployment_status_condition{{namespace=\"line\",deployment=\"web-server\",condition=\"{}\",status=\"false\"}} 1\n",
        "Progressing"
    );
    show(page(2, 1, "1.0.0") + &condition);
    let failed = fleet.state(DEVICE, WEB, "failed").await;
    assert!(failed.to_string().contains("ProgressDeadlineExceeded"), "{failed}");
    // The cluster runs another revision than the target's.
    show(page(2, 2, "2.0.0"));
    fleet.state(DEVICE, WEB, "pending").await;
    let view: Value =
        serde_json::from_str(&fleet.muster(&["status", WEB, "--format", "json"]).await).unwrap();
    assert_eq!(view["view"]["evidence"], json!({"metrics": {"sampled": 1}}), "{view}");
    show(String::new());
    fleet.device(DEVICE, "it is stale", |shown| shown["device"]["freshness"] == "stale").await;
}
