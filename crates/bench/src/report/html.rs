//! HTML building blocks: document, tables, lists, and text that is safe to show.

use std::fmt::Write as _;

use flagstone_plot::Theme;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Plot, Run, data, slug};
use crate::table::{Table, is_known};

const STYLE: &str = include_str!("style.css");
const READ_DATA: &str = "import json, re\n\
    page = open(\"report.html\", encoding=\"utf-8\").read()\n\
    data = json.loads(re.search(r'<script type=\"application/json\" id=\"data\">(.*?)</script>', page, re.S)[1])";
pub(super) const DATA_ID: &str = "raw";
pub(super) const DATA_HEADING: &str = "Data";

/// The complete document, with the data of `runs` at its end.
pub(super) fn document<'a>(
    title: &str,
    header: &Markup,
    main: &Markup,
    runs: impl IntoIterator<Item = &'a Run>,
) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " - flagstone bench" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (header) }
                main {
                    (main)
                    section id=(DATA_ID) {
                        h2 { (DATA_HEADING) }
                        p {
                            "The last element of this page holds the plans, the environments and all \
                             measurements as JSON. In Python:"
                        }
                        pre { (READ_DATA) }
                        script type="application/json" id="data" {
                            (PreEscaped(json_in_script(&data::json(runs))))
                        }
                    }
                }
                footer { p { "Made by flagstone bench " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    visible(&page.into_string()) + "\n"
}

fn has_content(cell: &str) -> bool {
    !cell.is_empty() && is_known(cell)
}

/// A table without the rows and columns that have no content. On a narrow page each row is a list
/// of cells with the heads of their columns.
pub(super) fn table(id: &str, table: &Table) -> Markup {
    let is_said = |cell: &String| has_content(cell);
    let rows = || table.rows.iter().filter(|row| row.iter().skip(1).any(is_said));
    let is_shown = |at: &usize| *at == 0 || rows().filter_map(|row| row.get(*at)).any(is_said);
    let columns: Vec<usize> = (0..table.head.len()).filter(is_shown).collect();
    let class = |at: usize| table.is_figures(at).then_some("n");
    html! {
        table id=(id) {
            caption { (table.title) }
            thead {
                tr {
                    @for at in &columns {
                        th scope="col" class=[class(*at)] { (table.head[*at]) }
                    }
                }
            }
            tbody {
                @for row in rows() {
                    tr {
                        @for (at, cell) in columns.iter().filter_map(|at| Some((*at, row.get(*at)?))) {
                            @if at == 0 { th scope="row" { (cell) } }
                            @else { td class=[class(at)] data-head=(table.head[at]) { (cell) } }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn headline(figures: &[(String, String)]) -> Markup {
    html! {
        @if !figures.is_empty() {
            dl class="headline" {
                @for (figure, meaning) in figures {
                    div { dt { (meaning) } dd { (figure) } }
                }
            }
        }
    }
}

pub(super) fn list(texts: &[String]) -> Markup {
    html! { ul { @for text in texts { li { (text) } } } }
}

pub(super) fn facts(facts: &[(&str, String)]) -> Markup {
    let known = facts.iter().filter(|(_, value)| has_content(value));
    html! { dl class="facts" { @for (name, value) in known { dt { (name) } dd { (value) } } } }
}

/// Plots as figures, with ids below `prefix`.
pub(super) fn plots(prefix: &str, plots: &[Plot]) -> Markup {
    html! {
        div class="plots" {
            @for plot in plots {
                figure id={ (prefix) "plot-" (slug(&plot.id)) } {
                    (PreEscaped(plot.picture.svg(Theme::Auto).trim_end()))
                }
            }
        }
    }
}

/// Links to the sections of the page: ids and headings.
pub(super) fn navigation<'a>(sections: impl Iterator<Item = (String, &'a str)>) -> Markup {
    html! {
        nav aria-label="Sections" {
            ul { @for (id, name) in sections { li { a href={ "#" (id) } { (name) } } } }
        }
    }
}

/// The text with a replacement character for everything that HTML does not allow or that would
/// reverse the direction of text.
fn visible(text: &str) -> String {
    text.replace(is_forbidden, "\u{fffd}")
}

fn is_forbidden(c: char) -> bool {
    let code = u32::from(c);
    // Code points that stand for no character in any version of Unicode.
    let is_no_character = code & 0xfffe == 0xfffe || (0xfdd0..=0xfdef).contains(&code);
    let reverses = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_no_character || reverses || (c.is_control() && !matches!(c, '\n' | '\t'))
}

/// JSON for a script element. Without `<`, which JSON has in strings only, nothing can end the
/// element or begin a comment; without `&`, XML reads the same.
fn json_in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '<' | '&' | '\u{2028}' | '\u{2029}') || is_forbidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_in_html_is_escaped() {
        let text = "<b a='\"'>&\u{0}\u{ffff}\u{202e}";
        let shown = visible(&list(&[text.to_owned()]).into_string());
        let escaped = "&lt;b a='&quot;'&gt;&amp;\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(shown, format!("<ul><li>{escaped}</li></ul>"));
    }

    #[test]
    fn table_cells_are_escaped_and_aligned() {
        let mut cells = Table::new("T<1>", &["job", "MB/s", "verdict"]);
        cells.rows.push(vec!["a&b".to_owned(), "1.5".to_owned(), "differs".to_owned()]);
        let text = table("t", &cells).into_string();
        for part in [
            "<caption>T&lt;1&gt;</caption>",
            "<th scope=\"row\">a&amp;b</th>",
            "<td class=\"n\" data-head=\"MB/s\">1.5</td><td data-head=\"verdict\">differs</td>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn cells_without_content_are_left_out() {
        let mut cells = Table::new("T", &["job", "MB/s", "p99.99 ms"]);
        for row in [["a", "1", "-"], ["b", "-", ""]] {
            cells.rows.push(row.map(str::to_owned).to_vec());
        }
        let text = table("t", &cells).into_string();
        assert!(
            text.contains("MB/s") && !text.contains("p99.99") && !text.contains(">b<"),
            "{text}"
        );
        let known = facts(&[("machine", "-".to_owned()), ("fio", "3".to_owned())]).into_string();
        assert!(known.contains("fio") && !known.contains("machine"), "{known}");
    }

    proptest! {
        #[test]
        fn any_json_survives_the_script_element(text in any::<String>()) {
            let json = json_in_script(&serde_json::to_string(&text).unwrap());
            prop_assert!(!json.contains(['<', '&']) && visible(&json) == json, "{}", json);
            let back: String = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(back, text);
        }
    }
}
