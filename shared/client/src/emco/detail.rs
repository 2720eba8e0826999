//! `detail` of a component in EMCO's shape: its manifest on the axis of delivery, its reported state on that of observation
//! (the manifest if nothing is reported). With both axes it is the reported state, and `manifest`, a field that EMCO lacks, is
//! beside it. A manifest that LEDGER no longer gives is omitted without replacement.

use muster_contract::manifest::Manifest;
use muster_contract::status::{Axis, ComponentLine, Ready, StatusAnswer, TargetStatus};
use serde_json::{Map, Value, json};

/// The details of a component.
pub(super) struct Detail {
    /// The value of `detail`.
    pub(super) detail: Option<Value>,
    /// The manifest, where `detail` is not it and both axes are shown.
    pub(super) manifest: Option<Value>,
}

impl Detail {
    /// Nothing at all: less than detail was asked for.
    pub(super) const NONE: Self = Self { detail: None, manifest: None };

    /// That of a component of a target.
    pub(super) fn of(
        answer: &StatusAnswer,
        target: &TargetStatus,
        component: &ComponentLine,
        axis: Option<Axis>,
    ) -> Self {
        let manifest = answer.manifest(target).and_then(|manifest| written(manifest, target, component));
        if axis == Some(Axis::Deployed) {
            return Self { detail: manifest, manifest: None };
        }
        let live =
            if component.ready_status == Some(Ready::NotPresent) { None } else { live(target, component) };
        match live {
            Some(live) => Self { detail: Some(live), manifest: manifest.filter(|_| axis.is_none()) },
            None => Self { detail: manifest, manifest: None },
        }
    }
}

/// The state of the component as the device reports it.
fn live(target: &TargetStatus, component: &ComponentLine) -> Option<Value> {
    let reported = &target.report.as_ref()?.components;
    let live = reported.iter().find(|live| live.name == component.name)?;
    serde_json::to_value(live).ok()
}

/// The desired component, with the properties of the deployment.
fn written(manifest: &Manifest, target: &TargetStatus, component: &ComponentLine) -> Option<Value> {
    let shall = manifest.component(&component.name)?;
    let parameters: Map<String, Value> = manifest
        .parameters_of(&component.name)
        .filter_map(|(name, parameter)| Some((name.to_owned(), serde_json::to_value(parameter).ok()?)))
        .collect();
    let mut value = json!({
        "name": shall.name,
        "profileType": manifest.profile.profile_type,
        "properties": shall.properties,
        "digest": target.digest,
    });
    if !parameters.is_empty() {
        value["parameters"] = parameters.into();
    }
    if let Some(source) = &target.source {
        value["source"] = json!(source);
    }
    Some(value)
}
