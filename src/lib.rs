//! Souffleur.
