//! Built-in catalogues: they parse, and every number has a source.

use flagstone_cloud::Catalogue;

#[test]
fn builtin_catalogues_parse() {
    for name in Catalogue::builtin_names() {
        let text = Catalogue::builtin_text(name).expect(name);
        let catalogue = Catalogue::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(catalogue.name, name);
        assert_eq!(Catalogue::builtin(name), Some(&catalogue));
        assert_eq!(Catalogue::open(name).as_ref(), Ok(&catalogue));
    }
    assert_eq!(Catalogue::builtin("gcp-2031"), None);
}

#[test]
fn sources_are_dated_and_used() {
    for name in Catalogue::builtin_names() {
        let text = Catalogue::builtin_text(name).expect(name);
        let catalogue = Catalogue::builtin(name).expect(name);
        for (key, source) in &catalogue.sources {
            assert!(!source.date.is_empty() && !source.address.is_empty(), "{key}");
            assert!(text.contains(&format!("\"{key}\"")), "{name}: nothing rests on {key}");
        }
    }
}

#[test]
fn types_have_tables_with_sources() {
    for name in Catalogue::builtin_names() {
        let catalogue = Catalogue::builtin(name).expect(name);
        for kind in catalogue.types.keys() {
            let tables = catalogue.tables(Some(kind)).unwrap_or_else(|error| panic!("{error}"));
            assert!(!tables.is_empty(), "{kind}");
            for table in tables {
                assert!(!table.sources.is_empty(), "{kind}: {}", table.title);
                for row in &table.rows {
                    assert_eq!(row.len(), table.columns.len(), "{kind}: {}", table.title);
                    assert!(row.iter().all(|cell| !cell.text.contains("inf")), "{}", table.title);
                }
            }
        }
    }
}
