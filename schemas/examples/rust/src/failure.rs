//! What goes wrong, in words: nobody but a person reads it.

use std::error::Error;

/// Whatever goes wrong ends the program with its words.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What was being done when something went wrong.
pub(crate) fn during<E: Error>(what: String) -> impl FnOnce(E) -> Box<dyn Error + Send + Sync> {
    move |error| format!("{what}: {error}").into()
}
