//! Questions of notifications by names, for clients that send them in messages: the same rules as for an address with parameters.

use form_urlencoded::Serializer;

use super::request::{Anchor, StatusRequest};
use super::watched::WatchedStatus;
use crate::problem::Problem;

/// The subject of notifications.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A deployment.
    Group {
        /// Project, composite app and version, which a deployment does not have.
        names: [&'a str; 3],
        /// The deployment.
        group: &'a str,
    },
    /// A device.
    Cluster {
        /// The site.
        provider: &'a str,
        /// The device.
        cluster: &'a str,
    },
    /// A site.
    Cloud {
        /// The project, which Muster does not have.
        project: &'a str,
        /// The site.
        cloud: &'a str,
    },
}

/// The question of notifications with these parameters.
///
/// # Errors
/// A name or a parameter is wrong.
pub(crate) fn watched<'a>(
    subject: Subject<'_>,
    parameters: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<WatchedStatus, Problem> {
    let anchor = match subject {
        Subject::Group { names, group } => Anchor::group(names, group)?,
        Subject::Cluster { provider, cluster } => Anchor::cluster(provider, cluster)?,
        Subject::Cloud { project, cloud } => Anchor::cloud(project, cloud)?,
    };
    let query = Serializer::new(String::new()).extend_pairs(parameters).finish();
    let request = StatusRequest::notifications(&anchor, &query)?;
    Ok(WatchedStatus::new(anchor, request))
}
