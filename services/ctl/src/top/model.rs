//! The state of the screen: the shown list or page, the selected row, the filter, and the effect of each key. Pure: it sends
//! nothing and draws nothing.
//!
//! A selected row stays selected when its list changes its order.

use muster_contract::view::SiteView;
use muster_contract::{DeploymentId, Timestamp};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::decision::{self, Question};
use super::fleet_screen::{FleetScreen, Round};
use super::listing::Listing;
use super::view::{Content, Subject, Tab, Target, View};

/// Longest filter in characters.
const FILTER_CHARS_MAX: usize = 64;
/// Most pages that are open above each other.
const PAGES_MAX: usize = 16;

/// An answer about the open page.
#[derive(Debug)]
pub struct Detail {
    /// The page.
    pub target: Target,
    /// The answer, or why there is none.
    pub content: Result<Content, String>,
    /// Time of the question.
    pub at: Timestamp,
}

/// New answers.
#[derive(Debug)]
pub enum Update {
    /// About the first screen.
    Round(Box<Round>),
    /// The views of all sites, or why there are none, as of a time.
    Sites(Result<Vec<SiteView>, String>, Timestamp),
    /// About the open page.
    Detail(Box<Detail>),
    /// The words about a decision that was sent.
    Outcome(String),
}

/// The state of the screen.
#[derive(Debug)]
pub struct Model {
    /// The newest answers.
    pub fleet_screen: FleetScreen,
    /// The address of the hub.
    pub(super) address: String,
    pub(super) has_colour: bool,
    pub(super) tab: Tab,
    pub(super) is_typing: bool,
    pub(super) is_help: bool,
    /// Rows that the last frame had room for.
    pub(super) room: usize,
    /// Columns that the last frame had for a row.
    pub(super) width: usize,
    tabs: [View; Tab::ALL.len()],
    pages: Vec<View>,
    is_over: bool,
    /// A decision that waits for the person's yes.
    pub(super) question: Option<Question>,
    /// One that is to be sent.
    confirmed: Option<Question>,
    /// One was sent, and its outcome is not known.
    is_deciding: bool,
    /// Words about the last decision, until the next key.
    pub(super) outcome: Option<String>,
}

impl Model {
    /// Nothing is known yet.
    pub fn new(address: String, has_colour: bool) -> Self {
        Self {
            fleet_screen: FleetScreen::default(),
            address,
            has_colour,
            tab: Tab::Deployments,
            is_typing: false,
            is_help: false,
            room: 1,
            width: usize::MAX,
            tabs: Tab::ALL.map(|tab| View::of(Subject::Tab(tab))),
            pages: Vec::new(),
            is_over: false,
            question: None,
            confirmed: None,
            is_deciding: false,
            outcome: None,
        }
    }

    /// The decision that the person has confirmed, once.
    pub fn take_confirmed(&mut self) -> Option<Question> {
        self.confirmed.take()
    }

    /// The person has ended it.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// The page that needs answers.
    pub fn wanted(&self) -> Option<Target> {
        match self.pages.last().map(|view| &view.subject) {
            Some(Subject::Page(target)) => Some(target.clone()),
            _ => None,
        }
    }

    /// Records answers.
    pub fn apply(&mut self, update: Update) {
        match update {
            Update::Round(round) => self.fleet_screen.apply(*round),
            Update::Sites(sites, at) => self.fleet_screen.sites.record(sites, at),
            Update::Outcome(words) => (self.outcome, self.is_deciding) = (Some(words), false),
            Update::Detail(detail) => {
                let Detail { target, content, at } = *detail;
                let is_of = |view: &&mut View| matches!(&view.subject, Subject::Page(of) if *of == target);
                // The page may have been closed meanwhile.
                if let Some(view) = self.pages.iter_mut().find(is_of) {
                    view.content.record(content, at);
                }
            }
        }
    }

    /// The list or page that is shown.
    pub(super) fn view(&self) -> &View {
        self.pages.last().unwrap_or(&self.tabs[self.tab as usize])
    }

    fn view_mut(&mut self) -> &mut View {
        self.pages.last_mut().unwrap_or(&mut self.tabs[self.tab as usize])
    }

    /// The rows of the shown list or page.
    pub(super) fn listing(&self, now: Timestamp) -> Listing {
        Listing::of(self.view(), &self.fleet_screen, self.width, now)
    }

    /// The open page is above another one.
    pub(super) const fn is_nested(&self) -> bool {
        self.pages.len() > 1
    }

    /// Handles a key.
    pub fn press(&mut self, key: KeyEvent, now: Timestamp) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control {
            self.is_over |= matches!(key.code, KeyCode::Char('c' | 'd'));
        } else if let Some(question) = self.question.take() {
            self.answer(question, key.code);
        } else if self.is_typing {
            self.type_filter(key.code);
        } else if self.is_help {
            self.is_help = false;
            self.is_over = key.code == KeyCode::Char('q');
        } else {
            if !self.is_deciding {
                self.outcome = None;
            }
            self.command(key.code, now);
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        let filter = &mut self.view_mut().filter;
        match code {
            KeyCode::Char(sign) if filter.chars().count() < FILTER_CHARS_MAX => filter.push(sign),
            KeyCode::Backspace => _ = filter.pop(),
            KeyCode::Esc => {
                filter.clear();
                self.is_typing = false;
            }
            KeyCode::Enter => self.is_typing = false,
            _ => {}
        }
    }

    fn command(&mut self, code: KeyCode, now: Timestamp) {
        match code {
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.open(now, None),
            KeyCode::Char('w') => self.open(now, Some(Target::Why)),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace | KeyCode::Char('h') => self.back(),
            KeyCode::Tab => self.show_tab((self.tab as usize + 1) % Tab::ALL.len()),
            KeyCode::BackTab => self.show_tab((self.tab as usize + Tab::ALL.len() - 1) % Tab::ALL.len()),
            KeyCode::Char(key) if decision::KEYS.contains(&key) => self.ask(key, now),
            KeyCode::Char(digit @ '1'..='5') => self.show_tab(digit as usize - '1' as usize),
            code => self.scroll(code, now),
        }
    }

    /// Asks whether the person wants the decision of a key; the page of a rollout alone has decisions, and only if it is current.
    fn ask(&mut self, key: char, now: Timestamp) {
        let content = &self.view().content;
        let asked = match (self.wanted(), content.get()) {
            _ if self.is_deciding => Err("the last decision is not answered yet".to_owned()),
            (Some(Target::Rollout(_)), Some(Content::Rollout(rollouts))) => {
                match self.fleet_screen.staleness(now).or_else(|| content.staleness(now)) {
                    Some(_) => Err("these numbers are not current, so nothing is decided on them".to_owned()),
                    None => Question::of(key, rollouts),
                }
            }
            (Some(Target::Rollout(_)), _) => Err("the rollout is not known yet".to_owned()),
            _ => Err("decide on the page of a rollout: 3, then Enter".to_owned()),
        };
        match asked {
            Ok(question) => self.question = Some(question),
            Err(words) => self.outcome = Some(words),
        }
    }

    fn answer(&mut self, question: Question, code: KeyCode) {
        if code == KeyCode::Char('y') {
            (self.confirmed, self.is_deciding) = (Some(question), true);
            self.outcome = Some("sending the decision".to_owned());
        } else {
            self.outcome = Some("nothing was decided".to_owned());
        }
    }

    fn scroll(&mut self, code: KeyCode, now: Timestamp) {
        let listing = self.listing(now);
        let (rows, room) = (&listing.rows, self.room);
        let last = if listing.is_text { rows.len().saturating_sub(room) } else { rows.len() };
        let view = self.view_mut();
        let at = view.position(rows);
        let to = match code {
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::PageDown => at + room,
            KeyCode::PageUp => at.saturating_sub(room),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return,
        };
        view.select(rows, to.min(last));
    }

    /// Opens the page of the selected row; `other` names another page of its deployment.
    fn open(&mut self, now: Timestamp, other: Option<fn(DeploymentId) -> Target>) {
        let listing = self.listing(now);
        let row = listing.rows.get(self.view().position(&listing.rows)).and_then(|row| row.target.clone());
        let page = self.wanted();
        let target = match (other, row, page) {
            (None, row, _) => row,
            (Some(other), _, Some(Target::Deployment(id)))
            | (Some(other), Some(Target::Deployment(id)), _) => Some(other(id)),
            (Some(_), ..) => None,
        };
        if let Some(target) = target.filter(|_| self.pages.len() < PAGES_MAX) {
            self.pages.push(View::of(Subject::Page(target)));
        }
    }

    fn back(&mut self) {
        let view = self.view_mut();
        if view.filter.is_empty() {
            self.pages.pop();
        } else {
            view.filter.clear();
        }
    }

    fn show_tab(&mut self, at: usize) {
        self.pages.clear();
        self.tab = Tab::ALL[at];
    }
}
