//! `compose/compose.yaml` as a person starts it, with everything done to it that the walk-through names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use muster_bus::Bus;
use muster_contract::view::{DeploymentView, Verdict};
use muster_simulator::http;
use muster_simulator::hub::Hub;
use muster_simulator::ledger::{self, Rebuild};
use muster_tests::containers::{IMAGES, Stack, TAG, compose_command, docker, try_docker};
use muster_tests::python::interpreter;
use muster_tests::wait::within;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::observe;

const AGENTS: u64 = 12;
/// How long every link is cut.
const CUT: Duration = Duration::from_secs(20);
/// Time in which any state of the fleet has come true, on a machine that does other things as well.
pub(super) const DEADLINE: Duration = Duration::from_secs(90);
/// Time between two looks that are a program each.
const LOOK: Duration = Duration::from_millis(500);
/// The services that keep running after the start.
const SERVICES: [&str; 11] = [
    "nats",
    "git",
    "admit",
    "publisher",
    "ingest",
    "rollup",
    "planner",
    "gateway",
    "renewer",
    "link",
    "agent",
];
/// An image at most. One of programs for debugging, as tests have them, is nearly twice as large.
const IMAGE_BYTES_MAX: u64 = if cfg!(debug_assertions) { 56 << 20 } else { 30 << 20 };

/// Prints the status of one request over TLS with a client certificate.
const ASK_AS_DEVICE: &str = "\
import http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.load_cert_chain(sys.argv[2], sys.argv[3])
device = http.client.HTTPSConnection('127.0.0.1', int(sys.argv[4]), context=context, timeout=10)
device.request('GET', '/api/v1/deployments')
print(device.getresponse().status)
";

/// A canary, a quarter of the devices, then the rest.
const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, count: 1, soak: 2s}
  - {name: quarter, percent: 25%}
";

/// A fleet with somebody who asks it.
pub(super) struct Fleet {
    pub(super) stack: Stack,
    pub(super) hub: Hub,
    pub(super) bus: Bus,
}

impl Fleet {
    /// Somebody who asks a fleet that is up.
    pub(super) async fn of(stack: Stack) -> Self {
        let (bus, asking) = (stack.bus("subscriber").await, stack.bus("operator").await);
        Self { stack, hub: Hub::new(asking), bus }
    }

    pub(super) async fn until(&self, what: &str, holds: impl Fn(&BTreeMap<String, DeploymentView>) -> bool) {
        let look = async || match self.hub.deployments().await {
            Ok(views) => views.into_iter().map(|view| (view.deployment.to_string(), view)).collect(),
            Err(_) => BTreeMap::new(),
        };
        let words = |views: &BTreeMap<String, DeploymentView>| {
            views
                .values()
                .map(|it| format!("{} {:?} {:?}", it.deployment, it.verdict, it.converged))
                .collect::<Vec<_>>()
        };
        let seen = async || {
            let views: BTreeMap<_, _> = look().await;
            (holds(&views), words(&views))
        };
        within(DEADLINE, what, seen, |(holds, _)| *holds).await;
    }

    async fn until_all_converged(&self, what: &str) {
        let names = ["cranes", "gateway", "telemetry"];
        self.until(what, |views| {
            let converged =
                |view: &DeploymentView| view.verdict == Verdict::Converged && view.targets == AGENTS;
            views.keys().eq(&names) && views.values().all(converged)
        })
        .await;
    }

    pub(super) async fn until_devices(&self, what: &str, fresh: u64, stale: u64) {
        let look = async || self.hub.fleet().await.map(|view| view.tally.devices).unwrap_or_default();
        within(DEADLINE, what, look, |devices| (devices.fresh, devices.stale) == (fresh, stale)).await;
    }

    /// Waits until the publisher has taken a commit.
    pub(super) async fn until_published(&self, revision: &str) {
        let status = async || {
            sleep(LOOK).await;
            self.stack.muster(&["publisher", "status", "--format", "json"]).unwrap_or_else(|error| error)
        };
        within(DEADLINE, "the publisher has the commit", status, |said| said.contains(revision)).await;
    }

    /// Waits until every report is accounted for. Links go on breaking: some may be under way for a moment.
    pub(super) async fn until_nothing_is_missing(&self) {
        let audit = async || {
            sleep(LOOK).await;
            self.stack.muster(&["audit"])
        };
        let audit = within(DEADLINE, "nothing is missing", audit, Result::is_ok).await.unwrap();
        println!("{audit}");
    }

    /// Waits until the views are those that follow from LEDGER's facts, by a fold of the test's own and by the rollup's
    /// own proof.
    pub(super) async fn until_every_view_is_that_of_a_rebuild(&self) {
        let look = async || {
            let mut rebuild = Rebuild::default();
            ledger::read(&self.bus, |entry| rebuild.apply(entry)).await.unwrap();
            let rebuilt: BTreeMap<_, _> =
                rebuild.digests().into_iter().map(|(key, digest)| (key.to_string(), Some(digest))).collect();
            (rebuilt, ledger::shown(&self.bus).await.unwrap())
        };
        let same = |(rebuilt, shown): &(BTreeMap<_, _>, BTreeMap<_, _>)| rebuilt == shown;
        let (rebuilt, _) = within(DEADLINE, "every view is that of a rebuild", look, same).await;
        assert!(rebuilt.len() >= 5, "three deployments, a site and the fleet: {rebuilt:?}");
        let verified = self.stack.muster(&["verify"]).unwrap();
        println!("{verified}");
    }

    /// Changes the content of the whole fleet and pushes it.
    pub(super) fn push(&self, message: &str, file: &str, from: &str, to: &str) {
        self.stack.push(message, |clone: &Path| {
            let path = clone.join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            std::fs::write(path, text.replace(from, to)).unwrap();
        });
    }
}

async fn started() -> Fleet {
    let agents = format!("agent={AGENTS}");
    let stack = Stack::new("muster-check-fleet", &["compose.yaml"], &[("MUSTER_LINK_SEED", "7")]);
    let began = Instant::now();
    stack.up(&["--scale", &agents]);
    let up = began.elapsed();
    let fleet = Fleet::of(stack).await;
    fleet.until_all_converged("up, and everything runs").await;
    println!("{} {}", compose_command().join(" "), fleet.stack.compose(&["version", "--short"]).unwrap());
    println!("{AGENTS} agents behind flapping links: up in {up:.1?}, converged in {:.1?}", began.elapsed());
    fleet
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_in_containers_converges_and_loses_nothing_under_all_faults() {
    sizes();
    let fleet = started().await;
    nobody_is_root(&fleet.stack);
    every_container_is_healthy(&fleet.stack).await;
    observe::every_metric_that_is_looked_at_is_there(&fleet.stack);
    the_page_shows_the_fleet(&fleet).await;
    websocket_is_served(&fleet.stack).await;
    margos_api_is_served(&fleet.stack).await;
    every_link_is_cut_for_a_while(&fleet).await;
    the_line_of_one_device_is_cut(&fleet).await;
    the_server_is_killed_and_started_again(&fleet).await;
    a_commit_changes_one_deployment_and_breaks_another(&fleet).await;
    a_governed_change_goes_out_in_waves(&fleet).await;
    let handed_on = a_device_is_made_anew_and_is_the_same(&fleet).await;
    nothing_is_lost_and_every_view_is_that_of_a_rebuild(&fleet).await;
    let asked = fleet.stack.compose(&["run", "--rm", "-T", "muster", "status"]).unwrap();
    assert!(asked.contains("telemetry") && asked.contains("converged"), "{asked}");
    fleet.stack.end();
    assert_eq!(fleet.stack.remains(), Vec::<String>::new(), "`down.sh` leaves nothing");
    // Compose took them for nobody's, and gave them no label.
    let left: Vec<_> =
        handed_on.iter().filter(|name| try_docker(&["volume", "inspect", name]).is_ok()).collect();
    assert_eq!(left, Vec::<&String>::new(), "`down.sh` leaves no volume that was handed on");
}

/// Each image is small, and says what it is.
fn sizes() {
    for image in IMAGES {
        let told = docker(&["image", "inspect", &format!("{image}:{TAG}")]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let bytes = told[0]["Size"].as_u64().unwrap();
        println!("{image}: {:.1} MiB", bytes as f64 / 1024.0 / 1024.0);
        assert!(bytes <= IMAGE_BYTES_MAX, "{image} has {bytes} bytes");
        let labels = &told[0]["Config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.title"], image);
        assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    }
}

fn nobody_is_root(stack: &Stack) {
    for service in SERVICES {
        for id in stack.containers(service) {
            let told: Value = serde_json::from_str(&docker(&["inspect", &id])).unwrap();
            let (config, host) = (&told[0]["Config"], &told[0]["HostConfig"]);
            assert_eq!(config["User"], "65532:65532", "{service}");
            assert_eq!(host["ReadonlyRootfs"], true, "{service}");
            assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]), "{service}");
            for limit in ["Memory", "PidsLimit", "NanoCpus"] {
                assert!(host[limit].as_u64().unwrap() > 0, "{service} has no limit of {limit}");
            }
        }
    }
}

async fn every_container_is_healthy(stack: &Stack) {
    let look = async || {
        sleep(LOOK).await;
        let ids: Vec<_> = SERVICES.iter().flat_map(|service| stack.containers(service)).collect();
        let format = ["inspect", "--format", "{{.Name}} {{.State.Health.Status}}"];
        let told: Vec<String> =
            ids.iter().map(|id| docker(&[&format[..], &[id.as_str()]].concat())).collect();
        told.into_iter().filter(|line| !line.ends_with(" healthy")).collect::<Vec<_>>()
    };
    within(DEADLINE, "every container is healthy", look, Vec::is_empty).await;
}

async fn the_page_shows_the_fleet(fleet: &Fleet) {
    let addr = fleet.stack.published("MUSTER_WEB_PORT");
    let look = async || match http::get(addr, "/").await {
        Ok(answer) if answer.status == 200 => answer.body,
        other => format!("{other:?}"),
    };
    within(DEADLINE, "the page shows the fleet", look, |page| page.contains("/deployments/telemetry")).await;
}

/// A server with TLS answers plain HTTP with 400 and names HTTPS; without a server the connection is refused.
async fn websocket_is_served(stack: &Stack) {
    let addr = stack.published("MUSTER_WS_PORT");
    let refused = http::get(addr, "/").await.map(|answer| (answer.status, answer.body));
    let is_tls = matches!(&refused, Ok((400, body)) if body.contains("HTTPS"));
    assert!(is_tls, "NATS by WebSocket over TLS does not answer at {addr}: {refused:?}");
}

/// The first device of the lab is a stranger with a certificate of the lab's authority, so the gateway answers 403.
async fn margos_api_is_served(stack: &Stack) {
    let authority = stack.copied("gateway", "/data/devices/ca.pem");
    let [certificate, key] = ["press-1.pem", "press-1.key"]
        .map(|name| stack.copied("admit", &format!("/data/vault/devices/{name}")));
    let port = stack.published("MUSTER_MARGO_PORT").port().to_string();
    let mut command = Command::new(interpreter());
    command.args(["-c", ASK_AS_DEVICE]).args([&authority, &certificate, &key]).arg(port);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said.trim(), "403", "{}", String::from_utf8_lossy(&output.stderr));
}

async fn every_link_is_cut_for_a_while(fleet: &Fleet) {
    let (link, hub) = (fleet.stack.container("link"), fleet.stack.network("hub"));
    docker(&["network", "disconnect", &hub, &link]);
    let since = Instant::now();
    fleet.push("Telemetry release 2", "fleet/telemetry.yaml", "value: \"1\"", "value: \"2\"");
    fleet.until_devices("every device is silent", 0, AGENTS).await;
    fleet
        .until("telemetry waits for devices", |views| {
            let waits = |view: &DeploymentView| view.converged.lo == 0 && view.verdict != Verdict::Converged;
            views.get("telemetry").is_some_and(waits)
        })
        .await;
    sleep(CUT.saturating_sub(since.elapsed())).await;
    docker(&["network", "connect", &hub, &link]);
    fleet.until_devices("every device is back", AGENTS, 0).await;
    fleet.until_all_converged("what was published meanwhile runs").await;
    println!("every link cut for {CUT:?}: right again {:.1?} after the cut", since.elapsed());
}

async fn the_line_of_one_device_is_cut(fleet: &Fleet) {
    let (link, agent) = (fleet.stack.container("link"), fleet.stack.containers("agent").remove(0));
    let since = Instant::now();
    docker(&["exec", &link, "/bin/muster-simulator", "cut", &agent]);
    fleet.until_devices("one device is silent", AGENTS - 1, 1).await;
    docker(&["exec", &link, "/bin/muster-simulator", "mend", &agent]);
    fleet.until_devices("that device is back", AGENTS, 0).await;
    println!("one line cut: right again {:.1?} after the cut", since.elapsed());
}

async fn the_server_is_killed_and_started_again(fleet: &Fleet) {
    let nats = fleet.stack.container("nats");
    docker(&["kill", &nats]);
    let since = Instant::now();
    fleet.push("Telemetry release 3", "fleet/telemetry.yaml", "value: \"2\"", "value: \"3\"");
    docker(&["start", &nats]);
    fleet.until_published(&fleet.stack.revision()).await;
    fleet.until_all_converged("the release of meanwhile runs").await;
    fleet.until_devices("every device is heard", AGENTS, 0).await;
    println!("nats killed and started again: right again after {:.1?}", since.elapsed());
}

async fn a_commit_changes_one_deployment_and_breaks_another(fleet: &Fleet) {
    fleet.stack.push("Telemetry release 4; a gateway that cannot start", |clone| {
        let edit = |file: &str, from: &str, to: &str| {
            let (path, text) = (clone.join(file), std::fs::read_to_string(clone.join(file)).unwrap());
            assert!(text.contains(from), "{text}");
            std::fs::write(path, text.replace(from, to)).unwrap();
        };
        edit("fleet/telemetry.yaml", "value: \"3\"", "value: \"4\"");
        edit("fleet/gateway.yaml", "failStarts: 1", "failStarts: 1000000, restart: never");
    });
    fleet
        .until("the gateway fails on every device, and telemetry does not mind", |views| {
            let (Some(gateway), Some(telemetry)) = (views.get("gateway"), views.get("telemetry")) else {
                return false;
            };
            let failed = gateway.errors.first().is_some_and(|error| error.count == AGENTS);
            gateway.verdict == Verdict::Failing && failed && telemetry.verdict == Verdict::Converged
        })
        .await;
    let why = fleet.stack.muster(&["why", "gateway"]).unwrap();
    assert!(why.contains("fail") && why.contains("harbour/"), "{why}");
    let (broken, mended) = ("failStarts: 1000000, restart: never", "failStarts: 0");
    fleet.push("A gateway that starts", "fleet/gateway.yaml", broken, mended);
    fleet.until_published(&fleet.stack.revision()).await;
    fleet.until_all_converged("the gateway is mended").await;
}

/// The planner releases it to one device first, and to the others once that one is confirmed.
async fn a_governed_change_goes_out_in_waves(fleet: &Fleet) {
    fleet.stack.push("Telemetry release 5, in waves", |clone| {
        std::fs::write(clone.join("fleet/rollout.yaml"), ROLLOUT).unwrap();
        let path = clone.join("fleet/telemetry.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("value: \"4\"", "value: \"5\"")).unwrap();
    });
    let revision = fleet.stack.revision();
    let show = async || {
        sleep(LOOK).await;
        fleet.stack.muster(&["rollout", "show", "telemetry"]).unwrap_or_else(|error| error)
    };
    let is_done = |shown: &String| {
        shown.contains(&format!("in commit {revision}"))
            && shown.contains("done: every target has the content")
    };
    let shown = within(DEADLINE, "the planner has released every wave", show, is_done).await;
    println!("{shown}");
    let planner = fleet.stack.container("planner");
    let metrics = docker(&["exec", &planner, "/bin/muster-probe", "127.0.0.1:9100", "/metrics"]);
    let released = http::metric(&metrics, "muster_planner_released_total");
    assert!(released.is_some_and(|count| count >= AGENTS as f64), "{metrics}");
    fleet.until_all_converged("the release of the last wave runs").await;
}

/// A container that is made anew has another name, and the same data: it is the same device.
/// Gives the volumes that the new containers took over.
async fn a_device_is_made_anew_and_is_the_same(fleet: &Fleet) -> Vec<String> {
    let before = BTreeSet::from_iter(fleet.stack.containers("agent"));
    let names = async || -> BTreeSet<String> {
        fleet.hub.devices().await.unwrap().into_iter().map(|line| line.key.to_string()).collect()
    };
    let known = names().await;
    let scale = format!("agent={AGENTS}");
    fleet.stack.up(&["--scale", &scale, "--no-deps", "--force-recreate", "agent"]);
    let after = BTreeSet::from_iter(fleet.stack.containers("agent"));
    assert!(before.is_disjoint(&after), "no container was made anew");
    fleet.until_devices("every device is heard again", AGENTS, 0).await;
    assert_eq!(names().await, known);
    let own = "{{range .Mounts}}{{if eq .Destination \"/data/state\"}}{{.Name}}{{end}}{{end}}";
    after.iter().map(|id| docker(&["inspect", "--format", own, id])).collect()
}

async fn nothing_is_lost_and_every_view_is_that_of_a_rebuild(fleet: &Fleet) {
    fleet.until_all_converged("everything runs at the end").await;
    fleet.until_nothing_is_missing().await;
    fleet.until_every_view_is_that_of_a_rebuild().await;
}
