//! Shared parts of the examples in Rust: the connection ([`hub`]), the numbers and reports of a device ([`outbox`]), and a
//! fold of LEDGER by a label ([`by_label`]). Each example is a program in `src/bin`.

pub mod by_label;
pub mod hub;
pub mod outbox;
