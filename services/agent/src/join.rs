//! Joining a fleet by way of a folder: the device leaves its public key there, somebody who may let it in leaves the JWT
//! for it, also a renewed one. The seed stays in the data directory; nothing in the folder is a secret.
//!
//! ```text
//! <folder>/<site>_<device>.key   the device's public key, written by this
//! <folder>/<site>_<device>.jwt   what `muster enroll` wrote for it
//! ```
//!
//! Who is let in is decided elsewhere. A JWT for another key is refused and said, once for each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeviceKey;
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
    /// The JWT that was taken up last.
    taken: Option<String>,
    /// The JWT that was refused last.
    refused: Option<String>,
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
        Self { inner: Arc::new(Inner { folder, data_dir, device }), taken: None, refused: None }
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
        let file = self.inner.file("jwt");
        // A folder that is away for a moment, or has nothing for this device, is no news.
        let Ok(token) = tokio::fs::read_to_string(&file).await else { return };
        if [&self.taken, &self.refused].contains(&&Some(token.clone())) {
            return;
        }
        let (inner, path) = (Arc::clone(&self.inner), file.clone());
        let accepted = tokio::task::spawn_blocking(move || identity::accept(&inner.data_dir, &path)).await;
        match accepted {
            Ok(Ok(said)) => {
                tracing::info!(file = %file.display(), "{}", said.trim());
                self.taken = Some(token);
            }
            Ok(Err(error)) => {
                tracing::warn!(file = %file.display(), error = chain(&error), "a JWT that is not for this device");
                self.refused = Some(token);
            }
            Err(error) => tracing::error!(%error, "a JWT could not be looked at"),
        }
    }
}

impl Inner {
    fn file(&self, kind: &str) -> PathBuf {
        // `_` is in no identifier, so two devices never meet in one file.
        self.folder.join(format!("{}_{}.{kind}", self.device.site, self.device.device))
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
}
