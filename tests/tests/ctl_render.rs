//! The output of `muster` as golden files under `tests/golden/ctl/`: answers in, text out, at a fixed time.
//! `UPDATE_GOLDEN=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use muster_contract::Timestamp;
use muster_contract::evidence::{EvidenceCounts, Fidelity, Provenance};
use muster_contract::quarantine::{HeldReport, QuarantineAnswer, RejectedReport, RejectionCode};
use muster_contract::query::{DeploymentsAnswer, DeviceAnswer, DevicesAnswer, PublishAnswer, Query};
use muster_contract::retry::RetrySummary;
use muster_contract::silence::SilentSites;
use muster_contract::status::{Rollup, StatusAnswer};
use muster_contract::subjects::ViewKey;
use muster_contract::timeline::TimelineAnswer;
use muster_contract::view::{
    Bounds, Complete, DeploymentView, FleetView, Freshness, SiteView, Split, Standing, Tally, Verdict,
};
use muster_contract::why::WhyAnswer;
use muster_ctl::audit::{Audit, ViewAudit, ViewVerdict};
use muster_ctl::config::StatusArgs;
use muster_ctl::quarantine::{List, Settled};
use muster_ctl::render;
use muster_ctl::render::frame::Frame;
use muster_tests::golden;
use muster_tests::schemas::example;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test ctl_render";

#[test]
fn deployments_in_a_list() {
    golden("status", &render::deployment::list(&example("DeploymentsAnswer.two"), &Query::default(), now()));
    let nothing = DeploymentsAnswer { deployments: Vec::new(), ..example("DeploymentsAnswer.two") };
    golden("status-of-nothing", &render::deployment::list(&nothing, &Query::default(), now()));
}

#[test]
fn one_deployment_and_a_line_for_each_of_its_devices() {
    golden("status-summary", &render::deployment::one(&example("DeploymentAnswer.failing"), now()));
    let brief: StatusAnswer = example("StatusAnswer.brief");
    golden("status-brief", &render::filtered::status(&brief, &StatusArgs::default(), now()));
}

#[test]
fn m01_the_line_of_a_silent_device_says_for_how_long_it_has_been_silent() {
    let plain = |text: String| anstream::adapter::strip_str(&text).to_string();
    let line = |text: &str| text.lines().find(|line| line.starts_with("plant7/press-5 ")).unwrap().to_owned();
    let mut answer: StatusAnswer = example("StatusAnswer.brief");
    let rendered = |answer: &StatusAnswer, frame: Frame| {
        line(&plain(render::filtered::status(answer, &StatusArgs::default(), frame)))
    };
    let shown = rendered(&answer, now().into());
    assert!(shown.contains("  stale 2h "), "{shown}");
    let later = now() + std::time::Duration::from_secs(3 * 24 * 60 * 60);
    let shown = rendered(&answer, later.into());
    assert!(shown.contains("  stale 3d "), "{shown}");
    let of_then = Frame { then: Some(now()), ..Frame::from(later) };
    let shown = rendered(&answer, of_then);
    assert!(shown.contains("  stale 2h "), "asked days later of that moment: {shown}");
    answer.targets[1].last_heard_at = None;
    let shown = rendered(&answer, now().into());
    assert!(shown.contains("  stale  "), "of an older hub, which says no age: {shown}");
}

#[test]
fn a_deployment_that_is_well_and_one_that_leaves() {
    golden("status-converged", &render::deployment::view(&example("DeploymentView.converged"), now()));
    golden("status-removing", &render::deployment::view(&example("DeploymentView.removing"), now()));
}

#[test]
fn devices_and_one_device() {
    let mut answer: DevicesAnswer = example("DevicesAnswer.two");
    golden("devices", &render::device::list(&answer, &Query::default(), now()));
    let dark = Query { freshness: [Freshness::Stale, Freshness::Never].into(), ..Query::default() };
    answer.devices.remove(0);
    let list = |answer: &DevicesAnswer| render::device::list(answer, &dark, now());
    let some = list(&answer);
    answer.devices.clear();
    golden("devices-dark", &format!("{some}--\n{}", list(&answer)));
    golden("device", &render::device::one(&example("DeviceAnswer.in-detail"), now()));
}

#[test]
fn an_error_of_what_is_tried_again_says_which_attempt_that_was() {
    let mut view: DeploymentView = example("DeploymentView.failing");
    let since = "2026-11-20T08:11:00Z".parse().unwrap();
    view.errors[0].example.retry = Some(RetrySummary { attempt: 7, since, crash_loop: true });
    golden("status-tried-again", &render::deployment::view(&view, now()));
    let mut answer: DeviceAnswer = example("DeviceAnswer.in-detail");
    let report: muster_contract::report::StatusReport = example("StatusReport.tried-again");
    answer.deployments[0].report.as_mut().unwrap().retries = report.retries;
    golden("device-tried-again", &render::device::one(&answer, now()));
}

#[test]
fn why_a_verdict_and_why_a_standing() {
    golden("why", &render::why::answer(&example("WhyAnswer.failing"), true, now()));
    golden("why-hubs", &render::why::answer(&example("WhyAnswer.three-hubs"), true, now()));
    golden("why-one-device", &render::why::answer(&example("WhyAnswer.one-device"), true, now()));
    golden("why-refused", &render::why::answer(&example("WhyAnswer.refused"), true, now()));
}

#[test]
fn a_silent_site_is_one_cause_with_its_effects() {
    let why: WhyAnswer = example("WhyAnswer.silent-site");
    golden("why-silent-site", &render::why::answer(&why, true, now()));
    let list: DeploymentsAnswer = example("DeploymentsAnswer.two");
    let list = DeploymentsAnswer { silent_sites: why.silent_sites.clone(), ..list };
    golden("status-silent-site", &render::deployment::list(&list, &Query::default(), now()));
    let mut own = why.silent_sites.clone();
    own.first[0].site = "plant7".parse().unwrap();
    golden("site-silent", &render::place::site(&example("SiteView.plant7"), &own, now()));
    let more = SilentSites { count: 3, ..why.silent_sites };
    assert!(render::silence::lines(&more, now()).ends_with("and 2 more sites that are silent\n"));
}

#[test]
fn m03_where_no_target_is_heard_every_table_says_so_in_words() {
    for (standing, verdict) in [
        (Standing::Waiting, Verdict::Waiting),
        (Standing::Installing, Verdict::Waiting),
        (Standing::Installed, Verdict::ConvergedStale),
    ] {
        let view = dark(standing, verdict);
        let heard = view.counts[&standing];
        let list = DeploymentsAnswer { deployments: vec![view.clone()], ..example("DeploymentsAnswer.two") };
        let why: WhyAnswer = example("WhyAnswer.failing");
        let (because, of, fresh) = (3, 3, Some(heard.fresh));
        let rule = verdict.rule().to_owned();
        let why = WhyAnswer { verdict, rule, because, of, fresh, standings: Vec::new(), next: None, ..why };
        let (message, counts) = (Some(verdict.words(heard)), view.counts.clone());
        let rollup = Rollup { targets: 3, known: 3, counts, message, ..Rollup::default() };
        let told: StatusAnswer = example("StatusAnswer.part-of-an-axis");
        let told = StatusAnswer { verdict: Some(verdict), generation: None, rollup, ..told };
        let tally = |tally: Tally| {
            let mut tally = Tally {
                devices: heard,
                targets: 3,
                overdue: 0,
                counts: view.counts.clone(),
                deployments: [(verdict, 1)].into(),
                complete: view.complete,
                ..tally
            };
            tally.message = tally.words();
            tally
        };
        let (site, fleet): (SiteView, FleetView) = (example("SiteView.plant7"), example("FleetView.fleet"));
        let (site, fleet) =
            (SiteView { tally: tally(site.tally), ..site }, FleetView { tally: tally(fleet.tally), ..fleet });
        let texts = [
            render::deployment::list(&list, &Query::default(), now()),
            render::deployment::view(&view, now()),
            render::watch::line(&view.deployment, Some(&view), now()),
            render::why::answer(&why, true, now()),
            render::filtered::status(&told, &StatusArgs::default(), now()),
            render::place::site(&site, &SilentSites::default(), now()),
            render::place::fleet(&fleet, now()),
        ];
        for text in &texts {
            assert!(text.contains("s are silent: no fresh evidence"), "{text}");
            assert!(!text.contains("some devices are stale"), "{text}");
        }
        golden(&format!("dark-{}", standing.as_str()), &texts.join("--\n"));
    }
}

#[test]
fn m03_of_several_deployments_those_are_named_of_which_nothing_is_heard() {
    let view = dark(Standing::Installed, Verdict::ConvergedStale);
    let well: DeploymentView = example("DeploymentView.converged");
    let named = |count: usize| {
        let dark = (0..count).map(|number| DeploymentView {
            deployment: format!("d{number}").parse().unwrap(),
            ..view.clone()
        });
        let deployments = dark.chain([well.clone()]).collect();
        let list = DeploymentsAnswer { deployments, ..example("DeploymentsAnswer.two") };
        anstream::adapter::strip_str(&render::deployment::list(&list, &Query::default(), now())).to_string()
    };
    assert!(!named(0).contains("no fresh evidence"));
    assert!(named(1).contains("\nevery target of d0 is silent: no fresh evidence there\n"));
    assert!(named(7).contains("\nevery target of d0, d1, d2, d3, d4 and 2 more is silent: no fresh"));
}

#[test]
fn the_past_and_the_proof() {
    golden("diff", &render::history::diff(&example("DiffAnswer.one-device"), true, now()));
    golden("verify-same", &render::history::verify(&example("VerifyAnswer.same"), now()));
    golden("verify-different", &render::history::verify(&example("VerifyAnswer.different"), now()));
    golden("moment", &render::history::moment(&example("MomentAnswer.known-by-now")));
    golden("moment-as-known-then", &render::history::moment(&example("MomentAnswer.as-known-then")));
}

#[test]
fn a_timeline_says_since_when_it_is_known_if_that_is_later() {
    let (early, late) = ("2026-08-21T10:10:02Z".parse().unwrap(), "2026-08-22T09:00:00Z".parse().unwrap());
    let fleet: TimelineAnswer = example("TimelineAnswer.fleet");
    golden("timeline-fleet", &render::timeline::list(&fleet, early, now()));
    assert!(!render::timeline::list(&fleet, late, now()).contains("Nothing is known"));
    golden(
        "timeline-deployment",
        &render::timeline::list(&example("TimelineAnswer.deployment"), late, now()),
    );
    let mut empty = fleet;
    empty.as_of.ledger_seq = 0;
    let nothing = "Nothing is known of fleet; as of an empty ledger.\n";
    assert_eq!(render::timeline::list(&empty, late, now()), nothing);
}

#[test]
fn places_as_a_whole() {
    golden("site", &render::place::site(&example("SiteView.plant7"), &SilentSites::default(), now()));
    golden("fleet", &render::place::fleet(&example("FleetView.fleet"), now()));
}

#[test]
fn evidence_that_is_not_every_change_is_a_table_in_every_view() {
    let counts = EvidenceCounts::from([(Provenance::Pull, BTreeMap::from([(Fidelity::Sampled, 2)]))]);
    let mut fleet: FleetView = example("FleetView.fleet");
    let mut site: SiteView = example("SiteView.plant7");
    let mut view: DeploymentView = example("DeploymentView.converged");
    fleet.tally.evidence = counts.clone();
    site.tally.evidence = counts.clone();
    view.evidence = counts;
    golden("fleet-sampled", &render::place::fleet(&fleet, now()));
    for text in
        [render::place::site(&site, &SilentSites::default(), now()), render::deployment::view(&view, now())]
    {
        assert!(text.contains("pull") && text.contains("every change sent, or no report"), "{text}");
    }
}

#[test]
fn hubs_of_a_federation() {
    golden("hubs", &render::hubs::list(&example("HubList.one-is-silent"), now()));
}

#[test]
fn groups_and_defined_views() {
    golden("labels", &render::groups::labels(&example("LabelsAnswer.two"), now()));
    golden("groups", &render::groups::groups(&example("GroupsAnswer.a-deployment-by-region"), now()));
    golden("group", &render::place::group(&example("GroupView.north"), now()));
    golden("views", &render::defined::list(&example("ViewsAnswer.one-ready-one-counting"), now()));
    golden("view-standings", &render::defined::view(&example("DefinedView.standings-by-ring"), now()));
    let devices = example("DefinedView.devices-with-groups-left-out");
    golden("view-devices", &render::defined::view(&devices, now()));
    golden("view-components", &render::defined::view(&example("DefinedView.components"), now()));
}

#[test]
fn the_publisher() {
    let refused = render::publisher::status(&example("PublisherStatus.refused-commit"), now());
    golden("publisher-refused", &refused);
    golden(
        "publisher-without-git",
        &render::publisher::status(&example("PublisherStatus.without-git"), now()),
    );
    let device = "plant7/press-4".parse().unwrap();
    let changed: PublishAnswer = example("PublishAnswer.changed");
    let unchanged = PublishAnswer { changed: false, deployments: Vec::new(), ..changed.clone() };
    let text = [&changed, &unchanged].map(|answer| {
        render::publisher::changed(&device, answer) + &render::publisher::retired(&device, answer)
    });
    let beside = render::publisher::changed(&device, &example("PublishAnswer.with-side-effects"));
    golden("publisher-answers", &(text.concat() + &beside));
    golden(
        "publisher-cut-off",
        &render::publisher::status(&example("PublisherStatus.never-reached-its-git"), now()),
    );
}

#[test]
fn an_audit_with_everything_that_can_be_wrong() {
    golden("audit-unexplained", &render::audit::audit(&unexplained(), now()));
}

#[test]
fn an_audit_as_json() {
    let json = serde_json::to_string_pretty(&unexplained()).unwrap();
    golden("audit-json", &(json + "\n"));
}

#[test]
fn an_audit_that_explains_everything() {
    let mut answer: DevicesAnswer = example("DevicesAnswer.two");
    answer.devices[0].head = 57;
    answer.devices[0].account.missing = Default::default();
    let audit = Audit::of(answer.as_of, &answer.devices, vec![view("fleet", ViewVerdict::Right)]);
    assert!(audit.explained);
    golden("audit-explained", &render::audit::audit(&audit, now()));
}

#[test]
fn quarantine_as_a_list_and_one_by_one() {
    let [numbered, unnumbered] = quarantine();
    let list = List {
        held: 5,
        bytes: 71_234,
        reasons: [(RejectionCode::Unreadable, 4), (RejectionCode::Sender, 1)].into(),
        before: 3,
        reports: [numbered.clone(), unnumbered.clone()].into(),
        refused: 57,
        refused_devices: example::<QuarantineAnswer>("QuarantineAnswer.refused-devices").devices,
        settled: Settled { accepted: 2, dropped: 1, expired: 0 },
        ..List::default()
    };
    golden("quarantine-list", &render::quarantine::list(&list, now()));
    golden("quarantine-empty", &render::quarantine::list(&List::default(), now()));
    golden("quarantine-text", &render::quarantine::one(&numbered, now()));
    golden("quarantine-bytes", &render::quarantine::one(&unnumbered, now()));
}

#[test]
fn changes_that_are_watched() {
    let failing: DeploymentView = example("DeploymentView.failing");
    let converged: DeploymentView = example("DeploymentView.converged");
    let screen = render::watch::screen([&failing, &converged].into_iter(), now());
    let lines = [
        screen,
        render::watch::line(&failing.deployment, Some(&failing), now()),
        render::watch::line(&converged.deployment, Some(&converged), now()),
        render::watch::line(&converged.deployment, None, now()),
        render::watch::nothing(None),
        render::watch::nothing(Some(&converged.deployment)),
    ];
    golden("watch", &lines.concat());
}

#[test]
fn a_list_fits_the_terminal_as_far_as_that_can_be() {
    let answer: DeploymentsAnswer = example("DeploymentsAnswer.two");
    let devices: DevicesAnswer = example("DevicesAnswer.two");
    for width in [60, 80, 100, 137] {
        let frame = Frame { width: Some(width), ..Frame::from(now()) };
        let tables = [
            render::deployment::list(&answer, &Query::default(), frame),
            render::device::list(&devices, &Query::default(), frame),
        ];
        golden(&format!("width-{width}"), &tables.concat());
        let rows = tables.iter().flat_map(|table| table.split("\n\n").next().unwrap().lines());
        for row in rows.map(|row| anstream::adapter::strip_str(row).to_string()) {
            assert!(row.chars().count() <= width, "{row}");
        }
    }
}

#[test]
fn output_that_is_no_text_leaves_a_few_lines_of_text() {
    let mut answer: DeviceAnswer = example("DeviceAnswer.in-detail");
    let report = answer.deployments[0].report.as_mut().unwrap();
    let error = report.components.iter_mut().find_map(|component| component.error.as_mut()).unwrap();
    error.message =
        format!("exit code 3; last lines of stderr: ELF\n{}\u{fffd}\u{2}end", "\u{fffd}x\n".repeat(50));
    golden("device-binary", &render::device::one(&answer, now()));
}

#[test]
fn colours_are_where_they_help() {
    let text = render::deployment::list(&example("DeploymentsAnswer.two"), &Query::default(), now());
    let shown = text.replace('\u{1b}', "␛");
    compare("status-in-colour", &shown);
}

#[test]
fn what_a_device_says_cannot_write_over_the_screen() {
    let mut view: DeploymentView = example("DeploymentView.failing");
    view.errors[0].code = "E\u{1b}[2J".to_owned();
    view.errors[0].example.message = "one\r\u{1b}[31mtwo\nthree\u{202e}".to_owned();
    golden("status-hostile", &render::deployment::view(&view, now()));
}

/// Ten minutes after what the examples tell of.
fn now() -> Timestamp {
    "2026-08-22T10:10:02Z".parse().unwrap()
}

/// A deployment on three devices, none of which is heard.
fn dark(standing: Standing, verdict: Verdict) -> DeploymentView {
    let never = (standing == Standing::Waiting).into();
    let heard = Split { fresh: 0, stale: 3 - never, never };
    let mut view = DeploymentView {
        verdict,
        targets: 3,
        leaving: 0,
        overdue: 0,
        counts: [(standing, heard)].into(),
        converged: Bounds { lo: 0, hi: 3 },
        complete: Complete { devices: 3, of: 3, missing_reports: 0 },
        components: Default::default(),
        errors: Vec::new(),
        ..example("DeploymentView.converged")
    };
    view.message = view.words();
    view
}

fn unexplained() -> Audit {
    let answer: DevicesAnswer = example("DevicesAnswer.two");
    let mut devices = answer.devices;
    for (name, change) in [("press-5", 0), ("press-6", 1)] {
        let mut device = devices[0].clone();
        device.key.device = name.parse().unwrap();
        device.account.missing = Default::default();
        device.head = 57 + change;
        devices.push(device);
    }
    let mut retired = devices[0].clone();
    retired.key.device = "press-7".parse().unwrap();
    retired.retired = true;
    devices.push(retired);
    let views = [
        ("deployment.packet-tap", ViewVerdict::WrongDigest),
        ("fleet", ViewVerdict::Right),
        ("site.plant7", ViewVerdict::Absent),
        ("site.plant8", ViewVerdict::WrongCounts),
        ("site.plant9", ViewVerdict::NoView),
    ];
    Audit::of(answer.as_of, &devices, views.map(|(key, verdict)| view(key, verdict)).to_vec())
}

fn view(key: &str, verdict: ViewVerdict) -> ViewAudit {
    assert!(ViewKey::parse(key).is_some());
    ViewAudit { key: key.to_owned(), verdict }
}

fn quarantine() -> [HeldReport; 2] {
    let numbered = example::<QuarantineAnswer>("QuarantineAnswer.one-report").reports.remove(0);
    let mut unnumbered = HeldReport { quarantine_seq: 4712, device: None, ..numbered.clone() };
    unnumbered.report.subject = "muster.report.Plant_7.press-4".to_owned();
    unnumbered.report.code = RejectionCode::Sender;
    (unnumbered.report.epoch, unnumbered.report.seq) = (None, None);
    unnumbered.report.payload_base64 = RejectedReport::encode_payload(&[0xff; 40]);
    unnumbered.bytes = 40;
    [numbered, unnumbered]
}

fn golden(name: &str, text: &str) {
    compare(name, &anstream::adapter::strip_str(text).to_string());
}

#[track_caller]
fn compare(name: &str, text: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/ctl/{name}.txt"));
    let difference = golden::difference(&file, text, SWITCH);
    assert!(difference.is_none(), "{}if that is wanted: `{REMEDY}`", difference.unwrap_or_default());
}
