//! `muster app`: reads application descriptions from files. It asks no hub, and changes nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use muster_contract::application::{ApplicationDescription, CATALOGUE_FOLDER, FILE_NAMES};
use muster_contract::decode::Violation;
use muster_contract::near::near;
use muster_contract::query::Problem;
use serde::Serialize;
use serde_json::Value;

use crate::config::{AppCommand, Format};
use crate::error::CtlError;
use crate::render;
use crate::terminal::Terminal;
use crate::yaml::line_of;

/// Bytes of a description, as the publisher reads them.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Folders within each other that are searched.
const DEPTH_MAX: usize = 16;
/// Descriptions of a catalogue.
const FILES_MAX: usize = 10_000;

/// The applications of files, and what is wrong with the others.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Applications {
    /// The applications, by id.
    pub applications: Vec<FoundApplication>,
    /// The problems, by file and line.
    pub problems: Vec<Problem>,
}

/// An application and its file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundApplication {
    /// The file.
    pub file: String,
    /// Its description.
    #[serde(flatten)]
    pub description: ApplicationDescription,
}

/// Runs a command; false if the answer is no.
///
/// # Errors
/// The files cannot be read, or there is no such application.
pub(crate) fn run(command: AppCommand, format: Format, terminal: &mut Terminal) -> Result<bool, CtlError> {
    match command {
        AppCommand::List { repository } => {
            let found = read(&[repository.join(CATALOGUE_FOLDER)])?;
            show(&found, format, terminal, render::applications::list)?;
            Ok(found.problems.is_empty())
        }
        AppCommand::Validate { paths } => {
            let found = read(&paths)?;
            show(&found, format, terminal, render::applications::validated)?;
            Ok(found.problems.is_empty())
        }
        AppCommand::Show { id, repository } => {
            let found = read(&[repository.join(CATALOGUE_FOLDER)])?;
            let Some(application) = found.applications.iter().find(|it| it.description.id == id) else {
                let ids = found.applications.iter().map(|it| it.description.id.as_str());
                let near = near(&id, ids).into_iter().map(str::to_owned).collect();
                let folder = repository.join(CATALOGUE_FOLDER);
                let mut message = format!("{} has no application '{id}'", folder.display());
                if !found.problems.is_empty() {
                    let many = found.problems.len();
                    message += &format!(", and {many} problems in its files (see `muster app list`)");
                }
                return Err(CtlError::Unknown { message, near });
            };
            show(application, format, terminal, render::applications::one)?;
            Ok(true)
        }
    }
}

fn show<T: Serialize>(
    found: &T,
    format: Format,
    terminal: &mut Terminal,
    render: impl FnOnce(&T) -> String,
) -> Result<(), CtlError> {
    match format {
        Format::Json => {
            // Cannot fail: texts, numbers and values that were JSON.
            let json = serde_json::to_string_pretty(found).unwrap_or_default() + "\n";
            Ok(terminal.print_json(&json)?)
        }
        Format::Table => Ok(terminal.print(&render(found))?),
    }
}

/// Reads the descriptions of files and folders.
fn read(paths: &[PathBuf]) -> Result<Applications, CtlError> {
    let mut files = Vec::new();
    for path in paths {
        let failed = |source| CtlError::File { path: path.clone(), source };
        if fs::metadata(path).map_err(failed)?.is_dir() {
            collect(path, 0, &mut files).map_err(failed)?;
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    let mut found = Applications::default();
    for file in &files {
        match description(file) {
            Ok(description) => insert(&mut found, file, description),
            Err(problems) => found.problems.extend(problems),
        }
    }
    found.applications.sort_by(|one, other| one.description.id.cmp(&other.description.id));
    Ok(found)
}

fn insert(found: &mut Applications, file: &Path, description: ApplicationDescription) {
    let file = file.display().to_string();
    if let Some(other) = found.applications.iter().find(|it| it.description.id == description.id) {
        let rule = format!("'{}' is in {} already", description.id, other.file);
        return found.problems.push(Problem { file, line: None, field: "id".to_owned(), rule });
    }
    found.applications.push(FoundApplication { file, description });
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if depth >= DEPTH_MAX {
                let path = entry.path();
                let rule = format!("{} is more than {DEPTH_MAX} folders deep: move it up", path.display());
                return Err(io::Error::other(rule));
            }
            collect(&entry.path(), depth + 1, files)?;
        } else if kind.is_file() && FILE_NAMES.iter().any(|name| entry.file_name() == *name) {
            files.push(entry.path());
        }
        if files.len() > FILES_MAX {
            return Err(io::Error::other(format!("has more than {FILES_MAX} descriptions")));
        }
    }
    Ok(())
}

/// Reads one description; all problems of the file.
fn description(path: &Path) -> Result<ApplicationDescription, Vec<Problem>> {
    let file = path.display().to_string();
    let whole = |rule: String| vec![Problem { file: file.clone(), line: None, field: String::new(), rule }];
    let bytes = fs::metadata(path).map_err(|error| whole(format!("cannot be read: {error}")))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(whole(format!("has {bytes} bytes; {FILE_BYTES_MAX} are allowed: split the file")));
    }
    let text = fs::read_to_string(path).map_err(|error| whole(format!("cannot be read: {error}")))?;
    let value: Value = serde_norway::from_str(&text).map_err(|error| {
        let line = error.location().map(|at| at.line() as u64);
        vec![Problem { file: file.clone(), line, field: String::new(), rule: error.to_string() }]
    })?;
    ApplicationDescription::read(&value).map_err(|found| {
        let problem = |Violation { path, rule }| {
            let line = line_of(&text, &path);
            Problem { file: file.clone(), line, field: path, rule }
        };
        let mut problems: Vec<_> = found.into_iter().map(problem).collect();
        problems.sort_by_key(|problem| problem.line);
        problems
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
apiVersion: application.margo.org/v1alpha1
kind: ApplicationDescription
id: historian
metadata: {name: Historian, version: \"2.4.0\", catalog: {organization: [{name: ACME}]}}
deploymentProfiles:
  - type: compose
    components: [{name: web, properties: {packageLocation: nats://packages/web.tar.gz}}]
parameters:
  days: {value: 30, targets: [{pointer: DAYS, components: [web]}]}
configuration:
  sections: [{name: Storage, settings: [{parameter: days, name: Days, schema: days}]}]
  schema:
    - {name: days, dataType: integer, minValue: 1}
";

    /// An output that the test reads.
    struct Sink(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn ran(command: AppCommand, format: Format) -> (Result<bool, CtlError>, String) {
        let out = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut terminal = Terminal::of(Sink(out.clone()), io::sink());
        let result = run(command, format, &mut terminal);
        let text = String::from_utf8(out.lock().unwrap().clone()).unwrap();
        (result, text)
    }

    #[test]
    fn a_catalogue_is_listed_and_an_application_shown_with_its_rules() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("applications/plant/historian");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("margo.yaml"), GOOD).unwrap();
        fs::write(folder.join("other.yaml"), "not: read").unwrap();
        let repository = || dir.path().to_owned();
        let (listed, text) = ran(AppCommand::List { repository: repository() }, Format::Table);
        assert!(listed.unwrap() && text.contains("historian") && text.contains("compose"), "{text}");
        let show = |id: &str| AppCommand::Show { id: id.to_owned(), repository: repository() };
        let (shown, text) = ran(show("historian"), Format::Table);
        assert!(shown.unwrap(), "{text}");
        for words in ["Historian", "2.4.0", "days", "30", "integer", "1", "web"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let (_, json) = ran(show("historian"), Format::Json);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["parameters"]["days"]["rule"]["minValue"], 1.0);
        let missing = ran(show("historan"), Format::Table).0.unwrap_err();
        assert!(missing.words().unwrap().contains("did you mean historian"), "{missing}");
    }

    #[test]
    fn every_problem_has_its_file_line_field_and_rule() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("margo.yaml");
        let wrong = GOOD.replace("value: 30", "value: 0").replace("id: historian", "id: Historian");
        fs::write(&file, wrong).unwrap();
        let (valid, text) = ran(AppCommand::Validate { paths: vec![file.clone()] }, Format::Table);
        assert!(!valid.unwrap());
        let file = file.display();
        for line in [
            format!("{file}:3: id: is not an app"),
            format!("{file}:9: parameters.days.value: is 0; at least 1"),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
        fs::write(dir.path().join("margo.yml"), "a: [").unwrap();
        let (valid, text) = ran(AppCommand::Validate { paths: vec![dir.path().to_owned()] }, Format::Json);
        assert!(!valid.unwrap());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["problems"].as_array().unwrap().len(), 3);
        let none = AppCommand::List { repository: dir.path().join("nowhere") };
        assert!(ran(none, Format::Table).0.is_err());
    }
}
