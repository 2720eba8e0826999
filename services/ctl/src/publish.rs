//! `muster apply`, `remove`, `retire` and `publisher status`: requests to the publisher.

use std::io::{self, Read as _};
use std::path::Path;

use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::query::{ApplyRequest, PublisherQuery, RemoveRequest, RetireRequest};
use muster_contract::{DeploymentId, DeviceKey};

use serde::Serialize;
use serde_json::Value;

use crate::config::ApplyArgs;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;
use crate::suggestions::with_near_devices;

/// The file name of standard input.
const STANDARD_INPUT: &str = "-";

/// Requests the deployments of a file for a device.
///
/// # Errors
/// The file cannot be read, no publisher answers, or it refuses the request.
pub(crate) async fn apply(session: &mut Session<'_>, args: ApplyArgs) -> Result<(), CtlError> {
    let documents = read(&args.file)?;
    let (key, file) = (args.device.resolved()?, name(&args.file));
    let request = ApplyRequest { key: key.clone(), documents, file: Some(file) };
    let answer = session.hub.publisher("apply", &request).await?;
    session.show(&answer, |answer, _| render::publisher::changed(&key, answer))
}

/// Removes requested deployments.
///
/// # Errors
/// No publisher answers, or it refuses the request.
pub(crate) async fn remove(
    session: &mut Session<'_>,
    key: DeviceKey,
    id: Option<DeploymentId>,
) -> Result<(), CtlError> {
    let request = RemoveRequest { key: key.clone(), id };
    let answer = ask(session, "remove", &request, &key).await?;
    session.show(&answer, |answer, _| render::publisher::changed(&key, answer))
}

/// Removes a device from the fleet.
///
/// # Errors
/// As [`remove`].
pub(crate) async fn retire(session: &mut Session<'_>, key: DeviceKey) -> Result<(), CtlError> {
    let request = RetireRequest { key: key.clone() };
    let answer = ask(session, "retire", &request, &key).await?;
    session.show(&answer, |answer, _| render::publisher::retired(&key, answer))
}

/// Shows the status of the publisher.
///
/// # Errors
/// No publisher answers.
pub(crate) async fn status(session: &mut Session<'_>) -> Result<(), CtlError> {
    let answer = session.hub.publisher("status", &PublisherQuery::default()).await?;
    session.show(&answer, render::publisher::status)
}

/// Requests a change of a known device. The error for an unknown device suggests similar names.
async fn ask<T: Serialize>(
    session: &Session<'_>,
    verb: &'static str,
    request: &T,
    key: &DeviceKey,
) -> Result<Value, CtlError> {
    match session.hub.publisher(verb, request).await {
        Ok(answer) => Ok(answer),
        Err(error) => Err(with_near_devices(session, error, key).await),
    }
}

/// The name of the file in the publisher's errors.
fn name(path: &Path) -> String {
    if path == Path::new(STANDARD_INPUT) { "standard input".to_owned() } else { path.display().to_string() }
}

/// Reads a file that fits into one message. It stops beyond that size, because a file may have no end.
///
/// # Errors
/// It cannot be read, or it does not fit.
pub(crate) fn read(path: &Path) -> Result<String, CtlError> {
    let limit = MESSAGE_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = if path == Path::new(STANDARD_INPUT) {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    let unreadable = |source| CtlError::File { path: path.to_owned(), source };
    if read.map_err(unreadable)? > MESSAGE_BYTES_MAX {
        return Err(CtlError::FileTooLarge { path: path.to_owned(), limit: MESSAGE_BYTES_MAX });
    }
    String::from_utf8(bytes).map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error)))
}
