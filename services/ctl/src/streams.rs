//! `muster streams`: compares the streams with the configuration of this release, and upgrades those of an older one.

use muster_bus::StreamShape;
use serde::Serialize;

use crate::config::StreamsCommand;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;

/// The streams, and whether they were upgraded.
#[derive(Debug, Serialize)]
pub struct StreamsAnswer {
    /// Whether streams that differed were changed.
    pub upgraded: bool,
    /// Every stream before an upgrade.
    pub streams: Vec<FoundStream>,
}

/// A stream before an upgrade.
#[derive(Debug, Serialize)]
pub struct FoundStream {
    /// Its name.
    pub name: String,
    /// Whether it exists.
    pub exists: bool,
    /// Its differences from this release.
    pub differences: Vec<FoundDifference>,
}

/// A setting in which a stream differed.
#[derive(Debug, Serialize)]
pub struct FoundDifference {
    /// The server's name of the setting.
    pub field: String,
    /// Its value, as JSON.
    pub found: String,
    /// This release's value, as JSON.
    pub wanted: String,
}

impl StreamsAnswer {
    /// Whether every existing stream now has the configuration of this release.
    fn is_current(&self) -> bool {
        self.upgraded || self.streams.iter().all(|stream| stream.differences.is_empty())
    }
}

impl From<StreamShape> for FoundStream {
    fn from(shape: StreamShape) -> Self {
        let differences = shape.differences.into_iter().map(|difference| FoundDifference {
            field: difference.field,
            found: difference.found,
            wanted: difference.wanted,
        });
        Self { name: shape.name, exists: shape.exists, differences: differences.collect() }
    }
}

/// Shows the streams, or upgrades them; returns whether they now have the configuration of this release.
///
/// # Errors
/// The server does not answer, or refuses a change.
pub(crate) async fn run(session: &mut Session<'_>, command: StreamsCommand) -> Result<bool, CtlError> {
    let bus = session.hub.bus();
    let (upgraded, shapes) = match command {
        StreamsCommand::Show => (false, bus.stream_shapes().await?),
        StreamsCommand::Upgrade => (true, bus.upgrade_streams().await?),
    };
    let streams = shapes.into_iter().map(FoundStream::from).collect();
    let answer = StreamsAnswer { upgraded, streams };
    session.show_own(&answer, |answer, _| render::streams::answer(answer))?;
    Ok(answer.is_current())
}
