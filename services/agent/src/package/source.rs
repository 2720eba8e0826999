//! Where a package comes from: an archive by https, an object of the hub's object store, or an artifact of an OCI registry.
//! Parses the properties of a component; fetches nothing.

use std::fmt;

use muster_contract::canonical::Digest;
use muster_contract::packages::{ObjectName, SignatureFormat};

use super::error::PackageError;

const HTTPS: &str = "https://";
const HTTP: &str = "http://";
const OCI: &str = "oci://";

/// The source of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageSource {
    /// A gzip-compressed tar archive.
    Archive {
        /// Its URL.
        url: String,
        /// The digest that it must have.
        digest: Option<Digest>,
    },
    /// A gzip-compressed tar archive in the hub's object store.
    Hub {
        /// Its name.
        name: ObjectName,
        /// The digest that it must have.
        digest: Option<Digest>,
    },
    /// An artifact of a registry.
    Registry(Reference),
}

/// An artifact of an OCI registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The registry's host, with its port.
    pub(super) host: String,
    /// The repository in the registry.
    pub(super) repository: String,
    /// A tag, or a digest as `sha256:…`.
    pub(super) version: String,
}

impl PackageSource {
    /// An archive at a URL, or in the hub's object store (`nats://BUCKET/NAME`).
    ///
    /// # Errors
    /// It is neither, or has a user or password.
    pub fn archive(url: &str, digest: Option<Digest>) -> Result<Self, PackageError> {
        let refused = |rule| Err(PackageError::Address { address: shown(url), rule });
        if let Some(name) = ObjectName::of_address(url) {
            return name.map_or_else(|error| refused(error.0), |name| Ok(Self::Hub { name, digest }));
        }
        let Some((scheme, rest)) =
            [HTTPS, HTTP].iter().find_map(|&scheme| Some((scheme, url.strip_prefix(scheme)?)))
        else {
            return refused("only file:///, https://, nats:// and oci:// are");
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return refused("credentials belong into the agent's --package-auth file, not into the address");
        }
        if authority.is_empty() {
            return refused("it names no host");
        }
        if scheme == HTTP && !is_loopback(authority) {
            return refused("without TLS anybody on the way could change it; use https://");
        }
        Ok(Self::Archive { url: url.to_owned(), digest })
    }

    /// An artifact `oci://HOST/REPOSITORY`, with its tag or digest there (`:TAG`, `@sha256:…`) or in `revision`.
    ///
    /// # Errors
    /// It is no such address, or names no version.
    pub fn registry(repository: &str, revision: Option<&str>) -> Result<Self, PackageError> {
        let refused = |rule| Err(PackageError::Address { address: shown(repository), rule });
        let Some(rest) = repository.strip_prefix(OCI) else {
            return refused("a repository is oci://HOST/NAME");
        };
        let (rest, digest) =
            rest.split_once("@sha256:").map_or((rest, None), |(rest, hex)| (rest, Some(hex)));
        if rest.contains('@') {
            return refused("credentials belong into the agent's --package-auth file, not into the address");
        }
        let Some((host, path)) = rest.split_once('/') else { return refused("it names no repository") };
        let (name, tag) = path.split_once(':').map_or((path, None), |(name, tag)| (name, Some(tag)));
        let named = digest.map(|hex| format!("sha256:{hex}")).or_else(|| tag.map(str::to_owned));
        let Some(version) = named.or_else(|| revision.map(str::to_owned)) else {
            return refused("it names no version: set revision to a tag or to a digest sha256:…");
        };
        if host.is_empty() || !is_name(name) || !is_version(&version) {
            return refused(
                "a repository has lower-case letters, digits and ._-/, a tag has letters, digits and ._-",
            );
        }
        Ok(Self::Registry(Reference { host: host.to_owned(), repository: name.to_owned(), version }))
    }

    /// A text that distinguishes its content from that of other sources.
    pub(super) fn identity(&self) -> String {
        match self {
            Self::Archive { url, digest: None } => url.clone(),
            Self::Archive { url, digest: Some(digest) } => format!("{url} {digest}"),
            Self::Hub { name, digest: None } => name.address(),
            Self::Hub { name, digest: Some(digest) } => format!("{} {digest}", name.address()),
            Self::Registry(reference) => reference.to_string(),
        }
    }
}

impl Reference {
    /// The beginning of the URLs of its registry. A registry on this device needs no TLS.
    pub(super) fn base(&self) -> String {
        let scheme = if is_loopback(&self.host) { HTTP } else { HTTPS };
        format!("{scheme}{}/v2/{}", self.host, self.repository)
    }

    /// The digest of its manifest, if that is its version.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.version.parse().ok()
    }
}

impl fmt::Display for PackageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive { url, .. } => f.write_str(&shown(url)),
            Self::Hub { name, .. } => f.write_str(&name.address()),
            Self::Registry(reference) => reference.fmt(f),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, repository, version } = self;
        let mark = if version.starts_with("sha256:") { '@' } else { ':' };
        write!(f, "{OCI}{host}/{repository}{mark}{version}")
    }
}

/// The host of a URL, with its port.
pub(super) fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Whether a URL without TLS is of this device.
pub(super) fn is_loopback_url(url: &str) -> bool {
    url.starts_with(HTTP) && is_loopback(host(url))
}

/// The URL of the signature beside an archive.
pub(super) fn signature_url(url: &str, format: SignatureFormat) -> String {
    let (path, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    format!("{path}{}{query}", format.ending())
}

/// Whether a host with or without a port is this device.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// True for a repository's name: parts of lower-case letters, digits and `._-`, separated by `/`.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
    };
    name.split('/').all(is_part)
}

fn is_version(version: &str) -> bool {
    if version.starts_with("sha256:") {
        return version.parse::<Digest>().is_ok();
    }
    let starts_well = version.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    starts_well
        && version.len() <= 128
        && version.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// An address without user, password, query and fragment, which may hold secrets: everyone who reads the status sees the
/// refusal.
pub fn shown(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // In `a:b@c@host` any `@` but the last may be part of the password.
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    format!("{scheme}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn an_archive_comes_by_https_and_only_from_this_device_without() {
        assert!(PackageSource::archive("https://dl.example/p.tar.gz?v=1", None).is_ok());
        for local in ["http://localhost:80/p", "http://127.0.0.1/p", "http://[::1]:8/p"] {
            assert!(PackageSource::archive(local, None).is_ok(), "{local}");
        }
        for (url, words) in [
            ("http://dl.example/p.tar.gz", "use https://"),
            ("http://127.0.0.1.example/p", "use https://"),
            ("http://localhost@dl.example/p", "--package-auth"),
            ("https://robot:s3cret@dl.example/p", "--package-auth"),
            ("ftp://dl.example/p", "only file:///"),
            ("https:///p", "no host"),
            ("nats://robot:s3cret@packages/p", "nats://packages/NAME"),
            ("nats://packages/", "letters, digits"),
        ] {
            let said = PackageSource::archive(url, None).unwrap_err().to_string();
            assert!(said.contains(words) && !said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn an_artifact_has_a_repository_and_a_tag_or_a_digest() {
        let by_digest = format!("oci://r.example/a/b@sha256:{HEX}");
        for (address, revision, canonical) in [
            ("oci://r.example:5000/a/b", Some("2.4.0"), "oci://r.example:5000/a/b:2.4.0"),
            ("oci://r.example/a:1", None, "oci://r.example/a:1"),
            (by_digest.as_str(), Some("1"), by_digest.as_str()),
        ] {
            let source = PackageSource::registry(address, revision).unwrap();
            assert_eq!(source.to_string(), canonical);
        }
        for (address, revision) in [
            ("oci://r.example/a", None),
            ("oci://r.example", Some("1")),
            ("oci:///a", Some("1")),
            ("https://r.example/a", Some("1")),
            ("oci://u:s3cret@r.example/a", Some("1")),
            ("oci://r.example/a/../b", Some("1")),
            ("oci://r.example/a", Some("1/../../blobs")),
            ("oci://r.example/a", Some("sha256:zz")),
        ] {
            let said = PackageSource::registry(address, revision).unwrap_err().to_string();
            assert!(!said.contains("s3cret"), "{said}");
        }
    }
}
