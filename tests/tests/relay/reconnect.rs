//! After an outage the newest state of every deployment comes first, and then the backlog: with the real agent program, which
//! wrote all of it while its link was cut, over 256 kbit/s, on a secured hub. The bench `reconnect` measures the time.

use std::time::Duration;

use muster_simulator::link::Shape;
use muster_tests::reconnect::OfflineDevice;

/// Reports that wait; the bench tries 100,000.
const REPORTS: usize = 10_000;
/// Bytes a second of the link each way: 256 kbit/s.
const LINK_BYTES: u64 = 256_000 / 8;
/// Time for the whole backlog: many times what the link needs.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_real_agents_newest_states_are_in_ledger_before_its_backlog() {
    let device = OfflineDevice::with_backlog(REPORTS).await;
    assert!(device.waiting >= REPORTS as u64, "{}", device.waiting);
    let measured = device.reconnect(Shape::PLAIN.slow(LINK_BYTES, LINK_BYTES), PATIENCE).await;
    assert_eq!(measured.older_before_newest, 0, "{measured:?}");
    // How fast is the bench's; on a slow machine the truth still comes long before the backlog.
    assert!(2 * measured.newest_in_views < measured.accounted_after, "{measured:?}");
}
