//! Lines of braille dots, two across and four down in each character.

/// Characters in rows, in which dots are set.
pub struct Dots {
    num_columns: usize,
    cells: Vec<BrailleCell>,
}

/// A character.
#[derive(Clone, Copy, Default)]
pub struct BrailleCell {
    bits: u8,
    /// A letter that stands in place of the dots.
    letter: Option<char>,
    /// Which curve was here last.
    pub owner: Option<usize>,
}

impl BrailleCell {
    /// As it is written.
    pub fn letter(&self) -> char {
        match (self.letter, self.bits) {
            (Some(letter), _) => letter,
            (None, 0) => ' ',
            (None, bits) => char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' '),
        }
    }
}

impl Dots {
    /// No dots yet, in so many characters.
    pub fn new(num_columns: usize, num_rows: usize) -> Self {
        Self { num_columns, cells: vec![BrailleCell::default(); num_columns * num_rows] }
    }

    /// A line between two dots, counted from the left and from the top.
    pub fn line(&mut self, from: (usize, usize), to: (usize, usize), owner: Option<usize>) {
        let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1));
        let between = |from: usize, to: usize, step: usize| {
            let share = if steps == 0 { 0.0 } else { step as f64 / steps as f64 };
            (from as f64 + (to as f64 - from as f64) * share).round() as usize
        };
        for step in 0..=steps {
            let (x, y) = (between(from.0, to.0, step), between(from.1, to.1, step));
            if let Some(cell) = self.cell(x / 2, y / 4) {
                cell.bits |= bit(x % 2, y % 4);
                cell.owner = owner;
            }
        }
    }

    /// Puts a letter where a dot is.
    pub fn put(&mut self, (x, y): (usize, usize), letter: char, owner: Option<usize>) {
        if let Some(cell) = self.cell(x / 2, y / 4) {
            (cell.letter, cell.owner) = (Some(letter), owner);
        }
    }

    /// The characters, row by row.
    pub fn rows(&self) -> impl Iterator<Item = &[BrailleCell]> {
        self.cells.chunks(self.num_columns.max(1))
    }

    fn cell(&mut self, column: usize, row: usize) -> Option<&mut BrailleCell> {
        let is_inside = column < self.num_columns;
        self.cells.get_mut(row * self.num_columns + column).filter(|_| is_inside)
    }
}

/// The bit of a dot in a braille pattern: the first three rows count down each column, the fourth
/// is last.
fn bit(x: usize, y: usize) -> u8 {
    match y {
        3 => 0x40 << x,
        y => 1 << (y + 3 * x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_dots_of_a_character_are_different() {
        let bits = (0..8).fold(0u8, |bits, dot| bits | bit(dot % 2, dot / 2));
        assert_eq!(bits, 0xFF);
        assert_eq!(BrailleCell { bits, ..BrailleCell::default() }.letter(), '\u{28FF}');
    }

    #[test]
    fn a_line_has_no_gaps_and_nothing_is_set_outside() {
        let mut dots = Dots::new(3, 2);
        dots.line((0, 7), (5, 0), Some(1));
        dots.line((5, 7), (90, 90), None);
        dots.put((0, 0), 'a', None);
        let text = |row: &[BrailleCell]| row.iter().map(BrailleCell::letter).collect::<String>();
        let rows: Vec<_> = dots.rows().map(text).collect();
        assert_eq!(rows, ["a⢀⠎", "⡰⠁⢀"]);
    }
}
