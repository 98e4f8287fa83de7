//! The catalogues in the program are right, and say where everything comes from.

use flagstone_cloud::Catalogue;

#[test]
fn the_catalogues_in_the_program_are_read() {
    for name in Catalogue::builtin_names() {
        let text = Catalogue::builtin_text(name).expect(name);
        let catalogue = Catalogue::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(catalogue.name, name);
    }
}
