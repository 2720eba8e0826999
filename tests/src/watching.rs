//! A `muster watch` that runs beside a system: its lines as they come, and how it ends.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::process::Stdio;

use muster_contract::decode;
use muster_contract::notify::Notice;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use crate::system::{System, program};
use crate::wait::soon;

/// The beginning of a line that lists missed changes.
pub const MISSED: &str = "{\"missed\":";

/// A watch that runs. It ends with this value.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    /// Its standard output.
    pub lines: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
    /// Its standard error so far.
    said: String,
}

impl Watch {
    /// Starts `muster watch` with these words.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn start(system: &System, words: &[&str]) -> Self {
        Self::run(system, &[&["watch"], words].concat())
    }

    /// Starts another command that follows something.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn run(system: &System, words: &[&str]) -> Self {
        let mut child = Command::new(program("muster"))
            .args(["--nats-url", &system.server.url()])
            .args(words)
            .env("NO_COLOR", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let errors = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines, errors, said: String::new() }
    }

    /// Every line up to its end.
    ///
    /// # Panics
    /// Nothing comes for too long.
    pub async fn rest(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = soon("a line, or the end", self.lines.next_line()).await.unwrap() {
            lines.push(line);
        }
        lines
    }

    /// Lines until one holds these words; that one.
    ///
    /// # Panics
    /// It ends before, or nothing comes for too long.
    pub async fn line_with(&mut self, words: &str) -> String {
        loop {
            let line = soon(words, self.lines.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| panic!("it ended, and '{words}' was waited for"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// The next notice of one that prints them; what it missed before is left out.
    ///
    /// # Panics
    /// None comes.
    pub async fn notice(&mut self) -> Notice {
        loop {
            let line = soon("a notice", self.lines.next_line()).await.unwrap().expect("it goes on");
            if !line.starts_with(MISSED) {
                return decode::parse(line.as_bytes()).unwrap();
            }
        }
    }

    /// Notices until one is as it should be.
    ///
    /// # Panics
    /// None is.
    pub async fn notices(&mut self, holds: impl Fn(&Notice) -> bool) -> Vec<Notice> {
        let mut all = vec![self.notice().await];
        while !holds(&all[all.len() - 1]) {
            all.push(self.notice().await);
        }
        all
    }

    /// Waits for a line with these words on standard error.
    ///
    /// # Panics
    /// It ends before, or nothing comes for too long.
    pub async fn says(&mut self, words: &str) {
        while !self.said.contains(words) {
            let line = soon(words, self.errors.next_line()).await.unwrap();
            let line =
                line.unwrap_or_else(|| panic!("it ended, and '{words}' was waited for: {}", self.said));
            self.said += &format!("{line}\n");
        }
    }

    /// Its exit code, and what it said on standard error.
    ///
    /// # Panics
    /// It does not end.
    pub async fn end(self) -> (i32, String) {
        let Self { mut child, mut lines, mut errors, mut said } = self;
        let ended = async {
            let (mut out, mut err) = (true, true);
            while out || err {
                tokio::select! {
                    line = lines.next_line(), if out => out = line.unwrap().is_some(),
                    line = errors.next_line(), if err => match line.unwrap() {
                        Some(line) => said += &format!("{line}\n"),
                        None => err = false,
                    },
                }
            }
            child.wait().await.unwrap()
        };
        let status = soon("its end", ended).await;
        (status.code().unwrap(), said)
    }

    /// The exit code after Ctrl-C.
    ///
    /// # Panics
    /// It does not end.
    pub async fn interrupt(self) -> i32 {
        let process = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(process, Signal::INT).unwrap();
        self.end().await.0
    }
}
