//! The header above the demo's screen: the page of the fleet, the command that asks it, the broken links, the last release, and its rollout.

use std::fmt::Write as _;
use std::net::SocketAddr;
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
use crate::hub::TIMEOUT;
use crate::link::Condition;

/// Most broken links that are named.
const NAMED_MAX: usize = 5;

/// The header of the demo. Clones share the news.
#[derive(Debug, Clone)]
pub(crate) struct Header {
    devices: Arc<Vec<Device>>,
    page: SocketAddr,
    question: String,
    seed: u64,
    logs: PathBuf,
    news: Arc<Mutex<News>>,
}

/// The parts that change during a run.
#[derive(Debug)]
struct News {
    release: String,
    /// The sentence about the last rollout.
    rollout: Option<String>,
}

impl Header {
    /// The header after the first release. `question` is the whole command that asks the fleet, `page` the address that shows
    /// it.
    pub(crate) fn new(
        devices: &Arc<Vec<Device>>,
        page: SocketAddr,
        question: String,
        seed: u64,
        logs: PathBuf,
    ) -> Self {
        let news = News { release: "release 1 is committed".to_owned(), rollout: None };
        Self { devices: Arc::clone(devices), page, question, seed, logs, news: Arc::new(Mutex::new(news)) }
    }

    /// Names a new release.
    pub(crate) fn new_release(&self, release: u32) {
        self.news().release = format!("release {release} is committed");
    }

    /// Names a release that the publisher refuses.
    pub(crate) fn bad_release(&self, release: u32) {
        self.news().release = format!(
            "release {release} has a mistake in it on purpose: the publisher refuses the whole commit, and what ran runs on"
        );
    }

    /// Names a release that goes out in waves.
    pub(crate) fn release_in_waves(&self, release: u32) {
        self.news().release = format!(
            "release {release} goes to one device first, then to a quarter of them, then to the others"
        );
    }

    /// Names a release that the canary cannot run.
    pub(crate) fn failing_release(&self, release: u32) {
        self.news().release = format!(
            "release {release} cannot start, on purpose: the first device gets it alone, and is rolled back"
        );
    }

    /// Sets the sentence about the rollout.
    pub(crate) fn rollout(&self, sentence: &str) {
        self.news().rollout = Some(sentence.to_owned());
    }

    /// Names the end of the faults.
    pub(crate) fn faults_ended(&self) {
        self.news().release = "no more releases, every link is open again: the fleet converges".to_owned();
    }

    /// The lines above the screen, and an empty line.
    pub(crate) fn text(&self) -> String {
        let broken = |device: &&Device| device.link.condition() != Condition::Open;
        let broken: Vec<_> =
            self.devices.iter().filter(broken).map(|device| device.key.to_string()).collect();
        let mut words = format!("see it   http://{}/\nask it   {}\n", self.page, self.question);
        let _ = writeln!(words, "links    {}", links(&broken, self.devices.len()));
        let News { release, rollout } = &*self.news();
        let _ = writeln!(words, "release  {release}");
        if let Some(sentence) = rollout {
            let _ = writeln!(words, "rollout  {sentence}");
        }
        let (seed, logs) = (self.seed, self.logs.display());
        let _ = writeln!(words, "faults   --seed {seed} repeats them; logs in {logs}\n");
        words
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Shows the fleet on standard output as `muster watch` does, below the header.
pub(crate) fn show(header: Header, bus: Bus) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut terminal = Terminal::system();
        if !terminal.is_interactive() {
            terminal.print_note(&header.text());
        }
        let (hub, clock) = (Hub::new(bus, TIMEOUT), Arc::new(SystemClock));
        let mut session = Session { hub, format: Format::Table, terminal: &mut terminal, clock, then: None };
        if let Err(error) = watch::follow(&mut session, &|| header.text()).await
            && let Some(words) = error.words()
        {
            // The demo continues without a screen, for example if standard output is closed.
            terminal.print_note(&words);
        }
    })
}

#[cfg(test)]
mod tests {
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
        let header = Header::new(&devices, ([127, 0, 0, 1], 8080).into(), question, 7, "/fleet/logs".into());
        assert!(
            header.text().contains("all 2 carry now\nrelease  release 1 is committed\n"),
            "{}",
            header.text()
        );
        assert!(!header.text().contains("rollout"), "{}", header.text());
        header.rollout("wave canary is stopped: too many failures");
        devices[1].link.set(Condition::Cut);
        header.bad_release(2);
        let words = header.text();
        for part in [
            "see it   http://127.0.0.1:8080/\nask it   bin/muster --nats-url nats://127.0.0.1:4333 status\n",
            "1 of 2 broken now: site-1/device-2\n",
            "release 2 has a mistake in it on purpose",
            "\nrollout  wave canary is stopped: too many failures\n",
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
