//! Reads the capabilities of this device: processors, memory, disk, runtimes and labels. It reads `/proc` and the file
//! system and decides nothing; a value that cannot be read is left out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use muster_contract::desired::ProfileType;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::eligibility::Capabilities;
use serde_json::{Map, Value, json};

use crate::report::CapabilitiesBody;

const MEMORY: &str = "/proc/meminfo";
const MODEL: &str = "/sys/class/dmi/id/product_name";
const VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
const KIBIBYTE: u64 = 1024;
const MEBIBYTE: u64 = 1024 * KIBIBYTE;
const GIBIBYTE: u64 = 1024 * MEBIBYTE;
/// The value that Margo requires where the machine has none.
const UNKNOWN: &str = "unknown";

/// Reads the capabilities.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    /// The device.
    pub(crate) device: DeviceKey,
    /// The directory whose disk counts.
    pub(crate) data_dir: PathBuf,
    /// The component types of its runtime.
    pub(crate) profiles: &'static [ProfileType],
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
}

impl Probe {
    /// The capabilities as a report.
    pub(crate) fn read(&self, now: Timestamp) -> CapabilitiesBody {
        CapabilitiesBody {
            observed_at: now,
            properties: self.properties(),
            labels: self.labels.clone(),
            agent_version: muster_service::VERSION.to_owned(),
        }
    }

    /// The capabilities against which deployments are checked.
    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities { properties: self.properties(), labels: self.labels.clone() }
    }

    fn properties(&self) -> Map<String, Value> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let profiles: Vec<_> = self.profiles.iter().map(|profile| profile.as_str()).collect();
        let mut properties = Map::from_iter([
            ("id".to_owned(), json!(self.device.to_string())),
            ("vendor".to_owned(), json!(line_of(VENDOR).unwrap_or_else(|| UNKNOWN.to_owned()))),
            ("modelNumber".to_owned(), json!(line_of(MODEL).unwrap_or_else(|| UNKNOWN.to_owned()))),
            // The real serial number is readable by the superuser only.
            ("serialNumber".to_owned(), json!(self.device.to_string())),
            ("cpus".to_owned(), json!([{ "cores": cores, "architecture": architecture() }])),
            ("peripherals".to_owned(), json!([])),
            ("interfaces".to_owned(), json!([])),
            ("supportedDeploymentTypes".to_owned(), json!(profiles)),
        ]);
        if let Some(bytes) = memory_bytes() {
            properties.insert("memory".to_owned(), json!(quantity(bytes)));
        }
        if let Some(bytes) = disk_bytes(&self.data_dir) {
            properties.insert("storage".to_owned(), json!(quantity(bytes)));
        }
        properties
    }
}

/// The architecture in Margo's words.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "amd64"
    } else if cfg!(target_arch = "aarch64") {
        "arm64"
    } else if cfg!(target_arch = "arm") {
        "arm"
    } else {
        UNKNOWN
    }
}

fn line_of(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn memory_bytes() -> Option<u64> {
    memory_total(&std::fs::read_to_string(MEMORY).ok()?)
}

fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * KIBIBYTE)
}

fn disk_bytes(dir: &std::path::Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    disk.f_blocks.checked_mul(disk.f_frsize)
}

/// A size as Margo writes it, rounded down to whole units: the report must not change with every boot.
fn quantity(bytes: u64) -> String {
    match bytes / GIBIBYTE {
        0 => format!("{}Mi", bytes / MEBIBYTE),
        gibibytes => format!("{gibibytes}Gi"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_reports_what_margo_requires() {
        let probe = Probe {
            device: "plant7/press-4".parse().unwrap(),
            data_dir: "/".into(),
            profiles: &[ProfileType::Process],
            labels: BTreeMap::from([("line".to_owned(), "press".to_owned())]),
        };
        let found = probe.read(Timestamp::UNIX_EPOCH);
        for name in ["id", "vendor", "modelNumber", "serialNumber", "cpus", "memory", "storage"] {
            assert!(found.properties.contains_key(name), "{name}: {:?}", found.properties);
        }
        assert_eq!(found.properties["supportedDeploymentTypes"], json!(["process"]));
        assert_eq!(probe.read(Timestamp::UNIX_EPOCH), found, "a second read finds the same");
    }

    #[test]
    fn sizes_are_whole_units() {
        assert_eq!(
            memory_total("MemTotal:       16316412 kB\nMemFree: 1 kB\n").map(quantity).unwrap(),
            "15Gi"
        );
        assert_eq!(quantity(512 * MEBIBYTE + 1), "512Mi");
        assert_eq!(memory_total("nothing"), None);
    }
}
