//! Sets up the log, which goes to standard error; standard output is for data.
//!
//! Text is for people and has colours only on a terminal. JSON is one object a line, also for a panic.

use std::panic::PanicHookInfo;

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::LogFormat;

/// Precedes the configured filter: the NATS library logs errors that it also returns, and the caller logs them. A filter
/// that names the library (`async_nats=debug`) turns its lines on.
const NATS_LIBRARY_OFF: &str = "async_nats=off,";

/// The log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is malformed. A service checks its settings before.
    #[error("cannot use '{filter}' as log filter")]
    Filter {
        /// The filter.
        filter: String,
        /// The error in it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// The log is set up already.
    #[error("cannot set the log up a second time")]
    Twice(#[source] TryInitError),
}

/// Sets up the log of the whole process: once, before anything is logged.
///
/// # Errors
/// The filter is malformed, or the log is set up already.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let levels = format!("{NATS_LIBRARY_OFF}{filter}")
        .parse::<Targets>()
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(coloured()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(levels).try_init().map_err(TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Whether the log has colours: on a terminal, unless `NO_COLOR` or a similar variable forbids them.
fn coloured() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let reason = panic.payload_as_str().unwrap_or("no message");
    tracing::error!(panic.place = place, panic.reason = reason, "a thread panicked: this is a defect");
}
