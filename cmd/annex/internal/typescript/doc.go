// Package typescript generates a TypeScript client from an OpenAPI document of a server: a module with the types and
// resources of each group version, and the modules that they share. The document has all facts that the client needs:
// the schemas, the verbs, the subresources, and the fields of queries. So the client is the same whether the kinds come
// from Go types or from CustomResourceDefinitions.
package typescript
