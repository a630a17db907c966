//! Parameters that a batch or many samples would multiply.
