//! Rules about words: names that the vocabulary has replaced, and phrases of comments and literals that hide who does what.
//!
//! The rules hold in all Rust of the repository, tests included. A replaced name that is right in one place stands in
//! [`EXCUSED`] with the reason. Pages have the same rules in the test `documentation`.

use std::collections::{BTreeSet, HashMap};

use super::lexer::{Kind, pieces};
use super::tree::{Finding, Source};
use super::{enforce, lines_found};

/// Replaced names, each with the name to use.
const REPLACED: [(&str, &str); 117] = [
    ("Culprits", "ErrorIndex"),
    ("Culprit", "ReportError"),
    ("Cast", "ComponentSet"),
    ("Casts", "ComponentInterner"),
    ("Blueprint", "AppSpec"),
    ("Blueprints", "AppSpecInterner"),
    ("blueprint", "spec"),
    ("Lens", "ViewAggregate"),
    ("Lenses", "ViewAggregates"),
    ("weigh", "apply_delta"),
    ("Stake", "Contribution"),
    ("Share", "CountClass"),
    ("Shares", "CountsByDeployment"),
    ("Facet", "DeviceContext"),
    ("facet", "context"),
    ("About", "DeviceState"),
    ("Nature", "ReportedCapabilities"),
    ("Troubles", "Anomalies"),
    ("Holdings", "SeqAccount"),
    ("holdings", "seq_account"),
    ("Odd", "IrregularSeqs"),
    ("Doubt", "Uncertainty"),
    ("OpenMessages", "UnresolvedQuarantine"),
    ("Shifts", "ChangeLog"),
    ("Touched", "ChangedSince"),
    ("Newest", "LastChanged"),
    ("Peak", "MaxTimestamp"),
    ("Moment", "PackedTimestamp"),
    ("Narrow", "PackedInteger"),
    ("Hindsight", "EventTimeFold"),
    ("Way", "Delta"),
    ("settle", "update_rows"),
    ("put_in", "add_row"),
    ("take_out", "retract_row"),
    ("Present", "Projection"),
    ("Leisure", "Throttle"),
    ("leisure", "throttle"),
    ("Filler", "Backfill"),
    ("thinning", "checkpoint_retention"),
    ("recall", "point_in_time"),
    ("Desk", "QueryHandler"),
    ("NotifyDesk", "SubscriptionHandler"),
    ("Then", "PinnedHubs"),
    ("Spread", "ScatteredQuery"),
    ("Maker", "RebuildWorker"),
    ("Board", "ViewWriter"),
    ("board", "view_writer"),
    ("Sounding", "ConsumerProgress"),
    ("sounding", "consumer_progress"),
    ("Answering", "Responder"),
    ("told_whole", "ack_on_batch_end"),
    ("NoticeRoom", "NoticeKind"),
    ("NoticeGone", "NoticeAbsence"),
    ("Heal", "RetryDelay"),
    ("heal", "retry_delay"),
    ("Roster", "UserRegistry (identity) or DeviceTable (publisher)"),
    ("roster", "registry (identity) or device_table (publisher)"),
    ("RosterError", "RegistryError"),
    ("KnownNats", "NatsClaims"),
    ("OUT_WITHIN", "DISCONNECT_WITHIN"),
    ("Surroundings", "Context"),
    ("Census", "FleetSummary"),
    ("Copied", "Coverage"),
    ("Letter", "OutgoingDocument"),
    ("Life", "Supervisor"),
    ("Scene", "Header"),
    ("Weather", "LinkFaults"),
    ("Flapping", "LinkSchedule"),
    ("Tempo", "Timing"),
    ("UNSHOCKED", "IGNORE_SIGXFSZ"),
    ("Office", "AuthContext"),
    ("Vault", "KeyStore"),
    ("Observer", "ReportSender"),
    ("corridor", "queue"),
    ("Trouble", "StorageFailure"),
    ("Letterhead", "MessageBuilder"),
    ("Joining", "Enrolment"),
    ("Undone", "RollbackCount"),
    ("Patience", "YieldBudget"),
    ("Chased", "DuplicateIdentity"),
    ("Ongoing", "RunningOperation"),
    ("Swept", "SweepEvent"),
    ("owes_a_word", "has_unreported_recovery"),
    ("parked", "rejected"),
    ("Hunt", "Termination"),
    ("Seized", "FoundUnit"),
    ("CensusError", "ProcessTableError"),
    ("bring_up", "start_unit"),
    ("put_down", "stop_unit"),
    ("NotAWindow", "WindowError"),
    ("NotARate", "RateError"),
    ("last_words", "last_lines"),
    ("Slot", "DeploymentTask"),
    ("WEDGED_AFTER", "UNRESPONSIVE_AFTER"),
    ("SILENCE_AGE", "UNMENTIONED_AGE"),
    ("make_room", "evict"),
    ("Border", "IntakeState"),
    ("Lack", "GapTimer"),
    ("Sums", "QuarantineBatches"),
    ("OnRecord", "PublishedDeadline"),
    ("retell", "republish"),
    ("grow_old", "reassert_if_old"),
    ("hearing_again", "resume_receiving"),
    ("sum_up", "publish_batches"),
    ("Elders", "ReassertReader"),
    ("Wish", "DesiredDocument"),
    ("Wishes", "DesiredQueue"),
    ("Case", "QuarantineTask"),
    ("Teller", "IncidentLog"),
    ("Outlet", "LedgerPublisher"),
    ("Around", "Context"),
    ("Turn", "PartitionLease"),
    ("usurped", "lease_lost"),
    ("Claim", "FencingToken"),
    ("Came", "ReportBatch"),
    ("let_in", "accept"),
    ("Saving", "SnapshotSaver"),
];
/// Places where a replaced name is right, each with its reason.
const EXCUSED: [(&str, &str, &str); 18] = [
    ("services/gateway/src/people/page/quarantine.rs", "let_in", WIRE),
    ("shared/contract/src/notify.rs", "Present", WIRE),
    ("shared/notify/src/compose.rs", "Present", WIRE),
    ("services/ctl/src/notices.rs", "Present", WIRE),
    ("services/rollup/src/notices.rs", "Present", WIRE),
    ("services/rollup/src/notify/compose.rs", "Present", WIRE),
    ("tests/tests/ctl_watch.rs", "Present", WIRE),
    ("tests/tests/rollup/notices/rows.rs", "Present", WIRE),
    ("tests/tests/rollup/notices/survive.rs", "Present", WIRE),
    ("services/rollup/src/notify/ownership.rs", "Share", QUOTA),
    ("shared/notify/src/ownership.rs", "Share", QUOTA),
    ("shared/service/src/fair.rs", "Share", QUOTA),
    ("shared/service/src/fair.rs", "Shares", QUOTA),
    ("shared/service/src/fair/tests.rs", "Share", QUOTA),
    ("shared/service/src/fair/tests.rs", "Shares", QUOTA),
    ("shared/domain/tests/fold/fleets/mod.rs", "Life", "the life of a simulated device"),
    ("shared/bus/src/permits.rs", "Share", QUOTA),
    ("shared/bus/src/serve.rs", "Shares", QUOTA),
];
/// The reason for a type of `muster_service::fair`.
const QUOTA: &str = "shared/service has a share of a quota by that name";
/// The reason for a type of the contract.
const WIRE: &str = "the contract's type has the name of the wire";
/// Phrases that hide who does what, each with what to write.
const HABITS: [(&str, &str); 7] = [
    ("is told", "name who publishes or answers"),
    ("whoever", "name the actor"),
    ("said again", "re-asserted"),
    ("put out", "revoked"),
    ("let in", "accepted or enrolled"),
    ("door", "entry point"),
    ("See [`", "say it: a reader does not want to look elsewhere"),
];
/// Words that begin a sentence without its subject.
const OPENINGS: [&str; 3] = ["Of ", "What ", "Whoever "];
/// Files that list the phrases, for this rule and for that about pages.
const LISTS: [&str; 2] = ["tests/tests/tidy/words.rs", "tests/tests/documentation/lists.rs"];

fn replaced_names(source: &Source) -> Vec<Finding> {
    if !source.is("rs") {
        return Vec::new();
    }
    let excused = |name: &str| EXCUSED.iter().any(|(path, word, _)| *path == source.path && *word == name);
    let names: HashMap<&str, &str> = REPLACED.into_iter().filter(|(name, _)| !excused(name)).collect();
    let mut found = BTreeSet::new();
    for piece in pieces(&source.text).into_iter().filter(|piece| piece.kind == Kind::Code) {
        let words = piece.text.split(|at: char| !at.is_alphanumeric() && at != '_');
        found.extend(words.filter(|word| names.contains_key(word)).map(|word| (piece.line, word)));
    }
    let rule = |name: &str| format!("the name `{name}` is replaced by `{}`", names[name]);
    found.into_iter().map(|(line, name)| Finding::at(line, rule(name))).collect()
}

fn habits(source: &Source) -> Vec<Finding> {
    if !source.is("rs") || LISTS.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let words = pieces(&source.text).into_iter().filter(|piece| piece.kind != Kind::Code);
    words.filter_map(|piece| Some(Finding::at(piece.line, habit(piece.kind, piece.text)?))).collect()
}

/// The rule that a line of a comment or literal breaks.
fn habit(kind: Kind, line: &str) -> Option<String> {
    let (what, text) = match kind {
        Kind::Comment => ("comment", line.trim_start_matches(['/', '!', '*'])),
        _ => ("literal", line.strip_prefix('"').unwrap_or(line)),
    };
    let text = text.trim_start();
    if let Some(opening) = OPENINGS.iter().find(|opening| text.starts_with(**opening)) {
        return Some(format!("a {what} opens with '{}': begin with the subject", opening.trim_end()));
    }
    if text.starts_with("Where ") && text.contains(", there ") {
        return Some(format!("a {what} opens with 'Where …, there': begin with the subject"));
    }
    let (phrase, instead) = HABITS.iter().find(|(phrase, _)| match *phrase {
        "See [`" => line.starts_with("/// See [`"),
        phrase => has_phrase(text, phrase),
    })?;
    Some(format!("a {what} says '{phrase}': {instead}"))
}

/// Whether a text has a phrase of whole words.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let text = text.to_lowercase();
    let is_word = |at: Option<char>| at.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase).any(|(at, _)| {
        !is_word(text[..at].chars().next_back()) && !is_word(text[at + phrase.len()..].chars().next())
    })
}

#[test]
fn replaced_names_do_not_return() {
    let path = "services/rollup/src/a.rs";
    for bad in ["struct Desk;", "use super::Desk;", "fn f(a: &Desk) {}", "a.settle(b);"] {
        assert_eq!(lines_found(replaced_names, path, bad), [1], "{bad}");
    }
    for good in ["struct Desktop;", "// the Desk", "a(\"Desk\");", "a.settled();"] {
        assert!(lines_found(replaced_names, path, good).is_empty(), "{good}");
    }
    enforce(replaced_names);
}

#[test]
fn comments_and_literals_name_their_subject() {
    let path = "services/rollup/src/a.rs";
    for bad in [
        "//! Of two the first.",
        "/// What it is.",
        "    // Whoever asks.",
        "// It is told.",
        "// A report said again.",
        "/// See [`A`].",
        "// It was let in.",
        "// Where a is, there b is.",
        "f(); // at the door",
        "f(\"What it is\");",
        "f(r#\"a device let in\"#);",
    ] {
        assert_eq!(lines_found(habits, path, bad), [1], "{bad}");
    }
    for good in ["//! Often.", "// outlet in use", "whoever();", "/// The limit, see [`A`]."] {
        assert!(lines_found(habits, path, good).is_empty(), "{good}");
    }
    enforce(habits);
}
