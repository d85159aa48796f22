package login

import (
	"net/http"

	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const formMedia, jsonMedia = "application/x-www-form-urlencoded", "application/json"

// endpointDoc describes one endpoint for Document.
type endpointDoc struct {
	path, method, id, text string
	media                  string // media type of the body; empty means no body
	body                   []property
	answer                 []property // empty means no body
	code                   int
}

// property is a field of a request or response body.
type property struct {
	name, kind, text string
	required         bool
}

var endpointsDescribed = []endpointDoc{
	{
		tokenPath,
		http.MethodPost,
		"grantToken",
		"Get tokens: an OAuth 2.0 token endpoint (RFC 6749). Clients authenticate by HTTP Basic, " +
			"or in the body.",
		formMedia,
		[]property{
			{"grant_type", "string", "password, refresh_token, client_credentials or authorization_code", true},
			{"username", "string", "of password", false},
			{"password", "string", "of password", false},
			{"refresh_token", "string", "for refresh_token; valid only once", false},
			{
				"code",
				"string",
				"of authorization_code",
				false,
			},
			{"code_verifier", "string", "for authorization_code (PKCE)", false},
			{"redirect_uri", "string", "of authorization_code", false},
			{"client_id", "string", "", false},
			{"client_secret", "string", "", false},
		},
		[]property{
			{"access_token", "string", "for Authorization: Bearer", true}, {"token_type", "string", "Bearer", true},
			{"expires_in", "integer", "seconds", true}, {"refresh_token", "string", "", false},
		},
		http.StatusOK,
	},
	{
		revokePath,
		http.MethodPost,
		"revokeToken",
		"End the session of a token (RFC 7009).",
		formMedia,
		[]property{
			{
				"token",
				"string",
				"an access token, or a refresh token",
				true,
			},
			{"client_id", "string", "", false},
			{"client_secret", "string", "", false},
		},
		nil,
		http.StatusOK,
	},
	{
		keysPath,
		http.MethodGet,
		"getTokenKeys",
		"The public keys of tokens, as a JSON Web Key Set.",
		"",
		nil,
		[]property{{"keys", "array", "", true}},
		http.StatusOK,
	},
	{
		sessionPath,
		http.MethodPost,
		"beginSession",
		"Sign in for a page of the server: sets a cookie, which is valid only for these paths.",
		jsonMedia,
		[]property{
			{"username", "string", "", true}, {"password", "string", "", true},
		},
		[]property{{"user", "string", "", true}},
		http.StatusOK,
	},
	{
		sessionPath,
		http.MethodDelete,
		"endSession",
		"Sign out: ends the session of the cookie, and revokes its tokens.",
		"",
		nil,
		nil,
		http.StatusNoContent,
	},
	{
		sessionTokenPath,
		http.MethodPost,
		"getSessionToken",
		"Get an access token for the cookie. Needs the header X-Annex-Session: 1.",
		"",
		nil,
		[]property{
			{"access_token", "string", "", true}, {"expires_in", "integer", "seconds", true}, {"user", "string", "", true},
		},
		http.StatusOK,
	},
}

// Document returns the OpenAPI v3 description of the endpoints for programs. Endpoints that only browsers use are not
// included.
func Document() *spec3.OpenAPI {
	document := &spec3.OpenAPI{
		Paths: &spec3.Paths{Paths: map[string]*spec3.Path{}},
		Components: &spec3.Components{Schemas: map[string]*spec.Schema{"Error": objectOf([]property{
			{"error", "string", "as RFC 6749 names it", true}, {"error_description", "string", "", false},
		})}},
	}
	for _, e := range endpointsDescribed {
		at := document.Paths.Paths[e.path]
		if at == nil {
			at = &spec3.Path{}
			document.Paths.Paths[e.path] = at
		}
		o := e.operation()
		switch e.method {
		case http.MethodGet:
			at.Get = o
		case http.MethodPost:
			at.Post = o
		case http.MethodDelete:
			at.Delete = o
		}
	}
	return document
}

func (e *endpointDoc) operation() *spec3.Operation {
	o := &spec3.Operation{OperationProps: spec3.OperationProps{OperationId: e.id, Description: e.text, Tags: []string{"oauth"}}}
	if e.media != "" {
		o.RequestBody = &spec3.RequestBody{
			RequestBodyProps: spec3.RequestBodyProps{Required: true, Content: contentOf(e.media, objectOf(e.body))},
		}
	}
	right := &spec3.Response{ResponseProps: spec3.ResponseProps{Description: http.StatusText(e.code)}}
	if len(e.answer) > 0 {
		right.Content = contentOf(jsonMedia, objectOf(e.answer))
	}
	wrong := &spec3.Response{
		ResponseProps: spec3.ResponseProps{
			Description: "What was wrong.",
			Content:     contentOf(jsonMedia, spec.RefSchema("#/components/schemas/Error")),
		},
	}
	o.Responses = &spec3.Responses{
		ResponsesProps: spec3.ResponsesProps{StatusCodeResponses: map[int]*spec3.Response{e.code: right}, Default: wrong},
	}
	return o
}

func contentOf(media string, schema *spec.Schema) map[string]*spec3.MediaType {
	return map[string]*spec3.MediaType{media: {MediaTypeProps: spec3.MediaTypeProps{Schema: schema}}}
}

func objectOf(all []property) *spec.Schema {
	o := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{}}}
	for _, p := range all {
		schema := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{p.kind}, Description: p.text}}
		if p.kind == "array" {
			schema.Items = &spec.SchemaOrArray{Schema: objectOf(nil)}
		}
		o.Properties[p.name] = schema
		if p.required {
			o.Required = append(o.Required, p.name)
		}
	}
	return o
}
