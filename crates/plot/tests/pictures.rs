//! Tests of pictures: well-formed, complete, deterministic.

use flagstone_plot::{
    Axis, BarValue, Bars, Curve, Figure, Group, Hue, LineSeries, Mark, Note, NumberFormat, Panel,
    PanelContent, Scale, Stretch, Theme,
};
use proptest::prelude::*;

fn lines() -> Figure {
    let line = |name: &str, hue, pieces| LineSeries {
        name: name.into(),
        hue: Hue(hue),
        pieces,
        ..LineSeries::default()
    };
    Figure {
        title: "pd-ssd by size".into(),
        subtitle: "n1-standard-8, 4 KiB random reads".into(),
        panels: vec![Panel {
            x: Axis::log("size, GB"),
            y: Axis::linear("IOPS"),
            content: PanelContent::Lines(vec![
                line("volume size", 0, vec![vec![(10.0, 300.0), (500.0, 15_000.0)]]),
                line("machine", 1, vec![vec![(500.0, 15_000.0), (4000.0, 15_000.0)]]),
            ]),
            marks: vec![Mark { x: 500.0, text: "500 GB".into() }],
        }],
        footer: "gcp-2019".into(),
    }
}

fn bars() -> Figure {
    let value = |value: f64| Some(BarValue { value, between: Some((value * 0.9, value * 1.1)) });
    Figure {
        title: "Mirror".into(),
        panels: vec![Panel {
            x: Axis::linear("write size"),
            y: Axis { format: NumberFormat::Plain, ..Axis::linear("MB/s") },
            content: PanelContent::Bars(Bars {
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
fn picture_contains_all_text_and_shapes() {
    let svg = lines().svg(Theme::Auto);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let text: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
    for said in ["pd-ssd by size", "size, GB", "IOPS", "volume size", "machine", "15k", "500 GB"] {
        assert!(text.contains(&said), "{said}: {text:?}");
    }
    // Two in the legend, two in the panel.
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
fn pictures_are_self_contained() {
    for theme in [Theme::Light, Theme::Dark, Theme::Auto] {
        let svg = lines().svg(theme);
        assert_eq!(svg.matches("http").count(), 1, "the name of the format alone: {svg}");
        assert!(!svg.contains("<script") && !svg.contains("url("));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_text_and_number_is_well_formed(
        text in any::<String>(),
        points in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..12),
        log in any::<bool>(),
        hue in any::<usize>(),
    ) {
        let axis = |label: &str| if log { Axis::log(label) } else { Axis::linear(label) };
        let line = LineSeries {
            name: text.clone(),
            hue: Hue(hue / 2),
            pieces: vec![points],
            dots: true,
            band: vec![(1.0, 2.0, 3.0)],
        };
        let figure = Figure {
            title: text.clone(),
            panels: vec![Panel {
                x: axis(&text),
                y: axis(&text),
                content: PanelContent::Lines(vec![line]),
                marks: vec![Mark { x: 1.0, text: text.clone() }],
            }],
            ..Figure::default()
        };
        let svg = figure.svg(Theme::Auto);
        prop_assert!(roxmltree::Document::parse(&svg).is_ok(), "{}", svg);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{}", svg);
    }
}

fn curves() -> Figure {
    let stretch = |hue, meaning: &str, points: &[(f64, f64)]| Stretch {
        hue: Hue(hue),
        meaning: meaning.into(),
        label: format!("{meaning}, IOPS"),
        points: points.to_vec(),
    };
    let curve = |name: &str, dash, most: f64| Curve {
        name: name.into(),
        dash,
        stretches: vec![
            stretch(0, "volume", &[(16.0, most / 32.0), (512.0, most)]),
            stretch(1, "machine", &[(512.0, most), (4096.0, most)]),
        ],
        discrete: false,
        notes: vec![Note { x: 512.0, y: most, text: format!("512 GiB: {most}") }],
    };
    Figure {
        title: "IOPS by size".into(),
        panels: vec![Panel {
            x: Axis { scale: Scale::Log2, format: NumberFormat::Gib, ..Axis::log("size") },
            y: Axis { format: NumberFormat::Plain, ..Axis::log("IOPS, random reads") },
            content: PanelContent::Curves(vec![
                curve("pd-ssd", 0, 16_000.0),
                curve("pd-balanced", 1, 4000.0),
            ]),
            marks: Vec::new(),
        }],
        ..Figure::default()
    }
}

#[test]
fn curves_differ_by_dash_name_and_color() {
    let svg = curves().svg(Theme::Light);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<_> = document
        .descendants()
        .filter(|n| n.has_tag_name("text"))
        .filter_map(|n| n.text())
        .collect();
    let times = |said: &str| texts.iter().filter(|text| **text == said).count();
    // Names in the legend and at the line's end, meanings in the legend, one label beside a line.
    for (said, wanted) in [
        ("pd-ssd", 2),
        ("pd-balanced", 2),
        ("volume", 1),
        ("machine", 1),
        ("volume, IOPS", 1),
        ("machine, IOPS", 1),
        ("512 GiB: 16000", 1),
        ("1\u{a0}TiB", 1),
        ("IOPS, random reads", 1),
    ] {
        assert_eq!(times(said), wanted, "{said}: {texts:?}");
    }
    let lines = |class: &str, dashed: bool| {
        let of = document.descendants().filter(|node| {
            node.has_tag_name("polyline")
                && node.attribute("class") == Some(class)
                && node.attribute("stroke-dasharray").is_some() == dashed
        });
        of.count()
    };
    for class in ["line curve l0", "line curve l1"] {
        assert_eq!((lines(class, false), lines(class, true)), (1, 1), "{class}");
    }
    let rings = document.descendants().filter(|n| n.attribute("class") == Some("ring f1"));
    assert_eq!(rings.count(), 2, "where another limit begins to bind");
}

#[test]
fn discrete_points_are_dots() {
    let mut figure = curves();
    let PanelContent::Curves(all) = &mut figure.panels[0].content else {
        panic!("they are curves")
    };
    all.truncate(1);
    all[0].discrete = true;
    let svg = figure.svg(Theme::Light);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let of = |class: &str| {
        document.descendants().filter(|n| n.attribute("class") == Some(class)).count()
    };
    assert_eq!((of("ring f0"), of("ring f1"), of("lead")), (2, 2, 1));
    // A single curve needs no name.
    assert!(!svg.contains("pd-ssd"));
}

#[test]
fn curve_labels_do_not_overlap() {
    let svg = curves().svg(Theme::Light);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let number = |node: &roxmltree::Node<'_, '_>, name| -> f64 {
        node.attribute(name).unwrap().parse().unwrap()
    };
    let boxes: Vec<(f64, f64, f64, f64)> = document
        .descendants()
        .filter(|node| node.has_tag_name("text") && node.attribute("transform").is_none())
        .map(|node| {
            let (x, y, size) = (number(&node, "x"), number(&node, "y"), number(&node, "font-size"));
            let width = node.text().unwrap().chars().count() as f64 * size * 0.55;
            let left = match node.attribute("text-anchor") {
                Some("middle") => x - width / 2.0,
                Some("end") => x - width,
                _ => x,
            };
            (left, y - size * 0.8, left + width, y)
        })
        .collect();
    for (at, a) in boxes.iter().enumerate() {
        for b in &boxes[at + 1..] {
            let apart = a.0 >= b.2 || b.0 >= a.2 || a.1 >= b.3 || b.1 >= a.3;
            assert!(apart, "{a:?} {b:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_curve_is_well_formed(
        text in any::<String>(),
        points in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..12),
        scale in prop_oneof![Just(Scale::Linear), Just(Scale::Log), Just(Scale::Log2)],
        ticks in proptest::collection::vec(any::<f64>(), 0..4),
        (dash, discrete, several) in (any::<usize>(), any::<bool>(), any::<bool>()),
    ) {
        let axis = || Axis { scale, ticks: ticks.clone(), ..Axis::linear(text.clone()) };
        let middle = points.len() / 2;
        let stretch = |hue, points: &[(f64, f64)]| Stretch {
            hue: Hue(hue),
            meaning: text.clone(),
            label: text.clone(),
            points: points.to_vec(),
        };
        let curve = Curve {
            name: text.clone(),
            dash,
            stretches: vec![stretch(0, &points[..middle]), stretch(3, &points[middle..])],
            discrete,
            notes: points.iter().map(|(x, y)| Note { x: *x, y: *y, text: text.clone() }).collect(),
        };
        let figure = Figure {
            subtitle: text.clone(),
            footer: text.clone(),
            panels: vec![Panel {
                x: axis(),
                y: axis(),
                content: PanelContent::Curves(vec![curve; if several { 2 } else { 1 }]),
                marks: Vec::new(),
            }],
            ..Figure::default()
        };
        let svg = figure.svg(Theme::Auto);
        prop_assert!(roxmltree::Document::parse(&svg).is_ok(), "{}", svg);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{}", svg);
    }
}

/// The last number of an axis is at the edge of the picture.
#[test]
fn axis_numbers_fit_the_picture() {
    let mut figure = lines();
    figure.panels[0].x =
        Axis { scale: Scale::Log, format: NumberFormat::Nines, ..Axis::linear("x") };
    figure.panels[0].marks.clear();
    let pieces = vec![vec![(1.0, 1.0), (10_000.0, 2.0)]];
    let line =
        LineSeries { name: "a".into(), hue: Hue(0), pieces, dots: true, ..LineSeries::default() };
    figure.panels[0].content = PanelContent::Lines(vec![line]);
    let svg = figure.svg(Theme::Light);
    let document = roxmltree::Document::parse(&svg).unwrap();
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| -> f64 {
        node.attribute(name).and_then(|text| text.parse().ok()).unwrap()
    };
    let width = number(&document.root_element(), "width");
    let last = document.descendants().find(|node| node.text() == Some("99.99\u{a0}%")).unwrap();
    let last = last.ancestors().find(|node| node.has_tag_name("text")).unwrap();
    let half = "99.99 %".len() as f64 * number(&last, "font-size") * 0.6 / 2.0;
    assert!(number(&last, "x") + half <= width, "it ends at {}", number(&last, "x") + half);
}
