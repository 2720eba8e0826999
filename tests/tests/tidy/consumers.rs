//! Lists the readers of LEDGER with their subject filters. A filtered consumer is the slowest path that nats-server has, so no
//! standby, takeover or report waits for one, and no start but the publisher's. A reader that is not on the list fails the test.

use super::tree::{self, Source};

/// How a program reads LEDGER at one place.
#[derive(Debug)]
struct Reader {
    path: &'static str,
    /// The filters as they are written there; empty for none.
    filters: &'static str,
    /// Whether a standby, a takeover, a report, or a start of another service than the publisher waits for it.
    is_hot: bool,
    /// When it reads; for a filtered one, also why that is cheap enough.
    why: &'static str,
}

const READERS: [Reader; 15] = [
    unfiltered("services/ingest/src/restore.rs", true, "a start without a snapshot, and the tail after one"),
    unfiltered("services/ingest/src/follow.rs", true, "a standby and a takeover, once for all partitions"),
    unfiltered(
        "services/ingest/src/reassert_reader.rs",
        true,
        "old facts, once an hour, while reports become facts",
    ),
    unfiltered("services/ingest/src/room.rs", true, "the old end of a LEDGER that fills up"),
    unfiltered("services/planner/src/ledger.rs", true, "the evidence of rollouts, from the first fact"),
    unfiltered("services/rollup/src/consume.rs", true, "the fold, from a snapshot or from the first fact"),
    unfiltered("services/rollup/src/history/tail.rs", false, "a question about the past"),
    unfiltered("services/simulator/src/ledger.rs", false, "the check at the end of a run"),
    filtered(
        "services/rollup/src/query/actions.rs",
        "DESIRED",
        "the first question about actions reads desired states; later ones read what came since",
    ),
    filtered(
        "services/rollup/src/query/manifests/place.rs",
        "&desired(&key)",
        "a question about an old generation: one subject",
    ),
    filtered(
        "services/rollup/src/incidents.rs",
        "&subject",
        "incidents of the hub: one subject, opened once beside the fold, and nothing waits for it",
    ),
    filtered(
        "services/publisher/src/downlink.rs",
        "ALL_SUBJECTS",
        "the publisher's start: the newest message of each device, which the server's index of subjects names, so it costs by \
         devices and not by facts: 1.4 s for 10,000 devices and 15 s for 100,000 behind a million facts, the first 5,000 after \
         1.1 s (tests/NUMBERS.md)",
    ),
    filtered(
        "services/publisher/src/downlink.rs",
        "&desired(key)",
        "a device of which DOWNLINK holds no readable document: one subject, a few messages",
    ),
    filtered(
        "services/publisher/src/stream_listener.rs",
        "L::SUBJECTS",
        "the newest copy of each desired state, then new ones: opened once beside the publisher, which does not wait for it",
    ),
    filtered("shared/client/src/quarantine.rs", "&filter", "an operator's command or page"),
];
/// The names of the other streams in calls that open a reader.
const OTHER_STREAMS: [&str; 6] = [
    "stream::DOWNLINK",
    "stream::UPLINK",
    "stream::PRESENCE",
    "stream::NOTICES",
    "stream::PLANS",
    "VIEWS_STREAM",
];
/// The call that opens a reader.
const OPENS: &str = ".replay(";
/// The call that makes a consumer, and the only files that make one: ordered readers, UPLINK's partitions, the topology.
const MAKES: &str = "create_consumer";
const MAKERS: [&str; 3] =
    ["shared/bus/src/replay.rs", "shared/bus/src/deliveries.rs", "shared/bus/src/converge.rs"];

const fn unfiltered(path: &'static str, is_hot: bool, why: &'static str) -> Reader {
    Reader { path, filters: "", is_hot, why }
}

const fn filtered(path: &'static str, filters: &'static str, why: &'static str) -> Reader {
    Reader { path, filters, is_hot: false, why }
}

/// The filters of every reader of LEDGER in a file, or of a stream that only the running program knows.
fn filters(source: &Source) -> Vec<String> {
    let code: Vec<&str> = source.code().map(|(_, line)| line.trim()).collect();
    let code = code.join(" ");
    let calls = code.split(OPENS).skip(1).map(arguments);
    let reads_ledger =
        |arguments: &Vec<String>| arguments.len() > 1 && !OTHER_STREAMS.contains(&arguments[0].as_str());
    let filters = |arguments: Vec<String>| {
        let listed = arguments[1].strip_prefix("&[").and_then(|rest| rest.strip_suffix(']'));
        listed.map_or_else(|| arguments[1].clone(), |listed| listed.trim_matches([' ', ',']).to_owned())
    };
    calls.filter(reads_ledger).map(filters).collect()
}

/// The arguments of a call, from the text after its opening parenthesis.
fn arguments(rest: &str) -> Vec<String> {
    let (mut depth, mut arguments) = (0_usize, vec![String::new()]);
    for letter in rest.chars() {
        match letter {
            ')' if depth == 0 => break,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(argument) = arguments.last_mut() {
            argument.push(letter);
        }
    }
    arguments
        .iter()
        .map(|argument| argument.trim().to_owned())
        .filter(|argument| !argument.is_empty())
        .collect()
}

/// The problems of the readers in these files.
fn wrong(readers: &[Reader], sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let mut wrong = Vec::new();
    for source in sources.iter().filter(|source| source.ships()) {
        let makes = source.code().any(|(_, line)| line.contains(MAKES));
        if makes && !MAKERS.contains(&source.path.as_str()) {
            wrong.push(format!("{}: only {} make consumers", source.path, MAKERS.join(", ")));
        }
        found.extend(filters(source).into_iter().map(|filters| (source.path.as_str(), filters)));
    }
    for (path, filters) in &found {
        if !readers.iter().any(|reader| reader.path == *path && reader.filters == filters) {
            wrong.push(format!(
                "{path} reads LEDGER with the filters [{filters}] and is not listed: read it unfiltered, or ask for \
                 single messages"
            ));
        }
    }
    for reader in readers {
        let Reader { path, filters, is_hot, why } = reader;
        if !found.iter().any(|(found, of)| found == path && of == filters) {
            wrong.push(format!("{path} no longer reads LEDGER with the filters [{filters}]"));
        }
        if *is_hot && !filters.is_empty() {
            wrong.push(format!("{path} is on a hot path and has the filters [{filters}]"));
        }
        if why.is_empty() {
            wrong.push(format!("{path} reads LEDGER without a reason"));
        }
    }
    wrong
}

#[test]
fn no_hot_path_reads_ledger_through_a_filter() {
    let wrong = wrong(&READERS, &tree::sources());
    assert!(wrong.is_empty(), "readers of LEDGER:\n{}", wrong.join("\n"));
}

#[test]
fn a_new_or_hot_filtered_reader_of_ledger_is_found() {
    let path = "services/ingest/src/a.rs";
    let source = |code: &str| [Source::new(path, &format!("//! A.\n{code}\n"))];
    let read = "let a = self.bus.replay(stream::LEDGER, &[\"muster.status.>\", &b(c, d)], Start::First);";
    let over_lines = read.replace("(stream::LEDGER, ", "(\n    stream::LEDGER,\n    ");
    let unknown_stream = read.replace("stream::LEDGER", "name");
    let variable = read.replace("&[\"muster.status.>\", &b(c, d)]", "&filters");
    for code in [read, &over_lines, &unknown_stream, &variable] {
        let found = wrong(&[], &source(code));
        assert!(found.len() == 1 && found[0].contains("is not listed"), "{code}: {found:?}");
    }
    let maker = wrong(&[], &source("let a = wire.create_consumer(b);"));
    assert!(maker[0].contains("make consumers"), "{maker:?}");
    let fine = [
        "bus.replay(stream::DOWNLINK, &[A], Start::First);",
        "config.replay();",
        "// bus.replay(stream::LEDGER, &[A], Start::First)",
    ];
    for code in fine {
        assert_eq!(wrong(&[], &source(code)), Vec::<String>::new(), "{code}");
    }
    let read_all = source("bus.replay(stream::LEDGER, &[], Start::First);");
    assert_eq!(wrong(&[unfiltered(path, true, "a start")], &read_all), Vec::<String>::new());
    let hot = Reader { is_hot: true, ..filtered(path, "A", "a start") };
    let read_some = source("bus.replay(stream::LEDGER, &[A], Start::First);");
    assert!(wrong(&[hot], &read_some)[0].contains("hot path"));
    assert!(wrong(&[unfiltered(path, true, "")], &read_all)[0].contains("without a reason"));
    assert!(wrong(&[filtered(path, "A", "a question")], &source(""))[0].contains("no longer"));
}
