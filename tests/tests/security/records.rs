//! Records of changes name who asked: the requester that the server proves, and nobody that a request names.

use muster_bus::Outgoing;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::headers::REQUESTED_BY;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{self, definition_key, stream};
use muster_contract::{DeviceKey, RequestedBy, Timestamp, decode};
use muster_identity::{Role, creds, jwt};
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP};
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::connect;
use crate::fleet::{WEB, asked, start_service};

const VIEW: &str = "mine";

/// An operator who names somebody else in every header and field that could be believed.
struct Forger {
    raw: Raw,
    key: String,
    forged: Value,
}

impl Forger {
    fn connect(hub: &Guarded) -> Self {
        let key = |role| {
            let text = std::fs::read_to_string(hub.creds(role)).unwrap();
            jwt::read(creds::token(&text).unwrap()).unwrap().sub
        };
        let mut raw = Raw::connect(hub.server.port(), &hub.creds(Role::Operator)).unwrap();
        // No inbox of `muster`, which has the same key.
        raw.subscribe(&format!("_INBOX.{}.forger", key(Role::Operator)), 1);
        let forged = json!({ "key": key(Role::Viewer), "name": "viewer", "role": "viewer" });
        Self { raw, key: key(Role::Operator), forged }
    }

    /// The answer to a request. The same with fields that name somebody else is refused first.
    fn ask(&mut self, subject: &str, payload: &Value) -> String {
        let mut forged = payload.clone();
        forged["requestedBy"] = self.forged.clone();
        forged["source"] = json!({ "kind": "api", "revision": "r", "requestedBy": self.forged });
        let refused = self.send(subject, &forged);
        assert!(refused.contains("badRequest") && refused.contains("unknown key"), "{refused}");
        self.send(subject, payload)
    }

    fn send(&mut self, subject: &str, payload: &Value) -> String {
        let info = json!({ "acc": "A", "user": self.forged["key"], "name_tag": "viewer", "issuer_key": "A" });
        let header = format!("Nats-Request-Info: {info}\r\n{REQUESTED_BY}: {}", self.forged);
        let reply = format!("_INBOX.{}.forger", self.key);
        let said = self.raw.publish_with(subject, &reply, &header, &payload.to_string());
        let answer = said.into_iter().find(|line| line.contains("MSG "));
        answer.unwrap_or_else(|| self.raw.message())
    }
}

async fn document(hub: &Guarded, key: &DeviceKey) -> DesiredState {
    let ingest = connect(hub.config(Role::Ingest)).await;
    let found = ingest.last(stream::DOWNLINK, &subjects::desired(key)).await.unwrap().unwrap();
    decode::parse(&found.payload).unwrap()
}

/// The position in QUARANTINE of a report of the device that is not taken.
async fn quarantined(hub: &Guarded, key: &DeviceKey, report: &str) -> u64 {
    hub.enroll(key, "1h");
    let own = connect(hub.device_config(key)).await;
    own.publish(Outgoing::new(subjects::report(key), report.to_owned())).await.unwrap();
    let list = async || asked(hub, Role::Operator, &["quarantine", "list"]);
    let is_there = |list: &Result<Value, String>| list.as_ref().is_ok_and(|list| list["held"] == 1);
    until("a report in quarantine", list, is_there).await.unwrap()["reports"][0]["quarantineSeq"]
        .as_u64()
        .unwrap()
}

/// A status of the deployment `web`.
fn status() -> String {
    json!({
        "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1, "seq": 1, "head": 1, "current": true,
        "observedAt": Timestamp::now().to_string(), "deployment": "web", "generation": 1,
        "digest": Digest::of_bytes(b"web").to_string(), "status": { "state": "installing" },
        "components": [{ "name": "main", "state": "installing" }],
    })
    .to_string()
}

/// Has a message in quarantine judged, and looks who asked for that.
async fn judged(
    hub: &Guarded,
    forger: &mut Forger,
    (key, held): (&DeviceKey, u64),
    (action, verdict): (&str, &str),
    operator: &RequestedBy,
) {
    let subject = subjects::judge_quarantine(partition_of(key));
    let answer = forger.ask(&subject, &json!({ "action": action, "quarantineSeq": held }));
    assert!(answer.contains(verdict), "{answer}");
    let list = async || asked(hub, Role::Operator, &["quarantine", "list", "--settled"]);
    let of_held = |list: &Value| {
        let verdicts = list["verdicts"].as_array().cloned().unwrap_or_default();
        verdicts.into_iter().find(|record| record["of"] == held && record["verdict"] == verdict)
    };
    let is_judged = |list: &Result<Value, String>| list.as_ref().is_ok_and(|list| of_held(list).is_some());
    let list = until("the verdict", list, is_judged).await.unwrap();
    assert_eq!(of_held(&list).unwrap()["requestedBy"], json!(operator));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_record_of_a_change_names_the_proven_requester_alone() {
    let hub = Guarded::start_plain();
    let (data, keeper) = (hub.dir().join("rollup").display().to_string(), hub.creds(Role::Keeper));
    let rollup_args = ["--data-dir", &data, "--readers-creds", &keeper.display().to_string()];
    let _rollup = start_service(&hub, Role::Rollup, ROLLUP, &rollup_args);
    let _publisher = start_service(&hub, Role::Publisher, PUBLISHER, &[]);
    // A device without documents may speak of no deployment: what it says of one waits for an operator.
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s", "--unsolicited", "0"]);
    for command in [["publisher", "status"], ["view", "list"]] {
        let answer = async || asked(&hub, Role::Operator, &command);
        until("a service answers", answer, Result::is_ok).await.unwrap();
    }
    let (key, mut forger) = (device("press-4"), Forger::connect(&hub));
    let operator = RequestedBy::new(&forger.key, "operator", Some("operator"));

    let apply = json!({ "site": key.site, "device": key.device, "documents": WEB });
    let answer = forger.ask("muster.publisher.apply", &apply);
    assert!(answer.contains(r#""changed":true"#), "{answer}");
    let applied = document(&hub, &key).await;
    let entry = applied.deployments[0].source.clone().unwrap();
    assert_eq!(
        (&applied.source.requested_by, &entry.requested_by),
        (&Some(operator.clone()), &Some(operator.clone()))
    );
    let removal = json!({ "site": key.site, "device": key.device, "id": "web" });
    let answer = forger.ask("muster.publisher.remove", &removal);
    assert!(answer.contains(r#""changed":true"#), "{answer}");
    let removed = document(&hub, &key).await;
    assert!(removed.deployments.is_empty());
    assert_eq!(removed.source.requested_by, Some(operator.clone()));
    let answer = forger.ask("muster.publisher.retire", &json!({ "site": key.site, "device": key.device }));
    assert!(answer.contains(r#""changed":true"#), "{answer}");
    assert_eq!(document(&hub, &key).await.source.requested_by, Some(operator.clone()));

    let held = quarantined(&hub, &key, "garbage").await;
    judged(&hub, &mut forger, (&key, held), ("drop", "dropped"), &operator).await;
    let untargeted = device("press-5");
    let held = quarantined(&hub, &untargeted, &status()).await;
    let apply = json!({ "site": untargeted.site, "device": untargeted.device, "documents": WEB });
    let answer = forger.ask("muster.publisher.apply", &apply);
    assert!(answer.contains(r#""changed":true"#), "{answer}");
    judged(&hub, &mut forger, (&untargeted, held), ("requeue", "letIn"), &operator).await;

    let definition = json!({ "apiVersion": "muster/v1", "kind": "ViewDefinition", "name": VIEW });
    let rollup = connect(hub.config(Role::Rollup)).await;
    let entry_key = format!("$KV.views.{}", definition_key(&VIEW.parse().unwrap()));
    for (verb, request) in [("apply", definition), ("remove", json!({ "name": VIEW }))] {
        let answer = forger.ask(&format!("muster.view.{verb}"), &request);
        assert!(answer.contains(r#""changed":true"#), "{answer}");
        let entry = rollup.last("KV_views", &entry_key).await.unwrap().unwrap();
        let record = entry.headers.get(REQUESTED_BY).map(|text| serde_json::from_str(text).unwrap());
        assert_eq!(record, Some(operator.clone()), "{verb}");
    }
}
