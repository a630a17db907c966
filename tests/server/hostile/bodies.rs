//! Bodies: what is read and parsed is bounded over all connections together.
