//! Dynamically loaded libraries: a macro that declares a table of typed function pointers.

use libloading::Library;

/// Declares a struct of function pointers from `Name, bindings -> Result;` and lines of `field: symbol (arguments);` or
/// `field: symbol like binding (arguments);`, where `binding` is a function of the bindings with the same arguments.
///
/// Results are integers instead of the bindings' enums, because newer libraries have codes that the enums lack.
/// Argument types are checked against the bindings at compile time.
macro_rules! library_functions {
    (
        $(#[$doc:meta])* $name:ident, $bindings:ident -> $result:ty;
        $($field:ident: $symbol:ident $(like $binding:ident)? ($($argument:ty),* $(,)?);)*
    ) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> std::ffi::c_int,)*
        }

        $(const _: unsafe fn($($argument),*) -> $result =
            $crate::cuda::symbols::library_functions!(@binding $bindings $symbol $($binding)?);)*

        impl $name {
            /// Looks up all functions; the error names a missing one.
            ///
            /// # Safety
            /// The bindings describe this library.
            pub(super) unsafe fn resolve(
                library: &libloading::Library,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the argument types are those of the bindings, and the results are C ints.
                    $($field: unsafe {
                        $crate::cuda::symbols::symbol(
                            library,
                            concat!(stringify!($symbol), "\0"),
                        )
                    }?,)*
                })
            }
        }
    };
    (@binding $bindings:ident $symbol:ident) => { $bindings::$symbol };
    (@binding $bindings:ident $symbol:ident $binding:ident) => { $bindings::$binding };
}
pub(super) use library_functions;

/// Looks up a function whose `name` ends in NUL; the error is the name.
///
/// # Safety
/// `F` is the type of the function.
pub(super) unsafe fn symbol<F: Copy>(
    library: &Library,
    name: &'static str,
) -> Result<F, &'static str> {
    // SAFETY: guaranteed by the caller.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found
        .map(|function| *function)
        .map_err(|_| name.trim_end_matches('\0'))
}
