//! Tests the status question on the wire: wrong parameters are named, errors have their own codes, and pages
//! end where a message does.

use std::sync::Arc;

use futures_util::FutureExt;
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::limits::COMPONENTS_MAX;
use muster_contract::query::PAGE_MAX;
use muster_contract::subjects::LedgerSubject;
use muster_domain::fold::{Fleet, Position};
use serde_json::{Value, json};

use super::*;

/// Devices with one deployment each that has many components.
fn projection(devices: usize, components: usize) -> Arc<Projection> {
    let mut fleet = Fleet::default();
    for device in 0..devices {
        let subject = LedgerSubject::parse(&format!("muster.desired.plant7.press-{device:03}")).unwrap();
        let body = desired(components).to_string();
        let at = Position { ledger_seq: device as u64 + 1, stored_at: Timestamp::UNIX_EPOCH };
        fleet.apply(at, &subject, Fact::parse(&subject, body.as_bytes()).unwrap());
    }
    let projection = Projection::new(Timestamp::UNIX_EPOCH, fleet);
    projection.set_caught_up();
    Arc::new(projection)
}

fn desired(components: usize) -> Value {
    let components: Vec<_> =
        (0..components).map(|at| json!({"name": format!("part-{at:03}"), "properties": {}})).collect();
    let mut entry = json!({"id": "web", "name": "web", "applicationId": "com.example.web",
        "profile": {"type": "simulated", "components": components}});
    entry["digest"] = Digest::of_value(&entry).to_string().into();
    entry["targetGeneration"] = 1.into();
    json!({"apiVersion": "muster/v1", "kind": "DesiredState", "generation": 1,
        "issuedAt": "2026-11-20T08:00:00Z", "source": {"kind": "git", "revision": "c1"}, "deployments": [entry]})
}

/// The answer of a handler without reads, which never waits.
fn answered(projection: &Projection, question: &[u8]) -> Result<Bytes, ErrorBody> {
    answer(projection, question, None).now_or_never().unwrap()
}

fn ask(projection: &Projection, question: &Value) -> Result<StatusAnswer, ErrorBody> {
    let bytes = answered(projection, question.to_string().as_bytes())?;
    assert!(bytes.len() <= ANSWER_BYTES_MAX);
    Ok(serde_json::from_slice(&bytes).unwrap())
}

#[test]
fn q02_a_wrong_value_is_refused_and_its_parameter_named() {
    let projection = projection(2, 1);
    for (question, says) in [
        (json!({"status": "healthy"}), "status: "),
        (json!({"output": "everything"}), "output: "),
        (json!({"generation": 0}), "generation: "),
        (json!({"generation": 1}), "generation: "),
        (json!({"site": ["Plant 7"]}), "site[0]: "),
        (json!({"site": "plant7"}), "site: "),
        (json!({"device": ["press-1"]}), "device[0]: "),
        (json!({"component": [7]}), "component[0]: "),
        (json!({"component": vec!["main"; 101]}), "component: 101 values"),
        (json!({"limit": 0}), "limit: "),
        (json!({"at": "yesterday"}), "at: "),
        (json!({"atSeq": 1}), "this service knows no past"),
        (json!({"limit": PAGE_MAX + 1}), "limit: "),
        (json!({"after": "plant7"}), "after: "),
    ] {
        let error = ask(&projection, &question).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest, "{question}: {}", error.message);
        assert!(error.message.starts_with(says), "{question}: {}", error.message);
    }
    assert_eq!(ask(&projection, &json!({})).unwrap().rollup.targets, 2);
    assert_eq!(answered(&projection, b"").map(|bytes| bytes.is_empty()), Ok(false));
}

#[test]
fn q14_unknown_is_404_wrong_is_400_and_not_ready_is_503() {
    let projection = projection(1, 1);
    let code = |question: &Value| ask(&projection, question).unwrap_err().code.number();
    assert_eq!(code(&json!({"id": "wbe"})), 404);
    assert_eq!(code(&json!({"device": ["plant7/press-9"]})), 404);
    assert_eq!(code(&json!({"device": ["plant7/press-000"], "generation": 9})), 404);
    assert_eq!(code(&json!({"id": "WEB"})), 400);
    let early = Projection::new(Timestamp::UNIX_EPOCH, Fleet::default());
    assert_eq!(ask(&early, &json!({})).unwrap_err().code.number(), 503);
}

#[test]
fn pages_end_where_a_message_does() {
    let projection = projection(12, COMPONENTS_MAX);
    let (mut after, mut names, mut pages) = (Value::Null, Vec::new(), 0);
    loop {
        let page = ask(&projection, &json!({"output": "detail", "limit": PAGE_MAX, "after": after.clone()}))
            .unwrap();
        assert!(page.whole && page.rollup.targets == 12 && page.total == Some(12));
        assert_eq!(page.manifests_left_out, page.targets.len() as u64, "nobody here reads what shall run");
        names.extend(page.targets.iter().map(|target| target.key.to_string()));
        pages += 1;
        let Some(next) = page.next else { break };
        after = next.into();
    }
    assert!(pages > 1 && names.len() == 12 && names.is_sorted(), "{pages} pages: {names:?}");
}

#[test]
fn a_single_target_too_large_with_its_manifest_comes_without_it() {
    let mut page = ask(&projection(1, 1), &json!({"output": "detail"})).unwrap();
    let entry = desired(1)["deployments"][0].clone();
    let mut manifest = muster_contract::manifest::Manifest::from(
        serde_json::from_value::<muster_contract::desired::DesiredDeployment>(entry).unwrap(),
    );
    manifest.name = "x".repeat(ANSWER_BYTES_MAX / 2);
    page.targets[0].digest = Some(manifest.digest());
    page.targets[0].message = "x".repeat(ANSWER_BYTES_MAX / 2);
    page.manifests.insert(manifest.digest(), manifest);
    let bytes = written(&mut page).unwrap();
    assert!(bytes.len() <= ANSWER_BYTES_MAX, "{} bytes", bytes.len());
    let told: StatusAnswer = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((told.manifests.len(), told.manifests_left_out, told.targets.len()), (0, 1, 1));
    assert!(told.targets[0].digest.is_some(), "the digest is shown all the same");
}
