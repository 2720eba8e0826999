//! EMCO's status query and notifications over HTTP, against devices that run.

use std::net::SocketAddr;

use muster_tests::story;
use muster_tests::system::agent_name;
use serde_json::{Value, json};

use super::client::get;
use super::events::Events;
use super::served;

const GROUP: &str = "/v2/projects/plant/composite-apps/shop/v1/deployment-intent-groups/web/status";
const CLUSTER: &str = "/v2/cluster-providers/plant7/clusters/press-1/status";

/// An answer of 200 once a condition holds: reports may still be on their way.
async fn answered(
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
