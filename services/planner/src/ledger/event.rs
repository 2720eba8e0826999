//! The events of a reader of LEDGER.

use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::subjects::LedgerSubject;
use muster_domain::fold::Position;
use tokio::time::Instant;

/// A message of LEDGER with its fact, if it is readable.
pub type LedgerFact = (Position, Option<(LedgerSubject, Fact)>);

/// An event of a LEDGER reader.
#[derive(Debug)]
pub enum LedgerEvent {
    /// The reader has opened LEDGER.
    Opened {
        /// Creation time of the stream.
        created_at: Timestamp,
    },
    /// The next messages, in order.
    Facts(Vec<LedgerFact>),
    /// LEDGER holds no further message up to this sequence.
    Through(u64),
    /// LEDGER's end at a moment.
    End {
        /// Sequence of the last message.
        last_seq: u64,
        /// Time by the server's clock.
        at: Timestamp,
        /// Time of the question.
        asked_at: Instant,
    },
    /// The reader starts again at the first message.
    Restarted,
}
