//! A deadline counts from the first attempt, whatever happens after it.

use proptest::prelude::*;

use super::*;

/// An event that must not restart the time.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// Another attempt, in this state.
    Attempt(State),
    /// A report without retries, as of an agent of an earlier release.
    Plain(State),
    /// The device is silent until it is stale, and comes back.
    Silence,
    /// Ingest restarts, and reads LEDGER and the device's document again.
    Restart,
    /// Another document with the same target.
    Reassert,
    /// Nothing: time passes.
    Time,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let state =
        prop::sample::select(vec![State::Pending, State::Installing, State::Failed, State::Installed]);
    let event = prop_oneof![
        4 => state.clone().prop_map(Event::Attempt),
        1 => state.prop_map(Event::Plain),
        2 => Just(Event::Silence),
        2 => Just(Event::Restart),
        2 => Just(Event::Reassert),
        2 => Just(Event::Time),
    ];
    prop::collection::vec(event, 0..14)
}

/// A hub with one device whose clock is wrong by so many seconds, with the time of its first attempt.
struct Trial {
    hub: Hub,
    seq: u64,
    generation: u64,
    document: DesiredState,
    clock_off: i64,
    began_at: i64,
}

impl Trial {
    fn new(clock_off: i64) -> Self {
        let document = desired(3, false);
        let (hub, began_at) = (Hub::new(), 1_000);
        let mut trial = Self { hub, seq: 0, generation: 3, document, clock_off, began_at };
        trial.publish();
        trial.hub.beat(1, 0, 0);
        trial.hub.pass(7);
        trial.began_at = trial.hub.now.as_second();
        trial.report(State::Pending, None);
        trial
    }

    /// The device's document comes to the intake and, as a copy, to LEDGER.
    fn publish(&mut self) {
        let subject = LedgerSubject::Desired(press());
        self.hub.ledger.push((subject, Fact::Desired(self.document.clone()), self.hub.now));
        self.hub.intake.apply_desired(&press(), &self.document, self.hub.now);
    }

    fn report(&mut self, state: State, retries: Option<Value>) {
        self.seq += 1;
        let mut report = status(1, self.seq, self.seq);
        report["generation"] = json!(self.generation);
        report["observedAt"] = json!(at(self.hub.now.as_second() + self.clock_off).to_string());
        report["status"]["state"] = json!(state);
        report["components"][0]["state"] = json!(state);
        report["retries"] = retries.unwrap_or_else(|| json!([]));
        assert_eq!(self.hub.report(&report), Outcome::New);
    }

    fn attempt(&mut self, state: State) {
        let since = at(self.began_at + self.clock_off).to_string();
        let last_error = json!({"code": "Exited", "message": "ended", "at": since});
        let retries =
            json!([{"component": "c", "attempt": self.seq, "since": since, "lastError": last_error}]);
        self.report(state, Some(retries));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Attempt(state) => self.attempt(state),
            Event::Plain(state) => self.report(state, None),
            Event::Silence => {
                self.hub.pass(200);
                self.hub.beat(1, self.seq, 0);
            }
            Event::Restart => {
                self.hub.restart();
                self.hub.intake.apply_desired(&press(), &self.document, self.hub.now);
            }
            Event::Reassert => {
                self.generation += 1;
                self.document.generation = muster_contract::Generation::new(self.generation).unwrap();
                self.publish();
            }
            Event::Time => self.hub.live(20, 1, self.seq),
        }
    }

    fn deadlines(&self) -> Vec<(DeadlineKind, i64)> {
        let facts = self.hub.facts(|fact| if let Fact::Deadline(fact) = fact { Some(fact) } else { None });
        facts.iter().map(|fact| (fact.deadline, fact.since.as_second())).collect()
    }
}

proptest! {
    #[test]
    fn no_retry_flap_silence_restart_or_reassertion_restarts_the_time(
        events in events(), clock_off in prop::sample::select(vec![0, -100_000, 100_000])
    ) {
        let mut trial = Trial::new(clock_off);
        let begun = trial.began_at;
        for event in &events {
            trial.happen(*event);
        }
        trial.attempt(State::Installing);
// The limit is 60 s; a device or a hub that came back has 45 s to report the state.
        trial.hub.live(70, 1, trial.seq);
        prop_assert_eq!(trial.deadlines(), [(DeadlineKind::Stuck, begun)]);
    }
}

#[test]
fn a_success_that_held_and_a_new_target_begin_anew() {
    let mut trial = Trial::new(0);
    trial.attempt(State::Installing);
    trial.hub.live(70, 1, trial.seq);
    assert_eq!(trial.deadlines().len(), 1);
    // The device reports no more retries: its success has held. Then the component dies.
    trial.report(State::Installed, None);
    trial.hub.live(50, 1, trial.seq);
    let anew = trial.hub.now.as_second();
    trial.began_at = anew;
    trial.attempt(State::Failed);
    trial.hub.live(40, 1, trial.seq);
    assert_eq!(trial.deadlines().len(), 1, "its time is not over");
    trial.hub.live(40, 1, trial.seq);
    assert_eq!(trial.deadlines()[1..], [(DeadlineKind::Stuck, anew)]);

    trial.generation = 9;
    trial.document = desired(9, false);
    trial.publish();
    let set_at = trial.hub.now.as_second();
    trial.attempt(State::Installing);
    trial.hub.live(70, 1, trial.seq);
    assert_eq!(
        trial.deadlines()[2..],
        [(DeadlineKind::Stuck, set_at)],
        "nothing was tried before it was set"
    );
}

#[test]
fn the_newest_fact_alone_tells_when_the_first_attempt_began() {
    let mut trial = Trial::new(0);
    trial.hub.live(20, 1, 1);
    trial.attempt(State::Installing);
    let begun = trial.began_at;
    let told = |hub: &Hub| {
        let facts = hub.statuses();
        facts.last().unwrap().first_attempt_at.map(|at| at.as_second())
    };
    assert_eq!(told(&trial.hub), Some(begun));
    // LEDGER may have discarded the first fact.
    trial.hub.ledger.retain(|(_, fact, _)| !matches!(fact, Fact::Status(fact) if fact.seq.get() == 1));
    trial.happen(Event::Restart);
    trial.report(State::Pending, None);
    assert_eq!(told(&trial.hub), Some(begun));
    trial.report(State::Installed, None);
    assert_eq!(told(&trial.hub), None, "it is at an end");
}
