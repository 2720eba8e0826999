//! Tests of a WAL or a file with damaged bytes, of a killed process, and of a system that refuses to write. Some run in a
//! process of their own, which is this test program run again.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::faults::{Device, Image, PAGE};
use super::model::Model;
use super::*;

/// The variable with the directory of such a process.
const DIR: &str = "MUSTER_TEST_DIR";
/// The variable that says that a limit of the process makes its disk small.
const BYTES: &str = "MUSTER_TEST_BYTES";
/// The file that fills a small disk beside the database.
const BALLAST: &str = "ballast";
const PATIENCE: Duration = Duration::from_secs(30);

/// Several starts of a device, the last without a checkpoint: the files, and their contents after each step.
async fn history(dir: &Path, steps: u64) -> (Image, Vec<Model>) {
    let device = Device::open(dir, AMPLE).await;
    device.outbox.append(one(capabilities())).await.unwrap();
    device.outbox.fix_epoch(at(0)).await.unwrap();
    device.db.close().await;
    let device = Device::open(dir, AMPLE).await;
    device.never_write_back().await;
    let mut states = vec![device.state().await.unwrap()];
    for mark in 0..steps {
        device.outbox.append(one(entry(["a", "b"][mark as usize % 2], Failed, mark))).await.unwrap();
        states.push(device.state().await.unwrap());
    }
    let image = Image::of(dir);
    device.db.close().await;
    (image, states)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn a_damaged_log_keeps_everything_before_the_damage() {
    let base = tempfile::tempdir().unwrap();
    let (image, states) = block_on(history(base.path(), 20));
    let bites = (0.0..1.0_f64, prop_oneof![Just(None), (1..=255_u8).prop_map(Some)]);
    proptest!(ProptestConfig::with_cases(48), |((place, flip) in bites)| {
        let dir = tempfile::tempdir().unwrap();
        image.with_eaten_log(place, flip).put(dir.path());
        let state = block_on(async { Device::open(dir.path(), AMPLE).await.state().await.unwrap() });
        prop_assert!(states.contains(&state), "{state:?}");
    });
}

/// Damage to a file.
#[derive(Debug, Clone)]
enum Bite {
    Cut,
    Page(u8),
}

#[test]
fn a_damaged_file_is_read_correctly_or_moved_aside() {
    let base = tempfile::tempdir().unwrap();
    let truth = block_on(async {
        let (_, mut states) = history(base.path(), 60).await;
        // The WAL is checkpointed when the database is closed.
        Device::open(base.path(), AMPLE).await.db.close().await;
        states.pop().unwrap()
    });
    let whole = Image::of(base.path());
    assert!(whole.main_bytes() > 8 * PAGE && whole.log_bytes() == 0, "{} bytes", whole.main_bytes());
    let bites = (0.0..1.0_f64, prop_oneof![Just(Bite::Cut), Just(Bite::Page(0)), Just(Bite::Page(0x5a))]);
    proptest!(ProptestConfig::with_cases(64), |((place, bite) in bites)| {
        let dir = tempfile::tempdir().unwrap();
        let eaten = match bite {
            Bite::Cut => whole.with_cut_file(place),
            Bite::Page(byte) => whole.with_eaten_page(place, byte),
        };
        eaten.put(dir.path());
        block_on(check_eaten(dir.path(), &eaten, &truth));
    });
}

async fn check_eaten(dir: &Path, eaten: &Image, truth: &Model) {
    for life in 0..2 {
        let device = Device::open(dir, AMPLE).await;
        let aside = dir.join("agent.db.damaged-20270115T080000Z");
        match device.state().await {
            Ok(state) if aside.exists() || eaten.main_bytes() == 0 => {
                assert_eq!(state, Model::default(), "a new database begins with nothing, not even an epoch");
                if aside.exists() {
                    // SQLite may have filled up the last page before the damage was found.
                    let kept = std::fs::read(&aside).unwrap().len();
                    assert!((eaten.main_bytes()..eaten.main_bytes() + PAGE).contains(&kept), "{kept} bytes");
                }
                return device.db.close().await;
            }
            Ok(state) => assert_eq!(state, *truth),
            // Found while in use: the next start moves the file aside.
            Err(error) => assert!(life == 0 && matches!(error, Error::Damaged { .. }), "{error:?}"),
        }
        device.db.close().await;
    }
}

/// Runs a test of this program again, as a process of its own.
fn again(name: &str, prepare: &str, dir: &Path, bytes: Option<u64>) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{prepare} exec \"$0\" --exact \"$1\" --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .arg(format!("outbox::tests::damage::{name}"))
        .env(DIR, dir);
    if let Some(bytes) = bytes {
        command.env(BYTES, bytes.to_string());
    }
    command
}

#[test]
fn what_was_answered_before_a_kill_is_there_after_it() {
    if let Some(dir) = std::env::var_os(DIR) {
        return block_on(write_for_ever(Path::new(&dir)));
    }
    let dir = tempfile::tempdir().unwrap();
    let seed =
        std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut rng = fastrand::Rng::with_seed(seed);
    for life in 0..8 {
        let mut child = again("what_was_answered_before_a_kill_is_there_after_it", "", dir.path(), None)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let wanted = answered(dir.path()) + rng.u64(1..60);
        let begun = Instant::now();
        while answered(dir.path()) < wanted {
            assert!(begun.elapsed() < PATIENCE, "SEED={seed}: {wanted} reports are not kept");
            std::thread::sleep(Duration::from_micros(rng.u64(1..2_000)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let answered = answered(dir.path());
        let state = block_on(async {
            let device = Device::open(dir.path(), AMPLE).await;
            let state = device.state().await.unwrap();
            device.db.close().await;
            state
        });
        assert!(
            state.head >= answered,
            "SEED={seed}, life {life}: {answered} answered, {} there",
            state.head
        );
        assert!(state.deployments.keys().copied().eq(1..=state.head), "SEED={seed}, life {life}: {state:?}");
    }
}

/// The last number that was answered.
fn answered(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("answered")).map_or(0, |file| file.len())
}

async fn write_for_ever(dir: &Path) {
    let device = Device::open(dir, AMPLE).await;
    let mut file = std::fs::File::options().create(true).append(true).open(dir.join("answered")).unwrap();
    // One more than was answered may be stored.
    let head = device.outbox.summary().await.unwrap().head;
    file.set_len(head).unwrap();
    for mark in head.. {
        device
            .outbox
            .append(one(entry("a", State::ALL[mark as usize % State::ALL.len()], mark)))
            .await
            .unwrap();
        file.write_all(b".").unwrap();
    }
}

#[test]
fn a_system_that_refuses_writes_is_named_and_loses_nothing_afterwards() {
    let name = "a_system_that_refuses_writes_is_named_and_loses_nothing_afterwards";
    if let Some(dir) = std::env::var_os(DIR) {
        return block_on(write_until_refused(Path::new(&dir)));
    }
    // A file must not exceed a limit: a write is refused half-way, at any byte.
    for bytes in [100_000, 120_001, 150_500] {
        let dir = tempfile::tempdir().unwrap();
        let end = again(name, "trap '' XFSZ;", dir.path(), Some(bytes)).output().unwrap();
        assert!(end.status.success(), "{bytes} bytes: {}", String::from_utf8_lossy(&end.stderr));
    }
    // A full disk.
    let dir = tempfile::tempdir().unwrap();
    if let Some(end) = in_own_world(name, "mount -t tmpfs -o size=512k none \"$DIR\"", dir.path()) {
        assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    }
}

#[test]
fn an_unwritable_directory_is_named_with_a_remedy_and_left_alone() {
    let name = "an_unwritable_directory_is_named_with_a_remedy_and_left_alone";
    if let Some(dir) = std::env::var_os(DIR) {
        let dir = Path::new(&dir);
        let device = "plant7/press-4".parse().unwrap();
        let text = Db::open(dir, &device, &crate::app::schema(), at(0)).unwrap_err().to_string();
        assert!(
            text.contains(&dir.display().to_string()) && text.contains("be writable by this user"),
            "{text}"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, states) = block_on(history(dir.path(), 3));
    let mount = "mount --bind \"$DIR\" \"$DIR\" && mount -o remount,bind,ro \"$DIR\"";
    if let Some(end) = in_own_world(name, mount, dir.path()) {
        assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    }
    image.put(dir.path());
    assert_eq!(block_on(async { Device::open(dir.path(), AMPLE).await.state().await.unwrap() }), states[3]);
}

/// Runs a test of this program again in a mount namespace of its own. `None` if this system does not permit mounts.
fn in_own_world(name: &str, mount: &str, dir: &Path) -> Option<std::process::Output> {
    let world = "unshare --map-root-user --mount sh -c";
    let mount = mount.replace("$DIR", &format!("${DIR}"));
    let probe = Command::new("sh").args(["-c", &format!("{world} '{mount}'")]).env(DIR, dir).output();
    if !probe.is_ok_and(|end| end.status.success()) {
        not_run(name, "this system lets nobody mount, so the test has not seen a disk of its own");
        return None;
    }
    let run = "exec \"$0\" --exact \"$1\" --nocapture";
    Some(again(name, &format!("exec {world} '{mount} && {run}' \"$0\" \"$1\";"), dir, None).output().unwrap())
}

/// Lists what a test could not try in the summary of `.ci/test`; CI refuses what `.ci/not-run-allowed` does not list.
fn not_run(name: &str, reason: &str) {
    eprintln!("NOT RUN  {name}: {reason}");
    if let Some(path) = std::env::var_os("MUSTER_NOT_RUN") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{name}: {reason}\n").as_bytes()).unwrap();
    }
}

/// Fills the disk until a write fails, makes room, and continues.
async fn write_until_refused(dir: &Path) {
    let limit = std::env::var(BYTES).ok().map(|bytes| bytes.parse().unwrap());
    let hard = getrlimit(Resource::Fsize).maximum;
    if limit.is_none() {
        std::fs::write(dir.join(BALLAST), vec![0; 128 * 1024]).unwrap();
    }
    let device = Device::open(dir, AMPLE).await;
    setrlimit(Resource::Fsize, Rlimit { current: limit, maximum: hard }).unwrap();
    let mut before = device.state().await.unwrap();
    let refused = loop {
        let mark = before.head + 1;
        match device.outbox.append(one(entry("a", Failed, mark))).await {
            Ok(()) => before.append(&[entry("a", Failed, mark)], AMPLE, 0),
            Err(error) => break error,
        }
        assert!(before.head < 10_000, "nothing was refused");
    };
    let text = refused.to_string();
    assert!(text.contains("agent.db: the disk") && text.contains("full"), "{text}");
    assert_eq!(
        device.state().await.unwrap(),
        before,
        "it can be read, and nothing of what was refused is there"
    );
    setrlimit(Resource::Fsize, Rlimit { current: hard, maximum: hard }).unwrap();
    _ = std::fs::remove_file(dir.join(BALLAST));
    let next = entry("a", Failed, before.head + 1);
    device.outbox.append(one(next.clone())).await.unwrap();
    before.append(&[next], AMPLE, 0);
    assert_eq!(device.state().await.unwrap(), before);
    device.db.close().await;
    assert_eq!(Device::open(dir, AMPLE).await.state().await.unwrap(), before, "also after a start");
}

#[tokio::test]
async fn values_that_the_agent_never_writes_are_damage() {
    let eaten = [
        "UPDATE outbox SET deployment = CAST(x'77e562' AS TEXT)",
        "UPDATE outbox SET bytes = -bytes",
        "UPDATE passage SET last = first - 1",
    ];
    for change in eaten {
        let dir = tempfile::tempdir().unwrap();
        let (db, outbox) = open(dir.path(), AMPLE).await;
        outbox.append(one(entry("web", State::Installed, 1))).await.unwrap();
        let epoch = outbox.fix_epoch(at(0)).await.unwrap();
        outbox.mark_sent(epoch, vec![1], at(0)).await.unwrap();
        db.close().await;
        rusqlite::Connection::open(dir.path().join("agent.db")).unwrap().execute(change, []).unwrap();

        let device = "plant7/press-4".parse().unwrap();
        let db = Db::open(dir.path(), &device, &crate::app::schema(), at(0)).unwrap();
        let found = Outbox::open(db.clone(), AMPLE).await.unwrap_err();
        assert!(matches!(found, crate::db::Error::Damaged { .. }), "{change}: {found}");
        db.close().await;
        let (_, outbox) = open(dir.path(), AMPLE).await;
        assert_eq!(outbox.summary().await.unwrap(), Summary::default(), "{change}: it was set aside");
    }
}

#[tokio::test]
async fn a_job_that_fails_beside_others_leaves_what_finds_a_row_as_the_rows_are() {
    let dir = tempfile::tempdir().unwrap();
    let (db, outbox) = open(dir.path(), AMPLE).await;
    let broken = async || {
        let append = outbox.job(|tables| {
            rows::append(tables, &one(entry("b", State::Failed, 2)))?;
            tables.connection.execute("no statement", []).map(drop)
        });
        db.run(append).await.unwrap_err();
    };
    for mark in 0..20 {
        let good = async |name| outbox.append(one(entry(name, State::Installed, mark))).await.unwrap();
        tokio::join!(good("a"), broken(), good("c"), broken(), good("d"));
        // Fails if index and table differ.
        db.run(outbox.job(Model::of)).await.unwrap();
    }
    assert_eq!(outbox.summary().await.unwrap().rows, 60);
}
