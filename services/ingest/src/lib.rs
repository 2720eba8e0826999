//! Ingest turns the reports of devices into facts in LEDGER.
//!
//! ```text
//!  UPLINK ──► report_reader ──────┐                                          ┌─► ledger_publisher ► LEDGER
//!  PRESENCE ► heartbeat_reader ───┼─► consume: session, domain's IntakeState ┤
//!  DOWNLINK ► desired ────────────┘      ▲                                   └─► receipts ► DOWNLINK
//!                                        └── restore ◄── LEDGER
//! ```
//!
//! One task for each partition owns all state of its devices. It shares only the acknowledged reports, under a lock, with the
//! task that removes them from UPLINK (`trim`). LEDGER is the only durable state: ingest rebuilds its own from LEDGER at the
//! start, sooner with a snapshot, and reads LEDGER again whenever the outcome of a publication is unknown. Ingest acknowledges a
//! report after LEDGER has confirmed everything that follows from it.
//!
//! Reading order: [`session`] (the order of effects, without a bus), `consume` (the driver of the session over the bus), then the
//! inputs (`report_reader`, `heartbeat_reader`, `desired`, [`reassert_reader`]), the outputs ([`ledger_publisher`], `message`),
//! the owner of a partition ([`ownership`]), the tasks beside it (`trim`, [`restore`], `follow`, [`snapshot`], `guard`,
//! `incidents`, `quarantine_alarm`, `verify`, `room`, `watcher`, `lag`), and the composition ([`app`]). The rules are `muster_domain::intake`.

pub mod app;
pub mod config;
mod consume;
mod desired;
mod error;
mod follow;
mod guard;
mod heartbeat_reader;
mod incidents;
mod lag;
pub mod ledger_publisher;
pub mod limits;
mod message;
pub mod metrics;
pub mod ownership;
mod partitions;
mod quarantine_alarm;
pub mod reassert_reader;
mod report_reader;
pub mod restore;
mod room;
pub mod session;
pub mod snapshot;
mod trim;
mod verify;
mod watcher;

pub use consume::TAKEN_WITHIN;
