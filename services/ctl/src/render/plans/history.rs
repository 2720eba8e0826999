//! Changes of PLANS, a line each.

use muster_contract::Timestamp;
use muster_contract::plans::{PlansChange, StoredPlansChange};
use serde::Deserialize as _;
use serde_json::Value;

use crate::render::colour::{DIM, styled};
use crate::render::format::clean;
use crate::render::notice::seconds;

/// The line of a change: its time, the document with its version, what was changed, and the requester.
pub(crate) fn history_line(change: &StoredPlansChange) -> String {
    let document = &change.document;
    let text = |field: &str| clean(document.get(field).and_then(Value::as_str).unwrap_or_default());
    let kind = text("kind");
    let name = match kind.as_str() {
        "Instance" => text("displayName"),
        "Node" => format!("{}/{}", text("site"), text("device")),
        _ => text("name"),
    };
    let version = document.get("version").and_then(Value::as_u64).unwrap_or_default();
    let newest = document.get("change").and_then(|newest| PlansChange::deserialize(newest).ok());
    let (at, message) = newest
        .as_ref()
        .map_or((Timestamp::UNIX_EPOCH, String::new()), |newest| (newest.at, clean(&newest.message)));
    let by =
        newest.as_ref().and_then(|newest| newest.by.as_ref()).map(|by| format!(", by {}", clean(by.label())));
    let about = styled(DIM, &format!("{} {}", seconds(at), change.seq));
    let kind = kind.to_lowercase();
    format!("{about}  {kind} {name} version {version}: {message}{}\n", by.unwrap_or_default())
}
