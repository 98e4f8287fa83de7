//! Enums whose names are the same in JSON, metrics and the command line.

/// Declares an enum with `ALL`, `name()`, `Display`, and the name as its JSON string. With
/// `_ => Unknown` at the end, values that a reader does not know become `Unknown`, the default; it is
/// not in `ALL`.
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $type:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)+
            $(_ => $unknown:ident)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)+
            $(
                /// A value of a later version.
                #[default]
                #[serde(rename = "unknown", other)]
                $unknown,
            )?
        }

        impl $type {
            /// All values of this version.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Name in documents, metrics and the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                    $($type::$unknown => "unknown",)?
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use named_enum;
