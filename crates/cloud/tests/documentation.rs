//! `docs/catalog.md`: its tables of keys are generated from the types.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use flagstone_cloud::Catalog;

/// The types of the format, except pages and remarks, which only the built-in catalogs have.
const MODEL: &str = concat!(
    include_str!("../src/catalog/model/mod.rs"),
    include_str!("../src/catalog/model/disk.rs"),
    include_str!("../src/catalog/model/machine.rs"),
    include_str!("../src/catalog/model/rules.rs"),
    include_str!("../src/catalog/model/source.rs"),
    include_str!("../src/catalog/model/units.rs"),
);

/// The tables of the format, whose Rust visibility does not matter.
fn model() -> String {
    MODEL.replace("pub(crate) ", "pub ")
}

/// Keys that most tables share, which the page describes once.
const COMMON: [&str; 3] = ["source", "confidence", "note"];

/// The keys of a type as a Markdown list, required ones bold, each with its documentation. Keys
/// without documentation are in the last line.
fn keys(of: &str) -> String {
    let model = model();
    let start = model.find(&format!("pub struct {of} {{")).unwrap_or_else(|| panic!("{of}"));
    let body = model[start..].split("\n}").next().expect("it ends");
    let mut out = String::from("\n");
    let (mut words, mut renamed, mut optional) = (String::new(), None, false);
    let mut bare = Vec::new();
    for line in body.lines().skip(1).map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            words += text;
        } else if line.starts_with("#[serde(") {
            optional |= line.contains("default");
            renamed = line.split("rename = \"").nth(1).and_then(|rest| rest.split('"').next());
        } else if let Some((name, kind)) =
            line.strip_prefix("pub ").and_then(|rest| rest.split_once(": "))
        {
            let name = renamed.unwrap_or(name);
            let key = match optional || kind.starts_with("Option") {
                true => format!("`{name}`"),
                false => format!("**`{name}`**"),
            };
            match words.trim() {
                "" if COMMON.contains(&name) => {}
                "" => bare.push(key),
                words => drop(writeln!(out, "- {key}: {words}")),
            }
            (words, renamed, optional) = (String::new(), None, false);
        }
    }
    if !bare.is_empty() {
        let _ = writeln!(out, "- {}", bare.join(", "));
    }
    out
}

#[test]
fn catalog_reference_matches_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/catalog.md");
    let written = fs::read_to_string(&path).expect("docs/catalog.md exists");
    let mut doc = written.clone();
    let structs = model().matches("\npub struct ").count();
    let mut documented = 0;
    let mut at = 0;
    while let Some(found) = doc[at..].find("<!--keys:") {
        let begin = at + found + "<!--keys:".len();
        let name = doc[begin..].split("-->").next().expect("the mark is whole").to_owned();
        let from = begin + name.len() + "-->\n".len();
        let length = doc[from..].find("\n## ").unwrap_or(doc.len() - from);
        doc.replace_range(from..from + length, &keys(&name));
        documented += 1;
        at = from;
    }
    assert_eq!(documented, structs, "every table of the format is documented");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &doc).expect("it can be written");
    }
    let written = fs::read_to_string(&path).expect("docs/catalog.md exists");
    assert!(written == doc, "docs/catalog.md differs (UPDATE_GOLDEN=1 writes it); now:\n{doc}");
}

#[test]
fn documented_catalog_parses() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/catalog.md");
    let doc = fs::read_to_string(path).expect("docs/catalog.md exists");
    let example = doc.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let catalog = Catalog::parse("docs/catalog.md", example.expect("there is one"));
    catalog.unwrap_or_else(|error| panic!("{error}"));
}
