//! Shared parts of the examples in Rust: the connection ([`hub`]), the numbers and reports of a device ([`outbox`]), a
//! fold of LEDGER by a label ([`by_label`]), and the digest of a view ([`digest`]). Each example is a program in `src/bin`.

pub mod by_label;
pub mod digest;
pub mod hub;
pub mod outbox;
