//! The path of a field in a document, as steps from its root and as text.

use std::fmt;

use muster_contract::field_path::{PathStep, steps};

/// Steps from the root of a document: `spec.deploymentProfile.components[0].name`, or nothing for the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<PathStep>);

impl Path {
    /// The steps.
    pub(super) fn steps(&self) -> &[PathStep] {
        &self.0
    }

    /// The last step, if it is into a mapping.
    pub(super) fn last_key(&self) -> Option<&String> {
        match self.0.last() {
            Some(PathStep::Key(key)) => Some(key),
            Some(PathStep::Index(_)) | None => None,
        }
    }

    /// The path of the field `key` below this one.
    pub(super) fn key(&self, key: &str) -> Self {
        self.with(PathStep::Key(key.to_owned()))
    }

    /// The path of the item `at` below this one.
    pub(super) fn index(&self, at: usize) -> Self {
        self.with(PathStep::Index(at))
    }

    /// The path `rest`, in the contract's notation, below this one.
    pub(super) fn below(&self, rest: &str) -> Self {
        let mut path = self.clone();
        path.0.extend(steps(rest));
        path
    }

    /// Adds a step in place.
    pub(super) fn enter(&mut self, step: PathStep) {
        self.0.push(step);
    }

    /// Removes the last step in place.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    fn with(&self, step: PathStep) -> Self {
        let mut path = self.clone();
        path.0.push(step);
        path
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Key(key) if at == 0 => f.write_str(key)?,
                PathStep::Key(key) => write!(f, ".{key}")?,
                PathStep::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_contract_are_read_as_they_are_written() {
        for text in ["properties.command", "targets[0].components", "properties.args[2]"] {
            assert_eq!(Path::default().below(text).to_string(), text);
        }
        assert_eq!(Path::default().to_string(), "");
        assert_eq!(Path::default().key("spec").below("properties..").to_string(), "spec.properties");
    }
}
