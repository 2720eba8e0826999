//! Reads the commit of a branch and its files. A bare mirror of the newest commit is in the data directory; losing it loses
//! nothing. This module does not interpret the files.
//!
//! Git's credential helper reads the token of `--git-token-file` at each fetch: a rotated token is used at once, and the
//! token is in no argument, no environment variable and no log line.

mod command;
mod error;
mod listing;
mod url;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::canonical::Digest;
use tokio::sync::Mutex;

use self::command::{Git, LOCAL_LIMIT, in_mirror};
pub use self::error::GitError;
use self::listing::unexpected;
pub(crate) use self::url::{Branch, GitUrl};
use crate::source::Tree;

/// Default time limit of one run of git that contacts the repository; git is killed then.
pub const REMOTE_TIMEOUT: Duration = Duration::from_secs(120);
/// Branches that an error names if the wanted one is missing.
const OTHER_BRANCHES_MAX: usize = 5;
/// Digits of a commit's id, for SHA-1 and SHA-256.
const COMMIT_DIGITS: [usize; 2] = [40, 64];
/// The mirror's reference of the branch, which no branch of the source can collide with.
const BRANCH_REF: &str = "refs/muster/head";
/// The mirror's reference of an older commit that is read by its id.
const OLDER_REF: &str = "refs/muster/older";
/// The mode of folders: a deployment may contain secrets.
const PRIVATE_FOLDER: u32 = 0o700;
/// The depth in which commits of other publishers are searched.
const DEPTH_OF_HISTORY: &str = "--depth=256";
/// The depth of the mirror otherwise.
const DEPTH_OF_ONE: &str = "--depth=1";
const ASK: &str = "ask the repository for its branch (check --git-url; a private one needs --git-token-file)";
const FETCH: &str = "fetch the commit";
const MIRROR: &str = "create the mirror (is --data-dir writable?)";

/// A branch of a repository, and the mirror of it.
#[derive(Debug, Clone)]
pub struct Repository {
    git: Git,
    url: GitUrl,
    branch: Branch,
    mirror: PathBuf,
    remote_timeout: Duration,
    /// One run of git at a time works on the mirror.
    turn: Arc<Mutex<()>>,
}

impl Repository {
    /// The branch of the repository at `url`, mirrored below `data_dir`. Nothing is touched yet.
    pub fn new(url: GitUrl, branch: Branch, token_file: Option<PathBuf>, data_dir: &Path) -> Self {
        let name = Digest::of_bytes(url.for_git().as_bytes()).to_string();
        let mirror = data_dir.join(format!("mirror-{}.git", &name["sha256:".len()..][..16]));
        let git = Git::new(PathBuf::from("git"), &url, token_file);
        Self { git, url, branch, mirror, remote_timeout: REMOTE_TIMEOUT, turn: Arc::default() }
    }

    /// The same, with another time limit of one run of git that contacts the repository.
    #[must_use]
    pub(crate) fn with_remote_timeout(self, remote_timeout: Duration) -> Self {
        Self { remote_timeout, ..self }
    }

    /// The files of the branch's commit, or `None` if that is `known`.
    ///
    /// # Errors
    /// The commit could not be read. The next call starts from the beginning.
    pub async fn poll(&self, known: Option<&str>) -> Result<Option<Tree>, GitError> {
        self.git.check_token().await?;
        let head = self.head().await?;
        if known == Some(&head) {
            return Ok(None);
        }
        let branch = self.branch.reference();
        let _turn = self.turn.lock().await;
        let tree = match self.fetch_and_list(&branch, BRANCH_REF, &head).await {
            // The repository answers, but its files cannot be read: the mirror may be damaged, for example after a power
            // cut. A slow repository is not asked again.
            Err(error) if error.may_be_caused_by_the_mirror() => {
                tracing::info!(%error, "creating the mirror of the repository again");
                self.remove_mirror().await?;
                self.fetch_and_list(&branch, BRANCH_REF, &head).await
            }
            tree => tree,
        };
        tree.map(Some)
    }

    /// Fetches a branch or a commit into the mirror, like [`Self::fetch`], and returns its files.
    async fn fetch_and_list(&self, what: &str, name: &str, like: &str) -> Result<Tree, GitError> {
        let revision = self.fetch(what, name, like).await?;
        listing::tree(&self.git, &in_mirror(&self.mirror), &revision).await
    }

    /// The files of a commit that may no longer be on the branch. Some servers refuse commits that no branch points to.
    ///
    /// # Errors
    /// The commit could not be read.
    pub async fn commit(&self, revision: &str) -> Result<Tree, GitError> {
        if !COMMIT_DIGITS.contains(&revision.len())
            || !revision.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return Err(unexpected("name a commit", revision.as_bytes()));
        }
        self.git.check_token().await?;
        let _turn = self.turn.lock().await;
        self.fetch_and_list(revision, OLDER_REF, revision).await
    }

    /// The polled commit `newest` of the branch, and its nearest ancestors.
    ///
    /// # Errors
    /// They could not be read.
    pub async fn history(&self, newest: &str) -> Result<BTreeSet<String>, GitError> {
        Ok(self.revisions(&[newest]).await?.lines().map(str::to_owned).collect())
    }

    /// The polled commit `newest` of the branch and its first parents, the newest first, at most `max` in all.
    ///
    /// # Errors
    /// They could not be read.
    pub async fn first_parents(&self, newest: &str, max: usize) -> Result<Vec<String>, GitError> {
        let max = format!("--max-count={max}");
        Ok(self.revisions(&["--first-parent", &max, newest]).await?.lines().map(str::to_owned).collect())
    }

    /// The files of a commit that the mirror has already.
    ///
    /// # Errors
    /// They could not be read.
    pub async fn mirrored(&self, revision: &str) -> Result<Tree, GitError> {
        let _turn = self.turn.lock().await;
        listing::tree(&self.git, &in_mirror(&self.mirror), revision).await
    }

    /// Commits of the branch, as `git rev-list` gives them, one a line.
    async fn revisions(&self, args: &[&str]) -> Result<String, GitError> {
        self.git.check_token().await?;
        let _turn = self.turn.lock().await;
        self.fetch_into(&self.branch.reference(), BRANCH_REF, DEPTH_OF_HISTORY).await?;
        let mirror = in_mirror(&self.mirror);
        let args = [mirror.as_str(), "rev-list"].into_iter().chain(args.iter().copied()).chain(["--"]);
        let output = self.git.run(FETCH, LOCAL_LIMIT, args).await?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// The branch's commit.
    async fn head(&self) -> Result<String, GitError> {
        let reference = self.branch.reference();
        let output = self.remote(&["ls-remote", "--quiet", "--", &self.url.for_git(), &reference]).await?;
        match references(&output).find(|(_, name)| *name == reference) {
            Some((commit, _)) => Ok(commit.to_owned()),
            None => Err(self.no_branch().await),
        }
    }

    async fn no_branch(&self) -> GitError {
        match self.remote(&["ls-remote", "--quiet", "--", &self.url.for_git(), "refs/heads/*"]).await {
            Ok(output) => GitError::NoBranch {
                url: self.url.to_string(),
                branch: self.branch.as_str().to_owned(),
                others: references(&output)
                    .filter_map(|(_, name)| name.strip_prefix("refs/heads/"))
                    .take(OTHER_BRANCHES_MAX)
                    .map(str::to_owned)
                    .collect(),
            },
            Err(error) => error,
        }
    }

    async fn remote(&self, args: &[&str]) -> Result<String, GitError> {
        let output = self.git.run(ASK, self.remote_timeout, args).await?;
        String::from_utf8(output).map_err(|error| unexpected(ASK, error.as_bytes()))
    }

    /// Fetches a branch or a commit into the mirror, as the reference `name`; returns the commit. `like` is any commit of the
    /// source, which shows the hash that it uses.
    async fn fetch(&self, what: &str, name: &str, like: &str) -> Result<String, GitError> {
        let mirror = in_mirror(&self.mirror);
        if !self.mirror.join("HEAD").exists() {
            self.make_mirror(like).await?;
        }
        self.fetch_into(what, name, DEPTH_OF_ONE).await?;
        let commit = format!("{name}^{{commit}}");
        let output = self.git.run(FETCH, LOCAL_LIMIT, [&mirror, "rev-parse", "--verify", &commit]).await?;
        let revision = String::from_utf8_lossy(&output).trim().to_owned();
        if revision.is_empty() { Err(unexpected(FETCH, &output)) } else { Ok(revision) }
    }

    /// Fetches a branch or a commit into the existing mirror.
    async fn fetch_into(&self, what: &str, name: &str, depth: &str) -> Result<(), GitError> {
        let (url, refspec) = (self.url.for_git(), format!("+{what}:{name}"));
        let args = [
            &in_mirror(&self.mirror),
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            depth,
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
        // The mirror must use the source's hash.
        let format =
            if like.len() == COMMIT_DIGITS[1] { "--object-format=sha256" } else { "--object-format=sha1" };
        let path = self.mirror.display().to_string();
        let args = ["init", "--quiet", "--bare", "--template=", format, "--", &path];
        self.git.run(MIRROR, LOCAL_LIMIT, args).await?;
        // The folder around it may have existed before, with another mode.
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
fn references(output: &str) -> impl Iterator<Item = (&str, &str)> {
    output.lines().filter_map(|line| line.split_once('\t'))
}
