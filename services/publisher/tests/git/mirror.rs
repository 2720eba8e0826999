//! The mirror of a repository that changes, moves, breaks or is missing.

use std::path::Path;

use muster_publisher::git::{GitError, Repository};
use muster_publisher::source::{Body, Tree};

use crate::repository::Source;

fn mirror_of(source: &str, branch: &str, data_dir: &Path) -> Repository {
    Repository::new(source.parse().unwrap(), branch.parse().unwrap(), None, data_dir)
}

fn paths(tree: &Tree) -> Vec<&str> {
    tree.files.iter().map(|file| file.path.as_str()).collect()
}

fn text<'a>(tree: &'a Tree, path: &str) -> &'a [u8] {
    match &tree.files.iter().find(|file| file.path == path).unwrap().body {
        Body::Text(text) => text,
        other => panic!("{path} is {other:?}"),
    }
}

#[tokio::test]
async fn a_commit_is_read_once_and_then_only_when_it_changes() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/a.yaml", "one");
    source.write("sites/x/y/.gitkeep", "");
    source.write("README.md", "not read");
    let first = source.commit();
    let repository = mirror_of(source.path(), "main", data.path());
    let tree = repository.poll(None).await.unwrap().unwrap();
    assert_eq!(tree.revision, first);
    assert_eq!(paths(&tree), ["README.md", "fleet/a.yaml", "sites/x/y/.gitkeep"]);
    assert_eq!(text(&tree, "fleet/a.yaml"), b"one");
    assert_eq!(repository.poll(Some(&first)).await.unwrap(), None);

    source.write("fleet/a.yaml", "two");
    source.remove("sites");
    let second = source.commit();
    let tree = repository.poll(Some(&first)).await.unwrap().unwrap();
    assert_eq!((tree.revision.as_str(), text(&tree, "fleet/a.yaml")), (second.as_str(), &b"two"[..]));
    assert_eq!(paths(&tree), ["README.md", "fleet/a.yaml"]);
}

#[tokio::test]
async fn a_mirror_is_readable_only_by_its_owner_in_an_open_folder() {
    use std::os::unix::fs::PermissionsExt as _;
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    source.write("fleet/a.yaml", "one");
    source.commit();
    mirror_of(source.path(), "main", data.path()).poll(None).await.unwrap().unwrap();
    let made = std::fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap());
    let modes: Vec<_> = made.map(|entry| entry.metadata().unwrap().permissions().mode() & 0o777).collect();
    assert!(!modes.is_empty() && modes.iter().all(|mode| *mode == 0o700), "{modes:?}");
}

#[tokio::test]
async fn a_branch_pushed_by_force_is_followed() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/a.yaml", "one");
    let first = source.commit();
    source.write("fleet/a.yaml", "two");
    let second = source.commit();
    let repository = mirror_of(source.path(), "main", data.path());
    assert_eq!(repository.poll(None).await.unwrap().unwrap().revision, second);
    source.git(&["reset", "--quiet", "--hard", &first]);
    assert_eq!(repository.poll(Some(&second)).await.unwrap().unwrap().revision, first);
    source.write("fleet/b.yaml", "another history");
    source.git(&["checkout", "--quiet", "--orphan", "fresh"]);
    let orphan = source.commit();
    source.git(&["branch", "--quiet", "--force", "main", &orphan]);
    let tree = repository.poll(Some(&first)).await.unwrap().unwrap();
    assert_eq!((tree.revision.as_str(), paths(&tree).len()), (orphan.as_str(), 2));
}

#[tokio::test]
async fn links_submodules_and_large_files_are_told_apart() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/big.yaml", &"x".repeat(2 * 1024 * 1024));
    std::os::unix::fs::symlink("big.yaml", source.root().join("fleet/link.yaml")).unwrap();
    source.write("sites/ü/a b.yaml", "odd names");
    source.commit();
    let tree = mirror_of(source.path(), "main", data.path()).poll(None).await.unwrap().unwrap();
    let body = |path: &str| tree.files.iter().find(|file| file.path == path).map(|file| file.body.clone());
    assert_eq!(body("fleet/big.yaml"), Some(Body::TooLong(2 * 1024 * 1024)));
    assert_eq!(body("fleet/link.yaml"), Some(Body::Link));
    assert_eq!(text(&tree, "sites/ü/a b.yaml"), b"odd names");
}

#[tokio::test]
async fn a_mirror_that_is_lost_broken_or_locked_is_cloned_again() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/a.yaml", "one");
    source.commit();
    let repository = mirror_of(source.path(), "main", data.path());
    repository.poll(None).await.unwrap().unwrap();
    let mirror = std::fs::read_dir(data.path()).unwrap().next().unwrap().unwrap().path();
    let spoil: [&dyn Fn(); 4] = [
        &|| std::fs::remove_dir_all(&mirror).unwrap(),
        &|| std::fs::write(mirror.join("HEAD"), "what").unwrap(),
        &|| std::fs::write(mirror.join("shallow.lock"), "").unwrap(),
        &|| std::fs::remove_dir_all(mirror.join("objects")).unwrap(),
    ];
    for (at, spoil) in spoil.iter().enumerate() {
        spoil();
        // Something new, so that nothing can be answered from what is there.
        source.write("fleet/a.yaml", &format!("after {at}"));
        let head = source.commit();
        let tree = repository.poll(None).await.unwrap().unwrap();
        assert_eq!(tree.revision, head, "after spoiling {at}");
    }
}

#[tokio::test]
async fn what_is_missing_is_named_with_what_to_do() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    let nothing = data.path().join("nothing-here");
    let lost = mirror_of(nothing.to_str().unwrap(), "main", data.path()).poll(None).await.unwrap_err();
    assert!(matches!(lost, GitError::Failed { .. }), "{lost}");
    let lost = lost.to_string();
    assert!(lost.contains("--git-url") && lost.contains("nothing-here"), "{lost}");

    let empty = mirror_of(source.path(), "main", data.path()).poll(None).await.unwrap_err().to_string();
    assert!(empty.contains("no branch 'main'") && empty.contains("nor any other"), "{empty}");

    source.write("fleet/a.yaml", "one");
    source.commit();
    source.git(&["branch", "--quiet", "other"]);
    let branch = mirror_of(source.path(), "live", data.path()).poll(None).await.unwrap_err().to_string();
    assert!(branch.contains("'live'") && branch.contains("it has main, other"), "{branch}");
    assert!(branch.contains("--git-branch"), "{branch}");

    let blocked = data.path().join("a-file");
    std::fs::write(&blocked, "").unwrap();
    let unwritable = mirror_of(source.path(), "main", &blocked).poll(None).await.unwrap_err().to_string();
    assert!(unwritable.contains("--data-dir"), "{unwritable}");
}

#[tokio::test]
async fn a_repository_that_comes_back_is_read_again() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/a.yaml", "one");
    let head = source.commit();
    let repository = mirror_of(source.path(), "main", data.path());
    let away = source.root().with_extension("away");
    std::fs::rename(source.root(), &away).unwrap();
    assert!(repository.poll(None).await.is_err());
    std::fs::rename(&away, source.root()).unwrap();
    assert_eq!(repository.poll(None).await.unwrap().unwrap().revision, head);
}

#[tokio::test]
async fn an_older_commit_is_read_by_its_id() {
    let (source, data) = (Source::new(), tempfile::tempdir().unwrap());
    source.write("fleet/a.yaml", "one");
    let first = source.commit();
    source.write("fleet/a.yaml", "two");
    source.commit();
    let repository = mirror_of(source.path(), "main", data.path());
    repository.poll(None).await.unwrap().unwrap();
    assert_eq!(text(&repository.commit(&first).await.unwrap(), "fleet/a.yaml"), b"one");
    assert!(repository.commit(&"0".repeat(40)).await.is_err());
    for bad in ["main", "", "--upload-pack=x", "HEAD~1"] {
        assert!(matches!(repository.commit(bad).await, Err(GitError::Unexpected { .. })), "{bad}");
    }
}
