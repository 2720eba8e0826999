//! Parses Margo's YAML into contents, for files of Git and for requests.
//!
//! A file may have several ApplicationDeployment documents, each of any draft. One read finds all problems, and names file,
//! line, field and rule of each.

pub mod application;
mod document;
pub mod labels;
mod locate;
mod node;
mod path;
mod plain;
pub mod rollout;
pub mod tombstone;
mod yaml;

use muster_contract::{DeviceKey, SiteId};

use self::node::Findings;
use crate::content::Content;
use crate::problems::Problems;

/// Largest file that is read, in bytes. A device's whole state must fit into one message, so a useful file is far smaller.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;

const _: () = assert!(FILE_BYTES_MAX >= muster_contract::limits::MESSAGE_BYTES_MAX);

/// The devices of a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// All devices.
    Fleet,
    /// The devices of a site.
    Site(SiteId),
    /// One device.
    Device(DeviceKey),
}

/// A deployment of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The index of its document in the file, from 0.
    pub document: usize,
    /// Its content.
    pub content: Content,
}

/// Reads the deployments of one file, for `level`. Problems are added to `problems` under the name `file`, and the rest of
/// the file is still read, so the entries are complete only if no problem was added.
pub fn read(file: &str, text: &[u8], level: &Level, problems: &mut Problems) -> Vec<Entry> {
    let Some(text) = text_of(file, text, problems) else { return Vec::new() };
    let mut entries = Vec::new();
    for (at, read) in yaml::documents(text).into_iter().enumerate() {
        match read {
            Ok(value) if value.is_null() => {}
            Ok(value) => entries.extend(entry(file, text, at, &value, level, problems)),
            Err(bad) => problems.push(file, || bad.line, bad.path, bad.rule),
        }
    }
    entries
}

/// The text of a file, if it is UTF-8 and not too large.
fn text_of<'a>(file: &str, text: &'a [u8], problems: &mut Problems) -> Option<&'a str> {
    if text.len() > FILE_BYTES_MAX {
        problems.push(file, || None, "", too_long(text.len() as u64));
        return None;
    }
    let read = std::str::from_utf8(text);
    read.map_err(|error| {
        problems.push(file, || line_at(text, error.valid_up_to()), "", "is not UTF-8 text");
    })
    .ok()
}

/// The rule that a too large file breaks.
pub fn too_long(bytes: u64) -> String {
    format!("has {bytes} bytes; {FILE_BYTES_MAX} are allowed: split the file")
}

/// The line at which a document of a file starts, if the file has that document.
pub(crate) fn line_of_document(text: &[u8], document: usize) -> Option<u64> {
    locate::line_of(std::str::from_utf8(text).ok()?, document, &path::Path::default())
}

fn entry(
    file: &str,
    text: &str,
    at: usize,
    value: &serde_json::Value,
    level: &Level,
    problems: &mut Problems,
) -> Option<Entry> {
    match document::read(value, level) {
        Ok(entry) => Some(Entry { document: at, content: Content::of(entry) }),
        Err(found) => {
            push_findings(file, text, at, found, problems);
            None
        }
    }
}

/// Adds the findings about document `at` of a file, each with its line.
fn push_findings(file: &str, text: &str, at: usize, found: Findings, problems: &mut Problems) {
    for finding in found.0 {
        let line = || locate::line_of(text, at, &finding.path);
        problems.push(file, line, &finding.path, &finding.rule);
    }
}

fn line_at(text: &[u8], offset: usize) -> Option<u64> {
    let before = text.get(..offset)?;
    Some(before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1)
}

impl Level {
    /// True if `metadata.deviceId` (newest draft) names this level. The folder decides which devices get a document; a
    /// document with another `deviceId` is in the wrong folder.
    fn is_meant_by(&self, device: &str) -> bool {
        match self {
            Self::Fleet => false,
            Self::Site(site) => device.strip_suffix("/*") == Some(site.as_str()),
            Self::Device(key) => {
                device == key.device.as_str()
                    || device.split_once('/') == Some((key.site.as_str(), key.device.as_str()))
            }
        }
    }

    /// The part of a problem's text after the `metadata.deviceId` that says what is allowed.
    fn expectation(&self) -> String {
        match self {
            Self::Fleet => "names a device, but this document is for every device: omit deviceId".to_owned(),
            Self::Site(site) => {
                format!("is not '{site}/*': this document is for every device of the site; or omit deviceId")
            }
            Self::Device(key) => format!("is not '{key}', the device of this document; or omit deviceId"),
        }
    }
}
