//! The packages in the hub's object store: a list of them as their records say, and changes ([`bucket`]). It reads no content.

pub mod bucket;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::limits::PACKAGES_BYTES_MAX;
use muster_contract::packages::{ObjectName, ObjectRecord, PackageWriter, RECORDS};
use serde::Serialize;

/// A package of the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageLine {
    /// Its name.
    pub name: String,
    /// Its address for `packageLocation`.
    pub address: String,
    /// Its digest for `packageDigest`; none if its record cannot be used.
    pub digest: Option<Digest>,
    /// Its bytes.
    pub bytes: u64,
    /// When it was put.
    pub put_at: Timestamp,
    /// Who put it through a gateway, as the gateway has written it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub put_by: Option<PackageWriter>,
    /// Why devices cannot use it, if they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The packages of a hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PackageList {
    /// The packages, by name.
    pub packages: Vec<PackageLine>,
    /// Bytes of all.
    pub bytes: u64,
    /// Bytes that all may have.
    pub bytes_max: u64,
}

/// The packages of a hub, by name.
///
/// # Errors
/// The bucket cannot be read.
pub async fn list(bus: &Bus) -> Result<PackageList, ReadError> {
    let (mut packages, mut from) = (Vec::new(), 1);
    while let Some(message) = bus.package_message(RECORDS, from).await? {
        from = message.stream_seq + 1;
        let Ok(raw) = serde_json::from_slice::<ObjectRecord>(&message.payload) else { continue };
        if raw.deleted {
            continue;
        }
        let named = raw.name.parse::<ObjectName>();
        let problem = named.as_ref().err().map(ToString::to_string);
        let problem = problem.or_else(|| ObjectRecord::parse(&message.payload).err().map(str::to_owned));
        let put_by = raw.writer();
        packages.push(PackageLine {
            address: named.map(|name| name.address()).unwrap_or_default(),
            digest: raw.digest(),
            name: raw.name,
            bytes: raw.size,
            put_at: message.stored_at,
            put_by,
            problem,
        });
    }
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    let bytes = packages.iter().map(|package| package.bytes).fold(0, u64::saturating_add);
    Ok(PackageList { packages, bytes, bytes_max: PACKAGES_BYTES_MAX })
}
