//! The bytes in flight in one direction of one connection: pieces in order, each with the instant at which it arrives.
//! Bounded and pure; instants are arguments.

use std::collections::VecDeque;

use tokio::time::Instant;

/// The most bytes in flight; further ones wait at the sender. With a long latency this also bounds the rate, as a
/// TCP window does.
pub(super) const LINE_BYTES_MAX: usize = 256 * 1024;
/// The overhead of a piece besides its bytes, which bounds many small ones too.
const PIECE_COST: usize = 64;

/// The pieces in flight.
#[derive(Debug, Default)]
pub(super) struct Line {
    pieces: VecDeque<Piece>,
    cost: usize,
}

#[derive(Debug)]
struct Piece {
    due: Instant,
    bytes: Box<[u8]>,
    written: usize,
}

impl Line {
    /// Adds bytes. They arrive at `due`, but not before the bytes added earlier.
    pub(super) fn push(&mut self, bytes: &[u8], due: Instant) {
        let due = self.pieces.back().map_or(due, |last| due.max(last.due));
        self.cost += bytes.len() + PIECE_COST;
        self.pieces.push_back(Piece { due, bytes: bytes.into(), written: 0 });
    }

    /// How many more bytes it accepts.
    pub(super) const fn room(&self) -> usize {
        LINE_BYTES_MAX.saturating_sub(self.cost + PIECE_COST)
    }

    /// When the first piece arrives.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pieces.front().map(|piece| piece.due)
    }

    /// The rest of the first piece.
    pub(super) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece.bytes[piece.written..])
    }

    /// Removes written bytes of the first piece.
    pub(super) fn advance(&mut self, bytes: usize) {
        let Some(piece) = self.pieces.front_mut() else { return };
        piece.written += bytes;
        if piece.written >= piece.bytes.len() {
            self.cost -= piece.bytes.len() + PIECE_COST;
            self.pieces.pop_front();
        }
    }

    /// Gives every piece a new instant, in order: the link has another shape now.
    pub(super) fn replan(&mut self, mut due: impl FnMut(usize) -> Instant) {
        let mut last = None;
        for piece in &mut self.pieces {
            let due = due(piece.bytes.len() - piece.written);
            piece.due = last.map_or(due, |last| due.max(last));
            last = Some(piece.due);
        }
    }

    /// True if no bytes are in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Drops the bytes in flight; returns their number.
    pub(super) fn clear(&mut self) -> usize {
        let lost = self.pieces.iter().map(|piece| piece.bytes.len() - piece.written).sum();
        *self = Self::default();
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_put_first_arrives_first_whatever_the_jitter() {
        let now = Instant::now();
        let mut line = Line::default();
        for (text, after) in [("one", 30), ("two", 10), ("three", 20)] {
            line.push(text.as_bytes(), now + Duration::from_millis(after));
        }
        let mut order = Vec::new();
        while let Some(due) = line.due() {
            order.push((String::from_utf8_lossy(line.front()).into_owned(), (due - now).as_millis()));
            line.advance(line.front().len());
        }
        assert_eq!(order, [("one".into(), 30), ("two".into(), 30), ("three".into(), 30)]);
        assert!(line.is_empty() && line.room() > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn many_small_pieces_are_bounded_as_large_ones_are() {
        let now = Instant::now();
        let mut line = Line::default();
        let mut pieces = 0;
        while line.room() > 0 {
            line.push(b"x", now);
            pieces += 1;
        }
        assert!(pieces <= LINE_BYTES_MAX / PIECE_COST, "{pieces} pieces");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_shape_holds_for_what_is_on_the_way() {
        let now = Instant::now();
        let mut line = Line::default();
        line.push(b"slow", now + Duration::from_secs(100));
        line.push(b"slower", now + Duration::from_secs(200));
        line.replan(|_| now);
        assert_eq!(line.due(), Some(now));
        line.advance(4);
        assert_eq!((line.due(), line.front()), (Some(now), &b"slower"[..]));
        assert_eq!(line.clear(), 6);
    }
}
