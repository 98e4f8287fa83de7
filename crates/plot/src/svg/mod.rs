//! SVG document: size, heading, legend, panels and footer from top to bottom.

mod bars;
mod curves;
mod legend;
mod lines;
mod panel;
mod places;
mod write;

use crate::figure::{Figure, Hue};
use crate::theme::{DARK, HUES, LIGHT, Theme};
use write::{Anchor, Writer};

/// Width of all pictures, in SVG units, which are pixels at natural size.
const WIDTH: f64 = 880.0;
const EDGE: f64 = 20.0;
/// Average width of a character relative to its height; DejaVu Sans is a wide font.
const CHARACTER: f64 = 0.6;
/// Upper bound of the lines of a wrapped text.
const LINES_MAX: usize = 12;

fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER
}

/// Wraps a text to the width of the picture; its own line breaks are kept.
fn wrapped(text: &str, size: f64) -> Vec<String> {
    let most = WIDTH - 2.0 * EDGE;
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
            if !line.is_empty() && width_of(&longer, size) > most {
                lines.push(std::mem::replace(&mut line, word.to_owned()));
            } else {
                line = longer;
            }
        }
        lines.push(line);
    }
    lines.truncate(LINES_MAX);
    lines
}

fn hue_class(hue: Hue) -> usize {
    hue.0 % HUES
}

pub(crate) fn document(figure: &Figure, theme: Theme) -> String {
    let mut body = Writer::default();
    let mut y = EDGE + 14.0;
    body.text(EDGE, y, 18.0, "ink strong", Anchor::Start, &figure.title);
    for line in wrapped(&figure.subtitle, 13.0) {
        y += 20.0;
        body.text(EDGE, y, 13.0, "faint", Anchor::Start, &line);
    }
    y = legend::draw(&mut body, figure, y + 12.0);
    for panel in &figure.panels {
        y = panel::draw(&mut body, panel, y);
    }
    for (number, line) in wrapped(&figure.footer, 11.0).iter().enumerate() {
        y += if number == 0 { 8.0 } else { 15.0 };
        body.text(EDGE, y, 11.0, "faint", Anchor::Start, line);
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
                  .whisker{stroke-width:1.5}.grid,.axis,.lead{stroke-width:1}\
                  .curve{stroke-width:2.5;stroke-linecap:butt}.ring{stroke-width:1.5}\
                  .lead{fill:none;stroke-opacity:.45}\
                  .halo{paint-order:stroke;stroke-width:4;stroke-linejoin:round}";
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
