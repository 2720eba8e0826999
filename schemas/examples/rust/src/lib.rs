//! A subscriber that believes nobody. `device` and `fleet` are the rules of the fold, `views` those of the views. `snapshot`
//! is what a run leaves to the next one, `ledger` reads the tail, `failure` says what goes wrong. The program is in `main`.

mod device;
mod failure;
pub mod fleet;
pub mod ledger;
pub mod snapshot;
mod views;

pub use failure::Result;
