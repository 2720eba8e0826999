//! A secured hub under attack: twenty good devices report while one device floods the hub or one reader abuses it.
//!
//! [`hub`] starts the server, the services and the devices; [`good`] reports as a good device does and records when each
//! report reaches LEDGER and its view; [`filler`] fills LEDGER; [`client`] connects an attacker with its own credentials; [`device_floods`] and
//! [`reader_floods`] attack; [`memory`] samples resident memory; [`trial`] runs one attack and gives its [`outcome`];
//! [`bounds`] says what has to hold. The bench `hostile` measures the latencies, the test `hostile` asserts the counts.

pub mod bounds;
pub mod client;
pub mod device_floods;
pub mod filler;
pub mod flood;
pub mod good;
pub mod hub;
pub mod memory;
pub mod outcome;
pub mod reader_floods;
pub mod reader_tricks;
pub mod trial;
