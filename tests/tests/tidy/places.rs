//! Rules about places: which words may stand only in which files, and which crate may depend on which.

use super::tree::{Finding, Source};
use super::{enforce, lines_found};

/// A word of the code and the only places it may stand.
struct Place {
    words: &'static [&'static str],
    allowed: fn(&Source) -> bool,
    rule: &'static str,
}

/// The rules for code that ships.
const PLACES: [Place; 8] = [
    Place {
        words: &["async_nats"],
        allowed: |source| source.path.starts_with("shared/bus/"),
        rule: "only shared/bus speaks NATS: use muster_bus",
    },
    Place {
        words: &["rusqlite"],
        allowed: |source| {
            matches!(source.name(), "outbox.rs" | "db.rs" | "store.rs")
                || source.path.ends_with("store/error.rs")
        },
        rule: "SQL lives in outbox.rs, db.rs or store.rs: rows never leave the store",
    },
    Place {
        words: &["std::env", "env::var", "env::args", "env::set_var", "env::temp_dir"],
        // It reads none: it keeps some from the processes it starts.
        allowed: |source| source.path == "services/simulator/src/environment.rs",
        rule: "settings come through clap (muster_service::config)",
    },
    Place {
        words: &["SystemTime", "std::time::Instant", "Timestamp::now", "Zoned::now"],
        allowed: |source| source.path == "shared/service/src/clock.rs",
        rule: "time is an argument: take a muster_service::clock::Clock (waiting is tokio::time's)",
    },
    Place {
        words: &["process::exit", "process::abort"],
        allowed: |source| source.name() == "exit.rs",
        rule: "a process ends by draining and returning from main: muster_service::exit",
    },
    Place {
        words: &["ExponentialBackoff", "backoff::backoff"],
        allowed: |source| source.path == "shared/service/src/backoff.rs",
        rule: "delays come from muster_service::backoff::FullJitter",
    },
    Place {
        words: &["FullJitter::new"],
        allowed: |source| {
            source.path == "shared/service/src/retry.rs"
                || OWN_DELAYS.iter().any(|(path, _)| source.path == *path)
        },
        rule: "a loop that only waits between attempts is muster_service::retry",
    },
    Place {
        words: &["ledger.seq"],
        // An agent cannot read LEDGER: what it numbers are reports.
        allowed: |source| !source.path.starts_with("services/agent/"),
        rule: "a log's `ledger.seq` is LEDGER's sequence: a report's number is `report.seq`",
    },
];

/// Files with a `FullJitter` of their own, and what their loop does besides waiting between attempts.
const OWN_DELAYS: [(&str, &str); 18] = [
    ("services/agent/src/connection.rs", "waits for a schedule, and a long connection resets the delay"),
    ("services/agent/src/follow.rs", "handles pushed documents while it waits"),
    ("services/agent/src/relay/core.rs", "pure core: the delay is one of its deadlines"),
    ("services/agent/src/report_writer.rs", "gives up after some attempts while the agent stops"),
    ("services/agent/src/reconcile/sweep.rs", "the delay is one of the sweep's deadlines"),
    ("services/agent/src/reconcile/task.rs", "pure core: the delay is one of its deadlines"),
    (
        "services/agent/src/runtime/kubernetes/client.rs",
        "a few attempts within an operation, as late as the server asks",
    ),
    ("services/agent/src/runtime/kubernetes/watch.rs", "pauses after successful turns, too"),
    ("services/federation/src/hub.rs", "follows a hub while it waits"),
    ("services/gateway/src/kpt/pull.rs", "pauses after successful polls, too"),
    ("services/ingest/src/consume.rs", "serves the pause of a session"),
    ("services/publisher/src/announce.rs", "serves commands while it waits"),
    ("services/publisher/src/poll.rs", "pauses after successful polls, too"),
    ("services/simulator/src/lab/admit.rs", "the delay is a deadline of many devices"),
    ("shared/bus/src/connect.rs", "the client library asks for the delay"),
    ("shared/bus/src/retry_delay.rs", "a cancelled wait goes on where it was"),
    ("shared/bus/src/view_writer.rs", "postpones the writes of all keys"),
    ("shared/notify/src/notifier.rs", "postpones one notice"),
];
/// Permitted everywhere although they contain a restricted word: the program's own path, and a log filter.
const EXEMPT: [&str; 2] = ["std::env::current_exe", "async_nats="];
/// The services; none may know another.
const SERVICES: [&str; 9] = [
    "muster-publisher",
    "muster-agent",
    "muster-ingest",
    "muster-rollup",
    "muster-federation",
    "muster-planner",
    "muster-gateway",
    "muster-renewer",
    "muster-ctl",
];
/// The crates that the domain may depend on: none with I/O, a clock, threads or a log.
const PURE: [&str; 8] =
    ["muster-contract", "hashbrown", "serde", "serde_json", "sha2", "strsim", "thiserror", "jiff"];
/// Crates that belong to one place each.
const KEPT: [(&str, &[&str]); 3] = [
    ("async-nats", &["shared/bus/Cargo.toml", "schemas/examples/rust/Cargo.toml"]),
    ("backoff", &["shared/service/Cargo.toml"]),
    ("rusqlite", &["services/agent/Cargo.toml", "services/rollup/Cargo.toml"]),
];

fn place(source: &Source) -> Vec<Finding> {
    if !source.ships() {
        return Vec::new();
    }
    let closed = PLACES.iter().filter(|place| !(place.allowed)(source));
    closed.flat_map(|place| source.code_where(|line| names(place, line), place.rule)).collect()
}

fn names(place: &Place, line: &str) -> bool {
    let line = EXEMPT.iter().fold(line.to_owned(), |line, exempt| line.replace(exempt, ""));
    // `use std::time::{Duration, Instant}` names it as well.
    let listed =
        line.contains("use std::time::{") && line.contains("Instant") && place.words.contains(&"SystemTime");
    listed || place.words.iter().any(|word| line.contains(word))
}

fn panics(source: &Source) -> Vec<Finding> {
    // A reasoned exception carries clippy's own name for it.
    if !source.ships() || source.text.contains("clippy::expect_used") {
        return Vec::new();
    }
    let panics =
        |line: &str| [".unwrap()", ".expect(", "unreachable!("].iter().any(|word| line.contains(word));
    source.code_where(panics, "what ships does not panic on purpose: return an error")
}

fn dependencies(source: &Source) -> Vec<Finding> {
    if source.name() != "Cargo.toml" || source.path == "Cargo.toml" {
        return Vec::new();
    }
    let refusal = |(section, at, name): (&str, usize, &str)| {
        Some(Finding::at(at, refused(&source.path, section, name)?))
    };
    entries(&source.text).into_iter().filter_map(refusal).collect()
}

/// Why a manifest may not list a crate, if it may not.
fn refused(path: &str, section: &str, name: &str) -> Option<String> {
    let ships = section != "dev-dependencies" && !path.starts_with("tests/");
    if let Some((_, homes)) = KEPT.iter().find(|(kept, _)| *kept == name)
        && ships
        && !homes.contains(&path)
    {
        return Some(format!("only {} may depend on {name}", homes.join(" and ")));
    }
    if path == "shared/domain/Cargo.toml" && ships && !PURE.contains(&name) {
        return Some(format!("the domain is pure: it may depend on {}", PURE.join(", ")));
    }
    let service = path.starts_with("services/") && !path.starts_with("services/simulator/");
    if service && ships && SERVICES.contains(&name) {
        return Some("a service knows no other: they meet in the contract".to_owned());
    }
    let shared = path.starts_with("shared/") && SERVICES.contains(&name);
    shared.then(|| "dependencies point one way: shared crates know no service".to_owned())
}

/// Section, line and name of each dependency.
fn entries(manifest: &str) -> Vec<(&str, usize, &str)> {
    let mut section = "";
    let mut found = Vec::new();
    for (at, line) in manifest.lines().enumerate() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            section = name;
        } else if section.ends_with("dependencies") && !line.starts_with('#') && line.contains('=') {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            found.push((section, at + 1, name));
        }
    }
    found
}

#[test]
fn each_kind_of_thing_stands_in_its_place() {
    let table = [
        ("services/agent/src/relay.rs", "use async_nats::Client;"),
        ("services/agent/src/relay.rs", "use rusqlite::Connection;"),
        ("services/ctl/src/config.rs", "    let home = std::env::var(\"HOME\");"),
        ("services/ingest/src/cursor.rs", "let now = Timestamp::now();"),
        ("services/ingest/src/cursor.rs", "use std::time::{Duration, Instant};"),
        ("services/rollup/src/app.rs", "    std::process::exit(1);"),
        ("shared/bus/src/link.rs", "use backoff::ExponentialBackoff;"),
        ("services/agent/src/relay/driver.rs", "    ledger.seq = seq,"),
    ];
    for (path, line) in table {
        assert_eq!(lines_found(place, path, &format!("//! A.\n{line}\n")), [2], "{path}: {line}");
    }
    let fine = [
        ("shared/bus/src/link.rs", "use async_nats::Client;"),
        ("services/agent/src/outbox.rs", "use rusqlite::Connection;"),
        ("services/agent/src/relay.rs", "// the way async_nats does it"),
        ("services/simulator/src/child.rs", "let here = std::env::current_exe()?;"),
        ("services/ingest/src/cursor.rs", "use tokio::time::{Duration, Instant};"),
        ("tests/src/server.rs", "std::env::var_os(\"PATH\")"),
        ("services/ingest/src/consume.rs", "    ledger.seq = read_after,"),
    ];
    for (path, line) in fine {
        assert!(lines_found(place, path, line).is_empty(), "{path}: {line}");
    }
    enforce(place);
}

#[test]
fn nothing_that_ships_panics_on_purpose() {
    assert_eq!(lines_found(panics, "services/agent/src/a.rs", "//! A.\nlet b = c.unwrap();\n"), [2]);
    let tested = "//! A.\n#[cfg(test)]\nmod tests {\n    fn a() { b.unwrap(); }\n}\n";
    assert!(lines_found(panics, "services/agent/src/a.rs", tested).is_empty());
    enforce(panics);
}

#[test]
fn dependencies_point_one_way() {
    let table = [
        ("shared/domain/Cargo.toml", "tokio.workspace = true"),
        ("services/ingest/Cargo.toml", "async-nats = \"0.51\""),
        ("services/ctl/Cargo.toml", "muster-agent.workspace = true"),
        ("shared/service/Cargo.toml", "muster-rollup = { workspace = true }"),
        ("services/ctl/Cargo.toml", "rusqlite.workspace = true"),
    ];
    for (path, line) in table {
        let manifest = format!("# A.\n[package]\nname = \"a\"\n[dependencies]\n{line}\n");
        assert_eq!(lines_found(dependencies, path, &manifest), [5], "{path}: {line}");
    }
    let fine = [
        ("services/simulator/Cargo.toml", "muster-agent.workspace = true"),
        ("shared/domain/Cargo.toml", "muster-contract.workspace = true"),
        ("shared/bus/Cargo.toml", "async-nats.workspace = true"),
    ];
    for (path, line) in fine {
        assert!(
            lines_found(dependencies, path, &format!("# A.\n[dependencies]\n{line}\n")).is_empty(),
            "{path}"
        );
    }
    enforce(dependencies);
}
