// Hooks for React 18 and later, and for Preact by its compatible package. The rest of the client does not need them.

import { useCallback, useEffect, useRef, useState } from 'react';
import type { AnyObject, Change, Kind, Page, Queries, QueryOptions, Tails } from './runtime.js';

export interface Watched<T> {
  /** The present objects, by namespace and name. */
  items: readonly T[];
  /** Whether all present objects have come. */
  isLoaded: boolean;
  /** Whether the page is connected. */
  isLive: boolean;
  /** Why it is not connected, or why the server refuses the watch. */
  error: unknown;
}

/** How often a page is rendered at most while objects change, in milliseconds. */
const between = 50;

const nothing: Watched<never> = { items: [], isLoaded: false, isLive: false, error: undefined };

/**
 * useWatch keeps the objects of a watch or a tail. It begins anew when one of deps changes.
 *
 *   const { items } = useWatch((signal) => pizzas.in(namespace).watch({ signal }), [namespace]);
 */
export function useWatch<T extends AnyObject>(watch: (signal: AbortSignal) => AsyncIterable<Change<T>>, deps: readonly unknown[]): Watched<T> {
  const [watched, setWatched] = useState<Watched<T>>(nothing);
  useEffect(() => {
    const ending = new AbortController();
    const objects = new Map<string, T>();
    let now: Watched<T> = nothing;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const show = (more: Partial<Watched<T>>) => {
      now = { ...now, ...more };
      timer ??= setTimeout(() => {
        timer = undefined;
        setWatched({ ...now, items: [...objects].sort(byKey).map(([, object]) => object) });
      }, between);
    };
    setWatched(nothing);
    const run = async () => {
      for await (const change of watch(ending.signal)) {
        switch (change.type) {
          case 'SYNCED':
            show({ isLoaded: true, isLive: true, error: undefined });
            break;
          case 'LOST':
            show({ isLive: false, error: change.error });
            break;
          case 'DELETED':
            objects.delete(keyOf(change.object));
            show({ isLive: true, error: undefined });
            break;
          default:
            objects.set(keyOf(change.object), change.object);
            show({ isLive: true, error: undefined });
        }
      }
    };
    run().catch((error: unknown) => {
      if (!ending.signal.aborted) show({ isLive: false, error });
    });
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
    // Each render passes a new function; it depends on deps.
  }, deps);
  return watched;
}

function keyOf({ metadata: { namespace = '', name = '' } }: AnyObject): string {
  return `${namespace}/${name}`;
}

function byKey([a]: readonly [string, unknown], [b]: readonly [string, unknown]): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

export interface Loaded<T> {
  /** The last answer, also while the next one is awaited; undefined before the first. */
  data: T | undefined;
  isLoading: boolean;
  error: unknown;
  reload: () => void;
}

/**
 * useQuery keeps the answer of a request. It asks again when one of deps changes, when reload is called, and when the
 * watch changes, if there is one, delivers a change.
 *
 *   const { data } = useQuery((signal) => pizzas.in('default').get(name, { signal }), [name]);
 */
export function useQuery<T>(
  load: (signal: AbortSignal) => Promise<T>,
  deps: readonly unknown[],
  options: { changes?: (signal: AbortSignal) => AsyncIterable<Change<AnyObject>> } = {},
): Loaded<T> {
  const [state, setState] = useState<Omit<Loaded<T>, 'reload'>>({ data: undefined, isLoading: true, error: undefined });
  const [turn, setTurn] = useState(0);
  const reload = useCallback(() => setTurn((n) => n + 1), []);

  useEffect(() => {
    const ending = new AbortController();
    setState((s) => ({ ...s, isLoading: true }));
    load(ending.signal).then(
      (data) => {
        if (!ending.signal.aborted) setState({ data, isLoading: false, error: undefined });
      },
      (error: unknown) => {
        if (!ending.signal.aborted) setState((s) => ({ ...s, isLoading: false, error }));
      },
    );
    return () => ending.abort();
    // Each render passes a new function; it depends on deps.
  }, [...deps, turn]);

  const { changes } = options;
  useEffect(() => {
    if (!changes) return;
    const ending = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      let isSynced = false;
      for await (const change of changes(ending.signal)) {
        if (change.type === 'LOST') continue;
        // Before, there are only the objects that the answer has, too.
        isSynced ||= change.type === 'SYNCED';
        if (isSynced) {
          timer ??= setTimeout(() => {
            timer = undefined;
            reload();
          }, between);
        }
      }
    };
    run().catch((error: unknown) => {
      if (!ending.signal.aborted) setState((s) => ({ ...s, error }));
    });
    return () => {
      ending.abort();
      clearTimeout(timer);
    };
  }, [...deps, !changes]);

  return { ...state, reload };
}

/**
 * usePage keeps a page of a query: sorted, filtered and counted by the server, and asked for again whenever one of the
 * selected objects changes. The options depend on deps.
 *
 *   const { data } = usePage(pizzas.in('default'), { sortBy, limit: 20 }, [sortBy]);
 */
export function usePage<K extends Kind>(
  resource: Queries<K> & Tails<K>,
  options: Omit<QueryOptions<K>, 'known' | 'signal'>,
  deps: readonly unknown[],
): Loaded<Page<K>> {
  const known = useRef<{ deps: readonly unknown[]; page: Page<K> } | undefined>(undefined);
  const { where, name, q, labelSelector, fieldSelector } = options;
  return useQuery(
    async (signal) => {
      const before = known.current;
      const isSame = before?.deps.length === deps.length && before.deps.every((d, i) => Object.is(d, deps[i]));
      const page = await resource.query({ ...options, known: isSame ? before.page : undefined, signal });
      known.current = { deps: [...deps], page };
      return page;
    },
    deps,
    { changes: (signal) => resource.tail({ where, name, q, labelSelector, fieldSelector, fields: ['metadata.name'], signal }) },
  );
}
