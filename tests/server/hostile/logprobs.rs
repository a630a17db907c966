//! Log probabilities are sent once, within a bound, and to clients who read.
