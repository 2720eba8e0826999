//! Projects desired states to a state manifest: of one device, whose generation is the version, or of all devices of a client.
//! Equal desired states give equal bytes at every gateway, so the digest is an ETag at all of them.
//!
//! A manifest leaves out a deployment that Margo's schema cannot express; `left_out` has the reason.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::{DeploymentId, DeviceKey, Generation};
use schemars::JsonSchema;
use serde::Serialize;

use super::application::{self, NotExpressible};
use super::bundle;
use super::span::child_deployment;

/// The media type of a manifest.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.margo.manifest.v1+json";
/// The media type of a bundle.
pub(crate) const BUNDLE_TYPE: &str = "application/vnd.margo.bundle.v1+tar+gzip";
/// Most cached manifests.
const CACHED_MAX: usize = 4096;

/// One device of a manifest.
#[derive(Debug, Clone)]
pub(crate) struct ManifestPart<'a> {
    /// The device.
    pub key: &'a DeviceKey,
    /// Its `deviceId`.
    pub device_id: String,
    /// Whether it is behind the device of the client.
    pub is_child: bool,
    /// The sequence of its document in DOWNLINK.
    pub sequence: u64,
    /// The document.
    pub desired: &'a DesiredState,
}

/// A manifest, and the deployments and the bundle that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ManifestProjection {
    /// The version.
    pub generation: Generation,
    /// The manifest's text.
    pub manifest: Bytes,
    /// Its digest.
    pub digest: Digest,
    /// The deployments in the order of the manifest.
    pub deployments: Vec<Application>,
    /// The archive of all deployments, with its digest; none if there are no deployments.
    pub bundle: Option<(Digest, Bytes)>,
    /// Deployments that Margo's schema cannot express, with the reason.
    pub left_out: Vec<(DeploymentId, NotExpressible)>,
}

/// One deployment of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Application {
    /// Its id.
    pub id: DeploymentId,
    /// The digest of its text.
    pub digest: Digest,
    /// Its text.
    pub text: Bytes,
}

/// The desired state of a client: its deployments, and a bundle of all of them.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "UnsignedAppStateManifest")]
pub(super) struct ManifestText<'a> {
    /// Rises with every change.
    manifest_version: Generation,
    /// Null if there are no deployments.
    bundle: Option<BundleText>,
    /// All deployments; one that is not here is to be removed.
    deployments: Vec<DeploymentText<'a>>,
}

/// A reference to the archive of all deployments.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "BundleReference")]
struct BundleText {
    #[schemars(extend("const" = BUNDLE_TYPE))]
    media_type: &'static str,
    digest: Digest,
    size_bytes: usize,
    #[schemars(regex(pattern = "^/api/v1/bundles/sha256:[0-9a-f]{64}$"))]
    url: String,
}

/// A reference to a deployment.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeploymentReference")]
struct DeploymentText<'a> {
    deployment_id: &'a DeploymentId,
    digest: Digest,
    size_bytes: usize,
    #[schemars(regex(pattern = "^/api/v1/deployments/[^/]+/sha256:[0-9a-f]{64}$"))]
    url: String,
}

impl ManifestProjection {
    /// The manifest of the desired states of these devices.
    ///
    /// # Errors
    /// None: the archive is written to memory.
    pub(crate) fn of(generation: Generation, parts: &[ManifestPart<'_>]) -> io::Result<Self> {
        let (mut deployments, mut left_out) = (Vec::new(), Vec::new());
        let entries =
            parts.iter().flat_map(|part| part.desired.deployments.iter().map(move |one| (part, one)));
        for (part, entry) in entries {
            let id = if part.is_child { child_deployment(part.key, &entry.id) } else { entry.id.clone() };
            match application::document(entry, &id, &part.device_id) {
                Ok(text) => {
                    let digest = Digest::of_bytes(text.as_bytes());
                    deployments.push(Application { id, digest, text: text.into() });
                }
                Err(reason) => left_out.push((entry.id.clone(), reason)),
            }
        }
        let files = deployments.iter().map(|one| (&one.id, &one.text[..]));
        let archive = if deployments.is_empty() { None } else { Some(bundle::archive(files)?) };
        let bundle = archive.map(|bytes| (Digest::of_bytes(&bytes), Bytes::from(bytes)));
        let manifest = Bytes::from(text(generation, &deployments, bundle.as_ref()));
        let digest = Digest::of_bytes(&manifest);
        Ok(Self { generation, manifest, digest, deployments, bundle, left_out })
    }

    /// A deployment by its id and the digest of its text.
    pub(crate) fn deployment(&self, id: &str, digest: &str) -> Option<&Application> {
        let digest: Digest = digest.parse().ok()?;
        self.deployments.iter().find(|one| one.id.as_str() == id && one.digest == digest)
    }

    /// The archive, if it has this digest.
    pub(crate) fn bundle(&self, digest: &str) -> Option<&(Digest, Bytes)> {
        let digest: Digest = digest.parse().ok()?;
        self.bundle.as_ref().filter(|(own, _)| *own == digest)
    }
}

fn text(generation: Generation, deployments: &[Application], bundle: Option<&(Digest, Bytes)>) -> Vec<u8> {
    let texts = deployments.iter().map(|one| DeploymentText {
        deployment_id: &one.id,
        digest: one.digest,
        size_bytes: one.text.len(),
        url: format!("/api/v1/deployments/{}/{}", one.id, one.digest),
    });
    let bundle = bundle.map(|(digest, bytes)| BundleText {
        media_type: BUNDLE_TYPE,
        digest: *digest,
        size_bytes: bytes.len(),
        url: format!("/api/v1/bundles/{digest}"),
    });
    let manifest = ManifestText { manifest_version: generation, bundle, deployments: texts.collect() };
    // Cannot fail: texts and numbers.
    serde_json::to_vec(&manifest).unwrap_or_default()
}

/// The version of a manifest, and the sequences of its documents in DOWNLINK.
type Stamp = (Generation, Vec<u64>);

/// The newest manifest of clients, by their own devices.
#[derive(Debug, Default)]
pub(crate) struct ManifestCache(Mutex<HashMap<DeviceKey, (Stamp, Arc<ManifestProjection>)>>);

impl ManifestCache {
    /// The manifest of documents, from the cache or made now.
    ///
    /// # Errors
    /// None: the archive is written to memory.
    pub(crate) fn projection(
        &self,
        key: &DeviceKey,
        version: Generation,
        parts: &[ManifestPart<'_>],
    ) -> io::Result<Arc<ManifestProjection>> {
        let stamp = (version, parts.iter().map(|part| part.sequence).collect());
        let found = self.lock().get(key).filter(|(of, _)| *of == stamp).map(|(_, known)| known.clone());
        if let Some(known) = found {
            return Ok(known);
        }
        let made = Arc::new(ManifestProjection::of(version, parts)?);
        let mut cache = self.lock();
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache.insert(key.clone(), (stamp, made.clone()));
        Ok(made)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<DeviceKey, (Stamp, Arc<ManifestProjection>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_contract::desired::DesiredDeployment;
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn entry(id: &str, profile: &str, properties: &Value) -> DesiredDeployment {
        let entry = json!({
            "id": id, "name": "Web", "applicationId": "com-example-web", "targetGeneration": 1,
            "digest": Digest::of_bytes(b"").to_string(),
            "profile": {"type": profile, "components": [{"name": "main", "properties": properties}]},
        });
        let mut entry: DesiredDeployment = serde_json::from_value(entry).unwrap();
        entry.digest = entry.content_digest();
        entry
    }

    pub(crate) fn desired(generation: u64, deployments: Vec<DesiredDeployment>) -> DesiredState {
        let mut desired: DesiredState = serde_json::from_value(json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": "2026-11-26T07:00:00Z", "source": {"kind": "git", "revision": "a"}, "deployments": [],
        }))
        .unwrap();
        desired.deployments = deployments;
        desired
    }

    pub(crate) fn package(id: &str) -> DesiredDeployment {
        entry(id, "compose", &json!({"repository": "oci://registry.example/web", "revision": "1.0.0"}))
    }

    /// The manifest of one device.
    fn of_one(desired: &DesiredState) -> ManifestProjection {
        let key = "plant7/press-4".parse().unwrap();
        ManifestProjection::of(desired.generation, &[part(&key, 1, desired)]).unwrap()
    }

    fn part<'a>(key: &'a DeviceKey, sequence: u64, desired: &'a DesiredState) -> ManifestPart<'a> {
        ManifestPart { key, device_id: key.device.to_string(), is_child: false, sequence, desired }
    }

    #[test]
    fn a_manifest_names_what_it_serves_and_its_digests_are_true() {
        let process = entry("shell", "process", &json!({"command": "x"}));
        let made = of_one(&desired(u64::MAX, vec![package("web"), process]));
        let text = std::str::from_utf8(&made.manifest).unwrap();
        assert!(text.starts_with(r#"{"manifestVersion":18446744073709551615,"bundle":{"#), "{text}");
        let manifest: Value = serde_json::from_str(text).unwrap();
        let (id, digest) = ("web", manifest["deployments"][0]["digest"].as_str().unwrap());
        assert_eq!(Digest::of_bytes(&made.deployment(id, digest).unwrap().text).to_string(), digest);
        assert_eq!(manifest["deployments"][0]["url"], format!("/api/v1/deployments/web/{digest}"));
        let digest = manifest["bundle"]["digest"].as_str().unwrap();
        assert_eq!(Digest::of_bytes(&made.bundle(digest).unwrap().1).to_string(), digest);
        assert_eq!(made.left_out[0].0.as_str(), "shell");
        assert_eq!(made.digest, Digest::of_bytes(&made.manifest));
        for foreign in ["", "sha256:", "status", &Digest::of_bytes(b"x").to_string()] {
            assert!(made.deployment("web", foreign).is_none() && made.bundle(foreign).is_none());
        }
        assert!(made.deployment("db", &made.deployments[0].digest.to_string()).is_none());
    }

    #[test]
    fn without_deployments_there_is_no_bundle() {
        let made = of_one(&desired(3, Vec::new()));
        assert_eq!(&made.manifest[..], br#"{"manifestVersion":3,"bundle":null,"deployments":[]}"#);
        assert!(made.bundle.is_none());
    }

    #[test]
    fn a_newer_document_replaces_a_remembered_one() {
        let (cache, key) = (ManifestCache::default(), "plant7/press-4".parse().unwrap());
        let at = |sequence, generation| {
            let desired = desired(1, vec![package(generation)]);
            let made = cache.projection(&key, Generation::FIRST, &[part(&key, sequence, &desired)]).unwrap();
            made.deployments[0].id.to_string()
        };
        assert_eq!([at(7, "a"), at(7, "b"), at(8, "c")], ["a", "a", "c"]);
    }

    #[test]
    fn a_manifest_of_several_devices_names_the_device_of_each_deployment() {
        let [own, child]: [DeviceKey; 2] = ["plant7/gw", "plant7/a"].map(|key| key.parse().unwrap());
        let desired = desired(2, vec![package("web")]);
        let behind =
            ManifestPart { device_id: "gw/a".to_owned(), is_child: true, ..part(&child, 2, &desired) };
        let version = Generation::new(4).unwrap();
        let made = ManifestProjection::of(version, &[part(&own, 1, &desired), behind]).unwrap();
        let read = |at: usize| serde_json::from_slice::<Value>(&made.deployments[at].text).unwrap();
        let (first, second) = (read(0), read(1));
        assert_eq!((&first["id"], &first["metadata"]["deviceId"]), (&json!("web"), &json!("gw")));
        let id = child_deployment(&child, &"web".parse().unwrap()).to_string();
        assert_eq!((&second["id"], &second["metadata"]["deviceId"]), (&json!(id), &json!("gw/a")));
        assert!(made.manifest.starts_with(br#"{"manifestVersion":4,"#));
    }
}
