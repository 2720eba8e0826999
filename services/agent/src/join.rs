//! Joining a fleet by way of a folder: the device leaves its public key there, somebody who may let it in leaves the JWT
//! for it, also a renewed one. The seed stays in the data directory; nothing in the folder is a secret.
//!
//! ```text
//! <folder>/<site>_<device>.key   the device's public key, written by this
//! <folder>/<site>_<device>.jwt   what `muster enroll` wrote for it
//! ```
//!
//! Who is let in is decided elsewhere. The first JWT for this device's key is taken; in the place of one in use only what
//! renews it ([`identity::renew`]): the folder may be open to others, and may still have what was renewed over the hub
//! since. What is refused is said, once for each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_identity::Known;
use muster_service::error::chain;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::identity::{self, IdentityError};

/// Time between two looks for a JWT.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A way into a fleet.
#[derive(Debug, Clone)]
pub struct Joining {
    inner: Arc<Inner>,
    /// The JWT that was looked at last, and what was said of the last refusal: neither is news again.
    seen: Option<String>,
    said: Option<String>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    data_dir: PathBuf,
    device: DeviceKey,
}

impl Joining {
    /// Through this folder. Touches nothing yet.
    pub fn new(folder: PathBuf, data_dir: PathBuf, device: DeviceKey) -> Self {
        Self { inner: Arc::new(Inner { folder, data_dir, device }), seen: None, said: None }
    }

    /// Makes the device's key if it has none, leaves the public one in the folder, and waits until this device has a
    /// JWT. Done at once where it has one from before.
    ///
    /// # Errors
    /// The key cannot be made or left.
    pub async fn wait(&mut self) -> Result<(), IdentityError> {
        let inner = Arc::clone(&self.inner);
        let asked = tokio::task::spawn_blocking(move || inner.ask()).await;
        let cut_short = |error| identity::failed("use", &self.inner.folder)(io::Error::other(error));
        asked.map_err(cut_short)??;
        if !identity::is_let_in(&self.inner.data_dir) {
            let file = self.inner.file("key");
            tracing::info!(file = %file.display(), "asks to be let in; waiting for a JWT beside this file");
        }
        while !identity::is_let_in(&self.inner.data_dir) {
            self.look().await;
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Takes up what is left for this device, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(LOOK_EVERY)).await.is_some() {
            self.look().await;
        }
    }

    /// Takes a JWT up that is another than the last one.
    async fn look(&mut self) {
        let (inner, seen) = (Arc::clone(&self.inner), self.seen.clone());
        let looked = tokio::task::spawn_blocking(move || inner.take_up(seen.as_deref())).await;
        let file = self.inner.file("jwt");
        match looked {
            Ok(Look { seen, outcome }) => {
                self.seen = seen;
                match outcome {
                    Ok(None) => {}
                    Ok(Some(known)) => {
                        self.said = None;
                        tracing::info!(file = %file.display(), name = known.name, "a JWT was taken up");
                    }
                    Err(error) => self.refuse(&file, chain(&error)),
                }
            }
            Err(error) => tracing::error!(%error, "a JWT could not be looked at"),
        }
    }

    fn refuse(&mut self, file: &Path, error: String) {
        if self.said.as_ref() != Some(&error) {
            tracing::warn!(
                file = %file.display(), error,
                "what was left for this device is not taken; where it is to be, run `muster-agent accept` with it"
            );
            self.said = Some(error);
        }
    }
}

/// What came of a look into the folder.
struct Look {
    /// The JWT that was there.
    seen: Option<String>,
    /// What was taken up, if it was news.
    outcome: Result<Option<Known>, IdentityError>,
}

impl Inner {
    fn file(&self, kind: &str) -> PathBuf {
        // `_` is in no identifier, so two devices never meet in one file.
        self.folder.join(format!("{}_{}.{kind}", self.device.site, self.device.device))
    }

    fn take_up(&self, seen: Option<&str>) -> Look {
        match identity::offered(&self.file("jwt")) {
            Ok(Some(token)) if seen != Some(token.as_str()) => {
                let outcome = self.judge(&token);
                // What could not be kept is tried again.
                let done = !matches!(outcome, Err(IdentityError::File { .. }));
                Look { seen: done.then_some(token), outcome }
            }
            // A folder that is away for a moment, or has nothing for this device, is no news.
            Ok(token) => Look { seen: token.or_else(|| seen.map(str::to_owned)), outcome: Ok(None) },
            Err(error) => Look { seen: seen.map(str::to_owned), outcome: Err(error) },
        }
    }

    fn judge(&self, token: &str) -> Result<Option<Known>, IdentityError> {
        if !identity::is_let_in(&self.data_dir) {
            return identity::take(&self.data_dir, token).map(Some);
        }
        match identity::renew(&self.data_dir, token) {
            // What was renewed over the hub since is later than what was left here.
            Err(IdentityError::NotLater) => Ok(None),
            other => other,
        }
    }

    fn ask(&self) -> Result<(), IdentityError> {
        let (key, file) = (identity::key(&self.data_dir)?, self.file("key"));
        if fs::read_to_string(&file).is_ok_and(|left| left.trim() == key) {
            return Ok(());
        }
        leave(&file, &key).map_err(identity::failed("write", &file))
    }
}

/// Writes a file as a whole: whoever reads it sees all of it.
fn leave(file: &Path, key: &str) -> io::Result<()> {
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
    async fn a_device_asks_is_let_in_by_a_jwt_for_its_own_key_and_does_not_ask_again() {
        let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = "harbour/crane-1".parse().unwrap();
        let mut joining = Joining::new(folder.path().to_owned(), data.path().to_owned(), key);
        let waiting = tokio::spawn({
            let mut joining = joining.clone();
            async move { joining.wait().await }
        });
        let left = folder.path().join("harbour_crane-1.key");
        while !left.exists() {
            sleep(LOOK_EVERY).await;
        }
        let public = fs::read_to_string(&left).unwrap();
        fs::write(folder.path().join("harbour_crane-1.jwt"), token(&KeyPair::new_user().public_key()))
            .unwrap();
        sleep(3 * LOOK_EVERY).await;
        assert!(!waiting.is_finished(), "let in by a JWT for another key");
        fs::write(folder.path().join("harbour_crane-1.jwt"), token(public.trim())).unwrap();
        waiting.await.unwrap().unwrap();
        fs::remove_file(&left).unwrap();
        fs::remove_file(folder.path().join("harbour_crane-1.jwt")).unwrap();
        joining.wait().await.unwrap();
    }
    /// A device with its key, in a folder, and what was issued for it when and until when by a signer.
    struct Scene {
        data: tempfile::TempDir,
        folder: tempfile::TempDir,
        key: String,
        signer: KeyPair,
    }

    impl Scene {
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

        fn joining(&self) -> Joining {
            let device = "harbour/crane-1".parse().unwrap();
            Joining::new(self.folder.path().to_owned(), self.data.path().to_owned(), device)
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
    async fn a_restarted_agent_takes_from_the_folder_only_what_renews_the_jwt_it_has() {
        let scene = Scene::new();
        let (first, second, third) = (scene.token(1, 10), scene.token(2, 20), scene.token(3, 30));
        fs::write(scene.offer(), &first).unwrap();
        scene.joining().look().await;
        assert_eq!(scene.kept(), first);
        assert!(identity::renew(scene.data.path(), &second).unwrap().is_some(), "it came over the hub");
        let mut restarted = scene.joining();
        restarted.look().await;
        assert_eq!(scene.kept(), second, "the folder still has the one before");
        let stranger = Scene { signer: KeyPair::new_account(), ..Scene::new() };
        let user = claims::User { account: "A", key: &scene.key, issued: 5, expires: None };
        let own = claims::device(&stranger.signer, &user, &"harbour/crane-1".parse().unwrap()).unwrap();
        fs::write(scene.offer(), own).unwrap();
        restarted.look().await;
        assert_eq!(scene.kept(), second, "whoever may write to the folder signed it");
        fs::write(scene.offer(), &third).unwrap();
        restarted.look().await;
        assert_eq!(scene.kept(), third);
    }

    #[tokio::test]
    async fn what_is_no_file_of_a_jwts_size_is_not_read() {
        let scene = Scene::new();
        let offer = scene.offer();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &offer, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut joining = scene.joining();
        let looked = tokio::time::timeout(Duration::from_secs(5), joining.look()).await;
        if looked.is_err() {
            // The thread that waits for a writer would hold up the end of the test.
            drop(fs::File::options().read(true).write(true).open(&offer).unwrap());
        }
        assert!(looked.is_ok(), "it waits for somebody to write into a pipe");
        fs::remove_file(&offer).unwrap();
        let file = fs::File::create(&offer).unwrap();
        file.set_len(1 << 40).unwrap();
        joining.look().await;
        assert_eq!(scene.kept(), "");
        fs::write(&offer, scene.token(1, 10)).unwrap();
        joining.look().await;
        assert_eq!(scene.kept(), scene.token(1, 10));
    }
}
