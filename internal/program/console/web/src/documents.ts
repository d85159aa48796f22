// The OpenAPI documents of the server, as the explorer shows them: one of its own kinds, with titles that name the server,
// and with samples that can be sent.

interface Schema_ {
  $ref?: string;
  allOf?: Schema_[];
  type?: string;
  default?: unknown;
  example?: unknown;
  readOnly?: boolean;
  properties?: Record<string, Schema_>;
  'x-kubernetes-group-version-kind'?: Kind_[];
}
interface Kind_ {
  group: string;
  version: string;
  kind: string;
}
interface Parameter_ {
  name: string;
  in: string;
  schema?: Schema_;
}
interface Operation_ {
  tags?: string[];
  summary?: string;
  description?: string;
  parameters?: Parameter_[];
  requestBody?: { content: Record<string, unknown> };
  responses?: Record<string, { content?: Record<string, unknown> }>;
  'x-kubernetes-action'?: string;
}
type Path_ = Record<string, unknown>;
export interface Document_ {
  openapi: string;
  info: { title: string; version: string; description?: string };
  paths: Record<string, Path_>;
  tags?: { name: string; description?: string }[];
  components?: { schemas?: Record<string, Schema_>; securitySchemes?: Record<string, unknown> };
}

const methods = ['get', 'post', 'put', 'patch', 'delete'];

// ownOf returns the documents of group versions that are not Kubernetes' own, and of their queries.
export function ownOf(names: string[]): string[] {
  const foreign = ['core', 'apps', 'autoscaling', 'batch', 'extensions', 'policy'];
  return names.filter((name) => {
    const words = name.split('/');
    const group = words.at(-2) ?? '';
    return words.length >= 3 && !foreign.includes(group) && !group.endsWith('.k8s.io');
  });
}

// named gives a document the name and the version of the server.
export function named(d: Document_, title: string, version: string): Document_ {
  return usable({ ...d, info: { ...d.info, title, version } });
}

// joined makes one document of several. Its operations are grouped by the kinds.
export function joined(all: Document_[], title: string, version: string): Document_ {
  const whole: Document_ = { openapi: '3.0.0', info: { title, version }, paths: {}, tags: [], components: { schemas: {}, securitySchemes: {} } };
  const tags = new Map<string, string>();
  for (const d of all) {
    whole.components!.schemas = { ...d.components?.schemas, ...whole.components!.schemas };
    whole.components!.securitySchemes = { ...d.components?.securitySchemes, ...whole.components!.securitySchemes };
    for (const [path, item] of Object.entries(d.paths)) {
      // The old form of watches, and the list of resources.
      if (/\/watch\//.test(path) || path.endsWith('/')) continue;
      whole.paths[path] = { ...item, ...whole.paths[path] };
    }
  }
  const kinds = new Map<string, string>();
  for (const [path, item] of Object.entries(whole.paths)) {
    const p = placeOf(path);
    const kind = (item['get'] ?? item['post']) as { 'x-kubernetes-group-version-kind'?: Kind_ } | undefined;
    if (p && !p.part && kind?.['x-kubernetes-group-version-kind']) kinds.set(p.of, kind['x-kubernetes-group-version-kind'].kind);
  }
  for (const [path, item] of Object.entries(whole.paths)) {
    const p = placeOf(path);
    const tag = p ? `${kinds.get(p.of) ?? p.resource} (${p.version})` : 'other paths';
    if (p || !tags.has(tag)) tags.set(tag, p ? `${p.resource} of ${p.version}` : 'handlers beside the kinds');
    for (const method of methods) {
      const operation = item[method] as Operation_ | undefined;
      if (operation) item[method] = { ...operation, tags: [tag] };
    }
  }
  // By kinds, the stable versions first.
  const stage = (name: string) => (name === 'other paths' ? 3 : /alpha/.test(name) ? 2 : /beta/.test(name) ? 1 : 0);
  const kindOf = (name: string) => name.split(' (')[0]!;
  whole.tags = [...tags]
    .map(([name, description]) => ({ name, description }))
    .sort((a, b) => Number(stage(a.name) === 3) - Number(stage(b.name) === 3) || kindOf(a.name).localeCompare(kindOf(b.name)) || stage(a.name) - stage(b.name) || a.name.localeCompare(b.name));
  return usable(whole);
}

// placeOf says which resource a path is of: of the API of objects, or of queries below any prefix.
function placeOf(path: string): { of: string; version: string; resource: string; part: string } | undefined {
  const words = path.split('/').filter((w) => w && w !== 'namespaces' && w !== '{namespace}');
  const at = words.findIndex((w, i) => /^v[0-9]+((alpha|beta)[0-9]*)?$/.test(w) && i > 0);
  const resource = words[at + 1];
  if (at < 1 || !resource) return undefined;
  const version = `${words[at - 1]}/${words[at]}`;
  return { of: `${version}/${resource}`, version, resource, part: words.slice(at + 3).join('/') };
}

// usable makes the samples of a document such that they can be sent, and its rows such that they can be told apart.
function usable(d: Document_): Document_ {
  const schemas: Record<string, Schema_> = {};
  for (const [name, s] of Object.entries(d.components?.schemas ?? {})) {
    const kind = s['x-kubernetes-group-version-kind']?.[0];
    const { apiVersion, kind: kindOf, metadata, status } = s.properties ?? {};
    if (!kind || !apiVersion || !kindOf || !metadata) {
      schemas[name] = s;
      continue;
    }
    const properties: Record<string, Schema_> = {
      ...s.properties,
      apiVersion: { ...apiVersion, example: [kind.group, kind.version].filter(Boolean).join('/') },
      kind: { ...kindOf, example: kind.kind },
      metadata: { ...metadata, example: { name: `my-${kind.kind.toLowerCase()}` } },
    };
    // Clients write it at the subresource only.
    if (status) properties['status'] = { ...status, readOnly: true };
    schemas[name] = { ...s, properties };
  }
  const paths: Record<string, Path_> = {};
  for (const [path, item] of Object.entries(d.paths)) {
    const copied: Path_ = { ...item };
    if (Array.isArray(item['parameters'])) copied['parameters'] = (item['parameters'] as Parameter_[]).map(withDefault);
    for (const method of methods) {
      const operation = item[method] as Operation_ | undefined;
      if (!operation) continue;
      const { description, ...rest } = operation;
      const made: Operation_ = { ...rest };
      // A row shows the summary.
      const text = operation.summary ?? description;
      if (text) made.summary = text;
      if (operation.summary && description) made.description = description;
      if (operation.parameters) made.parameters = operation.parameters.map(withDefault);
      if (operation.requestBody) made.requestBody = { ...operation.requestBody, content: jsonOf(operation.requestBody.content) };
      copied[method] = made;
    }
    paths[path] = copied;
  }
  return { ...d, paths, components: { ...d.components, schemas } };
}

function withDefault(p: Parameter_): Parameter_ {
  return p.in === 'path' && p.name === 'namespace' ? { ...p, schema: { ...p.schema, default: 'default' } } : p;
}

// jsonOf replaces "any type" by JSON, and leaves out what nobody types.
function jsonOf(content: Record<string, unknown>): Record<string, unknown> {
  const made: Record<string, unknown> = {};
  for (const [type, value] of Object.entries(content)) {
    // The first one is the default.
    if (type === '*/*') Object.assign(made, { 'application/json': value, 'application/yaml': value });
    else if (!/protobuf|cbor/.test(type)) made[type] = value;
  }
  return made;
}
