//! `muster support`: one file for a person who helps, with the hub's own answers and without secrets.
//!
//! It asks the hub what it may ask, and writes down what has no answer, so it works on a hub that is broken. Every text goes
//! through [`redact`]; keys, credentials, environments and desired states are never read. [`bundle`] bounds the size.

mod bundle;
mod redact;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::Bus;
use muster_contract::query::{PublisherQuery, Query};
use muster_service::VERSION;
use muster_service::clock::SystemClock;
use muster_service::error::chain;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::bundle::{Bundle, PART_BYTES_MAX};
use crate::ask::Hub;
use crate::backup::BackupContext;
use crate::config::SupportArgs;
use crate::error::CtlError;
use crate::session::Session;
use crate::{reach, render, restore};

/// Time one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The first page of the file.
const ABOUT: &str = "Answers of a Muster hub about itself, for support. Secrets are left out: read it before you send it.\n\
                     errors.txt lists what could not be asked, read or kept whole.\n";

/// The contents of the file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SupportResult {
    /// The file.
    pub file: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// The names of its parts.
    pub parts: Vec<String>,
    /// Parts that could not be asked for, read or kept whole.
    pub errors: Vec<String>,
}

/// Writes the file.
///
/// # Errors
/// The file cannot be written.
pub(crate) async fn run(context: &mut BackupContext<'_>, args: &SupportArgs) -> Result<(), CtlError> {
    let output = &args.output;
    let failed = |source| CtlError::Write { path: output.clone(), source };
    let mut bundle = Bundle::create(output, context.clock.now().as_second()).map_err(failed)?;
    let made = json!({
        "muster": VERSION, "createdAt": context.clock.now(),     });
    bundle.add("about.txt", ABOUT).map_err(failed)?;
    bundle.add("version.json", &pretty(&made)).map_err(failed)?;
    let connected = match context.connection.check() {
        Ok(connection) => reach::connect(&connection).await.map_err(|error| chain(&error)),
        Err(error) => Err(chain(&error)),
    };
    match connected {
        Ok(bus) => {
            let parts = hub_parts(context, bus).await;
            parts.into_iter().try_for_each(|(name, part)| bundle.add_result(&name, part)).map_err(failed)?;
        }
        Err(error) => bundle.note(&format!("hub: {error}")),
    }
    for address in &args.metrics {
        for page in ["ready", "metrics"] {
            let text = http(address, page).await.map_err(|error| error.to_string());
            let name = format!("services/{}/{page}.txt", file_name(address));
            bundle.add_result(&name, text).map_err(failed)?;
        }
    }
    for path in &args.log {
        let name = format!("logs/{}", file_name(&path.display().to_string()));
        let text = tail(path).map_err(|error| error.to_string());
        bundle.add_result(&name, text).map_err(failed)?;
    }
    let (bytes, parts, errors) = bundle.finish().map_err(failed)?;
    let result = SupportResult { file: output.clone(), bytes, parts, errors };
    context.show(&result, |result, _| render::support::written(result))
}

/// The hub's answers: streams and consumers as its server has them, and the status of its services.
async fn hub_parts(context: &mut BackupContext<'_>, bus: Bus) -> Vec<(String, Result<String, String>)> {
    let mut parts = Vec::new();
    for name in restore::streams() {
        for (what, verb) in [("stream", "STREAM.INFO"), ("consumers", "CONSUMER.LIST")] {
            let subject = format!("$JS.API.{verb}.{name}");
            let answer = bus.request(&subject, Bytes::from_static(b"{}"), ANSWER_TIMEOUT);
            let answer = answer.await.map_err(|error| chain(&error));
            parts.push((format!("streams/{name}.{what}.json"), answer.and_then(|bytes| reformatted(&bytes))));
        }
    }
    let hub = Hub::new(bus, ANSWER_TIMEOUT);
    for what in ["fleet", "deployments", "devices", "incidents"] {
        let answer = hub.query(what, &Query::default()).await;
        parts.push((
            format!("answers/{what}.json"),
            answer.map(|answer| pretty(&answer)).map_err(|error| chain(&error)),
        ));
    }
    let publisher = hub.publisher("status", &PublisherQuery::default()).await;
    let publisher = publisher.map(|answer| pretty(&answer)).map_err(|error| chain(&error));
    parts.push(("answers/publisher.json".to_owned(), publisher));
    let clock = Arc::new(SystemClock);
    let session = Session { hub, format: context.format, terminal: context.terminal, clock, then: None };
    let report = restore::report(&session).await;
    parts.push(("restore.json".to_owned(), Ok(pretty(&report))));
    parts
}

fn pretty<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn reformatted(bytes: &[u8]) -> Result<String, String> {
    serde_json::from_slice::<Value>(bytes).map(|value| pretty(&value)).map_err(|error| error.to_string())
}

/// A page of a service's HTTP.
async fn http(address: &str, page: &str) -> io::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        // HTTP/1.0: the server closes the connection after the answer and never sends it in chunks.
        stream.write_all(format!("GET /{page} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.take(PART_BYTES_MAX).read_to_end(&mut bytes).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    timeout(ANSWER_TIMEOUT, asked).await?
}

/// The end of a file.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(PART_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(PART_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A name for a file of an address or path.
fn file_name(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    text.trim_start_matches('/').chars().map(safe).collect()
}
