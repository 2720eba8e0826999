//! Tests the fold where a message in quarantine, or a full disk, may hide news.

use crate::ledger::{Ledger, Look, Said, key, stored_at};
use crate::scenarios;
use muster_contract::State::Failed;
use muster_contract::query::Output;
use muster_contract::view::{Bounds, DeploymentView, Split, Standing, Verdict};
use muster_contract::why::EvidenceKind;
use muster_domain::fold::{Fleet, Page};

const PRESS: &str = "plant7/press-4";

fn count(view: &DeploymentView, standing: Standing) -> Split {
    view.counts.get(&standing).copied().unwrap_or_default()
}

/// Whether each deployment's standing on a device is known, by name.
fn known(fleet: &Fleet, device: &str) -> Vec<(String, bool)> {
    let answer = fleet.device_answer(&key(device), Output::All).unwrap();
    answer.deployments.iter().map(|line| (line.deployment.to_string(), line.known)).collect()
}

#[test]
fn a_quarantined_report_makes_only_earlier_reports_uncertain() {
    let fleet = scenarios::quarantined_news().fold();
    let standings = [("db".to_owned(), true), ("log".to_owned(), true), ("web".to_owned(), false)];
    assert_eq!(known(&fleet, PRESS), standings, "log is current up to a head above the number");
    assert_eq!(fleet.deployment("web").verdict, Verdict::Incomplete);
    assert_eq!(fleet.deployment("web").converged, Bounds { lo: 0, hi: 1 });
    assert_eq!(fleet.deployment("db").verdict, Verdict::Converged);
    let device = fleet.device_answer(&key(PRESS), Output::All).unwrap().device;
    assert_eq!((device.head, device.account.quarantined, device.in_doubt.to_string()), (4, 1, "3".into()));
    let complete = fleet.site("plant7").tally.complete;
    assert_eq!((complete.devices, complete.of, complete.missing_reports), (0, 1, 0));
    let why = fleet.why_device(&"web".parse().unwrap(), &key(PRESS)).unwrap();
    let says = why.standings[0].facts.iter().find(|fact| fact.kind == EvidenceKind::Quarantine).unwrap();
    assert_eq!(
        (says.ledger_seq, says.seq.unwrap().get()),
        (4, 3),
        "by this number it can be accepted or dropped"
    );

    let mut mended = scenarios::quarantined_news();
    mended.status(
        PRESS,
        "web",
        &Said { seq: 3, head: 4, components: &[("main", Failed)], ..Said::default() },
    );
    let view = mended.fold().deployment("web");
    assert_eq!((view.verdict, view.converged.hi), (Verdict::Failing, 0), "accepted after all: it was news");
}

#[test]
fn a_dropped_report_causes_no_uncertainty_and_stays_counted() {
    let fleet = scenarios::quarantined_and_dropped().fold();
    assert!(known(&fleet, PRESS).iter().all(|(_, known)| *known));
    assert_eq!(fleet.deployment("web").verdict, Verdict::Converged);
    let device = fleet.device_answer(&key(PRESS), Output::All).unwrap().device;
    assert_eq!((device.account.quarantined, device.in_doubt.is_empty()), (1, true));
    assert_eq!(fleet.site("plant7").tally.complete.devices, 1);
}

#[test]
fn an_unnumbered_message_is_uncertain_until_heartbeat_or_decision() {
    let fleet = scenarios::quarantined_without_a_number().fold();
    assert_eq!(fleet.deployment("web").verdict, Verdict::Incomplete);
    assert_eq!(fleet.deployment("web").converged.lo, 0);
    assert_eq!(fleet.device_answer(&key(PRESS), Output::All).unwrap().device.unread, 1);
    assert_eq!(fleet.site("plant7").tally.complete.devices, 0);

    let said = scenarios::quarantined_until_said_how_far().fold();
    assert_eq!(said.deployment("web").verdict, Verdict::Converged, "it was none of its reports");

    let mut news = scenarios::quarantined_without_a_number();
    news.beat(PRESS, 1, 2);
    let view = news.fold().deployment("web");
    assert_eq!((view.verdict, view.complete.missing_reports), (Verdict::Incomplete, 1), "it is number 2");

    let mut dropped = scenarios::quarantined_without_a_number();
    dropped.dropped(PRESS, None, stored_at(4));
    assert_eq!(dropped.fold().deployment("web").verdict, Verdict::Converged);
}

#[test]
fn a_number_above_the_head_is_uncertain_and_then_counted() {
    let mut ledger = Ledger::default();
    ledger.desired(PRESS, 1, &[("web", 1)]).beat(PRESS, 1, 0).status(PRESS, "web", &Said::default());
    ledger.quarantine(PRESS, Some((1, 2)));
    let line = |ledger: &Ledger| ledger.fold().device_answer(&key(PRESS), Output::All).unwrap().device;
    assert_eq!((line(&ledger).head, line(&ledger).account.quarantined, line(&ledger).unread), (1, 0, 1));
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Incomplete);

    let mut spoken = ledger.clone();
    spoken.beat(PRESS, 1, 2);
    assert_eq!((line(&spoken).head, line(&spoken).account.quarantined, line(&spoken).unread), (2, 1, 0));
    assert_eq!(spoken.fold().deployment("web").verdict, Verdict::Incomplete, "it may be news");

    let mut made_up = ledger;
    made_up.beat(PRESS, 1, 1);
    assert_eq!((line(&made_up).head, line(&made_up).account.quarantined, line(&made_up).unread), (1, 0, 0));
    assert_eq!(made_up.fold().deployment("web").verdict, Verdict::Converged, "there is no such number");
}

#[test]
fn a_fully_quarantined_device_was_heard_and_is_not_known() {
    let fleet = scenarios::quarantined_only().fold();
    let view = fleet.deployment("web");
    assert_eq!((view.verdict, view.complete.devices), (Verdict::Incomplete, 0));
    assert_eq!(count(&view, Standing::Waiting), Split { stale: 2, ..Split::default() });
    let page = Page { after: None, limit: 10 };
    let lines = fleet.devices_answer(&Default::default(), &page).unwrap().devices;
    assert!(lines.iter().all(|line| line.last_heard_at.is_some() && line.unread == 1));
}

#[test]
fn a_device_that_cannot_store_reports_is_not_known() {
    let mut ledger = scenarios::not_storing();
    let view = ledger.fold().deployment("web");
    assert_eq!((view.verdict, view.converged), (Verdict::Incomplete, Bounds { lo: 0, hi: 1 }));
    let heard = Split { fresh: 1, ..Split::default() };
    assert_eq!(count(&view, Standing::Installed), heard, "it is heard, and this is what it said last");
    let fleet = ledger.fold();
    assert!(!fleet.device_answer(&key(PRESS), Output::All).unwrap().device.storing);
    let why = fleet.why(&"web".parse().unwrap(), None, &Page { after: None, limit: 10 }).unwrap();
    let says = &why.standings[0].facts.last().unwrap().says;
    assert_eq!(
        says,
        "reports that the device cannot store reports, or lost its database and has not reported since"
    );
    ledger.beat(PRESS, 1, 1);
    assert_eq!(ledger.fold().deployment("web").verdict, Verdict::Converged);
}
