//! Packages from a real OCI registry: by tag and by digest, offline once placed, and what the registry's disk damaged.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs;
use std::path::Path;

use muster_agent::package::{PackageError, PackageSettings, PackageSource, PackageStore};
use muster_tests::oci::{OciRegistry, packed};

const COMPOSE: &str = "services: {web: {image: web}}\n";

/// Places a package in a new folder of a data directory.
async fn place(data: &Path, unit: &str, source: &PackageSource) -> Result<String, PackageError> {
    let home = data.join(unit);
    fs::create_dir_all(&home).unwrap();
    let placed =
        PackageStore::new(data, PackageSettings::default()).ensure_unpacked(source, None, &home).await?;
    Ok(fs::read_to_string(placed.join("app-1/compose.yaml")).unwrap())
}

#[tokio::test]
async fn an_artifact_of_a_real_registry_is_placed_verified_and_usable_offline() {
    let Some(registry) = OciRegistry::start("packages from a real registry") else { return };
    let pushed = registry.push("plant/app", "1.0", &packed(&[("app-1/compose.yaml", COMPOSE)]));
    let data = tempfile::tempdir().unwrap();
    let by_tag = PackageSource::registry(&registry.repository("plant/app"), Some("1.0")).unwrap();
    let version = pushed.manifest.to_string();
    let by_digest = PackageSource::registry(&registry.repository("plant/app"), Some(&version)).unwrap();
    for (unit, source) in [("tag", &by_tag), ("digest", &by_digest)] {
        assert_eq!(place(data.path(), unit, source).await.unwrap(), COMPOSE);
    }
    let missing = PackageSource::registry(&registry.repository("plant/app"), Some("2.0")).unwrap();
    let refused = place(data.path(), "missing", &missing).await.unwrap_err();
    assert!(refused.to_string().contains("answers 404"), "{refused}");

    // Another device, whose registry has lost a byte of the layer.
    let blob = registry.blob(&pushed.layer);
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    let other = tempfile::tempdir().unwrap();
    let refused = place(other.path(), "unit", &by_tag).await.unwrap_err();
    assert!(matches!(refused, PackageError::Digest { .. }), "{refused}");
    assert!(!other.path().join("unit/package").exists());

    drop(registry);
    assert_eq!(place(data.path(), "tag", &by_tag).await.unwrap(), COMPOSE, "offline");
}
