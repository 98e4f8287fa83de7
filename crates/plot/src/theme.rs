//! Themes: colors for light and dark backgrounds.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// White background, for print.
    #[default]
    Light,
    Dark,
    /// The reader's preference, for SVG in a browser.
    Auto,
}

pub(crate) struct Palette {
    pub(crate) ground: &'static str,
    pub(crate) ink: &'static str,
    pub(crate) faint: &'static str,
    pub(crate) grid: &'static str,
    pub(crate) hues: [&'static str; HUES],
}

/// Number of colors; further hues reuse them with another dash.
pub(crate) const HUES: usize = 7;
/// Dashes of lines, by hue; an empty one is solid.
pub(crate) const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];
/// Dashes of curves, whose colors have other meanings.
pub(crate) const CURVE_DASHES: [&str; 6] = ["", "9 4", "2 4", "12 4 2 4", "18 5", "6 3 2 3 2 3"];
/// Colors of Okabe and Ito, distinguishable with most color vision deficiencies, without yellow,
/// which is too pale for lines on white.
pub(crate) const LIGHT: Palette = Palette {
    ground: "#ffffff",
    ink: "#1c2430",
    faint: "#5a6675",
    grid: "#dfe4ea",
    hues: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b6b6b"],
};

pub(crate) const DARK: Palette = Palette {
    ground: "#14181f",
    ink: "#e8ecf1",
    faint: "#9aa6b5",
    grid: "#2c3440",
    hues: ["#4aa8e0", "#ff8a3d", "#2fc795", "#e39ac3", "#8fd0f5", "#f2b632", "#a8a8a8"],
};

impl Palette {
    pub(crate) fn rules(&self) -> String {
        let mut rules = format!(
            ".ground{{fill:{}}}.ink{{fill:{}}}.faint{{fill:{}}}.grid{{stroke:{}}}.axis{{stroke:{}}}\
             .ring,.halo{{stroke:{}}}.lead{{stroke:{}}}",
            self.ground, self.ink, self.faint, self.grid, self.faint, self.ground, self.ink
        );
        for (number, color) in self.hues.iter().enumerate() {
            rules.push_str(&format!(".l{number}{{stroke:{color}}}.f{number}{{fill:{color}}}"));
        }
        rules
    }
}
