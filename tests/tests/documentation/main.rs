//! The documentation compared with the repository: links and anchors lead somewhere; commands name programs, subcommands,
//! flags, targets and tests that exist; pages name tests, metrics, alerts and settings that exist; the page of REST names each
//! command. It judges no sentence.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod commands;
mod includes;
mod links;
mod lists;
mod markdown;
mod repository;
mod rest;

use markdown::Page;
use muster_identity::Role;

/// Fails with every finding of a rule, one a line.
#[track_caller]
fn none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}: {} findings\n{}", found.len(), found.join("\n"));
}

#[test]
fn every_link_and_anchor_leads_somewhere() {
    let pages = repository::pages();
    none("links", &links::broken(&pages, repository::exists));
}

#[test]
fn a_broken_link_or_anchor_is_found() {
    let page = |path: &str, text: &str| Page::new(path, text);
    let pages = [
        page(
            "a.md",
            "# One `two`, three\n[x](#one-two-three) [`y`](b/c.md#d)\n```\n[z](gone.md)\n```\n`[q](gone.md)`\n",
        ),
        page("b/c.md", "# C\n## D\n## D\n[up](../a.md) [second](#d-1) [web](https://example.com/#x)\n"),
    ];
    let exists = |path: &str| ["a.md", "b/c.md"].contains(&path);
    assert_eq!(links::broken(&pages, exists), Vec::<String>::new());
    let bad = [page("b/c.md", "# C\n[a](../gone.md)\n[b](#d)\n[c](../a.md#one)\n"), page("a.md", "# A\n")];
    assert_eq!(links::broken(&bad, exists).len(), 3);
}

#[test]
fn every_command_names_what_exists() {
    let known = commands::Known::read();
    let found: Vec<String> = repository::pages().iter().flat_map(|page| known.wrong(page)).collect();
    none("commands", &found);
}

#[test]
fn a_command_that_names_nothing_is_found() {
    let known = commands::Known::read();
    let wrong = |line: &str| known.wrong(&Page::new("a.md", &format!("# A\n```sh\n{line}\n```\n")));
    let fine = [
        "target/release/muster status web --output all   # a comment",
        "A=1 muster --nats-url nats://top:4222 status | cat",
        "sudo -u muster muster-agent key --data-dir /x && make demo",
        "docker compose run --rm muster devices",
        "SIM_SEED=1 cargo nextest run -p muster-tests --test sim --no-capture first",
        "cargo bench -p muster-tests --bench growth -- --any",
        "make chaos CHAOS_SECONDS=60",
        "cp a b",
    ];
    fine.iter().for_each(|line| assert_eq!(wrong(line), Vec::<String>::new(), "{line}"));
    let bad = [
        "muster stauts",
        "muster status --no-such-flag",
        "muster-nobody --help",
        "make nothing",
        "make chaos NO_SUCH=1",
        "cargo nextest run -p muster-tests --test no_such",
        "cargo run -p muster-nobody",
        "cargo nextest run --workspace no_test_has_this_name",
        ".ci/nothing",
        "docker compose run --rm muster nothing",
    ];
    bad.iter().for_each(|line| assert_eq!(wrong(line).len(), 1, "{line}: {:?}", wrong(line)));
    let inline =
        known.wrong(&Page::new("a.md", "# A\nSay `muster stauts`, `muster status …` or `make test`.\n"));
    assert_eq!(inline.len(), 1, "{inline:?}");
}

#[test]
fn a_page_shows_each_included_file_as_it_is() {
    let page = "# A\n<!-- include: a.py -->\n```python\nold\n```\nEnd.\n";
    let (text, files) = includes::filled(page, |path| format!("print('{path}')\n"));
    assert_eq!(text, "# A\n<!-- include: a.py -->\n```python\nprint('a.py')\n```\nEnd.\n");
    assert_eq!(files, ["a.py"]);
    none("includes", &includes::outdated(std::env::var_os("UPDATE_SCHEMAS").is_some()));
    let guide = repository::read("schemas/README.md");
    assert!(includes::filled(&guide, repository::read).1.contains(&"schemas/examples/watch.py".to_owned()));
    let shown = includes::filled(&repository::read("schemas/EXAMPLES.md"), repository::read).1;
    for name in ["view", "notify", "device", "connect", "digest"] {
        assert!(shown.contains(&format!("schemas/examples/{name}.py")), "{name}.py is in no page");
    }
}

#[test]
fn the_page_of_rest_names_each_command() {
    let commands = rest::commands();
    assert!(commands.len() > 100, "{commands:?}");
    none("commands", &rest::left_out(&repository::read("services/gateway/REST.md"), &commands));
    let page =
        "# A\n\n## Reads\n\n| `/plans` | `muster plan list`, `show PLAN`, `device` |\n\n- `muster auth`\n";
    let commands = ["plan list", "plan show", "plan apply", "auth init", "device", "top"].map(str::to_owned);
    assert_eq!(rest::left_out(page, &commands), ["plan apply", "device", "top"]);
}

#[test]
fn every_python_block_compiles() {
    none("Python", &lists::python_that_does_not_compile(&repository::pages()));
}

#[test]
fn every_test_that_a_page_names_exists() {
    none("tests", &lists::tests_that_do_not_exist(&repository::pages()));
}

#[test]
fn a_test_that_does_not_exist_or_is_cut_short_is_found() {
    let page =
        Page::new("a.md", "# A\n`there_is_no_test_of_this_name_in_the_tree` `a_test_that_…` `m08_…`\n");
    assert_eq!(lists::tests_that_do_not_exist(&[page]).len(), 2);
}

#[test]
fn pages_use_no_word_that_has_a_plain_one() {
    none("words", &lists::habits(&repository::pages()));
    let bad = Page::new("a.md", "# A\nWhoever asks.\nIt ends. Of these one is it.\nIt is said\nagain.\n");
    assert_eq!(lists::habits(&[bad]).len(), 2);
}

#[test]
fn the_operators_guide_lists_every_metric() {
    let guide = repository::read("services/README.md");
    let metrics = lists::metrics();
    assert!(metrics.len() > 80, "{metrics:?}");
    let left_out = metrics.iter().filter(|metric| !guide.contains(&format!("`{metric}")));
    none("metrics", &left_out.cloned().collect::<Vec<_>>());
}

#[test]
fn the_operators_guide_lists_every_alert() {
    let guide = repository::read("services/README.md");
    let rules = repository::read("compose/observe/alerts.yaml");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    let left_out = alerts.iter().filter(|alert| !guide.contains(&format!("| `{alert}` |")));
    none("alerts", &left_out.map(ToString::to_string).collect::<Vec<_>>());
}

#[test]
fn each_unit_starts_a_program_with_settings_it_has() {
    let known = commands::Known::read();
    let units = repository::files("services/systemd", "service");
    assert!(units.len() >= 6, "{units:?}");
    let found: Vec<String> = units.iter().flat_map(|unit| lists::wrong_unit(&known, unit)).collect();
    none("units", &found);
    let bad = "[Service]\nExecStart=/usr/bin/muster-ingest\nEnvironment=MUSTER_NO_SUCH=1\n";
    assert_eq!(lists::wrong_lines(&known, "a.service", bad).len(), 1);
}

#[test]
fn the_renewers_unit_hides_each_signing_key_but_that_of_devices() {
    let unit = repository::read("services/systemd/muster-renewer.service");
    let is_hidden =
        |role: &Role| unit.contains(&format!("-%S/muster-keys/auth/signers/{}.seed", role.as_str()));
    let readable: Vec<Role> = Role::ALL.into_iter().filter(|role| !is_hidden(role)).collect();
    assert_eq!(readable, [Role::Device]);
}

#[test]
fn each_service_and_each_decision_has_its_page() {
    none("pages", &lists::pages_left_out());
}

#[test]
fn the_first_pages_are_short_and_the_top_holds_what_is_listed() {
    for (path, lines_max) in [("README.md", 150), ("compose/README.md", 115)] {
        let lines = repository::read(path).lines().count();
        assert!(lines <= lines_max, "{path} has {lines} lines, over {lines_max}");
    }
    none("files at the top", &lists::strangers_at_the_top());
}
