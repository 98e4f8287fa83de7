//! Named values: enums with one name per value, in configuration, JSON, metrics and commands.

/// Declares an enum with `ALL`, `name()`, `Display`, and the name as its serde form. With
/// `_ => Unknown` at the end, values that a reader does not know become `Unknown`, the default; it
/// is not in `ALL`.
#[macro_export]
macro_rules! named {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $text:literal, )*
            $( _ => $unknown:ident )?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $( $(#[$variant_meta])* #[serde(rename = $text)] $variant, )*
            $(
                /// A value of a later version.
                #[default]
                #[serde(rename = "unknown", other)]
                $unknown,
            )?
        }

        impl $name {
            /// All values of this version, in the order of their declaration.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Name in the configuration, in status documents and in commands.
            pub const fn name(self) -> &'static str {
                match self {
                    $( $name::$variant => $text, )*
                    $( $name::$unknown => "unknown", )?
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
