//! A client in Python, generated from `schemas/proto` by Google's own compiler: the field numbers are not only ours to read.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use muster_tests::not_run::not_run;
use muster_tests::python::interpreter;
use tokio::process::Command;
use tokio::time::timeout;

use super::grpc::Stage;

/// Longest time of the whole client.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(180);

fn python(words: &[&str]) -> Command {
    let mut command = Command::new(interpreter());
    command.args(words).env("PYTHONDONTWRITEBYTECODE", "1").kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_python_generated_from_the_protos_runs_a_plan() {
    let installed = python(&["-c", "import grpc, grpc_tools"]).output().await.unwrap();
    if !installed.status.success() {
        not_run("MRDS's client in Python", "grpcio-tools is not in .tools/venv; run `make tools`");
        return;
    }
    let stage = Stage::start(&["kind/worker"]).await;
    let folder = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &Path| path.display().to_string();
    let (script, protos) =
        (text(&here.join("tests/gateway/mrds_client.py")), text(&here.join("../schemas/proto")));
    let (addr, keys) = (stage.addr.to_string(), text(stage.authority.file("").as_path()));
    let run = python(&[&script, &addr, &keys, &protos, &text(folder.path())]).output();
    let output = timeout(CLIENT_TIME_MAX, run).await.expect("the client ends").unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.ends_with("done\n"), "{out}{said}");
}
