// Package docs has the document that coordinators serve.
package docs

import _ "embed"

// OpenAPI describes what coordinators serve over HTTP, as OpenAPI 3.
//
//go:embed openapi.json
var OpenAPI []byte
