//! Brings the server to the topology: creates what is missing, reports what differs, changes nothing.

use crate::bus::Bus;

/// A stream or consumer that exists in another shape than the contract's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `stream UPLINK`, `consumer UPLINK/p7`.
    pub asset: String,
    /// The server's name of the field.
    pub field: String,
    /// The contract's value, as JSON.
    pub wanted: String,
    /// The server's value, as JSON.
    pub found: String,
}

/// Why the topology does not stand.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Some of it exists in another shape.
    #[error("the NATS server holds another topology")]
    Differs(Vec<Difference>),
}

impl Bus {
    /// Creates every missing stream, consumer and bucket; reports those of another shape and changes none.
    pub async fn converge(&self) -> Result<(), TopologyError> {
        std::future::pending().await
    }
}
