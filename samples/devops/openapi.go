package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/yaml"
)

// operation is the documentation of a path and a method.
type operation struct {
	method, path, id, description string
	query                         []string // name, type, description of each
	body, answer                  string   // names of components; an empty answer is an object without schema
	code                          int
	media                         string // empty for JSON
}

var (
	listQuery = []string{
		"page",
		"integer",
		"Which page, from 1.",
		"limit",
		"integer",
		"How many items a page has, 1000 at most; 0 counts only. Default 10 of a pipeline's runs, else 50.",
		"cursor",
		"string",
		"The page behind the one that gave it.",
		"sortBy",
		"string",
		"name, creationTimestamp, or a column of the kind such as status.phase; of a pipeline's runs, startTime and " +
			"completionTime as well. Default creationTimestamp of a pipeline's runs, else name.",
		"ascending",
		"boolean",
		"Default false of a pipeline's runs, the newest first, else true.",
		"name",
		"string",
		"A part of the name.",
		"labelSelector",
		"string",
		"As in Kubernetes.",
		"q",
		"string",
		"Words that are in one of the columns or the name.",
	}
	operations = []operation{
		{
			method:      http.MethodGet,
			path:        pipelinesPath,
			id:          "listPipelines",
			description: "A page of pipelines.",
			query:       listQuery,
			answer:      "PipelinePage",
		},
		{
			method:      http.MethodPost,
			path:        pipelinesPath,
			id:          "createPipeline",
			description: "Make a pipeline.",
			body:        "Pipeline",
			answer:      "Pipeline",
			code:        http.StatusCreated,
		},
		{method: http.MethodGet, path: pipelinePath, id: "readPipeline", description: "A pipeline.", answer: "Pipeline"},
		{
			method:      http.MethodPut,
			path:        pipelinePath,
			id:          "replacePipeline",
			description: "Change a pipeline.",
			body:        "Pipeline",
			answer:      "Pipeline",
		},
		{method: http.MethodDelete, path: pipelinePath, id: "deletePipeline", description: "Delete a pipeline, and its runs.", answer: "Status"},
		{
			method:      http.MethodGet,
			path:        pipelineRunsPath,
			id:          "listPipelineRuns",
			description: "A page of a pipeline's runs.",
			query: append([]string{
				"branch",
				"string",
				"Only those of a branch.",
				"backward",
				"boolean",
				"Default true: items are RunSummary, the older form. false: they are PipelineRun.",
			}, listQuery...),
			answer: "PipelineRunPage",
		},
		{
			method:      http.MethodPost,
			path:        pipelineRunsPath,
			id:          "runPipeline",
			description: "Run the pipeline.",
			body:        "RunRequest",
			answer:      "PipelineRun",
			code:        http.StatusCreated,
		},
		{method: http.MethodGet, path: pipelineRunPath, id: "readPipelineRun", description: "A run.", answer: "PipelineRun"},
		{
			method:      http.MethodDelete,
			path:        pipelineRunPath,
			id:          "deletePipelineRun",
			description: "Delete a run, with its log. It is ended before.",
			answer:      "Status",
		},
		{
			method:      http.MethodPost,
			path:        pipelineRunPath + "/stop",
			id:          "stopPipelineRun",
			description: "End a run.",
			answer:      "PipelineRun",
			code:        http.StatusAccepted,
		},
		{
			method:      http.MethodGet,
			path:        pipelineRunPath + "/log",
			id:          "readPipelineRunLog",
			description: "Download the log of a run.",
			query:       []string{"follow", "boolean", "Go on until the run has ended."},
			media:       "text/plain",
		},
		{
			method:      http.MethodGet,
			path:        kapisPath + "namespaces/{namespace}/pipelineruns",
			id:          "followPipelineRuns",
			description: "The runs of a namespace, each time that one changes, as Server-Sent Events; without watch, a page of them.",
			query: []string{
				"watch",
				"boolean",
				"true follows them.",
				"spec.pipelineRef.name",
				"string",
				"Only those of a pipeline.",
				"fieldSelector",
				"string",
				"metadata.name=NAME is one run.",
			},
			media: "text/event-stream",
		},
	}
)

// kapisDocument returns the OpenAPI v3 document of the REST API.
func kapisDocument() *spec3.OpenAPI {
	document := &spec3.OpenAPI{
		Paths:      &spec3.Paths{Paths: map[string]*spec3.Path{}},
		Components: &spec3.Components{Schemas: map[string]*spec.Schema{}},
	}
	for name, text := range schemas {
		document.Components.Schemas[name] = schemaOf([]byte(text))
	}
	for name, schema := range schemasOfDefinitions() {
		document.Components.Schemas[name] = schema
	}
	for _, o := range operations {
		at := document.Paths.Paths[o.path]
		if at == nil {
			at = &spec3.Path{}
			for _, name := range []string{"namespace", "pipeline", "run"} {
				if strings.Contains(o.path, "{"+name+"}") {
					at.Parameters = append(
						at.Parameters,
						&spec3.Parameter{ParameterProps: spec3.ParameterProps{Name: name, In: "path", Required: true, Schema: typeOf("string")}},
					)
				}
			}
			document.Paths.Paths[o.path] = at
		}
		*map[string]**spec3.Operation{http.MethodGet: &at.Get, http.MethodPost: &at.Post, http.MethodPut: &at.Put,
			http.MethodDelete: &at.Delete}[o.method] = o.document()
	}
	return document
}

func (o *operation) document() *spec3.Operation {
	documented := &spec3.Operation{
		OperationProps: spec3.OperationProps{OperationId: o.id, Description: o.description, Tags: []string{"devops"}},
	}
	for i := 0; i+2 < len(o.query); i += 3 {
		documented.Parameters = append(documented.Parameters, &spec3.Parameter{ParameterProps: spec3.ParameterProps{
			Name: o.query[i], In: "query", Schema: typeOf(o.query[i+1]), Description: o.query[i+2],
		}})
	}
	if o.body != "" {
		documented.RequestBody = &spec3.RequestBody{
			RequestBodyProps: spec3.RequestBodyProps{Required: true, Content: content("application/json", reference(o.body))},
		}
	}
	code, media, answer := o.code, o.media, typeOf("string")
	if code == 0 {
		code = http.StatusOK
	}
	if media == "" {
		media = "application/json"
	}
	if o.answer != "" {
		answer = reference(o.answer)
	}
	documented.Responses = &spec3.Responses{ResponsesProps: spec3.ResponsesProps{
		StatusCodeResponses: map[int]*spec3.Response{
			code: {ResponseProps: spec3.ResponseProps{Description: http.StatusText(code), Content: content(media, answer)}},
		},
		Default: &spec3.Response{
			ResponseProps: spec3.ResponseProps{Description: "What was wrong.", Content: content("application/json", reference("Status"))},
		},
	}}
	return documented
}

func content(media string, schema *spec.Schema) map[string]*spec3.MediaType {
	return map[string]*spec3.MediaType{media: {MediaTypeProps: spec3.MediaTypeProps{Schema: schema}}}
}

func reference(name string) *spec.Schema { return spec.RefSchema("#/components/schemas/" + name) }

func typeOf(name string) *spec.Schema {
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{name}}}
}

// schemas are schemas that no definition has, in JSON.
var schemas = map[string]string{
	"Status": `{"type":"object","description":"As the API answers: what was wrong, or that it is ` +
		`done.","properties":{"status":{"type":"string"},"message":{"type":"string"},` +
		`"reason":{"type":"string"},"code":{"type":"integer"},"details":{"type":"object"}}}`,
	"RunRequest": `{"type":"object","properties":{"branch":{"type":"string"},` +
		`"parameters":{"type":"array","items":{"type":"object","required":["name"],` +
		`"properties":{"name":{"type":"string"},"value":{"type":"string"}}}}}}`,
	"RunSummary": `{"type":"object","required":["name","namespace","pipeline",` +
		`"state","queuedTime"],"properties":{"name":{"type":"string"},"namespace":{"type":"string"},` +
		`"pipeline":{"type":"string"},"branch":{"type":"string"},"state":{"type":"string",` +
		`"enum":["Queued","Running","Success","Failure","Aborted","Unknown"]},"message":{"type":"string"},` +
		`"queuedTime":{"type":"string","format":"date-time"},"startTime":{"type":"string",` +
		`"format":"date-time"},"endTime":{"type":"string","format":"date-time"},"durationMilliseconds":{"type":"integer","format":"int64"}}}`,
	"PipelinePage": `{"type":"object","required":["items","totalItems","resourceVersion"],` +
		`"properties":{"resourceVersion":{"type":"string"},"cursor":{"type":"string"},` +
		`"items":{"type":"array","items":{"$ref":"#/components/schemas/Pipeline"}},"totalItems":{"type":"integer"}}}`,
	"PipelineRunPage": `{"type":"object","required":["items","totalItems","resourceVersion"],` +
		`"properties":{"resourceVersion":{"type":"string"},"cursor":{"type":"string"},` +
		`"items":{"type":"array","items":{"oneOf":[{"$ref":"#/components/schemas/RunSummary"},` +
		`{"$ref":"#/components/schemas/PipelineRun"}]}},"totalItems":{"type":"integer"}}}`,
}

// schemasOfDefinitions returns the schemas of the kinds, from their CustomResourceDefinitions in v1alpha3.
func schemasOfDefinitions() map[string]*spec.Schema {
	all := map[string]*spec.Schema{}
	folder := crds()
	files, err := fs.Glob(folder, "*.yaml")
	must(err)
	for _, file := range files {
		text, err := fs.ReadFile(folder, file)
		must(err)
		var definition apiextensionsv1.CustomResourceDefinition
		must(yaml.Unmarshal(text, &definition))
		for _, v := range definition.Spec.Versions {
			if v.Name != "v1alpha3" {
				continue
			}
			text, err := json.Marshal(v.Schema.OpenAPIV3Schema)
			must(err)
			all[definition.Spec.Names.Kind] = schemaOf(text)
		}
	}
	return all
}

func schemaOf(text []byte) *spec.Schema {
	schema := &spec.Schema{}
	must(json.Unmarshal(text, schema))
	return schema
}

// must panics if a part of the program itself is invalid.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("the program's own files are damaged: %v", err))
	}
}
