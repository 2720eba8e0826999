//! Silence in `/metrics`: silent devices by site, and for how long the device that was heard longest ago is silent.
//!
//! The number of series is bounded: only the [`SILENT_SITES_NAMED`] sites with most silent devices have one each, and
//! [`OTHER_SITES`] has the sum of the others. A site that leaves these loses its series.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_domain::fold::SilentDevices;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::gauge::shown;

/// Sites with a series of their own.
pub(crate) const SILENT_SITES_NAMED: usize = 20;
/// The label value of all other sites: no site's name has brackets.
pub(crate) const OTHER_SITES: &str = "(others)";

/// The silence of the fleet's devices. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SilenceMetrics {
    by_site: BySite,
    oldest: Gauge<f64, AtomicU64>,
}

/// Silent devices by site. A scrape sees all series of one moment, hence no family of gauges.
#[derive(Debug, Clone, Default)]
struct BySite(Arc<Mutex<SilentDevices>>);

impl SilenceMetrics {
    /// Registers the metrics.
    pub(super) fn describe(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.by_site.clone()));
        registry.register(
            "oldest_silence_seconds",
            "For how long the silent device that was heard longest ago is silent; 0 if none is",
            self.oldest.clone(),
        );
    }

    /// Sets the gauges.
    pub fn show(&self, devices: SilentDevices, oldest: Duration) {
        *self.by_site.0.lock().unwrap_or_else(PoisonError::into_inner) = devices;
        self.oldest.set(oldest.as_secs_f64());
    }
}

impl Collector for BySite {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let SilentDevices { first, others } = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let help = "Silent devices of the sites with most of them, and of all other sites together";
        let mut family = encoder.encode_descriptor("silent_devices", help, None, MetricType::Gauge)?;
        let named = first.iter().map(|(site, count)| (site.as_str(), *count));
        for (site, count) in named.chain([(OTHER_SITES, others)]) {
            ConstGauge::new(shown(count)).encode(family.encode_family(&[("site", site)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_service::supervisor::Supervisor;

    use super::*;

    #[test]
    fn a_site_without_silent_devices_has_no_series() {
        let (supervisor, metrics) = (Supervisor::new(), SilenceMetrics::default());
        supervisor.health().metrics(|registry| metrics.describe(registry.sub_registry_with_prefix("fleet")));
        let text = || supervisor.health().metrics_text();
        let first = vec![("north".parse().unwrap(), 7), ("south".parse().unwrap(), 1)];
        metrics.show(SilentDevices { first, others: 3 }, Duration::from_millis(90_500));
        for line in [
            "muster_fleet_silent_devices{site=\"north\"} 7\n",
            "muster_fleet_silent_devices{site=\"south\"} 1\n",
            "muster_fleet_silent_devices{site=\"(others)\"} 3\n",
            "muster_fleet_oldest_silence_seconds 90.5\n",
        ] {
            assert!(text().contains(line), "{line} is missing:\n{}", text());
        }
        metrics.show(SilentDevices::default(), Duration::ZERO);
        assert!(!text().contains("site=\"north\""), "{}", text());
        assert!(text().contains("muster_fleet_silent_devices{site=\"(others)\"} 0\n"), "{}", text());
    }
}
