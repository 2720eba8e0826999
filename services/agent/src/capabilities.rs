//! What this device is: processors, memory, disk, what it can run, and the labels it was given. Looks at the machine
//! (`/proc`, the file system) and decides nothing; what cannot be found out is left out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use muster_contract::desired::ProfileType;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::eligibility::Capabilities;
use serde_json::{Map, Value, json};

use crate::outbox::CapabilitiesBody;

const MEMORY: &str = "/proc/meminfo";
const MODEL: &str = "/sys/class/dmi/id/product_name";
const VENDOR: &str = "/sys/class/dmi/id/sys_vendor";
const KIBIBYTE: u64 = 1024;
const MEBIBYTE: u64 = 1024 * KIBIBYTE;
const GIBIBYTE: u64 = 1024 * MEBIBYTE;
/// What Margo requires and a machine may not say.
const UNKNOWN: &str = "unknown";

/// How to look at the device.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The device.
    pub device: DeviceKey,
    /// The directory whose disk counts.
    pub data_dir: PathBuf,
    /// What its runtime runs.
    pub profiles: Vec<ProfileType>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Probe {
    /// What the device is now.
    pub fn look(&self, now: Timestamp) -> CapabilitiesBody {
        CapabilitiesBody {
            observed_at: now,
            properties: self.properties(),
            labels: self.labels.clone(),
            agent_version: muster_service::VERSION.to_owned(),
        }
    }

    /// What deployments may ask of the device; what it reports, at the start of the agent.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities { properties: self.properties(), labels: self.labels.clone() }
    }

    fn properties(&self) -> Map<String, Value> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let profiles: Vec<_> = self.profiles.iter().map(|profile| profile.as_str()).collect();
        let mut properties = Map::from_iter([
            ("id".to_owned(), json!(self.device.to_string())),
            ("vendor".to_owned(), json!(line_of(VENDOR).unwrap_or_else(|| UNKNOWN.to_owned()))),
            ("modelNumber".to_owned(), json!(line_of(MODEL).unwrap_or_else(|| UNKNOWN.to_owned()))),
            // Readable by the superuser only, and nobody's business beside the device's own name.
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

/// Margo's word for the architecture.
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

/// A size as Margo writes it. Rounded down to whole units: what is reported must not change with every boot.
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
    fn this_machine_says_what_margo_asks_for() {
        let probe = Probe {
            device: "plant7/press-4".parse().unwrap(),
            data_dir: "/".into(),
            profiles: vec![ProfileType::Process],
            labels: BTreeMap::from([("line".to_owned(), "press".to_owned())]),
        };
        let found = probe.look(Timestamp::UNIX_EPOCH);
        for name in ["id", "vendor", "modelNumber", "serialNumber", "cpus", "memory", "storage"] {
            assert!(found.properties.contains_key(name), "{name}: {:?}", found.properties);
        }
        assert_eq!(found.properties["supportedDeploymentTypes"], json!(["process"]));
        assert_eq!(probe.look(Timestamp::UNIX_EPOCH), found, "looking again is no news");
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
