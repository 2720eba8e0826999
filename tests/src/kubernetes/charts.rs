//! Charts for tests, as folders of files, and a scripted `helm` for the scripted API server.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The scripted `helm`.
const HELM: &str = include_str!("helm_double.py");

/// Writes a chart; `templates` are its templates by name. Returns its URL for `packageLocation`.
///
/// # Panics
/// It cannot be written.
pub fn write_chart(folder: &Path, version: &str, templates: &[(&str, &str)]) -> String {
    fs::create_dir_all(folder.join("templates")).unwrap();
    fs::write(folder.join("Chart.yaml"), format!("apiVersion: v2\nname: web\nversion: {version}\n")).unwrap();
    for (name, text) in templates {
        fs::write(folder.join("templates").join(name), text).unwrap();
    }
    format!("file://{}", folder.display())
}

/// Writes the scripted `helm`.
///
/// # Panics
/// It cannot be written.
pub fn write_helm(folder: &Path) -> PathBuf {
    let path = folder.join("helm");
    fs::write(&path, HELM).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A Deployment; `{{ .Values.replicas }}` and the like are the chart's values.
pub fn deployment(name: &str, replicas: &str, image: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\nspec:\n  replicas: {replicas}\n  \
         progressDeadlineSeconds: 600\n  selector:\n    matchLabels: {{app: {name}}}\n  template:\n    metadata:\n      \
         labels: {{app: {name}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n        \
         - {{name: http, image: {image}}}\n"
    )
}

/// A ConfigMap.
pub fn config_map(name: &str, key: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  {key}: \"{value}\"\n")
}
