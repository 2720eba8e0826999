//! `muster audit`: prints the [audit](muster_client::audit) of a hub. It judges nothing.

use muster_contract::SiteId;

use crate::error::{CtlError, settled};
use crate::render;
use crate::session::Session;
use crate::suggestions;

pub use muster_client::audit::{
    Audit, DeviceAudit, DeviceVerdict, LedgerFill, ReportTotals, ViewAudit, ViewVerdict, view_verdict,
    view_verdict_at,
};

/// Audits everything, or the devices of a site; true if everything is explained.
///
/// # Errors
/// Nobody answers, or there is no such site.
pub async fn run(session: &mut Session<'_>, site: Option<SiteId>) -> Result<bool, CtlError> {
    let clock = session.clock.clone();
    let now = move || clock.now();
    let audit = match (muster_client::audit::gathered(&session.hub, site.clone(), &now).await, &site) {
        (Ok(audit), _) => audit,
        (Err(error), Some(site)) => return Err(suggestions::with_near_sites(session, error, site).await),
        (Err(error), None) => return Err(error.into()),
    };
    let frame = session.frame();
    settled(session.show_own(&audit, |audit, _| render::audit::audit(audit, frame)))?;
    Ok(audit.explained)
}
