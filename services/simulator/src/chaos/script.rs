//! The commits during the faults, drawn from a seed: good and bad releases, deployments that are added, removed and moved,
//! devices that are removed and added. The script knows the deployments of each device after each commit.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::DeviceKey;

/// Deployments beside the one that is everywhere, at most.
const APPS_MAX: usize = 12;
/// One device in so many may be out of the repository at once.
const GONE_ONE_IN: usize = 8;
/// The deployment that every device has.
const WEB: &str = "web";
/// How changes reach the governed site. A failure pauses the rollout until another content comes.
const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves:
  - {name: canary, count: 1}
  - {name: most, percent: 60%, maxInFlight: 2}
";

/// The release of each deployment of each device.
pub(super) type Wanted = BTreeMap<DeviceKey, BTreeMap<String, u64>>;

/// Where a deployment is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Fleet,
    Site(usize),
    Device(usize),
}

/// How its workload behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    /// It starts and stays.
    Steady,
    /// It ends again and again.
    Restless,
    /// It takes long to start.
    Slow,
    /// It never starts.
    Poisonous,
}

#[derive(Debug, Clone)]
struct App {
    id: String,
    level: Level,
    release: u64,
    behaviour: Behaviour,
}

/// The change of a commit, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    /// In words.
    pub(super) about: String,
    /// It breaks a rule, and nothing of it may be published.
    pub(super) bad: bool,
}

/// The state of the repository, as its authors mean it.
#[derive(Debug)]
pub(super) struct Script {
    devices: Vec<DeviceKey>,
    sites: Vec<String>,
    apps: Vec<App>,
    gone: BTreeSet<usize>,
    /// The devices on a small disk, by index; each has a deployment that makes it write.
    busy: Vec<usize>,
    bad: bool,
    release: u64,
    rng: fastrand::Rng,
}

impl Script {
    /// The first state: one deployment everywhere, and a restless one on each of the `busy` devices.
    pub(super) fn new(seed: u64, devices: &[DeviceKey], busy: Vec<usize>) -> Self {
        let mut sites: Vec<String> = devices.iter().map(|key| key.site.to_string()).collect();
        sites.dedup();
        let sites = sites.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let mut script = Self {
            devices: devices.to_vec(),
            sites,
            apps: Vec::new(),
            gone: BTreeSet::new(),
            busy,
            bad: false,
            release: 1,
            rng: fastrand::Rng::with_seed(seed ^ 0x5C21_77E0),
        };
        script.put(WEB.to_owned(), Level::Fleet, Behaviour::Steady);
        // The nearer level wins: what is pretended elsewhere is real there.
        script.put(WEB.to_owned(), Level::Site(0), Behaviour::Steady);
        // Real processes that end again and again, and some that never start: crash loops from the first minute on.
        script.put("busy-flap".to_owned(), Level::Site(0), Behaviour::Restless);
        script.put("busy-loop".to_owned(), Level::Site(0), Behaviour::Poisonous);
        // Every other site has something to say all the time.
        for at in (1..script.sites.len()).step_by(2) {
            script.put(format!("busy-site-{at}"), Level::Site(at), Behaviour::Restless);
        }
        for at in script.busy.clone() {
            script.put(format!("busy-{at}"), Level::Device(at), Behaviour::Restless);
        }
        script
    }

    /// Takes the next step.
    pub(super) fn step(&mut self) -> Commit {
        self.release += 1;
        if std::mem::take(&mut self.bad) {
            let about = format!("the slip of the pen is taken back; {}", self.bump());
            return Commit { about, bad: false };
        }
        let about = match self.rng.u32(0..16) {
            0..5 => self.bump(),
            5..7 => self.add(),
            7..9 => self.remove(),
            9..11 => self.move_away(),
            11 => self.remove_device(),
            12 => self.bring_back(),
            13..15 => {
                self.bad = true;
                self.bump();
                "a slip of the pen".to_owned()
            }
            _ => self.poison(),
        };
        Commit { about, bad: self.bad }
    }

    /// The last step: everything is well and stays so. A rollout that is paused ends with another content.
    pub(super) fn repair(&mut self) {
        self.release += 1;
        self.bad = false;
        let governed = self.governed();
        for app in &mut self.apps {
            let is_governed =
                governed.is_some_and(|site| [Level::Fleet, Level::Site(site)].contains(&app.level));
            if is_governed || app.behaviour != Behaviour::Steady {
                app.behaviour = Behaviour::Steady;
                app.release = self.release;
            }
        }
    }

    /// The release of each deployment of each device; a device without a folder in the repository has none.
    pub(super) fn wanted(&self) -> Wanted {
        let wanted = |(at, key): (usize, &DeviceKey)| {
            let apps: BTreeMap<_, _> = self.apps_of(at).map(|app| (app.id.clone(), app.release)).collect();
            (key.clone(), if self.gone.contains(&at) { BTreeMap::new() } else { apps })
        };
        self.devices.iter().enumerate().map(wanted).collect()
    }

    /// The repository's files, by path.
    pub(super) fn files(&self) -> BTreeMap<String, String> {
        let present = (0..self.devices.len()).filter(|at| !self.gone.contains(at));
        let mut files: BTreeMap<_, _> = present
            .clone()
            .map(|at| (format!("sites/{}/.gitkeep", self.devices[at]), String::new()))
            .collect();
        for app in &self.apps {
            let folder = match app.level {
                Level::Fleet => "fleet".to_owned(),
                Level::Site(at) => format!("sites/{}", self.sites[at]),
                Level::Device(at) if self.gone.contains(&at) => continue,
                Level::Device(at) => format!("sites/{}", self.devices[at]),
            };
            files.insert(format!("{folder}/{}.yaml", app.id), self.document(app));
        }
        if let Some(site) = self.governed() {
            files.insert(format!("sites/{}/rollout.yaml", self.sites[site]), ROLLOUT.to_owned());
        }
        if self.bad {
            let text = "id: slip\nspec: {deploymentProfile: {type: process, components: 7}}\n";
            files.insert("fleet/slip.yaml".to_owned(), text.to_owned());
        }
        files
    }

    /// The nearest level's word on each deployment of a device: later ones win.
    fn apps_of(&self, at: usize) -> impl Iterator<Item = &App> {
        let site = self.site_of(at);
        let levels = [Level::Fleet, Level::Site(site), Level::Device(at)];
        levels.into_iter().flat_map(|level| self.apps.iter().filter(move |app| app.level == level))
    }

    fn site_of(&self, device: usize) -> usize {
        let site = self.devices[device].site.as_str();
        self.sites.iter().position(|name| name == site).unwrap_or_default()
    }

    /// The site that a rollout governs: the last one, unless it runs real processes. Deployments do not leave it, because a removal
    /// waits for a person.
    fn governed(&self) -> Option<usize> {
        self.sites.len().checked_sub(1).filter(|site| *site > 0)
    }

    /// The devices of that site.
    pub(super) fn governed_devices(&self) -> BTreeSet<DeviceKey> {
        let is_governed = |at: &usize| Some(self.site_of(*at)) == self.governed();
        (0..self.devices.len()).filter(is_governed).map(|at| self.devices[at].clone()).collect()
    }

    /// Whether a device is at the site that runs real processes.
    pub(super) fn runs_real_processes(&self, key: &DeviceKey) -> bool {
        self.sites.first().is_some_and(|site| key.site.as_str() == site)
    }

    fn is_governed(&self, level: Level) -> bool {
        self.governed().is_some_and(|governed| match level {
            Level::Fleet => false,
            Level::Site(site) => site == governed,
            Level::Device(device) => self.site_of(device) == governed,
        })
    }

    /// The first site runs real processes, every other pretends.
    fn is_real(&self, level: Level) -> bool {
        match level {
            Level::Fleet => false,
            Level::Site(site) => site == 0,
            Level::Device(device) => self.site_of(device) == 0,
        }
    }

    fn put(&mut self, id: String, level: Level, behaviour: Behaviour) {
        self.apps.push(App { id, level, release: self.release, behaviour });
    }

    fn behaviour(&mut self) -> Behaviour {
        match self.rng.u32(0..10) {
            0..5 => Behaviour::Steady,
            5..8 => Behaviour::Restless,
            8 => Behaviour::Slow,
            _ => Behaviour::Poisonous,
        }
    }

    fn bump(&mut self) -> String {
        let at = self.rng.usize(0..self.apps.len());
        let behaviour = self.behaviour();
        let release = self.release;
        let app = &mut self.apps[at];
        app.release = release;
        // The deployments that make a small disk busy stay.
        if !app.id.starts_with("busy") {
            app.behaviour = behaviour;
        }
        format!("release {release} of {} at {:?}: {:?}", app.id, app.level, app.behaviour)
    }

    fn add(&mut self) -> String {
        if self.apps.iter().filter(|app| is_loose(app)).count() >= APPS_MAX {
            return self.bump();
        }
        let level = if self.rng.bool() {
            Level::Site(self.rng.usize(0..self.sites.len()))
        } else {
            Level::Device(self.rng.usize(0..self.devices.len()))
        };
        if self.is_governed(level) {
            return self.bump();
        }
        let (id, behaviour) = (format!("app-{}", self.release), self.behaviour());
        self.put(id.clone(), level, behaviour);
        format!("{id} comes to {level:?}: {behaviour:?}")
    }

    /// A deployment that may go or move.
    fn loose(&mut self) -> Option<usize> {
        let loose: Vec<_> = (0..self.apps.len()).filter(|at| is_loose(&self.apps[*at])).collect();
        self.rng.choice(loose)
    }

    fn remove(&mut self) -> String {
        let Some(at) = self.loose() else { return self.add() };
        let app = self.apps.remove(at);
        format!("{} goes from {:?}", app.id, app.level)
    }

    /// To another place of the same kind of runtime, or it would be another deployment.
    fn move_away(&mut self) -> String {
        let Some(at) = self.loose() else { return self.add() };
        let from = self.apps[at].level;
        let sites = (0..self.sites.len()).map(Level::Site);
        let places = sites.chain((0..self.devices.len()).map(Level::Device));
        let real = self.is_real(from);
        let places: Vec<_> =
            places.filter(|to| *to != from && self.is_real(*to) == real && !self.is_governed(*to)).collect();
        let Some(to) = self.rng.choice(places) else { return self.bump() };
        self.apps[at].level = to;
        format!("{} moves from {from:?} to {to:?}", self.apps[at].id)
    }

    fn remove_device(&mut self) -> String {
        let at = self.rng.usize(0..self.devices.len());
        if self.gone.len() * GONE_ONE_IN >= self.devices.len() || !self.gone.insert(at) {
            return self.bump();
        }
        format!("{} is taken out", self.devices[at])
    }

    fn bring_back(&mut self) -> String {
        let gone: Vec<_> = self.gone.iter().copied().collect();
        let Some(at) = self.rng.choice(gone) else { return self.bump() };
        self.gone.remove(&at);
        format!("{} is back", self.devices[at])
    }

    fn poison(&mut self) -> String {
        let at = self.rng.usize(0..self.apps.len());
        self.apps[at].release = self.release;
        self.apps[at].behaviour = Behaviour::Poisonous;
        format!("release {} of {} never starts", self.release, self.apps[at].id)
    }

    fn document(&self, app: &App) -> String {
        let App { id, release, behaviour, .. } = app;
        let (kind, properties) = if self.is_real(app.level) {
            ("process", real(*behaviour))
        } else {
            ("simulated", pretended(*behaviour))
        };
        format!(
            r#"id: {id}
metadata: {{name: {id}}}
spec:
  applicationId: com-example-{id}
  deploymentProfile:
    type: {kind}
    components:
      - name: main
        properties: {properties}
  parameters:
    release: {{value: "{release}", targets: [{{pointer: RELEASE, components: [main]}}]}}
"#
        )
    }
}

/// True for a deployment that is neither on every device nor one that keeps a device busy.
fn is_loose(app: &App) -> bool {
    app.id.starts_with("app")
}

const fn pretended(behaviour: Behaviour) -> &'static str {
    match behaviour {
        Behaviour::Steady => "{startDelay: 300ms, stopDelay: 100ms}",
        Behaviour::Restless => "{startDelay: 100ms, crashAfter: 1500ms}",
        Behaviour::Slow => "{startDelay: 12s}",
        Behaviour::Poisonous => "{startDelay: 100ms, failStarts: 1000000}",
    }
}

const fn real(behaviour: Behaviour) -> &'static str {
    match behaviour {
        Behaviour::Steady => r#"{command: sleep, args: ["86400"], readiness: {type: uptime, for: 100ms}}"#,
        Behaviour::Restless => {
            r#"{command: sh, args: ["-c", "sleep 2; exit 3"], readiness: {type: uptime, for: 100ms}}"#
        }
        Behaviour::Slow => r#"{command: sleep, args: ["86400"], readiness: {type: uptime, for: 12s}}"#,
        Behaviour::Poisonous => r#"{command: "false", readiness: {type: uptime, for: 100ms}}"#,
    }
}

#[cfg(test)]
mod tests;
