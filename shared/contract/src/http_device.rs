//! Documents of the bucket `http_devices`, about devices that speak HTTP (Margo's device API) and so have no outbox: the accepted
//! client certificates with the devices behind them, and the numbers of each device's reports.
//!
//! Only gateways and operators read and write the bucket, so its documents are not in the public schemas. The gateway has the
//! rules by which it assigns numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};

use crate::canonical::Digest;
use crate::ids::{DeploymentId, DeviceId, DeviceKey, Epoch, Generation, Seq};
use crate::ranges::SeqRanges;
use crate::version::ApiVersion;

/// Longest SPIFFE id in bytes.
pub const SPIFFE_ID_BYTES_MAX: usize = 2048;
/// Deployments of one device in its record, at most.
pub const HTTP_DEPLOYMENTS_MAX: usize = 256;
/// Contents of one deployment in the record, at most.
pub const HTTP_TARGETS_MAX: usize = 2;
/// Devices behind one client, at most.
pub const HTTP_CHILDREN_MAX: usize = 32;
/// Versions of a client's manifests in which one device changed, in the record, at most.
pub const HTTP_SERVED_MAX: usize = 8;
/// Characters of a refused id that its error shows.
const REFUSED_CHARS_SHOWN: usize = 200;
const SUBJECT_PREFIX: &str = "$KV.http_devices.";

/// The SPIFFE id of a client: `spiffe://<trust domain>/margo/wfm/<manager>/client/<client>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientIdentity {
    text: String,
    manager_bytes: usize,
}

/// Why a text is not the SPIFFE id of a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not spiffe://TRUST-DOMAIN/margo/wfm/WFM-ID/client/CLIENT-ID, each part of letters, digits and any of . _ ~ -, \
     the trust domain in lower case"
)]
pub struct IdentityError(String);

impl ClientIdentity {
    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The SPIFFE id of the client's workload fleet manager, which is also the server's.
    pub fn manager(&self) -> &str {
        &self.text[..self.manager_bytes]
    }
}

impl fmt::Display for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for ClientIdentity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let refuse = || {
            let shown = text.chars().filter(|sign| !sign.is_control()).take(REFUSED_CHARS_SHOWN);
            IdentityError(shown.collect())
        };
        let (manager, client) = text.rsplit_once("/client/").ok_or_else(refuse)?;
        let fits = text.len() <= SPIFFE_ID_BYTES_MAX && is_manager(manager) && is_segment(client);
        if fits { Ok(Self { text: text.to_owned(), manager_bytes: manager.len() }) } else { Err(refuse()) }
    }
}

/// The SPIFFE id of a workload fleet manager; `None` if a part has other characters than SPIFFE allows.
pub fn manager_identity(trust_domain: &str, manager: &str) -> Option<String> {
    let id = format!("spiffe://{trust_domain}/margo/wfm/{manager}");
    is_manager(&id).then_some(id)
}

fn is_manager(text: &str) -> bool {
    let parts = text.strip_prefix("spiffe://").and_then(|rest| rest.split_once("/margo/wfm/"));
    parts.is_some_and(|(domain, manager)| {
        is_segment(domain)
            && !domain.contains('~')
            && domain == domain.to_ascii_lowercase()
            && is_segment(manager)
    })
}

fn is_segment(text: &str) -> bool {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"._~-".contains(&byte);
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(is_unreserved)
}

/// `$KV.http_devices.<hex>`: the record of a client. The key is the SHA-256 of its SPIFFE id in 64 hex digits.
pub fn client_subject(spiffe_id: &str) -> String {
    let digest = Digest::of_bytes(spiffe_id.as_bytes()).to_string();
    format!("{SUBJECT_PREFIX}{}", digest.rsplit(':').next().unwrap_or_default())
}

/// The records of all clients.
pub const CLIENTS: &str = "$KV.http_devices.*";

/// `$KV.http_devices.<site>.<device>`: the record of a device.
pub fn device_subject(key: &DeviceKey) -> String {
    format!("{SUBJECT_PREFIX}{}.{}", key.site, key.device)
}

/// A client certificate that an operator has accepted or revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpClient {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// The SPIFFE id in the certificate.
    pub spiffe_id: String,
    /// The device that the certificate identifies.
    #[serde(flatten)]
    pub device: DeviceKey,
    /// The devices of its site for which the client speaks beside its own. Present as soon as an operator has named some: from then
    /// on the versions of the client's manifests count the changes of several devices.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "children")]
    pub children: Option<BTreeSet<DeviceId>>,
    /// The time for which its devices are fresh after a request, in milliseconds, for a client that polls more rarely than the lease of
    /// the hub. Absent for that lease. A gateway of an older release ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_lease_ms: Option<u64>,
    /// Whether the certificate is revoked.
    #[serde(default)]
    pub revoked: bool,
    /// When an operator last accepted or revoked it.
    pub changed_at: Timestamp,
}

impl HttpClient {
    /// Whether the client may speak for a device.
    pub fn speaks_for(&self, key: &DeviceKey) -> bool {
        let is_child = |children: &BTreeSet<DeviceId>| children.contains(&key.device);
        *key == self.device || key.site == self.device.site && self.children.as_ref().is_some_and(is_child)
    }
}

/// Reads the devices behind a client. Release 0.2 recorded the prefix of their names, which names no device.
fn children<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeSet<DeviceId>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Children {
        Names(BTreeSet<DeviceId>),
        Prefix(#[allow(dead_code, reason = "it names no device")] String),
    }
    Ok(match Children::deserialize(deserializer)? {
        Children::Names(names) => Some(names),
        Children::Prefix(_) => None,
    })
}

/// The state of a device that gateways share: another gateway continues from it after one has died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpDevice {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// The epoch of the numbers.
    pub epoch: Epoch,
    /// The highest assigned number; 0 before the first.
    pub head: u64,
    /// Reports with an assigned number that UPLINK has not confirmed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenReport>,
    /// The last capabilities that UPLINK has confirmed; absent before the first, and after their removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<ConfirmedReport>,
    /// The generation of the last served manifest; 0 before the first.
    #[serde(default)]
    pub generation: u64,
    /// The served contents and the last report of each deployment.
    #[serde(default)]
    pub deployments: BTreeMap<DeploymentId, HttpDeployment>,
    /// The manifests of a client that speaks for several devices, in the record of its own device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<ManifestSpan>,
    /// The client reaches its child device no more: the last status said so. Polls of the client are no heartbeats of this device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreachable: bool,
}

/// The manifests of a client that speaks for several devices. The version of a manifest is the sum of its devices' generations and
/// of a base.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestSpan {
    /// Rises when a device leaves, so that the version does not fall.
    #[serde(default)]
    pub base: u64,
    /// For each device in the newest manifest: the versions in which its generation changed, with that generation; newest last.
    #[serde(default)]
    pub served: BTreeMap<DeviceId, Vec<(u64, Generation)>>,
}

/// A report with an assigned number that UPLINK has not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenReport {
    /// The number.
    pub seq: Seq,
    /// The deployment of the report; absent for capabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentId>,
    /// Digest of the report as the device sent it.
    pub content: Digest,
    /// When the number was assigned: the report's `observedAt`.
    pub at: Timestamp,
    /// Digest of the content that a status is about, as known when its number was assigned; absent for capabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Digest>,
    /// The `agentVersion` of capabilities; absent for a status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Numbers that the report declares as coalesced.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
    /// The snapshot that the report is made of, if it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
}

/// The newest snapshot of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Until when it is fresh, by the clock of the gateway that got it. Absent if the deployment is no target any more, so that
    /// nobody waits for another snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh_until: Option<Timestamp>,
    /// When it was taken, by the clock of a source that has one for all its snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<Timestamp>,
    /// The severity of its state, where `taken_at` is there.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub severity: u64,
}

impl Snapshot {
    /// Whether another snapshot of its source counts before it: a later one, or a more severe one of the same time.
    pub fn is_behind(&self, other: &Self) -> bool {
        let rank = |of: &Self| Some((of.taken_at?, of.severity));
        rank(self).zip(rank(other)).is_some_and(|(own, others)| own < others)
    }
}

/// A report that UPLINK has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfirmedReport {
    /// Its number.
    pub seq: Seq,
    /// Digest of the report as the device sent it.
    pub content: Digest,
}

/// One deployment on one device: its last report and its served contents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpDeployment {
    /// Its last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<ConfirmedReport>,
    /// The served contents, each with the generation from which it was the target; newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<(Generation, Digest)>,
    /// Its newest snapshot, if its last report was made of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_and_a_device_never_share_a_key() {
        let client = client_subject("spiffe://example.org/margo/wfm/w/client/c");
        assert_eq!(client.len(), SUBJECT_PREFIX.len() + 64);
        assert_eq!(client.matches('.').count(), 2, "one token");
        let device = device_subject(&"plant7/press-4".parse().unwrap());
        assert_eq!(device, "$KV.http_devices.plant7.press-4", "two tokens");
    }

    #[test]
    fn a_client_is_named_exactly_and_belongs_to_one_manager() {
        let id: ClientIdentity = "spiffe://example.org/margo/wfm/w-1/client/Press~4".parse().unwrap();
        assert_eq!(id.manager(), "spiffe://example.org/margo/wfm/w-1");
        assert_eq!(manager_identity("example.org", "w-1").as_deref(), Some(id.manager()));
        for bad in [
            "spiffe://example.org/margo/wfm/w/client/",
            "spiffe://example.org/margo/wfm/w/client/..",
            "spiffe://example.org/margo/wfm/w/client/a/b",
            "spiffe://example.org/margo/wfm/w/client/a/client/b",
            "spiffe://example.org/margo/wfm/w/x/client/a",
            "spiffe://Example.org/margo/wfm/w/client/a",
            "spiffe://example.org:1/margo/wfm/w/client/a",
            "spiffe://example.org/margo/wfm/./client/a",
            "spiffe://example.org/margo/wfm/w/client/a%20b",
            "spiffe://example.org/margo/wfm/w/client/a?b",
            "https://example.org/margo/wfm/w/client/a",
            "",
        ] {
            assert!(bad.parse::<ClientIdentity>().is_err(), "{bad}");
        }
        assert_eq!(manager_identity("a/b", "w"), None);
    }

    #[test]
    fn the_largest_record_fits_into_a_message() {
        let id = |at: usize| format!("{at:0>63}").parse::<DeploymentId>().unwrap();
        let digest = Digest::of_bytes(b"");
        let seq = Seq::new(crate::limits::COUNTER_MAX).unwrap();
        let confirmed = ConfirmedReport { seq, content: digest };
        let targets = vec![(Generation::new(u64::MAX).unwrap(), digest); HTTP_TARGETS_MAX];
        let snapshot =
            Snapshot { fresh_until: Some(Timestamp::MAX), taken_at: Some(Timestamp::MAX), severity: 9 };
        let deployment = HttpDeployment { reported: Some(confirmed), targets, snapshot: Some(snapshot) };
        let newest = Generation::new(u64::MAX).unwrap();
        let served = |at: usize| {
            (format!("{at:0>63}").parse::<DeviceId>().unwrap(), vec![(u64::MAX, newest); HTTP_SERVED_MAX])
        };
        let record = HttpDevice {
            api_version: ApiVersion::V1,
            epoch: Epoch::FIRST,
            head: seq.get(),
            open: Vec::new(),
            capabilities: Some(confirmed),
            generation: u64::MAX,
            deployments: (0..HTTP_DEPLOYMENTS_MAX).map(|at| (id(at), deployment.clone())).collect(),
            span: Some(ManifestSpan {
                base: u64::MAX,
                served: (0..=HTTP_CHILDREN_MAX).map(served).collect(),
            }),
            unreachable: true,
        };
        let bytes = serde_json::to_vec(&record).unwrap();
        // The rest is for open reports, of which a gateway keeps sixteen: with their coalesced numbers a KiB each.
        let rest = crate::limits::MESSAGE_BYTES_MAX.saturating_sub(bytes.len());
        assert!(rest > 64 * 1024, "{} bytes leave {rest}", bytes.len());
        assert_eq!(serde_json::from_slice::<HttpDevice>(&bytes).unwrap(), record);
    }

    #[test]
    fn a_client_speaks_for_its_own_device_and_the_named_ones_of_its_site() {
        let read = |children: serde_json::Value| {
            serde_json::from_value::<HttpClient>(serde_json::json!({
                "apiVersion": "muster/v1", "spiffeId": "spiffe://a/margo/wfm/w/client/gw", "site": "plant7", "device": "gw",
                "children": children, "changedAt": "2026-11-26T07:00:00Z",
            }))
            .unwrap()
        };
        let key = |text: &str| text.parse::<DeviceKey>().unwrap();
        let client = read(serde_json::json!(["press-a", "press-b"]));
        for (device, speaks) in [
            ("plant7/gw", true),
            ("plant7/press-a", true),
            ("plant8/press-a", false),
            ("plant7/press-c", false),
        ] {
            assert_eq!(client.speaks_for(&key(device)), speaks, "{device}");
        }
        assert!(read(serde_json::json!("press")).children.is_none(), "a prefix of release 0.2");
    }
}
