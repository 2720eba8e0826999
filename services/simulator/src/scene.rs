//! What stands above the demo's picture: how to ask the fleet, which links are broken, what is being released. It looks
//! and words; it changes nothing.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_bus::Bus;
use muster_ctl::ask::Hub;
use muster_ctl::config::Format;
use muster_ctl::session::Session;
use muster_ctl::terminal::Terminal;
use muster_ctl::watch;
use muster_service::clock::SystemClock;
use tokio::task::JoinHandle;

use crate::fleet::Device;
use crate::hub::PATIENCE;
use crate::link::Condition;

/// Most broken links that are named.
const NAMED_MAX: usize = 5;

/// The demo as it is now.
#[derive(Debug, Clone)]
pub struct Scene {
    devices: Arc<Vec<Device>>,
    question: String,
    seed: u64,
    logs: PathBuf,
    release: Arc<Mutex<String>>,
}

impl Scene {
    /// A demo whose first release is out. `question` is the whole command that asks the fleet.
    pub fn new(devices: &Arc<Vec<Device>>, question: String, seed: u64, logs: PathBuf) -> Self {
        let release = Arc::new(Mutex::new("release 1 is committed".to_owned()));
        Self { devices: Arc::clone(devices), question, seed, logs, release }
    }

    /// A release was committed.
    pub fn released(&self, release: u32) {
        *self.release() = format!("release {release} is committed");
    }

    /// A release that cannot be published was committed.
    pub fn slipped(&self, release: u32) {
        *self.release() = format!(
            "release {release} has a mistake in it on purpose: the publisher refuses the whole commit, and what ran runs on"
        );
    }

    /// The weather is over.
    pub fn calmed(&self) {
        *self.release() = "no more releases, every link is mended: the fleet converges".to_owned();
    }

    /// The lines above the picture, with an empty one below.
    pub fn words(&self) -> String {
        let broken = |device: &&Device| device.link.condition() != Condition::Open;
        let broken: Vec<_> =
            self.devices.iter().filter(broken).map(|device| device.key.to_string()).collect();
        let mut words = format!("ask it   {}\n", self.question);
        let _ = writeln!(words, "links    {}", links(&broken, self.devices.len()));
        let _ = writeln!(words, "release  {}", self.release());
        let (seed, logs) = (self.seed, self.logs.display());
        let _ = writeln!(words, "faults   --seed {seed} repeats them; logs in {logs}\n");
        words
    }

    fn release(&self) -> MutexGuard<'_, String> {
        self.release.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn links(broken: &[String], of: usize) -> String {
    let named = broken[..broken.len().min(NAMED_MAX)].join(", ");
    match broken.len() {
        0 => format!("all {of} carry now"),
        count if count > NAMED_MAX => {
            format!("{count} of {of} broken now: {named} and {} more", count - NAMED_MAX)
        }
        count => format!("{count} of {of} broken now: {named}"),
    }
}

/// Shows the fleet on standard output as `muster watch` does, the scene above it.
pub fn show(scene: Scene, bus: Bus) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut terminal = Terminal::system();
        if !terminal.is_interactive() {
            terminal.say(&scene.words());
        }
        let (hub, clock) = (Hub::new(bus, PATIENCE), Arc::new(SystemClock));
        let mut session = Session { hub, format: Format::Table, terminal: &mut terminal, clock, then: None };
        if let Err(error) = watch::follow(&mut session, &|| scene.words()).await
            && let Some(words) = error.words()
        {
            // The demo goes on without a picture, as where nobody reads it any more.
            terminal.say(&words);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::link::Link;

    #[tokio::test]
    async fn the_words_say_how_to_ask_what_is_broken_and_what_is_released() {
        let mut devices = Vec::new();
        for name in ["site-1/device-1", "site-1/device-2"] {
            let http = SocketAddr::from(([127, 0, 0, 1], 9));
            devices.push(Device { key: name.parse().unwrap(), link: Link::open(http).await.unwrap(), http });
        }
        let devices = Arc::new(devices);
        let question = "bin/muster --nats-url nats://127.0.0.1:4333 status".to_owned();
        let scene = Scene::new(&devices, question, 7, "/fleet/logs".into());
        assert!(
            scene.words().contains("all 2 carry now\nrelease  release 1 is committed\n"),
            "{}",
            scene.words()
        );
        devices[1].link.set(Condition::Cut);
        scene.slipped(2);
        let words = scene.words();
        for part in [
            "ask it   bin/muster --nats-url nats://127.0.0.1:4333 status\n",
            "1 of 2 broken now: site-1/device-2\n",
            "release 2 has a mistake in it on purpose",
            "--seed 7 repeats them; logs in /fleet/logs\n\n",
        ] {
            assert!(words.contains(part), "{part} is missing:\n{words}");
        }
    }

    #[test]
    fn many_broken_links_are_counted() {
        let broken: Vec<_> = (1..=7).map(|at| format!("d{at}")).collect();
        assert_eq!(links(&broken, 20), "7 of 20 broken now: d1, d2, d3, d4, d5 and 2 more");
    }
}
