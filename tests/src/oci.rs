//! A real OCI registry (Debian's docker-registry) with artifacts that a test pushes. Without the program, which `.ci/tools`
//! provides, a test is listed as not run. It has no TLS and no login: it listens on this machine only.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_contract::canonical::Digest;
use serde_json::json;

use crate::not_run::not_run;
use crate::prometheus::tool;
use crate::server::free_port;

const PROGRAM: &str = "docker-registry";
const START_LIMIT: Duration = Duration::from_secs(30);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry, which ends when dropped.
#[derive(Debug)]
pub struct OciRegistry {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

/// An artifact in it.
#[derive(Debug, Clone, Copy)]
pub struct Pushed {
    /// The digest of its manifest.
    pub manifest: Digest,
    /// The digest of its layer.
    pub layer: Digest,
}

/// A gzip-compressed tar archive of files.
///
/// # Panics
/// A name is too long.
pub fn packed(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

impl OciRegistry {
    /// Starts a registry; lists the test as not run if there is no program.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(test: &str) -> Option<Self> {
        let Some(program) = tool(PROGRAM) else {
            not_run(test, "there is no OCI registry: `make tools` unpacks Debian's docker-registry");
            return None;
        };
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = dir.path().join("config.yaml");
        let settings = json!({
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": dir.path().join("data")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        std::fs::write(&config, settings.to_string()).unwrap();
        let mut command = Command::new(program);
        command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: command.spawn().unwrap(), port, dir };
        let since = Instant::now();
        while ureq::get(registry.url("")).call().is_err() {
            assert!(since.elapsed() < START_LIMIT, "the registry has not started");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(registry)
    }

    /// The address of a repository for `repository`.
    pub fn repository(&self, name: &str) -> String {
        format!("oci://127.0.0.1:{}/{name}", self.port)
    }

    /// Pushes an artifact with one layer.
    ///
    /// # Panics
    /// The registry refuses it.
    pub fn push(&self, name: &str, tag: &str, archive: &[u8]) -> Pushed {
        let config = self.push_blob(name, b"{}");
        let layer = self.push_blob(name, archive);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": "application/vnd.org.margo.component.compose+json",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": config, "size": 2},
            "layers": [{
                "mediaType": "application/vnd.org.margo.component.compose.tar+gzip",
                "digest": layer,
                "size": archive.len(),
            }],
        })
        .to_string();
        let url = self.url(&format!("{name}/manifests/{tag}"));
        ureq::put(url).header("content-type", MANIFEST).send(&manifest).unwrap();
        Pushed { manifest: Digest::of_bytes(manifest.as_bytes()), layer }
    }

    /// The file in which the registry keeps a blob.
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_string().replace("sha256:", "");
        let blobs = self.dir.path().join("data/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }

    fn push_blob(&self, name: &str, bytes: &[u8]) -> Digest {
        let digest = Digest::of_bytes(bytes);
        let begun = ureq::post(self.url(&format!("{name}/blobs/uploads/"))).send_empty().unwrap();
        let upload = begun.headers().get("location").unwrap().to_str().unwrap().to_owned();
        ureq::put(format!("{upload}&digest={digest}")).send(bytes).unwrap();
        digest
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/v2/{path}", self.port)
    }
}

impl Drop for OciRegistry {
    fn drop(&mut self) {
        // It is gone already if this fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
