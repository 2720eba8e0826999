//! Decisions about rollouts from a page and from a program.

use muster_contract::view::Verdict;
use muster_tests::story::{self, sleeper};
use muster_tests::system::System;

use super::client::{get, post};
use super::served;

const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, devices: [plant7/press-1]}
  - {name: pair, count: 1, approval: before}
";

async fn history(system: &System) -> String {
    String::from_utf8(system.muster(&["rollout", "history", "web"]).await.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_approved_paused_and_resumed_from_its_page() {
    let (system, addr) = served().await;
    system.repository.write("fleet/rollout.yaml", ROLLOUT).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web", 2)).unwrap();
    system.repository.commit("a release in waves").await.unwrap();
    let page = system
        .eventually("the page shows the waves", async || match get(addr, "/rollouts/web").await {
            Ok(page) if page.status == 200 && page.body.contains("wave canary") => Ok(page.body),
            other => Err(format!("{other:?}")),
        })
        .await;
    assert!(page.contains("action=\"/rollouts/web/pause\"") && page.contains("Approve wave pair"), "{page}");

    let paused = post(addr, "/rollouts/web/pause", "file=fleet%2Frollout.yaml&reason=looking").await.unwrap();
    assert_eq!((paused.status, paused.header("location")), (303, Some("/rollouts/web")), "{paused:?}");
    let shown = history(&system).await;
    assert!(shown.contains("pause") && shown.contains("looking"), "{shown}");
    let page = get(addr, "/rollouts/web").await.unwrap().body;
    assert!(page.contains("action=\"/rollouts/web/resume\"") && page.contains("paused"), "{page}");

    let resumed = post(addr, "/api/v1/rollouts/web/resume", "").await.unwrap();
    assert_eq!((resumed.status, &resumed.json()[0]["changed"]), (200, &true.into()), "{resumed:?}");
    let approved = post(addr, "/rollouts/web/approve", "wave=pair").await.unwrap();
    assert_eq!(approved.status, 303, "{approved:?}");
    assert!(history(&system).await.contains("approve"));
    let again = post(addr, "/api/v1/rollouts/web/approve", "wave=nosuch").await.unwrap();
    assert_eq!(again.status, 409, "{again:?}");

    system
        .eventually("`next` releases to all devices", async || {
            let next =
                post(addr, "/api/v1/rollouts/web/next", "").await.map_err(|error| error.to_string())?;
            let is_done = next.body.contains("\"step\":\"done\"");
            if is_done { Ok(()) } else { Err(next.body) }
        })
        .await;
    story::verdict(&system, "web", 2, Verdict::Converged).await;
}
