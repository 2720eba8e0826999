//! Tests that the timeline follows from LEDGER alone, also where the rollup was killed between its points.

use bytes::Bytes;
use muster_contract::DeploymentId;
use muster_contract::subjects::QUERY_PREFIX;
use muster_contract::timeline::TimelineAnswer;
use muster_simulator::child::{Child, Spec};
use muster_tests::system::{ROLLUP, program};
use muster_tests::wait::until;
use serde_json::json;

use crate::ledger::{Device, small_fleet};
use crate::{Hub, PATIENCE};

impl Hub {
    /// The timeline of the fleet, or of a deployment, as the rollup answers it.
    async fn timeline(&self, id: Option<&str>) -> Option<TimelineAnswer> {
        let question = id.map_or_else(Bytes::new, |id| json!({"id": id}).to_string().into());
        let answer = self.bus.request(&format!("{QUERY_PREFIX}.timeline"), question, PATIENCE).await.ok()?;
        serde_json::from_slice(&answer).ok()
    }

    /// Waits until the rollup says of the fleet and of `web` what follows from LEDGER.
    async fn timelines_say_what_ledger_gives(&self) {
        let look = || async {
            let (fleet, timeline) = self.fold_while(|_| true).await;
            let web: DeploymentId = "web".parse().unwrap();
            let expected = [timeline.answer(&fleet, None), timeline.answer(&fleet, Some(&web))];
            (expected, [self.timeline(None).await, self.timeline(Some("web")).await])
        };
        until("the timelines that LEDGER gives", look, |(expected, seen)| expected == seen).await;
    }

    /// A device reports until the timeline of `web` has this many points. Its next step ends within 15 seconds.
    async fn reports_until(&self, device: &mut Device, points: usize) {
        let mut reports = 0;
        loop {
            let state = ["failed", "installing", "installed"][reports % 3];
            reports += 1;
            device.reports(self, "web", state).await;
            let seen = || self.timeline(Some("web"));
            let seen = until("a timeline", seen, Option::is_some).await.unwrap();
            if seen.points.len() >= points {
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_rollup_comes_back_with_the_same_timeline() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let (url, data) = (hub.server.url(), dir.path().join("data").display().to_string());
    let args =
        ["--nats-url", &url, "--data-dir", &data, "--snapshot-every", "100ms", "--snapshot-facts", "5"];
    let args = args.map(str::to_owned).to_vec();
    let spec = Spec { name: ROLLUP.to_owned(), program: program(ROLLUP), args };
    let child = Child::start(spec.clone(), dir.path()).unwrap();
    hub.answers_say_what_ledger_gives().await;
    hub.reports_until(&mut devices[0], 3).await;
    child.kill().await.unwrap();
    devices[1].reports(&hub, "web", "failed").await;
    let child = Child::start(spec, dir.path()).unwrap();
    hub.timelines_say_what_ledger_gives().await;
    hub.reports_until(&mut devices[0], 4).await;
    hub.timelines_say_what_ledger_gives().await;
    assert!(child.stop().await.unwrap().success(), "SIGTERM ends it with 0");
}
