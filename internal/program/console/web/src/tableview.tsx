// A kind's objects: its own columns, live. Rows that are loaded are filtered and sorted here; fields that
// the query API knows, and what is more than is loaded, by the server.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { follow, type Meta, Refused } from './api';
import { type Kind, pathOf } from './discovery';
import { type Asked, changes, countsOf, type Field, fieldsOf, type Filter, type Page, pageOf } from './querying';
import { wanted } from './rights';
import { linkToNew, linkToObject } from './router';
import { age, type Column, compare, isAge, keyOf, type Row, Rows, tableType } from './table';
import { Loading, Problem, useApp, useLoaded, useMay, useNow, useTask } from './widgets';

const perPage = 50;
const ops: Record<string, [string, string][]> = {
  string: [['', 'is'], ['ne', 'is not'], ['contains', 'contains']],
  number: [['', '='], ['ne', '≠'], ['gt', '>'], ['gte', '≥'], ['lt', '<'], ['lte', '≤']],
  boolean: [['', 'is']],
  time: [['gt', 'after'], ['lt', 'before']],
};

export function TableView({ kind, namespace }: { kind: Kind; namespace: string }) {
  const { config, say } = useApp();
  const rows = useMemo(() => new Rows(), [kind, namespace]);
  const [, setRevision] = useState(0);
  const [state, setState] = useState<'loading' | 'live' | 'broken' | 'denied'>('loading');
  const [error, setError] = useState<unknown>();
  const [changed, setChanged] = useState<Set<string>>(new Set());
  const [fields, setFields] = useState<Field[] | undefined>();
  const [words, setWords] = useState('');
  const [filters, setFilters] = useState<Filter[]>([]);
  const [sort, setSort] = useState<{ by: string; ascending: boolean; server: boolean }>({ by: '', ascending: true, server: false });
  const [page, setPage] = useState(1);
  const [wide, setWide] = useState(false);
  const mayCreate = useMay(kind.verbs.includes('create') ? wanted(kind, 'create', namespace) : undefined);
  const now = useNow(5000);

  useTask(async () => setFields(await fieldsOf(config.query, kind)), [kind]);

  // The list and its watch. Events come by the hundred, the page is drawn at most once a frame.
  const frame = useRef(0);
  const dirty = useRef(new Set<string>());
  useTask(async (signal) => {
    const draw = () => {
      if (frame.current) return;
      frame.current = requestAnimationFrame(() => {
        frame.current = 0;
        setChanged(dirty.current);
        dirty.current = new Set();
        setRevision((r) => r + 1);
      });
    };
    await follow(
      signal,
      async () => {
        await rows.load(kind, namespace, signal);
        setState('live');
        setError(undefined);
        draw();
        return rows.version;
      },
      (version) => pathOf(kind, namespace, undefined, undefined, { watch: 'true', allowWatchBookmarks: 'true', resourceVersion: version }),
      tableType,
      (event) => {
        setState('live');
        const key = rows.apply(event);
        if (key) {
          dirty.current.add(key);
          draw();
        }
      },
      (failure) => {
        setError(failure);
        setState(failure instanceof Refused && failure.code === 403 ? 'denied' : 'broken');
      },
      () => {
        setState('live');
        setError(undefined);
      },
    );
  }, [rows]);

  // What the server selects, when it is asked to.
  const active = filters.filter((f) => f.value !== '');
  const asking = fields !== undefined && (active.length > 0 || sort.server || rows.more > 0 || state === 'denied');
  const asked: Asked = { filters: active, words, sortBy: sort.server ? sort.by : '', ascending: sort.ascending, page, limit: perPage };
  const [answer, setAnswer] = useState<Page | undefined>();
  const [queryError, setQueryError] = useState<unknown>();
  const key = asking ? JSON.stringify([asked, state === 'denied']) : '';
  const [again, setAgain] = useState(0);
  useTask(async (signal) => {
    if (!asking || !config.query) return setAnswer(undefined);
    try {
      const found = await pageOf(config.query, kind, namespace, asked, signal);
      const missing = found.items.map((i) => i.metadata).filter((m) => state === 'denied' || !rows.rows.has(keyOf(m)));
      await rows.fetch(kind, missing, signal);
      if (signal.aborted) return;
      setAnswer(found);
      setQueryError(undefined);
      // Where everything is watched, the watch says when to ask again.
      let waiting: ReturnType<typeof setTimeout> | undefined;
      signal.addEventListener('abort', () => clearTimeout(waiting));
      await changes(config.query, kind, namespace, asked, found.resourceVersion, signal, () => {
        waiting ??= setTimeout(() => setAgain((n) => n + 1), 300);
      });
    } catch (failure) {
      if (!signal.aborted) setQueryError(failure);
    }
  }, [key, again]);

  const columns = rows.columns.map((c, i) => ({ ...c, i })).filter((c) => wide || !c.priority);
  const showNamespace = kind.namespaced && !namespace && !columns.some((c) => c.name === 'Namespace');
  let shown: Row[];
  let total: number;
  if (asking && answer) {
    shown = answer.items.map((i) => rows.rows.get(keyOf(i.metadata))).filter((r): r is Row => !!r);
    total = answer.totalItems;
  } else {
    let all = [...rows.rows.values()];
    const needles = words.toLowerCase().split(/\s+/).filter(Boolean);
    if (needles.length > 0)
      all = all.filter((r) => {
        const text = [r.meta.namespace, ...r.cells, ...Object.entries(r.meta.labels ?? {}).map(([k, v]) => `${k}=${v}`)].join(' ').toLowerCase();
        return needles.every((n) => text.includes(n));
      });
    const by = rows.columns.findIndex((c) => c.name === sort.by);
    const sign = sort.ascending ? 1 : -1;
    all.sort((a, b) => {
      if (!sort.server && by >= 0) {
        const column = rows.columns[by]!;
        const order = isAge(column) ? compare(b.meta.creationTimestamp, a.meta.creationTimestamp) : compare(a.cells[by], b.cells[by]);
        if (order !== 0) return sign * order;
      }
      if (!sort.server && sort.by === 'Namespace' && a.meta.namespace !== b.meta.namespace) return sign * compare(a.meta.namespace, b.meta.namespace);
      return compare(a.meta.namespace, b.meta.namespace) || compare(a.meta.name, b.meta.name);
    });
    total = all.length;
    shown = all.slice((page - 1) * perPage, page * perPage);
  }
  const pages = Math.max(1, Math.ceil(total / perPage));
  useEffect(() => {
    if (page > pages && state !== 'loading') setPage(pages);
  }, [page, pages, state]);

  const sortBy = (name: string) => {
    setPage(1);
    setSort((s) => ({ by: name, ascending: s.by === name && !s.server ? !s.ascending : true, server: false }));
  };
  const denied = state === 'denied' && fields === undefined;
  return (
    <>
      <div class="heading">
        <h1>{kind.kind}</h1>
        <span class="quiet">
          {kind.resource}
          {kind.group && '.' + kind.group} {kind.version}
        </span>
        <span class={`live ${state}`}>{state === 'live' ? 'live' : state === 'loading' ? 'loading' : state === 'denied' ? 'mine' : 'reconnecting'}</span>
        <span class="gap" />
        {mayCreate && (
          <a class="button primary" href={linkToNew(kind, namespace)}>
            New {kind.kind}
          </a>
        )}
      </div>
      {denied ? (
        <Problem error={error} title={namespace || !kind.namespaced ? 'You may not list these' : 'You may not list these in all namespaces: name one of yours above'} />
      ) : (
        state === 'broken' && <Problem error={error} title="Out of date, and trying again" />
      )}
      {!denied && (
        <>
          <div class="tools">
            <input
              type="search"
              class="words"
              aria-label={`Filter ${kind.resource}`}
              placeholder="Filter by words"
              value={words}
              onInput={(e) => {
                setWords(e.currentTarget.value);
                setPage(1);
              }}
            />
            {fields && fields.length > 0 && <Filters kind={kind} namespace={namespace} fields={fields} filters={filters} set={(f) => (setFilters(f), setPage(1))} sort={sort} setSort={(s) => (setSort(s), setPage(1))} />}
            {rows.columns.some((c) => c.priority) && (
              <label class="check">
                <input type="checkbox" checked={wide} onChange={(e) => setWide(e.currentTarget.checked)} /> all columns
              </label>
            )}
            <span class="gap" />
            <span class="quiet" role="status">
              {total === 1 ? '1 object' : `${total.toLocaleString('en')} objects`}
              {!asking && rows.more > 0 && ` of ${(rows.rows.size + rows.more).toLocaleString('en')}`}
            </span>
          </div>
          <Problem error={asking && queryError} title="The query was refused" />
          {state === 'loading' ? (
            <Loading what={kind.resource} />
          ) : (
            <div class="scroll" tabIndex={0} role="region" aria-label={kind.resource}>
              <table>
                <thead>
                  <tr>
                    {showNamespace && <Head name="Namespace" sort={sort} by={sortBy} />}
                    {columns.map((c) => (
                      <Head key={c.i} name={c.name} hint={c.description} sort={sort} by={sortBy} />
                    ))}
                  </tr>
                </thead>
                <tbody>
                  {shown.map((r) => (
                    <RowView key={r.meta.uid ?? r.key} row={r} kind={kind} columns={columns} showNamespace={showNamespace} fresh={changed.has(r.key)} now={now} />
                  ))}
                </tbody>
              </table>
              {shown.length === 0 && (asking && !answer && !queryError ? <Loading what="the page" /> : <p class="empty">{words || active.length ? 'Nothing fits the filter.' : `There are no ${kind.resource}${namespace ? ' in ' + namespace : ''}.`}</p>)}
            </div>
          )}
          {pages > 1 && (
            <nav class="pages" aria-label="Pages">
              <button type="button" disabled={page <= 1} onClick={() => setPage(1)} aria-label="First page">
                «
              </button>
              <button type="button" disabled={page <= 1} onClick={() => setPage(page - 1)}>
                Previous
              </button>
              <span>
                Page {page} of {pages.toLocaleString('en')}
              </span>
              <button type="button" disabled={page >= pages} onClick={() => setPage(page + 1)}>
                Next
              </button>
              <button type="button" disabled={page >= pages} onClick={() => setPage(pages)} aria-label="Last page">
                »
              </button>
              {!asking && rows.more > 0 && (
                <button type="button" class="plain" onClick={() => say(`The first ${rows.rows.size} are shown; filter, or choose a namespace, to see others.`)}>
                  and {rows.more.toLocaleString('en')} more
                </button>
              )}
            </nav>
          )}
        </>
      )}
    </>
  );
}

function Head({ name, hint, sort, by }: { name: string; hint?: string | undefined; sort: { by: string; ascending: boolean; server: boolean }; by: (name: string) => void }) {
  const sorted = sort.by === name && !sort.server;
  return (
    <th scope="col" aria-sort={sorted ? (sort.ascending ? 'ascending' : 'descending') : undefined} title={hint}>
      <button type="button" class="plain" onClick={() => by(name)}>
        {name} <span aria-hidden="true">{sorted ? (sort.ascending ? '↑' : '↓') : ''}</span>
      </button>
    </th>
  );
}

function cellText(value: unknown): string {
  if (value === null || value === undefined) return '';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

const good = new Set(['true', 'ready', 'running', 'active', 'approved', 'available', 'succeeded', 'bound', 'complete', 'completed', 'established']);
const bad = new Set(['failed', 'error', 'rejected', 'crashed', 'lost', 'evicted', 'unavailable', 'notready']);
const open = new Set(['pending', 'unknown', 'waiting', 'terminating', 'progressing', 'starting']);

// tone colours words that say how something is; the word is there as well.
function tone(text: string): string {
  const word = text.toLowerCase();
  return good.has(word) ? 'good' : bad.has(word) ? 'bad' : open.has(word) ? 'open' : '';
}

function RowView({ row, kind, columns, showNamespace, fresh, now }: { row: Row; kind: Kind; columns: (Column & { i: number })[]; showNamespace: boolean; fresh: boolean; now: number }) {
  const m: Meta = row.meta;
  return (
    <tr class={`${fresh ? 'fresh' : ''} ${m.deletionTimestamp ? 'going' : ''}`}>
      {showNamespace && <td>{m.namespace}</td>}
      {columns.map((c, position) => {
        const text = isAge(c) && m.creationTimestamp ? age(m.creationTimestamp, now) : cellText(row.cells[c.i]);
        return (
          <td key={c.i} class={c.type === 'integer' || c.type === 'number' ? 'number' : ''} title={text.length > 60 ? text : undefined}>
            {position === 0 ? (
              <a href={linkToObject(kind, m.namespace, m.name)}>{text || m.name}</a>
            ) : tone(text) ? (
              <span class={`tone ${tone(text)}`}>{text}</span>
            ) : (
              text
            )}
          </td>
        );
      })}
    </tr>
  );
}

// Values suggests the values that there are, with how many objects have each. Names are not worth it.
function Values({ id, kind, namespace, field }: { id: string; kind: Kind; namespace: string; field: string }) {
  const { config } = useApp();
  const counts = useLoaded(async (signal) => (config.query && field !== 'name' ? countsOf(config.query, kind, namespace, field, signal) : []), [config.query, kind, namespace, field]);
  return (
    <datalist id={id}>
      {(counts.value ?? []).map((c) => c.value !== null && <option value={c.value}>{`${c.value} (${c.count})`}</option>)}
    </datalist>
  );
}

interface Sort {
  by: string;
  ascending: boolean;
  server: boolean;
}

function Filters({ kind, namespace, fields, filters, set, sort, setSort }: { kind: Kind; namespace: string; fields: Field[]; filters: Filter[]; set: (f: Filter[]) => void; sort: Sort; setSort: (s: Sort) => void }) {
  const able = fields.filter((f) => f.filterable);
  const sortable = fields.filter((f) => f.sortable);
  const opsOf = (name: string) => ops[able.find((f) => f.name === name)?.type ?? 'string'] ?? ops['string']!;
  return (
    <>
      {filters.map((f, i) => (
        <span class="filter" key={i} role="group" aria-label={`Filter ${i + 1}`}>
          <select aria-label="Field" value={f.field} onChange={(e) => set(filters.with(i, { field: e.currentTarget.value, op: opsOf(e.currentTarget.value)[0]![0], value: '' }))}>
            {able.map((a) => (
              <option value={a.name} title={a.description}>
                {a.name}
              </option>
            ))}
          </select>
          <select aria-label="Comparison" value={f.op} onChange={(e) => set(filters.with(i, { ...f, op: e.currentTarget.value }))}>
            {opsOf(f.field).map(([op, label]) => (
              <option value={op}>{label}</option>
            ))}
          </select>
          {able.find((a) => a.name === f.field)?.type === 'boolean' ? (
            <select aria-label="Value" value={f.value} onChange={(e) => set(filters.with(i, { ...f, value: e.currentTarget.value }))}>
              <option value="" />
              <option value="true">true</option>
              <option value="false">false</option>
            </select>
          ) : (
            <input aria-label="Value" list={`values-${i}`} value={f.value} placeholder={able.find((a) => a.name === f.field)?.type === 'time' ? '2026-01-31T00:00:00Z' : ''} onChange={(e) => set(filters.with(i, { ...f, value: e.currentTarget.value.trim() }))} />
          )}
          {able.find((a) => a.name === f.field)?.type === 'string' && !f.op.includes('contains') && <Values id={`values-${i}`} kind={kind} namespace={namespace} field={f.field} />}
          <button type="button" class="plain" aria-label="Remove this filter" onClick={() => set(filters.toSpliced(i, 1))}>
            ×
          </button>
        </span>
      ))}
      {able.length > 0 && (
        <button type="button" onClick={() => set([...filters, { field: able[0]!.name, op: opsOf(able[0]!.name)[0]![0], value: '' }])}>
          + Filter
        </button>
      )}
      {sortable.length > 0 && (
        <span class="filter" role="group" aria-label="Order">
          <label for="sort">Sort by</label>
          <select id="sort" value={sort.server ? sort.by : ''} onChange={(e) => setSort({ by: e.currentTarget.value, ascending: true, server: e.currentTarget.value !== '' })}>
            <option value="">column</option>
            {sortable.map((f) => (
              <option value={f.name}>{f.name}</option>
            ))}
          </select>
          {sort.server && (
            <button type="button" class="plain" aria-label={sort.ascending ? 'Ascending; change' : 'Descending; change'} onClick={() => setSort({ ...sort, ascending: !sort.ascending })}>
              {sort.ascending ? '↑' : '↓'}
            </button>
          )}
        </span>
      )}
    </>
  );
}
