//! Packages are fetched from a server of this process, which does what each test's script says.

mod bad_input;
mod openpgp;
mod server;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use muster_service::error::chain;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

use self::server::{Answer, Server};
use super::*;

/// An archive with a Compose file and enough noise that it does not shrink to nothing.
fn package() -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::none()));
    let noise: Vec<u8> = (0..200_000_u32).map(|nth| (nth.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (name, content) in [("compose.yaml", &b"services: {}"[..]), ("noise", &noise)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// An agent's data directory with a store and the folder of a unit.
struct Device {
    dir: tempfile::TempDir,
    store: PackageStore,
}

impl Device {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = PackageStore::new(dir.path(), PackageSettings::default());
        fs::create_dir(dir.path().join("unit")).unwrap();
        Self { dir, store }
    }

    async fn place(&self, source: &PackageSource) -> Result<String, String> {
        let folder = self.store.ensure_unpacked(source, None, &self.dir.path().join("unit")).await;
        folder
            .map(|folder| fs::read_to_string(folder.join("compose.yaml")).unwrap())
            .map_err(|error| chain(&error))
    }
}

fn archive(server: &Server, digest: Option<Digest>) -> PackageSource {
    PackageSource::archive(&server.url("/p.tar.gz"), digest).unwrap()
}

#[tokio::test]
async fn a_placed_package_needs_no_server_and_another_deployment_none_either() {
    let (bytes, device) = (package(), Device::new());
    let server = Server::start(vec![Answer::Whole(bytes.clone())]);
    let source = archive(&server, Some(Digest::of_bytes(&bytes)));
    assert_eq!(device.place(&source).await.unwrap(), "services: {}");
    // The script has no further answer: each of these would fail if it asked.
    assert_eq!(device.place(&source).await.unwrap(), "services: {}");
    let other = device.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    device.store.ensure_unpacked(&source, None, &other).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_transfer_that_ended_early_goes_on_where_it_ended() {
    for is_marked in [true, false] {
        let (bytes, device) = (package(), Device::new());
        let etag = is_marked.then_some("\"v1\"");
        let server = Server::start(vec![
            Answer::Cut { bytes: bytes.clone(), after: 90_000, etag },
            Answer::Rest(bytes.clone()),
        ]);
        // Without a digest, the mark of the server tells that the file is still the same.
        let source = archive(&server, (!is_marked).then(|| Digest::of_bytes(&bytes)));
        let said = device.place(&source).await.unwrap_err();
        assert!(said.contains("goes on where it ended"), "{said}");
        assert_eq!(device.place(&source).await.unwrap(), "services: {}");
        let requests = server.requests();
        assert!(requests[1].contains("range: bytes=90000-"), "{requests:?}");
        assert_eq!(requests[1].contains("if-range: \"v1\""), is_marked);
    }
}

#[tokio::test]
async fn a_file_that_changed_meanwhile_is_fetched_anew() {
    let (bytes, device) = (package(), Device::new());
    let server = Server::start(vec![
        Answer::Cut { bytes: bytes.clone(), after: 90_000, etag: None },
        Answer::Whole(bytes.clone()),
    ]);
    // Neither a digest nor a mark: nothing tells whether the rest would fit.
    let source = archive(&server, None);
    device.place(&source).await.unwrap_err();
    assert_eq!(device.place(&source).await.unwrap(), "services: {}");
    assert!(!server.requests()[1].contains("range:"));
}

#[tokio::test]
async fn another_content_is_refused_and_the_next_attempt_begins_anew() {
    let (bytes, device) = (package(), Device::new());
    let server = Server::start(vec![Answer::Whole(b"foreign".to_vec()), Answer::Whole(bytes.clone())]);
    let source = archive(&server, Some(Digest::of_bytes(&bytes)));
    let said = device.place(&source).await.unwrap_err();
    assert!(said.contains("has the digest sha256:") && said.contains("changed or damaged"), "{said}");
    assert_eq!(device.place(&source).await.unwrap(), "services: {}");
}

#[tokio::test]
async fn refusals_lies_and_silence_are_named() {
    for (answer, words) in [
        (Answer::Status(404), "answers 404: no such package"),
        (Answer::Status(401), "answers 401: give the agent credentials"),
        (Answer::Status(500), "answers 500"),
        (Answer::Redirect("http://dl.example/p.tar.gz".to_owned()), "answers 302"),
        (Answer::Whole(b"no archive".to_vec()), "no gzip-compressed tar archive"),
        (Answer::Claims(PACKAGE_BYTES_MAX + 1), "has more than 67108864 bytes"),
        (Answer::Hangup, "cannot be fetched from http://127.0.0.1"),
    ] {
        let (device, shown) = (Device::new(), format!("{answer:?}"));
        let server = Server::start(vec![answer]);
        let said = device.place(&archive(&server, None)).await.unwrap_err();
        assert!(said.contains(words), "{shown:.40}: {said}");
        let left =
            fs::read_dir(device.dir.path().join("unit")).unwrap().flatten().map(|entry| entry.file_name());
        assert!(!left.into_iter().any(|name| name == FOLDER), "{shown:.40}: nothing half-placed");
    }
}

#[tokio::test]
async fn a_fetch_that_no_one_waits_for_ends_and_lets_the_next_one_begin() {
    let (bytes, device) = (package(), Device::new());
    let server = Server::start(vec![Answer::Drip(bytes.clone()), Answer::Whole(bytes.clone())]);
    let slow = archive(&server, None);
    let limit = Duration::from_millis(300);
    assert!(tokio::time::timeout(limit, device.place(&slow)).await.is_err());
    let next = PackageSource::archive(&server.url("/next"), None).unwrap();
    let placed = tokio::time::timeout(Duration::from_secs(20), device.place(&next)).await;
    assert_eq!(placed.expect("the first fetch has ended").unwrap(), "services: {}");
}

#[tokio::test]
async fn a_fetch_has_progress_and_the_next_one_says_that_it_waits() {
    let (bytes, device) = (package(), Device::new());
    let server = Server::start(vec![Answer::Drip(bytes.clone())]);
    let (slow, home, other) =
        (archive(&server, None), device.dir.path().join("unit"), device.dir.path().join("other"));
    let next = PackageSource::archive(&server.url("/next"), None).unwrap();
    let fetches =
        async { tokio::join!(device.place(&slow), device.store.ensure_unpacked(&next, None, &other)) };
    let watch = async {
        loop {
            let progress = (device.store.progress(&home), device.store.progress(&other));
            if let (Some(FetchProgress::Fetching { bytes: some, total }), Some(FetchProgress::Waiting)) =
                progress
                && some > 0
            {
                return (some, total);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let seen = tokio::select! {
        _ = fetches => panic!("the server never ends"),
        seen = tokio::time::timeout(Duration::from_secs(20), watch) => seen.expect("there is progress"),
    };
    assert!(seen.0 < bytes.len() as u64 && seen.1 == Some(bytes.len() as u64), "{seen:?}");
    assert_eq!((device.store.progress(&home), device.store.progress(&other)), (None, None));
}

#[tokio::test]
async fn an_artifact_is_read_with_a_token_and_its_digests_are_checked() {
    let (bytes, device) = (package(), Device::new());
    let layer = Digest::of_bytes(&bytes);
    let manifest = format!(
        r#"{{"layers":[{{"mediaType":"application/vnd.org.margo.component.compose.tar+gzip","digest":"{layer}","size":{}}}]}}"#,
        bytes.len()
    );
    let server = Server::start(vec![
        Answer::Challenge,
        Answer::Whole(br#"{"token":"t0ken"}"#.to_vec()),
        Answer::Whole(manifest.clone().into_bytes()),
        Answer::Whole(bytes.clone()),
    ]);
    let source = PackageSource::registry(&format!("oci://{}/app", server.host()), Some("2.4.0")).unwrap();
    assert_eq!(device.place(&source).await.unwrap(), "services: {}");
    let requests = server.requests();
    assert!(requests[0].starts_with("GET /v2/app/manifests/2.4.0 "), "{requests:?}");
    assert!(requests[1].starts_with("GET /token?service=r&scope=repository%3Aapp%3Apull "), "{requests:?}");
    assert!(requests[2].contains("authorization: Bearer t0ken"), "{requests:?}");
    assert!(requests[3].starts_with(&format!("GET /v2/app/blobs/{layer} ")), "{requests:?}");
    // Another manifest under the digest of that one.
    let wanted = Digest::of_bytes(manifest.as_bytes()).to_string();
    let server = Server::start(vec![Answer::Whole(manifest.replace("2.4", "").into_bytes()[1..].to_vec())]);
    let source = PackageSource::registry(&format!("oci://{}/app", server.host()), Some(&wanted)).unwrap();
    assert!(device.place(&source).await.unwrap_err().contains("has the digest"));
}

/// A key pair of a signer, and the file of its public key.
struct Signer {
    pair: EcdsaKeyPair,
    pem: String,
}

impl Signer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref(), &random).unwrap();
        let prefix = STANDARD.decode("MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgA=").unwrap();
        let der = [&prefix[..], pair.public_key().as_ref()].concat();
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
        Self { pair, pem }
    }

    fn sign(&self, message: &[u8]) -> String {
        STANDARD.encode(self.pair.sign(&SystemRandom::new(), message).unwrap())
    }

    /// A device that demands a signature by this key.
    fn device(&self) -> Device {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("cosign.pub");
        fs::write(&key, &self.pem).unwrap();
        let store =
            PackageStore::new(dir.path(), PackageSettings { keys: vec![key], ..PackageSettings::default() });
        fs::create_dir(dir.path().join("unit")).unwrap();
        Device { dir, store }
    }
}

#[tokio::test]
async fn an_archive_without_a_signature_by_a_key_of_the_device_is_never_placed() {
    let (bytes, signer, other) = (package(), Signer::new(), Signer::new());
    for (answer, words) in [
        (Answer::Whole(signer.sign(&bytes).into_bytes()), ""),
        (Answer::Status(404), "it has no signature"),
        (Answer::Whole(other.sign(&bytes).into_bytes()), "of another key or another content"),
        (Answer::Whole(signer.sign(b"another file").into_bytes()), "of another key or another content"),
        (Answer::Whole(b"no base64!".to_vec()), "of another key or another content"),
        (Answer::Status(500), "answers 500"),
    ] {
        let (device, shown) = (signer.device(), format!("{answer:?}"));
        let server = Server::start(vec![Answer::Whole(bytes.clone()), answer]);
        let placed = device.place(&archive(&server, Some(Digest::of_bytes(&bytes)))).await;
        assert!(server.requests()[1].starts_with("GET /p.tar.gz.sig "), "{:?}", server.requests());
        match placed {
            Ok(text) => assert!(words.is_empty() && text == "services: {}", "{shown:.60}"),
            Err(said) => {
                assert!(!words.is_empty() && said.contains(words), "{shown:.60}: {said}");
                assert!(!device.dir.path().join("unit").join(FOLDER).exists(), "{shown:.60}");
            }
        }
    }
}

/// The answers of a registry with an artifact and what it holds under the tag of its signature.
fn registry_with(signed_digest: &dyn Fn(Digest) -> Digest, sign: &dyn Fn(&[u8]) -> String) -> Vec<Answer> {
    let bytes = package();
    let layer = Digest::of_bytes(&bytes);
    let manifest = format!(
        r#"{{"layers":[{{"mediaType":"application/x.tar+gzip","digest":"{layer}","size":{}}}]}}"#,
        bytes.len()
    );
    let about = signed_digest(Digest::of_bytes(manifest.as_bytes()));
    let payload = format!(r#"{{"critical":{{"image":{{"docker-manifest-digest":"{about}"}},"type":"x"}}}}"#);
    let (of_payload, signature) = (Digest::of_bytes(payload.as_bytes()), sign(payload.as_bytes()));
    let signatures = format!(
        r#"{{"layers":[{{"digest":"{of_payload}","size":{},"annotations":{{"dev.cosignproject.cosign/signature":"{signature}"}}}}]}}"#,
        payload.len()
    );
    [manifest.into_bytes(), signatures.into_bytes(), payload.into_bytes(), bytes].map(Answer::Whole).to_vec()
}

#[tokio::test]
async fn an_artifact_needs_a_signature_of_its_manifest_by_a_key_of_the_device() {
    let (signer, other) = (Signer::new(), Signer::new());
    let own = |digest| digest;
    let foreign = |_| Digest::of_bytes(b"another artifact");
    let by_signer = |message: &[u8]| signer.sign(message);
    let by_other = |message: &[u8]| other.sign(message);
    for (script, is_placed) in [
        (registry_with(&own, &by_signer), true),
        (registry_with(&own, &by_other), false),
        // A signature that the right key made, but for another artifact.
        (registry_with(&foreign, &by_signer), false),
    ] {
        let (device, server) = (signer.device(), Server::start(script));
        let source = PackageSource::registry(&format!("oci://{}/app", server.host()), Some("1")).unwrap();
        let placed = device.place(&source).await;
        assert_eq!(placed.is_ok(), is_placed, "{placed:?}");
        let tag = &server.requests()[1];
        assert!(tag.starts_with("GET /v2/app/manifests/sha256-") && tag.contains(".sig "), "{tag}");
        if let Err(said) = placed {
            assert!(said.contains("is not signed by a key of this device"), "{said}");
        }
    }
}

#[tokio::test]
async fn what_was_placed_before_a_key_was_demanded_is_verified_first() {
    let (bytes, signer, plain) = (package(), Signer::new(), Device::new());
    let server = Server::start(vec![
        Answer::Whole(bytes.clone()),
        Answer::Whole(bytes.clone()),
        Answer::Whole(signer.sign(&bytes).into_bytes()),
    ]);
    let source = archive(&server, None);
    plain.place(&source).await.unwrap();
    let key = plain.dir.path().join("cosign.pub");
    fs::write(&key, &signer.pem).unwrap();
    let settings = PackageSettings { keys: vec![key], ..PackageSettings::default() };
    let demanding = Device { store: PackageStore::new(plain.dir.path(), settings), dir: plain.dir };
    demanding.place(&source).await.unwrap();
    assert_eq!(server.requests().len(), 3, "fetched again, with its signature");
    demanding.place(&source).await.unwrap();
    assert_eq!(server.requests().len(), 3, "verified once, it needs no server");
}

#[tokio::test]
async fn a_component_names_a_key_beside_those_of_the_device() {
    let (bytes, signer, other) = (package(), Signer::new(), Signer::new());
    let device = Device::new();
    let home = device.dir.path().join("unit");
    for (made_by, is_placed) in [(&other, false), (&signer, true)] {
        let server = Server::start(vec![
            Answer::Whole(signer.pem.clone().into_bytes()),
            Answer::Whole(bytes.clone()),
            Answer::Whole(made_by.sign(&bytes).into_bytes()),
        ]);
        let key = KeyLocation::parse(&server.url("/cosign.pub")).unwrap();
        let placed = device.store.ensure_unpacked(&archive(&server, None), Some(&key), &home).await;
        assert_eq!(placed.is_ok(), is_placed, "{placed:?}");
    }
    for (address, words) in [
        ("http://dl.example/cosign.pub", "a key is at https://"),
        ("https://robot:s3cret@dl.example/k", "a key is at https://"),
        ("file:///a\nsigned sha256:00", "a key is at https://"),
    ] {
        let said = KeyLocation::parse(address).unwrap_err().to_string();
        assert!(said.contains(words) && !said.contains("s3cret"), "{said}");
    }
    let endless = KeyLocation::parse("file:///dev/zero").unwrap();
    let server = Server::start(vec![]);
    let said =
        device.store.ensure_unpacked(&archive(&server, None), Some(&endless), &home).await.unwrap_err();
    assert!(chain(&said).contains("no regular file"), "{said}");
    let pgp = device.dir.path().join("pgp.asc");
    fs::write(&pgp, "-----BEGIN PGP PUBLIC KEY BLOCK-----\n").unwrap();
    let key = KeyLocation::parse(&format!("file://{}", pgp.display())).unwrap();
    let server = Server::start(vec![]);
    let source = archive(&server, None);
    let other_home = device.dir.path().join("other");
    let said = device.store.ensure_unpacked(&source, Some(&key), &other_home).await.unwrap_err();
    assert!(chain(&said).contains("OpenPGP"), "named before anything is fetched");
}
