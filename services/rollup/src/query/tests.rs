//! Tests that questions are answered from memory, or refused in a way that programs and people understand.

use muster_contract::State;
use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::limits::{COMPONENTS_MAX, DEPLOYMENTS_PER_DEVICE_MAX, ERROR_MESSAGE_BYTES_MAX};
use muster_contract::query::{DeviceAnswer, ErrorCode, LastReport, PAGE_MAX};
use muster_contract::question::ANSWER_BYTES_MAX;
use muster_contract::status::LOOKED_AT_MAX;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::FleetView;
use muster_domain::fold::{Fleet, Position};
use serde_json::{Value, json};

use super::*;

fn desk(devices: u64) -> QueryHandler {
    desk_where(devices, |_| "fresh")
}

/// A handler that knows so many devices, each heard or not by its number.
fn desk_where(devices: u64, state: impl Fn(u64) -> &'static str) -> QueryHandler {
    let mut fleet = Fleet::default();
    for number in 1..=devices {
        let key = format!("plant{}.press-{number:05}", number % 2);
        for (kind, fact) in [("liveness", liveness(state(number), number)), ("incident", incident())] {
            let subject = LedgerSubject::parse(&format!("muster.{kind}.{key}")).unwrap();
            let ledger_seq = fleet.as_of().ledger_seq + 1;
            let at = Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH };
            fleet.apply(at, &subject, Fact::parse(&subject, fact.to_string().as_bytes()).unwrap());
        }
    }
    let projection = Projection::new(Timestamp::UNIX_EPOCH, fleet);
    projection.set_caught_up();
    QueryHandler::new(Arc::new(projection), Metrics::default())
}

fn liveness(state: &str, head: u64) -> Value {
    json!({"apiVersion": "muster/v1", "kind": "LivenessFact", "state": state, "epoch": 1,
        "lastHeardAt": "2026-11-20T08:00:00Z", "head": head})
}

fn incident() -> Value {
    json!({"apiVersion": "muster/v1", "kind": "Incident", "at": "2026-11-20T08:00:00Z",
        "type": "clockSkew", "seconds": 900})
}

fn ask(desk: &QueryHandler, endpoint: &str, question: &Value) -> Result<Value, ErrorBody> {
    let answer = desk.answer(endpoint, question.to_string().as_bytes())?;
    assert!(answer.len() <= ANSWER_BYTES_MAX);
    Ok(serde_json::from_slice(&answer).unwrap())
}

fn refusal(desk: &QueryHandler, endpoint: &str, question: &Value) -> (ErrorCode, String) {
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
    let projection = Arc::new(Projection::new(Timestamp::UNIX_EPOCH, Fleet::default()));
    let desk = QueryHandler::new(projection.clone(), Metrics::default());
    for endpoint in ENDPOINTS {
        assert_eq!(refusal(&desk, endpoint, &json!({})).0, ErrorCode::NotReady, "{endpoint}");
    }
    projection.set_caught_up();
    assert!(ask(&desk, "fleet", &json!({})).is_ok());
    projection.start_over(Timestamp::UNIX_EPOCH);
    assert_eq!(refusal(&desk, "fleet", &json!({})).0, ErrorCode::NotReady);
}

#[test]
fn a_question_that_cannot_be_answered_says_why() {
    let desk = desk(2);
    for (endpoint, question, code, says) in [
        ("deployment", json!({}), ErrorCode::BadRequest, "id"),
        (
            "deployment",
            json!({"id": "web"}),
            ErrorCode::NotFound,
            "'web' is targeted nowhere and left nowhere: no device shall run it",
        ),
        ("deployment", json!({"id": "WEB"}), ErrorCode::BadRequest, "WEB"),
        ("deployment", json!({"id": "web", "output": "all"}), ErrorCode::BadRequest, "`status` has a line"),
        ("deployments", json!({"site": "nowhere"}), ErrorCode::NotFound, "nowhere"),
        ("device", json!({"device": "press-1"}), ErrorCode::BadRequest, "site"),
        ("device", json!({"site": "plant1", "device": "press-9"}), ErrorCode::NotFound, "plant1/press-9"),
        ("devices", json!({"site": "nowhere"}), ErrorCode::NotFound, "nowhere"),
        ("devices", json!({"after": "plant1"}), ErrorCode::BadRequest, "after"),
        (
            "devices",
            json!({"freshness": ["dark"]}),
            ErrorCode::BadRequest,
            "freshness[0]: unknown variant `dark`",
        ),
        ("devices", json!({"freshness": "stale"}), ErrorCode::BadRequest, "freshness: "),
        (
            "devices",
            json!({"freshnes": ["stale"]}),
            ErrorCode::BadRequest,
            "unknown key; did you mean freshness?",
        ),
        (
            "deployments",
            json!({"freshness": ["stale"]}),
            ErrorCode::BadRequest,
            "freshness: unknown key of 'deployments'; its filters are error, site, verdict",
        ),
        ("fleet", json!({"site": "plant1"}), ErrorCode::BadRequest, "site: unknown key of 'fleet'"),
        (
            "devices",
            json!({"error": (0..101).map(|code| code.to_string()).collect::<Vec<_>>()}),
            ErrorCode::BadRequest,
            "error: 101 values",
        ),
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
fn m04_devices_are_listed_by_freshness_and_empty_pages_continue() {
    // Those with even numbers come first, and none of them is silent.
    let devices = 2 * LOOKED_AT_MAX as u64 + 10;
    let desk =
        desk_where(devices, |number| if [3, devices - 1].contains(&number) { "stale" } else { "fresh" });
    let (mut after, mut pages) = (Value::Null, Vec::new());
    loop {
        let page = ask(&desk, "devices", &json!({"freshness": ["never", "stale"], "after": after})).unwrap();
        let lines = page["devices"].as_array().unwrap();
        pages.push(lines.iter().map(|line| line["device"].as_str().unwrap().to_owned()).collect::<Vec<_>>());
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(pages, [vec![], vec!["press-00003".to_owned()], vec![format!("press-{:05}", devices - 1)]]);
    let question = json!({"freshness": ["stale", "fresh", "fresh"], "limit": 5});
    assert_eq!(ask(&desk, "devices", &question).unwrap()["devices"].as_array().unwrap().len(), 5);
}

#[test]
fn why_names_the_unknown_devices() {
    let desk = desk(3);
    let said = |question: &Value| ask(&desk, "why", question).unwrap_err();
    for (question, words) in [
        (
            json!({"id": "nothing"}),
            "deployment 'nothing' is targeted nowhere and left nowhere: no device shall run it",
        ),
        (json!({"id": "nothing", "site": "a", "device": "b"}), "deployment 'nothing' is targeted nowhere"),
        (json!({}), "id: is missing"),
    ] {
        let error = said(&question);
        assert!(error.message.contains(words), "{question}: {}", error.message);
    }
}

/// A handler that knows one device with so many deployments of so many components, every other of which has
/// failed. The first error of each has `long` bytes.
fn crowded(deployments: usize, components: usize, long: usize) -> QueryHandler {
    let mut fleet = Fleet::default();
    let mut hear = |subject: &str, fact: Value| {
        let subject = LedgerSubject::parse(subject).unwrap();
        let ledger_seq = fleet.as_of().ledger_seq + 1;
        let at = Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH };
        fleet.apply(at, &subject, Fact::parse(&subject, fact.to_string().as_bytes()).unwrap());
    };
    let capabilities = json!({"apiVersion": "muster/v1", "kind": "DeviceFact", "epoch": 1, "seq": 1,
        "head": deployments + 1, "observedAt": "2026-11-20T08:00:00Z", "receivedAt": "2026-11-20T08:00:00Z",
        "properties": {"notes": "n".repeat(100_000)}, "agentVersion": "1"});
    hear("muster.device.plant7.press-1", capabilities);
    for deployment in 0..deployments {
        let components: Vec<Value> = (0..components)
            .map(|at| {
                let name = format!("c{at:03}");
                let error =
                    json!({"code": "image", "source": name, "message": "the image cannot be fetched"});
                if at % 2 == 0 {
                    json!({"name": name, "state": "failed", "error": error})
                } else {
                    json!({"name": name, "state": "pending"})
                }
            })
            .collect();
        let text = "t".repeat(long);
        let status = json!({"state": "failed", "reason": text,
            "error": {"code": "image", "source": "c000", "message": text}});
        let fact = json!({"apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": deployment + 2,
            "head": deployments + 1, "observedAt": "2026-11-20T08:00:00Z", "receivedAt": "2026-11-20T08:00:00Z",
            "deployment": format!("d{deployment:03}"), "generation": 1, "current": true,
            "digest": format!("sha256:{}", "1".repeat(64)), "status": status, "components": components});
        hear(&format!("muster.status.plant7.press-1.d{deployment:03}"), fact);
    }
    let projection = Projection::new(Timestamp::UNIX_EPOCH, fleet);
    projection.set_caught_up();
    QueryHandler::new(Arc::new(projection), Metrics::default())
}

fn device(desk: &QueryHandler, output: &str) -> DeviceAnswer {
    let question = json!({"site": "plant7", "device": "press-1", "output": output});
    serde_json::from_value(ask(desk, "device", &question).unwrap()).unwrap()
}

#[test]
fn m40_the_worst_of_many_components_are_shown_and_the_rest_counted() {
    let desk = crowded(20, 250, 600);
    let answer = device(&desk, "detail");
    let reports = || answer.deployments.iter().map(|line| line.report.as_ref().unwrap());
    let shown: Vec<_> = reports().flat_map(|report| &report.components).collect();
    assert_eq!((answer.deployments.len(), shown.len() as u64 + answer.omitted.components), (20, 5000));
    assert!(shown.len() > 1000, "{} are shown", shown.len());
    assert!(shown.iter().all(|one| one.state == State::Failed), "the failures come first");
    let in_order = |report: &LastReport| report.components.is_sorted_by_key(|one| one.name.clone());
    assert!(reports().all(in_order));
    assert_eq!((answer.omitted.texts, answer.omitted.capabilities), (40, false));
    let text = |report: &LastReport| report.status.as_ref().unwrap().reason.clone().unwrap();
    assert!(reports().all(|report| text(report).ends_with("(cut: 600 bytes in all)")));

    let least = device(&desk, "all");
    assert!(least.omitted.is_nothing() && least.deployments.len() == 20, "without detail there is room");
    let few = device(&crowded(20, 25, 600), "detail");
    assert!(few.omitted.is_nothing(), "{:?}", few.omitted);
}

#[test]
fn every_standing_of_a_device_is_shown_and_omissions_are_counted() {
    let answer =
        device(&crowded(DEPLOYMENTS_PER_DEVICE_MAX, COMPONENTS_MAX, ERROR_MESSAGE_BYTES_MAX), "detail");
    assert_eq!(answer.deployments.len(), DEPLOYMENTS_PER_DEVICE_MAX);
    let reports = answer.deployments.iter().filter_map(|line| line.report.as_ref());
    let shown: usize = reports.map(|report| report.components.len()).sum();
    let all = (DEPLOYMENTS_PER_DEVICE_MAX * COMPONENTS_MAX) as u64;
    assert_eq!(shown as u64 + answer.omitted.components, all, "{:?}", answer.omitted);
    // The error, the reason and the message of each, and the message of the device.
    assert_eq!(answer.omitted.texts, 3 * DEPLOYMENTS_PER_DEVICE_MAX as u64 + 1);
}
