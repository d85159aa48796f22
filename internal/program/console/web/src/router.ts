// Where in the console one is, as the fragment of the address, so that the server needs one page only.

import { useEffect, useState } from 'preact/hooks';
import { type Kind } from './discovery';

export interface Place {
  path: string[];
  parameters: URLSearchParams;
}

export function parse(hash: string): Place {
  const [path = '', parameters = ''] = hash.replace(/^#\/?/, '').split('?', 2);
  const decode = (part: string) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { path: path.split('/').filter(Boolean).map(decode), parameters: new URLSearchParams(parameters) };
}

export function link(path: string[], parameters: Record<string, string | undefined> = {}): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value) q.set(name, value);
  const text = q.toString();
  return '#/' + path.map(encodeURIComponent).join('/') + (text && '?' + text);
}

export function go(hash: string): void {
  location.hash = hash;
}

export function usePlace(): Place {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener('hashchange', changed);
    changed(); // what came between the first rendering and now
    return () => removeEventListener('hashchange', changed);
  }, []);
  return parse(hash);
}

const kindPath = (k: Kind) => [k.group || 'core', k.version, k.resource];

export function linkToKind(k: Kind, namespace: string): string {
  return link(['k', ...kindPath(k)], { ns: k.namespaced ? namespace : undefined });
}
export function linkToNew(k: Kind, namespace: string): string {
  return link(['new', ...kindPath(k)], { ns: k.namespaced ? namespace : undefined });
}
// A dash is no name of a namespace.
export function linkToObject(k: Kind, namespace: string | undefined, name: string, tab?: string): string {
  return link(['o', ...kindPath(k), namespace || '-', name, ...(tab ? [tab] : [])]);
}
