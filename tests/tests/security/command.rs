//! `muster auth`, `enroll` and `revoke` as a person meets them: refusals change nothing and say what to do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use muster_identity::KeyPair;
use muster_tests::system::program;
use serde_json::Value;

fn muster(dir: &Path, args: &[&str]) -> Output {
    Command::new(program("muster")).args(args).arg("--dir").arg(dir).env("NO_COLOR", "1").output().unwrap()
}

fn done(dir: &Path, args: &[&str]) -> String {
    let output = muster(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(dir: &Path, args: &[&str], code: i32) -> String {
    let output = muster(dir, args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    said
}

#[test]
fn keys_are_made_once_for_one_persons_eyes_and_never_written_over() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("auth");
    let said = done(&dir, &["auth", "init"]);
    assert!(said.contains("nats-server.conf") && said.contains("muster enroll"), "{said}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for name in
        ["operator.seed", "signers/device.seed", "creds/ingest.creds", "creds/push.creds", "roster.json"]
    {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    let before = std::fs::read(dir.join("operator.seed")).unwrap();
    let said = refused(&dir, &["auth", "init"], 1);
    assert!(said.contains("exists and is not overwritten"), "{said}");
    assert_eq!(std::fs::read(dir.join("operator.seed")).unwrap(), before);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_name_with_a_wildcard_is_refused_at_enrolment() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("auth");
    done(&dir, &["auth", "init"]);
    let (key, registry) = (KeyPair::new_user().public_key(), std::fs::read(dir.join("roster.json")).unwrap());
    for name in [
        "*/press-4",
        "plant7/*",
        "plant7/>",
        "plant7/a.b",
        "plant7/A",
        "plant7/{{tag(site)}}",
        "plant7",
        "plant7/",
        "a/b/c",
    ] {
        let said = refused(&dir, &["enroll", name, "--key", &key], 2);
        assert!(said.contains("is not"), "{said}");
    }
    assert_eq!(std::fs::read(dir.join("roster.json")).unwrap(), registry);
}

#[test]
fn refusals_say_what_to_do_and_change_nothing() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("auth");
    let said = refused(&dir, &["auth", "list"], 2);
    assert!(said.contains("muster auth init"), "{said}");
    done(&dir, &["auth", "init"]);
    let pair = KeyPair::new_user();
    let key = pair.public_key();
    done(&dir, &["enroll", "plant7/press-4", "--key", &key]);
    let registry = std::fs::read(dir.join("roster.json")).unwrap();
    let (seed, other) = (pair.seed().unwrap(), KeyPair::new_user().public_key());
    for (args, expected) in [
        (&["enroll", "plant7/press-5"][..], "muster-agent key"),
        (&["enroll", "plant7/press-5", "--key", &key], "this key belongs to plant7/press-4"),
        (&["enroll", "plant7/press-4", "--key", &other], "--replace"),
        (&["enroll", "plant7/press-5", "--key", &seed], "is not the public key of a user"),
        (&["revoke", "plant7/press-9"], "never enrolled"),
        (&["revoke", "--key", &seed], "is not the public key of a user"),
        (&["revoke", "--key", "viewer"], "is not the public key of a user"),
        (&["auth", "creds", "viewer", "--name", "../x"], "is not a valid"),
    ] {
        let output = muster(&dir, args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(expected), "{args:?}: {said}");
        assert!(!said.contains(&seed), "a seed is shown");
    }
    assert_eq!(std::fs::read(dir.join("roster.json")).unwrap(), registry);
}

#[test]
fn an_enrolment_is_a_token_for_the_devices_own_key() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("auth");
    done(&dir, &["auth", "init"]);
    let key = KeyPair::new_user().public_key();
    let token = done(&dir, &["enroll", "plant7/press-4", "--key", &key, "--valid", "12h"]);
    let known = muster_identity::jwt::read(&token).unwrap();
    assert_eq!((known.sub.as_str(), known.name.as_str()), (key.as_str(), "plant7/press-4"));
    assert_eq!(known.exp, Some(known.iat + 12 * 60 * 60));
    let again = done(&dir, &["enroll", "plant7/press-4"]);
    assert_eq!(muster_identity::jwt::read(&again).unwrap().sub, key, "renewed for the key that is recorded");
    let list: Value = serde_json::from_str(&done(&dir, &["auth", "list", "--format", "json"])).unwrap();
    let devices = list["users"].as_array().unwrap().iter().filter(|user| user["role"] == "device").count();
    assert_eq!(devices, 1);
}

#[test]
fn a_lab_may_make_keys_here_and_is_told_so() {
    let place = tempfile::tempdir().unwrap();
    let (dir, file) = (place.path().join("auth"), place.path().join("press-4.creds"));
    done(&dir, &["auth", "init"]);
    let name = file.display().to_string();
    let said = done(&dir, &["enroll", "plant7/press-4", "--creds-file", &name]);
    assert!(said.contains("created HERE"), "{said}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let seed = |text: &str| muster_identity::creds::seed(text).unwrap().to_owned();
    let before = seed(&std::fs::read_to_string(&file).unwrap());
    done(&dir, &["enroll", "plant7/press-4", "--creds-file", &name]);
    assert_eq!(seed(&std::fs::read_to_string(&file).unwrap()), before, "renewed for its own key");
    std::fs::write(&file, "a letter").unwrap();
    refused(&dir, &["enroll", "plant7/press-4", "--creds-file", &name], 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a letter");
}
