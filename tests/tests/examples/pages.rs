//! The pages that show the examples, against the files: their length, what they import, that each is shown whole, and that a
//! person can copy them. It runs no example.

use muster_tests::schemas;

/// The lines of code and comments that an example may have.
const LINES_MAX: usize = 80;
/// Files that an example imports, and the lines that each may have: a person copies and reads them too.
const IMPORTED: [(&str, usize); 9] = [
    ("connect.py", LINES_MAX),
    ("digest.py", 20),
    ("js/connect.js", 85),
    ("js/digest.js", 20),
    ("js/browser.js", 30),
    ("rust/src/hub.rs", 150),
    ("rust/src/by_label.rs", 70),
    ("rust/src/outbox.rs", 115),
    ("rust/src/digest.rs", 35),
];
/// Examples for Margo's HTTP API.
const MARGO: [(&str, usize); 2] = [("margo_device.py", LINES_MAX), ("margo_gateway.py", LINES_MAX)];
/// Words by which an example in Python imports a file beside it.
const OWN_IMPORT: &str = "from ";

#[test]
fn no_example_is_longer_than_a_person_reads_at_once() {
    let folder = schemas::folder().join("examples");
    for name in ["watch", "view", "device", "notify"] {
        let files = [format!("{name}.py"), format!("js/{name}.js"), format!("rust/src/bin/{name}.rs")];
        for file in files {
            let lines = std::fs::read_to_string(folder.join(&file)).unwrap().lines().count();
            assert!(lines <= LINES_MAX, "{file} has {lines} lines, over {LINES_MAX}");
        }
    }
    for (file, lines_max) in IMPORTED.into_iter().chain(MARGO) {
        let lines = std::fs::read_to_string(folder.join(file)).unwrap().lines().count();
        assert!(lines <= lines_max, "{file} has {lines} lines, over {lines_max}");
    }
}

#[test]
fn an_example_in_python_imports_no_file_but_those_that_the_guide_names() {
    let folder = schemas::folder();
    let guide = std::fs::read_to_string(folder.join("EXAMPLES.md")).unwrap();
    for name in ["watch", "view", "device", "notify"] {
        let text = std::fs::read_to_string(folder.join(format!("examples/{name}.py"))).unwrap();
        let imports = text.lines().filter_map(|line| line.strip_prefix(OWN_IMPORT)?.split_once(" import"));
        let own = imports.map(|(module, _)| format!("{module}.py"));
        for file in own.filter(|file| folder.join("examples").join(file).exists()) {
            assert!(IMPORTED.iter().any(|(imported, _)| *imported == file), "{name}.py imports {file}");
            assert!(guide.contains(&format!("<!-- include: schemas/examples/{file} -->")), "{file}");
        }
    }
}

/// The pages that show examples.
fn shown() -> String {
    let page = |name: &str| std::fs::read_to_string(schemas::folder().join(name)).unwrap();
    page("README.md") + &page("EXAMPLES.md")
}

#[test]
fn the_pages_show_every_example_of_every_language_with_what_it_imports() {
    let (pages, examples) = (shown(), ["watch", "view", "device", "notify"]);
    let files = examples
        .iter()
        .flat_map(|name| [format!("{name}.py"), format!("js/{name}.js"), format!("rust/src/bin/{name}.rs")]);
    for file in files.chain(IMPORTED.map(|(file, _)| file.to_owned())) {
        assert!(pages.contains(&format!("<!-- include: schemas/examples/{file} -->")), "{file}");
    }
}

#[test]
fn the_example_of_a_browser_needs_nothing_of_node() {
    let text = std::fs::read_to_string(schemas::folder().join("examples/js/browser.js")).unwrap();
    let imports: Vec<_> = text.lines().filter_map(|line| line.split_once(" from ")).collect();
    assert!(matches!(imports[..], [(_, "\"@nats-io/nats-core\";")]), "{imports:?}");
    for word in ["process.", "Buffer", "require("] {
        assert!(!text.contains(word), "{word}");
    }
}

#[test]
fn the_package_in_rust_can_be_copied_with_the_versions_that_are_tested() {
    let own = std::fs::read_to_string(schemas::folder().join("examples/rust/Cargo.toml")).unwrap();
    let all = std::fs::read_to_string(schemas::folder().join("../Cargo.toml")).unwrap();
    assert!(!own.contains("workspace") && !own.contains("muster-contract"), "{own}");
    let dependencies: Vec<_> = own.split_once("[dependencies]").unwrap().1.lines().collect();
    for line in dependencies.into_iter().filter(|line| !line.is_empty()) {
        assert!(all.lines().any(|tested| tested == line), "{line}");
    }
}
