//! Reads LEDGER message by message after one sequence up to another, and no further. Messages that arrive with
//! the last one are kept for the next read.

use std::collections::VecDeque;

use muster_bus::{Bus, Delivery, ReadError, Replay, Start};
use muster_contract::checked::Checked;
use muster_contract::fact::Fact;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::fold::Position;

/// Messages read at once: few enough that their parsed facts stay in the processor's cache until they are
/// folded.
pub const BATCH_MAX: usize = 128;

/// A message of LEDGER: its sequence, and its fact if it is readable.
pub type Read = (Position, Option<(LedgerSubject, Fact)>);

/// A reader of LEDGER.
#[derive(Debug)]
pub struct Tail {
    replay: Replay,
    ahead: VecDeque<Delivery>,
    checked: Checked,
    read_to: u64,
}

impl Tail {
    /// A reader that begins after a sequence; with the first message held where that is 0.
    ///
    /// # Errors
    /// LEDGER cannot be read, or no longer holds what follows.
    pub async fn after(bus: &Bus, ledger_seq: u64) -> Result<Self, ReadError> {
        let start = if ledger_seq == 0 { Start::First } else { Start::After(ledger_seq) };
        let replay = bus.replay(stream::LEDGER, &[], start).await?;
        let (ahead, checked) = (VecDeque::new(), Checked::default());
        Ok(Self { replay, ahead, checked, read_to: ledger_seq })
    }

    /// The next messages up to a sequence, in order; none when it is reached. LEDGER must hold a message there
    /// or beyond, or the wait has no end.
    ///
    /// # Errors
    /// LEDGER can no longer be read without a hole.
    pub async fn next(&mut self, up_to: u64) -> Result<Vec<Read>, ReadError> {
        if self.read_to >= up_to {
            return Ok(Vec::new());
        }
        if self.ahead.is_empty() {
            self.ahead.extend(self.replay.next_batch(BATCH_MAX).await?);
        }
        let wanted = self.ahead.iter().take_while(|message| message.stream_seq <= up_to).count();
        let read: Vec<Read> = {
            let checked = &mut self.checked;
            self.ahead.drain(..wanted).map(|message| read(&message, checked)).collect()
        };
        // A message beyond the end shows that nothing more comes before it.
        self.read_to = match (read.last(), self.ahead.is_empty()) {
            (_, false) => up_to,
            (Some((at, _)), true) => at.ledger_seq,
            (None, true) => self.read_to,
        };
        Ok(read)
    }
}

fn read(message: &Delivery, checked: &mut Checked) -> Read {
    let at = Position { ledger_seq: message.stream_seq, stored_at: message.stored_at };
    (at, fact(message, checked).ok())
}

/// Parses the fact of a message.
///
/// # Errors
/// The reason why it is unreadable.
pub fn fact(message: &Delivery, checked: &mut Checked) -> Result<(LedgerSubject, Fact), String> {
    Fact::of_message(&message.subject, &message.payload, checked)
}
