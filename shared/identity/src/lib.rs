//! Roles, rights and identities on the bus: decentralised NATS authentication as data and pure functions.
//!
//! [`roles`] names the roles, [`rights`] lists the subjects of each, and [`exchange`] the subjects that accounts share.
//! [`jwt`] signs and reads tokens; [`claims`] makes those of operator, accounts and users, and [`leaf`] those of a site with
//! its own server. [`creds`] reads and writes the text of credentials files. [`requester`] identifies a requester by the
//! header that the server writes, [`on_behalf`] the person on whose behalf a gateway asks, and [`login`] a person
//! who logs in to a gateway. [`user_registry`] records enrolled and revoked users. Nothing here reads a file, a clock or a random
//! source: keys, times and texts are arguments.

pub mod claims;
pub mod creds;
pub mod exchange;
pub mod jwt;
pub mod leaf;
pub mod login;
pub mod on_behalf;
pub mod requester;
pub mod rights;
pub mod roles;
mod user_registry;

mod template;

pub use exchange::Account;
pub use jwt::{TokenClaims, TokenError};
pub use nkeys::{KeyPair, KeyPairType};
pub use requester::Requester;
pub use rights::Rights;
pub use roles::Role;
pub use user_registry::{RegistryError, UserEntry, UserRegistry};

/// Time within which the server closes the connection of an expired or revoked identity, counted from its expiry or from
/// the server's confirmation of the revocation. The server counts expiry in whole seconds.
pub const DISCONNECT_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);
