//! Margo documents against golden files: what each draft becomes, and every refusal with its line.
//!
//! `documents/good/X.yaml` becomes `X.json`, `documents/bad/X.yaml` is refused with `X.txt`. `UPDATE_GOLDEN=1`
//! rewrites the golden files; read the difference before committing it.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::{Path, PathBuf};

use muster_contract::Generation;
use muster_publisher::margo::{self, Level};
use muster_publisher::problems::Problems;

fn level() -> Level {
    Level::Device("plant7/press-4".parse().unwrap())
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/documents").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    assert!(!files.is_empty());
    files
}

fn compare(golden: &Path, is: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, is).unwrap();
    }
    let wanted = std::fs::read_to_string(golden).unwrap_or_default();
    assert_eq!(is, wanted, "{} differs:\n{is}", golden.display());
}

#[test]
fn every_draft_becomes_the_same_kind_of_content() {
    for file in files("good") {
        let mut problems = Problems::default();
        let entries = margo::read("x.yaml", &std::fs::read(&file).unwrap(), &level(), &mut problems);
        assert_eq!(problems.to_string(), "", "{}", file.display());
        let entries: Vec<_> =
            entries.iter().map(|entry| entry.content.targeting(Generation::FIRST)).collect();
        compare(&file.with_extension("json"), &(serde_json::to_string_pretty(&entries).unwrap() + "\n"));
    }
}

#[test]
fn every_refusal_names_file_line_field_and_rule() {
    for file in files("bad") {
        let mut problems = Problems::default();
        let name = file.file_name().unwrap().to_str().unwrap();
        margo::read(name, &std::fs::read(&file).unwrap(), &level(), &mut problems);
        assert!(problems.clone().into_list().iter().all(|problem| problem.line.is_some()), "{problems}");
        compare(&file.with_extension("txt"), &format!("{problems}\n"));
    }
}

#[test]
fn files_that_are_no_text_or_too_long_are_refused_without_being_read() {
    let mut problems = Problems::default();
    margo::read("a.yaml", b"id: a\nname: \xff\n", &level(), &mut problems);
    margo::read("b.yaml", &vec![b' '; margo::FILE_BYTES_MAX + 1], &level(), &mut problems);
    let shown = problems.to_string();
    assert_eq!(
        shown,
        "a.yaml:2: is not UTF-8 text\n\
         b.yaml: has 1048577 bytes; 1048576 are allowed: split the file"
    );
}

#[test]
fn a_document_that_names_another_device_than_its_folder_is_refused() {
    let text = |device: &str| {
        format!(
            "id: a\nmetadata: {{name: a, deviceId: '{device}'}}\nspec: {{applicationId: a, deploymentProfile: \
             {{type: process, components: [{{name: a, properties: {{command: a}}}}]}}}}\n"
        )
    };
    let site = Level::Site("plant7".parse().unwrap());
    for (level, device, accepted) in [
        (level(), "press-4", true),
        (level(), "plant7/press-4", true),
        (level(), "press-5", false),
        (level(), "plant8/press-4", false),
        (level(), "plant7/*", false),
        (site.clone(), "plant7/*", true),
        (site, "press-4", false),
        (Level::Fleet, "press-4", false),
    ] {
        let mut problems = Problems::default();
        margo::read("a.yaml", text(device).as_bytes(), &level, &mut problems);
        assert_eq!(problems.is_empty(), accepted, "{level:?} {device}: {problems}");
        assert!(accepted || problems.to_string().starts_with("a.yaml:2: metadata.deviceId: "), "{problems}");
    }
}
