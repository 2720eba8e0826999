//! A real process: what signals do to it, what its exit code says, and what it prints.

// A failure in the kit below is the test's result, as in the tests themselves.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longest life of a ticker: one that hangs is killed, and what it logged is shown.
const LIFE_MAX: Duration = Duration::from_secs(15);

/// Built by Cargo together with the tests, beside their folder.
fn ticker() -> Command {
    let tests = std::env::current_exe().unwrap();
    let path: PathBuf = tests.ancestors().nth(2).unwrap().join("examples/ticker");
    assert!(path.exists(), "{} is missing: cargo build -p muster-service --example ticker", path.display());
    let mut command = Command::new(path);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A running ticker; killed if a test ends before it does.
struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
    seen: String,
    _alive: Sender<()>,
}

impl Running {
    fn start(words: &[&str]) -> Self {
        let mut running = Self::spawn(words);
        running.until("started");
        running
    }

    fn spawn(words: &[&str]) -> Self {
        let mut child = ticker().args(words).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let pid = Pid::from_child(&child);
        let (alive, ended) = channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(LIFE_MAX) == Err(RecvTimeoutError::Timeout) {
                kill_process(pid, Signal::KILL).unwrap();
            }
        });
        Self { child, log, seen: String::new(), _alive: alive }
    }

    /// Reads the log up to a line with `text`.
    fn until(&mut self, text: &str) -> String {
        let mut line = String::new();
        while self.log.read_line(&mut line).unwrap() > 0 {
            self.seen.push_str(&line);
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("it never said '{text}' but:\n{}", self.seen);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit code and everything it logged.
    fn end(mut self) -> (Option<i32>, String) {
        self.log.read_to_string(&mut self.seen).unwrap();
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.seen))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already in a test that went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = ticker().args(words).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn sigterm_and_sigint_drain_and_exit_with_zero() {
    for signal in [Signal::TERM, Signal::INT] {
        let ticker = Running::start(&[]);
        ticker.signal(signal);
        let (code, log) = ticker.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("stopping") && log.contains("stopped"), "{log}");
    }
}

#[test]
fn a_second_signal_leaves_at_once_even_when_a_worker_is_stuck() {
    let mut ticker = Running::start(&["--defect=hang"]);
    ticker.signal(Signal::TERM);
    ticker.until("stopping");
    ticker.signal(Signal::TERM);
    let (code, log) = ticker.end();
    assert_eq!(code, Some(130), "{log}");
}

#[test]
fn sigquit_leaves_at_once() {
    let ticker = Running::start(&["--defect=hang"]);
    ticker.signal(Signal::QUIT);
    assert_eq!(ticker.end().0, Some(130));
}

#[test]
fn a_failing_task_ends_the_process_with_one_and_its_causes_once() {
    let (code, _, log) = run(&["--defect=fail", "--tick=10ms"]);
    assert_eq!(code, Some(1), "{log}");
    let causes = " the spring is broken: metal fatigue; the process stops task.name=ticker";
    assert_eq!(log.matches(causes).count(), 1, "the cause comes first: {log}");
    assert_eq!(log.matches("metal fatigue").count(), 1, "{log}");
}

#[test]
fn a_failing_start_ends_the_process_with_one_and_its_causes() {
    let (code, _, log) = run(&["--defect=start"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the spring is broken: metal fatigue") && !log.contains("started"), "{log}");
}

#[test]
fn a_start_that_still_waits_is_dropped_when_the_process_is_to_stop() {
    let mut ticker = Running::spawn(&["--defect=wait", "--http-addr=127.0.0.1:0"]);
    ticker.until("serving /live");
    ticker.signal(Signal::TERM);
    let (code, log) = ticker.end();
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_panicking_task_ends_the_process_with_one_and_the_place() {
    let (code, _, log) = run(&["--defect=panic", "--tick=10ms"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("examples/ticker.rs:") && log.contains("the spring jumped out"), "{log}");
}

#[test]
fn bad_settings_end_the_process_with_two_before_it_starts() {
    let mut command = ticker();
    command.args(["--tick=never"]).env("MUSTER_LOG_FORMAT", "xml").env("MUSTER_HTTP_ADDR", "here");
    let output = command.output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{log}");
    let told = ["ticker: 3 settings", "--tick=never", "MUSTER_LOG_FORMAT", "MUSTER_HTTP_ADDR"];
    assert!(told.iter().all(|text| log.contains(text)) && !log.contains("starting"), "{log}");
}

#[test]
fn an_unknown_flag_ends_the_process_with_two() {
    assert_eq!(run(&["--no-such-flag"]).0, Some(2));
}

#[test]
fn the_version_is_data_on_standard_output() {
    let (code, out, _) = run(&["--version"]);
    assert_eq!((code, out.as_str()), (Some(0), format!("ticker {}\n", muster_service::VERSION).as_str()));
}

#[test]
fn every_setting_is_explained_with_its_variable() {
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    for flag in ["--nats-url", "--creds", "--http-addr", "--log-format", "--tick"] {
        let variable = format!("MUSTER_{}", flag[2..].replace('-', "_").to_uppercase());
        assert!(help.contains(flag) && help.contains(&variable), "{flag}\n{help}");
    }
}

#[test]
fn the_help_shows_no_password_from_the_environment() {
    let output = ticker().arg("--help").env("MUSTER_NATS_URL", "nats://me:secret@hub").output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("secret"));
}

#[test]
fn json_logs_are_one_object_a_line_panics_included() {
    let (_, _, log) = run(&["--log-format=json", "--defect=panic", "--tick=10ms"]);
    assert!(log.contains("the spring jumped out"), "{log}");
    for line in log.lines() {
        let object = serde_json::from_str::<serde_json::Value>(line);
        assert!(object.is_ok_and(|object| object["message"].is_string()), "{line}");
    }
}

#[test]
fn health_is_served_on_the_address_the_log_names() {
    let mut ticker = Running::spawn(&["--http-addr=127.0.0.1:0"]);
    let line = ticker.until("http.addr=");
    let addr = line.split("http.addr=").nth(1).unwrap().trim();
    let addr = addr.split_whitespace().next().unwrap().to_owned();
    ticker.until("started");
    let mut answer = String::new();
    let mut stream = TcpStream::connect(&addr).unwrap();
    stream.write_all(b"GET /ready HTTP/1.0\r\n\r\n").unwrap();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    ticker.signal(Signal::TERM);
    assert_eq!(ticker.end().0, Some(0));
}
