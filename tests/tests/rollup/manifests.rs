//! Tests manifests in detail, from LEDGER on a real server: whose they are, when they change, and which are
//! left out.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::history::Point;
use muster_contract::query::Output;
use muster_contract::question::ANSWER_BYTES_MAX;
use muster_contract::status::{StatusAnswer, StatusQuery, TargetStatus};
use muster_contract::subjects::stream;
use muster_contract::{Generation, Timestamp};
use muster_tests::streams::forget_up_to;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::{Hub, Rollup};

/// An entry with a word that tells it apart.
pub(crate) fn entry(id: &str, note: &str, generation: u64) -> Value {
    let mut entry = json!({
        "id": id, "name": id, "applicationId": format!("com-example-{id}"),
        "profile": {"type": "simulated", "components": [{"name": "main", "properties": {"note": note}}]},
    });
    entry["digest"] = Digest::of_value(&entry).to_string().into();
    entry["targetGeneration"] = generation.into();
    entry
}

impl Hub {
    /// Publishes what a device shall run, and waits until LEDGER has it: there is its sequence.
    pub(crate) async fn shall_run(&self, device: &str, generation: u64, entries: &[Value]) -> u64 {
        let desired = json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": Timestamp::now().to_string(), "deployments": entries,
            "source": {"kind": "git", "revision": format!("commit-{generation}")},
        });
        let subject = format!("muster.desired.{device}");
        self.put(&subject, &desired).await;
        let sourced = || async {
            let last = self.bus.last(stream::LEDGER, &subject).await.ok().flatten()?;
            let held: Value = serde_json::from_slice(&last.payload).ok()?;
            (held["generation"] == generation).then_some(last.stream_seq)
        };
        until("the desired state in LEDGER", sourced, Option::is_some).await.unwrap()
    }

    /// The answer in detail, once it leaves out what it should: on a machine that stands still LEDGER may be too slow.
    async fn in_detail(&self, query: StatusQuery, left_out: impl Fn(&StatusAnswer) -> u64) -> StatusAnswer {
        let query = StatusQuery { output: Output::Detail, ..query };
        let ask = || self.recalled::<StatusAnswer>("status", &query);
        until("what shall run", ask, |answer| answer.manifests_left_out == left_out(answer)).await
    }
}

/// The word of each target's manifest, by device; none where the answer has no manifest of it.
fn notes(answer: &StatusAnswer) -> BTreeMap<String, Option<String>> {
    let note = |target| {
        let manifest = answer.manifest(target)?;
        assert_eq!(Some(manifest.digest()), target.digest, "it is the one that the line is about");
        manifest.profile.components[0].properties["note"].as_str().map(str::to_owned)
    };
    answer.targets.iter().map(|target| (target.key.device.to_string(), note(target))).collect()
}

fn words(pairs: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
    pairs.iter().map(|(device, note)| ((*device).to_owned(), note.map(str::to_owned))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn q13_detail_shows_the_published_manifest_and_its_update() {
    let hub = Hub::start().await;
    hub.shall_run("plant7.drill-1", 1, &[entry("web", "first", 1)]).await;
    let then = hub.shall_run("plant7.press-4", 1, &[entry("db", "x", 1), entry("web", "first", 1)]).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let web = || StatusQuery { id: Some("web".parse().unwrap()), ..StatusQuery::default() };

    let first = hub.in_detail(web(), |_| 0).await;
    assert_eq!(notes(&first), words(&[("drill-1", Some("first")), ("press-4", Some("first"))]));
    assert_eq!((first.manifests.len(), first.manifests_left_out), (1, 0), "one copy is for both");
    let source = first.targets[0].source.as_ref().unwrap();
    assert_eq!(source.revision, "commit-1");

    // One of the two is updated; the other one has a new document with the same entry.
    let entries = [entry("db", "y", 2), entry("web", "first", 1)];
    hub.shall_run("plant7.press-4", 2, &entries).await;
    let end = hub.shall_run("plant7.drill-1", 2, &[entry("web", "second", 2)]).await;
    rollup.reads_to(end).await;
    let now = hub.in_detail(web(), |_| 0).await;
    assert_eq!(notes(&now), words(&[("drill-1", Some("second")), ("press-4", Some("first"))]));
    assert_eq!((now.manifests.len(), now.manifests_left_out), (2, 0));
    assert_ne!(now.targets[0].digest, first.targets[0].digest);

    let point = Point::at_seq(then);
    let past = hub.in_detail(StatusQuery { point, ..web() }, |_| 0).await;
    assert_eq!((past.as_of.ledger_seq, notes(&past)), (then, notes(&first)), "the past has its own");
    let brief: StatusAnswer = hub.recalled("status", &StatusQuery { output: Output::All, ..web() }).await;
    assert!(brief.manifests.is_empty() && brief.manifests_left_out == 0, "only detail has them");
    assert!(brief.targets.iter().all(|target| target.digest.is_none() && target.source.is_none()));
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q13_a_manifest_discarded_by_ledger_is_left_out_and_declared() {
    let hub = Hub::start().await;
    let first = hub.shall_run("plant7.drill-1", 1, &[entry("web", "first", 1)]).await;
    let second = hub.shall_run("plant7.press-4", 1, &[entry("web", "second", 1)]).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    forget_up_to(&hub.bus, first).await;
    let answer = hub.in_detail(StatusQuery::default(), |_| 1).await;
    assert_eq!(notes(&answer), words(&[("drill-1", None), ("press-4", Some("second"))]));
    assert_eq!((answer.manifests_left_out, answer.rollup.targets), (1, 2), "it is counted as ever");

    // Cached manifests stay, whatever LEDGER holds by now; a re-asserted one is shown again.
    let end = hub.shall_run("plant7.drill-1", 2, &[entry("web", "first", 1)]).await;
    forget_up_to(&hub.bus, second).await;
    rollup.reads_to(end).await;
    let answer = hub.in_detail(StatusQuery::default(), |_| 0).await;
    assert_eq!(notes(&answer), words(&[("drill-1", Some("first")), ("press-4", Some("second"))]));
    assert_eq!(answer.manifests_left_out, 0);
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q10_a_superseded_manifest_is_shown_while_ledger_holds_it() {
    let hub = Hub::start().await;
    let first = hub.shall_run("plant7.press-4", 1, &[entry("web", "first", 1)]).await;
    hub.shall_run("plant7.drill-1", 1, &[entry("web", "another", 1)]).await;
    hub.shall_run("plant7.press-4", 2, &[entry("db", "x", 2), entry("web", "first", 1)]).await;
    let end = hub.shall_run("plant7.press-4", 3, &[entry("db", "y", 3), entry("web", "third", 3)]).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(end).await;
    let of = |generation: u64| StatusQuery {
        id: Some("web".parse().unwrap()),
        device: vec!["plant7/press-4".parse().unwrap()],
        generation: Generation::new(generation),
        ..StatusQuery::default()
    };
    for (generation, note) in [(1, "first"), (2, "first"), (3, "third")] {
        let answer = hub.in_detail(of(generation), |_| 0).await;
        assert_eq!(notes(&answer), words(&[("press-4", Some(note))]), "{generation}");
        assert_eq!(answer.targets[0].superseded, generation < 3);
        let revision = &answer.targets[0].source.as_ref().unwrap().revision;
        assert_eq!(*revision, format!("commit-{generation}"));
    }
    forget_up_to(&hub.bus, first).await;
    let answer = hub.in_detail(of(1), |_| 1).await;
    assert_eq!((notes(&answer), answer.manifests_left_out), (words(&[("press-4", None)]), 1));
    let answer = hub.in_detail(of(2), |_| 0).await;
    assert_eq!(notes(&answer), words(&[("press-4", Some("first"))]));
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q13_large_manifests_take_more_pages_and_too_large_ones_are_left_out() {
    let hub = Hub::start().await;
    let (mut end, large) = (0, "x".repeat(ANSWER_BYTES_MAX / 5));
    for device in 0..8 {
        let note = format!("{device} {large}");
        end = hub.shall_run(&format!("plant7.press-{device}"), 1, &[entry("web", &note, 1)]).await;
    }
    let huge = "x".repeat(ANSWER_BYTES_MAX * 3 / 4);
    end = end.max(hub.shall_run("plant7.press-9", 1, &[entry("web", &huge, 1)]).await);
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(end).await;

    let (mut after, mut told, mut pages, mut left_out) = (None, BTreeMap::new(), 0, 0);
    loop {
        let query = StatusQuery { after: after.clone(), ..StatusQuery::default() };
        let huge = |target: &TargetStatus| target.key.device.as_str() == "press-9";
        let page = hub.in_detail(query, |page| page.targets.iter().any(huge).into()).await;
        assert!(serde_json::to_vec(&page).unwrap().len() <= ANSWER_BYTES_MAX);
        assert_eq!(page.rollup.targets, 9);
        assert!(page.targets.iter().all(|target| target.digest.is_some()), "each is named");
        told.extend(notes(&page));
        (pages, left_out) = (pages + 1, left_out + page.manifests_left_out);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(pages > 1, "{pages} pages");
    assert_eq!((told.len(), left_out), (9, 1));
    assert_eq!(told["press-9"], None);
    let own = |device: &str| told[&format!("press-{device}")].as_ref().unwrap().starts_with(device);
    assert!((0..8).all(|device| own(&device.to_string())));
    rollup.drain().await;
}
