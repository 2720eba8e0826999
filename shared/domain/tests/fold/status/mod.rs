//! Status questions, and a small fleet to ask about, for the tests of rows and of laws.

use muster_contract::State;
use muster_contract::fact::Fact;
use muster_contract::query::Output;
use muster_contract::status::{Rollup, StatusAnswer, StatusQuery};
use muster_domain::fold::{Fleet, StatusCursor, StatusRefusal};

use crate::ledger::{Ledger, Said};

pub(crate) const INSTALLED: &[(&str, State)] = &[("main", State::Installed), ("side", State::Installed)];

/// Everything a question without a limit gives.
pub(crate) fn ask(fleet: &Fleet, query: &StatusQuery) -> StatusAnswer {
    fleet.status_answer(query, None, usize::MAX).unwrap()
}

pub(crate) fn refused(fleet: &Fleet, query: &StatusQuery) -> String {
    match fleet.status_answer(query, None, 10) {
        Err(StatusRefusal::Unknown(words) | StatusRefusal::Wrong(words)) => words,
        Ok(answer) => panic!("{answer:?}"),
    }
}

pub(crate) fn of(id: &str) -> StatusQuery {
    StatusQuery { id: Some(id.parse().unwrap()), output: Output::All, ..StatusQuery::default() }
}

pub(crate) fn at(sites: &[&str], query: StatusQuery) -> StatusQuery {
    StatusQuery { site: sites.iter().map(|site| site.parse().unwrap()).collect(), ..query }
}

pub(crate) fn on(devices: &[&str], query: StatusQuery) -> StatusQuery {
    StatusQuery { device: devices.iter().map(|device| device.parse().unwrap()).collect(), ..query }
}

pub(crate) fn part(components: &[&str], query: StatusQuery) -> StatusQuery {
    StatusQuery { component: components.iter().map(|name| name.parse().unwrap()).collect(), ..query }
}

/// A desired state whose deployments have two components.
pub(crate) fn desired<'l>(
    ledger: &'l mut Ledger,
    device: &str,
    generation: u64,
    targets: &[(&str, u64)],
) -> &'l mut Ledger {
    ledger.desired(device, generation, targets);
    with_components(ledger, &["main", "side"])
}

pub(crate) fn with_components<'l>(ledger: &'l mut Ledger, names: &[&str]) -> &'l mut Ledger {
    let Fact::Desired(fact) = &mut ledger.entries.last_mut().unwrap().fact else {
        panic!("no desired state")
    };
    for entry in &mut fact.deployments {
        let component = entry.profile.components[0].clone();
        let named = |name: &&str| muster_contract::desired::Component {
            name: name.parse().unwrap(),
            ..component.clone()
        };
        entry.profile.components = names.iter().map(named).collect();
    }
    ledger
}

/// Two sites with two devices each: north/a has it, north/b failed, south/a has not begun, south/b fell silent.
pub(crate) fn mixed() -> Ledger {
    let mut ledger = Ledger::default();
    for device in ["north/a", "north/b", "south/a", "south/b"] {
        desired(&mut ledger, device, 1, &[("web", 1)]).fresh(device, 1, 0);
    }
    let failed = Said {
        components: &[("main", State::Failed), ("side", State::Pending)],
        errors: &[("main", "Exit1", "no license")],
        ..Said::default()
    };
    let installed = Said { components: INSTALLED, ..Said::default() };
    ledger.status("north/a", "web", &installed).status("north/b", "web", &failed);
    ledger.status("south/b", "web", &installed).stale("south/b", 1, 1);
    ledger
}

pub(crate) fn pages(fleet: &Fleet, query: &StatusQuery, limit: usize) -> (Vec<String>, Rollup) {
    let (mut after, mut names, mut sum) = (None, Vec::new(), None);
    loop {
        let page = fleet.status_answer(query, after.as_ref(), limit).unwrap();
        names.extend(page.targets.iter().map(|target| format!("{}/{}", target.key, target.deployment)));
        let added = match sum.take() {
            Some(sum) if !page.whole => sum_of(sum, &page.rollup),
            _ => page.rollup,
        };
        let Some(next) = page.next else { return (names, added) };
        sum = Some(added);
        after = Some(next.parse::<StatusCursor>().unwrap());
    }
}

pub(crate) fn sum_of(mut sum: Rollup, more: &Rollup) -> Rollup {
    sum.merge(more);
    sum
}
