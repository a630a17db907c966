//! Pages of other sites, names that lead here, and questions about the requests of others.
