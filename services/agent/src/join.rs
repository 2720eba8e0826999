//! Enrolment through a folder: the device writes its public key there, and an operator leaves the JWT for it, also a
//! renewed one. The seed stays in the data directory; nothing in the folder is a secret.
//!
//! ```text
//! <folder>/<site>_<device>.key   the device's public key, written by the agent
//! <folder>/<site>_<device>.jwt   the JWT, written by `muster enroll`
//! ```
//!
//! This module does not decide who is enrolled. The first JWT for this device's key is accepted; afterwards only one
//! that renews the JWT in use ([`identity::renew`]), because others may write to the folder, and it may still hold
//! one that was renewed through the hub since. Each rejected JWT is logged once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_identity::TokenClaims;
use muster_service::error::chain;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::identity::{self, IdentityError};

/// Time between two reads of the folder.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The enrolment of a device through a folder.
#[derive(Debug, Clone)]
pub(crate) struct Enrolment {
    inner: Arc<Inner>,
    /// The JWT read last and the error logged last: neither is handled again.
    last_token: Option<String>,
    last_error: Option<String>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    data_dir: PathBuf,
    device: DeviceKey,
}

impl Enrolment {
    /// Enrolment through this folder. Reads and writes nothing yet.
    pub(crate) fn new(folder: PathBuf, data_dir: PathBuf, device: DeviceKey) -> Self {
        Self { inner: Arc::new(Inner { folder, data_dir, device }), last_token: None, last_error: None }
    }

    /// Makes the device's key if there is none, writes the public key to the folder, and waits until this device has
    /// a JWT. Returns at once if it has one already.
    ///
    /// # Errors
    /// The key cannot be made or written.
    pub(crate) async fn enrol(&mut self) -> Result<(), IdentityError> {
        let inner = Arc::clone(&self.inner);
        let asked = tokio::task::spawn_blocking(move || inner.write_key()).await;
        let cut_short = |error| identity::file_error("use", &self.inner.folder)(io::Error::other(error));
        asked.map_err(cut_short)??;
        if !identity::has_token(&self.inner.data_dir) {
            let file = self.inner.file("key");
            tracing::info!(file = %file.display(), "asked for enrolment; waiting for a JWT beside this file");
        }
        while !identity::has_token(&self.inner.data_dir) {
            self.read_folder().await;
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Reads the folder at every interval, until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(POLL_INTERVAL)).await.is_some() {
            self.read_folder().await;
        }
    }

    /// Reads the folder once, and stores a JWT that is not the last one.
    async fn read_folder(&mut self) {
        let (inner, seen) = (Arc::clone(&self.inner), self.last_token.clone());
        let looked = tokio::task::spawn_blocking(move || inner.read_token(seen.as_deref())).await;
        let file = self.inner.file("jwt");
        match looked {
            Ok(FolderRead { seen, outcome }) => {
                self.last_token = seen;
                match outcome {
                    Ok(None) => {}
                    Ok(Some(known)) => {
                        self.last_error = None;
                        tracing::info!(file = %file.display(), name = known.name, "stored a JWT from the folder");
                    }
                    Err(error) => self.refuse(&file, chain(&error)),
                }
            }
            Err(error) => tracing::error!(%error, "cannot read the JWT in the folder"),
        }
    }

    fn refuse(&mut self, file: &Path, error: String) {
        if self.last_error.as_ref() != Some(&error) {
            tracing::warn!(
                file = %file.display(), error,
                "rejected the JWT in the folder; to use it, run `muster-agent accept` with this file"
            );
            self.last_error = Some(error);
        }
    }
}

/// The result of reading the folder.
struct FolderRead {
    /// The JWT in the folder.
    seen: Option<String>,
    /// The claims of the stored JWT, if it is a new one.
    outcome: Result<Option<TokenClaims>, IdentityError>,
}

impl Inner {
    fn file(&self, kind: &str) -> PathBuf {
        // No identifier contains `_`, so two devices never share a file.
        self.folder.join(format!("{}_{}.{kind}", self.device.site, self.device.device))
    }

    fn read_token(&self, seen: Option<&str>) -> FolderRead {
        match identity::read_offered(&self.file("jwt")) {
            Ok(Some(token)) if seen != Some(token.as_str()) => {
                let outcome = self.store(&token);
                // A JWT that could not be stored is tried again.
                let done = !matches!(outcome, Err(IdentityError::File { .. }));
                FolderRead { seen: done.then_some(token), outcome }
            }
            // An unmounted folder, or one without a JWT for this device, changes nothing.
            Ok(token) => FolderRead { seen: token.or_else(|| seen.map(str::to_owned)), outcome: Ok(None) },
            Err(error) => FolderRead { seen: seen.map(str::to_owned), outcome: Err(error) },
        }
    }

    fn store(&self, token: &str) -> Result<Option<TokenClaims>, IdentityError> {
        if !identity::has_token(&self.data_dir) {
            return identity::store_token(&self.data_dir, token).map(Some);
        }
        match identity::renew(&self.data_dir, token) {
            // The JWT renewed through the hub is later than this one.
            Err(IdentityError::NotLater) => Ok(None),
            other => other,
        }
    }

    fn write_key(&self) -> Result<(), IdentityError> {
        let (key, file) = (identity::key(&self.data_dir)?, self.file("key"));
        if fs::read_to_string(&file).is_ok_and(|left| left.trim() == key) {
            return Ok(());
        }
        write_whole(&file, &key).map_err(identity::file_error("write", &file))
    }
}

/// Writes a file as a whole: a reader sees all of it or none.
fn write_whole(file: &Path, key: &str) -> io::Result<()> {
    let beside = file.with_extension("key.new");
    fs::write(&beside, format!("{key}\n")).and_then(|()| fs::rename(&beside, file))
}

#[cfg(test)]
mod tests {
    use muster_identity::{KeyPair, claims};

    use super::*;

    fn token(key: &str) -> String {
        let user = claims::User { account: "A", key, issued: 1, expires: None };
        claims::device(&KeyPair::new_account(), &user, &"harbour/crane-1".parse().unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_is_enrolled_by_a_jwt_for_its_own_key_and_asks_once() {
        let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = "harbour/crane-1".parse().unwrap();
        let mut enrolment = Enrolment::new(folder.path().to_owned(), data.path().to_owned(), key);
        let waiting = tokio::spawn({
            let mut enrolment = enrolment.clone();
            async move { enrolment.enrol().await }
        });
        let left = folder.path().join("harbour_crane-1.key");
        while !left.exists() {
            sleep(POLL_INTERVAL).await;
        }
        let public = fs::read_to_string(&left).unwrap();
        fs::write(folder.path().join("harbour_crane-1.jwt"), token(&KeyPair::new_user().public_key()))
            .unwrap();
        sleep(3 * POLL_INTERVAL).await;
        assert!(!waiting.is_finished(), "enrolled by a JWT for another key");
        fs::write(folder.path().join("harbour_crane-1.jwt"), token(public.trim())).unwrap();
        waiting.await.unwrap().unwrap();
        fs::remove_file(&left).unwrap();
        fs::remove_file(folder.path().join("harbour_crane-1.jwt")).unwrap();
        enrolment.enrol().await.unwrap();
    }

    /// A device with its key, a folder, and the signer of its JWTs.
    struct Fixture {
        data: tempfile::TempDir,
        folder: tempfile::TempDir,
        key: String,
        signer: KeyPair,
    }

    impl Fixture {
        fn new() -> Self {
            let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let key = identity::key(data.path()).unwrap();
            Self { data, folder, key, signer: KeyPair::new_account() }
        }

        fn token(&self, issued: u64, expires: u64) -> String {
            let user = claims::User { account: "A", key: &self.key, issued, expires: Some(expires) };
            claims::device(&self.signer, &user, &"harbour/crane-1".parse().unwrap()).unwrap()
        }

        fn offer(&self) -> PathBuf {
            self.folder.path().join("harbour_crane-1.jwt")
        }

        fn enrolment(&self) -> Enrolment {
            let device = "harbour/crane-1".parse().unwrap();
            Enrolment::new(self.folder.path().to_owned(), self.data.path().to_owned(), device)
        }

        fn kept(&self) -> String {
            let folder = identity::folder(self.data.path()).unwrap();
            fs::read_to_string(folder.join(muster_bus::creds::TOKEN_FILE))
                .unwrap_or_default()
                .trim()
                .to_owned()
        }
    }

    #[tokio::test]
    async fn a_restarted_agent_accepts_from_the_folder_only_renewals_of_its_jwt() {
        let fixture = Fixture::new();
        let (first, second, third) = (fixture.token(1, 10), fixture.token(2, 20), fixture.token(3, 30));
        fs::write(fixture.offer(), &first).unwrap();
        fixture.enrolment().read_folder().await;
        assert_eq!(fixture.kept(), first);
        assert!(identity::renew(fixture.data.path(), &second).unwrap().is_some(), "it came over the hub");
        let mut restarted = fixture.enrolment();
        restarted.read_folder().await;
        assert_eq!(fixture.kept(), second, "the folder still has the one before");
        let stranger = Fixture { signer: KeyPair::new_account(), ..Fixture::new() };
        let user = claims::User { account: "A", key: &fixture.key, issued: 5, expires: None };
        let own = claims::device(&stranger.signer, &user, &"harbour/crane-1".parse().unwrap()).unwrap();
        fs::write(fixture.offer(), own).unwrap();
        restarted.read_folder().await;
        assert_eq!(fixture.kept(), second, "another signer's JWT");
        fs::write(fixture.offer(), &third).unwrap();
        restarted.read_folder().await;
        assert_eq!(fixture.kept(), third);
    }

    #[tokio::test]
    async fn a_pipe_or_a_file_larger_than_a_jwt_is_not_read() {
        let fixture = Fixture::new();
        let offer = fixture.offer();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &offer, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut enrolment = fixture.enrolment();
        let looked = tokio::time::timeout(Duration::from_secs(5), enrolment.read_folder()).await;
        if looked.is_err() {
            // The thread that waits for a writer would delay the end of the test.
            drop(fs::File::options().read(true).write(true).open(&offer).unwrap());
        }
        assert!(looked.is_ok(), "it waits for a writer of the pipe");
        fs::remove_file(&offer).unwrap();
        let file = fs::File::create(&offer).unwrap();
        file.set_len(1 << 40).unwrap();
        enrolment.read_folder().await;
        assert_eq!(fixture.kept(), "");
        fs::write(&offer, fixture.token(1, 10)).unwrap();
        enrolment.read_folder().await;
        assert_eq!(fixture.kept(), fixture.token(1, 10));
    }
}
