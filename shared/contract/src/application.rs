//! Margo's ApplicationDescription (`margo.yaml`), of 1.0-rc.3 and of the drafts since 2024: what an application is, which
//! profiles it has, and which values its parameters may have.
//!
//! The drafts differ in `kind`, in the place of `id`, and in the names of profile types; all are read. Fields of vendors
//! (`x-…`) and everything in `metadata.catalog` but the organization are passed over. One read finds all violations.

mod check;
mod read;
mod rule;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::desired::{ProfileType, Target};

pub use self::rule::{DataType, ValueRule};

/// The names that the file may have.
pub const FILE_NAMES: [&str; 2] = ["margo.yaml", "margo.yml"];
/// The folder of a repository with descriptions, at any depth.
pub const CATALOGUE_FOLDER: &str = "applications";

/// A description.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationDescription {
    /// Its id, which deployments name as `applicationId`.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Who makes it.
    pub organizations: Vec<String>,
    /// The ways to deploy it.
    pub profiles: Vec<DescribedProfile>,
    /// Its parameters.
    pub parameters: BTreeMap<String, DescribedParameter>,
}

/// A way to deploy an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DescribedProfile {
    /// Its id, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub profile_type: ProfileType,
    /// The names of its components, in the order in which devices start them.
    pub components: Vec<String>,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DescribedParameter {
    /// Its value where a deployment gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Where it goes.
    pub targets: Vec<Target>,
    /// Its name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// True if it keeps the value with which it was deployed first.
    pub immutable: bool,
    /// The rule of its values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<ValueRule>,
}

/// Whether a path in a repository is that of a description in the catalogue.
pub fn is_catalogue_file(path: &str) -> bool {
    let Some((top, rest)) = path.split_once('/') else { return false };
    let name = rest.rsplit('/').next().unwrap_or_default();
    top == CATALOGUE_FOLDER && FILE_NAMES.contains(&name)
}
