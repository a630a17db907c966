//! Configurations and failures of the engine, as clients see them.
