//! The Git source: which commit a branch is at, and its files. A bare mirror of the newest commit alone lies in the
//! data directory; losing it loses nothing. What the files mean is not known here.
//!
//! The token of `--git-token-file` is read by git's credential helper at each fetch: a rotated token is used at
//! once, and the token itself is in no argument, no environment variable and no log line.

mod command;
mod error;
mod listing;
mod url;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::canonical::Digest;

use self::command::{Git, LOCAL_LIMIT, in_mirror};
pub use self::error::GitError;
use self::listing::unexpected;
pub use self::url::{Branch, GitSettingError, GitUrl};
use crate::source::Tree;

/// Time for one run of git that talks to the repository, where no setting says otherwise; git is killed then.
pub const REMOTE_TIMEOUT: Duration = Duration::from_secs(120);
/// Branches named where the wanted one is missing.
const OTHERS_MAX: usize = 5;
/// Digits of a commit's id: of SHA-1 and of SHA-256.
const COMMIT_DIGITS: [usize; 2] = [40, 64];
/// Where the mirror keeps the branch: a name that no branch of the source can collide with.
const MIRRORED: &str = "refs/muster/head";
/// Where it keeps an older commit that was asked for by its id.
const MIRRORED_OLDER: &str = "refs/muster/older";
/// For the publisher alone: a deployment may hold what others shall not read.
const PRIVATE_FOLDER: u32 = 0o700;
/// Commits back from the newest in which one is looked for that another publisher has published.
const HISTORY: &str = "--depth=256";
/// How deep the mirror is otherwise.
const NEWEST_ALONE: &str = "--depth=1";
const ASK: &str = "ask the repository for its branch (check --git-url; a private one needs --git-token-file)";
const FETCH: &str = "fetch the commit";
const MIRROR: &str = "make the mirror (is --data-dir writable?)";

/// A branch of a repository, and the mirror of it.
#[derive(Debug, Clone)]
pub struct Repository {
    git: Git,
    url: GitUrl,
    branch: Branch,
    mirror: PathBuf,
    remote_timeout: Duration,
}

impl Repository {
    /// The branch of the repository at `url`, mirrored below `data_dir`. Nothing is touched yet.
    pub fn new(url: GitUrl, branch: Branch, token_file: Option<PathBuf>, data_dir: &Path) -> Self {
        let name = Digest::of_bytes(url.for_git().as_bytes()).to_string();
        let mirror = data_dir.join(format!("mirror-{}.git", &name["sha256:".len()..][..16]));
        let git = Git::new(PathBuf::from("git"), &url, token_file);
        Self { git, url, branch, mirror, remote_timeout: REMOTE_TIMEOUT }
    }

    /// The same, with another time for one run of git that talks to the repository.
    #[must_use]
    pub fn with_remote_timeout(self, remote_timeout: Duration) -> Self {
        Self { remote_timeout, ..self }
    }

    /// The files of the branch's commit, or `None` if that is `known`.
    ///
    /// # Errors
    /// Why the commit could not be had. Nothing is half-done: the next call starts anew.
    pub async fn poll(&self, known: Option<&str>) -> Result<Option<Tree>, GitError> {
        self.git.check_token().await?;
        let head = self.head().await?;
        if known == Some(&head) {
            return Ok(None);
        }
        let branch = self.branch.reference();
        let tree = match self.fetch_and_list(&branch, MIRRORED, &head).await {
            // The repository answers, and yet its files cannot be had: the mirror may be what is broken, as after a power
            // cut. A repository that is slow is not asked for more.
            Err(error) if error.may_be_the_mirrors() => {
                tracing::info!(%error, "making the mirror of the repository anew");
                self.remove_mirror().await?;
                self.fetch_and_list(&branch, MIRRORED, &head).await
            }
            tree => tree,
        };
        tree.map(Some)
    }

    /// Brings a branch or a commit into the mirror and gives its files; see [`Self::fetch`].
    async fn fetch_and_list(&self, what: &str, name: &str, like: &str) -> Result<Tree, GitError> {
        let revision = self.fetch(what, name, like).await?;
        listing::tree(&self.git, &in_mirror(&self.mirror), &revision).await
    }

    /// The files of a commit that the branch may have left behind. Some servers give no commit that no branch is at.
    ///
    /// # Errors
    /// Why the commit could not be had.
    pub async fn commit(&self, revision: &str) -> Result<Tree, GitError> {
        if !COMMIT_DIGITS.contains(&revision.len())
            || !revision.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return Err(unexpected("name a commit", revision.as_bytes()));
        }
        self.git.check_token().await?;
        self.fetch_and_list(revision, MIRRORED_OLDER, revision).await
    }

    /// The branch's commit `newest`, which was polled, and those that it came after: the nearest ones.
    ///
    /// # Errors
    /// Why they could not be had.
    pub async fn history(&self, newest: &str) -> Result<BTreeSet<String>, GitError> {
        self.git.check_token().await?;
        self.bring(&self.branch.reference(), MIRRORED, HISTORY).await?;
        let args = [&in_mirror(&self.mirror), "rev-list", newest, "--"];
        let said = self.git.run(FETCH, LOCAL_LIMIT, args).await?;
        Ok(String::from_utf8_lossy(&said).lines().map(str::to_owned).collect())
    }

    /// The commit the branch is at.
    async fn head(&self) -> Result<String, GitError> {
        let reference = self.branch.reference();
        let said = self.remote(&["ls-remote", "--quiet", "--", &self.url.for_git(), &reference]).await?;
        match references(&said).find(|(_, name)| *name == reference) {
            Some((commit, _)) => Ok(commit.to_owned()),
            None => Err(self.no_branch().await),
        }
    }

    async fn no_branch(&self) -> GitError {
        match self.remote(&["ls-remote", "--quiet", "--", &self.url.for_git(), "refs/heads/*"]).await {
            Ok(said) => GitError::NoBranch {
                url: self.url.to_string(),
                branch: self.branch.as_str().to_owned(),
                others: references(&said)
                    .filter_map(|(_, name)| name.strip_prefix("refs/heads/"))
                    .take(OTHERS_MAX)
                    .map(str::to_owned)
                    .collect(),
            },
            Err(error) => error,
        }
    }

    async fn remote(&self, args: &[&str]) -> Result<String, GitError> {
        let said = self.git.run(ASK, self.remote_timeout, args).await?;
        String::from_utf8(said).map_err(|error| unexpected(ASK, error.as_bytes()))
    }

    /// Brings a branch or a commit of the source into the mirror, under a name there; gives the commit. `like` is
    /// any commit of the source.
    async fn fetch(&self, what: &str, name: &str, like: &str) -> Result<String, GitError> {
        let mirror = in_mirror(&self.mirror);
        if !self.mirror.join("HEAD").exists() {
            self.make_mirror(like).await?;
        }
        self.bring(what, name, NEWEST_ALONE).await?;
        let commit = format!("{name}^{{commit}}");
        let said = self.git.run(FETCH, LOCAL_LIMIT, [&mirror, "rev-parse", "--verify", &commit]).await?;
        let revision = String::from_utf8_lossy(&said).trim().to_owned();
        if revision.is_empty() { Err(unexpected(FETCH, &said)) } else { Ok(revision) }
    }

    /// Brings a branch or a commit into the mirror that is there, so `deep`.
    async fn bring(&self, what: &str, name: &str, deep: &str) -> Result<(), GitError> {
        let (url, refspec) = (self.url.for_git(), format!("+{what}:{name}"));
        let args = [
            &in_mirror(&self.mirror),
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            deep,
            "--",
            &url,
            &refspec,
        ];
        self.git.run(FETCH, self.remote_timeout, args).await?;
        Ok(())
    }

    async fn make_mirror(&self, like: &str) -> Result<(), GitError> {
        let parent = self.mirror.parent().unwrap_or(&self.mirror);
        let mut private = tokio::fs::DirBuilder::new();
        private.recursive(true).mode(PRIVATE_FOLDER);
        private.create(parent).await.map_err(|source| self.unwritable(source))?;
        // The mirror speaks the source's hash.
        let format =
            if like.len() == COMMIT_DIGITS[1] { "--object-format=sha256" } else { "--object-format=sha1" };
        let path = self.mirror.display().to_string();
        let args = ["init", "--quiet", "--bare", "--template=", format, "--", &path];
        self.git.run(MIRROR, LOCAL_LIMIT, args).await?;
        // The folder around it may have been there before, and be open.
        let private = std::fs::Permissions::from_mode(PRIVATE_FOLDER);
        tokio::fs::set_permissions(&self.mirror, private).await.map_err(|source| self.unwritable(source))
    }

    async fn remove_mirror(&self) -> Result<(), GitError> {
        match tokio::fs::remove_dir_all(&self.mirror).await {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(self.unwritable(source)),
            _ => Ok(()),
        }
    }

    fn unwritable(&self, source: io::Error) -> GitError {
        GitError::DataDir { path: self.mirror.clone(), source }
    }
}

/// Lines of `<commit>\t<reference>`.
fn references(said: &str) -> impl Iterator<Item = (&str, &str)> {
    said.lines().filter_map(|line| line.split_once('\t'))
}
