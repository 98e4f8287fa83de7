//! The catalogues in the program are right, and say where everything comes from.

use flagstone_cloud::Catalogue;

#[test]
fn the_catalogues_in_the_program_are_read() {
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
fn every_source_is_of_some_date_and_used() {
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
fn every_type_has_tables_and_every_table_has_sources() {
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
