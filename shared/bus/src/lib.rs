//! NATS JetStream as Muster uses it. This is the only crate that names `async_nats`.
//!
//! Reading order: [`config`] and [`connect`] (a [`Bus`] and its [`Link`]); [`topology`], [`converge`] and [`upgrade`]
//! (streams as data); [`message`] and [`event`]; publishing ([`publish`], [`window`]); reading ([`read`], [`replay`],
//! [`deliveries`] with `ack` and [`consumer_progress`]); the bucket of views ([`views`], [`cached_entry`],
//! [`view_writer`], [`QueryMetrics`]); [`notices`]; mirrors ([`mirror`] and [`keeper`]); [`connections`]; copies of whole streams ([`snapshot`]); requests ([`request`], [`serve`]
//! with [`permits`], [`responder`]). The crate moves bytes and positions. It parses no document, except the identity of a
//! view, and holds no rule of the domain.

mod bus;
mod cached_entry;
pub mod config;
mod connect;
mod connections;
mod consumer_progress;
mod converge;
pub mod creds;
pub mod deliveries;
pub mod event;
mod health;
mod incident;
mod keeper;
mod last_received;
mod link;
mod login;
mod message;
mod mirror;
mod notices;
mod packages;
mod permits;
pub mod publish;
mod read;
mod replay;
mod request;
mod responder;
mod serve;
mod snapshot;
pub mod topology;
pub mod unacknowledged;
mod upgrade;
pub mod version;
mod view_writer;
mod views;
mod window;
pub mod wire;

mod ack;
mod batch;
mod discovery;
mod mirror_consumers;
mod pull;
mod query_metrics;
mod read_error;
mod renew;
mod replies;
mod requester;
mod retry_delay;
mod service_spec;

pub use ack::UplinkPurger;
pub use bus::Bus;
pub use cached_entry::{CachedEntry, EntryAction, ViewIdentity, WriteResult};
pub use config::BusConfig;
pub use connect::ConnectError;
pub use connections::{Connection, ConnectionEvent, ConnectionEvents, ConnectionId};
pub use consumer_progress::ConsumerProgress;
pub use converge::{Difference, TopologyError};
pub use deliveries::{Deliveries, PartitionFloor};
pub use event::Trace;
pub use health::LinkHealth;
pub use incident::{IncidentReporter, IncidentRequests};
pub use keeper::{Keeper, KeeperMetrics};
pub use last_received::LastReceived;
pub use link::Link;
pub use login::{ClientCertificate, Login};
pub use message::{Delivery, Headers, Outgoing, Stored};
pub use mirror::{MIRRORED, MirrorMemory, MirrorSettings, MirrorState};
pub use muster_identity::{Requester, Role};
pub use notices::{NoticeAbsence, NoticeEntry, NoticeKind};
pub use permits::{Permit, Permits, RequesterBounds};
pub use publish::{PublishError, PublishErrorKind};
pub use query_metrics::{AnswerKind, QueryMetrics, ViewResult};
pub use read::{MirrorProgress, StreamEnd, StreamState, Subscription};
pub use read_error::ReadError;
pub use replay::{Replay, Start};
pub use request::RequestError;
pub use responder::{Question, Questions, Responder};
pub use serve::{Call, ServeError, Serving};
pub use service_spec::{EndpointSpec, Fault, ServiceSpec, with_lag};
pub use snapshot::{SnapshotError, SnapshotHead, SnapshotReader, SnapshotWriter};
pub use upgrade::StreamShape;
pub use view_writer::{
    BUCKET_READ_INTERVAL, EntryReader, ViewWrite, ViewWriter, WRITE_INTERVAL, WriteOutcome,
};
pub use views::{ViewEntry, ViewWatch};
pub use window::Window;
pub use wire::{ApiError, NoAnswer};
