//! Names on the command line, on a real server: deployments by the name that their publisher gave them, devices by their
//! name alone, and what a shell completes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use muster_contract::DeviceKey;
use muster_simulator::repository::write_devices;
use muster_tests::not_run::not_run;
use muster_tests::rollouts::says;
use muster_tests::system::{System, program};
use serde_json::Value;

const DEVICES: [&str; 3] = ["plant7/press-1", "plant7/press-2", "plant8/press-1"];
const GATEWAY: &str = "6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10";
/// Prints what a shell offers as completions of a line, in order.
struct Shell {
    name: &'static str,
    /// The name in the summary if the shell is not installed; bash always is, because our scripts need it.
    not_run: Option<&'static str>,
    /// Options before the script.
    flags: &'static [&'static str],
    script: &'static str,
}

const SHELLS: [Shell; 3] = [
    Shell {
        name: "bash",
        not_run: None,
        flags: &["-c"],
        script: r#"source <(muster completions bash)
COMP_WORDS=(muster "$@"); COMP_CWORD=$#; _muster_names muster "${!#}" ""; echo "${COMPREPLY[@]}""#,
    },
    // The completions of zsh work in its line editor alone, so a second zsh has a terminal and records what it offers.
    Shell {
        name: "zsh",
        not_run: Some("completions in zsh"),
        flags: &["-f", "-c"],
        script: r#"zmodload zsh/zpty
export FOUND=$(mktemp)
zpty shell zsh -f -i
zpty -w shell 'PS1= LISTMAX=0; setopt noautolist; autoload -Uz compinit; compinit -u -D; source <(muster completions zsh)
compadd() { local -a all; if [[ " ${@[1,(i)--]}" != *" -"[OAD]* ]]; then builtin compadd -O all "$@"; print -l -- $all >> $FOUND; fi; builtin compadd "$@" }
finish() { zle complete-word; print do""ne }; zle -N finish; bindkey "^I" finish
zstyle ":completion:*" insert-tab false
zle-line-init() { print rea""dy }; zle -N zle-line-init'
zpty -r shell said '*ready*'
zpty -w -n shell "muster ${(j: :)@}"$'\t'
zpty -r shell said '*done*'
print -r -- ${(ou)${(f)"$(<$FOUND)"}}
rm $FOUND"#,
    },
    Shell {
        name: "fish",
        not_run: Some("completions in fish"),
        flags: &["--no-config", "-c"],
        script: r#"muster completions fish | source
complete -C (string join -- ' ' muster $argv) | string replace -r '\t.*' '' | sort -u | string join ' '"#,
    },
];
/// Longest time that a shell takes to complete a line.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn people_name_deployments_and_devices_and_shells_complete_them() {
    let system = System::start().await;
    published(&system).await;

    let list = said(&system, &["status"], 0).await;
    assert!(list.contains("gateway") && !list.contains(GATEWAY), "a UUID is shown by its name: {list}");
    let one = said(&system, &["status", "gateway"], 0).await;
    assert!(one.contains(&format!("{GATEWAY}  gateway")), "{one}");
    let device = said(&system, &["device", "press-2"], 0).await;
    assert!(device.contains("plant7/press-2"), "{device}");
    let why = said(&system, &["why", "gateway", "--device", "press-2"], 0).await;
    assert!(why.contains("plant7/press-2"), "{why}");
    let watched = said(&system, &["watch", "gateway", "--name", "night", "--within", "1s"], 0).await;
    assert!(watched.contains("gateway") && !watched.contains(GATEWAY), "{watched}");
    governed(&system).await;
    for words in [
        &["groups", "ring", "--deployment", "gateway"][..],
        &["subscription", "list"],
        &["changes", "--since", "0"],
        &["timeline", "gateway"],
        &["device", "press-2"],
        &["why", "gateway"],
        &["devices"],
        &["status", "--device", "press-2"],
        &["status", "gateway", "--site", "plant7"],
        &["diff", "gateway", "--from", "0"],
        &["rollout", "list"],
        &["rollout", "show", "gateway"],
        &["rollout", "history", "gateway"],
    ] {
        let shown = said(&system, words, 0).await;
        assert!(shown.contains("gateway") && !shown.contains(GATEWAY), "{words:?}: {shown}");
    }
    let words = "device 'press-1' is the name of several: say which of plant7/press-1, plant8/press-1";
    let refused = system.muster(&["device", "press-1"]).await;
    assert_eq!(
        (refused.status.code(), text(&refused.stderr)),
        (Some(1), format!("muster: {words}\n")),
        "all of that name are told"
    );
    let refused = system.muster(&["status", "--device", "press-3"]).await;
    let says = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && says.contains("no site has a device 'press-3'"), "{says}");

    for shell in &SHELLS {
        completes(&system, shell).await;
    }
}

/// Checks the completions of a shell, if it is installed.
async fn completes(system: &System, shell: &Shell) {
    let name = shell.name;
    if let Some(untried) = shell.not_run.filter(|_| !is_installed(name)) {
        not_run(untried, "the system does not have this shell");
        return;
    }
    for (line, completed) in [
        (&["status", "g"][..], "gateway"),
        (&["why", "gateway", "--device", "plant"], "plant7/ plant8/"),
        (&["device", "plant7/press-"], "plant7/press-1 plant7/press-2"),
        (&["site", ""], "plant7 plant8"),
        (&["stat"], "status"),
    ] {
        assert_eq!(completions(system, shell, line).await, completed, "{name}: {line:?}");
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A release of the gateway, which sleeps so long.
fn gateway(seconds: u32) -> String {
    format!(
        "id: {GATEWAY}\nmetadata: {{name: gateway}}\nspec:\n  applicationId: com-example-gateway\n  deploymentProfile:\n    \
         type: process\n    components:\n      - name: main\n        properties: {{command: sleep, args: [\"{seconds}\"]}}\n"
    )
}

/// Commits a rollout and a release that it holds, and pauses it.
async fn governed(system: &System) {
    let rollout =
        "apiVersion: muster/v1\nkind: Rollout\nwaves:\n  - {name: canary, devices: [plant7/press-1]}\n";
    system.repository.write("fleet/rollout.yaml", rollout).unwrap();
    system.repository.write("fleet/gateway.yaml", &gateway(3600)).unwrap();
    system.repository.commit("the next gateway").await.unwrap();
    says(system, &["rollout", "list"], "waiting for a release").await;
    said(system, &["rollout", "pause", "gateway"], 0).await;
}

async fn published(system: &System) {
    let devices: Vec<DeviceKey> = DEVICES.iter().map(|key| key.parse().unwrap()).collect();
    write_devices(&system.repository, &devices).unwrap();
    system.repository.write("fleet/gateway.yaml", &gateway(86400)).unwrap();
    system.repository.write("fleet/labels.yaml", "ring: stable\n").unwrap();
    system.repository.commit("the gateway everywhere").await.unwrap();
    system
        .eventually("the gateway is known by its name", async || {
            let output = system.muster(&["status", "gateway", "--format", "json"]).await;
            let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| text(&output.stderr))?;
            let view = &answer["view"];
            if view["deployment"] == GATEWAY && view["targets"] == 3 { Ok(()) } else { Err(view.to_string()) }
        })
        .await;
}

async fn completions(system: &System, shell: &Shell, words: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let folder = program("muster").parent().unwrap().display().to_string();
    let path = std::env::var("PATH").unwrap();
    let mut command = tokio::process::Command::new(shell.name);
    command.args(shell.flags).arg(shell.script);
    // Fish gives a script all words after it; the first one names the program in the other shells.
    command.args((shell.name != "fish").then_some(shell.name)).args(words);
    command.env("PATH", format!("{folder}:{path}")).env("HOME", home.path()).current_dir(home.path());
    command.env("MUSTER_NATS_URL", format!("nats://{}", system.address())).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    text(&output.stdout).trim().to_owned()
}

async fn said(system: &System, words: &[&str], code: i32) -> String {
    let output = system.muster(words).await;
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
