//! Measures the latency of questions that are answered from memory. Run it by hand: `cargo run --release -p
//! muster-domain --example query_latency [DEVICES]`; three standings a device, so the default is a million of
//! them. It ends with 1 if the 99th percentile of any question is not below [`P99_MAX`].
//!
//! A question is timed from reading the fleet to the answer as JSON, on one thread. `looking` is the part of it
//! for which the fold has to wait. The bus is not part of it. A question during which the kernel gave the
//! processor to another thread is repeated and counted as disturbed, so that a busy machine changes the numbers
//! little.

// Its numbers go to standard output.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::query::{Output, PAGE_DEFAULT, Query};
use muster_contract::status::StatusQuery;
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_contract::{DeploymentId, DeviceKey, SiteId, Timestamp, decode};
use muster_domain::fold::{Fleet, Page, Position, Shown};
use serde::Serialize;
use serde_json::json;

const DEVICES: usize = 333_334;
const DEVICES_PER_SITE: usize = 250;
/// Every device runs `web` and `db`, and one of so many others with its site.
const OTHERS: usize = 300;
/// One site in so many is silent as a whole.
const SILENT_SITE_EACH: usize = 50;
/// Rows that a federation asks for at once.
const PART_ROWS: usize = 2_000;
/// How often each question is asked, each time of another place.
const ASKED: usize = 2_000;
/// Bound of the 99th percentile.
const P99_MAX: Duration = Duration::from_millis(10);

/// A question's times.
#[derive(Default)]
struct Times {
    looking: Vec<Duration>,
    whole: Vec<Duration>,
    bytes: usize,
    disturbed: usize,
}

fn main() -> ExitCode {
    let devices = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(DEVICES);
    let begun = Instant::now();
    let mut fleet = fleet(devices);
    define(&mut fleet);
    println!("{} standings of {devices} devices, folded in {:.1?}", devices * 3, begun.elapsed());
    println!(
        "{:<34} {:>11} {:>11} {:>11} {:>11} {:>8} {:>9}",
        "", "p50", "p99", "worst", "looking p99", "bytes", "disturbed"
    );
    let mut asked = questions(&fleet, devices);
    asked.extend(questions_of_views(&fleet, devices));
    asked.extend(questions_of_filters(&fleet, devices));
    let slow = asked.iter().filter(|(name, times)| !times.show(name)).count();
    if slow == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A device. The steps visit places all over the fleet, so that no cache holds what is asked for.
fn key(at: usize, devices: usize) -> DeviceKey {
    name((at * 7_919) % devices).replace('.', "/").parse().expect("a device")
}

fn web() -> DeploymentId {
    "web".parse().expect("an identifier")
}

const fn first<K>() -> Page<K> {
    Page { after: None, limit: PAGE_DEFAULT }
}

/// Questions about devices, deployments and why.
fn questions(fleet: &Fleet, devices: usize) -> Vec<(&'static str, Times)> {
    let web = web();
    let key = |at: usize| key(at, devices);
    let site = |at: usize| -> SiteId { key(at).site };
    let at_site = |site: SiteId| Query { site: site.into(), ..Query::default() };
    let page = |at: usize| Page { after: Some(key(at)), limit: PAGE_DEFAULT };
    vec![
        ("view of the fleet", ask(|_| fleet.fleet_view())),
        ("view of a site", ask(|at| fleet.site_view(&site(at)))),
        ("view of a deployment", ask(|_| fleet.deployment_view(&web))),
        ("a page of deployments", ask(|_| fleet.deployments_answer(&Default::default(), &first()).ok())),
        ("deployments of a site", ask(|at| fleet.deployments_answer(&at_site(site(at)), &first()).ok())),
        ("a device in detail", ask(|at| fleet.device_answer(&key(at), Output::Detail))),
        ("a page of devices", ask(|at| fleet.devices_answer(&Default::default(), &page(at)).ok())),
        ("devices of a site", ask(|at| fleet.devices_answer(&at_site(site(at)), &first()).ok())),
        ("why: a page", ask(|at| fleet.why(&web, None, &page(at)))),
        ("why: the first page", ask(|_| fleet.why(&web, None, &first()))),
        ("why: of a site", ask(|at| fleet.why(&web, Some(&site(at)), &first()))),
        ("why: of a device", ask(|at| fleet.why_device(&web, &key(at)))),
    ]
}

/// Questions about groups, defined views and parts for a federation.
fn questions_of_views(fleet: &Fleet, devices: usize) -> Vec<(&'static str, Times)> {
    let web = web();
    let region = "region".parse().expect("a label");
    let value = |at: usize| format!("r{}", at % 20).parse().expect("a value");
    let part = |key: &str| {
        let key = ViewKey::parse(key).expect("a view");
        ask(|_| fleet.part(&key, 0, PART_ROWS))
    };
    let defined = "by-region".parse().expect("a name");
    vec![
        ("labels", ask(|_| fleet.labels_answer(&first()))),
        ("groups of a label", ask(|_| fleet.groups_answer(&region, None, &first()).ok())),
        ("groups of a deployment", ask(|_| fleet.groups_answer(&region, Some(&web), &first()).ok())),
        ("a group", ask(|at| fleet.group_view(&region, &value(at)))),
        ("defined views", ask(|_| fleet.views_answer())),
        ("a defined view", {
            ask(|_| match fleet.defined_view(&defined) {
                Shown::View(view) => view.sign(),
                Shown::NotYet | Shown::Absent => panic!("it is defined and counted"),
            })
        }),
        ("parts: the fleet", part("fleet")),
        ("parts: a deployment", part("deployment.web")),
        ("status of a device", {
            ask(|at| {
                let device = vec![key(at, devices).to_string().parse().expect("a device")];
                let query = StatusQuery { device, output: Output::Detail, ..StatusQuery::default() };
                fleet.status_answer(&query, None, PAGE_DEFAULT).expect("an answer")
            })
        }),
    ]
}

/// Questions about status, with filters of each kind.
fn questions_of_filters(fleet: &Fleet, devices: usize) -> Vec<(&'static str, Times)> {
    let query = |output| StatusQuery { id: Some(web()), output, ..StatusQuery::default() };
    let site = |at: usize| -> SiteId { key(at, devices).site };
    let after = |at: usize| format!("{}", key(at, devices)).parse().expect("a cursor");
    let status = |query: &StatusQuery, at: Option<usize>| {
        fleet.status_answer(query, at.map(after).as_ref(), PAGE_DEFAULT).expect("an answer")
    };
    let side = || vec!["side".parse().expect("a component")];
    let app = || vec!["com.example.db".to_owned()];
    let by_component = StatusQuery { component: side(), ..query(Output::Summary) };
    let by_app = StatusQuery { app: app(), ..StatusQuery::default() };
    let by_both =
        StatusQuery { app: app(), component: side(), output: Output::All, ..StatusQuery::default() };
    vec![
        ("status: summary", ask(|_| status(&query(Output::Summary), None))),
        ("status: summary of a site", {
            ask(|at| status(&StatusQuery { site: vec![site(at)], ..query(Output::Summary) }, None))
        }),
        ("status: a page of brief lines", ask(|at| status(&query(Output::Brief), Some(at)))),
        ("status: a page of targets", ask(|at| status(&query(Output::All), Some(at)))),
        ("status: a page of filtered counts", ask(|at| status(&by_component, Some(at)))),
        ("status: counts of an app", ask(|at| status(&by_app, Some(at)))),
        ("status: app and component", ask(|at| status(&by_both, Some(at)))),
        ("status: site and component", {
            ask(|at| status(&StatusQuery { site: vec![site(at)], ..by_component.clone() }, None))
        }),
    ]
}

/// Defines a view, and counts it.
fn define(fleet: &mut Fleet) {
    let text = json!({
        "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "by-region", "select": {},
        "groupBy": "label:region", "count": "standings",
    });
    fleet.define([decode::parse(text.to_string().as_bytes()).expect("a definition")]);
    while fleet.is_counting() {
        fleet.count_defined(u32::MAX);
    }
}

fn ask<T: Serialize>(look: impl Fn(usize) -> T) -> Times {
    let mut times = Times::default();
    let mut at = 0;
    while at < ASKED {
        let before = switches();
        let begun = Instant::now();
        let answer = look(at);
        let looked = begun.elapsed();
        let bytes = serde_json::to_vec(&answer).expect("answers are JSON").len();
        let whole = begun.elapsed();
        if switches() != before && times.disturbed < ASKED {
            times.disturbed += 1;
            continue;
        }
        at += 1;
        times.whole.push(whole);
        times.looking.push(looked);
        times.bytes = times.bytes.max(bytes);
    }
    times.looking.sort_unstable();
    times.whole.sort_unstable();
    times
}

impl Times {
    /// Prints a line; true where it is quick enough.
    fn show(&self, name: &str) -> bool {
        let at = |times: &[Duration], part: usize| times[times.len() * part / 100];
        let worst = self.whole.last().copied().unwrap_or_default();
        let (p50, p99) = (at(&self.whole, 50), at(&self.whole, 99));
        let looking = at(&self.looking, 99);
        println!(
            "{name:<34} {p50:>11.1?} {p99:>11.1?} {worst:>11.1?} {looking:>11.1?} {:>8} {:>9}",
            self.bytes, self.disturbed
        );
        p99 < P99_MAX
    }
}

/// How often this thread had to give way, as the kernel counts it; 0 where it does not say.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn fleet(devices: usize) -> Fleet {
    let mut fleet = Fleet::default();
    for device in 0..devices {
        let site = device / DEVICES_PER_SITE;
        let other = format!("other-{:03}", site % OTHERS);
        let deployments = ["web", "db", other.as_str()];
        fold(&mut fleet, &format!("muster.desired.{}", name(device)), &desired(device, deployments));
        let silent = device % 50 == 0 || site % SILENT_SITE_EACH == 7;
        let liveness = format!(
            r#"{{"apiVersion":"muster/v1","kind":"LivenessFact","state":"{}","lastHeardAt":"2026-11-20T08:00:00Z","epoch":1,"head":0}}"#,
            if silent { "stale" } else { "fresh" }
        );
        fold(&mut fleet, &format!("muster.liveness.{}", name(device)), &liveness);
        for (at, id) in deployments.into_iter().enumerate() {
            let state = if (device + at) % 100 == 0 { "failed" } else { "installed" };
            fold(&mut fleet, &format!("muster.status.{}.{id}", name(device)), &report(id, at + 1, state));
        }
    }
    fleet
}

fn fold(fleet: &mut Fleet, subject: &str, body: &str) {
    let subject = LedgerSubject::parse(subject).expect("a subject");
    let fact = Fact::parse(&subject, body.as_bytes()).expect("a fact");
    let ledger_seq = fleet.as_of().ledger_seq + 1;
    fleet.apply(Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH }, &subject, fact);
}

fn name(device: usize) -> String {
    format!("site-{:04}.device-{device:07}", device / DEVICES_PER_SITE)
}

fn desired(device: usize, deployments: [&str; 3]) -> String {
    let entries = deployments.map(|id| {
        let mut entry = json!({
            "id": id, "name": id, "applicationId": format!("com.example.{id}"),
            "profile": {"type": "simulated", "components": [
                {"name": "main", "properties": {}}, {"name": "side", "properties": {}}]},
        });
        entry["digest"] = Digest::of_value(&entry).to_string().into();
        entry["targetGeneration"] = 1.into();
        entry
    });
    json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1,
        "issuedAt": "2026-11-20T08:00:00Z", "source": {"kind": "git", "revision": "c1"},
        "labels": {"region": format!("r{}", device / DEVICES_PER_SITE % 20), "ring": format!("{}", device % 4)},
        "deployments": entries,
    })
    .to_string()
}

fn report(id: &str, seq: usize, state: &str) -> String {
    format!(
        r#"{{"apiVersion":"muster/v1","kind":"StatusFact","epoch":1,"seq":{seq},"head":{seq},"observedAt":"2026-11-20T08:00:00Z","deployment":"{id}","generation":1,"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","status":{{"state":"{state}"}},"components":[{{"name":"main","state":"{state}"}},{{"name":"side","state":"installed"}}],"current":true,"receivedAt":"2026-11-20T08:00:01Z","origin":"push","fidelity":"event"}}"#
    )
}
