// Schemas of kinds and of the bodies of actions, out of OpenAPI v3.

import { get } from './api';
import { type Kind, root } from './discovery';

export interface Schema {
  type?: string;
  format?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
  allOf?: Schema[];
  oneOf?: Schema[];
  anyOf?: Schema[];
  $ref?: string;
  nullable?: boolean;
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  'x-kubernetes-int-or-string'?: boolean;
  'x-kubernetes-preserve-unknown-fields'?: boolean;
  'x-kubernetes-group-version-kind'?: { group: string; version: string; kind: string }[];
}
interface Operation {
  requestBody?: { content?: Record<string, { schema?: Schema }> };
}
interface Document_ {
  components?: { schemas?: Record<string, Schema> };
  paths?: Record<string, Record<string, Operation>>;
}

let index: Promise<Record<string, { serverRelativeURL: string }>> | undefined;
const documents = new Map<string, Promise<Document_>>();

export function forgetSchemas(): void {
  index = undefined;
  documents.clear();
}

async function documentOf(kind: { group: string; version: string }): Promise<Document_> {
  const path = root(kind).slice(1);
  index ??= get<{ paths: Record<string, { serverRelativeURL: string }> }>('/openapi/v3').then((d) => d.paths);
  let found = documents.get(path);
  if (!found) {
    found = index.then((all) => {
      const entry = all[path];
      if (!entry) throw new Error(`there is no OpenAPI document of ${path}`);
      return get<Document_>(entry.serverRelativeURL);
    });
    documents.set(path, found);
    found.catch(() => documents.delete(path));
    index.catch(() => (index = undefined));
  }
  return found;
}

export type Resolve = (schema: Schema | undefined) => Schema;

function resolver(document: Document_): Resolve {
  const resolve: Resolve = (schema) => {
    let s = schema ?? {};
    for (let depth = 0; depth < 16; depth++) {
      if (s.$ref) {
        const { $ref, ...rest } = s;
        s = { ...(document.components?.schemas?.[$ref.replace('#/components/schemas/', '')] ?? {}), ...rest };
      } else if (s.allOf) {
        const { allOf, ...rest } = s;
        s = Object.assign({}, ...allOf.map(resolve), rest) as Schema;
      } else break;
    }
    return s;
  };
  return resolve;
}

// schemaOf finds the schema of a kind, and what resolves references in it.
export async function schemaOf(kind: { group: string; version: string; kind: string }): Promise<{ schema: Schema; resolve: Resolve }> {
  const document = await documentOf(kind);
  const is = (g: { group: string; version: string; kind: string }) => g.group === kind.group && g.version === kind.version && g.kind === kind.kind;
  const schema = Object.values(document.components?.schemas ?? {}).find((s) => s['x-kubernetes-group-version-kind']?.some(is));
  if (!schema) throw new Error(`OpenAPI has no schema of ${kind.kind}`);
  return { schema, resolve: resolver(document) };
}

// bodyOf finds the schema of the body of an action.
export async function bodyOf(kind: Kind, sub: string): Promise<{ schema: Schema; resolve: Resolve } | undefined> {
  const document = await documentOf(kind);
  const path = `${root(kind)}${kind.namespaced ? '/namespaces/{namespace}' : ''}/${kind.resource}/{name}/${sub}`;
  const content = document.paths?.[path]?.['post']?.requestBody?.content;
  const schema = content?.['application/json']?.schema ?? content?.['*/*']?.schema ?? Object.values(content ?? {})[0]?.schema;
  return schema && { schema, resolve: resolver(document) };
}

// shape says by what a value of a schema is edited.
export type Shape = 'object' | 'map' | 'list' | 'enum' | 'boolean' | 'number' | 'integer' | 'intOrString' | 'string' | 'any';

export function shapeOf(s: Schema): Shape {
  if (s.enum?.length) return 'enum';
  if (s['x-kubernetes-int-or-string'] || s.format === 'int-or-string') return 'intOrString';
  const alternatives = (s.oneOf ?? s.anyOf)?.map((o) => o.type);
  if (alternatives?.includes('string') && (alternatives.includes('number') || alternatives.includes('integer'))) return 'intOrString';
  if (s.properties && Object.keys(s.properties).length > 0) return 'object';
  if (typeof s.additionalProperties === 'object') return 'map';
  if (s.type === 'array') return s.items ? 'list' : 'any';
  if (s.type === 'boolean' || s.type === 'number' || s.type === 'integer' || s.type === 'string') return s.type;
  return 'any';
}
