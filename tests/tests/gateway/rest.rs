//! `/api/v1` gives the documents that the command gives, for every route of the OpenAPI document.

use std::net::SocketAddr;

use serde_json::Value;

use super::client::get;
use super::planning::planned;
use super::served;

/// Addresses that are asked, each with the command that asks the same.
const SAME: [(&str, &[&str]); 18] = [
    ("/fleet", &["fleet"]),
    ("/deployments", &["status"]),
    ("/deployments/web", &["status", "web"]),
    ("/deployments/web/devices", &["status", "web", "--output", "brief"]),
    ("/devices?freshness=fresh", &["devices", "--freshness", "fresh"]),
    ("/devices/plant7/press-1", &["device", "plant7/press-1"]),
    ("/sites/plant8", &["site", "plant8"]),
    ("/why?deployment=web", &["why", "web"]),
    ("/verify", &["verify"]),
    ("/plans", &["plan", "list"]),
    ("/operations", &["operation", "list"]),
    ("/nodes", &["node", "list"]),
    ("/clusters", &["cluster", "list"]),
    ("/views", &["view", "list"]),
    ("/packages", &["package", "list"]),
    ("/quarantine", &["quarantine", "list"]),
    ("/audit", &["audit"]),
    ("/audit?site=plant7", &["audit", "--site", "plant7"]),
];
/// Fields that move on between two answers.
const MOVING: [&str; 5] = ["asOf", "lastHeardAt", "polledAt", "changedAt", "ledger"];

/// A document without the fields that move on.
fn still(mut value: Value) -> Value {
    match &mut value {
        Value::Object(object) => {
            object.retain(|name, _| !MOVING.contains(&name.as_str()));
            object.values_mut().for_each(|value| *value = still(value.take()));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| *value = still(value.take())),
        _ => {}
    }
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_gives_the_documents_that_the_command_gives() {
    let (system, addr) = planned().await;
    for (path, words) in SAME {
        system
            .eventually(&format!("{path} is `muster {}`", words.join(" ")), async || {
                let answer = get(addr, &format!("/api/v1{path}")).await.map_err(|error| error.to_string())?;
                let shown = system.muster(&[words, &["--format", "json"]].concat()).await;
                let shown: Value =
                    serde_json::from_slice(&shown.stdout).map_err(|error| error.to_string())?;
                let (own, shown) = (still(answer.json()), still(shown));
                if answer.status == 200 && own == shown { Ok(()) } else { Err(format!("{own}\n{shown}")) }
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_group_is_the_document_that_the_command_prints() {
    let (system, addr) = planned().await;
    for (query, words) in [
        ("", &[][..]),
        ("?aggregate=true&budget=2048", &["--aggregate", "--budget", "2048"]),
        ("?device=plant7%2Fpress-1", &["--device", "plant7/press-1"]),
        ("?site=plant7&freshness=fresh", &["--site", "plant7", "--freshness", "fresh"]),
    ] {
        let path = format!("/api/v1/deployments/web/resourcegroup{query}");
        let words = [&["status", "web", "--format", "resourcegroup-json"], words].concat();
        // Both have the sequence of LEDGER, and a fact may come between the two requests.
        system
            .eventually(&format!("{path} is `muster {}`", words.join(" ")), async || {
                let answer = get(addr, &path).await.map_err(|error| error.to_string())?;
                let shown = system.muster(&words).await;
                let shown: Value =
                    serde_json::from_slice(&shown.stdout).map_err(|error| error.to_string())?;
                let is_same = answer.status == 200 && answer.json() == shown;
                if is_same { Ok(()) } else { Err(format!("{}\n{shown}", answer.body)) }
            })
            .await;
    }
    for (query, field) in [("budget=7", "budget"), ("budget=1048577", "budget"), ("standing=up", "standing")]
    {
        let refused = get(addr, &format!("/api/v1/deployments/web/resourcegroup?{query}")).await.unwrap();
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.contains(field), "{query}: {}", refused.body);
    }
    let absent = get(addr, "/api/v1/deployments/nothing/resourcegroup").await.unwrap();
    assert_eq!(absent.status, 404, "{}", absent.body);
}

/// Parts of addresses that name something that is not there.
const ABSENT: [&str; 10] = [
    "/groups/",
    "/rollouts/web",
    "/quarantine/1",
    "/plans/web",
    "/instances/",
    "/nodes/",
    "/clusters/press",
    "/capabilities/",
    "/views/",
    "/hubs",
];

/// An address of the document with names that exist, and the parameters that it needs.
fn filled(path: &str) -> String {
    let path = path
        .replace("{id}", "web")
        .replace("{site}", "plant7")
        .replace("{device}", "press-1")
        .replace("{label}", "region")
        .replace("{value}", "north")
        .replace("{seq}", "1")
        .replace("{plan}", "web")
        .replace("{instance}", "web-1")
        .replace("{capability}", "v100")
        .replace("{view}", "rings")
        .replace("{group}", "web")
        .replace("{provider}", "plant7")
        .replace("{cluster}", "press-1")
        .replace("{cloud}", "plant7")
        .replace("{project}", "plant")
        .replace("{compositeApp}", "shop")
        .replace("{version}", "v1");
    let query = match path.as_str() {
        "/api/v1/why" => "?deployment=web",
        "/api/v1/diff" => "?deployment=web&from=1",
        "/api/v1/changes" => "?since=1",
        "/api/v1/moment" => "?at=1s",
        _ => "",
    };
    path + query
}

#[tokio::test(flavor = "multi_thread")]
async fn every_read_route_in_openapi_answers_and_refuses_unknown_parameters() {
    let (system, addr) = planned().await;
    let document = get(addr, "/openapi.json").await.unwrap().json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    // Streams do not end, and no device is served.
    let is_left_out = |path: &str| path.contains("/watch") || path.starts_with("/.well-known/");
    let reads = paths.iter().filter(|(path, item)| item.get("get").is_some() && !is_left_out(path));
    for (path, _) in reads {
        let address = filled(path);
        // No label, no rollout, no rejected report, nothing of the planner and no federation is there.
        let is_absent = ABSENT.iter().any(|part| address.contains(part));
        let answer = system
            .eventually(&address, async || match get(addr, &address).await {
                Ok(answer) if answer.status != 503 => Ok(answer),
                other => Err(format!("{other:?}")),
            })
            .await;
        let is_known = !answer.body.contains("there is no such address");
        assert!(
            is_known && (answer.status == 200 || is_absent && answer.status == 404),
            "{address}: {answer:?}"
        );
        let join = if address.contains('?') { '&' } else { '?' };
        let refused = get(addr, &format!("{address}{join}sitte=a")).await.unwrap();
        assert_eq!(refused.status, 400, "{address}: {refused:?}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{address}");
        assert_eq!(refused.json()["errors"][0]["field"], "sitte", "{address}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_continues_by_its_link_and_an_error_says_what_is_wrong() {
    let (_system, addr) = served().await;
    let mut address = "/api/v1/devices?limit=1".to_owned();
    let mut keys = Vec::new();
    loop {
        let page = get(addr, &address).await.unwrap();
        let device = &page.json()["devices"][0];
        keys.push(format!("{}/{}", device["site"].as_str().unwrap(), device["device"].as_str().unwrap()));
        let Some(link) = page.header("link") else { break };
        let query = link.strip_prefix('<').and_then(|rest| rest.split_once(">; rel=\"next\"")).unwrap().0;
        address = format!("/api/v1/devices{query}");
    }
    assert_eq!(keys, super::DEVICES);
    let foreign = address.replace("devices?", "deployments?");
    for (path, status, words) in [
        (foreign.as_str(), 400, "another question"),
        ("/api/v1/devices?limit=0", 400, "limit"),
        ("/api/v1/devices?limit=1001", 400, "limit"),
        ("/api/v1/devices?freshness=loud", 400, "freshness"),
        ("/api/v1/devices/plant7/press-9", 404, "press-9"),
        ("/api/v1/deployments/wbe", 404, "wbe"),
        ("/api/v1/deployments/%FF", 400, ""),
        ("/api/v1/rollouts/web", 404, "rollout.yaml"),
        ("/api/v1/quarantine/7", 404, "7"),
        ("/api/v1/nothing", 404, "no such address"),
    ] {
        refused(addr, path, status, words).await;
    }
}

async fn refused(addr: SocketAddr, path: &str, status: u16, words: &str) {
    let answer = get(addr, path).await.unwrap();
    assert_eq!(answer.status, status, "{path}: {answer:?}");
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{path}");
    assert!(problem["detail"].as_str().unwrap().contains(words), "{path}: {problem}");
}
