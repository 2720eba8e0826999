//! `muster plan migrate`: another plan runs the instances of a plan, which stops its own afterwards. The planner does the steps.

use std::collections::BTreeMap;

use muster_contract::plans::{PlanDeployRequest, PlanMigrateRequest};

use super::choose::confirmed;
use super::manifest::ManifestFile;
use super::{in_file, show};
use crate::config::MigrateArgs;
use crate::error::CtlError;
use crate::session::Session;

/// Requests a migration; false if the person said no.
///
/// # Errors
/// The file is bad, or the planner does not answer or refuses.
pub(super) async fn run(session: &mut Session<'_>, args: MigrateArgs) -> Result<bool, CtlError> {
    let MigrateArgs { plan, to, deployment_id, manifest, yes } = args;
    let file = manifest.as_deref().map(ManifestFile::read).transpose()?;
    let (to, id, instances, coordinates) = match (&file, to.zip(deployment_id)) {
        (Some(file), _) => {
            let PlanDeployRequest { plan, id, instances, coordinates, .. } = file.migration()?.value;
            (plan, id, Some(instances), coordinates)
        }
        (None, Some((to, id))) => (to, id, None, BTreeMap::new()),
        // The arguments name one of both.
        (None, None) => return Ok(false),
    };
    if !confirmed(session, yes, &format!("Migrate plan {plan} to plan {to}, as {id}"))? {
        return Ok(false);
    }
    let request = PlanMigrateRequest {
        plan: plan.clone(),
        to,
        id,
        instances,
        coordinates,
        expected_version: None,
        request_id: None,
    };
    let answer = session.hub.planner("plan-migrate", &request).await;
    answer.map_err(|error| match &file {
        Some(file) => file.error("", in_file(error)),
        None => error.into(),
    })?;
    show(session, &plan).await.map(|()| true)
}
