//! The rights and limits of each role in the form that an account's token has beside the role's signing key.

use muster_contract::limits::DEVICE_MESSAGE_BYTES_MAX;
use muster_contract::rollout::CHECK_TIMEOUT;
use serde_json::{Value, json};

use crate::roles::{Role, UNLIMITED};

/// Subscriptions of a device: replies, live documents, and some more for other clients.
const DEVICE_SUBSCRIPTIONS_MAX: i64 = 16;
/// Subscriptions of one connection of a viewer: many times what `muster watch` opens.
const VIEWER_SUBSCRIPTIONS_MAX: i64 = 64;
/// Subscriptions of one connection of a program that follows many subjects.
const READER_SUBSCRIPTIONS_MAX: i64 = 256;
/// Bytes of one message of a role that sends only requests, or answers to checks and hooks.
const REQUEST_BYTES_MAX: i64 = 64 * 1024;

impl Role {
    /// Its rights and limits, in the form of an account's token, beside the role's signing key.
    pub(crate) fn template(self) -> Value {
        let filled = self.rights().filled(&[
            ("site", "{{tag(site)}}"),
            ("device", "{{tag(device)}}"),
            ("key", "{{subject()}}"),
        ]);
        let (subscriptions, payload) = match self {
            Self::Device => (DEVICE_SUBSCRIPTIONS_MAX, DEVICE_MESSAGE_BYTES_MAX as i64),
            Self::Viewer | Self::Approver | Self::Checker => (VIEWER_SUBSCRIPTIONS_MAX, REQUEST_BYTES_MAX),
            Self::Subscriber => (READER_SUBSCRIPTIONS_MAX, REQUEST_BYTES_MAX),
            // Its requests name up to a thousand devices.
            Self::Planner => (VIEWER_SUBSCRIPTIONS_MAX, UNLIMITED),
            // An operator's requests carry documents, and a gateway's name up to a thousand devices.
            Self::Gateway | Self::Operator => (READER_SUBSCRIPTIONS_MAX, UNLIMITED),
            Self::Publisher
            | Self::Margo
            | Self::Ingest
            | Self::Rollup
            | Self::Renewer
            | Self::Keeper
            | Self::Scheduler
            | Self::Packager
            | Self::Maintainer => (UNLIMITED, UNLIMITED),
        };
        let mut template = json!({
            "pub": { "allow": filled.publish }, "sub": { "allow": filled.subscribe },
            "subs": subscriptions, "data": UNLIMITED, "payload": payload,
            "allowed_connection_types": ["STANDARD", "WEBSOCKET"],
        });
        // The server reads an empty list as a right to every subject.
        if filled.publish.is_empty() {
            template["pub"]["deny"] = json!([">"]);
        }
        if self.answers_questions() {
            template["resp"] = json!({ "max": 1, "ttl": CHECK_TIMEOUT.as_nanos() as u64 });
        }
        template
    }
}
