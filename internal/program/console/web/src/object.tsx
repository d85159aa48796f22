// One object: its fields, edited by server-side apply; events, owners, logs, a terminal, actions.

import { type ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Action } from './action';
import { type Cause, events as watch, get, type Obj, pause, reasonOf, Refused, request, type Resource } from './api';
import { actions, apiVersion, execOf, type Kind, logsOf, pathOf, readable } from './discovery';
import { type Draft, Editor, textOf } from './editor';
import { Events } from './events';
import { Graph } from './graph';
import { Logs } from './logs';
import { wanted } from './rights';
import { go, linkToKind, linkToObject } from './router';
import { Terminal } from './terminal';
import { age } from './table';
import { at, difference, editable, isObj, merged, owned, type Path, same } from './values';
import { Dialog, Field, Loading, Problem, useApp, useLoaded, useMay, useNow, useTask } from './widgets';

const manager = 'annex-console';

// useObject reads an object and follows it.
function useObject(kind: Kind, namespace: string, name: string): { object?: Resource; gone: boolean; error?: unknown; put: (o: Resource) => void } {
  const [object, put] = useState<Resource | undefined>();
  const [gone, setGone] = useState(false);
  const [error, setError] = useState<unknown>();
  useTask(
    async (signal) => {
      let seen = false;
      while (!signal.aborted) {
        try {
          const first = await get<Resource>(pathOf(kind, namespace, name), { signal });
          seen = true;
          put(first);
          setError(undefined);
          if (!kind.verbs.includes('watch')) return;
          const path = pathOf(kind, namespace, undefined, undefined, { watch: 'true', fieldSelector: 'metadata.name=' + name, resourceVersion: first.metadata.resourceVersion });
          for await (const e of watch<Resource>(path, 'application/json', signal)) {
            if (e.type === 'ERROR') break;
            if (e.type === 'DELETED') return setGone(true);
            if (e.type !== 'BOOKMARK') put(e.object);
          }
        } catch (failure) {
          if (signal.aborted) return;
          if (failure instanceof Refused && failure.code === 404 && seen) return setGone(true);
          // Who may get and not watch sees what was there.
          if (failure instanceof Refused && failure.code === 403 && seen) return;
          setError(failure);
          if (failure instanceof Refused && failure.code < 500 && failure.code !== 410) return;
        }
        await pause(1000, signal);
      }
    },
    [kind, namespace, name],
  );
  return { ...(object ? { object } : {}), gone, error, put };
}

export function ObjectView({ kind, namespace, name, tab }: { kind: Kind; namespace: string; name: string; tab: string }) {
  const { kinds } = useApp();
  const { object, gone, error, put } = useObject(kind, namespace, name);
  const of = (verb: string, sub?: string) => wanted(kind, verb, namespace, name, sub);
  const logs = logsOf(kind);
  const exec = execOf(kind);
  const mayLog = useMay(logs && of('get', logs.name));
  const mayExec = useMay(exec && of('create', 'exec'));
  const eventKind = kinds.find((k) => k.group === '' && k.resource === 'events');
  const mayEvents = useMay(eventKind && wanted(eventKind, 'list', namespace || 'default'));
  const mayEdit = useMay(kind.verbs.includes('patch') ? of('patch') : undefined);
  const mayDelete = useMay(kind.verbs.includes('delete') ? of('delete') : undefined);
  const now = useNow(5000);
  const [deleting, setDeleting] = useState(false);
  const [acting, act] = useState<string>();
  if (error && !object) return <Problem error={error} title={`${kind.kind} ${name}`} />;
  if (!object) return <Loading what={name} />;
  const m = object.metadata;
  const tabs: [string, string, boolean][] = [
    ['', 'Object', true],
    ['edit', 'Edit', mayEdit && !gone],
    ['logs', 'Logs', mayLog && !gone],
    ['exec', 'Terminal', mayExec && !gone],
    ['events', 'Events', mayEvents],
    ['owners', 'Owners', true],
    ...readable(kind).map((s): [string, string, boolean] => ['read-' + s.name, s.name, !gone]),
  ];
  const current = tabs.find(([id, , there]) => id === tab && there)?.[0] ?? '';
  return (
    <>
      <nav class="crumbs" aria-label="Where">
        <a href={linkToKind(kind, namespace)}>{kind.kind}</a> {namespace && <span>/ {namespace} </span>}/
      </nav>
      <div class="heading">
        <h1>{name}</h1>
        <span class="quiet">{apiVersion(kind)}</span>
        {gone && <span class="tone bad">deleted</span>}
        {!gone && m.deletionTimestamp && <span class="tone open">terminating</span>}
        <span class="gap" />
        {!gone && actions(kind).map((s) => <ActionButton key={s.name} kind={kind} namespace={namespace} name={name} sub={s.name} act={act} />)}
        {mayDelete && !gone && (
          <button type="button" class="danger" onClick={() => setDeleting(true)}>
            Delete
          </button>
        )}
      </div>
      <dl class="facts">
        <Fact name="Created">
          {age(m.creationTimestamp, now)} ago <span class="quiet">{m.creationTimestamp}</span>
        </Fact>
        <Fact name="Revision">{m.resourceVersion}</Fact>
        {m.generation !== undefined && <Fact name="Generation">{m.generation}</Fact>}
        {m.labels && (
          <Fact name="Labels">
            {Object.entries(m.labels).map(([k, v]) => (
              <code class="label">
                {k}={v}
              </code>
            ))}
          </Fact>
        )}
      </dl>
      <Progress object={object} />
      <nav class="tabs" aria-label="Parts">
        {tabs
          .filter(([, , there]) => there)
          .map(([id, label]) => (
            <a key={id} href={linkToObject(kind, namespace, name, id)} aria-current={current === id ? 'page' : undefined}>
              {label}
            </a>
          ))}
      </nav>
      {current === '' && <Shown object={object} />}
      {current === 'edit' && <Edit kind={kind} namespace={namespace} name={name} object={object} put={put} />}
      {current === 'events' && eventKind && <Events kind={eventKind} object={object} namespace={namespace} />}
      {current === 'owners' && <Graph kind={kind} object={object} namespace={namespace} />}
      {current === 'logs' && logs && <Logs kind={kind} namespace={namespace} name={name} sub={logs.name} object={object} />}
      {current === 'exec' && <Terminal kind={kind} namespace={namespace} name={name} object={object} />}
      {current.startsWith('read-') && <Read kind={kind} namespace={namespace} name={name} sub={current.slice(5)} />}
      {deleting && <Delete kind={kind} namespace={namespace} object={object} close={() => setDeleting(false)} />}
      {acting && <Action kind={kind} namespace={namespace} name={name} sub={acting} close={() => act(undefined)} />}
    </>
  );
}

function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function ActionButton({ kind, namespace, name, sub, act }: { kind: Kind; namespace: string; name: string; sub: string; act: (sub: string) => void }) {
  return useMay(wanted(kind, 'create', namespace, name, sub)) ? (
    <button type="button" onClick={() => act(sub)}>
      {sub}
    </button>
  ) : null;
}

// Progress shows how far an operation is, and conditions of all that have them.
function Progress({ object }: { object: Resource }) {
  const status = isObj(object['status']) ? object['status'] : {};
  const progress = status['progress'] ?? status['percent'];
  const percent = typeof progress === 'number' ? progress : isObj(progress) && typeof progress['percent'] === 'number' ? progress['percent'] : undefined;
  const step = isObj(progress) ? progress['message'] : status['message'];
  const conditions = Array.isArray(status['conditions']) ? status['conditions'].filter(isObj) : [];
  if (percent === undefined && conditions.length === 0) return null;
  return (
    <div class="progress" aria-live="polite">
      {percent !== undefined && (
        <label>
          {typeof step === 'string' && step ? step : 'Progress'} <progress max={100} value={percent} /> {percent} %
        </label>
      )}
      {conditions.length > 0 && (
        <ul class="conditions" aria-label="Conditions">
          {conditions.map((c) => (
            <li title={`${String(c['reason'] ?? '')} ${String(c['message'] ?? '')}`}>
              <span class={`tone ${c['status'] === 'True' ? 'good' : c['status'] === 'False' ? 'bad' : 'open'}`}>{String(c['type'])}</span> <span class="quiet">{String(c['status'])}{c['reason'] ? ', ' + String(c['reason']) : ''}</span>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function Shown({ object }: { object: Resource }) {
  const [managed, setManaged] = useState(false);
  const { managedFields: _, ...metadata } = object.metadata;
  return (
    <>
      <div class="tools">
        <label class="check">
          <input type="checkbox" checked={managed} onChange={(e) => setManaged(e.currentTarget.checked)} /> with managed fields
        </label>
      </div>
      <pre class="source" tabIndex={0} aria-label="The object as YAML">
        {textOf(managed ? object : { ...object, metadata })}
      </pre>
    </>
  );
}

function Read({ kind, namespace, name, sub }: { kind: Kind; namespace: string; name: string; sub: string }) {
  const read = useLoaded((signal) => request(pathOf(kind, namespace, name, sub), { signal }).then((r) => r.text()), [kind, namespace, name, sub]);
  const text = (() => {
    try {
      return textOf(JSON.parse(read.value ?? ''));
    } catch {
      return read.value ?? '';
    }
  })();
  return (
    <>
      <div class="tools">
        <button type="button" onClick={read.reload}>
          Read again
        </button>
      </div>
      <Problem error={read.error} />
      {read.value !== undefined && (
        <pre class="source" tabIndex={0}>
          {text}
        </pre>
      )}
    </>
  );
}

// send carries out an edit. What is set and changed is applied, together with what the console has applied
// before; an edit that takes fields away, which are perhaps others', is a patch of the revision that the
// user has seen instead, because an apply takes away only what is its own.
async function send(kind: Kind, namespace: string, name: string, base: Resource, draft: Obj, force: boolean, dryRun: boolean): Promise<Resource> {
  const before = editable(base);
  const { set, gone } = difference(before, draft);
  const parameters = { fieldManager: manager, fieldValidation: 'Strict', dryRun: dryRun ? 'All' : undefined };
  const own = owned(base, manager);
  const isGone = (path: Path) => gone.some((g) => same(g, path));
  const othersToo = gone.filter((g) => at(own, g) === undefined || base.metadata.managedFields?.some((m) => m.manager !== manager && has(m.fieldsV1, g)));
  let body: Obj;
  let contentType: string;
  if (othersToo.length > 0) {
    body = { ...set, metadata: { ...(isObj(set['metadata']) ? set['metadata'] : {}), resourceVersion: base.metadata.resourceVersion ?? '' } };
    for (const path of gone) body = nulled(body, path);
    contentType = 'application/merge-patch+json';
  } else {
    const kept = prune(own, [], isGone);
    body = merged(merged(kept, set), { apiVersion: apiVersion(kind), kind: kind.kind, metadata: { name, ...(namespace ? { namespace } : {}) } });
    contentType = 'application/apply-patch+yaml';
  }
  const force_ = contentType.startsWith('application/apply') && force ? 'true' : undefined;
  const response = await request(pathOf(kind, namespace, name, undefined, { ...parameters, force: force_ }), { method: 'PATCH', contentType, body: JSON.stringify(body) });
  return (await response.json()) as Resource;
}

function has(fields: Obj | undefined, path: Path): boolean {
  let f: unknown = fields;
  for (const step of path) f = isObj(f) ? f['f:' + step] : undefined;
  return f !== undefined;
}

function nulled(object: Obj, path: Path): Obj {
  const [step, ...rest] = path as [string, ...Path];
  const inner = object[step];
  return { ...object, [step]: rest.length === 0 ? null : nulled(isObj(inner) ? inner : {}, rest) };
}

function prune(object: Obj, path: Path, isGone: (path: Path) => boolean): Obj {
  return Object.fromEntries(
    Object.entries(object)
      .filter(([name]) => !isGone([...path, name]))
      .map(([name, value]) => [name, isObj(value) ? prune(value, [...path, name], isGone) : value]),
  );
}

function Edit({ kind, namespace, name, object, put }: { kind: Kind; namespace: string; name: string; object: Resource; put: (o: Resource) => void }) {
  const { say } = useApp();
  const [base, setBase] = useState(object);
  const [draft, setDraft] = useState<Draft>(() => ({ object: editable(object) }));
  const [mode, setMode] = useState<'form' | 'yaml'>('form');
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const dirty = !same(editable(base), draft.object) || !!draft.error;
  const dirtyNow = useRef(dirty);
  dirtyNow.current = dirty;
  const stale = base.metadata.resourceVersion !== object.metadata.resourceVersion && !same(editable(base), editable(object));
  // While nothing is edited, the editor shows what is there.
  useEffect(() => {
    if (dirtyNow.current) return;
    setBase(object);
    setDraft((d) => (same(d.object, editable(object)) ? d : { object: editable(object) }));
  }, [object]);
  const save = async (force: boolean) => {
    setBusy(true);
    setError(undefined);
    try {
      try {
        await send(kind, namespace, name, base, draft.object, force, true);
      } catch (failure) {
        // What the console has made without an apply, with a create say, is its own.
        if (!(failure instanceof Refused && failure.isConflictOfManagers && failure.causes.every((c) => c.message?.startsWith(`conflict with "${manager}"`)))) throw failure;
        force = true;
      }
      const saved = await send(kind, namespace, name, base, draft.object, force, false);
      setBase(saved);
      setDraft({ object: editable(saved) });
      put(saved);
      say(`${kind.kind} ${name} was saved.`);
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const causes: Cause[] = error instanceof Refused && error.code === 422 ? error.causes : [];
  const conflict = error instanceof Refused && error.isConflictOfManagers ? error : undefined;
  return (
    <form
      novalidate
      onSubmit={(e) => {
        e.preventDefault();
        void save(false);
      }}
    >
      <div class="tools">
        <button type="submit" class="primary" disabled={busy || !dirty || !!draft.error}>
          Save
        </button>
        <button
          type="button"
          disabled={busy || !dirty}
          onClick={() => {
            setBase(object);
            setDraft({ object: editable(object) });
            setError(undefined);
          }}
        >
          Discard
        </button>
        {stale && dirty && (
          <span class="tone open" role="status">
            it has been changed meanwhile; what you have not edited stays as it is there
          </span>
        )}
      </div>
      {conflict ? (
        <div class="problem" role="alert">
          <strong>Others manage what you have changed</strong>
          <ul>
            {conflict.causes.map((c) => (
              <li>
                <code>{c.field}</code> {c.message}
              </li>
            ))}
          </ul>
          <p>
            They will change it back, or fail, when they apply it again. <button type="button" class="danger" disabled={busy} onClick={() => void save(true)}>Take over</button>
          </p>
        </div>
      ) : (
        <Problem error={error} title={error instanceof Refused && error.code === 409 ? 'It has been changed meanwhile' : 'Not saved'} />
      )}
      <Editor kind={kind} object={draft.object} change={setDraft} causes={causes} creating={false} mode={mode} setMode={setMode} />
    </form>
  );
}

function Delete({ kind, namespace, object, close }: { kind: Kind; namespace: string; object: Resource; close: () => void }) {
  const { say } = useApp();
  const [policy, setPolicy] = useState('');
  const [error, setError] = useState('');
  const [busy, setBusy] = useState(false);
  const name = object.metadata.name;
  const remove = async () => {
    setBusy(true);
    try {
      await request(pathOf(kind, namespace, name), {
        method: 'DELETE',
        body: { apiVersion: 'v1', kind: 'DeleteOptions', ...(policy ? { propagationPolicy: policy } : {}), preconditions: { uid: object.metadata.uid } },
      });
      say(`${kind.kind} ${name} is being deleted.`);
      close();
      go(linkToKind(kind, namespace));
    } catch (failure) {
      setError(reasonOf(failure));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Delete ${kind.kind} ${name}?`} close={close}>
      {error && <Problem error={new Error(error)} title="Not deleted" />}
      <Field label="What it owns">
        {(id) => (
          <select id={id} value={policy} onChange={(e) => setPolicy(e.currentTarget.value)}>
            <option value="">as the kind has it</option>
            <option value="Background">is deleted after it</option>
            <option value="Foreground">is deleted before it</option>
            <option value="Orphan">stays, without an owner</option>
          </select>
        )}
      </Field>
      <div class="buttons">
        <button type="button" onClick={close} autofocus>
          Cancel
        </button>
        <button type="button" class="danger" disabled={busy} onClick={() => void remove()}>
          Delete
        </button>
      </div>
    </Dialog>
  );
}

