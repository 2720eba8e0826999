//! The publisher's settings.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use muster_service::config::{Common, CommonArgs, Problems, StreamArgs, Streams};
use muster_service::version::VERSION;

use crate::git::{Branch, GitUrl, REMOTE_TIMEOUT};
use crate::source::Policy;

/// Shortest time between two polls.
const POLL_MIN: Duration = Duration::from_millis(100);
/// Longest time between two polls.
const POLL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest time limit of one run of git that contacts the repository.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Longest such limit.
const TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);

const _: () = assert!(
    TIMEOUT_MIN.as_millis() <= REMOTE_TIMEOUT.as_millis()
        && REMOTE_TIMEOUT.as_millis() <= TIMEOUT_MAX.as_millis()
);

const GUIDE: &str = "\
The repository:
  fleet/*.yaml                    deployments of every device
  sites/<site>/*.yaml             deployments of the devices of a site
  sites/<site>/<device>/*.yaml    deployments of one device; it exists because its folder does
  labels.yaml in any of these     labels of the devices: a mapping such as 'region: north'
  rollout.yaml in any of these    changes of the devices wait until `muster rollout next` releases them, wave by wave
  device.yaml in a device's       'retired: true' takes the device out of the fleet; the folder then has no other file
Each other file has Margo ApplicationDeployment documents. The nearer level wins on the same deployment id and label.

A mistake that concerns one device holds that device back: it keeps its desired state, and the others get the commit.
Any other mistake refuses the whole commit, and with --strict every mistake does. `muster publisher status` names file,
line, field and rule. A commit without any device folder is refused, because it would empty the fleet, unless
--allow-empty is given.

Examples:
  muster-publisher --git-url /srv/fleet
  muster-publisher --git-url https://git.example/fleet.git --git-token-file /run/secrets/git-token
  muster-publisher    without Git: desired state comes only from `muster apply`

Git reads the token from its file at each fetch: replace the file to rotate the token.

Exit codes: 0 stopped when asked to; 1 something failed; 2 a setting cannot be used.";

/// Publishes the desired state of each device, from Git and from requests
#[derive(Debug, Parser)]
#[command(name = "muster-publisher", version = VERSION, after_help = GUIDE)]
pub struct Cli {
    /// Git repository of the fleet: a path or a URL; without it desired state comes only from requests
    #[arg(long, env = "MUSTER_GIT_URL", value_name = "PATH|URL")]
    git_url: Option<String>,

    /// Branch to publish
    #[arg(long, env = "MUSTER_GIT_BRANCH", value_name = "BRANCH", default_value = "main")]
    git_branch: String,

    /// Time between two polls of the repository
    #[arg(long, env = "MUSTER_GIT_POLL", value_name = "DURATION", default_value = "2s")]
    git_poll: String,

    /// Time limit of one run of git that contacts the repository; git is killed then, and started again after a delay
    #[arg(long, env = "MUSTER_GIT_TIMEOUT", value_name = "DURATION", default_value = "2m")]
    git_timeout: String,

    /// File with the token (or password) of a repository behind http(s)
    #[arg(long, env = "MUSTER_GIT_TOKEN_FILE", value_name = "FILE")]
    git_token_file: Option<String>,

    /// Publish also a commit without any device folder, which empties the whole fleet
    #[arg(long, env = "MUSTER_ALLOW_EMPTY")]
    allow_empty: bool,

    /// Refuse the whole commit for a mistake that concerns one device; otherwise the other devices get the commit, and
    /// that device keeps its desired state
    #[arg(long, env = "MUSTER_STRICT")]
    strict: bool,

    /// Retire a device whose folder was removed, unless it has deployments that were applied by request
    #[arg(long, env = "MUSTER_RETIRE_REMOVED")]
    retire_removed: bool,

    /// Publish every commit at once, whatever a rollout.yaml says; changes that wait for a release go out as well
    #[arg(long, env = "MUSTER_IGNORE_ROLLOUTS")]
    ignore_rollouts: bool,

    /// Directory of the repository's mirror; losing it loses nothing. If unset, a private one that is removed at the end
    #[arg(long, env = "MUSTER_DATA_DIR", value_name = "DIR")]
    data_dir: Option<String>,

    #[command(flatten)]
    streams: StreamArgs,

    #[command(flatten)]
    common: CommonArgs,
}

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings of every service.
    pub common: Common,
    /// The settings of streams that this service creates.
    pub streams: Streams,
    /// The Git source, if there is one.
    pub git: Option<GitConfig>,
    /// The directory of the mirror; a private one if `None`.
    pub data_dir: Option<PathBuf>,
}

/// The Git source.
#[derive(Debug, Clone)]
pub struct GitConfig {
    /// The repository.
    pub url: GitUrl,
    /// The branch.
    pub branch: Branch,
    /// Time between two polls.
    pub poll: Duration,
    /// Time limit of one run of git that contacts the repository.
    pub timeout: Duration,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
    /// Whether a commit without any device is published.
    pub allow_empty: bool,
    /// How mistakes and removed folders are handled.
    pub policy: Policy,
}

impl Cli {
    /// The settings, checked.
    ///
    /// # Errors
    /// All problems of the settings.
    pub fn check(self) -> Result<Config, Problems> {
        let mut problems = Problems::default();
        let common = self.common.check(&mut problems);
        let streams = self.streams.check(&mut problems);
        let url = problems.optional("--git-url", self.git_url.as_deref(), Problems::parse::<GitUrl>);
        let branch = problems.parse("--git-branch", &self.git_branch);
        let poll = problems.duration("--git-poll", &self.git_poll, POLL_MIN..=POLL_MAX);
        let timeout = problems.duration("--git-timeout", &self.git_timeout, TIMEOUT_MIN..=TIMEOUT_MAX);
        let token_file =
            problems.optional("--git-token-file", self.git_token_file.as_deref(), Problems::file);
        let data_dir =
            problems.optional("--data-dir", self.data_dir.as_deref(), |_, _, text| Some(text.into()));
        if let (Some(Some(token)), Some(url)) = (&token_file, &url)
            && url.as_ref().and_then(GitUrl::http_origin).is_none()
        {
            problems.refuse("--git-token-file", token.display(), "needs a --git-url of http:// or https://");
        }
        problems.finish(|| {
            let (branch, poll, timeout, token_file) = (branch?, poll?, timeout?, token_file?);
            let allow_empty = self.allow_empty;
            let policy = Policy {
                strict: self.strict,
                retire_removed: self.retire_removed,
                ignore_rollouts: self.ignore_rollouts,
            };
            let git =
                url?.map(|url| GitConfig { url, branch, poll, timeout, token_file, allow_empty, policy });
            Some(Config { common: common?, streams: streams?, git, data_dir: data_dir? })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str]) -> Result<Config, Problems> {
        Cli::try_parse_from([&["muster-publisher"], words].concat()).unwrap().check()
    }

    #[test]
    fn a_commit_that_empties_the_fleet_has_to_be_allowed() {
        let allowed =
            |words: &[&str]| check(&[&["--git-url=/srv/fleet"], words].concat()).unwrap().git.unwrap();
        assert!(!allowed(&[]).allow_empty && allowed(&["--allow-empty"]).allow_empty);
    }

    #[test]
    fn strictness_retiring_and_ignoring_are_off_by_default() {
        let policy =
            |words: &[&str]| check(&[&["--git-url=/srv/fleet"], words].concat()).unwrap().git.unwrap().policy;
        assert_eq!(policy(&[]), Policy::default());
        let all = Policy { strict: true, retire_removed: true, ignore_rollouts: true };
        assert_eq!(policy(&["--strict", "--retire-removed", "--ignore-rollouts"]), all);
    }

    #[test]
    fn git_is_optional_and_has_defaults() {
        assert!(check(&[]).unwrap().git.is_none());
        let git = check(&["--git-url", "/srv/fleet"]).unwrap().git.unwrap();
        assert_eq!((git.branch.as_str(), git.poll, git.token_file), ("main", Duration::from_secs(2), None));
        assert_eq!(git.timeout, REMOTE_TIMEOUT, "the help text shows the constant");
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let shown = check(&[
            "--git-url=https://me:secret@git.example/fleet",
            "--git-branch=a b",
            "--git-poll=0s",
            "--git-timeout=0s",
            "--git-token-file=/no/such/token",
            "--data-dir=",
        ])
        .unwrap_err()
        .to_string();
        for flag in
            ["--git-url", "--git-branch", "--git-poll", "--git-timeout", "--git-token-file", "--data-dir"]
        {
            assert!(shown.contains(flag), "{flag} is missing:\n{shown}");
        }
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_token_needs_an_http_address() {
        let token = tempfile::NamedTempFile::new().unwrap();
        let token = token.path().to_str().unwrap();
        for url in ["/srv/fleet", "ssh://git.example/fleet"] {
            let shown = check(&["--git-url", url, "--git-token-file", token]).unwrap_err().to_string();
            assert!(shown.contains("http"), "{shown}");
        }
        assert!(check(&["--git-token-file", token]).is_err());
        assert!(check(&["--git-url", "https://git.example/x", "--git-token-file", token]).is_ok());
    }

    #[test]
    fn the_command_line_definition_is_valid() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
