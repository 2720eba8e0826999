//! Reads application descriptions of the catalogue (`applications/…/margo.yaml`). Each problem has its file, line, field and rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_contract::application::ApplicationDescription;
use muster_contract::decode::Violation;

use super::path::Path;
use super::{locate, text_of, yaml};
use crate::content::Content;
use crate::problems::Problems;

/// The applications of a commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalogue {
    /// Each with its file, by id.
    applications: BTreeMap<String, (String, Arc<ApplicationDescription>)>,
}

impl Catalogue {
    /// Reads a file of the catalogue.
    pub fn read(&mut self, file: &str, text: &[u8], problems: &mut Problems) {
        let Some(text) = text_of(file, text, problems) else { return };
        let documents = yaml::documents(text);
        if documents.len() != 1 {
            let rule = format!("has {} documents, and a description is one", documents.len());
            return problems.push(file, || None, "", rule);
        }
        for read in documents {
            match read.map(|value| ApplicationDescription::read(&value)) {
                Err(bad) => problems.push(file, || bad.line, bad.path, bad.rule),
                Ok(Err(found)) => push(file, text.as_bytes(), 0, found, problems),
                Ok(Ok(application)) => self.insert(file, text, application, problems),
            }
        }
    }

    fn insert(
        &mut self,
        file: &str,
        text: &str,
        application: ApplicationDescription,
        problems: &mut Problems,
    ) {
        let id = application.id.clone();
        if let Some((other, _)) = self.applications.get(&id) {
            let rule = format!("'{id}' is in {other} already");
            return problems.push(file, || locate::line_of(text, 0, &Path::default().key("id")), "id", rule);
        }
        self.applications.insert(id, (file.to_owned(), Arc::new(application)));
    }

    /// Whether it has no application, so that nothing is checked.
    pub fn is_empty(&self) -> bool {
        self.applications.is_empty()
    }

    /// The rules that a deployment breaks of the application that it names. An application that is not in the catalogue has no rules.
    pub fn check(&self, content: &Content) -> Vec<Violation> {
        let described = self.applications.get(content.application_id());
        described.map_or_else(Vec::new, |(_, application)| application.check(content.entry()))
    }

    /// The immutable values of the application that a new content of a deployment changes.
    pub fn check_change(&self, before: &Content, after: &Content) -> Vec<Violation> {
        if before.application_id() != after.application_id() {
            return Vec::new();
        }
        let described = self.applications.get(after.application_id());
        described
            .map_or_else(Vec::new, |(_, application)| application.check_change(before.entry(), after.entry()))
    }
}

/// Adds violations about document `at` of a file, each with its line.
pub fn push(file: &str, text: &[u8], at: usize, found: Vec<Violation>, problems: &mut Problems) {
    // A file that is no UTF-8 has no entries.
    let text = std::str::from_utf8(text).unwrap_or_default();
    for Violation { path, rule } in found {
        let line = || locate::line_of(text, at, &Path::default().below(&path));
        problems.push(file, line, &path, rule);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_contract::desired::{Source, SourceKind};

    use super::*;
    use crate::compose::{self, Git};
    use crate::plan::draft;
    use crate::published::PublishedState;
    use crate::source::{Body, File, Fleet, Policy, Tree, wants};

    const CATALOGUE: &str = "\
kind: ApplicationDescription
id: historian
metadata: {name: Historian, version: '2', catalog: {organization: [{name: ACME}]}}
deploymentProfiles:
  - {type: process, components: [{name: main, properties: {command: run}}]}
parameters:
  days: {value: 30, targets: [{pointer: DAYS, components: [main]}]}
  mode: {targets: [{pointer: MODE, components: [main]}]}
configuration:
  sections:
    - name: all
      settings:
        - {parameter: days, name: Days, schema: days}
        - {parameter: mode, name: Mode, schema: modes, immutable: true}
  schema:
    - {name: days, dataType: integer, minValue: 1}
    - {name: modes, dataType: select, options: [fast, safe]}
";

    fn deployment(parameters: &str) -> String {
        format!(
            "id: web\nmetadata: {{name: web}}\nspec:\n  applicationId: historian\n  deploymentProfile: {{type: process, \
             components: [{{name: main, properties: {{command: run}}}}]}}\n  parameters:\n{parameters}"
        )
    }

    fn parameter(name: &str, value: &str) -> String {
        format!("    {name}: {{value: {value}, targets: [{{pointer: P, components: [main]}}]}}\n")
    }

    fn read(files: &[(&str, &str)]) -> Result<Fleet, String> {
        let file = |(path, text): &(&str, &str)| {
            assert!(wants(path), "{path}");
            File { path: (*path).to_owned(), body: Body::Text(text.as_bytes().to_vec().into()) }
        };
        let tree = Tree { revision: "r1".to_owned(), files: files.iter().map(file).collect() };
        let policy = Policy { strict: true, ..Policy::default() };
        crate::source::read(&tree, policy).map_err(|problems| problems.to_string())
    }

    fn fleet(parameters: &str) -> Result<Fleet, String> {
        // In the order of a listing the deployment comes first.
        read(&[
            ("sites/a/one/web.yaml", &deployment(parameters)),
            ("applications/plant/historian/margo.yaml", CATALOGUE),
        ])
    }

    #[test]
    fn app_2_a_commit_with_a_value_that_breaks_its_rule_is_refused_by_line() {
        fleet(&parameter("days", "30")).unwrap();
        let refused = fleet(&(parameter("mode", "other") + &parameter("days", "0"))).unwrap_err();
        for line in [
            "sites/a/one/web.yaml:7: spec.parameters.mode.value: is none of the options",
            "sites/a/one/web.yaml:8: spec.parameters.days.value: is 0; at least 1 is needed",
        ] {
            assert!(refused.contains(line), "{line}: {refused}");
        }
        let unknown = fleet(&parameter("dais", "1")).unwrap_err();
        assert!(
            unknown.contains("no parameter of the application historian; did you mean days?"),
            "{unknown}"
        );
        // Without the description there is no rule.
        read(&[("sites/a/one/web.yaml", &deployment(&parameter("days", "0")))]).unwrap();
    }

    #[test]
    fn app_1_a_description_with_a_mistake_refuses_the_commit_by_line() {
        let wrong = CATALOGUE.replace("id: historian", "id: Historian");
        let refused = read(&[("applications/margo.yml", &wrong)]).unwrap_err();
        assert!(refused.contains("applications/margo.yml:2: id: is not an application id"), "{refused}");
        let twice = [("applications/a/margo.yaml", CATALOGUE), ("applications/b/margo.yaml", CATALOGUE)];
        let refused = read(&twice).unwrap_err();
        assert!(
            refused.contains("applications/b/margo.yaml:2: id: 'historian' is in applications/a"),
            "{refused}"
        );
        let refused = read(&[("applications/a/margo.yaml", "a: [")]).unwrap_err();
        assert!(refused.contains("applications/a/margo.yaml:"), "{refused}");
        assert!(!wants("applications/a/values.yaml") && !wants("docs/margo.yaml"));
    }

    #[test]
    fn app_3_neither_a_commit_nor_a_request_changes_an_immutable_value() {
        let key: muster_contract::DeviceKey = "a/one".parse().unwrap();
        let before = fleet(&parameter("mode", "fast")).unwrap();
        let nothing = PublishedState::default();
        let wanted = compose::commit(&key, &before, &nothing).unwrap();
        let held = draft(&nothing, &wanted).unwrap().stored(1);
        let changed = fleet(&parameter("mode", "safe")).unwrap();
        let all = BTreeMap::from([(key.clone(), held.clone())]);
        let refused = compose::changes(&changed, &all).unwrap_err().to_string();
        assert!(
            refused.contains("sites/a/one: web: spec.parameters.mode.value: is \"safe\", and must stay"),
            "{refused}"
        );
        compose::changes(&before, &all).unwrap();

        let request = Source::new(SourceKind::Api, "r1".to_owned());
        let apply = |content: &Content| {
            let applied =
                compose::apply(&key, Git::Known(&before), &held, std::slice::from_ref(content), &request);
            applied.map(drop).map_err(|refused| refused.to_string())
        };
        let refused = apply(&changed.devices[&key][0]).unwrap_err();
        assert!(
            refused.contains("'web' breaks a rule of its application") && refused.contains("must stay"),
            "{refused}"
        );
        apply(&before.devices[&key][0]).unwrap();
    }
}
