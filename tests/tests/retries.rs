//! A retry loop is no progress, as a whole system shows it: a component that never becomes ready, and one that is ready and
//! dies, again and again.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
#![allow(clippy::print_stdout, reason = "its figure is for tests/NUMBERS.md")]

use std::sync::atomic::{AtomicU32, Ordering};

use muster_contract::fact::{DeadlineKind, Fact};
use muster_contract::notify::Notice;
use muster_contract::view::{DeploymentView, ErrorCount, Verdict};
use muster_contract::{DeviceKey, State};
use muster_tests::story::{key, nothing_lost, rebuilt, verdict};
use muster_tests::system::{INGEST, System, agent_name};
use muster_tests::watching::Watch;

/// Attempts that are looked at.
const ATTEMPTS: u32 = 6;

/// Commits a deployment `web` of one component that runs a script of the shell, for one device.
async fn publish(system: &System, device: &DeviceKey, script: &str, limits: &str) {
    muster_simulator::repository::write_devices(&system.repository, std::slice::from_ref(device)).unwrap();
    let document = format!(
        r#"id: web
metadata: {{name: web}}
spec:
  applicationId: com-example-web
  deploymentProfile:
    type: process
    components:
      - name: main
        properties: {{command: sh, args: ["-c", "{script}"], {limits}}}
"#
    );
    system.repository.write("fleet/web.yaml", &document).unwrap();
    system.repository.commit("web").await.unwrap();
}

async fn view(system: &System) -> Result<DeploymentView, String> {
    let views = system.hub.deployments().await.map_err(|error| error.to_string())?;
    views.into_iter().find(|view| view.deployment.as_str() == "web").ok_or_else(|| "no view yet".to_owned())
}

/// The attempt that the view's one error tells; 0 where it has none.
fn attempt(view: &DeploymentView) -> u32 {
    view.errors.first().and_then(|error| error.example.retry).map_or(0, |retry| retry.attempt)
}

/// Looks at the view until an attempt is shown, and at every look whether it is honest.
async fn until_attempt(system: &System, wanted: u32, is_honest: impl Fn(&DeploymentView) -> bool) {
    let samples = AtomicU32::new(0);
    system
        .eventually(&format!("attempt {wanted} is shown"), async || {
            let view = view(system).await?;
            samples.fetch_add(1, Ordering::Relaxed);
            let told = serde_json::to_string(&view).unwrap();
            assert!(is_honest(&view), "{told}");
            if attempt(&view) >= wanted { Ok(()) } else { Err(told) }
        })
        .await;
    println!("{} samples, each with the error and the attempt", samples.into_inner());
}

async fn deadlines(system: &System) -> Vec<(DeadlineKind, muster_contract::Timestamp)> {
    let ledger = system.ledger().await;
    let deadline =
        |fact: &Fact| if let Fact::Deadline(fact) = fact { Some((fact.deadline, fact.since)) } else { None };
    ledger.iter().filter_map(|entry| deadline(&entry.fact)).collect()
}

async fn muster(system: &System, args: &[&str]) -> String {
    String::from_utf8_lossy(&system.muster(args).await.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn m08_a_unit_that_is_never_ready_stays_overdue_over_retries_and_restarts() {
    let mut system = System::start().await;
    let device = key("plant-a/press-1");
    let script = "sleep 0.1; echo no disk >&2; exit 3";
    publish(&system, &device, script, "readiness: {type: uptime, for: 30s}, timeout: 2s").await;
    // Never a crash loop, so that nothing but the deadline can say it.
    let hub = system.address();
    system.start_agent(&device, hub, &["--crash-loop-failures", "1000"]);
    system
        .eventually("it is past its deadline, with its error", async || {
            let view = view(&system).await?;
            let is_so = view.overdue == 1 && attempt(&view) > 1;
            if is_so { Ok(()) } else { Err(serde_json::to_string(&view).unwrap()) }
        })
        .await;
    let is_honest = |view: &DeploymentView| {
        let [error] = &view.errors[..] else { return false };
        view.overdue == 1
            && matches!(view.verdict, Verdict::Overdue | Verdict::Failing)
            && error.code == "Exited"
            && error.example.retry.is_some()
    };
    let shown = attempt(&view(&system).await.unwrap());
    until_attempt(&system, shown + ATTEMPTS, is_honest).await;
    system.kill(INGEST).await;
    system.start_again(INGEST);
    let agent = agent_name(&device);
    system.kill(&agent).await;
    system.start_again(&agent);
    until_attempt(&system, shown + 2 * ATTEMPTS, is_honest).await;

    let (first, deadlines) = (first_report(&system).await, deadlines(&system).await);
    let [(DeadlineKind::Stuck, since)] = deadlines[..] else { panic!("{deadlines:?}") };
    assert!(since <= first, "it counts from the first attempt on, and passes once: {since}, {first}");
    for told in [muster(&system, &["status", "web"]).await, muster(&system, &["why", "web"]).await] {
        assert!(told.contains("attempt ") && told.contains("Exited"), "{told}");
    }
    let answer = system.hub.device(&device).await.unwrap();
    let [retry] = &answer.deployments[0].report.as_ref().unwrap().retries[..] else { panic!("{answer:?}") };
    assert!(retry.attempt > shown && retry.last_error.code == "Exited", "{retry:?}");
    nothing_lost(&system).await;
    rebuilt(&system).await;
}

/// When the hub took in the first report of the deployment.
async fn first_report(system: &System) -> muster_contract::Timestamp {
    let ledger = system.ledger().await;
    let first = ledger.iter().find_map(|entry| match &entry.fact {
        Fact::Status(fact) => Some(fact.received_at),
        _ => None,
    });
    first.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn m08_a_crash_loop_is_failing_until_a_success_has_held() {
    let mut system = System::start().await;
    let device = key("plant-a/press-1");
    let mended = system.dir().join("mended");
    let script = format!("sleep 0.4; test -e {} && exec sleep 86400; exit 3", mended.display());
    publish(&system, &device, &script, "readiness: {type: uptime, for: 100ms}").await;
    let hub = system.address();
    system.start_agent(&device, hub, &["--crash-loop-failures", "3", "--crash-loop-window", "8s"]);
    verdict(&system, "web", 1, Verdict::Failing).await;
    system
        .eventually("it is a crash loop", async || {
            let view = view(&system).await?;
            let is_so =
                view.errors.iter().any(|error| error.example.retry.is_some_and(|retry| retry.crash_loop));
            if is_so { Ok(()) } else { Err(serde_json::to_string(&view).unwrap()) }
        })
        .await;
    let mut watch = Watch::start(&system, &["web", "--format", "json"]);
    let of = |notice: &Notice| notice.state.as_ref().and_then(|state| state.view.clone());
    let is_in_loop = |error: &ErrorCount| error.example.retry.as_ref().is_some_and(|retry| retry.crash_loop);
    watch.notices(|notice| of(notice).is_some_and(|view| view.errors.iter().any(is_in_loop))).await;
    let is_failing = |view: &DeploymentView| view.verdict == Verdict::Failing;
    let shown = attempt(&view(&system).await.unwrap());
    until_attempt(&system, shown + ATTEMPTS / 2, is_failing).await;
    let agent = agent_name(&device);
    system.kill(&agent).await;
    system.start_again(&agent);
    until_attempt(&system, shown + ATTEMPTS, is_failing).await;
    system
        .eventually("its component is seen ready, and it is failing all the same", async || {
            let view = view(&system).await?;
            assert!(is_failing(&view), "{view:?}");
            let is_ready = view.components.values().any(|states| states.contains_key(&State::Installed));
            let is_so = is_ready && (view.converged.lo, view.converged.hi) == (0, 0);
            if is_so { Ok(()) } else { Err("it is not ready at the moment".to_owned()) }
        })
        .await;
    std::fs::write(&mended, "").unwrap();
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert!(view(&system).await.unwrap().errors.is_empty(), "the success has held");
    watch.notices(|notice| of(notice).is_some_and(|view| view.errors.is_empty())).await;
    nothing_lost(&system).await;
    rebuilt(&system).await;
}
