//! The contract: what devices, services and subscribers in any language say to each other.
//!
//! Bytes are parsed once, at the entry of a service, into documents made of validated types; code that holds such a
//! document may rely on its rules. This crate has no IO, asks no clock and holds no business rule: rules live in
//! `muster-domain`, the bus in `muster-bus`.
//!
//! Reading order: [`ids`] and [`limits`], then [`subjects`], then the documents in the order in which they travel: [`desired`]
//! (with its [`constraints`], released by a [`rollout`]) → [`report`] (with its [`retry`] and its kind of [`evidence`], several [`packed`] in a message) → [`fact`] → [`view`]. Beside them are
//! [`pulse`], [`partition`], [`presence`] (which repeats a [`desired_refusal`] and the term of a [`token`]), [`receipt`], [`credential`], [`incident`], [`query`] (read by [`question`], which
//! rejects [unknown keys](keys) and suggests [similar ones](near); it names a [`commit`]), [`status`], [`why`], [`silence`],
//! [`lag`], [`validity`], a [`point`] of the past, [`history`], [`changes`], [`actions`], the [`timeline`] and [`notify`], the address of a [webhook](WebhookUrl), the records
//! of gateways ([`http_device`]), and the [`plans`] of the planner. [`decode`] reads documents, [`field_path`] finds
//! the line of a field, [`canonical`] computes digests.

pub mod actions;
pub mod application;
pub mod canonical;
pub mod changes;
pub mod checked;
mod commit;
pub mod constraints;
pub mod credential;
pub mod decode;
pub mod defined;
pub mod desired;
pub mod desired_refusal;
pub mod dictionary;
mod duration_text;
pub mod evidence;
pub mod explained;
pub mod fact;
pub mod field_path;
pub mod groups;
pub mod headers;
pub mod history;
pub mod host;
pub mod http_device;
pub mod ids;
pub mod incident;
mod json_text;
pub mod keys;
pub mod labels;
pub mod lag;
pub mod limits;
pub mod manifest;
pub mod metadata;
pub mod near;
pub mod notify;
mod omit;
mod output;
pub mod ownership;
pub mod packages;
pub mod packed;
pub mod partition;
pub mod parts;
pub mod plans;
mod point;
pub mod presence;
pub mod profile;
pub mod pulse;
pub mod quarantine;
pub mod query;
pub mod question;
mod ranges;
pub mod receipt;
pub mod removal_jobs;
pub mod report;
mod requested_by;
pub mod retry;
pub mod rollout;
pub mod silence;
pub mod standing_part;
pub mod state;
pub mod status;
pub mod subjects;
pub mod timeline;
pub mod token;
pub mod validity;
pub mod version;
pub mod view;
pub mod why;

mod liveness;
mod text;
mod webhook_url;

pub use commit::{CommitName, CommitNameError};
pub use decode::{Document, Refusal};
pub use ids::{
    CapabilityName, ClusterName, ComponentName, Counter, DeploymentId, DeviceId, DeviceKey, Epoch,
    Generation, HubName, InstanceName, LabelError, LabelKey, LabelValue, Namespace, OperationId, PlanName,
    RevisionId, Seq, SiteId, SubscriptionName, ViewName, WaveName,
};
pub use jiff::Timestamp;
pub use ranges::SeqRanges;
pub use requested_by::{OnBehalfOf, RequestedBy};
pub use state::State;
pub use webhook_url::{WebhookUrl, WebhookUrlError};
