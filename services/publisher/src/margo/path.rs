//! The path of a field in a document, as steps from its root and as text.

use std::fmt;

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Into the field of a mapping.
    Key(String),
    /// Into the item of a list.
    Index(usize),
}

/// Steps from the root of a document: `spec.deploymentProfile.components[0].name`, or nothing for the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

impl Path {
    /// The steps.
    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The last step, if it is into a mapping.
    pub(super) fn last_key(&self) -> Option<&String> {
        match self.0.last() {
            Some(Step::Key(key)) => Some(key),
            Some(Step::Index(_)) | None => None,
        }
    }

    /// The path of the field `key` below this one.
    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    /// The path of the item `at` below this one.
    pub(super) fn index(&self, at: usize) -> Self {
        self.with(Step::Index(at))
    }

    /// The path `rest`, in the contract's notation, below this one.
    pub(super) fn below(&self, rest: &str) -> Self {
        let mut path = self.clone();
        for part in rest.split('.').filter(|part| !part.is_empty()) {
            let (key, indexes) = part.split_once('[').unwrap_or((part, ""));
            path.0.push(Step::Key(key.to_owned()));
            path.0.extend(indexes.split(['[', ']']).filter_map(|index| index.parse().ok()).map(Step::Index));
        }
        path
    }

    /// Adds a step in place.
    pub(super) fn enter(&mut self, step: Step) {
        self.0.push(step);
    }

    /// Removes the last step in place.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    fn with(&self, step: Step) -> Self {
        let mut path = self.clone();
        path.0.push(step);
        path
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
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
