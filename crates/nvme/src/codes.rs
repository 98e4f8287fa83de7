//! Macros for two shapes that the specifications use throughout: a set of named codes, and an
//! integer divided into bit fields.

/// Declares a newtype over an integer with named values.
///
/// A newtype rather than an `enum`: any value can arrive from the wire, and must be kept, printed
/// and refused without a conversion that fails first.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) {
            $( $constant:ident = $value:literal, $text:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                #[doc = concat!($text, " (", stringify!($value), ").")]
                pub const $constant: Self = Self($value);
            )*

            /// The name in the specification; `None` for a reserved or vendor specific value.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($text), )*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#04x}", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#04x} {})"), self.0, self)
            }
        }

        impl From<$repr> for $name {
            fn from(value: $repr) -> Self {
                Self(value)
            }
        }
    };
}

/// Declares a newtype over an integer divided into bit fields, each with a getter and a `with_`
/// setter that keeps the low bits of its argument that the field can hold.
macro_rules! bits {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($repr:ty) {
            $(
                $(#[$fmeta:meta])*
                $get:ident, $with:ident: $shift:literal, $width:literal $(, $text:literal)?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                $(#[$fmeta])*
                $(#[doc = $text])?
                #[doc = concat!("\n\nLowest bit ", stringify!($shift), ", ", stringify!($width), " bits.")]
                #[inline]
                pub const fn $get(self) -> $repr {
                    (self.0 >> $shift) & (<$repr>::MAX >> (<$repr>::BITS - $width))
                }

                #[doc = concat!("Sets [`Self::", stringify!($get), "`] to the low ", stringify!($width), " bits of `value`.")]
                #[inline]
                pub const fn $with(self, value: $repr) -> Self {
                    let mask = (<$repr>::MAX >> (<$repr>::BITS - $width)) << $shift;
                    Self((self.0 & !mask) | ((value << $shift) & mask))
                }
            )*
        }

        const _: () = {
            // Every field lies within the integer, and no two fields share a bit.
            let mut seen: $repr = 0;
            $(
                let ones = <$repr>::MAX >> (<$repr>::BITS - $width);
                let mask = ones << $shift;
                assert!(mask >> $shift == ones, stringify!($get));
                assert!(seen & mask == 0, stringify!($get));
                seen |= mask;
            )*
            let _ = seen;
        };
    };
}

/// Declares modules of constants of one type, each with its meaning.
macro_rules! constants {
    ($(
        $(#[$meta:meta])*
        pub mod $name:ident($repr:ty) {
            $( $constant:ident = $value:expr, $text:literal; )*
        }
    )*) => {$(
        $(#[$meta])*
        pub mod $name {
            $(
                #[doc = $text]
                pub const $constant: $repr = $value;
            )*
        }
    )*};
}

pub(crate) use {bits, codes, constants};
