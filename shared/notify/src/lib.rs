//! Subscriptions and notices, for every service that sends some: the rollup of a hub, and a federation.
//!
//! ```text
//! requests ─► handler ──► NOTICES ──► register ──► notifier ──► NOTICES ──► subscribers
//!                │                                    │
//!                └──────── source (of the service) ───┘
//! ```
//!
//! The service supplies a [`NoticeSource`]: what a subscription shows now, and what it showed since. Reading order:
//! [`source`], [`register`] and [`ownership`] (who has subscribed), [`handler`] (requests), [`compose`] (a notice),
//! `webhooks` and `webhook_handler` (notices that gateways deliver),
//! [`notifier`] (when one is due), [`metrics`].
//!
//! This crate decides nothing about a device, and reads no LEDGER.

pub mod compose;
mod handler;
pub mod metrics;
mod notifier;
mod origin;
mod ownership;
pub mod register;
pub mod source;
mod webhook_handler;
mod webhooks;

pub use handler::SubscriptionHandler;
pub use notifier::Notifier;
pub use origin::Origin;
pub use register::SharedRegister;
pub use source::NoticeSource;
