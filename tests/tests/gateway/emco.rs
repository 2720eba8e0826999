//! EMCO's status query and notifications over HTTP, against devices that run. The answers are the files in `tests/golden/emco`;
//! `UPDATE_GOLDEN=1` rewrites them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use muster_contract::Timestamp;
use muster_tests::system::agent_name;
use muster_tests::{golden, story};
use serde_json::{Value, json};

use super::client::get;
use super::events::Events;
use super::served;

const GROUP: &str = "/v2/projects/plant/composite-apps/shop/v1/deployment-intent-groups/web/status";
const CLUSTER: &str = "/v2/cluster-providers/plant7/clusters/press-1/status";
const CLOUD: &str = "/v2/projects/plant/logical-clouds/plant7/status";
/// Characters of the hexadecimal digits that name a commit.
const COMMIT_CHARS: usize = 40;

/// An answer of 200 once a condition holds: reports may still be on their way.
pub(crate) async fn answered(
    system: &super::System,
    addr: SocketAddr,
    path: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    system
        .eventually(path, async || {
            let answer = get(addr, path).await.map_err(|error| error.to_string())?;
            if answer.status == 200 && holds(&answer.json()) { Ok(answer.json()) } else { Err(answer.body) }
        })
        .await
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn q03_a_group_and_a_cluster_have_emcos_shape_over_http() {
    let (system, addr) = served().await;
    let is_ready = |answer: &Value| answer["readyStatus"] == "Ready";
    let ready = answered(&system, addr, &format!("{GROUP}?status=ready"), is_ready).await;
    assert_eq!((&ready["project"], &ready["compositeApp"]), (&json!("plant"), &json!("shop")));
    assert_eq!((&ready["compositeAppVersion"], &ready["name"]), (&json!("v1"), &json!("web")));
    assert_eq!(
        (&ready["deployedStatus"], &ready["readyCounts"]),
        (&json!("Instantiated"), &json!({"Ready": 2}))
    );
    assert_eq!(ready["deployedCounts"], Value::Null, "the other axis is left out");
    assert_eq!(ready["states"]["actions"][0]["state"], "Instantiated", "{ready}");
    let clusters = &ready["apps"][0]["clusters"];
    assert_eq!(
        (&clusters[0]["clusterProvider"], &clusters[1]["cluster"]),
        (&json!("plant7"), &json!("press-2"))
    );
    assert_eq!(
        clusters[0]["resources"][0]["GVK"],
        json!({"Group": "muster", "Version": "v1", "Kind": "Component"})
    );

    let summary = answered(&system, addr, &format!("{GROUP}?status=deployed&output=summary"), |_| true).await;
    assert_eq!((&summary["deployedCounts"], &summary["apps"]), (&json!({"Applied": 2}), &Value::Null));
    let one =
        answered(&system, addr, &format!("{GROUP}?status=ready&cluster=plant8%2Bpress-2"), |_| true).await;
    assert_eq!(one["readyCounts"], json!({"Ready": 1}));
    let apps = answered(&system, addr, &format!("{GROUP}?apps"), |_| true).await;
    assert_eq!(keys(&apps), ["apps", "compositeApp", "compositeAppVersion", "name", "project"]);
    let clusters = answered(&system, addr, &format!("{GROUP}?clusters=true"), |_| true).await;
    assert_eq!(clusters["clustersByApp"][0]["clusters"].as_array().unwrap().len(), 2);
    let resources = answered(&system, addr, &format!("{GROUP}?resources"), |_| true).await;
    assert_eq!(resources["resourcesByApp"][0]["resources"].as_array().unwrap().len(), 1);

    // Without `status` the names are those of `type`, which EMCO calls deprecated.
    let old = answered(&system, addr, GROUP, |_| true).await;
    assert_eq!((&old["rsyncStatus"], &old["deployedCounts"]), (&json!({"Applied": 2}), &Value::Null));
    let cluster = answered(&system, addr, &format!("{CLUSTER}?status=ready"), is_ready).await;
    assert_eq!((&cluster["name"], &cluster["project"]), (&json!("plant7+press-1"), &Value::Null));
    assert_eq!(cluster["cluster"]["connectivity"], "Available", "{cluster}");
}

/// An answer without what differs in each run: times and commits are words, sequences of LEDGER their order in the answer.
fn masked(mut answer: Value) -> Value {
    fn revisions<'a>(value: &'a Value, found: &mut BTreeSet<u64>) {
        let all: Box<dyn Iterator<Item = &'a Value>> = match value {
            Value::Object(map) => {
                found.extend(map.get("revision").and_then(Value::as_u64));
                Box::new(map.values())
            }
            Value::Array(all) => Box::new(all.iter()),
            _ => return,
        };
        all.for_each(|value| revisions(value, found));
    }
    fn mask(value: &mut Value, order: &[u64]) {
        match value {
            Value::Object(map) => {
                if let Some(revision) = map.get_mut("revision") {
                    *revision = json!(order.iter().position(|one| json!(one) == *revision).map(|at| at + 1));
                }
                map.values_mut().for_each(|value| mask(value, order));
            }
            Value::Array(all) => all.iter_mut().for_each(|value| mask(value, order)),
            Value::String(text) if text.parse::<Timestamp>().is_ok() => *text = "TIME".to_owned(),
            Value::String(text) if is_commit(text) => *text = "COMMIT".to_owned(),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    revisions(&answer, &mut found);
    mask(&mut answer, &Vec::from_iter(found));
    answer
}

fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(crate) fn golden(name: &str, answer: Value) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/emco/{name}.json"));
    let text = serde_json::to_string_pretty(&masked(answer)).unwrap() + "\n";
    let difference = golden::difference(&file, &text, "UPDATE_GOLDEN");
    assert_eq!(
        difference, None,
        "`UPDATE_GOLDEN=1 cargo nextest run -p muster-tests --test gateway emco` rewrites it"
    );
}

/// Everything runs; then one device is silent and a release is under way; then both devices are silent and a deployment is new.
#[tokio::test(flavor = "multi_thread")]
async fn q03_each_answer_over_http_is_the_golden_file() {
    let (mut system, addr) = served().await;
    let ready = |answer: &Value| answer["readyStatus"] == "Ready";
    let _runs = answered(&system, addr, &format!("{GROUP}?status=ready"), ready).await;
    let of_app = "app=com-example-web";
    for (name, path) in [
        ("ready", format!("{GROUP}?status=ready")),
        ("ready-detail-of-a-resource", format!("{GROUP}?status=ready&output=detail&resource=main")),
        ("apps", format!("{GROUP}?apps")),
        ("clusters", format!("{GROUP}?clusters&{of_app}")),
        ("resources", format!("{GROUP}?resources&status=deployed&{of_app}&cluster=plant7%2Bpress-1")),
        ("type-rsync", format!("{GROUP}?type=rsync")),
        ("cluster-deployed", format!("{CLUSTER}?status=deployed")),
        ("logical-cloud-deployed", format!("{CLOUD}?status=deployed&output=all")),
        ("logical-cloud-summary", format!("{CLOUD}?output=summary")),
    ] {
        golden(name, answered(&system, addr, &path, |_| true).await);
    }
    let devices = super::DEVICES.map(story::key);
    let silent = |answer: &Value| answer["apps"][0]["clusters"][0]["connectivity"] == "Retrying";
    let of_press_1 = format!("{GROUP}?status=deployed&cluster=plant7%2Bpress-1");
    system.kill(&agent_name(&devices[0])).await;
    answered(&system, addr, &of_press_1, silent).await;
    story::publish(&system, &devices, "web", 2).await;
    let path = format!("{GROUP}?status=ready&output=summary");
    // The actions come from the publisher, and the counts from reports: neither waits for the other.
    let half = |answer: &Value| {
        answer["readyCounts"] == json!({"NotPresent": 1, "Ready": 1})
            && answer["states"]["actions"].as_array().is_some_and(|actions| actions.len() == 3)
    };
    golden("ready-summary", answered(&system, addr, &path, half).await);
    for (name, path) in [
        ("deployed-summary", format!("{GROUP}?status=deployed&output=summary")),
        ("deployed-of-a-silent-cluster", of_press_1),
    ] {
        golden(name, answered(&system, addr, &path, |_| true).await);
    }

    system.kill(&agent_name(&devices[1])).await;
    let of_press_2 = format!("{GROUP}?status=deployed&cluster=plant8%2Bpress-2");
    answered(&system, addr, &of_press_2, silent).await;
    story::publish(&system, &devices, "late", 1).await;
    let path = GROUP.replace("groups/web", "groups/late") + "?status=deployed&output=summary";
    // The actions of a deployment are asked for before its status.
    let pending =
        |answer: &Value| answer["deployedCounts"] == json!({"Pending": 2}) && answer["states"].is_object();
    golden("before-any-report", answered(&system, addr, &path, pending).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn q16_a_site_has_the_status_of_a_logical_cloud_over_http() {
    let (mut system, addr) = served().await;
    let is_ready = |answer: &Value| answer["readyStatus"] == "Ready";
    let ready = answered(&system, addr, CLOUD, is_ready).await;
    assert_eq!((&ready["project"], &ready["name"]), (&json!("plant"), &json!("plant7")));
    assert_eq!((&ready["readyCounts"], ready.get("apps")), (&json!({"Ready": 1}), None), "{ready}");
    let clusters = ready["clusters"].as_array().unwrap();
    assert_eq!((clusters.len(), &clusters[0]["cluster"]), (1, &json!("press-1")));
    assert_eq!(clusters[0]["resources"][0]["deployment"], "web");
    let foreign = answered(&system, addr, &format!("{CLOUD}?cluster=plant8%2Bpress-2"), |_| true).await;
    assert_eq!(foreign.get("clusters"), None, "a device of another site: {foreign}");
    let absent = get(addr, &CLOUD.replace("plant7", "plant9")).await.unwrap();
    assert_eq!(absent.status, 404, "{}", absent.body);
    let refused = get(addr, &format!("{CLOUD}?app=web")).await.unwrap();
    assert_eq!((refused.status, &refused.json()["errors"][0]["field"]), (400, &json!("app")));

    let mut events = Events::open_after(addr, &format!("{CLOUD}/watch?output=all"), None).await;
    let first = events.next().await.data;
    assert_eq!(
        (&first["statusValue"], &first["details"][0]["cluster"]["cluster"]),
        (&json!("READY"), &json!("press-1"))
    );
    system.kill(&agent_name(&story::key(super::DEVICES[0]))).await;
    assert_eq!(events.next_of("change").await.data["statusValue"], "NOT_READY");
}

#[tokio::test(flavor = "multi_thread")]
async fn q02_a_wrong_value_names_its_parameter_and_an_unknown_name_is_404() {
    let (_system, addr) = served().await;
    for (query, field) in [
        ("status=up", "status"),
        ("type=helm", "type"),
        ("output=most", "output"),
        ("cluster=plant7", "cluster"),
        ("resource=a%2Fb", "resource"),
        ("instance=0000000", "instance"),
        ("instance=", "instance"),
        ("clutser=plant7%2Bpress-1", "clutser"),
    ] {
        let refused = get(addr, &format!("{GROUP}?{query}")).await.unwrap();
        assert_eq!(
            (refused.status, refused.header("content-type")),
            (400, Some("application/problem+json")),
            "{query}"
        );
        assert_eq!(refused.json()["errors"][0]["field"], field, "{}", refused.body);
    }
    let bad_name = get(addr, &GROUP.replace("/shop/", "/shop-/")).await.unwrap();
    assert_eq!((bad_name.status, &bad_name.json()["errors"][0]["field"]), (400, &json!("compositeApp")));
    for path in [
        GROUP.replace("groups/web", "groups/nothing"),
        format!("{}/watch", GROUP.replace("groups/web", "groups/nothing")),
        format!("{GROUP}?app=nothing"),
        format!("{GROUP}?cluster=plant8%2Bpress-9"),
        format!("{GROUP}?resource=nothing"),
        CLUSTER.replace("press-1", "press-9"),
        "/v2/projects/plant/logical-clouds/one/status".to_owned(),
        "/v2/projects/plant/logical-clouds".to_owned(),
        "/v2/projects/plant".to_owned(),
    ] {
        let absent = get(addr, &path).await.unwrap();
        assert_eq!(
            (absent.status, absent.header("content-type")),
            (404, Some("application/problem+json")),
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n03_notifications_begin_with_the_state_name_each_change_once_and_end() {
    let (mut system, addr) = served().await;
    let _ready =
        answered(&system, addr, &format!("{GROUP}?status=ready"), |it| it["readyStatus"] == "Ready").await;
    let path = format!("{GROUP}/watch?output=all&cluster=plant7%2Bpress-1");
    let mut events = Events::open_after(addr, &path, None).await;
    let first = events.next().await;
    let cluster = |status: &str| {
        let gvk = json!({"group": "muster", "version": "v1", "kind": "Component"});
        json!({"clusterProvider": "plant7", "cluster": "press-1", "statusValue": status,
            "resources": [{"name": "main", "gvk": gvk, "statusValue": status}]})
    };
    let whole = |status: &str, app: &Value| json!({"statusValue": status, "details": [{"app": {"app": app, "statusValue": status, "clusters": [cluster(status)]}}]});
    let app = first.data["details"][0]["app"]["app"].clone();
    assert_eq!((first.kind.as_str(), &first.data), ("snapshot", &whole("READY", &app)));
    let mut ends = Events::open_after(addr, &format!("{GROUP}/watch"), None).await;
    assert_eq!(ends.next().await.data, json!({"statusValue": "READY"}));

    // A silent device is not ready, whatever its last report was.
    system.kill(&agent_name(&story::key(super::DEVICES[0]))).await;
    let change = events.next_of("change").await;
    assert_eq!(change.data["statusValue"], "NOT_READY", "{change:?}");
    assert_eq!(ends.next_of("change").await.data, json!({"statusValue": "NOT_READY"}));
    // A change elsewhere is none here.
    system.start_again(&agent_name(&story::key(super::DEVICES[0])));
    assert_eq!(events.next_of("change").await.data, whole("READY", &app));
    assert_eq!(ends.next_of("change").await.data, json!({"statusValue": "READY"}));
    let resumed = Events::open_after(addr, &path, change.id_text.as_deref()).await.next().await;
    assert_eq!((resumed.kind.as_str(), &resumed.data["statusValue"]), ("snapshot", &json!("READY")));

    std::fs::remove_file(system.repository.dir().join("fleet/web.yaml")).unwrap();
    system.repository.commit("Remove web").await.unwrap();
    ends.next_of("end").await;
}
