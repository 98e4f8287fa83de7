//! Colours, for light paper and dark screens.

/// Which ground a picture is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// White ground: print, and PNG.
    #[default]
    Light,
    /// Dark ground.
    Dark,
    /// As the reader's screen is: for SVG in a browser.
    Auto,
}

/// Colours of one ground.
pub(crate) struct Palette {
    pub(crate) ground: &'static str,
    pub(crate) ink: &'static str,
    pub(crate) faint: &'static str,
    pub(crate) grid: &'static str,
    pub(crate) hues: [&'static str; HUES],
}

/// Colours there are; further hues begin anew with another dash.
pub(crate) const HUES: usize = 7;

/// Dashes of lines, by hue; an empty one is a full line.
pub(crate) const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// Dashes of curves, whose colours mean something else.
pub(crate) const CURVE_DASHES: [&str; 6] = ["", "9 4", "2 4", "12 4 2 4", "18 5", "6 3 2 3 2 3"];

/// The colours of Okabe and Ito, told apart by nearly everyone, but for yellow, which is too pale
/// for lines on white.
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
    /// The rules of the classes that shapes and text have.
    pub(crate) fn rules(&self) -> String {
        let mut rules = format!(
            ".ground{{fill:{}}}.ink{{fill:{}}}.faint{{fill:{}}}.grid{{stroke:{}}}.axis{{stroke:{}}}\
             .ring,.halo{{stroke:{}}}.lead{{stroke:{}}}",
            self.ground, self.ink, self.faint, self.grid, self.faint, self.ground, self.ink
        );
        for (number, colour) in self.hues.iter().enumerate() {
            rules.push_str(&format!(".l{number}{{stroke:{colour}}}.f{number}{{fill:{colour}}}"));
        }
        rules
    }
}
