//! A hub that is restored from an old backup: its devices send again what it lost.

use std::collections::BTreeSet;

use muster_contract::view::Verdict;
use muster_tests::system::{INGEST, ROLLUP, System, numbers};

use super::*;

/// Time in which everything must be in LEDGER again: a device sends nothing a second time before half a minute has gone.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(200);

/// A deployment whose process ends after `seconds`: with few of them there is something to report all the time.
fn runs_for(seconds: u32) -> String {
    format!(
        r#"id: web
metadata: {{name: web}}
spec:
  applicationId: com-example-web
  deploymentProfile:
    type: process
    components:
      - name: main
        properties: {{command: sleep, args: ["{seconds}"], readiness: {{type: uptime, for: 50ms}}}}
"#
    )
}

async fn publish(system: &System, key: &DeviceKey, seconds: u32) {
    muster_simulator::repository::write_devices(&system.repository, std::slice::from_ref(key)).unwrap();
    system.repository.write("fleet/web.yaml", &runs_for(seconds)).unwrap();
    system.repository.commit(&format!("{seconds} seconds")).await.unwrap();
}

/// The lowest number of the device that LEDGER lacks, up to some number; panics if it holds one twice.
async fn lacks(system: &System, key: &DeviceKey, through: u64) -> Option<u64> {
    let held = held(system, key).await;
    (1..=through).find(|seq| !held.contains(seq))
}

async fn held(system: &System, key: &DeviceKey) -> BTreeSet<u64> {
    let numbers = numbers(&system.ledger().await);
    numbers.into_iter().find(|((device, _), _)| device == key).map(|(_, held)| held).unwrap_or_default()
}

/// Waits until LEDGER holds so many numbers of the device, from the first on, and gives the last one it holds.
async fn held_through(system: &System, key: &DeviceKey, through: u64) -> u64 {
    let look = async || match lacks(system, key, through).await {
        Some(lacking) => Err(format!("{lacking} of {through} is not in LEDGER")),
        None => Ok(()),
    };
    system.eventually("reports in LEDGER", look).await;
    held(system, key).await.last().copied().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_set_back_to_an_old_backup_is_told_again_what_it_lost() {
    let mut system = System::start().await;
    let key = device("press-1");
    let address = system.address();
    system.start_agent(&key, address, &[]);
    publish(&system, &key, 1).await;
    let before = held_through(&system, &key, 5).await;
    system.server.stop();
    let backup = system.server.back_up();
    system.server.restart();

    let through = held_through(&system, &key, before + 10).await;
    system.server.stop();
    system.server.set_back(&backup);
    system.server.restart();

    let deadline = tokio::time::Instant::now() + PATIENCE;
    while lacks(&system, &key, through).await.is_some() {
        // A service that knows more than LEDGER holds must not continue with that; it may end, and is restarted.
        system.watch_over(INGEST);
        system.watch_over(ROLLUP);
        let is_over = tokio::time::Instant::now() > deadline;
        assert!(
            !is_over,
            "{:?}\n{}\n{}",
            held(&system, &key).await,
            system.log(INGEST),
            system.agent_log(&key)
        );
        tokio::time::sleep(LOOK).await;
    }

    publish(&system, &key, 86_400).await;
    system
        .eventually("the device is known to have converged", async || {
            let views = system.hub.deployments().await.map_err(|error| error.to_string())?;
            let verdict =
                views.iter().find(|view| view.deployment.as_str() == "web").map(|view| view.verdict);
            if verdict == Some(Verdict::Converged) { Ok(()) } else { Err(format!("{verdict:?}")) }
        })
        .await;
    system
        .eventually("the views shown are those of a rebuild", async || {
            let rebuilt = system.rebuilt_digests().await;
            let shown = system.shown_digests(rebuilt.keys()).await;
            if rebuilt == shown { Ok(()) } else { Err(format!("rebuilt {rebuilt:?}, shown {shown:?}")) }
        })
        .await;
}
