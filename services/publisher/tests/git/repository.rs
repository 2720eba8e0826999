//! A real Git repository for a test, in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A repository with a work tree, on the branch `main`, removed with this value.
pub(crate) struct Source {
    root: PathBuf,
    _home: tempfile::TempDir,
}

impl Source {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("source");
        std::fs::create_dir(&root).unwrap();
        let source = Self { root, _home: home };
        source.git(&["init", "--quiet", "--initial-branch=main"]);
        source
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where it is, as a setting.
    pub(crate) fn path(&self) -> &str {
        self.root.to_str().unwrap()
    }

    /// Writes a file of the work tree.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Removes a folder of the work tree.
    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_dir_all(self.root.join(path)).unwrap();
    }

    /// Commits the work tree as it is; gives the commit's id.
    pub(crate) fn commit(&self) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", "test"]);
        self.git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    /// Runs git in the work tree.
    pub(crate) fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .current_dir(&self.root)
            .args(["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgSign=false"])
            .args(args)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}
