//! `muster timeline`: how the counts of the fleet or of a deployment have changed. The service answers all that it has recorded;
//! this program leaves out what is older than was asked for.

use muster_contract::Timestamp;
use muster_contract::query::Query;
use muster_contract::timeline::TimelineAnswer;
use serde::Deserialize as _;
use serde_json::Value;

use crate::ask::AskError;
use crate::config::TimelineArgs;
use crate::error::CtlError;
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;
use crate::suggestions::with_near_deployments;

/// The error if no service answers.
const OF_ONE_HUB: &str = "no muster-rollup answers with a timeline: is one of this release running? A federation has no \
                          timeline, because each hub has a LEDGER of its own: ask a hub itself (`muster --nats-url …`)";

/// The timeline from a time on.
///
/// # Errors
/// When nobody answers, or there is no such deployment.
pub(crate) async fn run(session: &mut Session<'_>, args: TimelineArgs) -> Result<(), CtlError> {
    let query = Query { id: args.deployment.clone(), ..Query::default() };
    let mut answer = match (session.hub.query("timeline", &query).await, &args.deployment) {
        (Ok(answer), _) => answer,
        (Err(AskError::NoService { .. }), _) => return Err(CtlError::Usage(OF_ONE_HUB.to_owned())),
        (Err(error), Some(id)) => return Err(with_near_deployments(session, error, id).await),
        (Err(error), None) => return Err(error.into()),
    };
    leave_out_before(&mut answer, args.since);
    let frame = session.frame();
    let names = ShownNames::of(session, &args.deployment).await;
    session.show(&answer, |answer: &TimelineAnswer, _| {
        let mut shown = answer.clone();
        shown.deployment.iter_mut().for_each(|id| names.rename(id));
        render::timeline::list(&shown, args.since, frame)
    })
}

/// Leaves out the points before a time but the last of them, whose counts hold then.
fn leave_out_before(answer: &mut Value, since: Timestamp) {
    let is_before = |point: &&Value| Timestamp::deserialize(&point["at"]).is_ok_and(|at| at <= since);
    if let Some(points) = answer["points"].as_array_mut() {
        let before = points.iter().take_while(is_before).count();
        points.drain(..before.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_counts_that_hold_at_the_time_are_kept() {
        let all = ["2026-11-20T08:00:00Z", "2026-11-20T09:00:00Z", "2026-11-20T10:00:00Z"];
        for (since, kept) in [
            ("2026-11-20T07:00:00Z", &all[..]),
            ("2026-11-20T08:59:59Z", &all[..]),
            ("2026-11-20T09:00:00Z", &all[1..]),
            ("2026-11-20T11:00:00Z", &all[2..]),
        ] {
            let points = |times: &[&str]| json!({"points": times.iter().map(|at| json!({"at": at})).collect::<Vec<_>>()});
            let mut answer = points(&all);
            leave_out_before(&mut answer, since.parse().unwrap());
            assert_eq!(answer, points(kept), "{since}");
        }
        let mut nothing = json!({"points": []});
        leave_out_before(&mut nothing, Timestamp::UNIX_EPOCH);
        assert_eq!(nothing, json!({"points": []}));
    }
}
