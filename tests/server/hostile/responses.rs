//! Responses keep to HTTP, whatever the request.
