//! Changes of plans, the inventory, views and subscriptions by REST: versions, keys, states that forbid them, and wrong fields.

use std::net::SocketAddr;
use std::time::Duration;

use muster_tests::rollouts::start_planner;
use muster_tests::system::{GATEWAY, System};
use serde_json::{Value, json};

use super::client::{Answer, get, send};
use super::{served, start_gateway_as};

async fn change(addr: SocketAddr, line: &str, headers: &str, body: &Value) -> Answer {
    let (method, path) = line.split_once(' ').unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let request = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    send(addr, &request).await.unwrap()
}

/// A change that must have this status.
pub(crate) async fn done(addr: SocketAddr, line: &str, body: Value, status: u16) -> Answer {
    let answer = change(addr, line, "", &body).await;
    assert_eq!(answer.status, status, "{line}: {answer:?}");
    answer
}

/// A system with a planner that answers, and a gateway before it.
pub(crate) async fn planned() -> (System, SocketAddr) {
    let (mut system, addr) = served().await;
    start_planner(&mut system);
    let answers = async || match get(addr, "/api/v1/plans").await {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    system.eventually("the planner answers", answers).await;
    (system, addr)
}

pub(crate) fn plan(cores: u32) -> Value {
    json!({ "namespace": "demo", "serviceName": "web", "profile": "simulated",
        "applications": [{ "payloadName": "main", "resources": { "cores": cores, "memory": 1 } }] })
}

fn node() -> Value {
    json!({ "updateDomain": "a", "totalResources": { "cores": 4, "memory": 8 } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_changes_for_its_version_alone_and_once_for_a_key() {
    let (mut system, addr) = planned().await;
    let made = done(addr, "PUT /plans/web", plan(1), 201).await;
    let first = made.header("etag").unwrap().to_owned();
    assert_eq!((first.as_str(), &made.json()["name"]), ("\"0\"", &json!("web")));
    let read = get(addr, "/api/v1/plans/web").await.unwrap();
    assert_eq!((read.status, read.header("etag")), (200, Some("\"0\"")), "{read:?}");
    done(addr, "PUT /plans/web", plan(2), 409).await;
    let late = change(addr, "PUT /plans/web", "If-Match: \"7\"\r\n", &plan(2)).await;
    assert_eq!((late.status, &late.json()["retryable"]), (412, &json!(false)), "{late:?}");
    let wrong = change(addr, "PUT /plans/web", "If-Match: W/\"0\"\r\n", &plan(2)).await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
    let changed = change(addr, "PUT /plans/web", &format!("If-Match: {first}\r\n"), &plan(2)).await;
    assert_eq!((changed.status, changed.header("etag")), (200, Some("\"1\"")), "{changed:?}");

    let other = start_gateway_as(&mut system, &format!("{GATEWAY}-2"), &[]).await;
    let key = "Idempotency-Key: k1\r\n";
    let off = change(addr, "POST /plans/web/deactivate", key, &Value::Null).await;
    assert_eq!((off.status, &off.json()["state"]), (200, &json!("inactive")), "{off:?}");
    done(addr, "POST /plans/web/activate", Value::Null, 200).await;
    let again = change(other, "POST /plans/web/deactivate", key, &Value::Null).await;
    assert_eq!((again.status, &again.json()["state"]), (200, &json!("active")), "another gateway: {again:?}");
    done(addr, "DELETE /plans/web", Value::Null, 200).await;
    assert_eq!(get(addr, "/api/v1/plans/web").await.unwrap().status, 404);
    done(addr, "DELETE /plans/web", Value::Null, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_field_of_a_change_is_named_as_the_body_has_it() {
    let (_system, addr) = planned().await;
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    for (line, body, field) in [
        ("PUT /plans/web", with(plan(1), "name", json!("web")), "name"),
        ("PUT /plans/web", with(plan(1), "requestId", json!("r")), "requestId"),
        ("PUT /plans/web", json!({ "namespace": "demo", "serviceName": "web" }), "applications"),
        (
            "PUT /plans/web",
            with(plan(1), "applications", json!([{ "payloadName": 7 }])),
            "applications[0].payloadName",
        ),
        ("PUT /plans/web", with(plan(1), "namspace", json!("demo")), "namspace"),
        ("PUT /plans/web", with(plan(1), "namespace", json!("")), "namespace"),
        (
            "PUT /nodes/plant7/press-1",
            with(node(), "totalResources", json!({ "cores": 1, "memori": 1 })),
            "totalResources.memori",
        ),
        ("PUT /nodes/plant7/press-1", with(node(), "updateDomain", json!(7)), "updateDomain"),
        ("PUT /clusters/north", json!({ "name": "north" }), "name"),
        ("POST /nodes/plant7/press-1/state", json!({ "state": "active" }), "state"),
        (
            "POST /plans/web/revisions",
            json!({ "id": "r", "instances": "many", "coordinates": {} }),
            "instances",
        ),
        ("PUT /views/rings", json!({ "kind": "ViewDefinition" }), "apiVersion"),
    ] {
        let refused = done(addr, line, body, 400).await;
        assert_eq!(refused.json()["errors"][0]["field"], field, "{line}: {refused:?}");
    }
    let no_version = change(addr, "PUT /views/rings", "If-Match: \"1\"\r\n", &Value::Null).await;
    assert_eq!(no_version.status, 412, "{no_version:?}");
    let long = json!({ "site": "plant7", "device": "press-1", "documents": "a".repeat(300 * 1024) });
    done(addr, "POST /deployments", long, 413).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inventory_instances_views_and_subscriptions_change_by_rest() {
    let (system, addr) = planned().await;
    let key = "plant7/press-1";
    done(addr, "PUT /clusters/north", Value::Null, 201).await;
    done(addr, "POST /clusters/north/activate", Value::Null, 200).await;
    done(addr, "PUT /capabilities/v100", json!({ "type": "GPU", "score": 2 }), 201).await;
    done(addr, &format!("PUT /nodes/{key}"), node(), 201).await;
    for state in ["allocating", "allocated"] {
        let body = json!({ "nodeState": state, "cluster": "north" });
        done(addr, &format!("POST /nodes/{key}/state"), body, 200).await;
    }
    let disruption = json!({ "start": "2030-01-01T00:00:00Z", "shouldEvict": true });
    for status in [201, 409] {
        done(addr, &format!("PUT /nodes/{key}/disruptions/disks"), disruption.clone(), status).await;
    }
    let shown = get(addr, &format!("/api/v1/nodes/{key}")).await.unwrap();
    assert_eq!(shown.json()["node"]["disruptions"][0]["id"], "disks", "{shown:?}");
    assert!(shown.header("etag").is_some(), "{shown:?}");
    for verb in ["approve", "complete"] {
        done(addr, &format!("POST /nodes/{key}/disruptions/disks/{verb}"), Value::Null, 200).await;
    }
    done(addr, &format!("DELETE /nodes/{key}/disruptions/disks"), Value::Null, 200).await;
    done(addr, "DELETE /clusters/north", Value::Null, 409).await;

    done(addr, "PUT /plans/web", plan(1), 201).await;
    let deployed = json!({ "id": "first", "instances": 1, "coordinates": { "main": {} } });
    done(addr, "POST /plans/web/revisions", deployed, 202).await;
    done(addr, "POST /plans/web/rollback", json!({ "id": "second", "to": "none" }), 404).await;
    let listed = async || {
        let list = get(addr, "/api/v1/operations?state=PENDING_APPROVAL")
            .await
            .map_err(|error| error.to_string())?;
        let found = list.json()["operations"][0].clone();
        if found.is_null() { Err(list.body) } else { Ok(found) }
    };
    let waiting = system.eventually("the operation waits", listed).await;
    let (instance, id) =
        (waiting["instance"].as_str().unwrap(), waiting["operation"]["id"].as_str().unwrap());
    let operation = format!("POST /plans/web/instances/{instance}/operations/{id}");
    let late = change(addr, &format!("{operation}/approve"), "If-Match: \"99\"\r\n", &Value::Null).await;
    assert_eq!(late.status, 412, "{late:?}");
    done(addr, &format!("{operation}/reject"), json!({ "reason": "not this week" }), 200).await;
    done(addr, &format!("{operation}/approve"), Value::Null, 409).await;
    done(addr, &format!("{operation}/complete"), Value::Null, 409).await;

    let view = json!({ "apiVersion": "muster/v1", "kind": "ViewDefinition", "groupBy": "site" });
    done(addr, "PUT /views/rings", view, 200).await;
    let rings = async || match get(addr, "/api/v1/views/rings").await {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    system.eventually("the view is shown", rings).await;
    done(addr, "DELETE /views/rings", Value::Null, 200).await;
    done(addr, "DELETE /views/rings", Value::Null, 404).await;

    let subscription = json!({ "name": "alarms" }).to_string();
    let subscribed = async || {
        let asked = system.bus.request(
            "muster.notify.subscribe",
            subscription.clone().into(),
            Duration::from_secs(5),
        );
        asked.await.map(drop).map_err(|error| error.to_string())
    };
    system.eventually("a subscription", subscribed).await;
    let list = get(addr, "/api/v1/subscriptions").await.unwrap();
    assert_eq!(list.json()["subscriptions"][0]["subscription"]["name"], "alarms", "{list:?}");
    done(addr, "DELETE /subscriptions/alarms", Value::Null, 200).await;
    done(addr, "DELETE /subscriptions/alarms", Value::Null, 404).await;
}
