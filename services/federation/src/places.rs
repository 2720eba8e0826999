//! The hub of each site, and the hubs that a federation has. A question is refused while a hub that it needs was not read.

use muster_contract::query::{ErrorBody, ErrorCode};
use muster_contract::{HubName, SiteId};

/// Which hub has which site, and which hubs there are.
pub trait Places {
    /// The hub that has a site.
    fn hub_of(&self, site: &SiteId) -> Option<HubName>;
    /// Names of all hubs.
    fn hubs(&self) -> Vec<HubName>;
    /// Hubs that were not read yet: their content is unknown.
    fn unread(&self) -> Vec<HubName>;
}

/// Refuses while some hub was not read.
///
/// # Errors
/// The hubs that were not read.
pub(crate) fn all_read(places: &impl Places) -> Result<(), ErrorBody> {
    let unread = places.unread();
    if unread.is_empty() { Ok(()) } else { Err(not_read(&unread)) }
}

/// The refusal of a question about a site that no hub is known to have.
pub(crate) fn nowhere(site: &SiteId, places: &impl Places) -> ErrorBody {
    match places.unread() {
        unread if !unread.is_empty() => not_read(&unread),
        _ => {
            let hubs = listed(&places.hubs());
            let message = format!("site '{site}' has no devices at any of the hubs {hubs}");
            ErrorBody { code: ErrorCode::NotFound, message }
        }
    }
}

fn not_read(hubs: &[HubName]) -> ErrorBody {
    let message = format!("still reading what these hubs have: {}; ask again in a moment", listed(hubs));
    ErrorBody { code: ErrorCode::NotReady, message }
}

/// The names of hubs, as a text.
pub(crate) fn listed(hubs: &[HubName]) -> String {
    hubs.iter().map(HubName::as_str).collect::<Vec<_>>().join(", ")
}
