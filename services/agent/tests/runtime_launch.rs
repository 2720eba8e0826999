//! The process runtime, with real processes: what a workload gets to see, and why it cannot be started.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod runtime_kit;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use muster_agent::runtime::code;
use runtime_kit::{Device, script, shell, unit};
use serde_json::json;

const READY_AND_STAY: &str = "touch ready; exec sleep 600";

#[tokio::test]
async fn a_unit_sees_its_own_environment_and_nothing_of_the_agents() {
    let device = Device::new();
    let script = "env > env; for argument; do echo \"$argument\" >> arguments; done";
    let mut properties = shell(script, json!({"type": "exit"}));
    properties["args"]
        .as_array_mut()
        .unwrap()
        .extend(["sh", "--port=$(PORT)", "$(MODE) $$(MODE) $(NONE)"].map(Into::into));
    properties["env"] = json!({"MODE": "document", "GREETING": "a b=c", "MUSTER_UNIT": "forged"});
    let mut one = unit("one", properties.clone());
    one.environment =
        [("PORT", "8080"), ("MODE", "parameter")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let two = unit("two", properties);
    device.start(&one).await;
    device.start(&two).await;

    assert_eq!(device.lines(&one, "arguments"), ["--port=8080", "parameter $(MODE) $(NONE)"]);
    assert_eq!(device.lines(&two, "arguments"), ["--port=$(PORT)", "document $(MODE) $(NONE)"]);
    let environment: BTreeSet<_> = device.lines(&one, "env").into_iter().collect();
    let mark = format!("MUSTER_UNIT=plant/press/line/one/{}", one.digest_prefix());
    for line in ["PORT=8080", "MODE=parameter", "GREETING=a b=c", &mark] {
        assert!(environment.contains(line), "{line} in {environment:?}");
    }
    let known =
        ["PORT", "MODE", "GREETING", "MUSTER_UNIT", "MUSTER_DATA_DIR", "PATH", "HOME", "USER", "LOGNAME"];
    let harmless = ["SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"];
    let stranger = environment
        .iter()
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| !known.contains(name) && !harmless.contains(name) && !name.starts_with("LC_"));
    assert_eq!(stranger, None, "tests run with CARGO_… and more in their environment");
}

#[tokio::test]
async fn a_unit_that_cannot_be_started_says_what_to_check() {
    let device = Device::new();
    let file = |name: &str, text: &str, mode: u32| {
        let path = device.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing_directory = device.path().join("nowhere").to_str().unwrap().to_owned();
    for (properties, parts) in [
        (json!({"command": "no-such-program"}), ["'no-such-program': not found in PATH (", "os error 2"]),
        (
            json!({"command": "./no-such-program"}),
            ["no such file (a relative path starts at ", "work/line/web)"],
        ),
        (json!({"command": file("plain", "#!/bin/sh\n", 0o644)}), ["chmod +x", "os error 13"]),
        (
            json!({"command": file("orphan", "#!/no/such/interpreter\n", 0o755)}),
            ["interpreter", "os error 2"],
        ),
        (json!({"command": file("noise", "\x01\x02\x03", 0o755)}), ["#!", "os error 8"]),
        (
            json!({"command": "true", "workingDir": missing_directory}),
            ["workingDir", "nowhere does not exist"],
        ),
        (json!({"command": "true", "args": ["x".repeat(200_000)]}), ["too large", "os error 7"]),
    ] {
        let error = device.try_start(&unit("web", properties)).await.unwrap_err();
        assert_eq!((error.code.as_str(), error.source.as_str()), (code::START_FAILED, "web"));
        for part in parts {
            assert!(error.message.contains(part), "{part}: {}", error.message);
        }
    }
    assert_eq!(device.pids(), [0; 0]);
}

#[tokio::test]
async fn a_data_directory_that_takes_nothing_is_named() {
    let device = Device::new();
    fs::write(device.path().join("work"), "a file in the way").unwrap();
    let error = device.try_start(&script("web", READY_AND_STAY)).await.unwrap_err();
    assert_eq!(error.code, code::START_FAILED);
    let named = device.path().join("work/line/web").display().to_string();
    assert!(error.message.contains(&named) && error.message.contains("--data-dir"), "{}", error.message);
    fs::remove_file(device.path().join("work")).unwrap();
    fs::write(device.path().join("logs"), "a file in the way").unwrap();
    let error = device.try_start(&script("web", READY_AND_STAY)).await.unwrap_err();
    assert!(error.message.contains("cannot open its log"), "{}", error.message);
}

#[tokio::test]
async fn a_named_working_directory_is_used_and_a_relative_one_is_made() {
    let device = Device::new();
    let elsewhere = device.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for (named, expected) in [
        (elsewhere.to_str().unwrap(), elsewhere.clone()),
        ("deep/er", device.path().join("work/line/job/deep/er")),
    ] {
        let mut properties = shell("pwd > \"$OUT\"", json!({"type": "exit"}));
        properties["workingDir"] = named.into();
        properties["env"] = json!({"OUT": device.path().join("out")});
        device.start(&unit("job", properties)).await;
        let used = fs::read_to_string(device.path().join("out")).unwrap();
        assert_eq!(used.trim(), fs::canonicalize(expected).unwrap().to_str().unwrap());
    }
}
