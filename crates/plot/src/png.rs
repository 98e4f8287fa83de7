//! Pictures as PNG.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};

use crate::Figure;
use crate::theme::Theme;

/// The only font of pictures: see assets/LICENSE-DejaVu.txt.
static FONT: &[u8] = include_bytes!("../assets/DejaVuSans-latin.ttf");

/// Most pixels of a side.
const SIDE_PIXELS_MAX: u32 = 16_384;

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// Too many panels, or too large a factor.
    #[error(
        "a picture of {width} × {height} pixels is too large: {SIDE_PIXELS_MAX} a side at most"
    )]
    TooLarge {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
    },
    /// A fault of this crate: it writes the SVG that is drawn.
    #[error("cannot draw the picture: {0}")]
    Draw(String),
}

/// The picture on white ground, `pixels_per_unit` times as large as the SVG (2 for sharp screens).
///
/// # Errors
/// [`PngError::TooLarge`] beyond 16,384 pixels a side.
pub fn png(figure: &Figure, pixels_per_unit: f32) -> Result<Vec<u8>, PngError> {
    static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
        let mut fonts = Database::new();
        fonts.load_font_data(FONT.to_vec());
        Arc::new(fonts)
    });
    let options = Options {
        fontdb: FONTS.clone(),
        font_family: "DejaVu Sans".to_owned(),
        ..Options::default()
    };
    let draw = |error: String| PngError::Draw(error);
    let tree =
        Tree::from_str(&figure.svg(Theme::Light), &options).map_err(|e| draw(e.to_string()))?;
    let size = tree.size();
    let width = (size.width() * pixels_per_unit).ceil() as u32;
    let height = (size.height() * pixels_per_unit).ceil() as u32;
    if width.max(height) > SIDE_PIXELS_MAX {
        return Err(PngError::TooLarge { width, height });
    }
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| draw("it is empty".to_owned()))?;
    let scale = Transform::from_scale(pixels_per_unit, pixels_per_unit);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| draw(error.to_string()))
}
