//! Packages in the hub's object store: addresses `nats://packages/NAME`, subjects of the bucket, and the record of an object, in the
//! format of NATS (ADR-20), so that other clients list and read the bucket. Reads and writes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::canonical::Digest;
use crate::limits::{
    PACKAGE_BYTES_MAX, PACKAGE_CHUNK_BYTES, PACKAGE_CHUNK_BYTES_MAX, PACKAGE_NAME_CHARS_MAX,
};

/// The buckets that may hold packages. A device's rights name each, and the server does not read desired states, so there is
/// one for all.
pub const BUCKETS: [&str; 1] = ["packages"];
/// The stream of the bucket, named by the convention of NATS's object store.
pub const STREAM: &str = "OBJ_packages";
/// The subjects of all records of objects.
pub const RECORDS: &str = "$O.packages.M.*";
/// The subjects of all chunks.
pub const CHUNKS: &str = "$O.packages.C.*";
/// Sets of chunks that an object may have: one that its record names, and one that is being written.
pub const SLOTS: u8 = 2;

/// The attribute of a record with the person for whom a gateway has written it, as JSON.
const WRITTEN_BY: &str = "muster-written-by";
const SCHEME: &str = "nats://";
const DIGEST_PREFIX: &str = "SHA-256=";
/// Characters of the id of a set of chunks.
const ID_CHARS: usize = 22;

/// Why an address or a name names no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ObjectNameError(pub &'static str);

/// The name of an object: 1 to 128 letters, digits and `._-/`, with no empty part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(String);

impl ObjectName {
    /// The name in an address `nats://BUCKET/NAME`; none if it is an address of another scheme.
    ///
    /// # Errors
    /// The bucket is none that holds packages, or the name breaks its rule.
    pub fn of_address(address: &str) -> Option<Result<Self, ObjectNameError>> {
        let rest = address.strip_prefix(SCHEME)?;
        let (bucket, name) = rest.split_once('/').unwrap_or((rest, ""));
        if !BUCKETS.contains(&bucket) {
            return Some(Err(ObjectNameError(
                "the hub keeps packages in the bucket packages: nats://packages/NAME",
            )));
        }
        Some(name.parse())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its address.
    pub fn address(&self) -> String {
        format!("{SCHEME}{}/{}", BUCKETS[0], self.0)
    }

    /// `$O.packages.M.<base64 of the name>`: the record of the object.
    pub fn record_subject(&self) -> String {
        RECORDS.replace('*', &URL_SAFE.encode(&self.0))
    }

    /// The id of one of its sets of chunks: the same for each attempt to write it, so that an attempt replaces what an earlier one left.
    pub fn chunks_id(&self, slot: u8) -> String {
        let hash = Sha256::digest(format!("{}\n{slot}", self.0));
        hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..ID_CHARS].to_owned()
    }

    /// The name of the signature beside it.
    #[must_use]
    pub fn signature(&self, format: SignatureFormat) -> Self {
        Self(format!("{}{}", self.0, format.ending()))
    }
}

/// The format of a signature over an archive, which lies beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SignatureFormat {
    /// Base64, as `cosign sign-blob` writes it.
    Cosign,
    /// OpenPGP packets, as `gpg --detach-sign` writes them, armored or binary.
    OpenPgp,
}

impl SignatureFormat {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Cosign, Self::OpenPgp];

    /// The end of a signature's name, after the name of the archive.
    #[must_use]
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Cosign => ".sig",
            Self::OpenPgp => ".asc",
        }
    }
}

impl FromStr for ObjectName {
    type Err = ObjectNameError;
    fn from_str(name: &str) -> Result<Self, ObjectNameError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
        let is_short = name.len() <= PACKAGE_NAME_CHARS_MAX;
        if is_short && name.bytes().all(is_allowed) && name.split('/').all(|part| !part.is_empty()) {
            return Ok(Self(name.to_owned()));
        }
        Err(ObjectNameError(
            "the name of a package has 1 to 128 letters, digits and ._-/, with no empty part, such as plant/web-2.4.0.tar.gz",
        ))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `$O.packages.C.<id>`: the chunks of a set.
pub fn chunk_subject(id: &str) -> String {
    CHUNKS.replace('*', id)
}

/// The person for whom a gateway has written a record. Every device reads records, so it has no name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageWriter {
    /// The person's key, as in the records of changes.
    pub key: String,
    /// The role in which the person logged in.
    pub role: String,
}

/// The record of an object. Unknown fields are of other clients and are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// Its name.
    pub name: String,
    /// The bucket.
    #[serde(default)]
    pub bucket: String,
    /// The id of its chunks.
    #[serde(default)]
    pub nuid: String,
    /// Its bytes.
    #[serde(default)]
    pub size: u64,
    /// Its chunks.
    #[serde(default)]
    pub chunks: u64,
    /// Its digest, as NATS writes it: `SHA-256=` and base64.
    #[serde(default)]
    pub digest: String,
    /// True if the object was removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// When the record was written; the time of its message counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mtime: String,
    /// Its settings.
    #[serde(default)]
    pub options: ObjectOptions,
    /// Attributes of its writer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// The settings of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectOptions {
    /// Bytes of each chunk but the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_chunk_size: Option<u64>,
    /// Another object that this one stands for; packages have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<serde_json::Value>,
}

impl ObjectRecord {
    /// The record of an object whose chunks are in a slot.
    pub fn new(name: &ObjectName, slot: u8, digest: &Digest, size: u64, chunks: u64, mtime: String) -> Self {
        Self {
            name: name.to_string(),
            bucket: BUCKETS[0].to_owned(),
            nuid: name.chunks_id(slot),
            size,
            chunks,
            digest: format!("{DIGEST_PREFIX}{}", URL_SAFE.encode(digest.as_bytes())),
            deleted: false,
            mtime,
            options: ObjectOptions { max_chunk_size: Some(PACKAGE_CHUNK_BYTES as u64), link: None },
            metadata: BTreeMap::new(),
        }
    }

    /// The record of the same object after its removal.
    #[must_use]
    pub fn removed(self, mtime: String) -> Self {
        Self { deleted: true, size: 0, chunks: 0, digest: String::new(), mtime, ..self }
    }

    /// The same record, written for a person or for nobody else.
    #[must_use]
    pub fn written_by(mut self, writer: Option<&PackageWriter>) -> Self {
        self.metadata.remove(WRITTEN_BY);
        let text = writer.and_then(|writer| serde_json::to_string(writer).ok());
        self.metadata.extend(text.map(|text| (WRITTEN_BY.to_owned(), text)));
        self
    }

    /// The person for whom a gateway has written the record. Every packager may write any record, so this proves no identity.
    pub fn writer(&self) -> Option<PackageWriter> {
        serde_json::from_str(self.metadata.get(WRITTEN_BY)?).ok()
    }

    /// Parses a record.
    ///
    /// # Errors
    /// It is none, or is of an object that is no package.
    pub fn parse(json: &[u8]) -> Result<Self, &'static str> {
        let record: Self = serde_json::from_slice(json).map_err(|_| "its record cannot be parsed")?;
        if record.deleted {
            return Ok(record);
        }
        if record.options.link.is_some() {
            return Err("it is a link to another object, and links are not followed");
        }
        let is_token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_token(&record.nuid) {
            return Err("its record names no chunks");
        }
        if record.digest().is_none() {
            return Err("its record has no SHA-256 digest");
        }
        if record.size > PACKAGE_BYTES_MAX {
            return Err("it is larger than a package may be");
        }
        Ok(record)
    }

    /// Its digest.
    pub fn digest(&self) -> Option<Digest> {
        let text = self.digest.strip_prefix(DIGEST_PREFIX)?.replace('+', "-").replace('/', "_");
        let bytes: [u8; 32] = URL_SAFE.decode(text).ok()?.try_into().ok()?;
        Some(Digest::from(bytes))
    }
}

const _: () = assert!(PACKAGE_CHUNK_BYTES <= PACKAGE_CHUNK_BYTES_MAX);
// The text of the error about a name says this number.
const _: () = assert!(PACKAGE_NAME_CHARS_MAX == 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_bucket_for_packages_and_an_object() {
        let name = |address| ObjectName::of_address(address).unwrap();
        let web = name("nats://packages/plant/web-2.4.0.tar.gz").unwrap();
        assert_eq!(web.as_str(), "plant/web-2.4.0.tar.gz");
        assert_eq!(web.address(), "nats://packages/plant/web-2.4.0.tar.gz");
        assert_eq!(ObjectName::of_address("https://packages/web"), None);
        let long = format!("nats://packages/{}", "x".repeat(PACKAGE_NAME_CHARS_MAX + 1));
        for refused in [
            "nats://other/web",
            "nats://user:secret@packages/web",
            "nats://packages",
            "nats://packages/",
            "nats://packages/a//b",
            "nats://packages/a b",
            long.as_str(),
        ] {
            assert!(name(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_record_is_read_as_other_clients_write_it() {
        let name: ObjectName = "web".parse().unwrap();
        assert_eq!(name.record_subject(), "$O.packages.M.d2Vi");
        let digest = Digest::of_bytes(b"a package");
        let own = ObjectRecord::new(&name, 0, &digest, 9, 1, "2026-01-01T00:00:00Z".to_owned());
        let text = serde_json::to_vec(&own).unwrap();
        assert_eq!(ObjectRecord::parse(&text).unwrap(), own);
        assert_eq!(own.digest(), Some(digest));
        assert_ne!(name.chunks_id(0), name.chunks_id(1));
        let foreign = format!(
            r#"{{"name":"web","description":"x","options":{{"max_chunk_size":131072}},"bucket":"packages",
                "nuid":"CMKPCbgOh3MIMBGzWIoV0L","size":9,"mtime":"0001-01-01T00:00:00Z","chunks":1,"digest":"{}"}}"#,
            own.digest
        );
        assert_eq!(ObjectRecord::parse(foreign.as_bytes()).unwrap().digest(), Some(digest));
    }

    #[test]
    fn a_record_of_no_package_is_refused_by_rule() {
        let name: ObjectName = "web".parse().unwrap();
        let good = ObjectRecord::new(&name, 0, &Digest::of_bytes(b""), 0, 0, String::new());
        for (record, words) in [
            (ObjectRecord { nuid: "a.b".to_owned(), ..good.clone() }, "names no chunks"),
            (ObjectRecord { nuid: ">".to_owned(), ..good.clone() }, "names no chunks"),
            (ObjectRecord { digest: "SHA-256=AA".to_owned(), ..good.clone() }, "no SHA-256"),
            (ObjectRecord { size: PACKAGE_BYTES_MAX + 1, ..good.clone() }, "larger"),
            (
                ObjectRecord {
                    options: ObjectOptions { link: Some(serde_json::json!({})), ..ObjectOptions::default() },
                    ..good.clone()
                },
                "link",
            ),
        ] {
            let text = serde_json::to_vec(&record).unwrap();
            assert!(ObjectRecord::parse(&text).unwrap_err().contains(words), "{words}");
        }
        let removed = serde_json::to_vec(&good.removed(String::new())).unwrap();
        assert!(ObjectRecord::parse(&removed).unwrap().deleted);
        assert!(ObjectRecord::parse(b"[]").is_err());
    }
}
