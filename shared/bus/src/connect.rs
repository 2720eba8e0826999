//! Connecting: waits for a server, refuses one that cannot serve.

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process is stopping.
    #[error("stopped while waiting for the NATS server at {url}")]
    Stopped {
        /// Where it was looked for.
        url: String,
    },
    /// The configuration cannot be used.
    #[error("cannot connect to NATS with {what}")]
    Config {
        /// Which setting.
        what: String,
        /// What is wrong with it.
        #[source]
        source: std::io::Error,
    },
    /// The server is too old.
    #[error("the NATS server at {url} is version {found}; {rule}")]
    TooOld {
        /// Where.
        url: String,
        /// Its version.
        found: String,
        /// Which versions serve, and what to do.
        rule: &'static str,
    },
    /// The server runs without JetStream.
    #[error(
        "the NATS server at {url} runs without JetStream; start it with `nats-server -js` or a `jetstream {{}}` block"
    )]
    NoJetStream {
        /// Where.
        url: String,
    },
    /// The server takes smaller messages than the contract allows.
    #[error(
        "the NATS server at {url} accepts messages of {found} bytes; set its max_payload to {wanted} or more"
    )]
    PayloadTooSmall {
        /// Where.
        url: String,
        /// Its limit.
        found: usize,
        /// The least that serves.
        wanted: usize,
    },
}
