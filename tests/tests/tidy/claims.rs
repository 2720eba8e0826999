//! Compares `tests/CLAIMS.md` with the code: every claim has its test, and every test that must be listed there is.

use std::collections::BTreeSet;

use super::tree::{self, Source};

/// The path of the claims in the repository.
const CLAIMS: &str = "tests/CLAIMS.md";
/// How the paths of tests begin that attack the hub or a gateway.
const ATTEMPTS: [&str; 6] = [
    "tests/tests/security/",
    "tests/tests/gateway/attempts.rs",
    "tests/tests/gateway/grpc_attempts.rs",
    "tests/tests/gateway/login_attempts.rs",
    "tests/tests/gateway/refusals.rs",
    "tests/tests/margo_api/attempts.rs",
];
/// The lists of attempts: each test of [`ATTEMPTS`] stands in one of them.
const ATTEMPT_LISTS: [&str; 2] = ["Attempts", HTTP];
/// The list of attacks over HTTP, which has at least one row for each of [`HTTP_ATTACKS`].
const HTTP: &str = "Attacks over HTTP";
const HTTP_ATTACKS: [&str; 9] = [
    "CSRF",
    "CSP",
    "clickjacking",
    "header injection",
    "request smuggling",
    "slow client",
    "large body",
    "path tricks",
    "foreign digest",
];
/// Words in place of a test, followed by the reason: a test is still missing, or there is nothing to test.
const NONE: [&str; 2] = ["none yet: ", "none: "];
/// The lists whose rows somebody else has numbered, all of which are here: their headings, how a row's name begins, and
/// how many there are.
const RULES: [(&str, &str, usize); 5] = [
    ("Promises", "P", 7),
    ("Polling and downtime", "POL-", 5),
    ("Status reports", "STA-", 15),
    ("Status queries", "Q", 18),
    ("Notices", "N", 11),
];
/// The lists of which every test with a number stands in its row, and a row has no other: their headings, the letter of
/// the number, and its digits in a row's name.
const NUMBERED: [(&str, char, usize); 3] =
    [("Failures of earlier systems", 'M', 2), ("Status queries", 'Q', 1), ("Notices", 'N', 1)];
/// The lists that grow.
const OPEN: [&str; 7] = [
    "Attempts",
    HTTP,
    "Margo's device API",
    "Applications and components",
    "People and other programs",
    "Publishing and the supply chain",
    "Failures of earlier systems",
];
/// Rows that a list that grows has had since long: fewer are none that were read.
const ROWS_LEAST: usize = 5;

/// A row: its first cell, and the tests that its last one names, or why there is none.
#[derive(Debug)]
struct Row<'a> {
    first: &'a str,
    tests: Vec<&'a str>,
    reason: Option<&'a str>,
}

/// The rows under a heading.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<Row<'a>> {
    let part = text.split("\n## ").find(|part| part.starts_with(heading)).unwrap_or_default();
    let rows = part.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.filter_map(row).collect()
}

fn row(line: &str) -> Option<Row<'_>> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let (first, last) = (cells.first()?, cells.last()?);
    let tests = last.split('`').skip(1).step_by(2).collect();
    Some(Row { first, tests, reason: NONE.iter().find_map(|none| last.strip_prefix(none)) })
}

/// The names of a file's tests, those of a property among them.
fn tests_of(source: &Source) -> Vec<&str> {
    let lines: Vec<&str> = source.text.lines().map(str::trim_start).collect();
    let is_mark = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let name = |(at, _): (usize, &&str)| {
        let declared =
            lines[at + 1..].iter().find(|line| !line.starts_with("#[") && !line.starts_with("//"))?;
        declared.trim_start_matches("async ").strip_prefix("fn ")?.split('(').next()
    };
    lines.iter().enumerate().filter(|(_, line)| is_mark(line)).filter_map(name).collect()
}

/// The row of a list that a test carries in its name.
fn number(test: &str, letter: char, digits_min: usize) -> Option<String> {
    let digits = test.strip_prefix(letter.to_ascii_lowercase())?.split('_').next()?;
    let is_number = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number: usize = digits.parse().ok().filter(|_| is_number)?;
    Some(format!("{letter}{number:0digits_min$}"))
}

/// The problems of the claims, given the files with tests.
fn wrong(claims: &str, sources: &[Source]) -> Vec<String> {
    let all: BTreeSet<&str> = sources.iter().flat_map(tests_of).collect();
    let mut wrong = wrong_rows(claims, &all);
    wrong.extend(left_out_attempts(claims, sources));
    let attacks = rows(claims, HTTP);
    let left_out = HTTP_ATTACKS.into_iter().filter(|attack| attacks.iter().all(|row| row.first != *attack));
    wrong.extend(left_out.map(|attack| format!("{HTTP}: there is no row of {attack}")));
    for (heading, name, count) in RULES {
        let names = (1..=count).map(|number| format!("{name}{number}"));
        if !rows(claims, heading).iter().map(|row| row.first).eq(names) {
            wrong.push(format!("{heading}: the rows are {name}1 to {name}{count}, each once"));
        }
    }
    if !rows(claims, "Failures of earlier systems").is_sorted_by(|one, other| one.first < other.first) {
        wrong.push("the failures are not in the order of their numbers, each once".to_owned());
    }
    for (heading, letter, digits_min) in NUMBERED {
        wrong.extend(misplaced(&rows(claims, heading), &all, |test| number(test, letter, digits_min)));
    }
    wrong
}

/// Rows that name what is no test, or neither a test nor a reason.
fn wrong_rows(claims: &str, all: &BTreeSet<&str>) -> Vec<String> {
    let headings = OPEN.into_iter().chain(RULES.map(|(heading, ..)| heading));
    let mut wrong = Vec::new();
    for row in headings.flat_map(|heading| rows(claims, heading)) {
        let gone = row.tests.iter().filter(|test| !all.contains(*test));
        wrong.extend(gone.map(|test| format!("{}: there is no test {test}", row.first)));
        if row.tests.is_empty() == row.reason.is_none_or(str::is_empty) {
            let [yet, none] = NONE;
            wrong.push(format!("{}: a row names its tests, or says `{yet}` or `{none}` and why", row.first));
        }
    }
    wrong
}

/// Attempts that are made and stand in no row.
fn left_out_attempts(claims: &str, sources: &[Source]) -> Vec<String> {
    let listed = ATTEMPT_LISTS.into_iter().flat_map(|heading| rows(claims, heading));
    let attempted: BTreeSet<&str> = listed.flat_map(|row| row.tests).collect();
    let attacks = |source: &&Source| ATTEMPTS.iter().any(|path| source.path.starts_with(path));
    let made = sources.iter().filter(attacks).flat_map(tests_of);
    made.filter(|test| !attempted.contains(test))
        .map(|test| format!("{test} is no row of Attempts or {HTTP}"))
        .collect()
}

/// Tests with a number that are not in its row, and tests in a row whose number they do not carry.
fn misplaced(rows: &[Row<'_>], all: &BTreeSet<&str>, number: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let in_its_row =
        |test: &str, number: &str| rows.iter().any(|row| row.first == number && row.tests.contains(&test));
    let numbered = all.iter().filter_map(|test| Some((*test, number(test)?)));
    let left_out = numbered.filter(|(test, number)| !in_its_row(test, number));
    let left_out = left_out.map(|(test, number)| format!("{test} is not in the row of {number}"));
    let named = rows.iter().flat_map(|row| row.tests.iter().map(move |test| (row.first, *test)));
    let elsewhere = named.filter(|(first, test)| number(test).as_deref() != Some(first));
    let elsewhere = elsewhere.map(|(first, test)| format!("{first}: {test} does not carry its number"));
    left_out.chain(elsewhere).collect()
}

#[test]
fn claims_and_tests_name_each_other() {
    let claims = std::fs::read_to_string(tree::top().join(CLAIMS)).unwrap_or_default();
    let sources: Vec<Source> = tree::sources().into_iter().filter(|source| source.is("rs")).collect();
    let wrong = wrong(&claims, &sources);
    assert!(wrong.is_empty(), "{CLAIMS} and the tests differ:\n{}", wrong.join("\n"));
    assert!(OPEN.iter().all(|heading| rows(&claims, heading).len() >= ROWS_LEAST), "{CLAIMS} has no rows");
}

#[test]
fn a_claim_without_its_test_and_a_test_without_its_claim_are_found() {
    let claims = |attempt: &str, polling: &str, failure: &str| {
        let head = "| a | b |\n|---|---|\n";
        let rules = RULES.map(|(heading, name, count)| {
            let test = |number: usize| match name {
                "Q" if number == 7 => "`q07_ready`".to_owned(),
                "Q" | "N" => "none: it has no meaning here".to_owned(),
                _ => format!("`{polling}`"),
            };
            let row = |number| format!("| {name}{number} | it holds | {} |\n", test(number));
            format!("## {heading}\n\n{head}{}\n", (1..=count).map(row).collect::<String>())
        });
        format!(
            "# A\n\n## Attempts\n\n{head}| a device | to | refused | {attempt} |\n\n\
             ## {HTTP}\n\n{head}{}\n{}\
             ## Failures of earlier systems\n\n{head}{failure}\n",
            HTTP_ATTACKS.map(|attack| format!("| {attack} | a page | refused | `framed` |\n")).concat(),
            rules.concat()
        )
    };
    let source = |path: &str, tests: &[&str]| {
        let test = |name: &&str| format!("#[tokio::test]\n#[allow(a)]\nasync fn {name}() {{}}\n");
        Source::new(path, &format!("//! A.\n{}", tests.iter().map(test).collect::<String>()))
    };
    let sources = [
        source("tests/tests/security/a.rs", &["a_device_cannot"]),
        source("tests/tests/gateway/attempts.rs", &["framed"]),
        source("shared/a/src/a.rs", &["m05_silence", "mute", "m1_one", "q07_ready"]),
        Source::new("shared/a/tests/b.rs", "//! A.\nproptest! {\n    #[test]\n    fn held(a in 0..3) {\n"),
    ];
    let m05 = "| M05 | silence | `m05_silence` |";
    assert_eq!(wrong(&claims("`a_device_cannot`", "held", m05), &sources), Vec::<String>::new());
    let with_one_to_come = format!("{m05}\n| M06 | gates | none yet: there are no gates |");
    assert_eq!(
        wrong(&claims("`a_device_cannot`", "held", &with_one_to_come), &sources),
        Vec::<String>::new()
    );
    let table = [
        (claims("`mute`", "held", m05), "a_device_cannot is no row of Attempts"),
        (
            claims("`a_device_cannot`", "held", m05).replace("`framed`", "`mute`"),
            "framed is no row of Attempts",
        ),
        (claims("`a_device_cannot`", "held", m05).replace("| CSP |", "| CSRF |"), "no row of CSP"),
        (claims("`a_device_cannot`, `gone`", "held", m05), "there is no test gone"),
        (claims("`a_device_cannot`", "gone", m05), "POL-1: there is no test gone"),
        (claims("`a_device_cannot`", "held", ""), "m05_silence is not in the row of M05"),
        (
            claims("`a_device_cannot`", "held", "| M06 | silence | `m05_silence` |"),
            "does not carry its number",
        ),
        (claims("`a_device_cannot`", "held", &format!("{m05}\n| M07 | gates | none yet: |")), "and why"),
        (claims("`a_device_cannot`", "held", &format!("{m05}\n{m05}")), "in the order of their numbers"),
        (claims("`a_device_cannot`", "held", m05).replace("| POL-3 |", "| POL-9 |"), "POL-1 to POL-5"),
        (claims("`a_device_cannot`", "held", m05).replace("| STA-15 |", "| STA-1 |"), "STA-1 to STA-15"),
        (claims("`a_device_cannot`", "held", m05).replace("`q07_ready`", "none: x"), "in the row of Q7"),
        (
            claims("`a_device_cannot`", "held", m05).replace("none: it has no meaning here", "none: "),
            "and why",
        ),
    ];
    for (claims, expected) in table {
        let found = wrong(&claims, &sources);
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}: {found:?}");
    }
}
