//! Who may do what on the bus: decentralised NATS identities as data and pure functions.
//!
//! [`roles`] lists the rights of every role, in one place. [`jwt`] is the signed envelope, [`claims`] what stands in it
//! for an operator, an account and a user, [`leaf`] in those of a site with a server of its own; [`creds`] reads and
//! writes credentials files. [`roster`] remembers whom an operator let in and put out. Nothing here reads a file, a clock
//! or a source of chance: keys, times and texts are arguments.

pub mod claims;
pub mod creds;
pub mod jwt;
pub mod leaf;
pub mod roles;
pub mod roster;

pub use jwt::{Known, TokenError};
pub use nkeys::{KeyPair, KeyPairType};
pub use roles::{Rights, Role};
pub use roster::{Entry, Roster, RosterError};

/// Time within which the server ends the connection of an expired or revoked identity: after its expiry, or after the
/// server confirmed the revocation. The server needs a moment for each and counts expiry in whole seconds.
pub const OUT_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);
