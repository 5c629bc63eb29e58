//! A font of 5 by 9 dots: the letters of the plots' labels, digits and signs. Rows 7 and 8 are below the
//! line.

/// Dots across.
pub const GLYPH_WIDTH: usize = 5;
/// Dots down.
pub const GLYPH_HEIGHT: usize = 9;

/// Is the dot of a character set? Characters that are not in the font are boxes.
pub fn is_set(letter: char, x: usize, y: usize) -> bool {
    let rows = GLYPHS.iter().find(|glyph| glyph.0 == letter).map_or(BOX, |glyph| glyph.1);
    let row = rows.get(y).copied().unwrap_or("");
    row.as_bytes().get(x) == Some(&b'#')
}

/// The rows of a character from the top, `#` where a dot is set; what is not given is empty.
type Rows = &'static [&'static str];

const BOX: Rows = &["#####", "#   #", "#   #", "#   #", "#   #", "#   #", "#####"];

const GLYPHS: [(char, Rows); 42] = [
    (' ', &[]),
    ('0', &[" ### ", "#   #", "#  ##", "# # #", "##  #", "#   #", " ### "]),
    ('1', &["  #  ", " ##  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### "]),
    ('2', &[" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####"]),
    ('3', &["#####", "   # ", "  #  ", "   # ", "    #", "#   #", " ### "]),
    ('4', &["   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "]),
    ('5', &["#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "]),
    ('6', &["  ## ", " #   ", "#    ", "#### ", "#   #", "#   #", " ### "]),
    ('7', &["#####", "    #", "   # ", "  #  ", " #   ", " #   ", " #   "]),
    ('8', &[" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "]),
    ('9', &[" ### ", "#   #", "#   #", " ####", "    #", "   # ", " ##  "]),
    ('.', &["", "", "", "", "", " ##  ", " ##  "]),
    ('-', &["", "", "", "#####"]),
    ('_', &["", "", "", "", "", "", "#####"]),
    ('+', &["", "  #  ", "  #  ", "#####", "  #  ", "  #  "]),
    ('a', &["", "", " ### ", "    #", " ####", "#   #", " ####"]),
    ('b', &["#    ", "#    ", "# ## ", "##  #", "#   #", "#   #", "#### "]),
    ('c', &["", "", " ### ", "#    ", "#    ", "#   #", " ### "]),
    ('d', &["    #", "    #", " ## #", "#  ##", "#   #", "#   #", " ####"]),
    ('e', &["", "", " ### ", "#   #", "#####", "#    ", " ### "]),
    ('f', &["  ## ", " #  #", " #   ", "###  ", " #   ", " #   ", " #   "]),
    ('g', &["", "", " ####", "#   #", "#   #", "#   #", " ####", "    #", " ### "]),
    ('h', &["#    ", "#    ", "# ## ", "##  #", "#   #", "#   #", "#   #"]),
    ('i', &["  #  ", "", " ##  ", "  #  ", "  #  ", "  #  ", " ### "]),
    ('k', &["#    ", "#    ", "#  # ", "# #  ", "##   ", "# #  ", "#  # "]),
    ('l', &[" ##  ", "  #  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### "]),
    ('m', &["", "", "## # ", "# # #", "# # #", "#   #", "#   #"]),
    ('n', &["", "", "# ## ", "##  #", "#   #", "#   #", "#   #"]),
    ('o', &["", "", " ### ", "#   #", "#   #", "#   #", " ### "]),
    ('p', &["", "", "#### ", "#   #", "#   #", "#   #", "#### ", "#    ", "#    "]),
    ('r', &["", "", "# ## ", "##  #", "#    ", "#    ", "#    "]),
    ('s', &["", "", " ####", "#    ", " ### ", "    #", "#### "]),
    ('t', &[" #   ", " #   ", "###  ", " #   ", " #   ", " #  #", "  ## "]),
    ('u', &["", "", "#   #", "#   #", "#   #", "#  ##", " ## #"]),
    ('v', &["", "", "#   #", "#   #", "#   #", " # # ", "  #  "]),
    ('w', &["", "", "#   #", "#   #", "# # #", "# # #", " # # "]),
    ('x', &["", "", "#   #", " # # ", "  #  ", " # # ", "#   #"]),
    ('y', &["", "", "#   #", "#   #", "#   #", " ####", "    #", "    #", " ### "]),
    ('B', &["#### ", "#   #", "#   #", "#### ", "#   #", "#   #", "#### "]),
    ('G', &[" ### ", "#   #", "#    ", "# ###", "#   #", "#   #", " ####"]),
    ('K', &["#   #", "#  # ", "# #  ", "##   ", "# #  ", "#  # ", "#   #"]),
    ('M', &["#   #", "## ##", "# # #", "# # #", "#   #", "#   #", "#   #"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What the figures of `schedule` and `plan` write.
    const LABELS: &str = "learning rate step 0123456789 replicas e-+._ devices milliseconds whole step arithmetic \
                          collectives waited for bytes of an all_reduce ring tree hierarchical B KiB MiB GiB";

    #[test]
    fn the_labels_can_be_written_and_characters_differ() {
        for letter in LABELS.chars() {
            let known = GLYPHS.iter().find(|glyph| glyph.0 == letter);
            let (_, rows) = known.unwrap_or_else(|| panic!("{letter:?} is not in the font"));
            assert!(rows.len() <= GLYPH_HEIGHT && rows.iter().all(|row| row.len() <= GLYPH_WIDTH));
        }
        for (index, (letter, rows)) in GLYPHS.iter().enumerate() {
            let twin = GLYPHS[..index].iter().find(|other| other.1 == *rows);
            assert!(twin.is_none(), "{letter:?} looks like {twin:?}");
        }
        assert!(is_set('?', 0, 0) && !is_set(' ', 0, 0));
    }
}
