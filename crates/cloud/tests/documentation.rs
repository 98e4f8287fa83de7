//! `docs/catalogue.md`: its tables of keys are generated from the types.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use flagstone_cloud::Catalogue;

const MODEL: &str = concat!(
    include_str!("../src/catalogue/model/mod.rs"),
    include_str!("../src/catalogue/model/disk.rs"),
    include_str!("../src/catalogue/model/machine.rs"),
    include_str!("../src/catalogue/model/page.rs"),
    include_str!("../src/catalogue/model/remarks.rs"),
    include_str!("../src/catalogue/model/rules.rs"),
    include_str!("../src/catalogue/model/source.rs"),
    include_str!("../src/catalogue/model/units.rs"),
);

/// Keys that most tables share, which the page describes once.
const COMMON: [&str; 3] = ["Sources.", "Overrides the confidence of the sources.", "Remark."];

/// The keys of a type as a Markdown list: name, whether it is required, and its documentation.
fn keys(of: &str) -> String {
    let start = MODEL.find(&format!("pub struct {of} {{")).unwrap_or_else(|| panic!("{of}"));
    let body = MODEL[start..].split("\n}").next().expect("it ends");
    let mut out = String::from("\n");
    let (mut words, mut renamed, mut optional) = (String::new(), None, false);
    for line in body.lines().skip(1).map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            words += text;
        } else if line.starts_with("#[serde(") {
            optional |= line.contains("default");
            renamed = line.split("rename = \"").nth(1).and_then(|rest| rest.split('"').next());
        } else if let Some((name, kind)) =
            line.strip_prefix("pub ").and_then(|rest| rest.split_once(": "))
        {
            let need = if optional || kind.starts_with("Option") { "" } else { " (required)" };
            let name = renamed.unwrap_or(name);
            if !COMMON.contains(&words.trim()) {
                let _ = writeln!(out, "- `{name}`{need}: {}", words.trim());
            }
            (words, renamed, optional) = (String::new(), None, false);
        }
    }
    out + "\n"
}

#[test]
fn catalogue_reference_matches_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/catalogue.md");
    let written = fs::read_to_string(&path).expect("docs/catalogue.md exists");
    let mut doc = written.clone();
    let structs = MODEL.matches("\npub struct ").count();
    let mut documented = 0;
    let mut at = 0;
    while let Some(found) = doc[at..].find("<!-- keys of ") {
        let begin = at + found + "<!-- keys of ".len();
        let name = doc[begin..].split(" -->").next().expect("the mark is whole").to_owned();
        let from = begin + name.len() + " -->\n".len();
        let length = doc[from..].find("<!-- end -->").expect("the end is marked");
        doc.replace_range(from..from + length, &keys(&name));
        documented += 1;
        at = from;
    }
    assert_eq!(documented, structs, "every table of the format is documented");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &doc).expect("it can be written");
    }
    let written = fs::read_to_string(&path).expect("docs/catalogue.md exists");
    assert!(written == doc, "docs/catalogue.md differs (UPDATE_GOLDEN=1 writes it); now:\n{doc}");
}

#[test]
fn documented_catalogue_parses() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/catalogue.md");
    let doc = fs::read_to_string(path).expect("docs/catalogue.md exists");
    let example = doc.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let catalogue = Catalogue::parse("docs/catalogue.md", example.expect("there is one"));
    catalogue.unwrap_or_else(|error| panic!("{error}"));
}
