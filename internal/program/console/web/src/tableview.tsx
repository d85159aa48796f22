// A kind's objects, live: pages that the query API sorts, filters and prints, in the columns that are chosen.

import { useEffect, useRef, useState } from 'preact/hooks';
import { follow, get, pause, reasonOf, Refused, type Resource, untilOnline } from './api';
import { Bulk, countOfTargets, type Targets } from './bulk';
import type { Described } from './copyas';
import { CopyAs } from './copymenu';
import { type Kind, pathOf } from './discovery';
import { textOf as yamlOf } from './document';
import { download, exported, mostExported } from './exporting';
import { useKeys } from './keys';
import { changes, conditionsOf, countsOf, type Field, fieldsOf, type Filter, type Page, pageOf, parametersOf, pathOfQuery } from './querying';
import { wanted } from './rights';
import { linkToNew, linkToObject, type Place } from './router';
import { columnsOf, labelColumn, projectionOf, type Shown } from './shown';
import { age, cellText, keyOf, type Row, Rows, tableType } from './table';
import { keepColumns, show, stateOf, type TableState } from './tablestate';
import { Loading, Problem, useApp, useLoaded, useMay, useNow, useTask } from './widgets';

const perPage = 50;
const ops: Record<string, [string, string][]> = {
  string: [['', 'is'], ['ne', 'is not'], ['contains', 'contains']],
  number: [['', '='], ['ne', '≠'], ['gt', '>'], ['gte', '≥'], ['lt', '<'], ['lte', '≤']],
  boolean: [['', 'is']],
  time: [['gt', 'after'], ['lt', 'before']],
};

type Live = 'loading' | 'live' | 'still' | 'broken';
const said: Record<Live, string> = { loading: 'loading', live: 'live', still: 'not live', broken: 'reconnecting' };

export function TableView({ kind, namespace, place }: { kind: Kind; namespace: string; place: Place }) {
  const { config } = useApp();
  const fields = useLoaded(() => fieldsOf(config.query, kind), [config.query, kind]);
  if (fields.error) return <Problem error={fields.error} />;
  if (!('value' in fields)) return <Loading what={kind.resource} />;
  return fields.value ? <Queried kind={kind} namespace={namespace} place={place} fields={fields.value} /> : <Listed kind={kind} namespace={namespace} place={place} />;
}

function Queried({ kind, namespace, place, fields }: { kind: Kind; namespace: string; place: Place; fields: Field[] }) {
  const { config, say } = useApp();
  const prefix = config.query!;
  const state = stateOf(place, kind);
  const change = (to: Partial<TableState>, replace = false) => show(kind, namespace, state, to, replace);
  const [answer, setAnswer] = useState<Page | undefined>();
  const [answered, setAnswered] = useState('');
  const [error, setError] = useState<unknown>();
  const [live, setLive] = useState<Live>('loading');
  const [again, setAgain] = useState(0);
  const [fresh, setFresh] = useState<Set<string>>(new Set());
  const versions = useRef(new Map<string, string>());

  const { all, shown } = columnsOf(answer?.columns ?? [], fields, kind.namespaced, !!namespace, state.columns);
  // Fields that no column has are read with the page.
  const projection = projectionOf((state.columns ?? []).filter((id) => id.includes('.')).map((id) => ({ id, sortBy: id }) as Shown));
  const key = JSON.stringify([namespace, state.filters, state.labels, state.words, state.sortBy, state.ascending, state.page, projection]);
  const condition = JSON.stringify([namespace, conditionsOf(state).toString()]);
  useTask(
    async (signal) => {
      try {
        const found = await pageOf(prefix, kind, namespace, state, { limit: perPage, page: state.page, columns: true, fields: projection }, signal);
        if (signal.aborted) return;
        const pages = Math.max(1, Math.ceil(found.totalItems / perPage));
        if (state.page > pages) return change({ page: pages }, true);
        const changed = new Set<string>();
        for (const { metadata: m } of found.items) {
          const before = versions.current.get(m.uid ?? '');
          if (before && before !== m.resourceVersion) changed.add(keyOf(m));
          versions.current.set(m.uid ?? '', m.resourceVersion ?? '');
        }
        setFresh(changed);
        setAnswer(found);
        setAnswered(key);
        setError(undefined);
        setFollowed((f) => (f.condition === condition ? f : { condition, from: found.resourceVersion }));
      } catch (failure) {
        if (signal.aborted) return;
        setError(failure);
        if (failure instanceof Refused && failure.code < 500 && failure.code !== 429) return;
        await untilOnline(2000, signal);
        if (!signal.aborted) setAgain((n) => n + 1);
      }
    },
    [key, again],
  );

  // One watch for as long as the same objects are selected; what it brings makes the page be read again, at most
  // three times a second.
  const [followed, setFollowed] = useState<{ condition: string; from: string }>({ condition: '', from: '' });
  useTask(
    async (signal) => {
      let { from } = followed;
      if (!from) return;
      let waiting: ReturnType<typeof setTimeout> | undefined;
      const look = () => (waiting ??= setTimeout(() => ((waiting = undefined), setAgain((n) => n + 1)), 300));
      signal.addEventListener('abort', () => clearTimeout(waiting));
      for (let wait = 500; !signal.aborted; ) {
        try {
          await changes(
            prefix,
            kind,
            namespace,
            state,
            from,
            signal,
            () => {
              wait = 500;
              setLive('live');
            },
            (version, changed) => {
              from = version;
              if (changed) look();
            },
          );
        } catch (failure) {
          if (signal.aborted) return;
          // The next request finds out whether the session gives another token.
          if (failure instanceof Refused && failure.code === 401 && failure.midway) continue;
          if (failure instanceof Refused && [400, 403, 404, 405, 406].includes(failure.code)) {
            setLive('still');
            setAgain((n) => n + 1);
            do await pause(10_000, signal);
            while (document.visibilityState === 'hidden' && !signal.aborted);
            continue;
          }
          setLive('broken');
          wait = Math.min(wait * 2, 15_000);
        }
        await untilOnline(wait, signal);
        if (!signal.aborted && wait > 500) {
          // The watch may be too far behind: it begins where the page is then.
          try {
            const now = await pageOf(prefix, kind, namespace, state, { limit: 0 }, signal);
            setFollowed({ condition: followed.condition, from: now.resourceVersion });
            setAgain((n) => n + 1);
            return;
          } catch {
            // It is tried again.
          }
        }
      }
    },
    [followed],
  );

  const rows: Row[] = (answer?.items ?? []).map((item, i) => ({ key: keyOf(item.metadata), meta: item.metadata, cells: answer?.rows?.[i] ?? [], object: item }));
  const total = answer?.totalItems ?? 0;
  const pages = Math.max(1, Math.ceil(total / perPage));
  const busy = answered !== key && !error;
  const denied = error instanceof Refused && error.code === 403;
  const filtered = conditionsOf(state).size > 0;
  // Words are in the address only when nothing has been typed for a moment.
  const [typed, setTyped] = useState(state.words);
  const sent = useRef(state.words);
  // Words of the address replace the typed ones only if another has put them there: while these were on their way to the
  // address, more may have been typed.
  useEffect(() => {
    if (state.words === sent.current) return;
    sent.current = state.words;
    setTyped(state.words);
  }, [state.words]);
  useEffect(() => {
    if (typed === state.words) return;
    const timer = setTimeout(() => {
      sent.current = typed;
      change({ words: typed }, true);
    }, 150);
    return () => clearTimeout(timer);
  }, [typed, key]);
  const sortBy = (by: string) => change(state.sortBy === by ? (state.ascending ? { ascending: false } : { sortBy: '', ascending: true }) : { sortBy: by, ascending: true });
  const [exporting, setExporting] = useState<{ n: number; stop: AbortController } | undefined>();
  const save = async (format: 'csv' | 'yaml', metas?: Resource['metadata'][]) => {
    const stop = new AbortController();
    setExporting({ n: 0, stop });
    try {
      const { blob, count, whole } = await exported(format, prefix, kind, namespace, state, shown, metas, stop.signal, (n) => setExporting({ n, stop }));
      download(blob, `${kind.resource}.${format}`);
      say(whole ? `${count.toLocaleString('en')} ${kind.resource} were exported.` : `The first ${count.toLocaleString('en')} ${kind.resource} were exported; an export has at most ${mostExported.toLocaleString('en')}.`);
    } catch (failure) {
      if (!stop.signal.aborted) say(`Not exported: ${reasonOf(failure)}`);
    } finally {
      setExporting(undefined);
    }
  };
  // The list does what it can: it selects by labels alone, in its own order.
  const simple = !state.sortBy && !state.words && state.filters.length === 0 && state.page === 1;
  const describe = (): Described =>
    simple ? listOf(kind, namespace, state.labels) : { method: 'GET', path: pathOfQuery(prefix, kind, namespace), query: [...parametersOf(state, { limit: perPage, page: state.page })] };
  return (
    <>
      <Title kind={kind} namespace={namespace} live={denied ? 'still' : live} describe={describe} />
      {denied && <Problem error={error} title={namespace || !kind.namespaced ? 'You may not list these' : 'You may not list these in all namespaces: name one of yours above'} />}
      <div class="tools">
        <input type="search" class="words" aria-label={`Filter ${kind.resource}`} placeholder="Words  ( / )" title="In names, namespaces, labels, texts and columns" value={typed} onInput={(e) => setTyped(e.currentTarget.value)} />
        <LabelFilter kind={kind} namespace={namespace} value={state.labels} set={(labels) => change({ labels })} />
        <Filters kind={kind} namespace={namespace} fields={fields} filters={state.filters} set={(filters) => change({ filters })} />
        <Choice all={all} shown={shown} set={(columns) => (keepColumns(kind, columns), change({ columns }))} />
        <details class="menu">
          <summary class="button">Export</summary>
          <div>
            <button type="button" onClick={() => void save('csv')}>
              All {total.toLocaleString('en')} as CSV
            </button>
            <button type="button" onClick={() => void save('yaml')}>
              All {total.toLocaleString('en')} as YAML
            </button>
          </div>
        </details>
        {exporting && (
          <span role="status">
            {exporting.n.toLocaleString('en')} read{' '}
            <button type="button" class="small" onClick={() => exporting.stop.abort()}>
              Stop
            </button>
          </span>
        )}
        <span class="gap" />
        <span class="quiet" role="status">
          {answer ? (total === 1 ? '1 object' : `${total.toLocaleString('en')} objects`) : denied ? '0 objects' : ''}
        </span>
      </div>
      {!denied && <Problem error={error} title="The query was refused" />}
      {!answer && !error && <Loading what={kind.resource} />}
      {answer && !denied && (
        <Table
          kind={kind}
          namespace={namespace}
          rows={rows}
          shown={shown}
          fresh={fresh}
          busy={busy}
          sort={{ by: state.sortBy, ascending: state.ascending, set: sortBy }}
          open={state.open}
          setOpen={(open) => change({ open })}
          everything={filtered || total > rows.length ? { asked: state, total } : undefined}
          save={save}
          changed={() => setAgain((n) => n + 1)}
          turn={(by) => change({ page: Math.min(pages, Math.max(1, state.page + by)) })}
          empty={filtered ? 'Nothing fits the filter.' : `There are no ${kind.resource}${namespace ? ' in ' + namespace : ''}.`}
        />
      )}
      {pages > 1 && (
        <nav class="pages" aria-label="Pages">
          <button type="button" disabled={state.page <= 1} onClick={() => change({ page: 1 })} aria-label="First page">
            «
          </button>
          <button type="button" disabled={state.page <= 1} onClick={() => change({ page: state.page - 1 })}>
            Previous
          </button>
          <span>
            Page {state.page.toLocaleString('en')} of {pages.toLocaleString('en')}
          </span>
          <button type="button" disabled={state.page >= pages} onClick={() => change({ page: state.page + 1 })}>
            Next
          </button>
          <button type="button" disabled={state.page >= pages} onClick={() => change({ page: pages })} aria-label="Last page">
            »
          </button>
        </nav>
      )}
    </>
  );
}

// Listed shows a kind that the query API does not have: in the order of its list, selected by labels alone.
function Listed({ kind, namespace, place }: { kind: Kind; namespace: string; place: Place }) {
  const state = stateOf(place, kind);
  const change = (to: Partial<TableState>) => show(kind, namespace, state, to);
  const rows = useRef(new Rows());
  const [, draw] = useState(0);
  const [live, setLive] = useState<Live>('loading');
  const [error, setError] = useState<unknown>();
  useTask(
    async (signal) => {
      rows.current = new Rows();
      const drawn = () => draw((n) => n + 1);
      await follow(
        signal,
        async () => {
          await rows.current.load(kind, namespace, state.labels, signal);
          setError(undefined);
          setLive('live');
          drawn();
          return rows.current.version;
        },
        (version) => pathOf(kind, namespace, undefined, undefined, { watch: 'true', allowWatchBookmarks: 'true', resourceVersion: version, labelSelector: state.labels }),
        tableType,
        (event) => {
          setLive('live');
          if (rows.current.apply(event)) drawn();
        },
        (failure) => {
          setError(failure);
          setLive(failure instanceof Refused && failure.code < 500 ? 'still' : 'broken');
        },
        () => {
          setLive('live');
          setError(undefined);
        },
      );
    },
    [kind, namespace, state.labels],
  );
  const loaded = rows.current;
  const { all, shown } = columnsOf(loaded.columns, [], kind.namespaced, !!namespace, state.columns);
  const count = loaded.rows.size;
  return (
    <>
      <Title kind={kind} namespace={namespace} live={live} describe={() => listOf(kind, namespace, state.labels)} />
      <Problem error={error} title={live === 'broken' ? 'Out of date, and trying again' : 'You may not list these'} />
      <div class="tools">
        <LabelFilter kind={kind} namespace={namespace} value={state.labels} set={(labels) => change({ labels })} />
        <Choice all={all} shown={shown} set={(columns) => (keepColumns(kind, columns), change({ columns }))} />
        <span class="gap" />
        <span class="quiet" role="status">
          {live !== 'loading' && `${count.toLocaleString('en')}${loaded.next ? ` of ${(count + loaded.remaining).toLocaleString('en')}` : ''} ${count === 1 ? 'object' : 'objects'}`}
        </span>
      </div>
      {live === 'loading' ? (
        <Loading what={kind.resource} />
      ) : (
        <Table
          kind={kind}
          namespace={namespace}
          rows={[...loaded.rows.values()]}
          shown={shown}
          fresh={new Set()}
          busy={false}
          open={state.open}
          setOpen={(open) => change({ open })}
          changed={() => {}}
          turn={() => {}}
          empty={state.labels ? 'Nothing fits the filter.' : `There are no ${kind.resource}${namespace ? ' in ' + namespace : ''}.`}
        />
      )}
      {loaded.next && (
        <button type="button" onClick={() => void loaded.load(kind, namespace, state.labels, new AbortController().signal, true).then(() => draw((n) => n + 1), setError)}>
          Load more
        </button>
      )}
    </>
  );
}

function listOf(kind: Kind, namespace: string, labels: string): Described {
  return { method: 'GET', path: pathOf(kind, namespace), query: labels ? [['labelSelector', labels]] : [], of: { kind, namespace, verb: 'list' } };
}

function Title({ kind, namespace, live, describe }: { kind: Kind; namespace: string; live: Live; describe: () => Described }) {
  const mayCreate = useMay(kind.verbs.includes('create') ? wanted(kind, 'create', namespace) : undefined);
  return (
    <div class="heading">
      <h1>{kind.kind}</h1>
      <span class="quiet">
        {kind.resource}
        {kind.group && '.' + kind.group} {kind.version}
      </span>
      <span class={`live ${live}`}>{said[live]}</span>
      <span class="gap" />
      <CopyAs describe={describe} />
      {mayCreate && (
        <a class="button primary" href={linkToNew(kind, namespace)}>
          New {kind.kind}
        </a>
      )}
    </div>
  );
}

interface Sort {
  by: string;
  ascending: boolean;
  set: (by: string) => void;
}

interface Shows {
  kind: Kind;
  namespace: string;
  rows: Row[];
  shown: Shown[];
  fresh: Set<string>;
  busy: boolean;
  sort?: Sort;
  open: string;
  setOpen: (key: string) => void;
  everything?: { asked: TableState; total: number } | undefined;
  save?: (format: 'csv' | 'yaml', metas: Resource['metadata'][]) => Promise<void>;
  changed: () => void;
  turn: (by: number) => void;
  empty: string;
}

function Table({ kind, namespace, rows, shown, fresh, busy, sort, open, setOpen, everything, save, changed, turn, empty }: Shows) {
  const now = useNow(5000);
  const [selected, setSelected] = useState<Map<string, Resource['metadata']>>(new Map());
  const [whole, setWhole] = useState<{ asked: TableState; total: number } | undefined>();
  // What is selected when the question is asked is what it is about.
  const [bulk, setBulk] = useState<{ what: 'delete' | 'label'; targets: Targets } | undefined>();
  const mayDelete = useMay(kind.verbs.includes('delete') ? wanted(kind, 'delete', namespace) : undefined);
  const mayLabel = useMay(kind.verbs.includes('patch') ? wanted(kind, 'patch', namespace) : undefined);
  const body = useRef<HTMLTableSectionElement>(null);
  const select = (row: Row) => {
    const next = new Map(selected);
    if (!next.delete(row.key)) next.set(row.key, row.meta);
    setSelected(next);
    setWhole(undefined);
  };
  const onPage = rows.filter((r) => selected.has(r.key)).length;
  // Another filter selects other objects: all of them are meant only as long as the filter stays.
  const conditions = everything && conditionsOf(everything.asked).toString();
  useEffect(() => setWhole(undefined), [conditions]);
  const links = () => [...(body.current?.querySelectorAll<HTMLAnchorElement>('tr > td a.to') ?? [])];
  const at = () => links().findIndex((a) => a.closest('tr')!.contains(document.activeElement));
  const move = (by: number) => {
    const all = links();
    all[Math.min(all.length - 1, Math.max(0, at() < 0 ? (by > 0 ? 0 : all.length - 1) : at() + by))]?.focus();
  };
  const current = () => rows[at()];
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    x: () => {
      const row = current();
      if (row) select(row);
    },
    o: () => {
      const row = current();
      if (row) setOpen(open === row.key ? '' : row.key);
    },
    Escape: () => (open ? setOpen('') : setSelected(new Map())),
    ']': () => turn(1),
    '[': () => turn(-1),
    '/': () => document.querySelector<HTMLInputElement>('input.words')?.focus(),
  });
  const targets: Targets = whole ?? { metas: [...selected.values()] };
  const count = countOfTargets(targets);
  const opened = rows.find((r) => r.key === open)?.meta ?? (open ? { namespace: open.slice(0, open.indexOf('/')), name: open.slice(open.indexOf('/') + 1) } : undefined);
  const selectable = mayDelete || mayLabel || !!save;
  return (
    <>
      {count > 0 && (
        <div class="selection" role="group" aria-label="Selection">
          <strong role="status">{count.toLocaleString('en')} selected</strong>
          {everything && !whole && onPage === rows.length && everything.total > rows.length && (
            <button type="button" class="small" onClick={() => setWhole(everything)}>
              Select all {everything.total.toLocaleString('en')}
            </button>
          )}
          {mayLabel && (
            <button type="button" class="small" onClick={() => setBulk({ what: 'label', targets })}>
              Label…
            </button>
          )}
          {save && !whole && (
            <>
              <button type="button" class="small" onClick={() => void save('csv', [...selected.values()])}>
                CSV
              </button>
              <button type="button" class="small" onClick={() => void save('yaml', [...selected.values()])}>
                YAML
              </button>
            </>
          )}
          {mayDelete && (
            <button type="button" class="small danger" onClick={() => setBulk({ what: 'delete', targets })}>
              Delete…
            </button>
          )}
          <button type="button" class="small" onClick={() => (setSelected(new Map()), setWhole(undefined))}>
            Clear
          </button>
        </div>
      )}
      <div class={opened ? 'beside' : ''}>
        <div class="scroll" tabIndex={0} role="region" aria-label={kind.resource} aria-busy={busy}>
          <table>
            <thead>
              <tr>
                {selectable && (
                  <td class="check">
                    <input
                      type="checkbox"
                      aria-label="Select this page"
                      checked={rows.length > 0 && onPage === rows.length}
                      onChange={(e) => {
                        const next = new Map(selected);
                        for (const r of rows) if (e.currentTarget.checked) next.set(r.key, r.meta); else next.delete(r.key);
                        setSelected(next);
                        setWhole(undefined);
                      }}
                    />
                  </td>
                )}
                {shown.map((c) => (
                  <Head key={c.id} column={c} sort={sort} />
                ))}
              </tr>
            </thead>
            <tbody ref={body}>
              {rows.map((r) => (
                <tr key={r.meta.uid ?? r.key} class={`${fresh.has(r.key) ? 'fresh' : ''} ${r.meta.deletionTimestamp ? 'going' : ''} ${r.key === open ? 'opened' : ''}`} aria-selected={selected.has(r.key) ? 'true' : undefined}>
                  {selectable && (
                    <td class="check">
                      <input type="checkbox" aria-label={`Select ${r.meta.name}`} checked={!!whole || selected.has(r.key)} onChange={() => select(r)} />
                    </td>
                  )}
                  {shown.map((c) => (
                    <Cell key={c.id} column={c} row={r} kind={kind} now={now} />
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
          {rows.length === 0 && <p class="empty">{empty}</p>}
        </div>
        {opened && <Panel kind={kind} namespace={opened.namespace ?? ''} name={opened.name} close={() => setOpen('')} />}
      </div>
      {bulk && <Bulk kind={kind} namespace={namespace} what={bulk.what} targets={bulk.targets} close={() => setBulk(undefined)} changed={() => (setSelected(new Map()), setWhole(undefined), changed())} />}
    </>
  );
}

function Head({ column: c, sort }: { column: Shown; sort?: Sort | undefined }) {
  const by = c.sortBy;
  const sorted = sort && by && sort.by === by;
  return (
    <th scope="col" aria-sort={sorted ? (sort.ascending ? 'ascending' : 'descending') : undefined} title={c.title}>
      {sort && by ? (
        <button type="button" class="plain" onClick={() => sort.set(by)}>
          {c.name} <span aria-hidden="true">{sorted ? (sort.ascending ? '↑' : '↓') : ''}</span>
        </button>
      ) : (
        c.name
      )}
    </th>
  );
}

const good = new Set(['true', 'ready', 'running', 'active', 'approved', 'available', 'succeeded', 'bound', 'complete', 'completed', 'established']);
const bad = new Set(['failed', 'error', 'rejected', 'crashed', 'lost', 'evicted', 'unavailable', 'notready']);
const open = new Set(['pending', 'unknown', 'waiting', 'terminating', 'progressing', 'starting']);

// tone colours words for states; the word is there as well.
export function tone(text: string): string {
  const word = text.toLowerCase();
  return good.has(word) ? 'good' : bad.has(word) ? 'bad' : open.has(word) ? 'open' : '';
}

function Cell({ column: c, row, kind, now }: { column: Shown; row: Row; kind: Kind; now: number }) {
  const text = c.age && row.meta.creationTimestamp ? age(row.meta.creationTimestamp, now) : cellText(c.cell(row));
  return (
    <td class={c.number ? 'number' : ''} title={text.length > 60 ? text : undefined}>
      {c.first ? (
        <a class="to" href={linkToObject(kind, row.meta.namespace, row.meta.name)}>
          {text || row.meta.name}
        </a>
      ) : tone(text) ? (
        <span class={`tone ${tone(text)}`}>{text}</span>
      ) : (
        text
      )}
    </td>
  );
}

// Panel shows an object beside the table.
function Panel({ kind, namespace, name, close }: { kind: Kind; namespace: string; name: string; close: () => void }) {
  const read = useLoaded((signal) => get<Resource>(pathOf(kind, namespace, name), { signal }), [kind, namespace, name]);
  const { managedFields: _, ...metadata } = read.value?.metadata ?? { name };
  return (
    <aside class="panel" aria-label={`${kind.kind} ${name}`}>
      <div class="heading">
        <h2>
          <a href={linkToObject(kind, namespace, name)}>{name}</a>
        </h2>
        <span class="gap" />
        <button type="button" class="plain" aria-label="Close the panel" onClick={close}>
          ×
        </button>
      </div>
      <Problem error={read.error} />
      {read.value && (
        <pre class="source" tabIndex={0} aria-label="The object as YAML">
          {yamlOf({ ...read.value, metadata })}
        </pre>
      )}
    </aside>
  );
}

// Choice is a menu of the columns.
function Choice({ all, shown, set }: { all: Shown[]; shown: Shown[]; set: (columns: string[] | undefined) => void }) {
  const [label, setLabel] = useState('');
  const ids = shown.map((c) => c.id);
  if (all.length === 0) return null;
  return (
    <details class="menu">
      <summary class="button">Columns</summary>
      <div>
        {all.map((c) => (
          <label class="check" key={c.id}>
            <input type="checkbox" checked={ids.includes(c.id)} disabled={c.first} onChange={(e) => set(e.currentTarget.checked ? [...ids, c.id] : ids.filter((id) => id !== c.id))} /> {c.name}
          </label>
        ))}
        <form
          onSubmit={(e) => {
            e.preventDefault();
            if (label.trim()) set([...ids, labelColumn(label.trim()).id]);
            setLabel('');
          }}
        >
          <input aria-label="Label to add as a column" placeholder="a label" value={label} onInput={(e) => setLabel(e.currentTarget.value)} />
          <button type="submit" class="small">
            Add
          </button>
        </form>
        <button type="button" class="small" onClick={() => set(undefined)}>
          As usual
        </button>
      </div>
    </details>
  );
}

// LabelFilter takes a selector of labels, and suggests those that objects have.
function LabelFilter({ kind, namespace, value, set }: { kind: Kind; namespace: string; value: string; set: (selector: string) => void }) {
  const { config } = useApp();
  const [typed, setTyped] = useState(value);
  const [asked, setAsked] = useState(false);
  useEffect(() => setTyped(value), [value]);
  const counts = useLoaded(async (signal) => (asked && config.query ? countsOf(config.query, kind, namespace, 'labels', signal, 300) : []), [asked, kind, namespace]);
  // What is typed before the last comma stays in front of each suggestion.
  const before = typed.includes(',') ? typed.slice(0, typed.lastIndexOf(',') + 1) : '';
  return (
    <form
      class="labels"
      onSubmit={(e) => {
        e.preventDefault();
        set(typed.trim());
      }}
    >
      <input
        aria-label="Filter by labels"
        placeholder="Labels: team=red"
        list="labels"
        value={typed}
        onFocus={() => setAsked(true)}
        onInput={(e) => {
          const text = e.currentTarget.value;
          setTyped(text);
          // A suggestion that is chosen, or nothing any more, needs no Enter.
          if (!text.trim() || (counts.value ?? []).some((c) => before + c.value === text)) set(text.trim());
        }}
        onBlur={() => typed.trim() !== value && set(typed.trim())}
      />
      <datalist id="labels">{(counts.value ?? []).map((c) => c.value !== null && <option value={before + c.value}>{`${c.value} (${c.count})`}</option>)}</datalist>
    </form>
  );
}

// Values suggests the values that there are, with how many objects have each. Names are not worth it.
function Values({ id, kind, namespace, field }: { id: string; kind: Kind; namespace: string; field: string }) {
  const { config } = useApp();
  const counts = useLoaded(async (signal) => (config.query && field !== 'name' ? countsOf(config.query, kind, namespace, field, signal) : []), [config.query, kind, namespace, field]);
  return <datalist id={id}>{(counts.value ?? []).map((c) => c.value !== null && <option value={c.value}>{`${c.value} (${c.count})`}</option>)}</datalist>;
}

function Filters({ kind, namespace, fields, filters, set }: { kind: Kind; namespace: string; fields: Field[]; filters: Filter[]; set: (f: Filter[]) => void }) {
  // A filter without a value selects nothing yet, and is not in the address.
  const [draft, setDraft] = useState<Filter | undefined>();
  const able = fields.filter((f) => f.filterable);
  const typeOf = (name: string) => able.find((f) => f.name === name)?.type ?? 'string';
  const opsOf = (name: string) => ops[typeOf(name)] ?? ops['string']!;
  const every = draft ? [...filters, draft] : filters;
  const put = (i: number, f: Filter) => {
    if (i < filters.length) set(f.value === '' ? filters.toSpliced(i, 1) : filters.with(i, f));
    else if (f.value === '') setDraft(f);
    else {
      setDraft(undefined);
      set([...filters, f]);
    }
  };
  return (
    <>
      {every.map((f, i) => (
        <span class="filter" key={i} role="group" aria-label={`Filter ${i + 1}`}>
          <select
            aria-label="Field"
            value={f.field}
            onChange={(e) => {
              const field = e.currentTarget.value;
              if (i < filters.length) set(filters.toSpliced(i, 1));
              setDraft({ field, op: opsOf(field)[0]![0], value: '' });
            }}
          >
            {able.map((a) => (
              <option value={a.name} title={a.description}>
                {a.name.replace(/^column:/, '')}
              </option>
            ))}
          </select>
          <select aria-label="Comparison" value={f.op} onChange={(e) => put(i, { ...f, op: e.currentTarget.value })}>
            {opsOf(f.field).map(([op, label]) => (
              <option value={op}>{label}</option>
            ))}
          </select>
          {typeOf(f.field) === 'boolean' ? (
            <select aria-label="Value" value={f.value} onChange={(e) => put(i, { ...f, value: e.currentTarget.value })}>
              <option value="" />
              <option value="true">true</option>
              <option value="false">false</option>
            </select>
          ) : (
            <input aria-label="Value" list={`values-${i}`} value={f.value} placeholder={typeOf(f.field) === 'time' ? '2026-01-31T00:00:00Z' : ''} onChange={(e) => put(i, { ...f, value: e.currentTarget.value.trim() })} />
          )}
          {typeOf(f.field) === 'string' && f.op !== 'contains' && <Values id={`values-${i}`} kind={kind} namespace={namespace} field={f.field} />}
          <button type="button" class="plain" aria-label="Remove this filter" onClick={() => (i < filters.length ? set(filters.toSpliced(i, 1)) : setDraft(undefined))}>
            ×
          </button>
        </span>
      ))}
      {able.length > 0 && !draft && (
        <button type="button" onClick={() => setDraft({ field: able[0]!.name, op: opsOf(able[0]!.name)[0]![0], value: '' })}>
          + Filter
        </button>
      )}
    </>
  );
}
