//! SVG document: size, heading, legend, panels and footer from top to bottom.

mod bars;
mod curves;
mod legend;
mod lines;
mod panel;
mod places;
mod write;

use crate::figure::{Figure, Hue, Panel, PanelContent};
use crate::theme::{DARK, HUES, LIGHT, Theme};
use write::{Anchor, Writer};

/// Width in SVG units, which are pixels at natural size: two pictures fit beside each other, and on
/// a telephone the text of one is still 9 pixels high.
const WIDTH: f64 = 560.0;
/// Width of a picture with curves or marks, whose texts stand among the lines.
const WIDE: f64 = 880.0;
const EDGE: f64 = 20.0;
/// Heights of the title, of most texts, and of the least important.
const TITLE: f64 = 18.0;
const TEXT: f64 = 14.0;
const SMALL: f64 = 12.0;
/// Average width of a character relative to its height; DejaVu Sans is a wide font.
const CHARACTER: f64 = 0.6;
/// Upper bound of the lines of a wrapped text.
const LINES_MAX: usize = 12;

fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER
}

fn width_of_picture(figure: &Figure) -> f64 {
    let is_wide =
        |panel: &Panel| matches!(panel.content, PanelContent::Curves(_)) || !panel.marks.is_empty();
    if figure.panels.iter().any(is_wide) { WIDE } else { WIDTH }
}

/// Wraps a text to the width of the picture; its own line breaks are kept.
fn wrapped(text: &str, size: f64, width: f64) -> Vec<String> {
    let most = width - 2.0 * EDGE;
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
    let width = width_of_picture(figure);
    let mut y = EDGE - 8.0;
    for line in wrapped(&figure.title, TITLE, width) {
        y += 22.0;
        body.text(EDGE, y, TITLE, "ink strong", Anchor::Start, &line);
    }
    for line in wrapped(&figure.subtitle, TEXT, width) {
        y += 20.0;
        body.text(EDGE, y, TEXT, "faint", Anchor::Start, &line);
    }
    y = legend::draw(&mut body, figure, width, y + 12.0);
    for panel in &figure.panels {
        y = panel::draw(&mut body, panel, width, y);
    }
    for (number, line) in wrapped(&figure.footer, SMALL, width).iter().enumerate() {
        y += if number == 0 { 8.0 } else { 15.0 };
        body.text(EDGE, y, SMALL, "faint", Anchor::Start, line);
    }
    let height = y + EDGE;
    let mut out = Writer::default();
    out.raw(&format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" \
         width=\"{width}\" height=\"{height:.0}\" role=\"img\" \
         font-family=\"'DejaVu Sans', Verdana, sans-serif\">"
    ));
    out.element("title", &figure.title);
    out.raw(&format!("<style>{}</style>", rules(theme)));
    out.raw(&format!("<rect class=\"ground\" width=\"{width}\" height=\"{height:.0}\"/>"));
    out.raw(&body.finish());
    out.raw("</svg>\n");
    out.finish()
}

fn rules(theme: Theme) -> String {
    let common = ".strong{font-weight:bold}.line{fill:none;stroke-width:2;stroke-linejoin:round}\
                  .whisker{stroke-width:1.5}.grid,.axis,.lead{stroke-width:1}\
                  .curve{stroke-width:2.5;stroke-linecap:butt}.ring{stroke-width:1.5}\
                  .lead{fill:none;stroke-opacity:.45}.band{fill-opacity:.2}\
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
