//! `muster top`: its screens as golden files under `tests/golden/ctl/`, and the program itself in a terminal (tmux) before a whole
//! system. `UPDATE_GOLDEN=1` rewrites the files.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::PathBuf;
use std::process::{Command, Stdio};

use muster_contract::Timestamp;
use muster_contract::incident::IncidentsAnswer;
use muster_contract::lag::{Lagging, RollupLag};
use muster_contract::pulse::{HubHearing, UnheardPartition};
use muster_contract::query::{DevicesAnswer, PublisherStatus};
use muster_contract::rollout::{Approval, TargetsAnswer};
use muster_contract::view::{FleetView, Freshness, SiteView, Split};
use muster_ctl::rollout::HeldChanges;
use muster_ctl::top::draw::draw;
use muster_ctl::top::fleet_screen::Round;
use muster_ctl::top::model::{Detail, Model, Update};
use muster_ctl::top::view::{Content, Target};
use muster_domain::rollout::{Lines, RolloutProgress, progress};
use muster_tests::golden;
use muster_tests::not_run::not_run;
use muster_tests::rollouts::{governed, release, says};
use muster_tests::schemas::example;
use muster_tests::story;
use muster_tests::system::{INGEST, ROLLUP, System, program};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test ctl_top";
const SIZE: (u16, u16) = (80, 24);
/// Seconds after the examples.
const LATER: i64 = 10;

fn now() -> Timestamp {
    "2026-08-22T10:02:10Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() - seconds).unwrap()
}

fn round(at: Timestamp) -> Round {
    let git = example::<PublisherStatus>("PublisherStatus.holding-a-change").git.unwrap();
    let mut silent: DevicesAnswer = example("DevicesAnswer.two");
    silent.devices.iter_mut().filter(|line| line.freshness == Freshness::Fresh).for_each(|line| {
        line.freshness = Freshness::Stale;
    });
    // The hub lists the longest silence first, and the one that was never heard before all.
    silent.devices.reverse();
    let rollouts = HeldChanges { held: git.held, open: git.open_rollouts, ..HeldChanges::default() };
    Round {
        at,
        fleet: Ok(example("FleetView.fleet")),
        deployments: Ok(example("DeploymentsAnswer.two")),
        silent: Ok(silent),
        rollouts: Ok(rollouts),
        incidents: Ok(example::<IncidentsAnswer>("IncidentsAnswer.one").incidents),
        lag: None,
    }
}

fn model(round: Round) -> Model {
    let mut model = Model::new("nats://hub:4222".to_owned(), false);
    model.apply(Update::Sites(Ok(sites()), round.at));
    model.apply(Update::Round(Box::new(round)));
    model
}

/// A site of which most devices are heard, and one that is silent.
fn sites() -> Vec<SiteView> {
    let heard: SiteView = example("SiteView.plant7");
    let mut silent = heard.clone();
    silent.site = "quarry".parse().unwrap();
    silent.tally.devices = Split { fresh: 0, stale: 6, never: 0 };
    vec![heard, silent]
}

fn press(model: &mut Model, keys: &str) {
    for sign in keys.chars() {
        let code = match sign {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            sign => KeyCode::Char(sign),
        };
        model.press(KeyEvent::new(code, KeyModifiers::NONE), now());
    }
}

fn detail(model: &mut Model, content: Content, at: Timestamp) {
    let target = model.wanted().expect("a page is open");
    model.apply(Update::Detail(Box::new(Detail { target, content: Ok(content), at })));
}

fn drawn(model: &mut Model, (width, height): (u16, u16), at: Timestamp) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, at)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let line = |y: u16| {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..buffer.area.height).map(line).collect()
}

fn screen(model: &mut Model) -> String {
    text(&drawn(model, SIZE, now()))
}

#[track_caller]
fn compare(name: &str, shown: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/ctl/top-{name}.txt"));
    let difference = golden::difference(&file, shown, SWITCH);
    assert!(difference.is_none(), "{}if that is wanted: `{REMEDY}`", difference.unwrap_or_default());
}

#[test]
fn each_list_of_the_first_screen_fits_80x24() {
    let mut model = model(round(ago(1)));
    for name in ["deployments", "silent", "rollouts", "incidents", "sites"] {
        compare(name, &screen(&mut model));
        press(&mut model, "\t");
    }
    press(&mut model, "?");
    compare("keys", &screen(&mut model));
    press(&mut model, "?1");
    compare("wide", &text(&drawn(&mut model, (132, 30), now())));
    assert!(text(&drawn(&mut model, (39, 8), now())).starts_with("39x8 is too small; 40x12 is enough"));
    for (width, height) in [(40, 12), (41, 13), (200, 50)] {
        let shown = text(&drawn(&mut model, (width, height), now()));
        assert!(shown.contains("> 6f0b2a52") || shown.contains("> web"), "{width}x{height}\n{shown}");
    }
}

#[test]
fn keys_open_what_is_behind_a_row_and_lead_back() {
    let mut model = model(round(ago(1)));
    press(&mut model, "\n");
    assert!(screen(&mut model).contains("Asking the hub; nothing is known yet."));
    let deployment = (example("DeploymentAnswer.failing"), example("StatusAnswer.brief"));
    detail(&mut model, Content::Deployment(Box::new(deployment)), ago(1));
    compare("deployment", &screen(&mut model));
    press(&mut model, "j\n");
    assert_eq!(model.wanted(), Some(Target::Device("plant7/press-5".parse().unwrap())));
    detail(&mut model, Content::Device(Box::new(example("DeviceAnswer.in-detail"))), ago(1));
    compare("device", &screen(&mut model));
    press(&mut model, "G");
    let end = screen(&mut model);
    press(&mut model, "jjjjk");
    let up = screen(&mut model);
    assert!(end.contains("as of ledger") && up.lines().count() == end.lines().count(), "{end}{up}");
    press(&mut model, "\x1bw");
    detail(&mut model, Content::Why(Box::new(example("WhyAnswer.failing"))), ago(1));
    compare("why", &screen(&mut model));
    press(&mut model, "\x1b\x1b");
    assert_eq!(model.wanted(), None);
    press(&mut model, "4\n");
    compare("incident", &screen(&mut model));
    press(&mut model, "3\n");
    assert!(matches!(model.wanted(), Some(Target::Rollout(id)) if id.as_str() == "web"));
    press(&mut model, "q");
    assert!(model.is_over());
}

#[test]
fn a_deployment_whose_id_is_a_uuid_is_shown_by_its_name() {
    let mut round = round(ago(1));
    let views = &mut round.deployments.as_mut().unwrap().deployments;
    let view = views.iter_mut().find(|view| view.deployment.is_uuid()).unwrap();
    view.deployment_name = "gateway".to_owned();
    let id = view.deployment.clone();
    round.rollouts.as_mut().unwrap().held[0].deployment = id.clone();
    let mut model = model(round);
    press(&mut model, "3");
    assert!(!screen(&mut model).contains(id.as_str()), "{}", screen(&mut model));
    press(&mut model, "\n");
    assert_eq!(model.wanted(), Some(Target::Rollout(id.clone())));
    let mut rollouts = rollouts();
    rollouts.iter_mut().for_each(|rollout| rollout.deployment = id.clone());
    detail(&mut model, Content::Rollout(rollouts), ago(1));
    let shown = screen(&mut model);
    assert!(shown.contains("rollout of gateway") && !shown.contains(id.as_str()), "{shown}");
}

#[test]
fn a_site_leads_to_its_devices_and_a_missing_list_names_its_cause() {
    let mut known = model(round(ago(1)));
    press(&mut known, "5");
    assert!(screen(&mut known).contains("> quarry"), "the silent site is first");
    press(&mut known, "j\n");
    assert_eq!(known.wanted(), Some(Target::Site("plant7".parse().unwrap())));
    let site = (example("SiteView.plant7"), example("DevicesAnswer.two"));
    detail(&mut known, Content::Site(Box::new(site)), ago(1));
    compare("site", &screen(&mut known));
    press(&mut known, "\n");
    assert!(matches!(known.wanted(), Some(Target::Device(_))));
    press(&mut known, "\x1b\x1b");
    known.apply(Update::Sites(Err("no permission".to_owned()), ago(0)));
    let shown = screen(&mut known);
    assert!(shown.contains("NOT CURRENT, asked for 1s ago: no permission"), "{shown}");
    let mut unknown = Model::new("nats://hub:4222".to_owned(), false);
    unknown.apply(Update::Round(Box::new(round(ago(1)))));
    unknown.apply(Update::Sites(Err("no permission".to_owned()), ago(1)));
    assert!(!screen(&mut unknown).contains("NOT CURRENT"), "other lists are as new as they look");
    press(&mut unknown, "5");
    let shown = screen(&mut unknown);
    assert!(shown.contains("NOTHING IS KNOWN: no permission") && shown.contains("5 Sites ?"), "{shown}");
}

/// The rollouts of `web`; its first wave needs approval.
fn rollouts() -> Vec<RolloutProgress> {
    let mut targets: TargetsAnswer = example("TargetsAnswer.one-released");
    for rollout in targets.rollouts.values_mut() {
        rollout.waves[0].approval = Approval::Before;
    }
    let earlier = targets.targets[1].published;
    targets.targets.iter_mut().for_each(|target| target.published = earlier);
    progress(&"web".parse().unwrap(), targets, &Lines::default(), now())
}

#[test]
fn a_decision_is_sent_after_a_yes_alone_and_about_current_numbers_alone() {
    let mut model = model(round(ago(1)));
    press(&mut model, "a");
    assert!(screen(&mut model).contains("decide on the page of a rollout: 3, then Enter"));
    press(&mut model, "3\na");
    assert!(screen(&mut model).contains("the rollout is not known yet"));
    detail(&mut model, Content::Rollout(rollouts()), ago(1));
    press(&mut model, "a");
    compare("approve", &screen(&mut model));
    press(&mut model, "n");
    assert!(screen(&mut model).contains("nothing was decided") && model.take_confirmed().is_none());
    press(&mut model, "aq");
    assert!(!model.is_over() && model.take_confirmed().is_none(), "any other key is a no");
    press(&mut model, "ay");
    assert!(model.take_confirmed().is_some() && model.take_confirmed().is_none(), "once");
    press(&mut model, "x");
    assert!(screen(&mut model).contains("the last decision is not answered yet"));
    model.apply(Update::Outcome("approved: 1 of 1 approvals".to_owned()));
    assert!(screen(&mut model).contains("approved: 1 of 1 approvals"));
    press(&mut model, "x");
    assert!(screen(&mut model).contains("reject wave") && screen(&mut model).contains("y yes"));
    press(&mut model, "np");
    assert!(screen(&mut model).contains("pause the rollout of web?"));
    press(&mut model, "n");
    model.fleet_screen.set_link(false, ago(1));
    press(&mut model, "a");
    assert!(screen(&mut model).contains("these numbers are not current"), "the connection is lost");
    press(&mut model, "y");
    assert!(model.take_confirmed().is_none());
}

#[test]
fn a_filter_narrows_a_list_and_says_so() {
    let mut model = model(round(ago(1)));
    press(&mut model, "/conv");
    let typing = screen(&mut model);
    assert!(typing.contains("/conv_   1 of 2 rows") && !typing.contains("failing  "), "{typing}");
    press(&mut model, "q\n");
    assert!(!model.is_over(), "a letter of a filter is no key");
    assert!(screen(&mut model).contains("No row passes the filter."));
    press(&mut model, "\x1b");
    assert!(screen(&mut model).contains("row 1 of 2"));
}

#[test]
fn the_selected_row_stays_selected_when_the_order_changes() {
    let mut model = model(round(ago(2)));
    press(&mut model, "j\n");
    let before = model.wanted();
    press(&mut model, "\x1b");
    let mut next = round(ago(1));
    next.deployments.as_mut().unwrap().deployments[0].verdict = muster_contract::view::Verdict::Empty;
    model.apply(Update::Round(Box::new(next)));
    press(&mut model, "\n");
    assert_eq!(model.wanted(), before);
}

#[test]
fn old_numbers_are_never_shown_as_new() {
    let why = || "no muster-rollup answers on muster.query.fleet: is it running?".to_owned();
    let unanswered = |at| Round {
        fleet: Err(why()),
        deployments: Err(why()),
        silent: Err(why()),
        rollouts: Err(why()),
        incidents: Err(why()),
        ..round(at)
    };
    let mut unknown = model(unanswered(ago(1)));
    compare("nothing-known", &screen(&mut unknown));
    let mut silent = model(round(ago(45)));
    silent.apply(Update::Round(Box::new(unanswered(ago(1)))));
    compare("not-answered", &screen(&mut silent));
    let mut stuck = model(round(ago(45)));
    let shown = screen(&mut stuck);
    assert!(shown.contains("NOT CURRENT, asked for 45s ago: the hub has not answered since"), "{shown}");
    let mut lost = model(round(ago(1)));
    lost.fleet_screen.set_link(false, ago(1));
    compare("lost", &screen(&mut lost));
    let lag = RollupLag { lagging: Some(Lagging { facts: 1200, since: ago(20) }), ..RollupLag::default() };
    let mut behind = model(Round { lag: Some(lag), ..round(ago(1)) });
    assert!(screen(&mut behind).contains("muster-rollup lags"));
    let mut partly =
        model(Round { rollouts: Err("no muster-publisher answers".to_owned()), ..round(ago(1)) });
    assert!(!screen(&mut partly).contains("NOT CURRENT"), "deployments are as new as they look");
    press(&mut partly, "3");
    let shown = screen(&mut partly);
    assert!(
        shown.contains("NOTHING IS KNOWN: no muster-publisher") && shown.contains("Rollouts ?"),
        "{shown}"
    );
    assert!(!shown.contains("no rollout is under way"), "{shown}");
}

#[test]
fn a_hub_that_does_not_listen_is_named_in_the_frame() {
    let mut fleet: FleetView = example("FleetView.fleet");
    let unheard =
        (0..16).map(|partition| UnheardPartition { hub: None, partition, since: ago(120), ledger_seq: None });
    fleet.tally.hub = HubHearing::of(unheard.collect());
    compare("unheard", &screen(&mut model(Round { fleet: Ok(fleet), ..round(ago(1)) })));
}

#[test]
fn colours_are_those_of_the_terminal_and_none_without_them() {
    let colours = |has_colour: bool| {
        let mut model = Model::new("nats://hub:4222".to_owned(), has_colour);
        model.apply(Update::Round(Box::new(round(ago(LATER)))));
        let buffer = drawn(&mut model, SIZE, now());
        assert!(
            buffer.content.iter().all(|cell| cell.bg == Color::Reset),
            "light and dark keep their background"
        );
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 10);
}

/// `muster top` in a terminal of its own.
struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    fn start(system: &System, command: &str) -> Option<Self> {
        let tmux = Self { socket: system.dir().join("tmux") };
        Command::new("tmux").arg("-V").stdout(Stdio::null()).status().ok()?;
        let (width, height) = (SIZE.0.to_string(), SIZE.1.to_string());
        let (_, started) =
            tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, command]);
        assert!(started, "tmux cannot start a session");
        Some(tmux)
    }

    fn run(&self, words: &[&str]) -> (String, bool) {
        let output = Command::new("tmux").arg("-S").arg(&self.socket).args(words).output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
    }

    fn keys(&self, keys: &[&str]) {
        assert!(self.run(&[&["send-keys"], keys].concat()).1, "{keys:?}");
    }

    async fn shows(&self, system: &System, words: &[&str], without: &str) {
        let look = async || {
            let shown = self.run(&["capture-pane", "-p"]).0;
            let is_so = words.iter().all(|word| shown.contains(word));
            if is_so && (without.is_empty() || !shown.contains(without)) { Ok(()) } else { Err(shown) }
        };
        system.eventually(&format!("a screen with {words:?} without '{without}'"), look).await;
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[tokio::test]
async fn a_terminal_follows_the_fleet_and_says_when_it_is_not_current() {
    let mut system = System::start().await;
    story::settled(&mut system, &["plant7/press-1", "plant8/press-2"], "web").await;
    let top = format!("{} --nats-url {} top", program("muster").display(), system.server.url());
    let Some(tmux) = Tmux::start(&system, &format!("{top}; echo ended $?; exec cat")) else {
        return not_run("terminal", "this machine has no tmux");
    };
    tmux.shows(&system, &["> web", "1 converged", "2 of 2 converged", "2 fresh"], "NOT CURRENT").await;
    tmux.keys(&["Enter"]);
    tmux.shows(&system, &["deployment web", "> plant7/press-1", "plant8/press-2"], "").await;
    tmux.keys(&["j", "Enter"]);
    tmux.shows(&system, &["device plant8/press-2", "generation"], "").await;
    tmux.keys(&["5"]);
    tmux.shows(&system, &["Sites 2", "> plant7", "plant8"], "").await;
    tmux.keys(&["Enter"]);
    tmux.shows(&system, &["site plant7", "> plant7/press-1"], "plant8").await;
    tmux.keys(&["1"]);
    system.kill(ROLLUP).await;
    tmux.shows(&system, &["NOT CURRENT", "muster-rollup", "> web"], "").await;
    system.start_again(ROLLUP);
    tmux.shows(&system, &["> web", "2 fresh"], "NOT CURRENT").await;
    system.kill(INGEST).await;
    tmux.shows(&system, &["the hub has not listened to partition"], "2 fresh").await;
    system.start_again(INGEST);
    tmux.shows(&system, &["2 fresh"], "not listened").await;
    tmux.keys(&["q"]);
    tmux.shows(&system, &["ended 0"], "> web").await;
}

/// Waves that need approval, which the person gives on the screen.
const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: canary, devices: [plant7/press-1], approval: before}]
";

#[tokio::test]
async fn a_person_approves_and_pauses_a_rollout_in_a_terminal() {
    let (system, _) = governed(ROLLOUT).await;
    release(&system, &story::sleeper("web", 2)).await;
    says(&system, &["rollout", "show", "web"], "canary").await;
    let top = format!("{} --nats-url {} top", program("muster").display(), system.server.url());
    let Some(tmux) = Tmux::start(&system, &top) else {
        return not_run("terminal", "this machine has no tmux");
    };
    tmux.shows(&system, &["4 fresh", "Rollouts 1"], "NOT CURRENT").await;
    tmux.keys(&["3", "Enter"]);
    tmux.shows(&system, &["rollout of web", "canary", "a approve"], "Asking").await;
    tmux.keys(&["a"]);
    tmux.shows(&system, &["approve wave canary of web (1 device, 0 of 1 approvals)?", "y yes"], "").await;
    tmux.keys(&["n"]);
    tmux.shows(&system, &["nothing was decided"], "").await;
    tmux.keys(&["a", "y"]);
    // The page is read again before anything else is decided on it.
    tmux.shows(&system, &["approved: 1 of 1 approvals"], "0 of 1").await;
    says(&system, &["rollout", "history", "web"], "approve").await;
    tmux.keys(&["p"]);
    tmux.shows(&system, &["pause the rollout of web?"], "").await;
    tmux.keys(&["y"]);
    tmux.shows(&system, &["paused"], "pause the rollout").await;
    says(&system, &["rollout", "show", "web"], "paused").await;
}
