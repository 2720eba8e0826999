//! Tests actions on a deployment from LEDGER on a real server: each revision once, as of any point, with facts
//! that LEDGER has discarded declared.

use muster_contract::actions::{ActionKind, ActionsAnswer};
use muster_contract::history::Point;
use muster_contract::query::Query;
use muster_tests::streams::forget_up_to;
use muster_tests::wait::until;

use crate::manifests::entry;
use crate::{Hub, Rollup};

const DRILL: &str = "plant7.drill-1";
const PRESS: &str = "plant7.press-4";

fn query(point: Point) -> Query {
    Query { id: Some("web".parse().unwrap()), point, ..Query::default() }
}

impl Hub {
    /// The actions on `web`, once LEDGER was read for them: on a stalled machine that may take two questions.
    async fn done(&self, point: Point) -> ActionsAnswer {
        let ask = || async { self.ask("actions", &query(point)).await };
        let told = until("what was done", ask, |answer| answer["error"]["code"] != "notReady").await;
        serde_json::from_value(told.clone()).unwrap_or_else(|error| panic!("{error}: {told}"))
    }
}

/// Each action with its place and its revision.
fn words(answer: &ActionsAnswer) -> Vec<(ActionKind, u64, Option<&str>)> {
    let revision = |at: usize| answer.actions[at].source.as_ref().map(|source| &*source.revision);
    (0..answer.actions.len())
        .map(|at| (answer.actions[at].action, answer.actions[at].ledger_seq, revision(at)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn q01_each_revision_is_one_action_at_any_point() {
    use ActionKind::{Changed, Published, Removed};
    let hub = Hub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let first = hub.shall_run(DRILL, 1, &[entry("web", "first", 1)]).await;
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let both = hub.shall_run(PRESS, 1, &[entry("web", "first", 1)]).await;
    rollup.reads_to(both).await;
    let published = (Published, first, Some("commit-1"));
    assert_eq!(words(&hub.done(Point::default()).await), [published], "once for both");

    // Read facts are cached: only later ones are read.
    let second = hub.shall_run(DRILL, 2, &[entry("web", "second", 2)]).await;
    let other = hub.shall_run(PRESS, 2, &[entry("db", "x", 2), entry("web", "first", 1)]).await;
    rollup.reads_to(other).await;
    let changed = (Changed, second, Some("commit-2"));
    assert_eq!(
        words(&hub.done(Point::default()).await),
        [published, changed],
        "another deployment is no action"
    );

    hub.shall_run(DRILL, 3, &[]).await;
    let end = hub.shall_run(PRESS, 3, &[entry("db", "x", 2)]).await;
    rollup.reads_to(end).await;
    let now = hub.done(Point::default()).await;
    assert_eq!(words(&now), [published, changed, (Removed, end, None)], "from the last device");
    assert_eq!((now.ledger_seq, now.since), (end, None), "LEDGER has all of it");
    for (seq, told) in
        [(both, &[published][..]), (second, &[published, changed]), (end - 1, &[published, changed])]
    {
        let past = hub.done(Point::at_seq(seq)).await;
        assert_eq!((words(&past), past.ledger_seq), (told.to_vec(), seq));
    }
    let at = hub.done(Point::at(now.actions[1].at)).await;
    assert_eq!(words(&at), [published, changed], "a time is the last fact stored by then");

    let unknown = hub.ask("actions", &Query { id: Some("wbe".parse().unwrap()), ..Query::default() }).await;
    assert_eq!(unknown["error"]["code"], "notFound", "{unknown}");
    let nobody = hub.ask("actions", &Query::default()).await;
    assert_eq!(nobody["error"]["code"], "badRequest", "{nobody}");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q01_actions_before_ledgers_beginning_are_declared_unknown() {
    let hub = Hub::start().await;
    hub.shall_run(PRESS, 1, &[entry("web", "first", 1)]).await;
    let gone = hub.shall_run(DRILL, 1, &[entry("web", "first", 1)]).await;
    let second = hub.shall_run(DRILL, 2, &[]).await;
    // The publisher says again what the device shall run, before LEDGER forgets it.
    let end = hub.shall_run(PRESS, 2, &[entry("web", "first", 1)]).await;
    forget_up_to(&hub.bus, gone).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(end).await;
    let answer = hub.done(Point::default()).await;
    assert_eq!((words(&answer), answer.since.map(|since| since.ledger_seq)), (vec![], Some(second)));

    let third = hub.shall_run(PRESS, 3, &[entry("web", "second", 3)]).await;
    rollup.reads_to(third).await;
    let answer = hub.done(Point::default()).await;
    let changed = (ActionKind::Changed, third, Some("commit-3"));
    assert_eq!((words(&answer), answer.since.map(|since| since.ledger_seq)), (vec![changed], Some(second)));

    // LEDGER discards facts that were never requested: the cached part has no continuation, and all is read
    // anew.
    let forgotten = hub.shall_run(PRESS, 4, &[entry("web", "third", 4)]).await;
    let last = hub.shall_run(PRESS, 5, &[entry("web", "fourth", 5)]).await;
    rollup.reads_to(last).await;
    forget_up_to(&hub.bus, forgotten).await;
    let answer = hub.done(Point::default()).await;
    let published = (ActionKind::Published, last, Some("commit-5"));
    assert_eq!((words(&answer), answer.since.map(|since| since.ledger_seq)), (vec![published], Some(last)));
    rollup.drain().await;
}
