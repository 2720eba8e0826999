//! Numbers for values that come and go: the number of a value that has gone is given again.

/// Stores a value in a spare slot, or in a new one, and returns its number.
pub(super) fn fill_slot<T>(slots: &mut Vec<T>, spare: &mut Vec<u32>, value: T) -> u32 {
    if let Some(number) = spare.pop() {
        slots[number as usize] = value;
        return number;
    }
    slots.push(value);
    (slots.len() - 1) as u32
}
