//! An aborted rollout on a whole system with real agents: devices that have begun with the content keep it, and one that has not been
//! heard since gets the content before it back.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_tests::rollouts::{document, governed, json, muster, release, says, start_planner};
use muster_tests::story::sleeper;
use muster_tests::system::{System, agent_name};

const ROLLOUT: &str = "apiVersion: muster/v1\nkind: Rollout\nwaves:\n  - {name: ours, site: plant7}\n  - {name: theirs, site: plant8, approval: before}\n";

/// The number of contents of `web` that a device had, by its newest document.
async fn generation(system: &System, device: &str) -> u64 {
    let document = document(system, device).await;
    document.deployments.iter().find(|entry| entry.id.as_str() == "web").unwrap().target_generation.get()
}

#[tokio::test]
async fn an_abort_takes_the_content_back_from_a_device_that_has_not_begun() {
    let (mut system, devices) = governed(ROLLOUT).await;
    start_planner(&mut system);
    let silent = devices[1].clone();
    system.kill(&agent_name(&silent)).await;
    release(&system, &sleeper("web", 2)).await;
    let begun = async || match [
        generation(&system, "plant7/press-1").await,
        generation(&system, "plant7/press-2").await,
    ] {
        [2, 2] => Ok(()),
        other => Err(format!("{other:?}")),
    };
    system.eventually("both devices of the first wave have the release", begun).await;
    says(&system, &["rollout", "preview", "web"], "confirmed").await;

    let (code, shown) = json(&system, &["operation", "list", "--deployment", "web"]).await;
    assert_eq!(code, 0, "{shown}");
    let states: Vec<_> =
        shown.as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states, ["RUNNING", "SUCCEEDED", "PENDING_APPROVAL"], "{shown}");
    assert_eq!(shown[2]["approvals"]["needed"], 1, "{shown}");
    let (code, all) = json(&system, &["operation", "list"]).await;
    assert_eq!((code, &all["operations"], &all["rollouts"]), (0, &serde_json::json!([]), &shown), "{all}");
    let (code, waits) = muster(&system, &["operation", "list", "--state", "pending-approval"]).await;
    assert!(code == 0 && waits.contains("theirs") && !waits.contains("ours"), "{waits}");

    let (code, said) = muster(&system, &["rollout", "abort", "web", "--reason", "not today"]).await;
    assert_eq!(code, 0, "{said}");
    let back = async || match generation(&system, "plant7/press-2").await {
        3 => Ok(()),
        other => Err(format!("its content is of generation {other}")),
    };
    system.eventually("the silent device has the content before it", back).await;
    says(&system, &["rollout", "show", "web"], "is aborted since").await;
    assert_eq!(generation(&system, "plant7/press-1").await, 2, "it has begun, and keeps the release");
    assert_eq!(generation(&system, "plant8/press-3").await, 1);

    let (code, said) =
        muster(&system, &["operation", "approve", "--deployment", "web", "--wave", "theirs"]).await;
    assert!(code != 0 && said.contains("is aborted, so 'approve' is not possible"), "{code}: {said}");
}
