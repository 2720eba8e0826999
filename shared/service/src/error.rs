//! Errors for people: the chain of causes as one line, printed once, by whoever handles the error.
//!
//! No error type of a service lives here; each module has its own.

use std::error::Error;

/// An error of any kind, as tasks and starts hand it to the process.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// The error and its causes, outermost first, separated by `": "`.
///
/// A cause whose text the line already ends with is left out: some libraries print their cause inside their own text.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Layer {
        #[error("cannot open the outbox")]
        Open(#[source] Box<Layer>),
        #[error("disk: {0}")]
        Disk(#[source] std::io::Error),
        #[error("permission denied")]
        Denied,
    }

    #[test]
    fn a_chain_names_every_cause_once() {
        assert_eq!(chain(&Layer::Denied), "permission denied");
        let nested = Layer::Open(Box::new(Layer::Denied));
        assert_eq!(chain(&nested), "cannot open the outbox: permission denied");
        let repeating = Layer::Disk(std::io::Error::other("full"));
        assert_eq!(chain(&repeating), "disk: full");
    }
}
