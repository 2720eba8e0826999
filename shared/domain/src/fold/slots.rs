//! Stores values in numbered slots; the slot of a removed value is reused.

/// Stores a value in a spare slot, or in a new one, and returns its number.
pub(super) fn fill_slot<T>(slots: &mut Vec<T>, spare: &mut Vec<u32>, value: T) -> u32 {
    if let Some(number) = spare.pop() {
        slots[number as usize] = value;
        return number;
    }
    slots.push(value);
    (slots.len() - 1) as u32
}
