//! HTML writer that escapes all text, so that results may contain any characters.

use crate::table::Table;

/// A document under construction.
#[derive(Debug, Default)]
pub(super) struct Writer(String);

impl Writer {
    /// What was written.
    pub(super) fn finish(self) -> String {
        self.0
    }

    /// Markup of our own.
    pub(super) fn raw(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    /// An element of our own that holds nothing but text. `open` is its name and attributes.
    pub(super) fn element(&mut self, open: &str, text: &str) {
        let name = open.split(' ').next().unwrap_or(open);
        self.raw(&format!("<{open}>{}</{name}>", escaped(text)));
    }

    /// A table that scrolls by itself where the page is narrow.
    pub(super) fn table(&mut self, id: &str, table: &Table) {
        self.raw(&format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{0}-title\">\
             <table id=\"{0}\">",
            escaped(id)
        ));
        self.element(&format!("caption id=\"{}-title\"", escaped(id)), &table.title);
        self.raw("<thead><tr>");
        let figures: Vec<bool> = (0..table.head.len()).map(|at| table.is_figures(at)).collect();
        let is_figure = |at: usize| figures.get(at).copied().unwrap_or(false);
        for (at, cell) in table.head.iter().enumerate() {
            let class = if is_figure(at) { " class=\"n\"" } else { "" };
            self.element(&format!("th scope=\"col\"{class}"), cell);
        }
        self.raw("</tr></thead><tbody>\n");
        for row in &table.rows {
            self.raw("<tr>");
            for (at, cell) in row.iter().enumerate() {
                let open = match at {
                    0 => "th scope=\"row\"",
                    _ if is_figure(at) => "td class=\"n\"",
                    _ => "td",
                };
                self.element(open, cell);
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
    }
}

/// As text between tags, or in an attribute in quotation marks. What HTML does not allow, or what
/// would turn the text's direction around, becomes a replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() || is_no_character(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Code points that stand for no character in any version of Unicode.
fn is_no_character(c: char) -> bool {
    let code = u32::from(c);
    code & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&code)
}

/// JSON as it may stand within a script element: no `<` is left, which JSON has in texts alone, so
/// that none can end the element or begin a comment; and no `&`, so that XML reads the same.
pub(super) fn json_in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_never_markup() {
        assert_eq!(
            escaped("<b a='\"'>&\u{0}\u{ffff}\u{202e}"),
            "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}\u{fffd}\u{fffd}"
        );
        let json = serde_json::to_string("</script><!-- \u{2028}").unwrap();
        let inside = json_in_script(&json);
        assert!(!inside.contains('<'), "{inside}");
        let back: String = serde_json::from_str(&inside).unwrap();
        assert_eq!(back, "</script><!-- \u{2028}");
    }

    #[test]
    fn a_table() {
        let mut table = Table::new("T<1>", &["job", "MB/s", "verdict"]);
        table.rows.push(vec!["a&b".to_owned(), "1.5".to_owned(), "differs".to_owned()]);
        let mut out = Writer::default();
        out.table("t", &table);
        let text = out.finish();
        for part in [
            "<caption id=\"t-title\">T&lt;1&gt;</caption>",
            "<th scope=\"row\">a&amp;b</th>",
            "<td class=\"n\">1.5</td><td>differs</td>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_escaped(text in any::<String>()) {
            let found = escaped(&text);
            let has_markup = found.contains(['<', '>', '"', '\'', '\u{0}']);
            prop_assert!(!has_markup, "{}", found);
            let json = serde_json::to_string(&text).unwrap();
            let back: String = serde_json::from_str(&json_in_script(&json)).unwrap();
            prop_assert_eq!(back, text);
        }
    }
}
