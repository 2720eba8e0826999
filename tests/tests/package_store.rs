//! Packages in the object store of a real hub: put, listed and removed by `muster package`, placed by the agent's store, over links
//! and fetches that end early, and objects that are damaged or lie.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_agent::package::{PackageError, PackageSettings, PackageSource, PackageStore};
use muster_bus::{Bus, BusConfig, Outgoing, PublishErrorKind};
use muster_contract::canonical::Digest;
use muster_contract::limits::PACKAGE_CHUNK_BYTES;
use muster_contract::packages::{ObjectName, ObjectRecord, chunk_subject};
use muster_service::error::chain;
use muster_tests::server::Server;
use muster_tests::system::program;
use muster_tests::wait::{soon, until};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// An archive of several chunks.
fn archive(mark: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::none()));
    let noise: Vec<u8> = (0..900_000_u32).map(|nth| (nth.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (name, content) in [("compose.yaml", mark.as_bytes()), ("noise", &noise)] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// A hub without accounts, and a connection to it.
struct Hub {
    server: Server,
    bus: Bus,
    dir: tempfile::TempDir,
}

impl Hub {
    async fn start() -> Self {
        let server = Server::start();
        let config = BusConfig { reconnect_max: Duration::from_millis(100), ..server.config("test") };
        let stop = CancellationToken::new();
        let bus = soon("a connection", Box::pin(Bus::connect(config, &stop))).await.unwrap();
        soon("the streams", Box::pin(bus.converge())).await.unwrap();
        Self { server, bus, dir: tempfile::tempdir().unwrap() }
    }

    fn muster(&self, args: &[&str]) -> (Option<i32>, Value, String) {
        let mut command = std::process::Command::new(program("muster"));
        let done =
            command.arg("package").args(args).args(["--format", "json", "--nats-url", &self.server.url()]);
        let done = done.output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        (done.status.code(), serde_json::from_slice(&done.stdout).unwrap_or_default(), said)
    }

    fn put(&self, name: &str, content: &[u8]) -> Value {
        let file = self.dir.path().join(name);
        fs::write(&file, content).unwrap();
        let (code, put, said) = self.muster(&["put", file.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
        put
    }

    fn device(&self, rate: Option<&str>) -> Device {
        let dir = tempfile::tempdir().unwrap();
        Device { store: self.store(dir.path(), rate), dir }
    }

    fn store(&self, dir: &Path, rate: Option<&str>) -> PackageStore {
        let rate = rate.map(|rate| rate.parse().unwrap());
        let settings = PackageSettings { rate, ..PackageSettings::default() };
        PackageStore::with_hub(dir, settings, watch::channel(Some(self.bus.clone())).1)
    }

    async fn write(&self, subject: String, payload: Vec<u8>) {
        self.bus.publish(Outgoing::new(subject, payload)).await.unwrap();
    }
}

/// The data directory of an agent, with its store.
struct Device {
    dir: tempfile::TempDir,
    store: PackageStore,
}

impl Device {
    async fn place(&self, unit: &str, source: &PackageSource) -> Result<String, PackageError> {
        let home = self.dir.path().join(unit);
        fs::create_dir_all(&home).unwrap();
        let folder = self.store.ensure_unpacked(source, None, &home).await?;
        Ok(fs::read_to_string(folder.join("compose.yaml")).unwrap())
    }

    /// The files of unfinished fetches with this ending.
    fn unfinished(dir: &Path, ending: &str) -> Vec<PathBuf> {
        let Ok(files) = fs::read_dir(dir.join("packages")) else { return Vec::new() };
        let paths = files.flatten().map(|file| file.path());
        paths.filter(|path| path.extension().is_some_and(|found| found == ending)).collect()
    }

    /// Chunks that an unfinished fetch has.
    fn chunks(dir: &Path) -> u64 {
        let stored = Self::unfinished(dir, "chunk").pop().and_then(|path| fs::read(path).ok());
        let position: Option<Value> = stored.and_then(|text| serde_json::from_slice(&text).ok());
        position.and_then(|position| position["chunks"].as_u64()).unwrap_or(0)
    }
}

fn source(put: &Value) -> PackageSource {
    let digest = put["digest"].as_str().unwrap().parse().unwrap();
    PackageSource::archive(put["address"].as_str().unwrap(), Some(digest)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_of_the_hub_is_put_listed_placed_used_offline_and_removed() {
    let hub = Hub::start().await;
    let first = hub.put("web.tar.gz", &archive("one"));
    assert_eq!(first["changed"], true);
    assert_eq!(hub.put("web.tar.gz", &archive("one"))["changed"], false);
    let device = hub.device(None);
    assert_eq!(device.place("a", &source(&first)).await.unwrap(), "one");
    let second = hub.put("web.tar.gz", &archive("two"));
    let third = hub.put("web.tar.gz", &archive("three"));
    let (_, list, _) = hub.muster(&["list"]);
    assert_eq!(list["packages"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["packages"][0]["digest"], third["digest"]);
    // The chunks of the contents before are gone.
    let state = hub.bus.stream_state("OBJ_packages").await.unwrap();
    assert!(state.bytes < 2 * archive("one").len() as u64, "{state:?}");
    assert_eq!(device.place("b", &source(&third)).await.unwrap(), "three");
    let replaced = device.place("c", &source(&second)).await.unwrap_err();
    assert!(matches!(replaced, PackageError::Digest { .. }), "{replaced}");

    assert_eq!(hub.muster(&["remove", "web.tar.gz", "other"]).0, Some(1));
    let (_, list, _) = hub.muster(&["list"]);
    assert_eq!(list["packages"].as_array().unwrap().len(), 0, "{list}");
    assert!(hub.bus.stream_state("OBJ_packages").await.unwrap().bytes < 4096);
    assert_eq!(device.place("d", &source(&third)).await.unwrap(), "three", "from the cache");
    let gone = hub.device(None).place("a", &source(&third)).await.unwrap_err();
    assert!(gone.to_string().contains("the hub has no such package"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_beside_a_removal_ends_without_a_record_of_chunks_that_are_gone() {
    let hub = Hub::start().await;
    // The steps of a first put up to its record.
    let name: ObjectName = "web.tar.gz".parse().unwrap();
    let record =
        ObjectRecord::new(&name, 0, &Digest::of_bytes(b"a chunk"), 7, 1, "2026-11-29T00:00:00Z".to_owned());
    let payload = |record: &ObjectRecord| serde_json::to_vec(record).unwrap();
    let claim = Outgoing::new(name.record_subject(), payload(&record.clone().removed(String::new())));
    let claimed = hub.bus.publish(claim).await.unwrap().sequence;
    hub.write(chunk_subject(&record.nuid), b"a chunk".to_vec()).await;

    assert_eq!(hub.muster(&["remove", name.as_str()]).0, Some(1), "there is no package yet");
    let last = Outgoing {
        expected_last_subject_sequence: Some(claimed),
        ..Outgoing::new(name.record_subject(), payload(&record))
    };
    let refused = hub.bus.publish(last).await.unwrap_err();
    assert_eq!(refused.kind, PublishErrorKind::Conflict, "{refused}");
    let (_, list, _) = hub.muster(&["list"]);
    assert_eq!(list["packages"].as_array().unwrap().len(), 0, "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_of_what_is_there_removes_the_chunks_of_a_killed_one() {
    let hub = Hub::start().await;
    let put = hub.put("web.tar.gz", &archive("one"));
    let before = hub.bus.stream_state("OBJ_packages").await.unwrap().bytes;
    let name: ObjectName = "web.tar.gz".parse().unwrap();
    for slot in 0..2 {
        let id = name.chunks_id(slot);
        let used = hub.bus.package_record(&chunk_subject(&id)).await.unwrap().is_some();
        if !used {
            hub.write(chunk_subject(&id), vec![b'a'; PACKAGE_CHUNK_BYTES]).await;
        }
    }
    assert!(hub.bus.stream_state("OBJ_packages").await.unwrap().bytes > before + 100_000);
    assert_eq!(hub.put("web.tar.gz", &archive("one"))["changed"], false);
    assert!(hub.bus.stream_state("OBJ_packages").await.unwrap().bytes < before + 4096);
    assert_eq!(hub.device(None).place("a", &source(&put)).await.unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_from_the_hub_that_was_killed_goes_on_at_its_chunk() {
    let hub = Hub::start().await;
    let put = hub.put("web.tar.gz", &archive("one"));
    let dir = tempfile::tempdir().unwrap();
    let slow = Device { store: hub.store(dir.path(), Some("4mbit")), dir };
    let dir = slow.dir.path().to_owned();
    let fetch = tokio::spawn({
        let source = source(&put);
        async move {
            let _ = slow.place("a", &source).await;
            slow
        }
    });
    until("some chunks", async || Device::chunks(&dir), |chunks| *chunks >= 3).await;
    let copied = tempfile::tempdir().unwrap();
    fs::create_dir(copied.path().join("packages")).unwrap();
    // As a kill leaves it: the files as they are at a moment.
    for ending in ["chunk", "part"] {
        for file in Device::unfinished(&dir, ending) {
            fs::copy(&file, copied.path().join("packages").join(file.file_name().unwrap())).unwrap();
        }
    }
    fetch.abort();
    let before = Device::chunks(copied.path());
    assert!((3..8).contains(&before), "{before}");
    // Another process on the same files, of which one byte tells whether they are used.
    let part = Device::unfinished(copied.path(), "part").pop().unwrap();
    let mut bytes = fs::read(&part).unwrap();
    bytes[30] ^= 1;
    fs::write(&part, &bytes).unwrap();
    let spoilt = Device { store: hub.store(copied.path(), None), dir: copied };
    let said = spoilt.place("a", &source(&put)).await.unwrap_err();
    assert!(matches!(said, PackageError::Digest { .. }), "it went on with what was there: {said}");
    assert_eq!(spoilt.place("a", &source(&put)).await.unwrap(), "one", "and begins anew after that");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_begins_anew_where_the_same_package_was_put_again() {
    let hub = Hub::start().await;
    let put = hub.put("web.tar.gz", &archive("one"));
    let slow = hub.device(Some("4mbit"));
    let dir = slow.dir.path().to_owned();
    let fetch = tokio::spawn({
        let source = source(&put);
        async move {
            let _ = slow.place("a", &source).await;
            slow
        }
    });
    until("some chunks", async || Device::chunks(&dir), |chunks| *chunks >= 3).await;
    assert_eq!(hub.muster(&["remove", "web.tar.gz"]).0, Some(0));
    // It fails by itself: the chunks are gone.
    let device = soon("the end of the fetch", fetch).await.unwrap();
    let again = hub.put("web.tar.gz", &archive("one"));
    assert_eq!(again["digest"], put["digest"]);
    assert_eq!(device.place("a", &source(&again)).await.unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_that_a_hub_lists_is_whole_after_puts_at_once() {
    let hub = Hub::start().await;
    hub.put("web.tar.gz", &archive("first"));
    let (url, dir) = (hub.server.url(), hub.dir.path().to_owned());
    for round in 0..4 {
        let put = |nth: usize| {
            let (url, file) = (url.clone(), dir.join(format!("{round}-{nth}.tar.gz")));
            fs::write(&file, archive(&format!("{round}-{nth}"))).unwrap();
            let words =
                ["package", "put", file.to_str().unwrap(), "--name", "web.tar.gz", "--nats-url", &url];
            std::process::Command::new(program("muster")).args(words).output()
        };
        let codes: Vec<_> = std::thread::scope(|scope| {
            let puts: Vec<_> = (0..4).map(|nth| scope.spawn(move || put(nth))).collect();
            puts.into_iter().map(|put| put.join().unwrap().unwrap().status.code()).collect()
        });
        assert!(codes.iter().all(|code| matches!(code, Some(0..=2))), "{codes:?}");
        let (_, list, _) = hub.muster(&["list"]);
        let listed = &list["packages"][0];
        let placed = hub.device(None).place("a", &source(listed)).await.unwrap();
        assert!(placed == "first" || placed.contains('-'), "{placed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_from_the_hub_outlives_a_server_that_is_killed_midway() {
    let mut hub = Hub::start().await;
    let put = hub.put("web.tar.gz", &archive("one"));
    let slow = hub.device(Some("4mbit"));
    let dir = slow.dir.path().to_owned();
    let fetch = tokio::spawn(async move { slow.place("a", &source(&put)).await });
    until("some chunks", async || Device::chunks(&dir), |chunks| *chunks >= 2).await;
    hub.server.kill();
    hub.server.restart();
    let placed = soon("the package", fetch).await.unwrap();
    assert_eq!(placed.unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_digest_a_truncated_object_and_a_missing_chunk_are_named() {
    let hub = Hub::start().await;
    let content = archive("one");
    let digest = Digest::of_bytes(&content);
    let size = content.len() as u64;
    let good = hub.put("good.tar.gz", &content);
    let device = hub.device(None);
    for (name, chunks_left_out, claimed, wrong, words) in [
        ("wrong", 0, size, Digest::of_bytes(b"other"), "has the digest sha256:"),
        ("lacks", 1, size, digest, "the hub lacks chunk 7 of 7"),
        ("short", 0, size + 5, digest, "of 901642 bytes"),
        ("long", 0, size - 5, digest, "its chunks are not those of its record"),
        ("large", 0, (64 << 20) + 1, digest, "larger than a package may be"),
    ] {
        let name: ObjectName = name.parse().unwrap();
        let chunks: Vec<_> = content.chunks(PACKAGE_CHUNK_BYTES).collect();
        let record = ObjectRecord::new(&name, 0, &wrong, claimed, chunks.len() as u64, String::new());
        for chunk in &chunks[..chunks.len() - chunks_left_out] {
            hub.write(chunk_subject(&record.nuid), chunk.to_vec()).await;
        }
        hub.write(name.record_subject(), serde_json::to_vec(&record).unwrap()).await;
        let damaged = PackageSource::archive(&name.address(), None).unwrap();
        let said = chain(&device.place(name.as_str(), &damaged).await.unwrap_err());
        let words = words.replace("901642", &(size + 5).to_string());
        assert!(said.contains(&words), "{name}: {said}");
        assert!(!device.dir.path().join(name.as_str()).join("package").exists(), "{name}");
    }
    let demanded =
        PackageSource::archive("nats://packages/good.tar.gz", Some(Digest::of_bytes(b"x"))).unwrap();
    let said = device.place("demanded", &demanded).await.unwrap_err();
    assert!(matches!(said, PackageError::Digest { .. }), "{said}");
    // Others are untouched, and the chunk that was missing can be put.
    assert_eq!(device.place("good", &source(&good)).await.unwrap(), "one");
    assert_eq!(hub.muster(&["remove", "lacks"]).0, Some(0));
    let mended = hub.put("lacks", &content);
    assert_eq!(hub.device(None).place("lacks", &source(&mended)).await.unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_its_hub_says_so_and_keeps_what_it_has_placed() {
    let hub = Hub::start().await;
    let put = hub.put("web.tar.gz", &archive("one"));
    let device = hub.device(None);
    assert_eq!(device.place("a", &source(&put)).await.unwrap(), "one");
    let alone = PackageStore::new(device.dir.path(), PackageSettings::default());
    let device = Device { store: alone, dir: device.dir };
    assert_eq!(device.place("a", &source(&put)).await.unwrap(), "one");
    let other = PackageSource::archive("nats://packages/other", None).unwrap();
    let said = chain(&device.place("b", &other).await.unwrap_err());
    assert!(said.contains("not connected to the hub") && said.contains("goes on where it ended"), "{said}");
}
