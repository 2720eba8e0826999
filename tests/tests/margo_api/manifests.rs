//! Manifests, deployments and bundles: versions, entity tags, digests, media types, and nothing of another client's.

use std::collections::BTreeSet;
use std::io::Read as _;

use muster_contract::canonical::Digest;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::fleet::{DEVICE, Fleet, WEB};
use crate::schema;

const MANIFEST_TYPE: &str = "application/vnd.margo.manifest.v1+json";
const IMMUTABLE: &str = "private, max-age=31536000, immutable";

fn digest_of(answer: &Answer) -> String {
    Digest::of_bytes(&answer.body).to_string()
}

fn texts(manifest: &Value, field: &str) -> Vec<String> {
    let all = manifest["deployments"].as_array().unwrap();
    all.iter().map(|entry| entry[field].as_str().unwrap().to_owned()).collect()
}

async fn with_conditions(client: &Client, path: &str, etag: &str) -> Answer {
    client.get_with(path, &[("If-None-Match", etag)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_has_a_rising_version_and_its_digest_as_entity_tag() {
    let mut fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    let (empty, _) = fleet.manifest(&client, |_| true).await;
    assert_eq!((&empty["deployments"], &empty["bundle"]), (&json!([]), &Value::Null), "present and null");
    let mut last = empty["manifestVersion"].as_u64().unwrap();
    assert_eq!(last, 1, "the first version");
    for (deployments, count) in
        [(&[(WEB, "1.0.0")][..], 1), (&[(WEB, "1.1.0")], 1), (&[], 0), (&[(WEB, "1.1.0")], 1)]
    {
        fleet.publish(deployments).await;
        let newer = |manifest: &Value| manifest["manifestVersion"].as_u64().unwrap() > last;
        let (manifest, answer) = fleet.manifest(&client, newer).await;
        schema::manifest(&manifest);
        assert_eq!(manifest["deployments"].as_array().unwrap().len(), count);
        assert_eq!(manifest["bundle"].is_null(), count == 0);
        let etag = answer.header("etag").unwrap();
        assert_eq!(etag, format!("\"{}\"", digest_of(&answer)));
        assert_eq!(answer.header("cache-control"), Some("private"));
        let again = client.get("/api/v1/deployments").await;
        assert_eq!((&again.body, again.header("etag")), (&answer.body, Some(etag)), "the same bytes");
        let unchanged = with_conditions(&client, "/api/v1/deployments", etag).await;
        assert_eq!((unchanged.status, unchanged.body.len(), unchanged.header("etag")), (304, 0, Some(etag)));
        last = manifest["manifestVersion"].as_u64().unwrap();
    }
    fleet.system.kill(crate::fleet::GATEWAY).await;
    fleet.system.start_again(crate::fleet::GATEWAY);
    fleet.serves(&client).await;
    fleet.publish(&[(WEB, "2.0.0")]).await;
    fleet.manifest(&client, |manifest| manifest["manifestVersion"].as_u64().unwrap() > last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_content_has_the_digest_of_its_address() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    let db = format!("a{}", &WEB[1..]);
    fleet.publish(&[(WEB, "1.0.0"), (&db, "2.0.0")]).await;
    let (manifest, _) = fleet.manifest(&client, |manifest| !manifest["bundle"].is_null()).await;
    let mut contents = BTreeSet::new();
    for (url, digest) in texts(&manifest, "url").iter().zip(texts(&manifest, "digest")) {
        let packed = client.get_with(url, &[("Accept-Encoding", "gzip, br")]).await;
        assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed.body[..]).read_to_end(&mut unpacked).unwrap();
        let answer = client.get(url).await;
        assert_eq!((&unpacked, answer.header("content-encoding")), (&answer.body, None));
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/yaml")));
        assert_eq!(
            (answer.header("cache-control"), answer.header("vary")),
            (Some(IMMUTABLE), Some("Accept-Encoding"))
        );
        assert_eq!(
            (digest_of(&answer), answer.header("etag")),
            (digest.clone(), Some(&*format!("\"{digest}\"")))
        );
        schema::deployment(&answer.json());
        // YAML, too, for a device that reads that.
        let yaml: Value = serde_norway::from_slice(&answer.body).unwrap();
        assert_eq!(yaml, answer.json());
        assert_eq!(with_conditions(&client, url, &format!("\"{digest}\"")).await.status, 304);
        contents.insert((format!("{}.yaml", yaml["id"].as_str().unwrap()), answer.body));
    }
    let (url, digest) = (manifest["bundle"]["url"].as_str().unwrap(), &manifest["bundle"]["digest"]);
    let answer = client.get(url).await;
    assert_eq!(answer.header("content-type"), Some("application/vnd.margo.bundle.v1+tar+gzip"));
    assert_eq!((&json!(digest_of(&answer)), answer.header("cache-control")), (digest, Some(IMMUTABLE)));
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&answer.body[..]));
    let mut packed = BTreeSet::new();
    for entry in archive.entries().unwrap() {
        let (mut entry, mut content) = (entry.unwrap(), Vec::new());
        entry.read_to_end(&mut content).unwrap();
        packed.insert((entry.path().unwrap().display().to_string(), content));
    }
    assert_eq!(packed, contents);
    assert_eq!(with_conditions(&client, url, answer.header("etag").unwrap()).await.status, 304);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_media_type_of_manifests_is_there() {
    let fleet = Fleet::start(&[DEVICE]).await;
    let client = fleet.client(DEVICE).await;
    fleet.manifest(&client, |_| true).await;
    for accept in [MANIFEST_TYPE, "*/*", "application/*;q=0.1"] {
        let answer = client.get_with("/api/v1/deployments", &[("Accept", accept)]).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(MANIFEST_TYPE)), "{accept}");
    }
    for accept in ["application/vnd.margo.manifest.v1.jws+json", "application/json", "text/html"] {
        let answer = client.get_with("/api/v1/deployments", &[("Accept", accept)]).await;
        assert_eq!((answer.status, &*answer.problem()), (406, "server-cannot-generate-response"), "{accept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_another_client_answers_like_one_that_does_not_exist() {
    let fleet = Fleet::start(&[DEVICE, "plant8/press-2"]).await;
    let (own, other) = (fleet.client(DEVICE).await, fleet.client("plant8/press-2").await);
    fleet.publish(&[(WEB, "1.0.0")]).await;
    let holds = |manifest: &Value| !manifest["bundle"].is_null();
    let (manifest, _) = fleet.manifest(&own, holds).await;
    let (others, _) = fleet.manifest(&other, holds).await;
    let url = |manifest: &Value| texts(manifest, "url").remove(0);
    let missing = format!("/api/v1/deployments/{WEB}/{}", Digest::of_bytes(b"missing"));
    for (foreign, nothing) in [
        (url(&others), missing),
        (
            others["bundle"]["url"].as_str().unwrap().to_owned(),
            format!("/api/v1/bundles/{}", Digest::of_bytes(b"")),
        ),
    ] {
        let (foreign, nothing) = (own.get(&foreign).await, own.get(&nothing).await);
        assert_eq!((foreign.status, nothing.status), (404, 404));
        assert_eq!(foreign.body, nothing.body, "the answers tell nothing apart");
        assert!(["deployment-not-found", "invalid-bundle"].contains(&&*foreign.problem()));
    }
    assert_eq!(own.get(&url(&manifest)).await.status, 200);
    let text = String::from_utf8(own.get("/api/v1/deployments").await.body).unwrap();
    assert!(!text.contains(&texts(&others, "digest")[0]), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_without_a_desired_state_is_told_to_come_again() {
    let fleet = Fleet::start(&[DEVICE]).await;
    fleet.accept("plant9/new").await;
    let client = fleet.client("plant9/new").await;
    let answer = client.get("/api/v1/deployments").await;
    assert_eq!((answer.status, &*answer.problem()), (503, "about:blank"));
}
