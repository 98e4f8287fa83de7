//! OpenAPI 3.1 document, generated from the table of routes and the types of their documents.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::http::problem::{self, Problem};
use crate::http::router::RouteInfo;

const SCHEMAS: &str = "/components/schemas";

/// Describes all routes.
pub fn document(routes: &[RouteInfo]) -> Value {
    // Members with a default may be left out of requests, and are always in answers.
    let mut requests = generator(SchemaSettings::draft2020_12().for_deserialize());
    let mut answers = generator(SchemaSettings::draft2020_12().for_serialize());
    let failure = json!({
        "description": "A problem document, RFC 9457.",
        "content": {
            problem::CONTENT_TYPE: { "schema": answers.subschema_for::<Problem>() }
        },
    });
    let mut paths = Map::new();
    for route in routes {
        let schema = Value::from((route.answer)(&mut answers));
        let mut operation = json!({
            "summary": route.about,
            "responses": {
                "200": { "description": "OK", "content": { route.media_type: { "schema": schema } } },
                "default": failure,
            },
        });
        let parameters: Vec<_> =
            route.pattern.split('/').filter_map(name_of).map(parameter).collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(schema) = route.body {
            let schema = Value::from(schema(&mut requests));
            operation["requestBody"] = json!({
                "required": false,
                "content": { "application/json": { "schema": schema } },
            });
        }
        let path = paths.entry(route.pattern).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = answers.take_definitions(true);
    schemas.extend(requests.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Flagstone control API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/1.1 over a Unix socket, or over TCP with TLS 1.3; see docs/api.md.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        // Over TCP: one of both. The Unix socket needs neither.
        "security": [{}, { "token": [] }, { "certificate": [] }],
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Token of an [api_user.NAME]; orders (POST) need the role operator.",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "Client certificate with the certificate_name of an [api_user.NAME].",
                },
            },
        },
    })
}

fn generator(mut settings: SchemaSettings) -> SchemaGenerator {
    settings.definitions_path = SCHEMAS.into();
    settings.meta_schema = None;
    settings.into_generator()
}

fn name_of(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

fn parameter(name: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}
