//! Renders the desired manifests of an answer's targets: each manifest once, with its components, its parameters and the number of
//! shown targets that share it; and the number of targets without one.

use std::collections::BTreeSet;

use muster_contract::canonical::Digest;
use muster_contract::desired::{Parameter, SourceKind};
use muster_contract::manifest::Manifest;
use muster_contract::status::{StatusAnswer, TargetStatus};

use super::colour::{UNSURE, styled};
use super::cut;
use super::format::{clean, plural};
use super::frame::Frame;
use super::table::{Cell, Table};

/// Signs of a digest that tell it apart for a person.
const DIGEST_WIDTH: usize = 20;
/// Signs of a revision: enough of a commit's.
const REVISION_WIDTH: usize = 16;

/// All of them, each line with its line break; empty if there is none and none is left out.
pub(super) fn manifests(answer: &StatusAnswer, frame: Frame) -> String {
    let mut text = String::new();
    if !answer.manifests.is_empty() {
        text += &format!("\n{}", table(answer, frame));
    }
    if answer.manifests_left_out > 0 {
        let of = plural(answer.manifests_left_out, "target");
        let words = format!(
            "No desired manifest for {of}: LEDGER has none or was slow, it is too large, or it has just changed."
        );
        text += &format!("\n{}\n", styled(UNSURE, &words));
    }
    text
}

fn table(answer: &StatusAnswer, frame: Frame) -> Table {
    let mut table = Table::new(&["SHALL RUN", "AS", "?>TARGETS", "?FROM"]);
    let mut all: Vec<_> = answer.manifests.iter().collect();
    all.sort_by_key(|(digest, manifest)| (&manifest.id, *digest));
    for (digest, manifest) in all {
        let of: Vec<_> = answer.targets.iter().filter(|target| target.digest == Some(*digest)).collect();
        table.row(whole(digest, manifest, &of));
        for component in &manifest.profile.components {
            let properties = serde_json::to_string(&component.properties).unwrap_or_default();
            table.row(part(component.name.as_str(), &properties));
        }
        for (name, value) in &manifest.parameters {
            table.row(part(name, &parameter(value)));
        }
    }
    table.within(frame.width)
}

fn whole(digest: &Digest, manifest: &Manifest, of: &[&TargetStatus]) -> [Cell; 4] {
    let kind = manifest.profile.profile_type.as_str();
    let digest = cut::end(&digest.to_string(), DIGEST_WIDTH);
    [
        manifest.id.as_str().into(),
        format!("{kind} {digest}").into(),
        Cell::count(of.len() as u64),
        origins(of).into(),
    ]
}

fn part(name: &str, says: &str) -> [Cell; 4] {
    [format!("  {}", clean(name)).into(), clean(says).into(), "".into(), "".into()]
}

/// The source: a revision, or the number of revisions.
fn origins(of: &[&TargetStatus]) -> String {
    let sources = of.iter().filter_map(|target| target.source.as_ref());
    let revisions: BTreeSet<_> = sources
        .map(|source| {
            let kind = match source.kind {
                SourceKind::Git => "git",
                SourceKind::Api => "api",
                SourceKind::Plan => "plan",
            };
            let by =
                source.requested_by.as_ref().map(|requester| format!(" by {}", clean(requester.label())));
            format!("{kind} {}{}", cut::end(&clean(&source.revision), REVISION_WIDTH), by.unwrap_or_default())
        })
        .collect();
    let count = revisions.len() as u64;
    match revisions.into_iter().next() {
        Some(only) if count == 1 => only,
        _ => plural(count, "revision"),
    }
}

/// `"debug" to LOG_LEVEL of main`
fn parameter(parameter: &Parameter) -> String {
    let targets = parameter.targets.iter().map(|target| {
        let components: Vec<_> = target.components.iter().map(ToString::to_string).collect();
        format!("{} of {}", target.pointer, components.join(", "))
    });
    let targets: Vec<_> = targets.collect();
    format!("= {} to {}", parameter.value, targets.join(" and "))
}
