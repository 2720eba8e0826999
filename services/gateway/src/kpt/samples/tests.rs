//! Tests of the rules: which series are statements, which statement counts, which series is refused, and when a request is a whole
//! cluster.

use muster_proto::prometheus::Label;

use super::*;

const PERIOD: Duration = Duration::from_secs(90);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_764_000_000 + second).unwrap()
}

fn series(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> TimeSeries {
    let sample =
        |(second, value): &(i64, f64)| Sample { value: *value, timestamp: at(*second).as_millisecond() };
    let label = |(name, value): &(&str, &str)| Label { name: (*name).to_owned(), value: (*value).to_owned() };
    TimeSeries { labels: labels.iter().map(label).collect(), samples: samples.iter().map(sample).collect() }
}

/// A statement about a deployment at revision 1.0.0.
fn state(deployment: &str, state: &str, samples: &[(i64, f64)]) -> TimeSeries {
    let labels = [("__name__", STATE), ("deployment", deployment), ("revision", "1.0.0"), ("state", state)];
    series(&labels, samples)
}

fn read_at(timeseries: Vec<TimeSeries>, second: i64) -> RequestSamples {
    read(&WriteRequest { timeseries }, "hub", PERIOD, at(second))
}

/// The statements as: device, second, whole, groups as deployment and status of the member.
fn shown(read: &RequestSamples) -> Vec<String> {
    let group = |group: &ResourceGroup| {
        let status = group.statuses().next().unwrap();
        format!("{} {}", group.metadata.name, status.status)
    };
    let line = |one: &DeviceSamples| {
        let groups: Vec<_> = one.groups.groups.iter().map(group).collect();
        let (device, second) = (one.device.as_deref().unwrap_or("-"), one.at.duration_since(at(0)).as_secs());
        format!("{device} {second} {} {}", one.groups.is_whole, groups.join(", "))
    };
    read.parts.iter().map(line).collect()
}

#[test]
fn the_newest_sample_that_is_one_counts() {
    let all = vec![
        state("web", "installing", &[(1, 1.0), (2, 1.0), (3, 0.0)]),
        state("web", "installed", &[(1, 0.0), (3, 1.0)]),
        // The mark by which Prometheus ends a series.
        state("web", "failed", &[(4, f64::from_bits(0x7ff0_0000_0000_0002))]),
        series(&[("__name__", "up"), ("deployment", "web"), ("state", "failed")], &[(5, 1.0)]),
    ];
    assert_eq!(shown(&read_at(all, 5)), ["- 3 false web Current"]);
}

#[test]
fn a_sample_that_is_older_than_its_period_says_nothing() {
    let one = || vec![state("web", "installed", &[(0, 1.0)])];
    assert_eq!(shown(&read_at(one(), 89)).len(), 1);
    assert_eq!(read_at(one(), 90), RequestSamples::default());
    // A clock that is ahead makes nothing fresh for longer.
    assert_eq!(read_at(one(), -30).parts[0].at, at(-30));
    let ahead = read_at(one(), -31);
    assert!(ahead.parts.is_empty() && ahead.refused.unwrap().detail.contains("ahead of the gateway's clock"));
}

#[test]
fn states_of_one_time_are_all_kept_and_the_rules_of_groups_decide() {
    let all = vec![
        state("web", "failed", &[(2, 1.0)]),
        state("web", "installed", &[(2, 1.0)]),
        state("db", "pending", &[(1, 1.0)]),
    ];
    assert_eq!(shown(&read_at(all, 2)), ["- 1 false db NotFound", "- 2 false web Failed, web Current"]);
}

#[test]
fn a_request_is_a_whole_cluster_if_it_has_as_many_deployments() {
    let count = |number, second| series(&[("__name__", DEPLOYMENTS)], &[(second, number)]);
    let two = || vec![state("web", "installed", &[(2, 1.0)]), state("db", "installed", &[(2, 1.0)])];
    let with = |one: TimeSeries| shown(&read_at([two(), vec![one]].concat(), 3));
    assert_eq!(with(count(2.0, 2)), ["- 2 true db Current, web Current"]);
    for other in [count(3.0, 2), count(1.0, 2), count(2.0, 3), count(2.5, 2)] {
        assert_eq!(with(other), ["- 2 false db Current, web Current"]);
    }
    assert_eq!(shown(&read_at(vec![count(0.0, 2)], 3)), ["- 2 true "], "nothing is left of it");
    assert_eq!(read_at(vec![count(1.0, 2)], 3), RequestSamples::default());
}

#[test]
fn devices_are_apart() {
    let of = |device: &str| {
        let mut one = state("web", "installed", &[(1, 1.0)]);
        one.labels.push(Label { name: "device".to_owned(), value: device.to_owned() });
        one
    };
    let all = vec![of("hub/a"), of("hub/b"), of("hub")];
    assert_eq!(
        shown(&read_at(all, 1)),
        ["- 1 false web Current", "hub/a 1 false web Current", "hub/b 1 false web Current"]
    );
}

#[test]
fn a_series_against_the_rules_is_refused_by_name_and_holds_nothing_up() {
    let labels = |labels: &[(&str, &str)]| {
        series(&[&[("__name__", STATE), ("deployment", "db")], labels].concat(), &[(1, 1.0)])
    };
    for (bad, rule) in [
        (
            series(&[("__name__", STATE), ("state", "installed"), ("revision", "1")], &[(1, 1.0)]),
            "names no deployment",
        ),
        (labels(&[("state", "ready"), ("revision", "1")]), "has the state 'ready'"),
        (labels(&[("revision", "1")]), "has the state ''"),
        (labels(&[("state", "installed")]), "names no content"),
        (
            labels(&[("state", "installed"), ("revision", &"x".repeat(LABEL_BYTES_MAX + 1))]),
            "more than 512 bytes",
        ),
    ] {
        let read = read_at(vec![bad, state("web", "installed", &[(1, 1.0)])], 1);
        assert_eq!(shown(&read), ["- 1 false web Current"]);
        let message = &read.refused.as_ref().unwrap().detail;
        assert!(message.contains(STATE) && message.contains(rule), "{message}");
    }
}
