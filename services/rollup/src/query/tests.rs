//! Questions are answered from memory, or refused in a way that a program and a person understand.

use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::query::PAGE_MAX;
use muster_contract::question::ANSWER_BYTES_MAX;
use muster_contract::subjects::LedgerSubject;
use muster_domain::fold::Position;
use serde_json::{Value, json};

use super::*;

fn desk(devices: u64) -> Desk {
    let mut fleet = Fleet::default();
    for number in 1..=devices {
        let key = format!("plant{}.press-{number:05}", number % 2);
        for (kind, fact) in [("liveness", liveness(number)), ("incident", incident())] {
            let subject = LedgerSubject::parse(&format!("muster.{kind}.{key}")).unwrap();
            let ledger_seq = fleet.as_of().ledger_seq + 1;
            let at = Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH };
            fleet.apply(at, &subject, Fact::parse(&subject, fact.to_string().as_bytes()).unwrap());
        }
    }
    let present = Present::new(Timestamp::UNIX_EPOCH, fleet);
    present.set_caught_up();
    Desk::new(Arc::new(present), Metrics::default())
}

fn liveness(head: u64) -> Value {
    json!({"apiVersion": "muster/v1", "kind": "LivenessFact", "state": "fresh", "epoch": 1,
        "lastHeardAt": "2026-11-20T08:00:00Z", "head": head})
}

fn incident() -> Value {
    json!({"apiVersion": "muster/v1", "kind": "Incident", "at": "2026-11-20T08:00:00Z",
        "type": "clockSkew", "seconds": 900})
}

fn ask(desk: &Desk, endpoint: &str, question: &Value) -> Result<Value, ErrorBody> {
    let answer = desk.answer(endpoint, question.to_string().as_bytes())?;
    assert!(answer.len() <= ANSWER_BYTES_MAX);
    Ok(serde_json::from_slice(&answer).unwrap())
}

fn refusal(desk: &Desk, endpoint: &str, question: &Value) -> (ErrorCode, String) {
    let error = ask(desk, endpoint, question).unwrap_err();
    (error.code, error.message)
}

#[test]
fn an_empty_question_is_a_question() {
    let desk = desk(3);
    let fleet: FleetView = serde_json::from_slice(&desk.answer("fleet", b"").unwrap()).unwrap();
    assert_eq!(fleet.tally.devices.fresh, 3);
    assert_eq!(ask(&desk, "devices", &json!({})).unwrap()["devices"].as_array().unwrap().len(), 3);
}

#[test]
fn until_ledger_is_read_there_is_no_answer_yet() {
    let present = Arc::new(Present::new(Timestamp::UNIX_EPOCH, Fleet::default()));
    let desk = Desk::new(present.clone(), Metrics::default());
    for endpoint in ENDPOINTS {
        assert_eq!(refusal(&desk, endpoint, &json!({})).0, ErrorCode::NotReady, "{endpoint}");
    }
    present.set_caught_up();
    assert!(ask(&desk, "fleet", &json!({})).is_ok());
    present.start_over(Timestamp::UNIX_EPOCH);
    assert_eq!(refusal(&desk, "fleet", &json!({})).0, ErrorCode::NotReady);
}

#[test]
fn a_question_that_cannot_be_answered_says_why() {
    let desk = desk(2);
    for (endpoint, question, code, says) in [
        ("deployment", json!({}), ErrorCode::BadRequest, "id"),
        ("deployment", json!({"id": "web"}), ErrorCode::NotFound, "web"),
        ("deployment", json!({"id": "WEB"}), ErrorCode::BadRequest, "WEB"),
        ("deployments", json!({"site": "nowhere"}), ErrorCode::NotFound, "nowhere"),
        ("device", json!({"device": "press-1"}), ErrorCode::BadRequest, "site"),
        ("device", json!({"site": "plant1", "device": "press-9"}), ErrorCode::NotFound, "plant1/press-9"),
        ("devices", json!({"site": "nowhere"}), ErrorCode::NotFound, "nowhere"),
        ("devices", json!({"after": "plant1"}), ErrorCode::BadRequest, "after"),
        ("devices", json!({"limit": 0}), ErrorCode::BadRequest, "limit"),
        ("devices", json!({"limit": PAGE_MAX + 1}), ErrorCode::BadRequest, "limit"),
        ("site", json!({"site": "nowhere"}), ErrorCode::NotFound, "nowhere"),
        ("site", json!({}), ErrorCode::BadRequest, "site"),
        ("weather", json!({}), ErrorCode::BadRequest, "weather"),
        ("fleet", json!([1]), ErrorCode::BadRequest, "question"),
        ("fleet", json!({"at": "yesterday"}), ErrorCode::BadRequest, "at:"),
        ("deployment", json!({"id": 7}), ErrorCode::BadRequest, "id:"),
        ("groups", json!({"label": "ring", "at": "yesterday"}), ErrorCode::BadRequest, "at:"),
        ("labels", json!({"atSeq": 3}), ErrorCode::BadRequest, "past"),
        ("views", json!({"atSeq": 3}), ErrorCode::BadRequest, "of the present only"),
        (
            "view",
            json!({"view": "rings", "at": "2026-11-20T08:00:00Z"}),
            ErrorCode::BadRequest,
            "present only",
        ),
    ] {
        let (found, message) = refusal(&desk, endpoint, &question);
        assert_eq!(found, code, "{endpoint} {question}: {message}");
        assert!(message.contains(says), "{endpoint} {question}: {message}");
    }
}

#[test]
fn pages_end_where_a_message_does_and_go_on_after_that() {
    let desk = desk(1500);
    let (mut after, mut keys, mut pages) = (Value::Null, Vec::new(), 0);
    loop {
        let page = ask(&desk, "devices", &json!({"limit": PAGE_MAX, "after": after})).unwrap();
        let lines = page["devices"].as_array().unwrap();
        keys.extend(lines.iter().map(|line| format!("{}/{}", line["site"], line["device"])));
        pages += 1;
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(keys.len(), 1500);
    assert!(keys.is_sorted() && pages > 1, "{pages} pages");
}

#[test]
fn why_names_what_is_not_known() {
    let desk = desk(3);
    let said = |question: &Value| ask(&desk, "why", question).unwrap_err();
    for (question, words) in [
        (json!({"id": "nothing"}), "deployment 'nothing' is targeted nowhere"),
        (json!({"id": "nothing", "site": "a", "device": "b"}), "deployment 'nothing' is targeted nowhere"),
        (json!({}), "id: is missing"),
    ] {
        let error = said(&question);
        assert!(error.message.contains(words), "{question}: {}", error.message);
    }
}
