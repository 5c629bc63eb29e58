//! HTML in which nothing that a run has recorded can be markup: texts and values of attributes are
//! escaped where they are added, and tags and names of attributes are of the program.

use std::fmt::Write;

use serde::Serialize;

/// A part of a page.
#[derive(Default)]
pub struct Html(String);

impl Html {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        escape(&mut self.0, text);
        self
    }

    /// Begins an element.
    pub fn open(&mut self, tag: &'static str, attributes: &[(&'static str, &str)]) -> &mut Self {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes {
            let _ = write!(self.0, " {name}=\"");
            escape(&mut self.0, value);
            self.0.push('"');
        }
        self.0.push('>');
        self
    }

    /// Ends an element.
    pub fn close(&mut self, tag: &'static str) -> &mut Self {
        let _ = write!(self.0, "</{tag}>");
        self
    }

    /// An element with a text and nothing else.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: &[(&'static str, &str)],
        text: &str,
    ) -> &mut Self {
        self.open(tag, attributes).text(text).close(tag)
    }

    /// Adds what is part of the program: style, script, fixed markup.
    pub fn own(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Data for the page's own script. In JSON `<` occurs in strings only, so that none of them can
    /// end the element, or begin a comment in it.
    pub fn data(&mut self, id: &'static str, data: &impl Serialize) -> serde_json::Result<()> {
        let json = serde_json::to_string(data)?;
        let json = json.replace('<', "\\u003c");
        let _ = write!(self.0, "<script type=\"application/json\" id=\"{id}\">{json}</script>");
        Ok(())
    }

    /// The markup.
    pub fn into_string(self) -> String {
        self.0
    }
}

fn escape(out: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            // Some of them change the direction in which other text is read.
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => out.push('\u{FFFD}'),
            letter if letter.is_control() => out.push('\u{FFFD}'),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_added_is_markup() {
        let hostile = "</script><script>alert('a')</script>\"&\u{1}\u{202E}";
        let mut html = Html::new();
        html.element("p", &[("title", hostile)], hostile);
        html.data("data", &[hostile]).unwrap();
        let page = html.into_string();
        let escaped = "&lt;/script&gt;&lt;script&gt;alert(&#39;a&#39;)&lt;/script&gt;&quot;&amp;";
        assert_eq!(page.matches(escaped).count(), 2, "{page}");
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert_eq!(page.matches("</script").count(), 1, "{page}");
        let (_, json) = page.split_once("id=\"data\">").unwrap();
        let read: Vec<String> = serde_json::from_str(json.trim_end_matches("</script>")).unwrap();
        assert_eq!(read, [hostile]);
    }
}
