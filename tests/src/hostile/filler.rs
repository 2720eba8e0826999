//! Facts of a fleet that reported long ago, so that what reads LEDGER again and again has something to read. They are written
//! with ingest's credentials, past ingest.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_bus::{Bus, Outgoing};
use muster_contract::decode::to_bytes;
use muster_contract::fact::StatusFact;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::good::Reporter;
use crate::wait::soon;

/// Site of the devices that reported long ago.
const ARCHIVE_SITE: &str = "plant8";
/// Their one deployment: views of them are few.
const ARCHIVE_DEPLOYMENT: &str = "app-archive";
/// Facts of each device.
const FACTS_OF_DEVICE: u64 = 10;
/// Facts under way at once.
const UNDER_WAY: usize = 1_024;

/// Writes so many facts into LEDGER, ten for each device.
pub async fn fill_ledger(inspector: &Bus, template: &Reporter, facts: u64) {
    let deployment: DeploymentId = ARCHIVE_DEPLOYMENT.parse().unwrap();
    let mut window = inspector.window(UNDER_WAY);
    for at in 0..facts {
        let device = format!("archive-{}", at / FACTS_OF_DEVICE).parse().unwrap();
        let key = DeviceKey { site: ARCHIVE_SITE.parse().unwrap(), device };
        let mut report = template.report(at % FACTS_OF_DEVICE + 1);
        report.deployment = deployment.clone();
        let fact = StatusFact::of(report, Timestamp::now(), false);
        let subject = LedgerSubject::Status(key, deployment.clone()).to_string();
        soon("room", window.send(Outgoing::new(subject, to_bytes(&fact)), ())).await;
        while let Some((_, answer)) = window.try_next() {
            answer.unwrap();
        }
    }
    while let Some((_, answer)) = soon("an answer", window.next()).await {
        answer.unwrap();
    }
}
