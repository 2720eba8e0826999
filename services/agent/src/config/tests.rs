//! Tests of the settings that are accepted and the refusals of others.

use clap::{CommandFactory, Parser};

use super::*;

fn check(words: &[&str]) -> Result<Config, Problems> {
    Args::try_parse_from([&["muster-agent"], words].concat()).unwrap().check()
}

#[test]
fn the_help_names_the_limits_of_the_outbox() {
    use clap::CommandFactory as _;
    let help = Args::command().render_long_help().to_string();
    let limits = [format!("at least {}", ROWS_BOUNDS.start()), format!("at least {}MiB", BYTES_LEAST >> 20)];
    assert!(limits.iter().all(|limit| help.contains(limit)), "{limits:?} is missing: {help}");
}

#[test]
fn every_runtime_has_a_word_and_the_help_names_those_of_the_program() {
    let help = Args::command().render_long_help().to_string();
    for kind in RuntimeKind::ALL {
        assert_eq!(kind.as_str().parse(), Ok(*kind));
        let named = help.contains(&format!("{} (", kind.as_str()));
        assert_eq!(named, HOST_RUNTIMES.contains(kind), "the help of --runtime and {kind:?}");
    }
    let error = "docker".parse::<RuntimeKind>().unwrap_err().to_string();
    assert_eq!(error, "must be one of process, compose, simulated, kubernetes (muster-agent-kubernetes)");
}

#[test]
fn three_settings_are_enough() {
    let config = check(&[
        "--site=plant7",
        "--device=press-4",
        "--data-dir=/tmp/muster-agent-of-a-test",
        "--label=a=b,c=",
    ])
    .unwrap();
    assert_eq!(config.device.to_string(), "plant7/press-4");
    assert_eq!((config.runtime, config.on_exit), (RuntimeKind::Process, OnExit::Keep));
    assert_eq!(config.heartbeat, muster_contract::limits::HEARTBEAT);
    assert_eq!(config.reconnect_max, muster_contract::limits::RECONNECT_MAX);
    assert_eq!(config.outbox, Limits::default());
    assert_eq!((config.uplink_limit, config.poll), (None, None));
    assert!(config.schedule.is_empty());
    assert_eq!(
        config.labels.into_iter().collect::<Vec<_>>(),
        [("a".to_owned(), "b".to_owned()), ("c".to_owned(), String::new())]
    );
}

#[test]
fn all_invalid_values_are_listed_at_once() {
    let words = [
        "--site=Plant 7",
        "--data-dir=/proc/version",
        "--runtime=docker",
        "--label=x",
        "--on-exit=explode",
        "--heartbeat=0s",
        "--reconnect-max=never",
        "--uplink-limit=64",
        "--poll-interval=1ms",
        "--polling-hours=22-06",
        "--polling-hours=06:00-06:00",
        "--downtime=01:00-02:00 Mars",
        "--retry-min=10m",
        "--outbox-rows=12",
        "--outbox-bytes=1MiB",
        "--nats-url=http://x",
    ];
    let said = check(&words).unwrap_err().to_string();
    for word in words.into_iter().chain(["--device (MUSTER_DEVICE): must be given"]) {
        assert!(said.contains(word), "{word} is not in:\n{said}");
    }
}

#[test]
fn hours_may_be_given_several_times_or_with_commas() {
    let words = [
        "--site=a",
        "--device=b",
        "--data-dir=/tmp/muster-agent-of-a-test",
        "--uplink-limit=64kbit",
        "--polling-hours=22:00-06:00,12:00-13:00 UTC",
        "--polling-hours=15:00-15:30",
        "--downtime=01:00-02:00 Europe/Berlin",
    ];
    let config = check(&words).unwrap();
    assert_eq!((config.schedule.polling.len(), config.schedule.downtime.len()), (3, 1));
    assert_eq!(config.uplink_limit, Some("64kbit".parse().unwrap()));
    let many = (0..=WINDOWS_MAX).map(|hour| format!("--downtime=00:{hour:02}-01:00")).collect::<Vec<_>>();
    let words = words.iter().copied().chain(many.iter().map(String::as_str)).collect::<Vec<_>>();
    assert!(check(&words).unwrap_err().to_string().contains("one more than the 32"));
}

#[test]
fn the_help_can_be_shown() {
    Args::command().debug_assert();
}
#[test]
fn heartbeats_leave_reports_half_of_the_link_or_are_refused() {
    let with = |rate: &str, heartbeat: &str| {
        let settings = [format!("--uplink-limit={rate}"), format!("--heartbeat={heartbeat}")];
        let device = ["--site=a", "--device=b", "--data-dir=/tmp/muster-agent-of-a-test"];
        check(&[device[0], device[1], device[2], &settings[0], &settings[1]])
    };
    let said = with("4kbit", "1s").unwrap_err().to_string();
    assert!(said.contains("--uplink-limit") && said.contains("--heartbeat"), "{said}");
    assert!(with("4kbit", "30s").is_ok() && with("64kbit", "1s").is_ok());
    assert!(with("64kbit", "100ms").is_err());
}

#[test]
fn errors_name_the_limits_of_labels() {
    let long = format!("--label=a={}", "x".repeat(OWN_LABEL_BYTES_MAX));
    let many: Vec<_> = (0..=OWN_LABELS_MAX).map(|at| format!("--label=l{at}=x")).collect();
    let said = check(&[long.as_str()]).unwrap_err().to_string();
    assert!(said.contains(&OWN_LABEL_BYTES_MAX.to_string()), "{said}");
    let words: Vec<_> = many.iter().map(String::as_str).collect();
    let said = check(&words).unwrap_err().to_string();
    assert!(said.contains(&OWN_LABELS_MAX.to_string()), "{said}");
}
