//! Who may do what on the bus: decentralised NATS identities as data and pure functions.
//!
//! [`roles`] names the roles, [`rights`] lists what each may publish and subscribe, [`exchange`] what crosses from one
//! account to another. [`jwt`] is the signed envelope, [`claims`] what stands in it for an operator, an account and a
//! user, [`leaf`] in those of a site with a server of its own; [`creds`] reads and writes credentials files. [`requester`]
//! reads who asks from the header that the server writes. [`roster`] remembers who is enrolled and who is revoked. Nothing
//! here reads a file, a clock or a source of chance: keys, times and texts are arguments.

pub mod claims;
pub mod creds;
pub mod exchange;
pub mod jwt;
pub mod leaf;
pub mod requester;
pub mod rights;
pub mod roles;
pub mod roster;

pub use exchange::Account;
pub use jwt::{Known, TokenError};
pub use nkeys::{KeyPair, KeyPairType};
pub use requester::Requester;
pub use rights::Rights;
pub use roles::Role;
pub use roster::{Entry, Roster, RosterError};

/// Time within which the server ends the connection of an expired or revoked identity: after its expiry, or after the
/// server confirmed the revocation. The server needs a moment for each and counts expiry in whole seconds.
pub const OUT_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);
