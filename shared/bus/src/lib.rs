//! The bus: NATS JetStream as Muster uses it, and the only crate that names `async_nats`.
//!
//! Reading order: [`config`] and [`connect`] (a [`Bus`] and its [`Link`]), [`topology`], [`converge`] and [`upgrade`]
//! (streams as data), [`message`] and [`event`], then the ways in ([`publish`], [`window`]) and the ways out ([`read`],
//! [`replay`], [`deliveries`] with [`sounding`], [`views`] with [`held`] and [`board`], [`notices`], [`mirror`] (its consumers: `mirror_consumers`) with
//! [`keeper`], [`connections`]), and [`request`] with [`serve`] (what each requester may take of it: [`shares`]) and [`answering`]. It moves
//! bytes and positions; it parses no document
//! (of a view it reads which one it is) and holds no rule of the domain.

pub mod answering;
pub mod board;
pub mod bus;
pub mod config;
pub mod connect;
pub mod connections;
pub mod converge;
pub mod creds;
pub mod deliveries;
mod discovery;
pub mod event;
pub mod health;
pub mod held;
pub mod incident;
pub mod keeper;
pub mod link;
pub mod login;
pub mod message;
pub mod mirror;
mod mirror_consumers;
pub mod notices;
pub mod publish;
pub mod read;
pub mod replay;
pub mod request;
pub mod serve;
pub mod shares;
pub mod sounding;
pub mod topology;
pub mod upgrade;
pub mod version;
pub mod views;
pub mod window;
pub mod wire;

mod batch;
mod heal;
mod pull;
mod renew;
mod replies;
mod requester;

pub use answering::{Answering, Question, Questions};
pub use board::{Board, Fate, LEARN_EVERY, Reader, WRITE_INTERVAL, Write};
pub use bus::Bus;
pub use config::BusConfig;
pub use connect::ConnectError;
pub use connections::{Connection, ConnectionEvent, ConnectionEvents, ConnectionId};
pub use converge::{Difference, TopologyError};
pub use deliveries::{Deliveries, PartitionFloor, UplinkPurger};
pub use event::Trace;
pub use health::LinkHealth;
pub use held::{Decision, Held, Signed, Written};
pub use incident::{IncidentReporter, IncidentRequests};
pub use keeper::{Keeper, KeeperMetrics};
pub use link::Link;
pub use login::{ClientCertificate, Login};
pub use message::{Delivery, Headers, Outgoing, Stored};
pub use mirror::{MIRRORED, MirrorMemory, MirrorSettings, MirrorState};
pub use muster_identity::{Requester, Role};
pub use notices::{NoticeEntry, NoticeGone, NoticeRoom};
pub use publish::{PublishError, PublishErrorKind};
pub use read::{ReadError, StreamState, Subscription};
pub use replay::{Replay, Start};
pub use request::RequestError;
pub use serve::{Call, EndpointSpec, Fault, ServeError, ServiceSpec, Serving};
pub use shares::{Place, Places, RequesterBounds};
pub use sounding::Sounding;
pub use upgrade::StreamShape;
pub use views::{ViewEntry, ViewWatch};
pub use window::Window;
pub use wire::{ApiError, NoAnswer};
