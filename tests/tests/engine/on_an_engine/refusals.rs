//! The errors that a person sees where the fleet cannot start: no engine, no images, a port that is taken.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use muster_tests::containers::Stack;

#[test]
fn without_an_engine_no_image_is_made_and_it_says_what_to_do() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose/offline.sh");
    let made = Command::new(script).env("DOCKER_HOST", "unix:///no/such/engine.sock").output().unwrap();
    assert!(!made.status.success());
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(said.contains("no Docker engine answers") && said.contains(".ci/engine"), "{said}");
}

#[test]
fn without_programs_no_image_is_made_and_it_says_which_is_missing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose/offline.sh");
    let nowhere = tempfile::tempdir().unwrap();
    let made = Command::new(script).env("PROGRAMS", nowhere.path()).output().unwrap();
    assert!(!made.status.success());
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(said.contains("there is no muster in"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let stack = Stack::new(
        "muster-check-port",
        &["compose.yaml"],
        &[("MUSTER_PORT", &port), ("MUSTER_WS_PORT", "0")],
    );
    let refused = stack.compose(&["up", "--detach", "--no-build", "nats"]).unwrap_err();
    assert!(refused.contains(&port) && refused.contains("in use"), "{refused}");
}

#[test]
fn an_image_that_is_missing_is_named() {
    let stack = Stack::new("muster-check-image", &["compose.yaml"], &[("MUSTER_TAG", "no-such-tag")]);
    let refused = stack.compose(&["up", "--detach", "--no-build", "init"]).unwrap_err();
    // The plugin names the image, docker-compose the service that it is of.
    assert!(refused.contains("no-such-tag") || refused.contains("'init' needs to be built"), "{refused}");
}
