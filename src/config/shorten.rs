//! Shortening of text from the user in messages.

use std::borrow::Cow;

/// Characters that are quoted of one value, key or argument.
const MAX_QUOTED: usize = 200;

/// Characters of a word; longer than any usable path.
const MAX_WORD: usize = 1000;

/// The text as a message quotes it: whole, or its beginning, its end and how long it is.
///
/// ```
/// use lockstep::config::shorten;
/// assert_eq!(shorten("train.stepz"), "train.stepz");
/// assert!(shorten(&"x".repeat(1 << 20)).ends_with("xxx (1048576 characters)"));
/// ```
pub fn shorten(text: &str) -> Cow<'_, str> {
    shortened_to(text, MAX_QUOTED)
}

/// The text with every word that is far too long for a terminal shortened, and with control
/// characters escaped, which could change what a terminal shows: the last filter, for text quoted
/// by libraries and the operating system.
pub fn shorten_words(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && !c.is_whitespace();
    let is_fine = |word: &str| word.len() <= MAX_WORD && !word.contains(is_control);
    if text.split_whitespace().all(is_fine) {
        return Cow::Borrowed(text);
    }
    let words = text.split_inclusive(char::is_whitespace);
    let shortened = |word: &str| {
        let bare = word.trim_end();
        let escaped = |c: char| match is_control(c) {
            true => c.escape_default().to_string(),
            false => c.to_string(),
        };
        let short: String = shortened_to(bare, MAX_WORD).chars().map(escaped).collect();
        short + &word[bare.len()..]
    };
    Cow::Owned(words.map(shortened).collect())
}

fn shortened_to(text: &str, max: usize) -> Cow<'_, str> {
    // Bytes are never fewer than characters, and counted at once.
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let num_chars = text.chars().count();
    if num_chars <= max {
        return Cow::Borrowed(text);
    }
    let head: String = text.chars().take(max / 2).collect();
    let tail: String = text.chars().skip(num_chars - max / 4).collect();
    Cow::Owned(format!("{head}...{tail} ({num_chars} characters)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_stays_whole() {
        let umlauts = "ü".repeat(MAX_QUOTED);
        assert_eq!(shorten(&umlauts), umlauts);
        assert!(shorten(&"ü".repeat(MAX_QUOTED + 1)).chars().count() < MAX_QUOTED);
        let text = format!("two  words\n{}\tmore", "x".repeat(MAX_WORD));
        assert_eq!(shorten_words(&text), text);
        assert_eq!(shorten_words("a \u{1b}[2Jb\n"), "a \\u{1b}[2Jb\n");
        let long = shorten_words(&format!("a {} b", "x".repeat(1 << 20))).into_owned();
        assert!(
            long.len() < MAX_WORD && long.starts_with("a xx") && long.ends_with(" b"),
            "{long}"
        );
    }
}
