// Which kinds there are, by aggregated discovery.

import { get, query } from './api';

export interface Sub {
  name: string;
  verbs: string[];
  kind?: string;
  group?: string;
  version?: string;
}
export interface Kind {
  group: string; // empty is the core group
  version: string;
  resource: string;
  kind: string;
  namespaced: boolean;
  verbs: string[];
  shortNames: string[];
  subs: Sub[];
}

interface Discovered {
  items?: {
    metadata?: { name?: string };
    versions?: {
      version: string;
      resources?: {
        resource: string;
        responseKind?: { kind?: string; group?: string; version?: string };
        scope: string;
        shortNames?: string[];
        verbs: string[];
        subresources?: { subresource: string; responseKind?: { kind?: string; group?: string; version?: string }; verbs: string[] }[];
      }[];
    }[];
  }[];
}

const accept = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';

// discover reads all kinds, of each group in its preferred version, which comes first, and in others
// what that does not have.
export async function discover(): Promise<Kind[]> {
  const kinds: Kind[] = [];
  const answers = await Promise.all(['/api', '/apis'].map((path) => get<Discovered>(path, { accept }).catch(() => ({}) as Discovered)));
  for (const group of answers.flatMap((a) => a.items ?? [])) {
    const seen = new Set<string>();
    for (const version of group.versions ?? []) {
      for (const r of version.resources ?? []) {
        if (seen.has(r.resource)) continue;
        seen.add(r.resource);
        kinds.push({
          group: group.metadata?.name ?? '',
          version: version.version,
          resource: r.resource,
          kind: r.responseKind?.kind || r.resource,
          namespaced: r.scope === 'Namespaced',
          verbs: r.verbs,
          shortNames: r.shortNames ?? [],
          subs: (r.subresources ?? []).map((s) => ({
            name: s.subresource,
            verbs: s.verbs,
            ...(s.responseKind?.kind ? { kind: s.responseKind.kind, group: s.responseKind.group ?? '', version: s.responseKind.version ?? '' } : {}),
          })),
        });
      }
    }
  }
  return kinds;
}

export function root(kind: { group: string; version: string }): string {
  return kind.group ? `/apis/${encodeURIComponent(kind.group)}/${encodeURIComponent(kind.version)}` : `/api/${encodeURIComponent(kind.version)}`;
}

// pathOf is the path of a kind's objects, or of one of them, or of a subresource of that.
export function pathOf(kind: Kind, namespace?: string, name?: string, sub?: string, parameters?: Parameters<typeof query>[0]): string {
  let path = root(kind);
  if (kind.namespaced && namespace) path += '/namespaces/' + encodeURIComponent(namespace);
  path += '/' + encodeURIComponent(kind.resource);
  if (name) path += '/' + encodeURIComponent(name);
  if (sub) path += '/' + encodeURIComponent(sub);
  return path + query(parameters ?? {});
}

// resourceOf is the name by which kubectl knows the resource of a kind, and no other.
export function resourceOf(kind: Kind): string {
  return kind.resource + (kind.group && '.' + kind.group);
}

export function apiVersion(kind: { group: string; version: string }): string {
  return kind.group ? `${kind.group}/${kind.version}` : kind.version;
}

// kindOf finds the kind of an apiVersion and a kind's name, in whichever version the page shows it.
export function kindOf(kinds: Kind[], version: string, name: string): Kind | undefined {
  const group = version.includes('/') ? version.slice(0, version.indexOf('/')) : '';
  return kinds.find((k) => k.group === group && k.kind === name);
}

const without = new Set(['exec', 'attach', 'portforward', 'proxy', 'status', 'scale', 'log', 'logs', 'token', 'binding', 'eviction', 'ephemeralcontainers']);

// actions are the subresources that only take a request: buttons.
export function actions(kind: Kind): Sub[] {
  return kind.subs.filter((s) => !without.has(s.name) && s.verbs.length === 1 && s.verbs[0] === 'create');
}
// views are those that are only read.
export function readable(kind: Kind): Sub[] {
  return kind.subs.filter((s) => !without.has(s.name) && s.verbs.length === 1 && s.verbs[0] === 'get');
}
export function logsOf(kind: Kind): Sub | undefined {
  return kind.subs.find((s) => (s.name === 'log' || s.name === 'logs') && s.verbs.includes('get'));
}
export function execOf(kind: Kind): Sub | undefined {
  return kind.subs.find((s) => s.name === 'exec');
}
