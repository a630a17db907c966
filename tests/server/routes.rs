//! The server's routes, read from the OpenAPI document, which is generated from the same table as the routes.

use std::net::SocketAddr;

use crate::http::get;

#[derive(Debug, PartialEq)]
pub struct Route {
    /// The method in upper case, as requests write it.
    pub method: String,
    /// The path with a value for each parameter.
    pub path: String,
    /// Whether the document describes a request body.
    pub takes_body: bool,
    /// Whether the document says that it needs no key.
    pub is_open: bool,
}

impl Route {
    pub fn start(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// Every route in the document of the server at `addr`.
pub fn all(addr: SocketAddr) -> Vec<Route> {
    let document = get(addr, "/openapi.json").ok();
    let paths = document["paths"].as_object().expect("paths").iter();
    let routes = paths.flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods").iter();
        methods.map(|(method, operation)| Route {
            method: method.to_uppercase(),
            path: filled(path),
            takes_body: !operation["requestBody"].is_null(),
            is_open: operation["responses"]["401"].is_null(),
        })
    });
    let routes: Vec<Route> = routes.collect();
    assert!(routes.len() > 40, "{routes:?}");
    routes
}

/// The routes that have this method.
pub fn with_method(addr: SocketAddr, method: &str) -> Vec<Route> {
    let mut routes = all(addr);
    routes.retain(|route| route.method == method);
    routes
}

/// The path with a value for each of its parameters.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{file}" => "page.js",
        part if part.starts_with('{') => "some",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}
