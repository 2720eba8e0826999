//! Errors for people: the chain of causes as one line. The code that handles an error prints it, once.
//!
//! Each module of a service has its own error type.

use std::error::Error;

/// An error of any kind, as tasks and start functions return it.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// The error and its causes, outermost first, separated by `": "`.
///
/// A cause is omitted if the line already ends with its text: some libraries print their cause in their own text.
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
