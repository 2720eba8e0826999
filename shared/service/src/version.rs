//! The version and Git commit of this program for `--version`, from `build.rs`.

/// Version and commit, as in `0.1.0 (commit 1a2b3c4d5e6f)`; `commit unknown` if it was built without Git.
pub const VERSION: &str = env!("MUSTER_VERSION");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_a_commit() {
        assert!(VERSION.starts_with(env!("CARGO_PKG_VERSION")) && VERSION.contains("commit "), "{VERSION}");
    }
}
