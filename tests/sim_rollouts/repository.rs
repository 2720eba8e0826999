//! The Git repository: which devices exist, what they shall run and by which policies, as the files of a commit. The publisher
//! reads the files with its own code.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use muster_publisher::source::{Body, File, Tree};

/// Most devices of a world.
const DEVICES_MAX: usize = 24;
/// The deployments.
pub(crate) const DEPLOYMENTS: [&str; 2] = ["app", "log"];
/// The names of waves, in their order.
const WAVES: [&str; 4] = ["canary", "early", "line", "most"];

/// The state of the branch.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    /// The number of the last commit.
    pub(crate) commit: u64,
    /// Devices with a folder, by their number.
    pub(crate) devices: BTreeSet<usize>,
    /// Devices with a tombstone.
    pub(crate) retired: BTreeSet<usize>,
    /// The command of each deployment, which says how it ends on a device.
    commands: BTreeMap<&'static str, String>,
    /// Each `rollout.yaml`, by its folder.
    policies: BTreeMap<&'static str, String>,
}

/// The name of a device.
pub(crate) fn name(at: usize) -> String {
    format!("s{}/d{at:02}", at % 2)
}

/// The value of a device's label `line`.
fn line(at: usize) -> &'static str {
    ["a", "b", "c"][at % 3]
}

impl Repository {
    /// The first commit of a world, without a rollout.yaml.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let count = if rng.u8(0..10) == 0 { rng.usize(10..DEVICES_MAX) } else { rng.usize(1..9) };
        let commands = DEPLOYMENTS.into_iter().take(rng.usize(1..=2)).map(|id| (id, "v0-good".to_owned()));
        let (devices, retired, policies) = ((0..count).collect(), BTreeSet::new(), BTreeMap::new());
        Self { commit: 1, devices, retired, commands: commands.collect(), policies }
    }

    /// Five devices of one deployment, under a policy of a canary and the rest.
    pub(crate) fn scripted() -> Self {
        let policy = "apiVersion: muster/v1\nkind: Rollout\nonFailure: rollback\nwaves:\n  - {name: canary, count: 1, soak: 5s}\n  \
                      - {name: most, percent: 80%, maxInFlight: 2}\n";
        Self {
            commit: 1,
            devices: (0..5).collect(),
            retired: BTreeSet::new(),
            commands: BTreeMap::from([("app", "v0-good".to_owned())]),
            policies: BTreeMap::from([("fleet", policy.to_owned())]),
        }
    }

    /// Commits a content of a deployment.
    pub(crate) fn set_content(&mut self, id: &'static str, command: &str) {
        self.commit += 1;
        self.commands.insert(id, command.to_owned());
    }

    /// Commits a new content of a deployment.
    pub(crate) fn change_content(&mut self, rng: &mut Rng) {
        self.commit += 1;
        let ends = ["good", "good", "good", "bad", "some", "slow"];
        let end = ends[rng.usize(..ends.len())];
        // Now and then an earlier content again.
        let version = if rng.u8(0..8) == 0 { rng.u64(0..=self.commit) } else { self.commit };
        let ids: Vec<_> = self.commands.keys().copied().collect();
        self.commands.insert(ids[rng.usize(..ids.len())], format!("v{version}-{end}"));
    }

    /// Commits another policy.
    pub(crate) fn change_policy(&mut self, rng: &mut Rng) {
        self.commit += 1;
        let folder = if rng.u8(0..4) == 0 { "sites/s1" } else { "fleet" };
        let has_site = self.policies.contains_key("sites/s1");
        if folder == "sites/s1" && has_site && rng.bool() {
            self.policies.remove("sites/s1");
        } else {
            let policy = policy(rng) + self.order(rng);
            self.policies.insert(folder, policy);
        }
    }

    /// The order of the deployments in a policy, if it has one.
    fn order(&self, rng: &mut Rng) -> &'static str {
        let has_both = self.commands.len() == DEPLOYMENTS.len();
        if has_both && rng.u8(0..3) == 0 { "after: {log: [app]}\n" } else { "" }
    }

    /// Commits a further device.
    pub(crate) fn join(&mut self) {
        let next = self.devices.iter().chain(&self.retired).max().map_or(0, |last| last + 1);
        if next < DEVICES_MAX {
            self.commit += 1;
            self.devices.insert(next);
        }
    }

    /// Commits the tombstone of a device.
    pub(crate) fn retire(&mut self, rng: &mut Rng) {
        if self.devices.len() > 1 {
            self.commit += 1;
            let at = *self.devices.iter().nth(rng.usize(..self.devices.len())).unwrap();
            self.devices.remove(&at);
            self.retired.insert(at);
        }
    }

    /// The files of the branch's commit.
    pub(crate) fn tree(&self) -> Tree {
        let mut files = Vec::new();
        let mut add = |path: String, text: String| {
            files.push(File { path, body: Body::Text(text.into_bytes().into()) });
        };
        for (id, command) in &self.commands {
            add(format!("fleet/{id}.yaml"), document(id, command));
        }
        for (folder, policy) in &self.policies {
            add(format!("{folder}/rollout.yaml"), policy.clone());
        }
        for at in &self.devices {
            add(format!("sites/{}/labels.yaml", name(*at)), format!("line: {}\n", line(*at)));
        }
        for at in &self.retired {
            add(format!("sites/{}/device.yaml", name(*at)), "retired: true\n".to_owned());
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Tree { revision: format!("c{}", self.commit), files }
    }
}

fn document(id: &str, command: &str) -> String {
    format!(
        "id: {id}\nmetadata: {{name: {id}}}\nspec: {{applicationId: app, deploymentProfile: {{type: process, \
         components: [{{name: main, properties: {{command: {command}}}}}]}}}}\n"
    )
}

/// A policy.
fn policy(rng: &mut Rng) -> String {
    let mut text = "apiVersion: muster/v1\nkind: Rollout\n".to_owned();
    let mut add = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    match rng.u8(0..6) {
        0..3 => add("onFailure: rollback".to_owned()),
        3 => add("onFailure: abort".to_owned()),
        _ => {}
    }
    add(format!("approvals: {{need: {}, expiresAfter: 20m}}", rng.u8(1..=2)));
    if rng.u8(0..3) == 0 {
        add(format!("budget: {{groupBy: line, maxUnavailable: {}}}", rng.u8(1..=2)));
    }
    if rng.u8(0..3) == 0 {
        let end = ["stop", "rollback"][rng.usize(..2)];
        let of = match rng.u8(0..3) {
            0 => format!("wave: {}m, rollout: 30m", rng.u8(4..12)),
            1 => format!("device: {}s", rng.u8(10..120)),
            _ => format!("wave: {}m, device: {}s", rng.u8(4..12), rng.u8(10..120)),
        };
        add(format!("deadlines: {{{of}, atEnd: {end}}}"));
    }
    if rng.u8(0..6) == 0 {
        let begin = ["start: \"00:00\"", "cron: \"0 0 * * *\""][rng.usize(..2)];
        add(format!("windows: [{{{begin}, length: 23h55m}}]"));
    }
    let waves: Vec<_> = (0..WAVES.len()).filter(|_| rng.bool()).collect();
    if !waves.is_empty() {
        add("waves:".to_owned());
    }
    for at in waves {
        add(wave(at, rng));
    }
    text
}

fn wave(at: usize, rng: &mut Rng) -> String {
    let matcher = match at {
        0 if rng.bool() => format!("devices: [{}]", name(0)),
        0 => "count: 1".to_owned(),
        1 => format!("percent: {}%", [25, 34][rng.usize(..2)]),
        2 if rng.bool() => "site: s0".to_owned(),
        2 => "selector: {line: b}".to_owned(),
        _ => format!("percent: {}%", [60, 100][rng.usize(..2)]),
    };
    let mut text = format!("  - {{name: {}, {matcher}, allowEmpty: true", WAVES[at]);
    if rng.bool() {
        text.push_str(&format!(", maxInFlight: {}", rng.u8(1..=2)));
    }
    if rng.u8(0..3) == 0 {
        text.push_str(&format!(", success: {{atLeast: {}%}}", [50, 80][rng.usize(..2)]));
    }
    if rng.u8(0..3) == 0 {
        text.push_str(
            [", failure: {atMost: 1}", ", failure: {atMost: 34%, minimumSample: 2}"][rng.usize(..2)],
        );
    }
    if rng.u8(0..3) == 0 {
        text.push_str(&format!(", soak: {}s", rng.u8(5..60)));
    }
    if rng.u8(0..4) == 0 {
        text.push_str(", approval: before");
    }
    match rng.u8(0..6) {
        0 => text.push_str(&format!(", offline: {{debt: {{after: {}s, max: 2}}}}", rng.u8(40..120))),
        1 => text.push_str(&format!(", offline: {{fail: {{after: {}s}}}}", rng.u8(40..120))),
        _ => {}
    }
    text.push('}');
    text
}
