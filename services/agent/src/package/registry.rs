//! Reads artifacts of an OCI registry by its distribution API: logs in when asked, reads the manifest and finds the layer with
//! the package. Writes nothing, and reads no image indexes.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use serde::Deserialize;
use ureq::http::header::WWW_AUTHENTICATE;
use ureq::http::{Response, StatusCode};

use super::credentials::Credentials;
use super::error::PackageError;
use super::http::{Download, Get, HttpClient, require_success};
use super::settings::PACKAGE_BYTES_MAX;
use super::signature::{Signature, decoded};
use super::source::{Reference, host, shown};

/// Media types of manifests with layers.
const MANIFESTS: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";
/// Bytes of a manifest; registries allow 4 MiB, and a package's has one layer.
const MANIFEST_BYTES_MAX: u64 = 256 * 1024;
/// The annotation of a layer with cosign's signature over its content.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Signatures of one artifact that are looked at.
const SIGNATURES_MAX: usize = 16;
/// Bytes of a signed payload.
const PAYLOAD_BYTES_MAX: u64 = 16 * 1024;
/// Bytes of a token server's answer.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// An artifact in its registry.
pub(super) struct Registry {
    /// The client.
    pub(super) http: HttpClient,
    reference: Reference,
    credentials: Credentials,
    authorization: Option<String>,
}

/// The layer with the package.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Layer {
    #[serde(default)]
    media_type: String,
    /// Its digest.
    pub(super) digest: Digest,
    /// Its bytes.
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The part of cosign's payload that names the artifact.
#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: Digest,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
    #[serde(default)]
    manifests: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// An artifact that nothing was asked about yet.
    pub(super) fn new(http: HttpClient, reference: Reference, credentials: Credentials) -> Self {
        Self { http, reference, credentials, authorization: None }
    }

    /// The layer with the package, and the digest of its manifest.
    pub(super) fn layer(&mut self) -> Result<(Layer, Digest), PackageError> {
        let url = format!("{}/manifests/{}", self.reference.base(), self.reference.version);
        let (mut answer, mut body) = self.manifest(&url)?;
        if answer.status() == StatusCode::UNAUTHORIZED && self.log_in(&answer)? {
            (answer, body) = self.manifest(&url)?;
        }
        require_success(&answer, &url)?;
        let found = Digest::of_bytes(&body);
        if let Some(expected) = self.reference.digest().filter(|expected| *expected != found) {
            return Err(PackageError::Digest { address: self.reference.to_string(), found, expected });
        }
        Ok((self.only_layer(&body)?, found))
    }

    /// The signatures of an artifact that cosign has made; those about another artifact are left out.
    pub(super) fn signatures(&self, of: &Digest) -> Result<Vec<Signature>, PackageError> {
        let url = format!("{}/manifests/{}.sig", self.reference.base(), of.to_string().replace(':', "-"));
        let (answer, body) = self.manifest(&url)?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(Vec::new());
        }
        require_success(&answer, &url)?;
        let manifest: Manifest = serde_json::from_slice(&body).unwrap_or_default();
        let mut signed = Vec::new();
        for layer in manifest.layers.iter().take(SIGNATURES_MAX) {
            let Some(signature) = layer.annotations.get(SIGNATURE).and_then(|text| decoded(text)) else {
                continue;
            };
            let url = format!("{}/blobs/{}", self.reference.base(), layer.digest);
            let authorization = self.authorization.as_deref();
            let (answer, payload) =
                self.http.get(Get { url: &url, accept: "*/*", authorization, max: PAYLOAD_BYTES_MAX })?;
            require_success(&answer, &url)?;
            let about = serde_json::from_slice::<Payload>(&payload).ok();
            if about.is_some_and(|about| about.critical.image.digest == *of) {
                signed.push(Signature::Cosign { message: payload, der: signature });
            }
        }
        Ok(signed)
    }

    /// The download of a layer.
    pub(super) fn download(&self, layer: &Layer) -> Download {
        Download {
            url: format!("{}/blobs/{}", self.reference.base(), layer.digest),
            authorization: self.authorization.clone(),
            bytes: Some(layer.size),
            digest: Some(layer.digest),
        }
    }

    fn manifest(&self, url: &str) -> Result<(Response<()>, Vec<u8>), PackageError> {
        let authorization = self.authorization.as_deref();
        self.http.get(Get { url, accept: MANIFESTS, authorization, max: MANIFEST_BYTES_MAX })
    }

    fn only_layer(&self, manifest: &[u8]) -> Result<Layer, PackageError> {
        let unusable = |rule: String| PackageError::Artifact { address: self.reference.to_string(), rule };
        let manifest: Manifest = serde_json::from_slice(manifest)
            .map_err(|error| unusable(format!("its manifest cannot be parsed: {error}")))?;
        if !manifest.manifests.is_empty() {
            return Err(unusable(
                "it is an index of several artifacts; name one of them by its digest".to_owned(),
            ));
        }
        let is_archive = |layer: &&Layer| layer.media_type.ends_with("gzip");
        let archives: Vec<&Layer> = manifest.layers.iter().filter(is_archive).collect();
        let [layer] = archives[..] else {
            let rule =
                format!("it has {} layers with a gzip-compressed tar archive; one is needed", archives.len());
            return Err(unusable(rule));
        };
        if layer.size > PACKAGE_BYTES_MAX {
            return Err(PackageError::large(&self.reference.to_string()));
        }
        Ok(layer.clone())
    }

    /// Gets the authorization that an answer asks for; false if there is none to be had.
    fn log_in(&mut self, answer: &Response<()>) -> Result<bool, PackageError> {
        let asked =
            answer.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let basic = self.credentials.basic(&self.reference.host);
        self.authorization = match Challenge::parse(asked) {
            Some(Challenge::Basic) => basic,
            Some(Challenge::Bearer { realm, service, scope }) => {
                Some(self.token(&realm, &service, &scope, basic.as_deref())?)
            }
            None => None,
        };
        Ok(self.authorization.is_some())
    }

    fn token(
        &self,
        realm: &str,
        service: &str,
        scope: &str,
        basic: Option<&str>,
    ) -> Result<String, PackageError> {
        let unusable = |rule: &str| PackageError::Artifact {
            address: self.reference.to_string(),
            rule: format!("{rule} ({})", shown(realm)),
        };
        // Otherwise any registry could have the device send credentials or requests without TLS.
        let is_secure = realm.starts_with("https://") || host(realm) == self.reference.host;
        if !is_secure {
            return Err(unusable("its registry names a token server without TLS"));
        }
        let scope = if scope.is_empty() {
            format!("repository:{}:pull", self.reference.repository)
        } else {
            scope.into()
        };
        let mark = if realm.contains('?') { '&' } else { '?' };
        let url = format!("{realm}{mark}service={}&scope={}", escaped(service), escaped(&scope));
        // A token server elsewhere gets these credentials too: that is how registries log in.
        let get = Get { url: &url, accept: "application/json", authorization: basic, max: TOKEN_BYTES_MAX };
        let (answer, body) = self.http.get(get)?;
        require_success(&answer, realm)?;
        let answer: TokenAnswer =
            serde_json::from_slice(&body).map_err(|_| unusable("its token server answers no token"))?;
        let token = answer.token.or(answer.access_token);
        token
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| unusable("its token server answers no token"))
    }
}

/// How a registry wants to be logged in to.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: String, scope: String },
}

impl Challenge {
    fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let value = |name: &str| {
            let after = rest.split_once(&format!("{name}=\""))?.1;
            Some(after.split_once('"')?.0.to_owned())
        };
        let realm = value("realm")?;
        Some(Self::Bearer {
            realm,
            service: value("service").unwrap_or_default(),
            scope: value("scope").unwrap_or_default(),
        })
    }
}

/// A text as the value of a query's parameter.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_names_its_token_server() {
        let header =
            r#"Bearer realm="https://t.example/token",service="r.example",scope="repository:a/b:pull""#;
        let expected = Challenge::Bearer {
            realm: "https://t.example/token".to_owned(),
            service: "r.example".to_owned(),
            scope: "repository:a/b:pull".to_owned(),
        };
        assert_eq!(Challenge::parse(header), Some(expected));
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Negotiate"), None);
        assert_eq!(escaped("repository:a/b:pull"), "repository%3Aa%2Fb%3Apull");
    }
}
