//! Pages of HTML, which are also well-formed XML: another program's parser is the judge.

use crate::python::fed;

/// Counts the elements by name; an attribute that runs or fetches something is an error, as is a page that is not well-formed.
const ELEMENTS: &str = "\
import collections, sys, urllib.parse, xml.etree.ElementTree as tree
names = collections.Counter()
for element in tree.parse(sys.stdin.buffer).getroot().iter():
    name = element.tag.split('}')[-1]
    names[name] += 1
    assert not any(name.startswith('on') or name == 'src' for name in element.attrib), element.attrib
    if 'href' in element.attrib:
        link = urllib.parse.urlsplit(element.attrib['href'])
        assert name == 'a' and link.scheme in ('', 'file') and not link.netloc, link
print(' '.join(f'{name}={count}' for name, count in sorted(names.items())))
";
/// The path of each link, without its escapes, and its text.
const LINKS: &str = "\
import sys, urllib.parse, xml.etree.ElementTree as tree
for link in tree.parse(sys.stdin.buffer).getroot().iter('a'):
    print(urllib.parse.unquote(urllib.parse.urlsplit(link.attrib['href']).path), link.text, sep='\\t')
";

/// Asserts that expat parses a page and that nothing in it runs or fetches; returns the elements, as `svg=2`.
pub fn elements(page: &str) -> Vec<String> {
    let names = fed("python3", ELEMENTS, page);
    assert!(!names.contains("script="), "{names}");
    names.split_whitespace().map(str::to_owned).collect()
}

/// The links of a page: path and text.
pub fn links(page: &str) -> Vec<(String, String)> {
    let links = fed("python3", LINKS, page);
    let link = |line: &str| line.split_once('\t').map(|(path, text)| (path.to_owned(), text.to_owned()));
    links.lines().map(|line| link(line).unwrap()).collect()
}

/// Contrast of two colours, as in `#0072B2` (WCAG 2.2, 1.4.3).
pub fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |text: &str| {
        let linear = |at: usize| {
            let part = f64::from(u8::from_str_radix(&text[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(1) + 0.7152 * linear(3) + 0.0722 * linear(5)
    };
    let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
    (one / other).max(other / one)
}

/// Asserts that text and lines of a page are visible in light and in dark colours, by the colours of its style: variables
/// `--page` and so on, and a rule for the dark colour of each line.
pub fn assert_visible(page: &str) {
    let colour = |text: &str| text.get(..7).filter(|text| text.starts_with('#')).map(str::to_owned);
    // Of light pages, then of dark ones.
    let both = |name: &str| -> [String; 2] {
        let found: Vec<_> = page.split(&format!("--{name}:")).skip(1).filter_map(colour).collect();
        found.try_into().unwrap_or_else(|found| panic!("{name}: {found:?}"))
    };
    let pages = both("page");
    for (name, least) in [("text", 7.0), ("quiet", 4.5), ("bar", 4.5)] {
        for (text, page) in both(name).iter().zip(&pages) {
            assert!(contrast(text, page) >= least, "{name}: {text} on {page}");
        }
    }
    let rules = page.split("svg [stroke=\"").skip(1).filter_map(|rule| {
        let (light, dark) = rule.split_once("\"]{stroke:")?;
        Some([colour(light), colour(dark)])
    });
    let lines: Vec<_> = rules.collect();
    assert!(lines.len() > 1, "{page}");
    for line in lines {
        for (line, page) in line.iter().zip(&pages) {
            let line = line.as_ref().unwrap();
            // 3:1 is what WCAG asks of graphics.
            assert!(contrast(line, page) >= 3.0, "{line} on {page}");
        }
    }
}
