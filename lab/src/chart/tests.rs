//! Colours, dashes and units of charts.

use clap::ValueEnum;
use wirelane_tests::pages::contrast;

use super::*;
use crate::suite::Named;

#[test]
fn series_are_visible_on_light_and_on_dark_pages_and_differ_without_colours() {
    let contrast = |one: RGBColor, other: RGBColor| contrast(&hex(one), &hex(other));
    for (at, look) in LOOKS.iter().enumerate() {
        // 3:1 is what WCAG asks of graphics.
        assert!(contrast(look.light, WHITE) >= 3.0, "{at}");
        assert!(contrast(look.dark, DARK.0) >= 3.0, "{at}");
        assert!(LOOKS[..at].iter().all(|other| other.dashes != look.dashes), "{at}");
    }
    assert!(contrast(PUBLISHED, WHITE) >= 3.0 && contrast(PUBLISHED, DARK.0) >= 3.0);
    assert!(contrast(DARK.1, DARK.0) >= 7.0);
}

#[test]
fn equal_series_are_both_seen_and_every_axis_has_its_unit() {
    bitmap::register().unwrap();
    let spread = |y: f64| Spread { median: y, low: y, high: y };
    let points: Vec<(f64, Spread)> = [1000.0, 2000.0].map(|x| (x, spread(x))).into();
    let series =
        ["one", "other"].map(|name| Series { name: name.into(), points: points.clone(), published: false });
    let axes = [
        Axis::Rate,
        Axis::Size,
        Axis::Loops,
        Axis::Cores,
        Axis::Workers,
        Axis::Queues,
        Axis::Calls,
        Axis::Entries,
    ];
    let quantities = Quantity::value_variants().iter().copied();
    let of_rates = quantities.flat_map(|quantity| [(quantity, Some(Axis::Rate)), (quantity, None)]);
    let captured = axes.into_iter().map(|axis| (Quantity::Captured, Some(axis)));
    for (quantity, over) in of_rates.chain(captured) {
        let chart = Chart { quantity, over, loops: None };
        let narrow = svg(&NARROW, &chart, &series, ("t", "b")).unwrap();
        let svg = svg(&WIDE, &chart, &series, ("t", "b")).unwrap();
        for title in ["t", "b"] {
            assert!(!narrow.contains(&format!("\n{title}\n")), "text of the page: {narrow}");
        }
        let shown = |text: &str| narrow.matches(&format!("\n{text}\n")).count();
        assert_eq!(
            (shown(quantity.title().1), shown("one") > 0, shown("other") > 0),
            (1, true, true),
            "{narrow}"
        );
        let has = |text: &str| svg.matches(&format!("\n{text}\n")).count();
        assert_eq!(has(quantity.title().1), 1, "{}: {svg}", quantity.name());
        let Some(axis) = over else { continue };
        assert_eq!((has(axis.title()), shown(axis.title())), (1, 1), "{}: {svg}", axis.title());
        // The second line has gaps, in which the first one shows: it is drawn as several pieces.
        let lines = |look: &Look| {
            let stroke = format!("stroke=\"{}\"", hex(look.light));
            svg.split("<polyline").skip(1).filter(|part| part.contains(&stroke)).count()
        };
        assert_eq!(lines(&LOOKS[0]), 1 + 2 + 1, "the line, two spreads, the legend");
        assert!(lines(&LOOKS[1]) > 20, "{}", lines(&LOOKS[1]));
        assert!(svg.starts_with("<svg") && svg.contains("prefers-color-scheme:dark"));
    }
}
