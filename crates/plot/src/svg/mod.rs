//! The document: its size, heading, legend, panels and footer, one below the other.

mod bars;
mod lines;
mod panel;
mod write;

use crate::figure::{Content, Figure, Hue};
use crate::theme::{DARK, HUES, LIGHT, Theme};
use write::{Anchor, Writer};

/// Width of all pictures, in units of the SVG, which are pixels at its natural size.
const WIDTH: f64 = 880.0;

/// Left and right of everything.
const EDGE: f64 = 20.0;

/// Height of a row of the legend.
const LEGEND_ROW: f64 = 22.0;

/// Average width of a character, of its height; DejaVu Sans is a wide face.
const CHARACTER: f64 = 0.6;

/// The look of a hue: a class of a colour, and a dash.
fn hue_class(hue: Hue) -> usize {
    hue.0 % HUES
}

/// The whole picture.
pub(crate) fn document(figure: &Figure, theme: Theme) -> String {
    let mut body = Writer::default();
    let mut y = EDGE + 14.0;
    body.text(EDGE, y, 18.0, "ink strong", Anchor::Start, &figure.title);
    if !figure.subtitle.is_empty() {
        y += 22.0;
        body.text(EDGE, y, 13.0, "faint", Anchor::Start, &figure.subtitle);
    }
    y = legend(&mut body, figure, y + 12.0);
    for panel in &figure.panels {
        y = panel::draw(&mut body, panel, y);
    }
    if !figure.footer.is_empty() {
        y += 8.0;
        body.text(EDGE, y, 11.0, "faint", Anchor::Start, &figure.footer);
    }
    let height = y + EDGE;
    let mut out = Writer::default();
    out.raw(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" \
         font-family=\"'DejaVu Sans', Verdana, sans-serif\">"
    ));
    out.element("title", &figure.title);
    out.raw(&format!("<style>{}</style>", rules(theme)));
    out.raw(&format!("<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height:.0}\"/>"));
    out.raw(&body.finish());
    out.raw("</svg>\n");
    out.finish()
}

fn rules(theme: Theme) -> String {
    let common = ".strong{font-weight:bold}.line{fill:none;stroke-width:2;stroke-linejoin:round}\
                  .whisker{stroke-width:1.5}.grid,.axis{stroke-width:1}";
    match theme {
        Theme::Light => format!("{common}{}", LIGHT.rules()),
        Theme::Dark => format!("{common}{}", DARK.rules()),
        Theme::Auto => format!(
            "{common}{}@media screen and (prefers-color-scheme:dark){{{}}}",
            LIGHT.rules(),
            DARK.rules()
        ),
    }
}

/// One entry: its name, and whether it is a line (with a dash) or a bar.
struct Entry<'a> {
    name: &'a str,
    hue: Hue,
    line: bool,
}

/// Draws every entry once, in as many rows as it takes, from `y` down; the end of it.
fn legend(out: &mut Writer, figure: &Figure, y: f64) -> f64 {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for panel in &figure.panels {
        let of_panel: Vec<Entry<'_>> = match &panel.content {
            Content::Lines(lines) => lines
                .iter()
                .map(|line| Entry { name: &line.name, hue: line.hue, line: true })
                .collect(),
            Content::Bars(bars) => bars
                .series
                .iter()
                .map(|(name, hue)| Entry { name, hue: *hue, line: false })
                .collect(),
        };
        for entry in of_panel {
            let known = entries.iter().any(|e| e.name == entry.name && e.hue == entry.hue);
            if !known && !entry.name.is_empty() {
                entries.push(entry);
            }
        }
    }
    if entries.is_empty() {
        return y;
    }
    let (mut x, mut y) = (EDGE, y + 12.0);
    for entry in entries {
        let width = 34.0 + entry.name.chars().count() as f64 * 12.0 * CHARACTER + 18.0;
        if x > EDGE && x + width > WIDTH - EDGE {
            (x, y) = (EDGE, y + LEGEND_ROW);
        }
        if entry.line {
            out.polyline(entry.hue, &[(x, y - 4.0), (x + 28.0, y - 4.0)]);
        } else {
            out.bar(entry.hue, x + 8.0, y - 10.0, 14.0, 12.0);
        }
        out.text(x + 34.0, y, 12.0, "ink", Anchor::Start, entry.name);
        x += width;
    }
    y + 4.0
}
