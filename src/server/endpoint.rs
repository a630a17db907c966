//! Describes one path of the server: its access rule, its methods and the OpenAPI operation of each method.

use actix_web::web::ServiceConfig;
use utoipa::openapi::path::{HttpMethod, Operation};

use super::openapi::facts::Facts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Open,
    /// As [`Self::Open`], for a page to which other sites may link.
    Page,
    /// Clients with the API key, if one is set.
    Key,
    /// Clients with the admin key, if one is set.
    Admin,
}

pub(super) type Describe = fn(&Facts) -> Operation;

pub(super) struct Endpoint {
    /// The path, as a pattern of actix-web.
    pub(super) path: &'static str,
    pub(super) access: Access,
    /// The name of the error's schema.
    pub(super) error: &'static str,
    pub(super) methods: Vec<(HttpMethod, Describe)>,
    mount: Box<dyn Fn(&mut ServiceConfig)>,
}

impl Endpoint {
    pub(super) fn mount(&self, cfg: &mut ServiceConfig) {
        (self.mount)(cfg);
    }

    /// An endpoint that requires the API key.
    pub(super) fn new(
        path: &'static str,
        methods: Vec<(HttpMethod, Describe)>,
        mount: impl Fn(&mut ServiceConfig) + 'static,
    ) -> Self {
        Self {
            path,
            access: Access::Key,
            error: "Error",
            methods,
            mount: Box::new(mount),
        }
    }

    pub(super) fn with(self, access: Access) -> Self {
        Self { access, ..self }
    }

    pub(super) fn with_error(self, error: &'static str) -> Self {
        Self { error, ..self }
    }
}

pub(super) fn name(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
        HttpMethod::Delete => "DELETE",
        HttpMethod::Options => "OPTIONS",
        HttpMethod::Head => "HEAD",
        HttpMethod::Patch => "PATCH",
        HttpMethod::Trace => "TRACE",
    }
}
