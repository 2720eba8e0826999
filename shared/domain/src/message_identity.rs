//! Identifies a quarantined message among those of its device.

use muster_contract::{Epoch, Seq, Timestamp};

/// When the message was stored, and its number if it has one. The same wherever and however often LEDGER holds its fact.
pub(crate) type MessageIdentity = (Timestamp, Option<(Epoch, Seq)>);
