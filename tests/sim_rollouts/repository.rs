//! The Git repository: which devices exist, what they shall run and by which policies, as the files of a commit. The publisher
//! reads the files with its own code.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use muster_publisher::source::{Body, File, Tree};

use super::policies;

/// Most devices of a world.
const DEVICES_MAX: usize = 24;
/// The deployments.
pub(crate) const DEPLOYMENTS: [&str; 2] = ["app", "log"];
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
    /// Whether some devices have a mistake, for which the publisher holds them back.
    has_mistakes: bool,
}

/// Values of the label `rank` in turn: numbers, texts, and none.
const RANKS: [Option<&str>; 5] = [Some("10"), Some("9"), None, Some("x"), Some("3")];
/// An invalid value of a label, in place of the last one of [`RANKS`].
const BAD_RANK: &str = "-3";
/// One in so many sizes of a fleet has mistakes: the size before each multiple.
const MISTAKES_EVERY: usize = 6;

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
        let has_mistakes = (count + 1).is_multiple_of(MISTAKES_EVERY);
        Self { commit: 1, devices, retired, commands: commands.collect(), policies, has_mistakes }
    }

    /// Five devices of one deployment, under a policy with these waves.
    pub(crate) fn scripted(waves: &str) -> Self {
        let policy = format!("apiVersion: muster/v1\nkind: Rollout\nonFailure: rollback\nwaves:\n{waves}");
        Self {
            commit: 1,
            devices: (0..5).collect(),
            retired: BTreeSet::new(),
            commands: BTreeMap::from([("app", "v0-good".to_owned())]),
            policies: BTreeMap::from([("fleet", policy)]),
            has_mistakes: false,
        }
    }

    /// The label `rank` of a device, as a line of its file.
    fn rank(&self, at: usize) -> String {
        let rank = match at % RANKS.len() {
            last if last == RANKS.len() - 1 && self.has_mistakes => Some(BAD_RANK),
            of => RANKS[of],
        };
        rank.map_or_else(String::new, |rank| format!("rank: \"{rank}\"\n"))
    }

    /// Commits a content of a deployment.
    pub(crate) fn set_content(&mut self, id: &'static str, command: &str) {
        self.commit += 1;
        self.commands.insert(id, command.to_owned());
    }

    /// Commits a new content of a deployment.
    pub(crate) fn change_content(&mut self, rng: &mut Rng) {
        self.commit += 1;
        let ends = ["good", "good", "good", "bad", "some", "slow", "flaky", "late"];
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
            let policy = policies::draw(rng, self.devices.len()) + self.order(rng);
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
            let labels = format!("line: {}\n{}", line(*at), self.rank(*at));
            add(format!("sites/{}/labels.yaml", name(*at)), labels);
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
