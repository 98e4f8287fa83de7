//! Pictures as those who look at them get them: well-formed, complete, the same each time.
#![allow(missing_docs)]

use flagstone_plot::{
    Axis, Bars, Content, Figure, Format, Group, Hue, Line, Mark, Panel, Theme, Value, png,
};
use proptest::prelude::*;

fn lines() -> Figure {
    let line =
        |name: &str, hue, pieces| Line { name: name.into(), hue: Hue(hue), pieces, dots: false };
    Figure {
        title: "pd-ssd by size".into(),
        subtitle: "n1-standard-8, 4 KiB random reads".into(),
        panels: vec![Panel {
            x: Axis::log("size, GB"),
            y: Axis::linear("IOPS"),
            content: Content::Lines(vec![
                line("volume size", 0, vec![vec![(10.0, 300.0), (500.0, 15_000.0)]]),
                line("machine", 1, vec![vec![(500.0, 15_000.0), (4000.0, 15_000.0)]]),
            ]),
            marks: vec![Mark { x: 500.0, text: "500 GB".into() }],
        }],
        footer: "gcp-2019".into(),
    }
}

fn bars() -> Figure {
    let value = |value: f64| Some(Value { value, between: Some((value * 0.9, value * 1.1)) });
    Figure {
        title: "Mirror".into(),
        panels: vec![Panel {
            x: Axis::linear("write size"),
            y: Axis { format: Format::Plain, ..Axis::linear("MB/s") },
            content: Content::Bars(Bars {
                series: vec![("no mirror".into(), Hue(0)), ("mirror".into(), Hue(1))],
                groups: vec![
                    Group { name: "64K".into(), values: vec![value(240.0), value(239.0)] },
                    Group { name: "8K".into(), values: vec![value(96.8), None] },
                ],
            }),
            marks: Vec::new(),
        }],
        ..Figure::default()
    }
}

#[test]
fn all_that_was_given_is_in_the_picture() {
    let svg = lines().svg(Theme::Auto);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let text: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
    for said in ["pd-ssd by size", "size, GB", "IOPS", "volume size", "machine", "15k", "500 GB"] {
        assert!(text.contains(&said), "{said}: {text:?}");
    }
    // Two of the legend, two of the panel.
    let polylines = document.descendants().filter(|node| node.has_tag_name("polyline"));
    assert_eq!(polylines.count(), 4);

    let svg = bars().svg(Theme::Dark);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let bars = document.descendants().filter(|node| {
        node.has_tag_name("rect") && node.attribute("class").is_some_and(|c| c.starts_with('f'))
    });
    assert_eq!(bars.count(), 2 + 3);
}

#[test]
fn pictures_need_nothing_from_outside() {
    for theme in [Theme::Light, Theme::Dark, Theme::Auto] {
        let svg = lines().svg(theme);
        assert_eq!(svg.matches("http").count(), 1, "the name of the format alone: {svg}");
        assert!(!svg.contains("<script") && !svg.contains("url("));
    }
}

#[test]
fn a_png_has_letters_and_lines() {
    let picture = png(&lines(), 1.0).unwrap();
    assert_eq!(&picture[1..4], b"PNG");
    assert_eq!(picture, png(&lines(), 1.0).unwrap());
    // A picture without its words is another picture: the font was found.
    let mut wordless = lines();
    wordless.title.clear();
    assert_ne!(picture, png(&wordless, 1.0).unwrap());
    assert!(png(&bars(), 40.0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_and_any_number_is_well_formed(
        text in any::<String>(),
        points in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..12),
        log in any::<bool>(),
        hue in any::<usize>(),
    ) {
        let axis = |label: &str| if log { Axis::log(label) } else { Axis::linear(label) };
        let line = Line {
            name: text.clone(),
            hue: Hue(hue / 2),
            pieces: vec![points],
            dots: true,
        };
        let figure = Figure {
            title: text.clone(),
            panels: vec![Panel {
                x: axis(&text),
                y: axis(&text),
                content: Content::Lines(vec![line]),
                marks: vec![Mark { x: 1.0, text: text.clone() }],
            }],
            ..Figure::default()
        };
        let svg = figure.svg(Theme::Auto);
        prop_assert!(roxmltree::Document::parse(&svg).is_ok(), "{}", svg);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{}", svg);
    }
}
