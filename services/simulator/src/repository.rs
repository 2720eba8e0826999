//! The fleet's Git repository: a real one, with a folder for every device and deployments on each level.
//!
//! It writes Margo documents and commits them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::DeviceKey;

use crate::environment;
use crate::error::Error;

/// The deployment whose releases go out in waves.
pub(crate) const TELEMETRY: &str = "telemetry";

/// The branch that is published.
pub const BRANCH: &str = "main";

/// The folders that are published.
const PUBLISHED: [&str; 2] = ["fleet", "sites"];

/// A Git repository on this machine.
#[derive(Debug)]
pub struct Repository {
    dir: PathBuf,
}

impl Repository {
    /// Makes an empty repository.
    ///
    /// # Errors
    /// Git or the disk refuses.
    pub async fn create(dir: PathBuf) -> Result<Self, Error> {
        std::fs::create_dir_all(&dir).map_err(|source| Error::Prepare { path: dir.clone(), source })?;
        let repository = Self { dir };
        repository.git(&["init", "--quiet", "--initial-branch", BRANCH]).await?;
        Ok(repository)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file, with its folders.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&self, path: &str, text: &str) -> Result<(), Error> {
        let path = self.dir.join(path);
        let written =
            path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| Error::Prepare { path, source })
    }

    /// Makes the folders that are published hold these files and no others.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn replace(&self, files: &BTreeMap<String, String>) -> Result<(), Error> {
        for folder in PUBLISHED {
            let path = self.dir.join(folder);
            match std::fs::remove_dir_all(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Prepare { path, source });
                }
                _ => {}
            }
        }
        files.iter().try_for_each(|(path, text)| self.write(path, text))
    }

    /// Commits everything, also if nothing changed.
    ///
    /// # Errors
    /// Git refuses.
    pub async fn commit(&self, message: &str) -> Result<(), Error> {
        self.git(&["add", "--all"]).await?;
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]).await.map(drop)
    }

    /// Makes a bare one of it: what git keeps is the repository, and the files beside it are of no meaning.
    ///
    /// # Errors
    /// Git refuses.
    pub(crate) async fn make_bare(&self) -> Result<(), Error> {
        self.git(&["config", "core.bare", "true"]).await.map(drop)
    }

    /// The newest commit.
    ///
    /// # Errors
    /// There is none.
    pub async fn head(&self) -> Result<String, Error> {
        self.git(&["rev-parse", "HEAD"]).await
    }

    async fn git(&self, args: &[&str]) -> Result<String, Error> {
        let failed = |output: String| Error::Git { args: args.join(" "), output };
        let output = environment::command("git")
            .args([
                "-c",
                "user.name=Muster demo",
                "-c",
                "user.email=demo@localhost",
                "-c",
                "commit.gpgsign=false",
            ])
            .args(args)
            .current_dir(&self.dir)
            .output()
            .await
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// A folder for each device, by which it exists.
///
/// # Errors
/// The disk refuses.
pub fn write_devices(repository: &Repository, devices: &[DeviceKey]) -> Result<(), Error> {
    devices
        .iter()
        .try_for_each(|key| repository.write(&format!("sites/{}/{}/.gitkeep", key.site, key.device), ""))
}

/// The deployments of the demo's fleet at a release: two of every device, and one more at each site.
///
/// # Errors
/// The disk refuses.
pub fn write_release(repository: &Repository, sites: &[String], release: u32) -> Result<(), Error> {
    repository.write("fleet/telemetry.yaml", &telemetry(release, COLD))?;
    repository.write("fleet/gateway.yaml", GATEWAY)?;
    sites
        .iter()
        .try_for_each(|site| repository.write(&format!("sites/{site}/line.yaml"), &line(site, release)))
}

/// A release that nothing may come of: a parameter is aimed at a component that does not exist.
///
/// # Errors
/// The disk refuses.
pub(crate) fn write_bad_release(repository: &Repository, release: u32) -> Result<(), Error> {
    repository.write(
        "fleet/telemetry.yaml",
        &telemetry(release, COLD).replace("components: [collector]", "components: [colector]"),
    )
}

/// A release of one deployment that goes out in waves: it starts at its first attempt.
///
/// # Errors
/// The disk refuses.
pub(crate) fn write_steady_release(repository: &Repository, release: u32) -> Result<(), Error> {
    repository.write("fleet/telemetry.yaml", &telemetry(release, STEADY))
}

/// The same, but it cannot start on any device.
///
/// # Errors
/// The disk refuses.
pub(crate) fn write_failing_release(repository: &Repository, release: u32) -> Result<(), Error> {
    repository.write("fleet/telemetry.yaml", &telemetry(release, FAILING))
}

/// The waves in which changes are released from the next commit on: one device, a quarter of the devices, then the others.
/// A wave that fails rolls the change back.
/// A device may be behind a broken link at any moment, so the last wave is done without all of them.
///
/// # Errors
/// The disk refuses.
pub(crate) fn write_rollout(
    repository: &Repository,
    canary: &DeviceKey,
    soak: Duration,
) -> Result<(), Error> {
    let soak = format!("{}s", soak.as_secs());
    let text = format!(
        "# Every change goes to one device first, then to a quarter of the devices, then to the others.\n\
         apiVersion: muster/v1\n\
         kind: Rollout\n\
         waves:\n\
         \x20 - {{name: canary, devices: [{canary}], soak: {soak}}}\n\
         \x20 - {{name: quarter, percent: 25%, soak: {soak}}}\n\
         \x20 - {{name: all, percent: 100%, success: {{atLeast: 75%}}}}\n\
         onFailure: rollback\n"
    );
    repository.write("fleet/rollout.yaml", &text)
}

/// The collector's script: its first start on each new release fails, so that there is something to see.
const COLD: &str = "if [ -e seen-$RELEASE ]; then exec sleep 86400; fi; touch seen-$RELEASE; echo release $RELEASE: cold cache >&2; exit 3";
/// The collector's script: it starts.
const STEADY: &str = "exec sleep 86400";
/// The collector's script: it never starts.
const FAILING: &str = "echo release $RELEASE: no such sensor >&2; exit 4";

/// Two components in order.
fn telemetry(release: u32, collector: &str) -> String {
    format!(
        r#"# Two components, the second after the first is ready.
id: telemetry
metadata: {{name: telemetry}}
spec:
  applicationId: com-example-telemetry
  deploymentProfile:
    type: process
    components:
      - name: migrate
        properties:
          command: sh
          args: ["-c", "sleep 0.3"]
          readiness: {{type: exit}}
      - name: collector
        properties:
          command: sh
          args: ["-c", "{collector}"]
          readiness: {{type: uptime, for: 500ms}}
          timeout: 0m20s
  parameters:
    release:
      value: "{release}"
      targets:
        - {{pointer: RELEASE, components: [collector]}}
"#
    )
}

const GATEWAY: &str = r#"# In the form of the 2024 draft, as older tools write it.
apiVersion: application.margo.org/v1alpha1
kind: ApplicationDeployment
metadata:
  annotations: {id: 6f0b2a52-6c0e-4a4b-9a57-5c1d8f1e2a10, applicationId: com-example-gateway}
  name: gateway
  namespace: margo-apps
spec:
  deploymentProfile:
    type: process
    components:
      - name: gateway
        properties:
          command: sleep
          args: ["86400"]
          wait: "true"
"#;

fn line(site: &str, release: u32) -> String {
    format!(
        r#"id: line-{site}
metadata: {{name: line-{site}}}
spec:
  applicationId: com-example-line
  deploymentProfile:
    type: process
    components:
      - name: controller
        properties:
          command: sh
          args: ["-c", "touch ready; exec sleep 86400"]
          readiness: {{type: file, path: ready}}
  parameters:
    speed:
      value: {speed}
      targets:
        - {{pointer: LINE_SPEED, components: [controller]}}
"#,
        speed = 100 + release
    )
}
