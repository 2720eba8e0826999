//! Tests proofs at the top: those of one hub with all facts, each in the LEDGER of its own hub.
//! `services/federation/tests/lines` tests it for any fleet.

use muster_contract::why::{EvidenceKind, WhyAnswer};
use muster_tests::system::program;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};

use crate::lines::without_sequences;
use crate::{Hub, LONG, NORTH, Place, SHORT, SOUTH, Two, failure};

async fn why(place: &Place, question: &Value) -> WhyAnswer {
    let answer = place.ask("why", question.clone()).await;
    serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// An answer as one hub gives it.
fn as_of_one(why: &WhyAnswer) -> Value {
    let mut why = why.clone();
    why.hubs.clear();
    let facts = why.standings.iter_mut().flat_map(|because| &mut because.facts);
    facts.for_each(|fact| fact.hub = None);
    without_sequences(serde_json::to_value(why).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merged_verdicts_facts_are_in_the_ledger_of_their_hub() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let (whole, web) = (Hub::start(NORTH.chain(SOUTH)).await, json!({"id": "web"}));
    assert_eq!(as_of_one(&why(&top, &web).await), as_of_one(&why(&whole.place, &web).await), "all is well");
    for device in [NORTH.end - 1, SOUTH.start, SOUTH.start + 3] {
        let at = if NORTH.contains(&device) { &north } else { &south };
        at.put([failure(device)]).await;
        whole.put([failure(device)]).await;
    }
    let look = || async { (why(&top, &web).await, why(&whole.place, &web).await) };
    let (seen, _) = until("the same reasons", look, |(seen, wanted)| {
        wanted.because == 3 && as_of_one(seen) == as_of_one(wanted)
    })
    .await;
    let hubs: Vec<_> = seen.hubs.iter().map(|hub| (hub.name.as_str(), hub.because, hub.heard)).collect();
    assert_eq!(hubs, [("north", 1, true), ("south", 2, true)]);
    for because in &seen.standings {
        let (name, hub) =
            if because.key.site.as_str() == "site-0" { ("north", &north) } else { ("south", &south) };
        let fact = because.facts.iter().find(|fact| fact.kind == EvidenceKind::Status).unwrap();
        assert_eq!(fact.hub.as_ref().map(|hub| hub.as_str()), Some(name), "{because:?}");
        let held = soon("a fact", hub.place.bus.at("LEDGER", fact.ledger_seq)).await.unwrap().unwrap();
        let report: Value = serde_json::from_slice(&held.payload).unwrap();
        assert_eq!((&report["seq"], &report["status"]["state"]), (&json!(fact.seq), &json!("failed")));
    }
    let mut page = json!({"id": "web", "limit": 2});
    let first = why(&top, &page).await;
    page["after"] = first.next.clone().into();
    let second = why(&top, &page).await;
    assert_eq!([first.standings, second.standings].concat(), seen.standings);

    let text = shown(&top, &["why", "web"]).await;
    assert!(
        text.contains(" at north") && text.contains(" at south") && text.contains("3 of 21 targets"),
        "{text}"
    );
    let unknown = top.ask("why", json!({"id": "nothing"})).await["error"].clone();
    assert_eq!(unknown["code"], "notFound", "{unknown}");
    federation.drain().await;
}

/// The command line's output for people.
pub(crate) async fn shown(place: &Place, words: &[&str]) -> String {
    let mut command = tokio::process::Command::new(program("muster"));
    let url = place.server.hub_url();
    let done =
        soon("the command line", command.args(["--nats-url", &url]).args(words).output()).await.unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_a_hub_that_is_away_as_what_makes_the_verdict() {
    let Two { north, mut south, top, federation } = Two::start(SHORT).await;
    south.place.server.kill();
    let away = || async { top.ask("why", json!({"id": "web"})).await };
    let seen = until("the end of the lease", away, |seen| seen["verdict"] == "incomplete").await;
    let seen: WhyAnswer = serde_json::from_value(seen).unwrap();
    let hubs: Vec<_> = seen.hubs.iter().map(|hub| (hub.name.as_str(), hub.because, hub.heard)).collect();
    let south_has = SOUTH.len() as u64;
    assert_eq!(hubs, [("north", 0, true), ("south", south_has, false)]);
    assert_eq!(
        (seen.because, seen.of, seen.standings),
        (south_has, NORTH.len() as u64 + south_has, Vec::new())
    );
    let text = shown(&top, &["why", "web"]).await;
    assert!(text.contains("hub south does not answer (last heard"), "{text}");
    federation.drain().await;
    drop(north);
}
