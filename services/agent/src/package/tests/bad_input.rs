//! Registries whose content is wrong, cut, built to do harm, slow or silent: the cause is named, nothing is placed, and the next
//! package is.

use std::time::Instant;

use super::*;

/// A manifest that names one layer of this size.
fn manifest(layer: &Digest, bytes: usize) -> Answer {
    let text = format!(
        r#"{{"layers":[{{"mediaType":"application/x.tar+gzip","digest":"{layer}","size":{bytes}}}]}}"#
    );
    Answer::Whole(text.into_bytes())
}

/// The answers of a registry with a whole layer.
fn serving(layer: &[u8]) -> Vec<Answer> {
    vec![manifest(&Digest::of_bytes(layer), layer.len()), Answer::Whole(layer.to_vec())]
}

fn artifact(server: &Server) -> PackageSource {
    PackageSource::registry(&format!("oci://{}/app", server.host()), Some("1")).unwrap()
}

/// An archive with one entry of this name and content.
fn archive_of(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_cksum();
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap().finish().unwrap()
}

/// The cause of a refusal. Nothing is placed, and the same device places the next package.
async fn refusal(script: Vec<Answer>) -> String {
    let (device, server) = (Device::new(), Server::start(script));
    let said = device.place(&artifact(&server)).await.unwrap_err();
    let unit = device.dir.path().join("unit");
    assert!(!unit.join(FOLDER).exists(), "{said}");
    let next = Server::start(serving(&package()));
    assert_eq!(device.place(&artifact(&next)).await.unwrap(), "services: {}", "after: {said}");
    assert!(!unit.join(FOLDER_NEW).exists(), "{said}");
    said
}

#[tokio::test]
async fn a_layer_with_a_wrong_digest_is_named_and_not_placed() {
    let (bytes, foreign) = (package(), archive_of("compose.yaml", b"services: {evil: {}}"));
    let script = vec![manifest(&Digest::of_bytes(&bytes), foreign.len()), Answer::Whole(foreign)];
    let said = refusal(script).await;
    assert!(said.contains("changed or damaged"), "{said}");
}

#[tokio::test]
async fn a_truncated_layer_is_named_and_not_placed() {
    let bytes = package();
    let half = bytes[..bytes.len() / 2].to_vec();
    let said = refusal(vec![manifest(&Digest::of_bytes(&bytes), bytes.len()), Answer::Whole(half)]).await;
    assert!(said.contains("the server ended after") && said.contains("goes on where it ended"), "{said}");
    // One that was cut before it was pushed has the right digest, and cannot be unpacked.
    let said = refusal(serving(&bytes[..bytes.len() / 2])).await;
    assert!(said.contains("a damaged one"), "{said}");
}

#[tokio::test]
async fn a_zip_bomb_in_a_layer_is_named_and_not_placed() {
    // Its file has more bytes than are unpacked; the unit test of unpacking has one whose zeros are all there.
    let mut header = tar::Header::new_gnu();
    header.set_path("zeros").unwrap();
    header.set_size((256 << 20) + 1);
    header.set_cksum();
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    builder.append(&header, &[0; 4096][..]).unwrap();
    let bomb = builder.into_inner().unwrap().finish().unwrap();
    let said = refusal(serving(&bomb)).await;
    assert!(said.contains("more than 268435456 bytes"), "{said}");
}

#[tokio::test]
async fn a_path_that_leads_out_of_a_layer_is_named_and_not_written() {
    for name in ["../evil", "a/../../evil", "/tmp/muster-evil-layer"] {
        let said = refusal(serving(&archive_of(name, b"evil"))).await;
        assert!(said.contains("leads out of it"), "{said}");
        assert!(!std::path::Path::new("/tmp/muster-evil-layer").exists());
    }
}

#[tokio::test]
async fn a_registry_that_lies_is_named() {
    let bytes = package();
    let digest = Digest::of_bytes(&bytes);
    for (script, words) in [
        (vec![Answer::Whole(b"no manifest".to_vec())], "its manifest cannot be parsed"),
        (vec![Answer::Whole(br#"{"layers":[]}"#.to_vec())], "it has 0 layers"),
        (vec![Answer::Whole(br#"{"manifests":[{}]}"#.to_vec())], "an index of several artifacts"),
        (vec![manifest(&digest, 65 << 20)], "has more than 67108864 bytes"),
        (vec![manifest(&digest, bytes.len() - 1), Answer::Whole(bytes.clone())], "has more than"),
        (vec![Answer::Whole(vec![b' '; 300 * 1024])], "has more than 262144 bytes"),
        (vec![manifest(&digest, bytes.len()), Answer::Status(404)], "answers 404"),
    ] {
        let said = refusal(script).await;
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[tokio::test]
async fn a_slow_registry_ends_with_its_start_and_delays_no_other_package() {
    let (bytes, device) = (package(), Device::new());
    let slow =
        Server::start(vec![manifest(&Digest::of_bytes(&bytes), bytes.len()), Answer::Drip(bytes.clone())]);
    let source = artifact(&slow);
    let limit = Duration::from_millis(500);
    assert!(tokio::time::timeout(limit, device.place(&source)).await.is_err(), "it is slower than that");
    let begun = Instant::now();
    let other = Server::start(serving(&archive_of("compose.yaml", b"services: {other: {}}")));
    assert_eq!(device.place(&artifact(&other)).await.unwrap(), "services: {other: {}}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// It takes as long as a server may be silent: half a minute.
#[tokio::test]
async fn a_registry_that_hangs_is_given_up_and_named() {
    let begun = Instant::now();
    let said = refusal(vec![Answer::Hang]).await;
    assert!(said.contains("cannot be fetched from") && said.contains("goes on where it ended"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
