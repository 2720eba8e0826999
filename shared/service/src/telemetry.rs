//! The log: where it goes and how it looks. It goes to standard error; standard output is for data.
//!
//! Text is for people, coloured only on a terminal; JSON is one object a line, panics included. Metrics are in
//! [`crate::health`].

use std::panic::PanicHookInfo;

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::LogFormat;

/// Before the person's filter: the NATS library logs as errors what it also hands over, and is then logged a second
/// time. Whoever names it (`async_nats=debug`) gets its lines.
const QUIET: &str = "async_nats=off,";

/// Why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter does not parse; settings are checked before, so only other callers meet this.
    #[error("cannot use '{filter}' as log filter")]
    Filter {
        /// The filter given.
        filter: String,
        /// Where it is wrong.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// There is a log already.
    #[error("cannot set the log up a second time")]
    Twice(#[source] TryInitError),
}

/// Sets up the log of the whole process: once, before anything is logged.
///
/// # Errors
/// When the filter does not parse, or there is a log already.
pub fn init(format: LogFormat, filter: &str) -> Result<(), Error> {
    let filter = EnvFilter::builder()
        .parse(format!("{QUIET}{filter}"))
        .map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => log.with_ansi(coloured()).finish().try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).finish().try_init(),
    };
    set.map_err(Error::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// On a terminal, unless `NO_COLOR` or the like says otherwise.
fn coloured() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let reason = panic.payload_as_str().unwrap_or("no message");
    tracing::error!(panic.place = place, panic.reason = reason, "a thread panicked: this is a defect");
}
