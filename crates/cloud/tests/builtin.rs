//! Built-in catalogs: they parse, and every number has a source.

use flagstone_cloud::Catalog;

#[test]
fn builtin_catalogs_parse() {
    for name in Catalog::builtin_names() {
        let text = Catalog::builtin_text(name).expect(name);
        let catalog = Catalog::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(catalog.name, name);
        assert_eq!(Catalog::builtin(name), Some(&catalog));
        assert_eq!(Catalog::open(name).as_ref(), Ok(&catalog));
    }
    assert_eq!(Catalog::builtin("gcp-2031"), None);
}

#[test]
fn sources_are_dated_and_used() {
    for name in Catalog::builtin_names() {
        let text = Catalog::builtin_text(name).expect(name);
        let catalog = Catalog::builtin(name).expect(name);
        for (key, source) in &catalog.sources {
            assert!(!source.date.is_empty() && !source.address.is_empty(), "{key}");
            assert!(text.contains(&format!("\"{key}\"")), "{name}: nothing rests on {key}");
        }
    }
}

#[test]
fn types_have_tables_with_sources() {
    for name in Catalog::builtin_names() {
        let catalog = Catalog::builtin(name).expect(name);
        for kind in catalog.types.keys() {
            let tables = catalog.tables(Some(kind)).unwrap_or_else(|error| panic!("{error}"));
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
