//! The ten-minute guide of `schemas/README.md` as a newcomer follows it: its commands as they are written, in a folder that
//! has nothing but `schemas`, until the first view. Only addresses are replaced by those of the test's hub.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use muster_identity::Role;
use muster_tests::example::Example;
use muster_tests::not_run::not_run;
use muster_tests::schemas;
use muster_tests::system::program;
use tokio::process::Command;

use super::{Parts, Stage, arg, table};

/// The part of the guide that is followed.
const BEGIN: &str = "## A first view in ten minutes";
/// The addresses and files of the guide.
const OPEN: &str = "nats://127.0.0.1:4222";
const SECURED: &str = "tls://hub.example:4222";
const CREDS: &str = "me.creds";
const AUTHORITY: &str = "ca.pem";
/// Makes the credentials of the guide.
const MAKE_CREDS: &str = "`muster auth creds subscriber --name me -o me.creds`";
/// Longest time of the installation: less than the ten minutes of the whole.
const INSTALLATION_MAX: Duration = Duration::from_secs(300);
/// The rows of `web` in the first table: nothing is reported yet.
const FIRST_TABLE: [(&str, [u64; 3]); 1] = [("waiting", [0, 0, 2])];

/// The commands of the guide that a newcomer enters in a shell, by block.
fn blocks() -> Vec<String> {
    let page = std::fs::read_to_string(schemas::folder().join("README.md")).unwrap();
    let part = page.split_once(BEGIN).unwrap().1.split("\n## ").next().unwrap();
    assert!(part.contains(MAKE_CREDS), "the guide says how credentials are made");
    let fenced = part.split("\n```sh\n").skip(1);
    fenced.map(|rest| rest.split_once("\n```").unwrap().0.to_owned()).collect()
}

/// The block of the guide with this word.
fn block(word: &str) -> String {
    let found: Vec<String> = blocks().into_iter().filter(|block| block.contains(word)).collect();
    assert_eq!(found.len(), 1, "one block of the guide has '{word}'");
    found.into_iter().next().unwrap()
}

/// Installs the client as the guide says. False, and named in the summary, if Python or its registry is not there.
async fn install(folder: &Path, test: &str) -> bool {
    std::os::unix::fs::symlink(schemas::folder(), folder.join("schemas")).unwrap();
    let mut command = shell(folder, &block("pip install"));
    let output = tokio::time::timeout(INSTALLATION_MAX, command.stderr(Stdio::piped()).output());
    let output = output.await.expect("the installation is a part of ten minutes").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Another failure is one of the guide.
    let lacks = ["ensurepip", "No matching distribution", "connection", "ConnectTimeout"];
    if !output.status.success() && lacks.iter().any(|reason| said.contains(reason)) {
        not_run(test, "python3 cannot make an environment with packages of PyPI here");
        return false;
    }
    assert!(output.status.success(), "{said}");
    true
}

/// A command of the guide, in the newcomer's folder.
fn shell(folder: &Path, block: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", block]).current_dir(folder);
    // Python writes no caches into the tree, and the newcomer has no other environment.
    command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH").env_remove("VIRTUAL_ENV");
    command.kill_on_drop(true);
    command
}

/// Runs a program of the guide until its first table.
async fn first_view(folder: &Path, line: &str) {
    let mut watch = Example::run(line, shell(folder, &format!("exec {line}")));
    table(&mut watch, &FIRST_TABLE).await;
    watch.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_has_a_first_view_of_an_open_hub_by_the_guide_as_written() {
    let stage = Stage::open().await;
    let folder = tempfile::tempdir().unwrap();
    if install(folder.path(), "the ten-minute guide on an open hub").await {
        let line = block(&format!("watch.py --url {OPEN}")).replace(OPEN, &stage.person[1]);
        first_view(folder.path(), &line).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_has_a_first_view_of_a_secured_hub_by_the_guide_as_written() {
    let stage = Stage::secured().await;
    let Parts::Secured(parts) = &stage.parts else { panic!("it is secured") };
    let hub = &parts.hub;
    let folder = tempfile::tempdir().unwrap();
    if !install(folder.path(), "the ten-minute guide on a secured hub").await {
        return;
    }
    // The operator's part.
    let words = MAKE_CREDS.trim_matches('`').strip_prefix("muster ").unwrap();
    let auth = arg(&hub.auth());
    let mut creds = Command::new(program("muster"));
    creds.args(words.split(' ')).args(["--dir", &auth]).current_dir(folder.path());
    let made = creds.output().await.unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(folder.path().join(CREDS).exists() && hub.creds(Role::Subscriber).exists());
    std::fs::copy(hub.authority().unwrap(), folder.path().join(AUTHORITY)).unwrap();

    let line = block(&format!("watch.py --url {SECURED}"));
    assert!(line.ends_with(&format!("--creds {CREDS} --tls-ca {AUTHORITY}")), "{line}");
    first_view(folder.path(), &line.replace(SECURED, &hub.url())).await;

    // The nats CLI writes this file for the block's first line.
    let contexts = folder.path().join("nats/context");
    std::fs::create_dir_all(&contexts).unwrap();
    let context = serde_json::json!({ "url": hub.url(), "creds": CREDS, "ca": AUTHORITY });
    std::fs::write(contexts.join("hub.json"), context.to_string()).unwrap();
    let block = block("nats context add");
    let line = block.lines().find(|line| line.contains("watch.py --context hub")).unwrap();
    let home = arg(folder.path());
    first_view(folder.path(), &format!("env XDG_CONFIG_HOME={home} {line}")).await;
}
