//! Margo's YAML to contents: the one door for what people write, whether it comes from Git or by request.
//!
//! A file may hold several ApplicationDeployment documents, each of any draft. Everything wrong is found in one
//! reading and named by file, line, field and rule. What a device does with a document is not known here.

mod document;
mod key;
pub mod labels;
mod locate;
mod node;
mod path;
pub mod tombstone;
mod words;
mod yaml;

use muster_contract::{DeviceKey, SiteId};

use crate::content::Content;
use crate::problems::Problems;

/// Largest file that is read. A device's whole state has to fit into one message, so no honest file comes close.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;

const _: () = assert!(FILE_BYTES_MAX >= muster_contract::limits::MESSAGE_BYTES_MAX);

/// For whom a document is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For every device.
    Fleet,
    /// For the devices of a site.
    Site(SiteId),
    /// For one device.
    Device(DeviceKey),
}

/// A deployment as a file says it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Which document of the file it is, from 0.
    pub document: usize,
    /// What it says.
    pub content: Content,
}

/// Reads the deployments of one file, for `level`. What is wrong goes to `problems` under the name `file`; the rest
/// of the file is still read, so the entries are only complete where no problem was added.
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

/// The text of a file, if it is one of a size that is read.
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

/// The rule that a file of so many bytes breaks.
pub fn too_long(bytes: u64) -> String {
    format!("has {bytes} bytes; {FILE_BYTES_MAX} are allowed: split the file")
}

/// Line at which a document of a file starts, if it has that document.
pub fn line_of_document(text: &[u8], document: usize) -> Option<u64> {
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
            for finding in found.0 {
                problems.push(
                    file,
                    || locate::line_of(text, at, &finding.path),
                    &finding.path,
                    &finding.rule,
                );
            }
            None
        }
    }
}

fn line_at(text: &[u8], offset: usize) -> Option<u64> {
    let before = text.get(..offset)?;
    Some(before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1)
}

impl Level {
    /// True where `metadata.deviceId` (newest draft) names what this level is. The folder decides who gets a
    /// document; a document that says something else is in the wrong place.
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

    /// What `metadata.deviceId` may say here, after what it says.
    fn expectation(&self) -> String {
        match self {
            Self::Fleet => {
                "names a device, but this document is for every device: leave deviceId out".to_owned()
            }
            Self::Site(site) => {
                format!(
                    "is not '{site}/*': this document is for every device of the site; or leave deviceId out"
                )
            }
            Self::Device(key) => format!("is not '{key}', for which this document is; or leave deviceId out"),
        }
    }
}
