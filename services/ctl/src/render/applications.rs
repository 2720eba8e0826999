//! Applications of a catalogue.

use muster_contract::application::{DataType, DescribedParameter, ValueRule};
use muster_contract::query::Problem;
use serde_json::Value;

use super::commit::problem_line;
use super::format::{clean, plural};
use super::table::Table;
use crate::applications::{Applications, FoundApplication};

/// The applications of a repository, and the problems of files.
pub fn list(found: &Applications) -> String {
    let problems = problems(&found.problems);
    if found.applications.is_empty() && problems.is_empty() {
        return "The repository has no application: applications/…/margo.yaml describes one.\n".to_owned();
    }
    let mut table = Table::new(&["APPLICATION", "VERSION", "NAME", "PROFILES", ">PARAMETERS"]);
    for FoundApplication { description, .. } in &found.applications {
        let profiles: Vec<_> =
            description.profiles.iter().map(|profile| profile.profile_type.as_str()).collect();
        table.row([
            description.id.clone().into(),
            clean(&description.version).into(),
            clean(&description.name).into(),
            profiles.join(", ").into(),
            description.parameters.len().to_string().into(),
        ]);
    }
    format!("{}{problems}", table.within(None))
}

/// The result of a validation.
pub fn validated(found: &Applications) -> String {
    let good = found.applications.len() as u64;
    problems(&found.problems) + &format!("{} without problems\n", plural(good, "description"))
}

/// One application.
pub fn one(found: &FoundApplication) -> String {
    let FoundApplication { file, description } = found;
    let by = description.organizations.join(", ");
    let (name, version) = (clean(&description.name), clean(&description.version));
    let mut text = format!("{} {version}: {name}, by {}\n{file}\n", description.id, clean(&by));
    text += &description.description.as_ref().map_or_else(String::new, |words| clean(words) + "\n");
    for profile in &description.profiles {
        let id = profile.id.as_ref().map_or_else(String::new, |id| format!(" ({})", clean(id)));
        text +=
            &format!("\nprofile {}{id}: {}", profile.profile_type.as_str(), profile.components.join(", "));
    }
    text.push('\n');
    if description.parameters.is_empty() {
        return text;
    }
    let mut table = Table::new(&["PARAMETER", "DEFAULT", "VALUES", "GOES TO"]);
    for (name, parameter) in &description.parameters {
        table.row([
            clean(name).into(),
            parameter.value.as_ref().map_or_else(|| "-".to_owned(), Value::to_string).into(),
            values(parameter).into(),
            targets(parameter).into(),
        ]);
    }
    format!("{text}\n{}", table.within(None))
}

fn targets(parameter: &DescribedParameter) -> String {
    let target = |target: &muster_contract::desired::Target| {
        let components: Vec<_> = target.components.iter().map(ToString::to_string).collect();
        format!("{} of {}", clean(&target.pointer), components.join(", "))
    };
    parameter.targets.iter().map(target).collect::<Vec<_>>().join("; ")
}

fn values(parameter: &DescribedParameter) -> String {
    let rule = parameter.rule.as_ref().map_or_else(|| "any".to_owned(), rule);
    if parameter.immutable { format!("{rule}; cannot change once deployed") } else { rule }
}

/// A rule in words.
fn rule(rule: &ValueRule) -> String {
    let kind = match rule.data_type {
        DataType::String => "text",
        DataType::Boolean => "true or false",
        DataType::Integer => "integer",
        DataType::Double => "number",
        DataType::Select if rule.multiselect => "some of",
        DataType::Select => "one of",
    };
    let mut words = vec![kind.to_owned()];
    let options: Vec<_> = rule.options.iter().map(Value::to_string).collect();
    words.extend((!options.is_empty()).then(|| options.join(", ")));
    words.extend(rule.min_value.map(|least| format!("from {least}")));
    words.extend(rule.max_value.map(|most| format!("to {most}")));
    words.extend(rule.min_length.map(|least| format!("of {least} characters at least")));
    words.extend(rule.max_length.map(|most| format!("of {most} characters at most")));
    words.extend(rule.max_precision.map(|most| format!("with {most} digits after the point at most")));
    words.extend(rule.regex_match.as_ref().map(|pattern| format!("like {}", clean(pattern))));
    words.join(" ")
}

/// Problems, one a line.
fn problems(problems: &[Problem]) -> String {
    problems.iter().map(|problem| problem_line(problem) + "\n").collect()
}
