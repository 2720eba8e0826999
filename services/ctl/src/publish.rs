//! `muster apply`, `remove`, `retire` and `publisher status`: requests to the publisher, the only ones that change
//! anything.

use std::io::{self, Read as _};
use std::path::Path;

use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::query::{ApplyRequest, Query, RemoveRequest, RetireRequest};
use muster_contract::{DeploymentId, DeviceKey};

use serde::Serialize;
use serde_json::Value;

use crate::config::ApplyArgs;
use crate::devices::with_near_devices;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// The file name that stands for standard input.
const STANDARD_INPUT: &str = "-";

/// Has a device run what a file says.
///
/// # Errors
/// When the file cannot be read, nobody answers, or the publisher refuses it.
pub async fn apply(session: &mut Session<'_>, args: ApplyArgs) -> Result<(), CtlError> {
    let documents = read(&args.file)?;
    let request = ApplyRequest { key: args.device.clone(), documents, file: Some(name(&args.file)) };
    let answer = session.hub.publisher("apply", &request).await?;
    session.show(&answer, |answer, _| render::publisher::changed(&args.device, answer))
}

/// Takes back what was applied.
///
/// # Errors
/// When nobody answers, or the publisher refuses it.
pub async fn remove(
    session: &mut Session<'_>,
    key: DeviceKey,
    id: Option<DeploymentId>,
) -> Result<(), CtlError> {
    let request = RemoveRequest { key: key.clone(), id };
    let answer = ask(session, "remove", &request, &key).await?;
    session.show(&answer, |answer, _| render::publisher::changed(&key, answer))
}

/// Takes a device out of the fleet.
///
/// # Errors
/// As [`remove`].
pub async fn retire(session: &mut Session<'_>, key: DeviceKey) -> Result<(), CtlError> {
    let request = RetireRequest { key: key.clone() };
    let answer = ask(session, "retire", &request, &key).await?;
    session.show(&answer, |answer, _| render::publisher::retired(&key, answer))
}

/// The publisher's sources.
///
/// # Errors
/// When nobody answers.
pub async fn status(session: &mut Session<'_>) -> Result<(), CtlError> {
    let answer = session.hub.publisher("status", &Query::default()).await?;
    session.show(&answer, render::publisher::status)
}

/// Asks for a change to a device that is there; a device nobody knows comes with names that are near.
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

/// The file as the publisher shall name it.
fn name(path: &Path) -> String {
    if path == Path::new(STANDARD_INPUT) { "standard input".to_owned() } else { path.display().to_string() }
}

/// Reads a file that one message can carry; of one that is longer, or has no end, no more than that.
///
/// # Errors
/// When it cannot be read, or is longer.
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
