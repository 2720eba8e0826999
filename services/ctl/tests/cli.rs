//! The program as a person or a script meets it: usage, exit codes, where text goes, colours. No server is needed.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use muster_identity::KeyPair;

/// The program in an environment without anybody's settings.
fn muster(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.args(words).env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    muster(words).output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A time of the past.
const THEN: &str = "2026-11-20T10:00:00Z";

/// An address at which nothing listens.
fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("nats://{}", listener.local_addr().unwrap())
}

#[test]
fn help_and_version_are_data() {
    for words in [&["--help"][..], &["help"], &["status", "--help"], &["--version"], &["version"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", err(&output));
        assert!(!out(&output).is_empty() && err(&output).is_empty(), "{words:?}");
    }
    assert!(out(&run(&["--version"])).starts_with("muster 0."), "{}", out(&run(&["--version"])));
    assert!(out(&run(&["version", "--format", "json"])).starts_with(r#"{"version":"0."#));
}

#[test]
fn every_command_explains_itself() {
    let help = run(&["--help"]);
    for command in
        ["status", "devices", "device", "site", "fleet", "watch", "audit", "quarantine", "apply", "publisher"]
    {
        assert!(out(&help).contains(&format!("\n  {command} ")), "{command} is not in --help");
        assert_eq!(run(&[command, "--help"]).status.code(), Some(0));
    }
    assert!(out(&help).contains("Examples:") && out(&help).contains("Exit codes:"), "{}", out(&help));
}

#[test]
fn what_can_be_asked_of_the_past_says_how_with_an_example() {
    for command in ["status", "devices", "device", "site", "fleet", "why"] {
        let help = run(&[command, "--help"]);
        let (usage, examples) = out(&help).split_once("Examples:").unwrap();
        assert!(["--at ", "--at-seq ", "--event-time "].iter().all(|flag| usage.contains(flag)), "{usage}");
        let of_this = |line: &str| line.trim_start().starts_with(&format!("muster {command} "));
        assert!(examples.lines().any(|line| of_this(line) && line.contains(" --at")), "{examples}");
    }
}

#[test]
fn wrong_usage_is_talk_and_code_2() {
    for (words, expected) in [
        (&[][..], "Usage:"),
        (&["states"], "'status'"),
        (&["status", "--output", "everything", "web"], "summary, brief, all, detail"),
        (&["status", "--output", "all"], "belongs to a DEPLOYMENT or a filter"),
        (&["status", "web", "--generation", "3"], "--device <DEVICE>"),
        (&["status", "web", "--device", "Press-4"], "'Press-4' is not a valid device"),
        (&["status", "web", "--format", "resourcegroup", "--budget", "10"], "is not in 2048.."),
        (&["status", "Web Server"], "'Web Server' is not a valid deployment: 1 to 63 characters"),
        (&["device", "Press-4"], "'Press-4' is not a valid device"),
        (&["device", "plant7/Press"], "'Press' is not a valid device"),
        (&["apply", "--device", "plant7/press-4"], "--file"),
        (&["watch", "web", "--commit", "9f2c1e5"], "--until"),
        (&["watch", "web", "--until", "converged", "--commit", "HEAD"], "'HEAD' names no commit: 7 to 64"),
        (&["quarantine", "show", "0"], "0 is not in 1.."),
        (&["quarantine", "list", "--limit", "0"], "must be a number from 1 to 100000"),
        (&["fleet", "--at", "tomorrow"], "must be a time: 2026-11-20T10:00:00Z, 2h or 3d"),
        (&["timeline", "--since", "tomorrow"], "must be a time: 2026-11-20T10:00:00Z, 2h or 3d"),
        (&["audit", "--at-seq", "7"], "'--at-seq'"),
        (&["quarantine"], "list"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", err(&output));
        assert!(out(&output).is_empty() && err(&output).contains(expected), "{words:?}: {}", err(&output));
    }
}

#[test]
fn a_flag_that_would_be_passed_over_is_refused_beside_the_other() {
    for (words, flags) in [
        (&["status", "web", "--group-by", "region", "--limit", "3"][..], ["--group-by", "--limit"]),
        (&["status", "web", "--group-by", "region", "--after", "a/b"], ["--group-by", "--after"]),
        (&["status", "web", "--group-by", "region", "--list", "apps"], ["--group-by", "--list"]),
        (&["status", "web", "--group-by", "region", "--aggregate"], ["--group-by", "--aggregate"]),
        (&["status", "web", "--group-by", "region", "--budget", "4096"], ["--group-by", "--budget"]),
        (&["status", "web", "--group-by", "region", "--format", "emco"], ["--group-by", "--format"]),
        (&["status", "web", "--group-by", "region", "--format", "resourcegroup"], ["--group-by", "--format"]),
        (&["status", "web", "--list", "components", "--output", "summary"], ["--list", "--output"]),
        (&["status", "web", "--list", "components", "--axis", "ready"], ["--list", "--axis"]),
        (&["status", "web", "--list", "apps", "--format", "resourcegroup"], ["--list", "--format"]),
        (&["status", "web", "--axis", "ready", "--format", "resourcegroup-json"], ["--axis", "--format"]),
        (&["status", "web", "--type", "rsync"], ["--type", "--format emco"]),
        (&["status", "web", "--instance", "3f2a", "--at-seq", "7"], ["--instance", "--at-seq"]),
        (&["status", "web", "--instance", ""], ["--instance", "a value is required"]),
        (&["status", "web", "--type", "rsync", "--axis", "ready", "--format", "emco"], ["--type", "--axis"]),
        (&["status", "web", "--type", "rsync", "--list", "apps", "--format", "emco"], ["--type", "--list"]),
        (&["status", "web", "--limit", "3", "--format", "resourcegroup"], ["--limit", "--format"]),
        (&["status", "web", "--output", "all", "--format", "resourcegroup"], ["--output", "--format"]),
        (&["status", "web", "--limit", "3", "--output", "summary"], ["--limit", "--output summary"]),
        (&["status", "web", "--after", "a/b", "--output", "summary"], ["--after", "--output summary"]),
        (&["status", "web", "--format", "resourcegroup", "--after", "a/b"], ["--after", "--format"]),
        (
            &["status", "web", "--format", "resourcegroup", "--aggregate", "--after", "a/b"],
            ["--after", "--format"],
        ),
        (&["status", "web", "--aggregate"], ["--aggregate", "--format"]),
        (&["why", "web", "--device", "a/b", "--limit", "3"], ["--device", "--limit"]),
        (&["why", "web", "--at", THEN, "--at-seq", "7"], ["--at", "--at-seq"]),
        (&["devices", "--at-seq", "7", "--at", THEN], ["--at", "--at-seq"]),
        (&["device", "a/b", "--at", THEN, "--at-seq", "7"], ["--at", "--at-seq"]),
        (&["site", "a", "--at", THEN, "--at-seq", "7"], ["--at", "--at-seq"]),
        (&["fleet", "--at", THEN, "--at-seq", "7"], ["--at", "--at-seq"]),
        (&["fleet", "--at", THEN, "--event-time", "2026-11-20T10:00:01Z"], ["--event-time", "--at"]),
        (&["status", "--at", THEN, "--about", "2026-11-20T10:00:01Z"], ["--event-time", "--at"]),
        (&["completions", "bash", "--format", "json"], ["--format", "completions"]),
        (&["fleet", "--format", "emco"], ["--format", "status"]),
    ] {
        // Said without a server, and before one is looked for.
        let output = run(&[&["--nats-url", &nowhere()], words].concat());
        let shown = err(&output);
        assert_eq!((output.status.code(), out(&output)), (Some(2), ""), "{words:?}: {shown}");
        assert!(flags.iter().all(|flag| shown.contains(flag)), "{words:?}: {shown}");
    }
}

#[test]
fn all_bad_settings_are_named_at_once() {
    let words = ["--nats-url=http://me:secret@a", "--creds=/no/file", "--timeout=soon", "status"];
    let output = run(&words);
    assert_eq!(output.status.code(), Some(2));
    let shown = err(&output);
    for setting in ["--nats-url", "MUSTER_NATS_URL", "--creds", "--timeout"] {
        assert!(shown.contains(setting), "{shown}");
    }
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn nobody_at_the_address_is_said_at_once_and_once() {
    let url = nowhere();
    for output in [
        run(&["--nats-url", &url, "status"]),
        run(&["--nats-url", &url, "watch", "web", "--until", "converged"]),
        muster(&["fleet"]).env("MUSTER_NATS_URL", &url).output().unwrap(),
    ] {
        assert_eq!(output.status.code(), Some(2));
        let shown = err(&output);
        assert!(shown.starts_with(&format!("muster: no NATS server can be reached at {url}")), "{shown}");
        assert_eq!(shown.matches("refused").count(), 1, "{shown}");
        assert_eq!(shown.lines().count(), 1, "{shown}");
    }
}

#[test]
fn a_listener_that_is_no_nats_server_is_given_up_within_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let output = run(&["--nats-url", &url, "--timeout", "200ms", "status"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("does not answer within 200ms"), "{}", err(&output));
}

#[test]
fn a_context_of_the_nats_cli_says_where_the_server_is() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/nats/context");
    std::fs::create_dir_all(&folder).unwrap();
    let url = nowhere();
    std::fs::write(folder.join("hub.json"), format!(r#"{{"url": "{url}", "creds": ""}}"#)).unwrap();
    let with_home = |words: &[&str]| muster(words).env("HOME", home.path()).output().unwrap();
    let by_flag = with_home(&["--context", "hub", "status"]);
    assert!(err(&by_flag).contains(&url), "{}", err(&by_flag));
    let by_variable =
        muster(&["status"]).env("HOME", home.path()).env("MUSTER_CONTEXT", "hub").output().unwrap();
    assert!(err(&by_variable).contains(&url), "{}", err(&by_variable));
    let unknown = with_home(&["--context", "hob", "status"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("cannot read the nats context 'hob'"), "{}", err(&unknown));
}

#[test]
fn output_that_is_no_terminal_has_no_colours() {
    for variables in [&[][..], &[("NO_COLOR", "1")], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]] {
        let output = muster(&["--help"]).envs(variables.iter().copied()).output().unwrap();
        assert!(!out(&output).contains('\u{1b}'), "{variables:?}");
    }
    let forced = muster(&["--help"]).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(out(&forced).contains('\u{1b}'), "CLICOLOR_FORCE is the way to colours in a pipe");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child =
        muster(&["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The script is longer than a pipe holds, so the write after this one fails.
    drop(child.stdout.take());
    let mut talk = String::new();
    child.stderr.take().unwrap().read_to_string(&mut talk).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{talk}");
    assert!(talk.is_empty(), "{talk}");
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && out(&output).contains("quarantine"), "{shell}");
    }
}

/// A listener that greets as a NATS server does and answers what is said to it with one line.
fn refusing(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A client that only probes the port is gone before the greeting.
            let _ = stream.write_all(b"INFO {\"server_id\":\"X\",\"version\":\"2.15.1\",\"auth_required\":true,\"jetstream\":true,\"headers\":true,\"max_payload\":1048576}\r\n");
            let mut heard = [0; 1024];
            while stream.read(&mut heard).is_ok_and(|count| count > 0) {
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    url
}

#[test]
fn wrong_credentials_are_said_at_once_and_nothing_else_is() {
    let url = refusing("-ERR 'Authorization Violation'\r\n");
    let output = run(&["--nats-url", &url, "--timeout", "30s", "status"]);
    let shown = err(&output);
    assert_eq!((output.status.code(), shown.lines().count()), (Some(2), 1), "{shown}");
    assert!(
        shown.starts_with(&format!("muster: authorization violation: the NATS server at {url}")),
        "{shown}"
    );
}

/// A listener that is a NATS server without JetStream: nobody answers anything.
fn without_streams() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(|| answer_nobody(stream));
        }
    });
    url
}

fn answer_nobody(mut stream: TcpStream) -> Option<()> {
    const NOBODY: &str = "NATS/1.0 503\r\n\r\n";
    let info =
        r#"{"server_id":"X","version":"2.15.1","jetstream":true,"headers":true,"max_payload":1048576}"#;
    stream.write_all(format!("INFO {info}\r\n").as_bytes()).ok()?;
    let mut subscriptions = Vec::new();
    for line in BufReader::new(stream.try_clone().ok()?).lines() {
        let line = line.ok()?;
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let said = match words[..] {
            ["PING"] => "PONG\r\n".to_owned(),
            ["SUB", subject, sid] => {
                subscriptions.push((subject.trim_end_matches('*').to_owned(), sid.to_owned()));
                continue;
            }
            ["PUB", _, reply, _] => {
                let (_, sid) = subscriptions.iter().find(|(subject, _)| reply.starts_with(subject))?;
                let length = NOBODY.len();
                format!("HMSG {reply} {sid} {length} {length}\r\n{NOBODY}\r\n")
            }
            _ => continue,
        };
        stream.write_all(said.as_bytes()).ok()?;
    }
    None
}

#[test]
fn a_hub_that_does_not_answer_has_no_empty_quarantine() {
    let url = without_streams();
    for words in [&["list"][..], &["show", "7"], &["requeue", "7"], &["drop", "7"]] {
        let output = run(&[&["--nats-url", &url, "--timeout", "2s", "quarantine"], words].concat());
        let shown = err(&output);
        assert_eq!((output.status.code(), out(&output)), (Some(2), ""), "{words:?}: {shown}");
        let cause = "no muster-ingest answers on muster.ingest.quarantine.0";
        assert!(shown.contains(cause), "{words:?}: {shown}");
    }
}

/// `muster auth init` and a device that is in; the directory.
fn with_a_device(place: &tempfile::TempDir) -> String {
    let dir = place.path().join("auth").display().to_string();
    let key = KeyPair::new_user().public_key();
    for words in [&["auth", "init"][..], &["enroll", "plant7/press-4", "--key", &key]] {
        let output = run(&[words, &["--dir", &dir]].concat());
        assert!(output.status.success(), "{}", err(&output));
    }
    dir
}

#[test]
fn a_revoked_key_is_noted_whether_or_not_anybody_reads_the_new_token() {
    let place = tempfile::tempdir().unwrap();
    let dir = with_a_device(&place);
    let replace = |key: &str| {
        let words = ["--nats-url", &nowhere(), "enroll", "plant7/press-4", "--replace", "--key", key];
        muster(&[&words[..], &["--dir", &dir]].concat())
    };
    let key = KeyPair::new_user().public_key();
    let output = replace(&key).output().unwrap();
    let shown = err(&output);
    assert!(output.status.code() == Some(2) && shown.contains("NO SERVER KNOWS YET"), "{shown}");
    assert_eq!(muster_identity::jwt::read(out(&output).trim()).unwrap().sub, key, "the token is there");

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = replace(&KeyPair::new_user().public_key()).stdout(writer).output().unwrap();
    let shown = err(&output);
    assert!(output.status.code() == Some(2) && shown.contains("NO SERVER KNOWS YET"), "{shown}");
}

#[test]
fn a_reader_that_takes_its_time_keeps_nobody_from_the_directory_of_keys() {
    let place = tempfile::tempdir().unwrap();
    let dir = with_a_device(&place);
    let path = place.path().join("auth/roster.json");
    let mut registry: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let users = registry["users"].as_array_mut().unwrap();
    // More than a pipe holds, so that who prints it waits for its reader.
    *users = vec![users[0].clone(); 2_000];
    std::fs::write(&path, registry.to_string()).unwrap();
    let mut pager = muster(&["auth", "list", "--dir", &dir]).stdout(Stdio::piped()).spawn().unwrap();
    let mut page = BufReader::new(pager.stdout.take().unwrap());
    page.read_line(&mut String::new()).unwrap();
    assert!(pager.try_wait().unwrap().is_none(), "it has printed all of it");

    let mut other = muster(&["auth", "creds", "viewer", "--name", "anna", "--dir", &dir]).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while other.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            other.kill().unwrap();
            pager.kill().unwrap();
            panic!("the directory is kept while a page is read");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(other.wait().unwrap().success());
    page.read_to_string(&mut String::new()).unwrap();
    assert!(pager.wait().unwrap().success());
}

#[test]
fn a_key_to_put_out_is_a_key_and_a_seed_is_not_repeated() {
    let place = tempfile::tempdir().unwrap();
    let dir = with_a_device(&place);
    let seed = KeyPair::new_user().seed().unwrap();
    for given in ["ingest", "plant7/press-4", &seed] {
        let output = run(&["--nats-url", &nowhere(), "revoke", "--key", given, "--dir", &dir]);
        let shown = err(&output);
        assert!(output.status.code() == Some(1) && shown.contains("is not the public key"), "{shown}");
        assert!(!shown.contains(&seed[1..]), "a seed is shown");
    }
    assert!(!out(&run(&["auth", "list", "--dir", &dir])).contains(" out "), "no user was revoked");
}
