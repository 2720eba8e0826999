//! A real Prometheus on a running fleet, with the configuration, the rules and the dashboard of `compose/observe`. Only
//! addresses and durations are the test's own: what the shipped files wait for in minutes takes seconds here.
//!
//! Without the programs, which `.ci/tools` provides, a test is listed as not run.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use muster_simulator::child::Spec;
use muster_simulator::http;
use serde_json::Value;

use crate::not_run::not_run;
use crate::server::free_port;
use crate::system::System;

/// The name of its process.
pub const PROMETHEUS: &str = "prometheus";
/// The checker of its files.
pub const PROMTOOL: &str = "promtool";
/// In place of the interval at which it scrapes and evaluates.
const INTERVAL: &str = "500ms";
/// In place of every time that a condition must hold.
const HOLDS_FOR: &str = "1s";
/// In place of every window of a rate or an increase.
const WINDOW: &str = "[10s]";
/// In place of every look into the past.
const OFFSET: &str = "offset 3s";

/// Addresses of `/metrics` by job.
pub type Targets = BTreeMap<&'static str, Vec<SocketAddr>>;

/// A Prometheus that runs as a process of a [`System`].
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
}

/// The published configuration for observing a fleet.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../compose/observe")
}

/// A file of that folder.
///
/// # Panics
/// It is not there.
pub fn file(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// A program of Prometheus: of `.tools`, else of the PATH.
pub fn tool(name: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools").join(name);
    let runs = |program: &PathBuf| {
        let mut version = Command::new(program);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    [own, PathBuf::from(name)].into_iter().find(runs)
}

/// Whether the programs are there. If not, lists the test as not run.
pub fn is_there(test: &str) -> bool {
    let found = [PROMETHEUS, PROMTOOL].into_iter().all(|name| tool(name).is_some());
    if !found {
        let reason =
            "there is no Prometheus: `make tools` unpacks Debian's, or install prometheus and promtool";
        not_run(test, reason);
    }
    found
}

/// The shipped rules with shorter durations: `for`, windows and offsets. Nothing else of them changes.
pub fn shortened(rules: &str) -> String {
    let line = |line: &str| {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.trim_start().starts_with("for: ") {
            return format!("{indent}for: {HOLDS_FOR}\n");
        }
        let (mut rest, mut short) = (line, String::new());
        while let Some((before, after, replacement)) = next_duration(rest) {
            short += before;
            short += replacement;
            rest = after;
        }
        short + rest + "\n"
    };
    rules.lines().map(line).collect()
}

/// The next duration of an expression: the text before it, the text after it, and the shorter one.
fn next_duration(text: &str) -> Option<(&str, &str, &'static str)> {
    let is_duration = |word: &str| {
        word.starts_with(|digit: char| digit.is_ascii_digit()) && word.ends_with(['s', 'm', 'h', 'd'])
    };
    let window = text.match_indices('[').find_map(|(at, _)| {
        let (inside, after) = text[at + 1..].split_once(']')?;
        is_duration(inside).then_some((at, after, WINDOW))
    });
    let offset = text.match_indices("offset ").find_map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let end = rest.find(|byte: char| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        is_duration(&rest[..end]).then_some((at, &rest[end..], OFFSET))
    });
    let (at, after, replacement) = window.into_iter().chain(offset).min_by_key(|(at, ..)| *at)?;
    Some((&text[..at], after, replacement))
}

/// The shipped configuration with addresses in place of names, this file of rules, and a short interval.
///
/// # Panics
/// A job is not configured.
pub fn configuration(targets: &Targets, rules: &Path) -> String {
    let shipped = file("prometheus.yaml");
    let (mut job, mut jobs) = ("", BTreeSet::new());
    let mut text = String::new();
    for line in shipped.lines() {
        let (key, value) = line.trim_start().trim_start_matches("- ").split_once(": ").unwrap_or_default();
        match key {
            "scrape_interval" | "evaluation_interval" => text += &format!("  {key}: {INTERVAL}\n"),
            "rule_files" => text += &format!("rule_files: [{}]\n", rules.display()),
            "dns_sd_configs" => {
                let addresses = targets.get(job).into_iter().flatten();
                let addresses: Vec<String> = addresses.map(|address| format!("\"{address}\"")).collect();
                text += &format!("    static_configs: [{{targets: [{}]}}]\n", addresses.join(", "));
            }
            _ => text += &format!("{line}\n"),
        }
        if key == "job_name" {
            job = value;
            jobs.insert(value);
        }
    }
    let missing: Vec<_> = targets.keys().filter(|job| !jobs.contains(*job)).collect();
    assert!(missing.is_empty(), "prometheus.yaml has no job {missing:?}");
    text
}

/// An address that is free now, for a service's `/metrics`.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

impl Prometheus {
    /// Starts one that scrapes these addresses. It ends with the system.
    ///
    /// # Panics
    /// Its files cannot be written.
    pub fn start(system: &mut System, targets: &Targets) -> Self {
        let (dir, address) = (system.dir().join(PROMETHEUS), free_address());
        std::fs::create_dir_all(&dir).unwrap();
        let (rules, config) = (dir.join("alerts.yaml"), dir.join("prometheus.yaml"));
        std::fs::write(&rules, shortened(&file("alerts.yaml"))).unwrap();
        std::fs::write(&config, configuration(targets, &rules)).unwrap();
        let args = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let program = tool(PROMETHEUS).expect("the test asked whether it is there");
        system.start_own(Spec { name: PROMETHEUS.to_owned(), program, args: args.into() });
        Self { address }
    }

    /// The series of an expression.
    ///
    /// # Errors
    /// It cannot be reached, or refuses the expression.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let mut data = self.get(&format!("/api/v1/query?query={}", percent_encoded(expression))).await?;
        match data["result"].take() {
            Value::Array(series) => Ok(series),
            other => Err(format!("{expression}: {other} is no list of series")),
        }
    }

    /// The names of the alerts that fire.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn firing(&self) -> Result<BTreeSet<String>, String> {
        let data = self.get("/api/v1/alerts").await?;
        let alerts = data["alerts"].as_array().ok_or_else(|| data.to_string())?;
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        Ok(firing.filter_map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned)).collect())
    }

    async fn get(&self, path: &str) -> Result<Value, String> {
        let answer = http::get(self.address, path).await.map_err(|error| error.to_string())?;
        let mut body: Value = serde_json::from_str(&answer.body).map_err(|_| answer.body)?;
        if body["status"] == "success" { Ok(body["data"].take()) } else { Err(body.to_string()) }
    }
}

fn percent_encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durations_are_shortened() {
        let rules =
            "for: 15m\nexpr: increase(a{b=\"[x]\"}[10m]) > c offset 15m and d[1h]\n# offset by hand\n";
        let short = "for: 1s\nexpr: increase(a{b=\"[x]\"}[10s]) > c offset 3s and d[10s]\n# offset by hand\n";
        assert_eq!(shortened(rules), short);
    }
}
