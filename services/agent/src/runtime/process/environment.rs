//! The environment of a unit, and the expansion of `$(NAME)` in its arguments.
//!
//! Only [`PASSED_ON`] of the agent's own environment reaches a unit. It is a list of permitted variables, because no
//! list of forbidden ones could name every credential.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io};

use muster_contract::DeviceKey;
use muster_contract::desired::is_env_name;
use muster_contract::profile::Process;

use super::env_tag::{DATA_DIR_VARIABLE, EnvTag, UNIT_VARIABLE};
use crate::runtime::Unit;

/// Variables of the agent that its units get unless they set them themselves.
const PASSED_ON: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"];
/// The prefix of further ones: the parts of the locale.
const PASSED_ON_PREFIX: &str = "LC_";

/// Variables by name.
pub(in crate::runtime) type Environment = BTreeMap<OsString, OsString>;

/// The part of the agent's environment that units get.
///
/// # Errors
/// `/proc` cannot be read.
pub(super) fn passed_on() -> io::Result<Environment> {
    passed_on_with(&[])
}

/// The same with further variables, by the prefixes of their names.
///
/// # Errors
/// `/proc` cannot be read.
pub(in crate::runtime) fn passed_on_with(more: &[&str]) -> io::Result<Environment> {
    Ok(choose(&fs::read("/proc/self/environ")?, more))
}

fn choose(environment: &[u8], more: &[&str]) -> Environment {
    let pair = |variable: &[u8]| {
        let at = variable.iter().position(|byte| *byte == b'=')?;
        let name = std::str::from_utf8(&variable[..at]).ok()?;
        let asked_for = more.iter().any(|prefix| name.starts_with(prefix));
        let chosen = PASSED_ON.contains(&name) || name.starts_with(PASSED_ON_PREFIX) || asked_for;
        chosen.then(|| (OsString::from(name), OsStr::from_bytes(&variable[at + 1..]).to_owned()))
    };
    environment.split(|byte| *byte == 0).filter_map(pair).collect()
}

/// The whole environment of a unit: the passed variables, then the document's `env`, then its parameters, then the
/// tag, each over the ones before. No document can put another tag on a process.
pub(super) fn of(
    passed_on: Environment,
    unit: &Unit,
    process: &Process,
    device: &DeviceKey,
    paths: &Path,
) -> Environment {
    let mut environment = passed_on;
    for (name, value) in process.env.iter().chain(&unit.environment) {
        environment.insert(name.into(), value.into());
    }
    environment.insert(UNIT_VARIABLE.into(), EnvTag::of(unit).text(device).into());
    environment.insert(DATA_DIR_VARIABLE.into(), paths.into());
    environment
}

/// An argument with every `$(NAME)` expanded. `$$(NAME)` is an escaped `$(NAME)`; an unset or invalid name is left as
/// it is, so that `$(date)` reaches a shell.
pub(super) fn expand(argument: &str, environment: &Environment) -> OsString {
    let mut expanded = OsString::new();
    let mut rest = argument;
    while let Some(at) = rest.find("$(") {
        let (before, reference) = rest.split_at(at);
        let end = reference.find(')').map_or(reference.len(), |end| end + 1);
        let (reference, after) = reference.split_at(end);
        if let Some(before) = before.strip_suffix('$') {
            expanded.push(before);
            expanded.push(reference);
        } else {
            expanded.push(before);
            expanded.push(value(reference, environment).unwrap_or(OsStr::new(reference)));
        }
        rest = after;
    }
    expanded.push(rest);
    expanded
}

fn value<'a>(reference: &str, environment: &'a Environment) -> Option<&'a OsStr> {
    let name = reference.strip_prefix("$(")?.strip_suffix(')')?;
    is_env_name(name).then(|| environment.get(OsStr::new(name)).map(OsString::as_os_str)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_expanded() {
        let environment: Environment =
            [("PORT", "80"), ("HOST", "a$(PORT)")].map(|(name, value)| (name.into(), value.into())).into();
        for (argument, expanded) in [
            ("", ""),
            ("plain $PORT ${PORT} $", "plain $PORT ${PORT} $"),
            ("$(PORT)", "80"),
            ("--listen=0.0.0.0:$(PORT)/$(PORT)", "--listen=0.0.0.0:80/80"),
            ("$(HOST)", "a$(PORT)"),
            ("$$(PORT) and $$$(PORT)", "$(PORT) and $$(PORT)"),
            ("$(NOT_SET) $(date +%s) $()", "$(NOT_SET) $(date +%s) $()"),
            ("$(PORT", "$(PORT"),
            ("ü$(PORT)ü", "ü80ü"),
        ] {
            assert_eq!(expand(argument, &environment), OsString::from(expanded), "{argument}");
        }
    }

    #[test]
    fn only_listed_variables_of_the_agent_are_passed_on() {
        let environment = choose(
            b"PATH=/bin\0MUSTER_CREDS=/etc/creds\0AWS_SECRET_ACCESS_KEY=x\0LC_ALL=C\0NATS_TOKEN=t\0TZ=\0odd\0",
            &[],
        );
        let names: Vec<_> = environment.keys().map(|name| name.to_str().unwrap()).collect();
        assert_eq!(names, ["LC_ALL", "PATH", "TZ"]);
    }
}
