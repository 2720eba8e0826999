//! Builds and parses every subject. The comment above each function has its shape.

mod plans;

use std::fmt;

use crate::canonical::Digest;
use crate::ids::{
    DeploymentId, DeviceKey, LabelError, LabelKey, LabelValue, SiteId, SubscriptionName, ViewName,
};

pub use self::plans::{PlansSubject, check_filters};

/// Names of the streams and the bucket.
pub mod stream {
    /// Desired state and receipts, to devices.
    pub const DOWNLINK: &str = "DOWNLINK";
    /// Reports, from devices.
    pub const UPLINK: &str = "UPLINK";
    /// Heartbeats, from devices.
    pub const PRESENCE: &str = "PRESENCE";
    /// Facts in one total order.
    pub const LEDGER: &str = "LEDGER";
    /// Views, by key.
    pub const VIEWS_BUCKET: &str = "views";
    /// Subscriptions, and the newest notice of each.
    pub const NOTICES: &str = "NOTICES";
    /// Rejected reports with their whole payload, until a person decides about them or they expire.
    pub const QUARANTINE: &str = "QUARANTINE";
    /// The stream of the bucket `http_devices`: devices that speak HTTP, and their accepted clients.
    pub const HTTP_DEVICES: &str = "KV_http_devices";
    /// Plans with their revisions, instances with their operations, and the inventory of nodes.
    pub const PLANS: &str = "PLANS";
}

/// `muster.desired.<site>.<device>` in DOWNLINK (and sourced into LEDGER).
pub fn desired(key: &DeviceKey) -> String {
    format!("muster.desired.{}.{}", key.site, key.device)
}

/// `muster.rollout.<deployment>-<file>` in DOWNLINK: the decisions about the rollouts of a deployment on the devices of one
/// `rollout.yaml`. The file is the first 16 hex digits of the SHA-256 of its path.
pub fn rollout(deployment: &DeploymentId, path: &str) -> String {
    let digest = Digest::of_bytes(path.as_bytes()).to_string();
    let hex = digest.rsplit(':').next().unwrap_or_default();
    format!("{ROLLOUT_PREFIX}{deployment}-{hex:.16}")
}

/// The decisions about all rollouts.
pub const ROLLOUTS: &str = "muster.rollout.*";
const ROLLOUT_PREFIX: &str = "muster.rollout.";

/// `muster.receipt.<site>.<device>` in DOWNLINK.
pub fn receipt(key: &DeviceKey) -> String {
    format!("muster.receipt.{}.{}", key.site, key.device)
}

/// All receipts.
pub const RECEIPTS: &str = "muster.receipt.>";

/// The device whose receipts have this subject.
pub fn device_of_receipt(subject: &str) -> Option<DeviceKey> {
    let (site, device) = subject.strip_prefix("muster.receipt.")?.split_once('.')?;
    Some(DeviceKey { site: site.parse().ok()?, device: device.parse().ok()? })
}

/// `muster.credential.<site>.<device>` in DOWNLINK.
pub fn credential(key: &DeviceKey) -> String {
    format!("muster.credential.{}.{}", key.site, key.device)
}

/// `muster.live.*.<site>.<device>`: what DOWNLINK republishes for one device, as it is stored.
pub fn live(key: &DeviceKey) -> String {
    format!("muster.live.*.{}.{}", key.site, key.device)
}

/// `muster.report.<site>.<device>`: a device publishes its reports there; UPLINK stores them under the partition.
pub fn report(key: &DeviceKey) -> String {
    format!("muster.report.{}.{}", key.site, key.device)
}

/// `muster.presence.<site>.<device>`: a device publishes its heartbeats there.
pub fn presence(key: &DeviceKey) -> String {
    format!("muster.presence.{}.{}", key.site, key.device)
}

/// `muster.report.<p>.>`: one partition of UPLINK as stored.
pub fn report_partition(partition: u16) -> String {
    format!("muster.report.{partition}.>")
}

/// `muster.presence.<p>.>`: one partition of PRESENCE as stored.
pub fn presence_partition(partition: u16) -> String {
    format!("muster.presence.{partition}.>")
}

/// `muster.query.<what>`: the query service.
pub const QUERY_PREFIX: &str = "muster.query";
/// `muster.view.<verb>`: requests about defined views: apply, remove.
pub const VIEW_PREFIX: &str = "muster.view";

/// `muster.notify.<verb>`: requests about notices: subscribe, confirm, unsubscribe, list.
pub const NOTIFY_PREFIX: &str = "muster.notify";

/// `muster.subscription.<name>` in NOTICES: a subscription to notices.
pub fn subscription(name: &SubscriptionName) -> String {
    format!("muster.subscription.{name}")
}

/// `muster.notice.<name>` in NOTICES: the newest notice of a subscription.
pub fn notice(name: &SubscriptionName) -> String {
    format!("muster.notice.{name}")
}

/// `muster.live.notice.<name>`: what NOTICES republishes for one subscription, as it is stored.
pub fn live_notice(name: &SubscriptionName) -> String {
    format!("muster.live.notice.{name}")
}

/// `muster.publisher.<verb>`: requests to the publisher: apply, decide, release, remove, retire, status, targets.
pub const PUBLISHER_PREFIX: &str = "muster.publisher";

/// `muster.planner.<verb>`: requests to the planner about plans, instances, operations and the inventory.
pub const PLANNER_PREFIX: &str = "muster.planner";

/// `muster.ingest.owner.<partition>`: the owner of the partition answers with its name.
pub fn ask_owner(partition: u16) -> String {
    format!("{INGEST_PREFIX}.owner.{partition}")
}

/// `muster.ingest.quarantine.<partition>`: requests about rejected reports.
pub fn judge_quarantine(partition: u16) -> String {
    format!("{INGEST_PREFIX}.quarantine.{partition}")
}

/// `muster.rejected.<site>.<device>` in QUARANTINE: reports that ingest rejected. Both tokens are [`NOBODY`] if
/// the sender's name is no identifier.
pub fn rejected(key: Option<&DeviceKey>) -> String {
    match key {
        Some(key) => format!("{REJECTED_PREFIX}{}.{}", key.site, key.device),
        None => format!("{REJECTED_PREFIX}{NOBODY}.{NOBODY}"),
    }
}

/// All rejected reports.
pub const REJECTED: &str = "muster.rejected.>";

/// The sender of the rejected reports with this subject: `Some(None)` if the sender's name is no identifier, `None` for any
/// other subject.
pub fn sender_of_rejected(subject: &str) -> Option<Option<DeviceKey>> {
    let (site, device) = subject.strip_prefix(REJECTED_PREFIX)?.split_once('.')?;
    if (site, device) == (NOBODY, NOBODY) {
        return Some(None);
    }
    Some(Some(DeviceKey { site: site.parse().ok()?, device: device.parse().ok()? }))
}

const REJECTED_PREFIX: &str = "muster.rejected.";

/// `muster.ingest.incident`: a service asks ingest to record an incident.
pub const REQUEST_INCIDENT: &str = "muster.ingest.incident";

/// `muster.ingest.<verb>`: requests to ingest.
pub const INGEST_PREFIX: &str = "muster.ingest";

/// Token that stands for a site or device whose real name is not an identifier. No identifier can be it.
pub const NOBODY: &str = "_";

/// Who sent a message that UPLINK or PRESENCE stored under `muster.<room>.<p>.<site>.<device>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The device, or why the subject names none.
    pub device: Result<DeviceKey, LabelError>,
    /// The subject without its partition: as the device published it.
    pub subject: String,
}

/// Parses `muster.<report|presence>.<p>.<site>.<device>`; `None` where the subject has another shape.
pub fn origin(subject: &str) -> Option<Origin> {
    let mut tokens = tokens(subject);
    let (
        Some("muster"),
        Some(room @ ("report" | "presence")),
        Some(partition),
        Some(site),
        Some(device),
        None,
    ) = (tokens.next(), tokens.next(), tokens.next(), tokens.next(), tokens.next(), tokens.next())
    else {
        return None;
    };
    partition.parse::<u16>().ok()?;
    let key = site.parse().and_then(|site| Ok(DeviceKey { site, device: device.parse()? }));
    Some(Origin { device: key, subject: ["muster.", room, ".", site, ".", device].concat() })
}

/// The tokens of a subject. They are short, so their ends are found byte by byte.
fn tokens(subject: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(subject);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = text.bytes().position(|byte| byte == b'.');
        rest = end.map(|end| &text[end + 1..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// A subject of LEDGER.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LedgerSubject {
    /// `muster.desired.<site>.<device>`
    Desired(DeviceKey),
    /// `muster.status.<site>.<device>.<deployment>`
    Status(DeviceKey, DeploymentId),
    /// `muster.device.<site>.<device>`
    Device(DeviceKey),
    /// `muster.liveness.<site>.<device>`
    Liveness(DeviceKey),
    /// `muster.deadline.<site>.<device>.<deployment>`
    Deadline(DeviceKey, DeploymentId),
    /// `muster.incident.<site>.<device>`; [`NOBODY`] twice where it is about the hub.
    Incident(Option<DeviceKey>),
    /// `muster.quarantine.<site>.<device>`; [`NOBODY`] twice where the sender's name is no identifier.
    Quarantine(Option<DeviceKey>),
    /// `muster.verdict.<site>.<device>`, of a message in quarantine; [`NOBODY`] twice as there.
    Verdict(Option<DeviceKey>),
    /// `muster.owner.<partition>.<fence>`: about no device; it changes no view.
    Owner {
        /// The partition of UPLINK.
        partition: u16,
        /// One of the partition's fences; the record of fence 0 decides who owns it.
        fence: u16,
    },
    /// `muster.hub.<partition>`: the pulse of the partition's owner, about no device.
    Hub(u16),
    /// `muster.hearing.<partition>`: whether the hub listens to the partition's devices.
    Hearing(u16),
}

impl LedgerSubject {
    /// Parses a subject; `None` where LEDGER has none of that shape.
    pub fn parse(subject: &str) -> Option<Self> {
        let mut tokens = tokens(subject);
        if tokens.next() != Some("muster") {
            return None;
        }
        let (room, site) = (tokens.next()?, tokens.next()?);
        let Some(device) = tokens.next() else { return Self::of_partition(room, site) };
        let (deployment, rest) = (tokens.next(), tokens.next());
        if rest.is_some() {
            return None;
        }
        match (room, site, device, deployment) {
            ("quarantine", NOBODY, NOBODY, None) => return Some(Self::Quarantine(None)),
            ("incident", NOBODY, NOBODY, None) => return Some(Self::Incident(None)),
            ("verdict", NOBODY, NOBODY, None) => return Some(Self::Verdict(None)),
            ("owner", partition, fence, None) => {
                return Some(Self::Owner { partition: partition.parse().ok()?, fence: fence.parse().ok()? });
            }
            _ => {}
        }
        let key = DeviceKey { site: site.parse().ok()?, device: device.parse().ok()? };
        match (room, deployment) {
            ("desired", None) => Some(Self::Desired(key)),
            ("status", Some(id)) => Some(Self::Status(key, id.parse().ok()?)),
            ("device", None) => Some(Self::Device(key)),
            ("liveness", None) => Some(Self::Liveness(key)),
            ("deadline", Some(id)) => Some(Self::Deadline(key, id.parse().ok()?)),
            ("incident", None) => Some(Self::Incident(Some(key))),
            ("quarantine", None) => Some(Self::Quarantine(Some(key))),
            ("verdict", None) => Some(Self::Verdict(Some(key))),
            _ => None,
        }
    }

    /// Subjects that end with a partition.
    fn of_partition(room: &str, partition: &str) -> Option<Self> {
        let partition = partition.parse().ok()?;
        match room {
            "hub" => Some(Self::Hub(partition)),
            "hearing" => Some(Self::Hearing(partition)),
            _ => None,
        }
    }

    /// The device it is about, where it has one.
    pub const fn device(&self) -> Option<&DeviceKey> {
        match self {
            Self::Desired(key)
            | Self::Status(key, _)
            | Self::Device(key)
            | Self::Liveness(key)
            | Self::Deadline(key, _) => Some(key),
            Self::Incident(key) | Self::Quarantine(key) | Self::Verdict(key) => key.as_ref(),
            Self::Owner { .. } | Self::Hub(_) | Self::Hearing(_) => None,
        }
    }
}

impl fmt::Display for LedgerSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut write = |room: &str, key: &DeviceKey| write!(f, "muster.{room}.{}.{}", key.site, key.device);
        match self {
            Self::Desired(key) => write("desired", key),
            Self::Status(key, id) => write("status", key).and_then(|()| write!(f, ".{id}")),
            Self::Device(key) => write("device", key),
            Self::Liveness(key) => write("liveness", key),
            Self::Deadline(key, id) => write("deadline", key).and_then(|()| write!(f, ".{id}")),
            Self::Incident(Some(key)) => write("incident", key),
            Self::Incident(None) => write!(f, "muster.incident.{NOBODY}.{NOBODY}"),
            Self::Quarantine(Some(key)) => write("quarantine", key),
            Self::Quarantine(None) => write!(f, "muster.quarantine.{NOBODY}.{NOBODY}"),
            Self::Verdict(Some(key)) => write("verdict", key),
            Self::Verdict(None) => write!(f, "muster.verdict.{NOBODY}.{NOBODY}"),
            Self::Owner { partition, fence } => write!(f, "muster.owner.{partition}.{fence}"),
            Self::Hub(partition) => write!(f, "muster.hub.{partition}"),
            Self::Hearing(partition) => write!(f, "muster.hearing.{partition}"),
        }
    }
}

/// A key of the bucket `views`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViewKey {
    /// `deployment.<id>`
    Deployment(DeploymentId),
    /// `site.<site>`
    Site(SiteId),
    /// `fleet`
    Fleet,
    /// `group.<label>.<value>`
    Group(LabelKey, LabelValue),
    /// `view.<name>`: what a definition gives.
    Defined(ViewName),
}

/// `definition.<name>` in the bucket `views`: the definition of a user-defined view. It is no view itself.
pub fn definition_key(name: &ViewName) -> String {
    format!("{DEFINITION_PREFIX}{name}")
}

/// The view that a key of the bucket defines; `None` where it defines none.
pub fn defined_by(key: &str) -> Option<ViewName> {
    key.strip_prefix(DEFINITION_PREFIX)?.parse().ok()
}

const DEFINITION_PREFIX: &str = "definition.";
/// Every definition of the bucket `views`.
pub const DEFINITIONS: &str = "definition.*";

impl ViewKey {
    /// Parses a key; `None` where the bucket has none of that shape.
    pub fn parse(key: &str) -> Option<Self> {
        match key.split_once('.') {
            None if key == "fleet" => Some(Self::Fleet),
            Some(("deployment", id)) => Some(Self::Deployment(id.parse().ok()?)),
            Some(("site", site)) => Some(Self::Site(site.parse().ok()?)),
            Some(("group", group)) => {
                let (label, value) = group.split_once('.')?;
                Some(Self::Group(label.parse().ok()?, value.parse().ok()?))
            }
            Some(("view", name)) => Some(Self::Defined(name.parse().ok()?)),
            _ => None,
        }
    }
}

impl fmt::Display for ViewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deployment(id) => write!(f, "deployment.{id}"),
            Self::Site(site) => write!(f, "site.{site}"),
            Self::Fleet => f.write_str("fleet"),
            Self::Group(label, value) => write!(f, "group.{label}.{value}"),
            Self::Defined(name) => write!(f, "view.{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_subjects_are_read_as_they_are_written() {
        for text in [
            "muster.desired.plant7.press-4",
            "muster.status.plant7.press-4.web",
            "muster.device.plant7.press-4",
            "muster.liveness.plant7.press-4",
            "muster.deadline.plant7.press-4.web",
            "muster.incident.plant7.press-4",
            "muster.incident._._",
            "muster.quarantine.plant7.press-4",
            "muster.quarantine._._",
            "muster.verdict.plant7.press-4",
            "muster.verdict._._",
            "muster.owner.3.63",
            "muster.hub.3",
            "muster.hearing.15",
        ] {
            assert_eq!(LedgerSubject::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            "muster",
            "muster.status.a.b",
            "muster.status.a.b.c.d",
            "muster.device.a",
            "muster.device.a.b.c",
            "other.device.a.b",
            "muster.device.A.b",
            "muster.device._._",
            "muster.owner.a.b",
            "muster.owner.3",
            "muster.hub",
            "muster.hub.a",
            "muster.hub.3.0",
            "muster.hearing.plant7.press-4",
            "muster.device.3",
        ] {
            assert_eq!(LedgerSubject::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_origin_of_a_report_is_its_stored_subject() {
        let known = origin("muster.report.7.plant7.press-4").unwrap();
        assert_eq!(known.device.unwrap().to_string(), "plant7/press-4");
        assert_eq!(known.subject, "muster.report.plant7.press-4");
        let unknown = origin("muster.presence.0.Plant_7.press-4").unwrap();
        assert_eq!(unknown.device.unwrap_err().text, "Plant_7");
        for bad in [
            "muster.report.plant7.press-4",
            "muster.report.x.a.b",
            "muster.report.1.a.b.c",
            "muster.status.1.a.b",
        ] {
            assert_eq!(origin(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_sender_of_a_rejected_report_is_in_its_subject() {
        let key: DeviceKey = "plant7/press-4".parse().unwrap();
        for sender in [Some(key), None] {
            assert_eq!(sender_of_rejected(&rejected(sender.as_ref())), Some(sender));
        }
        for other in ["muster.rejected.plant7", "muster.rejected.A.b", "muster.report.plant7.press-4"] {
            assert_eq!(sender_of_rejected(other), None, "{other}");
        }
    }

    #[test]
    fn view_keys_are_read_as_they_are_written() {
        for text in ["fleet", "site.plant7", "deployment.web", "group.region.north", "view.rings"] {
            assert_eq!(ViewKey::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(ViewKey::parse("site.A"), None);
        for other in
            ["other", "group.region", "group.region.a.b", "group.Region.a", "view", "definition.rings"]
        {
            assert_eq!(ViewKey::parse(other), None, "{other}");
        }
        let name = "rings".parse().unwrap();
        assert_eq!(defined_by(&definition_key(&name)), Some(name));
        assert_eq!(defined_by("view.rings"), None);
    }
}
