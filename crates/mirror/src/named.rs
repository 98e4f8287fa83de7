//! Named values: enums whose values have one name in the configuration, on disk documents and in
//! commands.

/// Declares an enum whose variants have names. The names are also those of its serde form.
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $( $(#[$variant_meta])* #[serde(rename = $text)] $variant, )*
        }

        impl $name {
            /// All values, in the order of their declaration.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Name in the configuration, in status documents and in commands.
            pub const fn name(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )*
                }
            }
        }
    };
}

pub(crate) use named;
