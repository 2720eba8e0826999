//! The content of a release: packages with units and conffiles that install and uninstall, archives, checksums, the list of
//! components; and the trial with the release before, which names the reason if it was not run.
//!
//! The programs are stand-ins, so nothing is compiled. The fleet in containers tests whether the packages work on a machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use muster_tests::system::PROGRAMS;

use super::{Permissions, TOP};

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

fn run(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).current_dir(TOP).output().unwrap()
}

fn said(program: &str, words: &[&str]) -> String {
    let output = run(program, words);
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes what a release ships, of stand-ins.
fn dist(place: &Path) -> std::path::PathBuf {
    let (programs, dist) = (place.join("programs"), place.join("dist"));
    fs::create_dir(&programs).unwrap();
    for name in PROGRAMS {
        executable(&programs.join(name), "#!/bin/sh\necho stand-in\n");
    }
    let mut command = Command::new(Path::new(TOP).join(".ci/dist"));
    command.env("PROGRAMS", &programs).env("DIST", &dist).env("SOURCE_DATE_EPOCH", "1764120000");
    let output = command.current_dir(TOP).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dist
}

fn deb(dist: &Path, name: &str) -> String {
    let mut found = fs::read_dir(dist).unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &std::path::PathBuf| {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
    };
    found.find(is_it).unwrap().display().to_string()
}

#[test]
fn packages_hold_each_program_with_its_unit_and_keep_settings() {
    let place = tempfile::tempdir().unwrap();
    let dist = dist(place.path());
    let mut shipped = BTreeSet::new();
    for name in ["muster-hub", "muster-agent", "muster"] {
        let deb = deb(&dist, name);
        let listed = said("dpkg-deb", &["--contents", &deb]);
        let files = |below: &str| {
            let paths = listed.lines().filter_map(|line| line.split_whitespace().nth(5));
            let names = paths.filter_map(|path| path.strip_prefix(below)).filter(|name| !name.is_empty());
            names.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
        let units: BTreeSet<_> = files("./usr/lib/systemd/system/");
        for unit in &units {
            let program = unit.trim_end_matches(".service");
            assert!(files("./usr/bin/").contains(program), "{unit}");
        }
        shipped.extend(units);
        assert!(files("./usr/share/doc/").contains(&format!("{name}/copyright")), "{listed}");
        let control = place.path().join(name);
        said("dpkg-deb", &["--control", &deb, &control.display().to_string()]);
        let conffiles = fs::read_to_string(control.join("conffiles")).unwrap_or_default();
        let settings = files("./etc/muster/");
        let settings: String = settings.iter().map(|file| format!("/etc/muster/{file}\n")).collect();
        assert_eq!(conffiles, settings);
        for script in ["postinst", "prerm", "postrm"].map(|script| control.join(script)) {
            if script.exists() {
                said("sh", &["-n", &script.display().to_string()]);
            }
        }
        let field = |field: &str| said("dpkg-deb", &["--field", &deb, field]);
        for required in ["Version", "Architecture", "Maintainer", "Description", "Installed-Size"] {
            assert!(!field(required).trim().is_empty(), "{name} has no {required}");
        }
    }
    assert_eq!(shipped, units_of_the_repository());
}

fn units_of_the_repository() -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(TOP).join("services/systemd")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".service")).collect()
}

#[test]
fn a_removed_package_leaves_its_settings_and_a_purged_one_none() {
    let place = tempfile::tempdir().unwrap();
    let dist = dist(place.path());
    let root = place.path().join("root");
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), "").unwrap();
    }
    let root_flag = format!("--root={}", root.display());
    let dpkg = |words: &[&str]| {
        let flags =
            [&root_flag, "--force-script-chrootless", "--force-depends", "--force-not-root", "--no-triggers"];
        said("dpkg", &[&flags, words].concat())
    };
    let settings = root.join("etc/muster/agent.env");
    dpkg(&["--install", &deb(&dist, "muster-agent")]);
    assert!(root.join("usr/bin/muster-agent").exists() && settings.exists());
    fs::write(&settings, "MUSTER_SITE=plant7\n").unwrap();
    dpkg(&["--force-confold", "--install", &deb(&dist, "muster-agent")]);
    assert_eq!(fs::read_to_string(&settings).unwrap(), "MUSTER_SITE=plant7\n", "an upgrade keeps settings");
    dpkg(&["--remove", "muster-agent"]);
    assert!(!root.join("usr/bin/muster-agent").exists() && settings.exists());
    dpkg(&["--purge", "muster-agent"]);
    assert!(!settings.exists());
}

#[test]
fn a_release_has_archives_checksums_and_the_list_of_its_components() {
    let place = tempfile::tempdir().unwrap();
    let dist = dist(place.path());
    let mut check = Command::new("sha256sum");
    let checked = check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&dist).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let files: Vec<_> = fs::read_dir(&dist).unwrap().map(|entry| entry.unwrap().path()).collect();
    let sums = fs::read_to_string(dist.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count() + 1, files.len(), "{sums}");
    let ending =
        |ending: &str| files.iter().find(|file| file.display().to_string().ends_with(ending)).unwrap();
    let listed = said("tar", &["-tzf", &ending(".tar.gz").display().to_string()]);
    for name in PROGRAMS {
        assert!(listed.contains(&format!("./bin/{name}\n")), "{listed}");
    }
    let bom: serde_json::Value = serde_json::from_slice(&fs::read(ending(".cdx.json")).unwrap()).unwrap();
    let components = bom["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    let tokio = named("tokio").expect("tokio ships");
    assert!(tokio["hashes"][0]["content"].is_string() && tokio["licenses"][0]["expression"].is_string());
    assert!(
        named("muster-agent").is_some() && named("muster-tests").is_none() && named("proptest").is_none()
    );
}

#[test]
fn a_trial_with_an_unreachable_release_is_not_run_and_says_why() {
    let place = tempfile::tempdir().unwrap();
    let changelog = place.path().join("CHANGELOG.md");
    for (text, reason) in [
        ("## [0.1.0]\n\nCommit `0123456789ab`.\n", "commit 0123456789ab is not in this clone"),
        ("## [0.1.0] - Unreleased\n", "names no release by its commit"),
    ] {
        fs::write(&changelog, text).unwrap();
        let notes = place.path().join("not-run");
        let mut command = Command::new(Path::new(TOP).join(".ci/compat"));
        command.env("CHANGELOG", &changelog).env("MUSTER_NOT_RUN", &notes).current_dir(TOP);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains(reason), "{said}");
        assert!(fs::read_to_string(&notes).unwrap().contains("old agents on this hub: "), "{said}");
    }
}

#[test]
fn the_repository_names_a_release_by_its_commit() {
    let changelog = fs::read_to_string(Path::new(TOP).join("CHANGELOG.md")).unwrap();
    let named = changelog.lines().find(|line| line.starts_with("Commit `"));
    assert!(named.is_some_and(|line| line.len() > "Commit ``".len() + 11), "`make compat` needs it");
}
