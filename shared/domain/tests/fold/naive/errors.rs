//! Reimplements errors naively: failed and retried rows, each code with its first device.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::ComponentName;
use muster_contract::fact::StatusFact;
use muster_contract::retry::{Retry, RetrySummary};
use muster_contract::view::{ErrorCount, ErrorExample, Standing};

use super::Pair;

/// Code, component, message and retry of an error.
type NaiveError = (String, Option<ComponentName>, String, Option<RetrySummary>);

pub(super) fn errors(targets: &[&Pair]) -> Vec<ErrorCount> {
    let mut found: BTreeMap<String, Vec<ErrorExample>> = BTreeMap::new();
    for pair in targets.iter().filter(|pair| pair.standing == Standing::Failed || pair.retried) {
        let fact = pair.report.as_ref().unwrap();
        let own = of(fact);
        let mut codes = BTreeSet::new();
        for (code, component, message, retry) in own {
            let code = if code.is_empty() { "unspecified".to_owned() } else { code };
            if codes.insert(code.clone()) {
                let example = ErrorExample { device: pair.device.clone(), component, message, retry };
                found.entry(code).or_default().push(example);
            }
        }
    }
    let first = |mut examples: Vec<ErrorExample>| {
        examples.sort_by(|one, other| one.device.cmp(&other.device));
        examples.remove(0)
    };
    let mut errors: Vec<ErrorCount> = found
        .into_iter()
        .map(|(code, examples)| {
            let count = examples.len() as u64;
            ErrorCount { code, count, example: first(examples) }
        })
        .collect();
    errors.sort_by(|one, other| other.count.cmp(&one.count).then(one.code.cmp(&other.code)));
    errors
}

fn of(fact: &StatusFact) -> Vec<NaiveError> {
    let tried = |component: Option<&ComponentName>| {
        fact.retries.iter().find(|retry| retry.component.as_ref() == component).map(Retry::summary)
    };
    let mut own: Vec<NaiveError> = Vec::new();
    if let Some(error) = &fact.status.error {
        let source = fact.components.iter().map(|component| &component.name);
        let source = source.clone().find(|name| name.as_str() == error.source).cloned();
        let retry = tried(source.as_ref());
        own.push((error.code.clone(), source, error.message.clone(), retry));
    }
    for component in &fact.components {
        if let Some(error) = &component.error {
            let (name, retry) = (component.name.clone(), tried(Some(&component.name)));
            own.push((error.code.clone(), Some(name), error.message.clone(), retry));
        }
    }
    for retry in &fact.retries {
        let is_told = fact
            .components
            .iter()
            .any(|component| retry.component.as_ref() == Some(&component.name) && component.error.is_some());
        if !is_told && (retry.component.is_some() || fact.status.error.is_none()) {
            let error = &retry.last_error;
            let (name, summary) = (retry.component.clone(), Some(retry.summary()));
            own.push((error.code.clone(), name, error.message.clone(), summary));
        }
    }
    if own.is_empty() {
        own.push((String::new(), None, String::new(), None));
    }
    own.sort_by(|one, other| one.1.cmp(&other.1));
    own
}
