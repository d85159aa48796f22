// What the user may do, asked of the server. A server that does not answer such questions, because it
// leaves them to its cluster, is taken to allow what it will refuse.

import { post, Refused } from './api';
import { type Kind } from './discovery';

export interface Wanted {
  verb: string;
  group: string;
  resource: string;
  subresource?: string;
  namespace?: string;
  name?: string;
}

const reviews = '/apis/authorization.k8s.io/v1';
const keep = 60_000;
let answers = new Map<string, { at: number; answer: Promise<boolean> }>();

export function forget(): void {
  answers = new Map();
}

// mayGet answers for a path beside resources.
export function mayGet(path: string): Promise<boolean> {
  return review('nonResource ' + path, { nonResourceAttributes: { verb: 'get', path } });
}

export function may(wanted: Wanted): Promise<boolean> {
  return review(JSON.stringify(wanted), { resourceAttributes: wanted });
}

function review(key: string, spec: object): Promise<boolean> {
  const known = answers.get(key);
  if (known && Date.now() - known.at < keep) return known.answer;
  const answer = post<{ status: { allowed: boolean } }>(reviews + '/selfsubjectaccessreviews', {
    apiVersion: 'authorization.k8s.io/v1',
    kind: 'SelfSubjectAccessReview',
    spec,
  }).then(
    (r) => r.status.allowed,
    (error) => error instanceof Refused && error.code === 404,
  );
  answers.set(key, { at: Date.now(), answer });
  return answer;
}

export function wanted(kind: Kind, verb: string, namespace?: string, name?: string, subresource?: string): Wanted {
  return {
    verb,
    group: kind.group,
    resource: kind.resource,
    ...(subresource ? { subresource } : {}),
    ...(kind.namespaced && namespace ? { namespace } : {}),
    ...(name ? { name } : {}),
  };
}

interface Rules {
  status: { incomplete?: boolean; resourceRules?: { verbs: string[]; apiGroups?: string[]; resources?: string[]; resourceNames?: string[] }[] };
}

// listable says of kinds whether the user may list them in a namespace, by one question for all.
export async function listable(kinds: Kind[], namespace: string): Promise<(kind: Kind) => boolean> {
  let rules: Rules['status'];
  try {
    rules = (
      await post<Rules>(reviews + '/selfsubjectrulesreviews', {
        apiVersion: 'authorization.k8s.io/v1',
        kind: 'SelfSubjectRulesReview',
        spec: { namespace: namespace || 'default' },
      })
    ).status;
  } catch {
    return () => true;
  }
  const has = (all: string[] | undefined, one: string) => !!all && (all.includes('*') || all.includes(one));
  const allowed = new Set(
    kinds.filter((k) => (rules.resourceRules ?? []).some((r) => !r.resourceNames?.length && has(r.verbs, 'list') && has(r.apiGroups, k.group) && has(r.resources, k.resource))),
  );
  // Authorizers that cannot list their rules leave an answer incomplete.
  if (rules.incomplete) {
    const rest = kinds.filter((k) => !allowed.has(k));
    const may_ = await Promise.all(rest.map((k) => may(wanted(k, 'list', namespace))));
    rest.forEach((k, i) => may_[i] && allowed.add(k));
  }
  return (k) => allowed.has(k);
}
