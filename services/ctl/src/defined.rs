//! `muster view`: views that people define, by request to the rollup.

use std::path::Path;

use muster_contract::decode::Document as _;
use muster_contract::defined::ViewDefinition;
use muster_contract::groups::{GroupQuery, RemoveViewRequest};
use muster_contract::keys::check_keys;

use crate::config::ViewCommand;
use crate::error::CtlError;
use crate::publish::read;
use crate::render;
use crate::session::Session;

/// Defines, lists, shows or removes.
///
/// # Errors
/// When the definition cannot be used, nobody answers, or there is no such view.
pub(crate) async fn run(session: &mut Session<'_>, command: ViewCommand) -> Result<(), CtlError> {
    match command {
        ViewCommand::Apply { file } => {
            let definition = definition(&file, &read(&file)?)?;
            let answer = session.hub.view("apply", &definition).await?;
            session.show(&answer, |answer, _| render::defined::applied(answer))
        }
        ViewCommand::List => {
            let answer = session.hub.groups("views", &GroupQuery::default()).await?;
            let frame = session.frame();
            session.show(&answer, |answer, _| render::defined::list(answer, frame))
        }
        ViewCommand::Show { name } => {
            let query = GroupQuery { view: Some(name), ..GroupQuery::default() };
            let answer = session.hub.groups("view", &query).await?;
            let frame = session.frame();
            session.show(&answer, |answer, _| render::defined::view(answer, frame))
        }
        ViewCommand::Remove { name } => {
            let answer = session.hub.view("remove", &RemoveViewRequest { name }).await?;
            session.show(&answer, |answer, _| render::defined::removed(answer))
        }
    }
}

/// The definition in a file. The same rules hold at the rollup; here they come with the name of the file.
fn definition(path: &Path, text: &str) -> Result<ViewDefinition, CtlError> {
    let refused = |reason: String| CtlError::Definition { path: path.to_owned(), reason };
    if let Ok(value) = serde_norway::from_str(text) {
        check_keys::<ViewDefinition>(&value).map_err(|unknown| refused(unknown.to_string()))?;
    }
    let yaml = serde_norway::Deserializer::from_str(text);
    let definition: ViewDefinition = serde_path_to_error::deserialize(yaml).map_err(|error| {
        let place = error.path().to_string();
        let said = error.into_inner().to_string();
        // The parser begins with a part of the place.
        let rest = said.split_once(": ").filter(|(head, _)| place.starts_with(head));
        let reason = rest.map_or(said.as_str(), |(_, rest)| rest);
        refused(if place == "." { reason.to_owned() } else { format!("{place}: {reason}") })
    })?;
    definition.check().map_err(|broken| refused(broken.to_string()))?;
    Ok(definition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        definition(Path::new("view.yaml"), text).unwrap_err().words().unwrap()
    }

    #[test]
    fn a_definition_is_read_from_yaml_and_from_json() {
        let yaml = "apiVersion: muster/v1\nkind: ViewDefinition\nname: rings\ngroupBy: label:ring\n";
        let json = r#"{"apiVersion": "muster/v1", "kind": "ViewDefinition", "name": "rings", "groupBy": "label:ring"}"#;
        let read = |text| definition(Path::new("f"), text).unwrap();
        assert_eq!(read(yaml), read(json));
    }

    #[test]
    fn what_cannot_be_used_is_named_by_field_and_rule() {
        let head = "apiVersion: muster/v1\nkind: ViewDefinition\nname: rings\n";
        for (rest, words) in [
            ("groupBy: ring\n", "groupBy: 'ring' is nothing to group by"),
            ("groupBy: component\n", "groupBy: component needs count: components"),
            ("selekt: {}\n", "selekt: unknown key; did you mean select?"),
            ("select: {stes: [a]}\n", "select.stes: unknown key; did you mean sites?"),
            ("select: {sites: []}\n", "select.sites: names nothing"),
            ("select: {standings: [broken]}\n", "unknown variant `broken`"),
            ("select: {labels: {Region: [a]}}\n", "'Region' is not a valid label"),
            ("select: {verdicts: [empty]}\n", "select.verdicts: no standing makes"),
            ("name: rings\n", "duplicate"),
            ("a: [\n", "view.yaml"),
        ] {
            let said = refused(&format!("{head}{rest}"));
            assert!(said.contains(words) && said.contains("view.yaml"), "{rest}: {said}");
        }
    }
}
