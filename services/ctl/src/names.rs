//! Resolves the names on a command line: a deployment's name to its id, and a device's name without a site to its key. A name
//! of several deployments or devices is refused, and the error lists the first of them. [`ShownNames`] is the other way: a
//! deployment whose id is a UUID is shown by its name.

use std::collections::BTreeMap;

use muster_contract::near::near;
use muster_contract::query::{DeploymentsAnswer, DevicesAnswer, Query};
use muster_contract::{DeploymentId, DeviceId, DeviceKey};

use crate::ask::understood;
use crate::config::{Command, DeviceArg, Format};
use crate::error::CtlError;
use crate::session::Session;
use crate::suggestions::known_devices;

impl DeviceArg {
    /// The device with its site.
    ///
    /// # Errors
    /// The site is not known.
    pub(crate) fn resolved(self) -> Result<DeviceKey, CtlError> {
        match self {
            Self::Key(key) => Ok(key),
            Self::Short(name) => {
                Err(CtlError::Usage(format!("device '{name}': name its site, as SITE/{name}")))
            }
        }
    }
}

/// Replaces the names in a command by ids and keys.
///
/// # Errors
/// Several deployments or devices have the name, no site has the device, or the hub does not answer.
pub(crate) async fn resolve(session: &Session<'_>, command: &mut Command) -> Result<(), CtlError> {
    for device in command.devices_mut() {
        if let DeviceArg::Short(name) = device {
            *device = DeviceArg::Key(device_named(session, name).await?);
        }
    }
    if let Some(id) = command.deployment_mut()
        && let Some(named) = deployment_named(session, id).await?
    {
        *id = named;
    }
    Ok(())
}

/// The only device of that name. Retired devices count only if no other device has the name.
async fn device_named(session: &Session<'_>, name: &DeviceId) -> Result<DeviceKey, CtlError> {
    let query = Query { device: Some(name.clone()), ..Query::default() };
    let answer = session.hub.pages("devices", "devices", query).await?;
    let lines = understood::<DevicesAnswer>(&answer)?.devices;
    let present: Vec<&DeviceKey> = lines.iter().filter(|line| !line.retired).map(|line| &line.key).collect();
    let all: Vec<&DeviceKey> = lines.iter().map(|line| &line.key).collect();
    match (present.as_slice(), all.as_slice()) {
        ([only], _) | ([], [only]) => Ok((*only).clone()),
        ([], []) => Err(unknown(session, name).await),
        ([], several) | (several, _) => Err(CtlError::Ambiguous {
            what: format!("device '{name}'"),
            candidates: several.iter().map(ToString::to_string).collect(),
        }),
    }
}

async fn unknown(session: &Session<'_>, name: &DeviceId) -> CtlError {
    let known = known_devices(session).await;
    let near = near(name.as_str(), known.iter().map(|line| line.key.device.as_str()));
    let near = near.into_iter().map(str::to_owned).collect();
    CtlError::Unknown { message: format!("no site has a device '{name}'"), near }
}

/// The id of the only deployment of that name. None if the text is an id already, or no deployment has the name: then the
/// command itself reports the error.
async fn deployment_named(
    session: &Session<'_>,
    text: &DeploymentId,
) -> Result<Option<DeploymentId>, CtlError> {
    let query = Query { id: Some(text.clone()), ..Query::default() };
    match session.hub.query("deployment", &query).await {
        Err(error) if error.not_found().is_some() => {}
        // The text is an id, or the command's own request will fail in the same way.
        _ => return Ok(None),
    }
    let answer = session.hub.pages("deployments", "deployments", Query::default()).await;
    let Ok(answer) = answer.and_then(|answer| understood::<DeploymentsAnswer>(&answer)) else {
        return Ok(None);
    };
    let named = answer.deployments.into_iter().filter(|view| view.deployment_name == text.as_str());
    let mut ids: Vec<DeploymentId> = named.map(|view| view.deployment).collect();
    match ids.len() {
        0 | 1 => Ok(ids.pop()),
        _ => Err(CtlError::Ambiguous {
            what: format!("deployment '{text}'"),
            candidates: ids.iter().map(ToString::to_string).collect(),
        }),
    }
}

/// The names of deployments whose ids are UUIDs, as far as a command accepts them in place of the id.
#[derive(Debug, Default)]
pub(crate) struct ShownNames(BTreeMap<DeploymentId, DeploymentId>);

impl ShownNames {
    /// Asks for the names, if there is a UUID among the ids of an answer that a person reads. Without an answer the ids are shown.
    pub(crate) async fn of(session: &Session<'_>, ids: impl IntoIterator<Item = &DeploymentId>) -> Self {
        if session.format == Format::Json || !ids.into_iter().any(DeploymentId::is_uuid) {
            return Self::default();
        }
        // The lag that the session shows is that of its own answer.
        let hub = session.hub.fresh();
        let answer = hub.pages("deployments", "deployments", Query::default()).await;
        let answer = answer.and_then(|answer| understood::<DeploymentsAnswer>(&answer));
        answer.map(|answer| Self::unique(&answer)).unwrap_or_default()
    }

    /// The names that no other deployment has, as its name or as its id.
    pub(crate) fn unique(answer: &DeploymentsAnswer) -> Self {
        let views = &answer.deployments;
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for view in views {
            let (id, name) = (view.deployment.as_str(), view.deployment_name.as_str());
            *uses.entry(name).or_default() += 1;
            *uses.entry(id).or_default() += usize::from(id != name);
        }
        let named = views.iter().filter(|view| view.deployment.is_uuid()).filter_map(|view| {
            let name = view.deployment_name.parse().ok()?;
            (uses[view.deployment_name.as_str()] == 1).then(|| (view.deployment.clone(), name))
        });
        Self(named.collect())
    }

    /// The name of a deployment, or its id.
    pub(crate) fn shown<'a>(&'a self, id: &'a DeploymentId) -> &'a DeploymentId {
        self.0.get(id).unwrap_or(id)
    }

    /// Replaces ids in the words of a service by names.
    pub(crate) fn rename_in(&self, words: &mut String) {
        for (id, name) in &self.0 {
            if words.contains(id.as_str()) {
                *words = words.replace(id.as_str(), name.as_str());
            }
        }
    }

    /// Replaces the id at the beginning of the words about a deployment by its name.
    pub(crate) fn rename_first(&self, words: &mut String) {
        let Some((id, rest)) = words.split_once(':') else { return };
        if let Some(name) = id.parse().ok().and_then(|id: DeploymentId| self.0.get(&id)) {
            *words = format!("{name}:{rest}");
        }
    }

    /// Replaces an id by its name.
    pub(crate) fn rename(&self, id: &mut DeploymentId) {
        if let Some(name) = self.0.get(id) {
            *id = name.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_its_site_is_refused_with_the_form_that_has_one() {
        let of = |text: &str| text.parse::<DeviceArg>().unwrap().resolved();
        assert_eq!(of("plant7/press-4").unwrap(), "plant7/press-4".parse().unwrap());
        assert!(of("press-4").unwrap_err().to_string().contains("SITE/press-4"));
    }
}
